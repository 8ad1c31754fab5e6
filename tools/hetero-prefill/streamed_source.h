// What is computed, layer by layer while it is: one thread computes, another reads and sends.
#pragma once
#include <condition_variable>
#include <deque>
#include <mutex>
#include <optional>
#include <string>

#include "common/group.h"
#include "engine/session.h"
#include "kv/stream.h"

namespace hetero::tool {

class StreamedSource final : public kv::Source {
public:
    // `header` has the sequences without what comes late, and the schemes of the layers: where the session codes them
    // (Session::codes_layers), those that it codes to. A layer is read from `session` when it is asked for; where the
    // ranks of a group have to gather it together, when it is complete. All outlive the source.
    StreamedSource(kv::Header header, const engine::Session& session, const GroupWriter& writer);

    // For the thread that computes. A layer of the sequence in work is complete, with `end` tokens; fails where the
    // reader has given up.
    Status layer_done(std::uint32_t layer, std::uint64_t end);
    // All layers of the sequence in work are. `more`: the session is needed for the next one, so that what is not read
    // yet is copied.
    Status sequence_done(std::uint64_t end, bool more);
    void all_done(const kv::Header& complete);  // with what comes late

    // Either thread: it has given up. The other one is told.
    void failed(const Error& reason);

    // When all is read: the largest |decoded - value| of what was coded as it left the session, and how many parts a
    // device has coded.
    [[nodiscard]] float max_abs_error() const noexcept { return max_abs_error_; }
    [[nodiscard]] std::uint64_t coded_on_device() const noexcept { return coded_on_device_; }
    [[nodiscard]] std::uint64_t read_on_device() const noexcept { return read_on_device_; }  // by read_remote()

    // For the thread that reads.
    [[nodiscard]] const kv::Header& header() const noexcept override { return header_; }
    [[nodiscard]] const std::string& name() const noexcept override { return name_; }
    Result<kv::Layer> read_layer() override;
    Result<std::shared_ptr<const kv::RemoteLayer>> read_remote() override;
    Status finish() override;

private:
    using Lock = std::unique_lock<std::mutex>;
    [[nodiscard]] Status failure() const;
    Result<engine::CodedLayer> take(std::uint64_t index, std::uint64_t end);
    Result<engine::CodedLayer> next();  // waits for it

    kv::Header header_;
    const engine::Session& session_;
    const GroupWriter& writer_;
    const std::uint64_t n_layers_;
    const std::string name_ = "what is computed";

    mutable std::mutex mutex_;
    std::condition_variable changed_;
    // Guarded by mutex_; layers are counted over all sequences.
    std::uint64_t ready_ = 0, taken_ = 0, sequence_ = 0;
    std::uint64_t end_ = 0;                // tokens of the sequence in work
    std::deque<engine::CodedLayer> held_;  // the next ones to be read, where they are no more in the session
    bool exporting_ = false;               // the reader copies out of the session
    // Of the thread that copies out of it.
    float max_abs_error_ = 0;
    std::uint64_t coded_on_device_ = 0;
    std::uint64_t read_on_device_ = 0;        // of the thread that reads
    std::optional<engine::CodedLayer> here_;  // likewise: what read_remote() left to read_layer()
    std::optional<kv::Header> complete_;
    std::optional<Error> error_;
};

}  // namespace hetero::tool
