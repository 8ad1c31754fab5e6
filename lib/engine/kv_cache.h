// The resident KV cache of one session: f16, bf16 or f32, its memory reserved once.
// Layout per layer and part: [kv_head][capacity][head_dim]. K is stored after RoPE, half-split. Of layers with latents:
// [capacity][latent | RoPE key], so that one row is what a query is multiplied with.
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <span>
#include <vector>

#include "base/result.h"
#include "engine/share.h"
#include "kernels/api/ops.h"
#include "kv/state.h"
#include "model/program.h"

namespace hetero::engine {

class KvCache {
public:
    // `heads`: of each layer, the KV heads that are kept, those of one rank; none given: all. They are counted from 0
    // here; messages name them as the model does.
    // What create() reserves; the largest number where it is beyond 64 bits.
    [[nodiscard]] static std::uint64_t bytes_needed(std::span<const model::KvLayout> layers, kernels::DType dtype,
                                                    std::uint64_t capacity_tokens, std::span<const Range> heads = {});
    // dtype: f16, bf16 or f32. Errors: resource.
    static Result<KvCache> create(std::span<const model::KvLayout> layers, kernels::DType dtype,
                                  std::uint64_t capacity_tokens, std::span<const Range> heads = {});

    [[nodiscard]] kernels::DType dtype() const noexcept { return dtype_; }
    [[nodiscard]] std::uint64_t capacity() const noexcept { return capacity_; }
    [[nodiscard]] std::uint32_t heads(std::size_t layer) const noexcept { return layers_[layer].n_kv_heads; }
    [[nodiscard]] std::uint32_t first_head(std::size_t layer) const noexcept { return first_heads_[layer]; }
    [[nodiscard]] std::uint32_t head_dim(std::size_t layer, kv::PartId part) const noexcept;
    // K and V as attention reads them. Of a latent layer both are the whole rows, of which the values are the first
    // part.
    [[nodiscard]] kernels::KvView view(std::size_t layer, kv::PartId part, std::uint32_t head) const noexcept;

    // Converts one token's values [kv_head][head_dim] and stores them (tokens may be stored from several threads at
    // once). A value that is not finite in the resident type: bad_input naming the place, and bf16 where f16 is too
    // narrow.
    Status store(std::size_t layer, kv::PartId part, std::uint64_t token, const float* values);

    // Tokens [first, end) as [token][kv_head][head_dim] in the resident type, to and from dense bytes. What load()
    // reads has `in_heads` heads, of which those of this cache begin at `in_first`; it refuses values that are not
    // finite, as store() does.
    void save(std::size_t layer, kv::PartId part, std::uint64_t first, std::uint64_t end,
              std::span<std::byte> out) const;
    Status load(std::size_t layer, kv::PartId part, std::uint64_t first, std::uint64_t end,
                std::span<const std::byte> in, std::uint32_t in_heads, std::uint32_t in_first);

private:
    struct Free {
        void operator()(std::byte* memory) const noexcept { std::free(memory); }
    };
    [[nodiscard]] std::byte* row(std::size_t layer, kv::PartId part, std::uint32_t head,
                                 std::uint64_t token) const noexcept;
    [[nodiscard]] std::size_t row_bytes(std::size_t layer, kv::PartId part) const noexcept;
    [[nodiscard]] std::size_t token_stride(std::size_t layer, kv::PartId part) const noexcept;  // elements
    [[nodiscard]] tl::unexpected<Error> not_finite(std::size_t layer, kv::PartId part, std::uint64_t token,
                                                   std::uint32_t head, const float* values) const;

    std::vector<model::KvLayout> layers_;           // n_kv_heads: those that are kept
    std::vector<std::uint32_t> first_heads_;        // [layer], of the model's
    std::vector<std::size_t> k_offset_, v_offset_;  // [layer], bytes into memory_
    std::unique_ptr<std::byte, Free> memory_;
    kernels::DType dtype_ = kernels::DType::f16;
    std::uint64_t capacity_ = 0;
};

}  // namespace hetero::engine
