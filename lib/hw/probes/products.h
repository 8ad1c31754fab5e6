// Products with weights of one type, as the engine multiplies them: what the compute probe times.
#pragma once
#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/threads.h"
#include "hw/probes/timing.h"
#include "kernels/api/ops.h"
#include "kernels/api/packed.h"
#include "kernels/api/row_tasks.h"
#include "kernels/api/tiles.h"

namespace hetero::hw {

class Products {
public:
    static constexpr std::size_t cols = 2048, gemm_rows = 1024, max_tokens = 512;
    enum class Path : std::uint8_t {
        precise,  // weights and activations as they are
        fast,     // weights packed, activations rounded: what the engine does by default
    };

    // Fills `memory`, aligned to 64 bytes, with as many rows as fit, at least gemm_rows.
    Products(kernels::DType type, Path path, std::span<std::byte> memory, ThreadPool& pool);

    void gemm(std::size_t tokens);  // of gemm_rows: prefill. tokens <= max_tokens
    // Of all rows: a step of decode for so many sequences, at most max_batch.
    void batch(std::size_t tokens) { batch_of(rows_, tokens); }
    static constexpr std::size_t max_batch = 32;

    // Why the results are wrong; nothing where both agree with sums in double precision, within the error of the
    // rounded operands and the kernels' own bound.
    [[nodiscard]] std::optional<std::string> fault();

    [[nodiscard]] std::size_t rows() const { return rows_; }
    [[nodiscard]] double bytes_per_weight() const;
    [[nodiscard]] std::size_t bytes() const;

private:
    void fill(std::span<std::byte> memory);
    void round_inputs();
    void batch_of(std::size_t rows, std::size_t tokens);
    [[nodiscard]] kernels::RowProduct how(bool tiled) const;
    [[nodiscard]] std::size_t wrong_rows(const float* y, std::size_t y_stride, std::size_t token, bool tiled) const;

    kernels::DType type_;
    Path path_;
    ThreadPool& pool_;
    kernels::Packing packing_;
    const kernels::TileOps* tiles_;  // of the fast path's gemm; null: packed products
    std::size_t row_bytes_ = 0, group_bytes_ = 0, rows_ = 0;
    std::byte* weights_ = nullptr;
    std::vector<std::byte> distinct_;  // [16][row_bytes]: the rows, over and over
    std::vector<float> x_;             // [max_tokens][cols]
    Aligned<std::byte> quantized_;     // of max_tokens tokens, and those of max_batch
    Aligned<kernels::Bf16> tiles_of_x_;
    std::vector<float> y_;  // [token][row]
};

}  // namespace hetero::hw
