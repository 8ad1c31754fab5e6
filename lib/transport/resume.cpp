#include "transport/resume.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <new>
#include <thread>

#include "base/errno_text.h"
#include "base/log.h"
#include "io/temporaries.h"
#include "transport/blocked_signals.h"
#include "transport/chunk_plan.h"
#include "transport/unfinished_file.h"

namespace hetero::transport {
namespace {

// Writes the journal of a file that is being written, in a thread of its own: first the layers' bytes have to be on the
// disk, then the journal may say so. A journal that cannot be written is no error of the transfer.
class JournalWriter {
public:
    // The file stays from the first layer on that is safe; `earlier` goes when this file has as much.
    JournalWriter(std::shared_ptr<io::AtomicFile> file, std::span<const std::byte> head, Resume::Pace pace,
                  std::shared_ptr<UnfinishedFile> earlier)
        : file_(std::move(file)),
          path_(journal_name(file_->temporary_path())),
          pace_(pace),
          earlier_(std::move(earlier)) {
        // It has its name when it is locked, so that nobody takes it for one that was left.
        const std::string unlocked = path_ + ".new";
        registration_ = io::Temporary::take(path_, false);
        journal_ = FileDescriptor(::open(unlocked.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600));
        if (!journal_.valid() || !lock_file(journal_.get()) || !write_all(journal_.get(), head) ||
            ::rename(unlocked.c_str(), path_.c_str()) != 0) {
            log::debug("{}: cannot be written ({}): this transfer could not be resumed", path_, errno_text(errno));
            if (journal_.valid()) ::unlink(unlocked.c_str());
            failed_ = true;
            return;
        }
        try {
            const BlockedSignals blocked;
            thread_ = std::thread([this] {
                try {
                    run();
                } catch (const std::exception&) {  // memory
                    const std::lock_guard lock(mutex_);
                    failed_ = true;
                }
            });
        } catch (const std::exception& error) {
            log::debug("{}: no thread to write it ({}): this transfer could not be resumed", path_, error.what());
            failed_ = true;
        }
    }
    ~JournalWriter() {
        stop();
        if (registration_ != nullptr) registration_->release(true);
    }
    JournalWriter(const JournalWriter&) = delete;
    JournalWriter& operator=(const JournalWriter&) = delete;

    void add(const kv::WrittenLayer& layer, std::uint64_t bytes) {
        const std::lock_guard lock(mutex_);
        if (failed_) return;
        const std::vector<std::byte> record = encode(layer);
        pending_.insert(pending_.end(), record.begin(), record.end());
        pending_bytes_ += bytes;
        ++pending_layers_;
        if (pending_bytes_ >= pace_.bytes) changed_.notify_one();
    }

    // What has been added so far is made safe; false: nothing is, and the file is of no use to a later transfer.
    bool finish() {
        stop();
        if (!failed_ && pending_layers_ != 0) {
            std::unique_lock lock(mutex_);
            flush(lock);
        }
        return !failed_ && safe_layers_ != 0;
    }
    // Before the file gets its name.
    void stop() noexcept {
        {
            const std::lock_guard lock(mutex_);
            stopping_ = true;
            changed_.notify_one();
        }
        if (thread_.joinable()) thread_.join();
    }
    // The file has its name, or is given up.
    void remove() noexcept {
        stop();
        if (registration_ != nullptr) {
            std::exchange(registration_, nullptr)->release(true);
        } else {
            ::unlink(path_.c_str());
        }
        if (earlier_) earlier_->remove();
    }
    void remove_own() noexcept {
        stop();
        earlier_.reset();
        remove();
    }

private:
    void run() {
        std::unique_lock lock(mutex_);
        while (!stopping_) {
            changed_.wait_for(lock, std::chrono::duration<double>(pace_.seconds),
                              [&] { return stopping_ || pending_bytes_ >= pace_.bytes; });
            if (!stopping_ && pending_layers_ != 0 && !failed_) flush(lock);
        }
    }

    void flush(std::unique_lock<std::mutex>& lock) {
        const std::vector<std::byte> records = std::exchange(pending_, {});
        const std::uint64_t layers = std::exchange(pending_layers_, 0);
        pending_bytes_ = 0;
        lock.unlock();
        const bool first = safe_layers_ == 0;
        if (first) {
            file_->keep();
            std::exchange(registration_, nullptr)->release(false);
        }
        bool safe =
            ::fdatasync(file_->fd()) == 0 && write_all(journal_.get(), records) && ::fdatasync(journal_.get()) == 0;
        if (first) {
            const auto target = io::split_path(path_);
            safe = safe && target && io::sync_folder(target->folder, path_);
        }
        lock.lock();
        if (!safe) {
            log::debug("{}: cannot be written: {}", path_, errno_text(errno));
            failed_ = true;
            return;
        }
        safe_layers_ += layers;
        if (earlier_ && safe_layers_ >= earlier_->layers().size()) std::exchange(earlier_, nullptr)->remove();
    }

