// safetensors: one file, or the shards that model.safetensors.index.json names.
// Format: https://github.com/huggingface/safetensors#format
#pragma once
#include <memory>
#include <string>

#include "base/result.h"
#include "io/tensor_source.h"

namespace hetero::io {

// Header over 100,000,000 bytes, lengths or offsets outside the file, overlaps, gaps, duplicate names, shapes that do
// not match the byte range: refused, naming file and tensor. Types that hetero has no DType for are refused only when
// `find` is asked for them (find gives nullptr and why() tells).
Result<std::shared_ptr<const TensorSource>> open_safetensors(const std::string& path);

// A Hugging Face folder: model.safetensors, or the index and all shards it names. A shard that is not there, and a
// tensor that its shard does not hold, are refused by name.
Result<std::shared_ptr<const TensorSource>> open_safetensors_folder(const std::string& folder);

}  // namespace hetero::io
