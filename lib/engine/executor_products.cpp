// The products that ops are made of: packed or not, their rows divided among ranks and threads, and gathered.
#include <algorithm>
#include <cstring>

#include "engine/executor.h"
#include "engine/executor_parts.h"
#include "kernels/api/ops.h"

namespace hetero::engine {
namespace {

constexpr std::size_t tokens_to_divide = 8;  // from which on a tile's columns are worth a meeting of threads

}  // namespace

kernels::RowProduct Executor::how_to_multiply() const {
    using kernels::RowProduct;
    if (tiling_ != nullptr) return RowProduct::tiles;
    return packed_ != nullptr ? RowProduct::packed : RowProduct::unpacked;
}

std::size_t Executor::rows_per_task(std::size_t rows) const {
    static_assert(row_granule == kernels::packed_rows);
    return kernels::rows_per_task(rows, static_cast<std::size_t>(pool_.size()), how_to_multiply());
}

Executor::Product Executor::Product::from(std::size_t token) const {
    Product part = *this;
    const std::size_t bytes = kernels::activation_bytes(token, weight->cols);
    part.y += token * y_stride;
    if (x != nullptr) part.x += token * x_stride;
    if (quantized != nullptr) part.quantized += bytes;
    if (residual != nullptr) part.residual += bytes;
    return part;
}

Executor::Tasks Executor::tasks_of(std::size_t n_rows, std::size_t n_tokens) const {
    const std::size_t tokens =
        kernels::tokens_per_task(n_tokens, static_cast<std::size_t>(pool_.size()), how_to_multiply());
    const std::size_t parts = (n_tokens + tokens - 1) / tokens;
    return {n_tokens, n_rows, tokens, rows_per_task(n_rows * parts)};
}

Range Executor::Tasks::tokens_of(std::size_t task) const {
    const std::size_t begin = task / row_blocks() * tokens;
    return {begin, std::min(begin + tokens, n_tokens)};
}

Range Executor::Tasks::rows_of(std::size_t task) const {
    const std::size_t begin = task % row_blocks() * rows;
    return {begin, std::min(begin + rows, n_rows)};
}

void Executor::quantize(const float* x, std::size_t x_stride, std::size_t cols, std::size_t n_tokens, std::uint8_t* out,
                        std::uint8_t* residual) {
    constexpr std::size_t tile = kernels::activation_tile, block = kernels::packed_cols;
    const auto threads = static_cast<std::size_t>(pool_.size());
    // A tile is one task, or several where there are fewer than threads: each has some of the columns.
    const std::size_t tiles = (n_tokens + tile - 1) / tile;
    const std::size_t most_parts = n_tokens < tokens_to_divide || tiles >= threads ? 1 : threads / tiles;
    const std::size_t part_cols = std::max(block, round_up((cols + most_parts - 1) / most_parts, block));
    const std::size_t parts = (cols + part_cols - 1) / part_cols;
    pool_.parallel_for(tiles * parts, [&](std::size_t task, int worker) {
        const std::size_t first = task / parts * tile, count = std::min(tile, n_tokens - first);
        const std::size_t begin = task % parts * part_cols, width = std::min(part_cols, cols - begin);
        const std::size_t at = kernels::activation_bytes(first, cols) + kernels::activation_bytes(count, begin);
        float* lacking = nullptr;
        if (residual != nullptr)
            lacking = residuals_.data() + static_cast<std::size_t>(worker) * tile * sizes_.residual;
        kernels::ops().quantize_activations(x + first * x_stride + begin, x_stride, count, width, out + at, lacking);
        if (residual != nullptr)
            kernels::ops().quantize_activations(lacking, width, count, width, residual + at, nullptr);
    });
}

void Executor::prepare(std::span<Product> products, std::size_t n_tokens, bool fine) {
    if (packed_ == nullptr) return;
    const Product& first = products.front();
    const std::size_t cols = first.weight->cols;
    std::uint8_t* residual = quantized_.data() + kernels::activation_bytes(n_tokens, cols);
    bool any = false;
    for (Product& product : products) {
        product.packed = packed_->find(*product.weight);
        product.quantized = first.x != nullptr ? quantized_.data() : activated_.data();
        product.residual = fine ? residual : nullptr;
        if (tiling_ != nullptr && product.packed != nullptr) product.tiles = tiles_.data();
        any = any || product.packed != nullptr;
    }
    if (!any) return;
    if (tiling_ != nullptr) {
        if (first.x == nullptr) {  // what activate_tiles() made
            for (Product& product : products) product.tiles = activated_tiles_.data();
        } else if (first.x != rounded_) {
            constexpr std::size_t tile = kernels::tile_tokens;
            pool_.parallel_for((n_tokens + tile - 1) / tile, [&](std::size_t index, int) {
                const std::size_t begin = index * tile;
                tiling_->round(first.x + begin * first.x_stride, first.x_stride, std::min(tile, n_tokens - begin),
                               {tiles_.data() + kernels::tiles_size(begin, cols), cols, 0, cols});
            });
            rounded_ = nullptr;
        }
        return;
    }
    if (first.x == nullptr) return;  // what activate_codes() made
    quantize(first.x, first.x_stride, cols, n_tokens, quantized_.data(), fine ? residual : nullptr);
}

const float* Executor::activate_block(const model::FfnAdd& ffn, std::span<const Product> products, Range rows,
                                      Range tokens, std::size_t stride, int worker) {
    const bool gated = ffn.gate.rows != 0;
    const std::size_t size = work_.size() / static_cast<std::size_t>(2 * pool_.size());
    float* gate = work_.data() + static_cast<std::size_t>(worker) * 2 * size;
    float* up = gate + size;
    multiply(products[0].from(tokens.begin), rows.begin, rows.end, tokens.size(), gate, stride);
    if (gated) multiply(products[1].from(tokens.begin), rows.begin, rows.end, tokens.size(), up, stride);
    for (std::size_t token = 0; token < tokens.size(); ++token) {
        activate(ffn.activation, gate + token * stride, gated ? up + token * stride : nullptr, rows.size());
    }
    return gate;
}

void Executor::activate_codes(const model::FfnAdd& ffn, std::span<const Product> products, std::size_t n_tokens) {
    constexpr std::size_t tile = kernels::activation_tile, block = kernels::packed_cols;
    const std::size_t rows = ffn.up.rows;
    Tasks tasks = tasks_of(rows, n_tokens);
    const std::size_t most = std::max(chunk_tokens_ / tasks.tokens * ffn_block_rows, ffn_block_rows);
    const std::size_t stride = tasks.rows = std::min(round_up(tasks.rows, block), most);
    pool_.parallel_for(tasks.count(), [&](std::size_t task, int worker) {
        const Range tokens = tasks.tokens_of(task), columns = tasks.rows_of(task);
        const float* values = activate_block(ffn, products, columns, tokens, stride, worker);
        for (std::size_t first = tokens.begin; first < tokens.end; first += tile) {
            const std::size_t count = std::min(tile, n_tokens - first);
            kernels::ops().quantize_activations(values + (first - tokens.begin) * stride, stride, count, columns.size(),
                                                activated_.data() + kernels::activation_bytes(first, rows) +
                                                    kernels::activation_bytes(count, columns.begin),
                                                nullptr);
        }
    });
}

void Executor::activate_tiles(const model::FfnAdd& ffn, std::span<const Product> products, std::size_t n_tokens) {
    const Range own = share_.rows(ffn.up.rows);
    const bool alone = parts_.size() == 1, fused = is_fused(ffn);
    const std::size_t stride = fused ? rows_per_task(own.size()) : ffn_block_rows;
    pool_.parallel_for((own.size() + stride - 1) / stride, [&](std::size_t task, int worker) {
        const std::size_t first = task * stride, begin = own.begin + first, end = std::min(begin + stride, own.end);
        const std::size_t n_rows = end - begin;
        const kernels::TileColumns out{activated_tiles_.data(), own.size(), first, n_rows};
        if (fused) {
            const auto& [packing, data, first_row] = *products[0].packed;
            tiling_->gated_gemm({packing, data}, {products[1].packed->packing, products[1].packed->data},
                                begin - first_row, end - first_row, ffn.up.cols, products[0].tiles, n_tokens, out);
        } else {
            const float* values = activate_block(ffn, products, {begin, end}, {0, n_tokens}, stride, worker);
            tiling_->round(values, stride, n_tokens, out);
        }
        for (std::size_t token = 0; token < n_tokens && !alone; ++token) {  // as the ranks gather it
            constexpr std::size_t tile = kernels::tile_cols;
            for (std::size_t col = first; col < first + n_rows; col += tile) {
                const std::size_t at =
                    kernels::tiles_size(token / kernels::tile_tokens * kernels::tile_tokens, own.size()) +
                    (col * kernels::tile_tokens) + token % kernels::tile_tokens * tile;
                kernels::ops().bf16_to_f32(activated_tiles_.data() + at,
                                           gate_.data() + token * ffn.up.rows + own.begin + col,
                                           std::min(tile, first + n_rows - col));
            }
        }
    });
}

void Executor::multiply(const Product& product, std::size_t begin, std::size_t end, std::size_t n_tokens, float* out,
                        std::size_t out_stride) const {
    const model::Matrix& w = *product.weight;
    if (product.tiles != nullptr) {
        const auto& [packing, data, first_row] = *product.packed;
        tiling_->gemm(packing, data, begin - first_row, end - first_row, w.cols, product.tiles, n_tokens, false, out,
                      out_stride);
    } else if (product.packed != nullptr) {
        const auto& [packing, data, first_row] = *product.packed;
        kernels::ops().packed_gemm(packing, data, begin - first_row, end - first_row, w.cols, product.quantized,
                                   product.residual, n_tokens, out - (begin - first_row), out_stride);
    }
    const std::size_t group_rows = w.group_rows == 0 ? w.rows : w.group_rows;
    for (std::size_t row = product.packed != nullptr ? end : begin; row < end;) {
        const std::size_t group = row / group_rows, group_end = std::min((group + 1) * group_rows, end);
        // As if the rows before this group were adjacent to it: row r lies at data + r * row_bytes.
        const std::byte* data = w.data + group * (w.group_rows == 0 ? 0 : w.group_bytes - group_rows * w.row_bytes);
        if (n_tokens == 1) {
            kernels::ops().gemv(w.dtype, data, w.row_bytes, row, group_end, w.cols, product.x, out - begin);
        } else {
            kernels::ops().gemm(w.dtype, data, w.row_bytes, row, group_end, w.cols, product.x, product.x_stride,
                                n_tokens, out - begin, out_stride);
        }
        row = group_end;
    }
    for (std::size_t token = 0; token < n_tokens; ++token) {
        float* y = out + token * out_stride;
        if (!w.row_scale.empty()) kernels::ops().mul(w.row_scale.data() + begin, y, end - begin);
        if (!w.bias.empty()) kernels::ops().add(w.bias.data() + begin, y, end - begin);
    }
}

void Executor::multiply_all(std::span<Product> products, std::size_t n_tokens, bool fine) {
    prepare(products, n_tokens, fine);
    std::size_t total_rows = 0, row_blocks = 0;
    for (const Product& product : products) total_rows += product.rows.size();
    const Tasks all = tasks_of(total_rows, n_tokens);
    const auto tasks_in = [&](const Product& product) {
        return Tasks{n_tokens, product.rows.size(), all.tokens, all.rows};
    };
    for (const Product& product : products) row_blocks += tasks_in(product).row_blocks();
    const std::size_t token_blocks = (n_tokens + all.tokens - 1) / all.tokens;
    pool_.parallel_for(token_blocks * row_blocks, [&](std::size_t task, int) {
        const std::size_t first = task / row_blocks * all.tokens;
        const Product* product = products.data();
        for (task %= row_blocks; task >= tasks_in(*product).row_blocks(); ++product)
            task -= tasks_in(*product).row_blocks();
        const Range rows = tasks_in(*product).rows_of(task);
        multiply(product->from(first), product->rows.begin + rows.begin, product->rows.begin + rows.end,
                 std::min(all.tokens, n_tokens - first));
    });
}

Status Executor::gather_rows(float* y, std::size_t rows, std::size_t stride, std::size_t n_tokens) {
    for (std::size_t rank = 0; rank < parts_.size(); ++rank) parts_[rank] = share_.of(rank).rows(rows);
    return gather(y, stride, n_tokens);
}

Status Executor::gather_heads(float* y, std::size_t n_heads, std::size_t dim, std::size_t stride,
                              std::size_t n_tokens) {
    for (std::size_t rank = 0; rank < parts_.size(); ++rank) parts_[rank] = share_.of(rank).heads(n_heads).times(dim);
    return gather(y, stride, n_tokens);
}

Status Executor::gather(float* y, std::size_t stride, std::size_t n_tokens) {
    if (parts_.size() == 1) return {};
    const Range own = parts_[share_.rank()];
    const std::size_t block = std::clamp<std::size_t>(gather_floats / parts_.back().end, 1, n_tokens);
    for (std::size_t first = 0; first < n_tokens; first += block, y += block * stride) {
        const std::size_t count = std::min(block, n_tokens - first);
        for (std::size_t rank = 0; rank < parts_.size(); ++rank) {
            part_bytes_[rank] = count * parts_[rank].size() * sizeof(float);
        }
        const float* mine = y + own.begin;
        if (count > 1) {
            mine = sent_.data();
            for (std::size_t token = 0; token < count; ++token) {
                std::memcpy(sent_.data() + token * own.size(), y + token * stride + own.begin,
                            own.size() * sizeof(float));
            }
        }
        HETERO_TRY(const std::span<const std::byte> all,
                   group_.all_gather(std::as_bytes(std::span(mine, count * own.size())), part_bytes_));
        const std::byte* from = all.data();
        for (const Range& part : parts_) {
            const std::size_t bytes = part.size() * sizeof(float);
            for (std::size_t token = 0; token < count && bytes > 0; ++token, from += bytes) {
                std::memcpy(y + token * stride + part.begin, from, bytes);
            }
        }
    }
    return {};
}

Status Executor::multiply_add(const model::Matrix& weight, const std::optional<model::Norm>& norm, const float* x,
                              std::size_t x_stride, float* y, std::size_t y_stride, std::size_t n_tokens) {
    const std::size_t rows = weight.rows;
    const Range own = share_.rows(rows);
    Product product{&weight, x, x_stride, product_.data(), rows, own};
    if (norm) {  // needs whole rows of the product
        multiply_all({&product, 1}, n_tokens);
        HETERO_CHECK(gather_rows(product_.data(), rows, rows, n_tokens));
        for_tokens(n_tokens, 2 * rows, [&](std::size_t token, int) {
            float* values = product_.data() + token * rows;
            normalize(*norm, values, values, rows);
            kernels::ops().add(values, y + token * y_stride, rows);
        });
        return {};
    }
    prepare({&product, 1}, n_tokens);
    const Tasks tasks = tasks_of(own.size(), n_tokens);
    pool_.parallel_for(tasks.count(), [&](std::size_t task, int) {
        const Range tokens = tasks.tokens_of(task), part = tasks.rows_of(task);
        const std::size_t begin = own.begin + part.begin, end = own.begin + part.end;
        if (product.tiles != nullptr && weight.row_scale.empty() && weight.bias.empty()) {
            const auto& [packing, data, first_row] = *product.packed;
            tiling_->gemm(packing, data, begin - first_row, end - first_row, weight.cols, product.tiles, n_tokens, true,
                          y + begin, y_stride);
            return;
        }
        multiply(product.from(tokens.begin), begin, end, tokens.size());
        for (std::size_t token = tokens.begin; token < tokens.end; ++token) {
            kernels::ops().add(product.y + token * rows + begin, y + token * y_stride + begin, end - begin);
        }
    });
    return gather_rows(y, rows, y_stride, n_tokens);
}

}  // namespace hetero::engine
