// Runs of a session, as the golden tests need them.
#pragma once
#include <doctest/doctest.h>

#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/probability.h"
#include "engine/session.h"
#include "kernels/api/ops.h"
#include "support/results.h"

namespace hetero::test {

using engine::TokenId;
using kernels::DType;

// Where the sessions of a program compute.
inline engine::Device& session_device() {
    static engine::Device device;
    return device;
}

inline std::unique_ptr<engine::Session> make_session(std::shared_ptr<const model::Model> model, DType kv_dtype,
                                                     std::uint64_t capacity, std::uint32_t chunk_tokens = 256,
                                                     int threads = 0) {
    engine::Options options;
    options.threads = threads;
    options.kv_dtype = kv_dtype;
    options.chunk_tokens = chunk_tokens;
    options.device = session_device();
    return must(engine::Session::create(std::move(model), options, capacity));
}

// Logits of every position: [token][vocab].
inline std::vector<float> prefill_all(engine::Session& session, const std::vector<TokenId>& tokens) {
    std::vector<float> all;
    std::uint64_t expected = session.position();
    must(session.prefill(tokens, engine::Logits::all,
                         [&](std::uint64_t position, std::span<const float> logits) -> Status {
                             CHECK(position == expected++);
                             all.insert(all.end(), logits.begin(), logits.end());
                             return {};
                         }));
    return all;
}

inline std::vector<float> prefill_last(engine::Session& session, const std::vector<TokenId>& tokens) {
    std::vector<float> last;
    must(session.prefill(tokens, engine::Logits::last, [&](std::uint64_t, std::span<const float> logits) -> Status {
        last.assign(logits.begin(), logits.end());
        return {};
    }));
    return last;
}

// "k.3": as the goldens call the part of a layer.
inline std::string golden_part(kv::PartId part, std::uint32_t layer) {
    return fmt::format("{}.{}", part == kv::PartId::k ? 'k' : 'v', layer);
}

// A part of an exported layer as f32 [token][kv_head][head_dim].
inline std::vector<float> part_values(const kv::Part& part) {
    std::vector<float> values(part.values.elements());
    kernels::ops().dequantize(part.values.dtype, part.values.bytes.data(), values.data(), values.size());
    return values;
}

}  // namespace hetero::test
