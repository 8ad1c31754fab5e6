// Which tensors of one container are made of which of the other.
#pragma once
#include <vector>

#include "convert/plan.h"
#include "model/families/shared.h"

namespace hetero::convert {

// A GGUF's tensors of a folder's, by the names of the family: one for one, but for experts, which a GGUF has together,
// and latent attention. `interleaved`: rows of Q and K in the GGUF, those of the folder not being.
std::vector<TensorPlan> decoder_tensors(const model::Config& config, const model::Family& family, bool interleaved);

// The way back: the tensors that `plans` are made of, made of those that they make. Every row of them must be in
// `plans`; of copies the first counts. Tensors of values alone are left out.
Result<std::vector<TensorPlan>> inverted(const std::vector<TensorPlan>& plans);

// One tensor that is another as it is; rows 0: a vector.
TensorPlan renamed(std::string name, std::string source, std::uint64_t rows, std::uint64_t cols);

}  // namespace hetero::convert
