// KV states into sessions that run a model, and back.
#pragma once
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "common/models.h"
#include "engine/session.h"
#include "kv/stream.h"

namespace hetero::tool {

// First position where two token lists differ, or the length of the shorter.
[[nodiscard]] std::size_t common_prefix(std::span<const engine::TokenId> a, std::span<const engine::TokenId> b);

// One of the two must begin with the other: else bad_input, naming the position. An empty prompt likewise.
Status check_belongs(std::span<const engine::TokenId> held, std::span<const engine::TokenId> wanted);

// Whether a sequence of a state can be cut to `n_wanted` tokens: layers with a window have forgotten what positions
// before the last one saw. bad_input, naming the layer.
[[nodiscard]] Status check_resumable(const kv::Header& header, std::size_t sequence, std::size_t n_wanted);

// `session` holds the KV of `held`, whose last logits may be known. Afterwards it holds that of `wanted`: computes what
// is missing, or forgets what is too much. The two must pass check_belongs. Returns the logits at the last position,
// [vocab_size]; those of a shortened cache are computed anew.
Result<std::vector<float>> extend_to(engine::Session& session, std::span<const engine::TokenId> held,
                                     const std::vector<float>& held_logits, std::span<const engine::TokenId> wanted,
                                     const std::function<void(std::uint64_t done)>& on_progress = {});

// What a state of a model's sessions looks like: the resident type or codec, in every layer.
[[nodiscard]] kv::Header make_header(const LoadedModel& model, const engine::KvStorage& storage);

}  // namespace hetero::tool
