// Writes a model's tensors as safetensors into a folder: model.safetensors, or shards and their index.
// Format: https://github.com/huggingface/safetensors#format
#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "base/result.h"
#include "io/atomic_folder.h"
#include "io/tensor_writer.h"

namespace hetero::io {

class SafetensorsWriter final : public TensorWriter {
public:
    // A shard has at most `max_shard_bytes` of data, unless one tensor alone has more. `folder` must outlive the
    // writer, and is published by the caller after finish(). Tensors lie in the order given: they are aligned where
    // the sizes of those before them allow it. Errors: bad_input (a tensor twice, a type that safetensors does not
    // have), resource.
    static Result<std::unique_ptr<SafetensorsWriter>> begin(AtomicFolder& folder,
                                                            const std::vector<TensorSpec>& tensors,
                                                            std::uint64_t max_shard_bytes);

    Status write(std::span<const std::byte> data) override;
    Status finish() override;

private:
    struct Tensor {
        TensorSpec spec;
        std::uint64_t bytes = 0;
        std::size_t shard = 0;
    };
    explicit SafetensorsWriter(AtomicFolder& folder) : folder_(folder) {}
    [[nodiscard]] std::string shard_name(std::size_t shard) const;
    Status open_shard();  // of the current tensor
    Status close_shard();
    Status next_tensor();

    AtomicFolder& folder_;
    std::vector<Tensor> tensors_;
    std::size_t n_shards_ = 0;
    std::optional<AtomicFile> file_;
    std::size_t current_ = 0;       // tensor
    std::uint64_t in_current_ = 0;  // bytes written of it
};

}  // namespace hetero::io
