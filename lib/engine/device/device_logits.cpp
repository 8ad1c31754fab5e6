// The op that makes logits, and what of them comes to the host.
#include <algorithm>
#include <array>
#include <cmath>

#include "engine/device/device_executor.h"
#include "kernels/api/device.h"

namespace hetero::engine {

// Of `count` positions, on the device and on the host alike.
DeviceExecutor::TopPlaces DeviceExecutor::TopPlaces::of(std::size_t count, std::size_t k) {
    TopPlaces places;
    places.k = k;
    places.odd = count * sizeof(double);  // totals come first
    places.index = places.odd + count * sizeof(std::uint32_t);
    places.value = places.index + count * k * sizeof(std::int32_t);
    places.bytes = places.value + count * k * sizeof(float);
    return places;
}

std::size_t DeviceExecutor::top_bytes(const kernels::DeviceOps& ops, std::size_t count, std::size_t vocab) {
    const std::size_t k = std::min<std::size_t>(LikeliestWanted::most, vocab);
    return vocab == 0 ? 0 : device_aligned(TopPlaces::of(count, k).bytes) + ops.top_k_scratch_bytes(count, vocab, k);
}

DeviceExecutor::TopPlaces DeviceExecutor::top_places(const Chunk& chunk, std::size_t count) const {
    return TopPlaces::of(count, std::min<std::size_t>({chunk.wanted.count, LikeliestWanted::most, vocab()}));
}

// Of positions whose logits are computed, what is wanted is on its way to the host.
Status DeviceExecutor::bring_logits(std::size_t count, const Chunk& chunk) {
    const std::size_t vocab = this->vocab();
    const auto* logits = as<float>(Scratch::logits);
    if (chunk.wanted.count == 0)
        return check(ops_.copy(stream_.get(), logits_host_.get(), logits, count * vocab * sizeof(float)));
    const TopPlaces places = top_places(chunk, count);
    std::byte* top = scratch(Scratch::top);
    const kernels::DeviceTop to{reinterpret_cast<std::int32_t*>(top + places.index),
                                reinterpret_cast<float*>(top + places.value), reinterpret_cast<double*>(top),
                                reinterpret_cast<std::uint32_t*>(top + places.odd)};
    const double factor = chunk.wanted.temperature > 0 ? 1 / chunk.wanted.temperature : 0;
    HETERO_CHECK(check(ops_.top_k(stream_.get(), logits, vocab, count, vocab, places.k, factor, to,
                                  top + device_aligned(places.bytes))));
    return check(ops_.copy(stream_.get(), top_host_.get(), top, places.bytes));
}

// Once it is there: hands it out, as positions from `first` on.
Status DeviceExecutor::give_logits(std::size_t first, std::size_t count, const Chunk& chunk) {
    const std::size_t vocab = this->vocab();
    const TopPlaces places = top_places(chunk, count);
    const std::byte* top = top_host_.get();
    for (std::size_t i = 0; i < count; ++i) {
        float* row = reinterpret_cast<float*>(logits_host_.get()) + i * vocab;
        if (chunk.wanted.count != 0) {
            const auto* index = reinterpret_cast<const std::int32_t*>(top + places.index) + i * places.k;
            const auto* value = reinterpret_cast<const float*>(top + places.value) + i * places.k;
            std::array<Candidate, LikeliestWanted::most> tokens;
            for (std::size_t j = 0; j < places.k; ++j) tokens[j] = {value[j], index[j]};
            const Likeliest likeliest{std::span(tokens).first(places.k), reinterpret_cast<const double*>(top)[i]};
            if (reinterpret_cast<const std::uint32_t*>(top + places.odd)[i] == 0) {
                HETERO_TRY(const bool enough, (*chunk.on_likeliest)(first + i, likeliest));
                if (enough) continue;
            }
            HETERO_CHECK(
                check(ops_.copy(stream_.get(), row, as<float>(Scratch::logits) + i * vocab, vocab * sizeof(float))));
            HETERO_CHECK(check(ops_.synchronize(stream_.get())));
        }
        if (*chunk.on_logits) HETERO_CHECK((*chunk.on_logits)(first + i, {row, vocab}));
    }
    return {};
}

Status DeviceExecutor::op(const model::Head& head, const Chunk& chunk) {
    if (chunk.rows == Rows::none) return {};
    const std::size_t hidden = width(head.in), vocab = head.weight.rows;
    auto *normed = as<float>(Scratch::head_normed), *logits = as<float>(Scratch::logits);
    // In f32 where the tokens are few or a prompt's: their errors decide which token is next.
    const auto compute = [&](std::size_t token, std::size_t count) -> Status {
        Input x{normed, hidden, nullptr, half_stride(hidden)};
        kernels::DeviceOutput out{normed, hidden};
        const bool halves = chunk.phase == Phase::decode && on_matrix_units(chunk, head.weight);
        if (halves) {
            out.half = as<std::uint16_t>(Scratch::half);
            out.half_stride = x.half_stride;
            x.half = out.half;
        }
        HETERO_CHECK(check(ops_.norm(stream_.get(), weights_->norm(head.norm),
                                     {at(head.in) + token * hidden, hidden, hidden}, count, 1, hidden, false, out)));
        HETERO_CHECK(multiply(weights_->matrix(head.weight), x, count, halves, logits, vocab));
        if (head.softcap > 0)
            HETERO_CHECK(check(ops_.softcap(stream_.get(), logits, vocab, count, vocab, head.softcap)));
        return {};
    };
    if (chunk.on_logits == nullptr) return compute(0, chunk.n_tokens);
    const auto give = [&](std::size_t begin, std::size_t end) -> Status {
        for (; begin < end; begin += head_block_tokens) {
            const std::size_t count = std::min(head_block_tokens, end - begin);
            HETERO_CHECK(compute(begin, count));
            HETERO_CHECK(bring_logits(count, chunk));
            HETERO_CHECK(check(ops_.synchronize(stream_.get())));
            HETERO_CHECK(give_logits(chunk.begin + begin, count, chunk));
        }
        return {};
    };
    if (chunk.rows == Rows::all || chunk.n_tokens == chunk.pieces.size()) return give(0, chunk.n_tokens);
    std::size_t end = 0;
    for (const Piece& piece : chunk.pieces) {
        end += chunk.pieces.size() == 1 ? chunk.n_tokens : piece.tokens.size();
        HETERO_CHECK(give(end - 1, end));
    }
    return {};
}

}  // namespace hetero::engine