    std::shared_ptr<io::AtomicFile> file_;
    std::string path_;
    Resume::Pace pace_;
    std::shared_ptr<UnfinishedFile> earlier_;
    io::Temporary* registration_ = nullptr;  // until it is kept
    FileDescriptor journal_;
    std::mutex mutex_;
    std::condition_variable changed_;
    std::vector<std::byte> pending_;  // records of layers that may not be on the disk yet
    std::uint64_t pending_layers_ = 0, pending_bytes_ = 0, safe_layers_ = 0;
    bool failed_ = false, stopping_ = false;
    std::thread thread_;
};

class ResumableSink final : public kv::Sink {
public:
    ResumableSink(std::unique_ptr<kv::Sink> file_sink, std::shared_ptr<io::AtomicFile> file,
                  std::unique_ptr<JournalWriter> journal)
        : inner_(std::move(file_sink)), file_(std::move(file)), journal_(std::move(journal)) {}
    ~ResumableSink() override { end(true); }
    ResumableSink(const ResumableSink&) = delete;
    ResumableSink& operator=(const ResumableSink&) = delete;

    Status begin(const kv::Header& header) override { return inner_->begin(header); }
    Status write_layer(const kv::Layer& layer) override { return inner_->write_layer(layer); }
    Status write_shared(std::shared_ptr<const kv::Layer> layer) override {
        return inner_->write_shared(std::move(layer));
    }
    Status complete(const kv::Header& header) override { return inner_->complete(header); }
    Status commit() override {
        journal_->stop();
        const Status done = inner_->commit();
        ended_ = true;
        journal_->remove();
        if (!done) file_->remove();
        return done;
    }
    void abort(const Error& reason) noexcept override {
        inner_->abort(reason);
        end(reason.code == Errc::peer);
    }
    [[nodiscard]] const std::string& name() const noexcept override { return inner_->name(); }

private:
    void end(bool keep) noexcept {
        if (ended_) return;
        ended_ = true;
        inner_->abort({Errc::peer, "the transfer broke off"});
        bool kept = false;
        try {
            kept = keep && journal_->finish();
        } catch (const std::exception&) {  // memory
        }
        if (kept) {
            log::info("{}: what has arrived is kept; the same command goes on from there", inner_->name());
            return;
        }
        journal_->remove_own();
        file_->remove();
    }

    std::unique_ptr<kv::Sink> inner_;
    std::shared_ptr<io::AtomicFile> file_;
    std::unique_ptr<JournalWriter> journal_;
    bool ended_ = false;
};

}  // namespace

Resume::Resume(std::string path, Pace pace) : path_(std::move(path)), pace_(pace) {}
Resume::~Resume() = default;

std::vector<HeldPieces> Resume::look_for(const kv::Header& header, const Digest& state_key) try {
    header_ = std::make_shared<kv::Header>(header);
    state_key_ = state_key;
    found_.reset();
    if (state_key == Digest{}) return {};
    for (auto& one : UnfinishedFile::find(path_)) {
        if (const Status verified = one->verify(header, state_key); !verified) {
            const bool unfit = verified.error().code == Errc::bad_input;
            log::warn("{}: an unfinished transfer is {}: {}", path_, unfit ? "discarded" : "left as it is",
                      verified.error().message);
            if (unfit) one->remove();
        } else if (one->layers().empty() || (found_ && found_->layers().size() >= one->layers().size())) {
            one->remove();
        } else {
            if (found_) found_->remove();
            found_ = std::move(one);
        }
    }
    if (!found_) return {};
    HeldPieces held;
    for (ChunkWalk walk(header); !walk.done() && walk.place().layer_index < found_->layers().size(); walk.advance()) {
        const ChunkPlace& place = walk.place();
        const kv::LayerChecksums& checksums = found_->layers()[place.layer_index].checksums;
        held.crcs.push_back(
            array_of(place.part == kv::PartId::k ? checksums.k : checksums.v, place.array)[place.chunk]);
    }
    if (held.crcs.empty()) return {};
    log::info("{}: goes on with {} of {} layers from an earlier transfer", path_, found_->layers().size(),
              total_layers(header));
    return {std::move(held)};
} catch (const std::bad_alloc&) {
    log::warn("{}: no memory to look for an unfinished transfer: this one starts anew", path_);
    found_.reset();
    state_key_ = {};
    return {};
}

Status Resume::fill(std::uint64_t layer_index, kv::Layer& layer) {
    if (!found_ || layer_index >= found_->layers().size()) return {};
    Status read = found_->read(*header_, layer_index, layer);
    if (read) return {};
    found_->remove();
    found_.reset();
    return fail(Errc::resource, "{}: an unfinished transfer changed while it was read and is discarded; run again: {}",
                path_, read.error().message);
}

Result<std::unique_ptr<kv::Sink>> Resume::create_sink(io::Overwrite overwrite) {
    if (state_key_ == Digest{}) return kv::create_file(path_, overwrite);
    HETERO_TRY(io::AtomicFile created, io::AtomicFile::create(path_, overwrite));
    const auto file = std::make_shared<io::AtomicFile>(std::move(created));
    auto journal = std::make_unique<JournalWriter>(file, encode_journal_head(state_key_, header_->tokens_per_chunk),
                                                   pace_, found_);
    const auto written = [journal = journal.get(), header = header_,
                          next = std::uint64_t{0}](kv::WrittenLayer layer) mutable {
        journal->add(layer, layer_bytes(*header, next));
        ++next;
    };
    HETERO_TRY(auto sink, kv::create_file(file, path_, written));
    return std::make_unique<ResumableSink>(std::move(sink), file, std::move(journal));
}

void discard_unfinished(const std::string& path) {
    for (const auto& one : UnfinishedFile::find(path)) {
        log::info("{}: an unfinished transfer is discarded", path);
        one->remove();
    }
}

}  // namespace hetero::transport
