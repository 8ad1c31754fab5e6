#include <condition_variable>
#include <exception>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include "kv/stream.h"

namespace hetero::kv {
namespace {

class ReadAhead final : public Source {
public:
    explicit ReadAhead(std::unique_ptr<Source> inner)
        : inner_(std::move(inner)), left_(inner_->header().sequences.size() * inner_->header().identity.n_layers) {}

    ~ReadAhead() override { stop(); }

    [[nodiscard]] const Header& header() const noexcept override { return inner_->header(); }
    [[nodiscard]] const std::string& name() const noexcept override { return inner_->name(); }

    Result<Layer> read_layer() override {
        Layer layer;
        HETERO_CHECK(read_into(layer));
        return layer;
    }

    // Takes what has been read, and leaves its memory to be read into.
    Status read_into(Layer& layer) override {
        if (stopped_) return fail(Errc::internal, "{}: read after its end", name());
        if (left_ == 0 || !start()) return inner_->read_into(layer);  // beyond the end: the error is the source's own
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [this] { return result_.has_value(); });
        if (!*result_) return *result_;  // of all that follow, too
        std::swap(layer, next_);
        result_.reset();
        --left_;
        lock.unlock();
        changed_.notify_all();
        return {};
    }

    Result<std::unique_ptr<LayerStream>> read_stream() override {
        if (stopped_ || thread_.joinable()) return nullptr;
        auto stream = inner_->read_stream();
        if (stream && *stream != nullptr) --left_;
        return stream;
    }

    Status finish() override {
        stop();
        if (result_ && !*result_) return *result_;
        if (left_ != 0) return fail(Errc::internal, "{}: finished with {} layers left", name(), left_);
        return inner_->finish();
    }

private:
    // False where the system gives no thread.
    bool start() {
        if (thread_.joinable()) return true;
        if (refused_) return false;
        try {
            thread_ = std::thread([this, n = left_] { read(n); });
        } catch (const std::exception&) {
            refused_ = true;
        }
        return !refused_;
    }

    void stop() {
        stopped_ = true;
        if (!thread_.joinable()) return;
        {
            const std::lock_guard lock(mutex_);
            stopping_ = true;
        }
        changed_.notify_all();
        thread_.join();
    }

    void read(std::uint64_t layers) {
        Layer layer;
        for (Status status; status && layers > 0; --layers) {
            try {
                status = inner_->read_into(layer);
            } catch (const std::exception&) {
                status = fail(Errc::resource, "{}: not enough memory for a layer", name());
            }
            std::unique_lock lock(mutex_);
            changed_.wait(lock, [this] { return stopping_ || !result_; });
            if (stopping_) return;
            std::swap(layer, next_);
            result_ = status;
            lock.unlock();
            changed_.notify_all();
        }
    }

    std::unique_ptr<Source> inner_;
    std::thread thread_;
    bool refused_ = false, stopped_ = false;
    std::uint64_t left_;  // to be taken by the caller

    std::mutex mutex_;
    std::condition_variable changed_;
    // Guarded by mutex_:
    std::optional<Status> result_;  // of reading next_; none: it is to be read
    Layer next_;
    bool stopping_ = false;
};

}  // namespace

std::unique_ptr<Source> read_ahead(std::unique_ptr<Source> source) {
    return std::make_unique<ReadAhead>(std::move(source));
}

}  // namespace hetero::kv
