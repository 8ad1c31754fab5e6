// Mixtures of experts. Each product runs over the slots of one expert at a time; a token's sum is taken in the order of
// its experts. So neither the chunk, nor who else is in it, nor the threads change a bit of it.
#include <algorithm>

#include "engine/executor.h"
#include "engine/executor_parts.h"
#include "kernels/api/ops.h"

namespace hetero::engine {

void Executor::for_expert_rows(Range rows, FunctionRef<void(std::uint32_t, std::size_t, std::size_t)> body) {
    const std::span<const std::uint32_t> active = slots_.active();
    if (rows.size() == 0) return;
    const std::size_t block = std::min(rows.size(), rows_per_task(rows.size() * active.size()));
    const std::size_t blocks = (rows.size() + block - 1) / block;
    pool_.parallel_for(active.size() * blocks, [&](std::size_t task, int) {
        const std::size_t begin = rows.begin + task % blocks * block;
        body(active[task / blocks], begin, std::min(begin + block, rows.end));
    });
}

void Executor::quantize_slots(std::size_t cols, const float* x) {
    if (packed_ == nullptr) return;
    for (const std::uint32_t expert : slots_.active()) {
        const std::size_t first = slots_.first(expert);
        quantize(x + first * cols, cols, cols, slots_.count(expert),
                 quantized_.data() + kernels::activation_bytes(first, cols));
    }
}

Executor::Product Executor::expert_product(const model::Matrix& weight, std::size_t first_slot, const float* x,
                                           float* y) const {
    const std::size_t cols = weight.cols, rows = weight.rows;
    Product product{&weight, x + first_slot * cols, cols, y + first_slot * rows, rows};
    if (packed_ != nullptr) {
        product.packed = packed_->find(weight);
        product.quantized = quantized_.data() + kernels::activation_bytes(first_slot, cols);
    }
    return product;
}

Status Executor::op(const model::MoeAdd& moe, const Chunk& chunk) {
    const std::size_t n_tokens = chunk.n_tokens, hidden = width(moe.in);
    const float* in = at(moe.in);
    // Every rank computes all scores: they are few, and a meeting of the ranks would take longer.
    const std::size_t experts = moe.experts.size();
    Product scores{&moe.router, in, hidden, slots_.scores(), experts, {0, experts}};
    multiply_all({&scores, 1}, n_tokens);
    HETERO_CHECK(slots_.assign(moe, positions_, pool_));

    pool_.parallel_for(slots_.size(), [&](std::size_t slot, int) {
        std::copy_n(in + slots_.token_of(slot) * hidden, hidden, slots_.rows() + slot * hidden);
    });
    quantize_slots(hidden, slots_.rows());
    const std::size_t ffn = moe.experts.front().up.rows;
    for_expert_rows(share_.rows(ffn), [&](std::uint32_t number, std::size_t begin, std::size_t end) {
        const model::Expert& expert = moe.experts[number];
        const std::size_t first = slots_.first(number), count = slots_.count(number);
        float* gate = slots_.gate() + first * ffn;
        float* up = slots_.up() + first * ffn;
        multiply(expert_product(expert.gate, first, slots_.rows(), slots_.gate()), begin, end, count);
        multiply(expert_product(expert.up, first, slots_.rows(), slots_.up()), begin, end, count);
        for (std::size_t slot = 0; slot < count; ++slot) {
            activate(moe.activation, gate + slot * ffn + begin, up + slot * ffn + begin, end - begin);
        }
    });
    HETERO_CHECK(gather_rows(slots_.gate(), ffn, ffn, slots_.size()));
    quantize_slots(ffn, slots_.gate());
    const std::size_t out_width = width(moe.out);
    const Range own = share_.rows(out_width);
    for_expert_rows(own, [&](std::uint32_t number, std::size_t begin, std::size_t end) {
        multiply(expert_product(moe.experts[number].down, slots_.first(number), slots_.gate(), slots_.rows()), begin,
                 end, slots_.count(number));
    });
    float* out = at(moe.out);
    pool_.parallel_for(n_tokens, [&](std::size_t token, int) {
        const kernels::Ops& ops = kernels::ops();
        float* sum = nullptr;
        for (std::size_t k = 0; k < moe.rule.top_k; ++k) {
            const Slots::Choice choice = slots_.choice(token, k);
            float* product = slots_.rows() + choice.slot * out_width + own.begin;
            ops.scale(product, choice.weight, own.size());
            if (sum == nullptr) {
                sum = product;
            } else {
                ops.add(product, sum, own.size());
            }
        }
        ops.add(sum, out + token * out_width + own.begin, own.size());
    });
    return gather_rows(out, out_width, out_width, n_tokens);
}

}  // namespace hetero::engine
