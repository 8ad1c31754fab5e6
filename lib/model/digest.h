// What a model's weights and arithmetic are called. None of them reads the whole file: a few hundred KiB at most.
#pragma once
#include <optional>
#include <string>
#include <string_view>

#include "base/hash.h"
#include "io/tensor_source.h"
#include "model/model.h"

namespace hetero::model {

// SHA-256 over the table of tensors (name, type, shape, in bytewise order of names) and samples of their data: up to
// four blocks of 512 bytes of each tensor, from its start to its end, fewer where there are thousands of tensors.
// Names the weights wherever they lie; the configuration is not part of it.
[[nodiscard]] Digest lineage_digest(const io::TensorSource& weights);

// Weights that hetero-convert makes say where they come from, so that they share the lineage of their source: in a GGUF
// by these keys, in a folder by hetero.json with "lineage" and "tensors". Both are 64 hex digits. `tensors` is the
// lineage_digest of the very weights it lies beside: where it does not agree, they were changed since.
inline constexpr std::string_view gguf_lineage_key = "hetero.lineage", gguf_tensors_key = "hetero.tensors";
inline constexpr std::string_view lineage_file = "hetero.json";
[[nodiscard]] std::string lineage_text(const Digest& lineage, const Digest& tensors);  // of that file
// The lineage that a GGUF or a folder carries on; nullopt: none. Other than 64 hex digits: bad_input.
struct CarriedLineage {
    Digest lineage{}, tensors{};
};
Result<std::optional<CarriedLineage>> carried_lineage(const io::GgufFile& gguf);
Result<std::optional<CarriedLineage>> carried_lineage(const std::string& folder);

// SHA-256 over the lineage_digest of the weights and the file's own header (the scalar metadata of a GGUF, or
// config.json's bytes).
[[nodiscard]] Digest weights_digest(const Digest& tensors, std::string_view header);

// One "key=value" line per value that changes the arithmetic. How the rows of Q and K are ordered is not among them:
// stored K is half-split either way. Neither are tied embeddings nor the context length. What only some families have
// is named where it differs from a Llama's.
[[nodiscard]] std::string arch_text(const Config& config);

// Canonical JSON of how RoPE frequencies are scaled, keys sorted; "none" without scaling.
[[nodiscard]] std::string rope_scaling_text(const RopeConfig& rope);

}  // namespace hetero::model
