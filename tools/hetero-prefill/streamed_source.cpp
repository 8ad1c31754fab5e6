#include "streamed_source.h"

#include <algorithm>

namespace hetero::tool {

StreamedSource::StreamedSource(kv::Header header, const engine::Session& session, const GroupWriter& writer)
    : header_(std::move(header)), session_(session), writer_(writer), n_layers_(header_.identity.n_layers) {}

Status StreamedSource::failure() const { return error_ ? Status(tl::unexpected<Error>(*error_)) : Status{}; }

Status StreamedSource::layer_done(std::uint32_t layer, std::uint64_t end) {
    std::optional<kv::Layer> gathered;
    if (writer_.gathers()) {
        HETERO_TRY(gathered, writer_.layer(session_, layer, end));
    }
    const std::lock_guard lock(mutex_);
    HETERO_CHECK(failure());
    if (gathered) held_.push_back({std::move(*gathered), nullptr, 0, 0});
    end_ = end;
    ready_ = sequence_ * n_layers_ + layer + 1;
    changed_.notify_all();
    return {};
}

Status StreamedSource::sequence_done(std::uint64_t end, bool more) {
    Lock lock(mutex_);
    for (std::uint64_t layer = ready_ - sequence_ * n_layers_; layer < n_layers_; ++layer) {  // it had been computed
        lock.unlock();
        HETERO_CHECK(layer_done(static_cast<std::uint32_t>(layer), end));
        lock.lock();
    }
    ++sequence_;
    if (!more || writer_.gathers()) return failure();
    changed_.wait(lock, [&] { return !exporting_; });
    for (std::uint64_t index = taken_; index < ready_; ++index) {
        if (index - taken_ < held_.size()) continue;
        HETERO_TRY(held_.emplace_back(), take(index, end));
    }
    return failure();
}

void StreamedSource::all_done(const kv::Header& complete) {
    const std::lock_guard lock(mutex_);
    complete_ = complete;
    changed_.notify_all();
}

void StreamedSource::failed(const Error& reason) {
    const std::lock_guard lock(mutex_);
    if (!error_) error_ = reason;
    changed_.notify_all();
}

Result<engine::CodedLayer> StreamedSource::take(std::uint64_t index, std::uint64_t end) {
    const auto layer = static_cast<std::uint32_t>(index % n_layers_);
    if (!session_.codes_layers()) {
        engine::CodedLayer plain;
        HETERO_TRY(plain.layer, session_.export_layer(layer, end));
        return plain;
    }
    HETERO_TRY(engine::CodedLayer coded, session_.export_coded(layer, end));
    max_abs_error_ = std::max(max_abs_error_, coded.max_abs_error);
    coded_on_device_ += coded.parts_on_device;
    return coded;
}

Result<engine::CodedLayer> StreamedSource::next() {
    Lock lock(mutex_);
    changed_.wait(lock, [&] { return taken_ < ready_ || error_; });
    HETERO_CHECK(failure());
    const std::uint64_t index = taken_++;
    if (!held_.empty()) {
        engine::CodedLayer layer = std::move(held_.front());
        held_.pop_front();
        return layer;
    }
    exporting_ = true;
    const std::uint64_t end = end_;
    lock.unlock();
    auto layer = take(index, end);
    lock.lock();
    exporting_ = false;
    changed_.notify_all();
    return layer;
}

Result<kv::Layer> StreamedSource::read_layer() {
    if (!here_) {
        HETERO_TRY(here_, next());
    }
    engine::CodedLayer layer = std::move(*here_);
    here_.reset();
    if (layer.remote != nullptr) return layer.remote->fetch();
    return std::move(layer.layer);
}

Result<std::shared_ptr<const kv::RemoteLayer>> StreamedSource::read_remote() {
    HETERO_TRY(engine::CodedLayer layer, next());
    if (layer.remote == nullptr) {
        here_ = std::move(layer);
        return nullptr;
    }
    ++read_on_device_;
    return std::move(layer.remote);
}

Status StreamedSource::finish() {
    Lock lock(mutex_);
    changed_.wait(lock, [&] { return complete_ || error_; });
    HETERO_CHECK(failure());
    if (header_.late_logits) header_.take_logits_of(*complete_);
    return {};
}

}  // namespace hetero::tool
