// One safetensors file, written in order; complete or absent.
// Format: https://github.com/huggingface/safetensors#format
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "base/result.h"
#include "io/atomic_file.h"
#include "io/tensor_writer.h"

namespace hetero::io {

// The file's first bytes: the length of the header, and the header, filled up so that data are aligned to 8 bytes.
// bad_input: a shape that cannot be counted, a type that safetensors does not have.
Result<std::string> safetensors_header(const std::vector<TensorSpec>& tensors);

class SafetensorsFile {
public:
    static Result<SafetensorsFile> begin(const std::string& path, Overwrite overwrite,
                                         const std::vector<TensorSpec>& tensors);
    // The data of the tensors, one after the other, in pieces of any size.
    Status write(std::span<const std::byte> data);
    // Once, when all data were written.
    Status publish();

private:
    SafetensorsFile(AtomicFile file, std::uint64_t bytes) : file_(std::move(file)), left_(bytes) {}
    AtomicFile file_;
    std::uint64_t left_;
};

}  // namespace hetero::io
