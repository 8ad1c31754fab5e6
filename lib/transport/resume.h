// Transfers into a file that go on where an earlier one broke off. What has arrived is in the unfinished file beside
// the output, and a journal beside that says what; names and format are in hetero-transports(7). A new transfer writes
// a file of its own and takes from the old one what the sender can leave out. Whatever cannot be used is discarded with
// a warning.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "io/atomic_file.h"
#include "kv/file.h"
#include "transport/messages.h"

namespace hetero::transport {

// What an earlier transfer left: locked, so that no other transfer uses it meanwhile.
class UnfinishedFile;

class Resume {
public:
    // How much may arrive before it is made safe: the earlier of the two.
    struct Pace {
        std::uint64_t bytes = 64ULL << 20;
        double seconds = 0.5;
    };
    Resume(std::string path, Pace pace);
    explicit Resume(std::string path) : Resume(std::move(path), Pace()) {}
    ~Resume();
    Resume(const Resume&) = delete;
    Resume& operator=(const Resume&) = delete;

    // What is held of the state that is offered, all of it read and compared with its checksums. A sender whose states
    // have no key (zeros) has nothing to resume, and nothing is kept.
    std::vector<HeldPieces> look_for(const kv::Header& header, const Digest& state_key);
    // Puts what is held of a layer in its place, compared once more. An error: it has changed, and is discarded.
    Status fill(std::uint64_t layer_index, kv::Layer& layer);
    // After look_for(). Keeps what it has written where its end is a peer error, or none is told.
    Result<std::unique_ptr<kv::Sink>> create_sink(io::Overwrite overwrite);

private:
    std::string path_;
    Pace pace_;
    std::shared_ptr<const kv::Header> header_;
    Digest state_key_{};
    std::shared_ptr<UnfinishedFile> found_;
};

// Removes what earlier transfers into `path` left, except where another process still writes.
void discard_unfinished(const std::string& path);

}  // namespace hetero::transport
