// The ops that multiply by weights, and those around them.
#include <algorithm>
#include <array>

#include "engine/device/device_executor.h"
#include "kernels/api/device.h"

namespace hetero::engine {

// Weights of f32 are not rounded, as on the CPU.
bool DeviceExecutor::on_matrix_units(const Chunk& chunk, const model::Matrix& weight) const {
    if (setup_.precision == Precision::precise || weight.dtype == kernels::DType::f32) return false;
    return chunk.phase == Phase::prefill || chunk.n_tokens > most_gemv_tokens;
}

// A register as the products with `weights` read it.
Result<DeviceExecutor::Input> DeviceExecutor::input(model::Register index, const Chunk& chunk,
                                                    std::span<const model::Matrix* const> weights) {
    Input out{at(index), width(index), nullptr, half_stride(width(index))};
    const bool any = std::any_of(weights.begin(), weights.end(), [&](const model::Matrix* weight) {
        return weight->rows != 0 && on_matrix_units(chunk, *weight);
    });
    if (!any) return out;
    out.half = as<std::uint16_t>(Scratch::half);
    if (rounded_ && rounded_register_ == index) return out;
    HETERO_CHECK(check(ops_.convert(stream_.get(), kernels::DType::f32, out.values, out.stride * sizeof(float),
                                    kernels::DType::bf16, as<std::uint16_t>(Scratch::half), 2 * out.half_stride,
                                    chunk.n_tokens, width(index))));
    rounded_ = true;
    rounded_register_ = index;
    return out;
}

Status DeviceExecutor::multiply(const kernels::DeviceMatrix& w, const Input& x, std::size_t n_tokens, bool in_halves,
                                float* y, std::size_t y_stride, bool add) {
    if (!in_halves) return check(ops_.gemv(stream_.get(), w, x.values, x.stride, n_tokens, y, y_stride, add));
    const kernels::DeviceRows rows{kernels::DeviceInput::bf16, x.half, x.half_stride, nullptr};
    return check(
        ops_.gemm(stream_.get(), w, rows, n_tokens, y, y_stride, add, scratch(Scratch::matrix), matrix_bytes_));
}

Status DeviceExecutor::multiply_add(const model::Matrix& weight, const std::optional<model::Norm>& norm, const Input& x,
                                    const Chunk& chunk, model::Register out) {
    if (!norm) return multiply(weight, x, chunk, at(out), width(out), true);
    auto* product = as<float>(Scratch::product);
    HETERO_CHECK(multiply(weight, x, chunk, product, weight.rows));
    return check(ops_.norm(stream_.get(), weights_->norm(*norm), {product, weight.rows, weight.rows}, chunk.n_tokens, 1,
                           weight.rows, true, {at(out), width(out)}));
}

Status DeviceExecutor::multiply(const model::Matrix& weight, const Input& x, const Chunk& chunk, float* y,
                                std::size_t y_stride, bool add) {
    return multiply(weights_->matrix(weight), x, chunk.n_tokens, on_matrix_units(chunk, weight), y, y_stride, add);
}

Status DeviceExecutor::multiply(std::span<const Product> products, const Input& x, const Chunk& chunk) {
    constexpr std::size_t most = kernels::DeviceProduct::most_together;
    for (std::size_t begin = 0, end = 0; begin < products.size(); begin = end) {
        const Product& first = products[begin];
        end = begin + 1;
        if (on_matrix_units(chunk, first.weight)) {
            HETERO_CHECK(multiply(first.weight, x, chunk, first.y, first.y_stride));
            continue;
        }
        while (end < products.size() && end - begin < most && products[end].weight.dtype == first.weight.dtype) ++end;
        std::array<kernels::DeviceProduct, most> together;
        for (std::size_t i = begin; i < end; ++i)
            together[i - begin] = {weights_->matrix(products[i].weight), products[i].y, products[i].y_stride};
        HETERO_CHECK(
            check(ops_.gemv_together(stream_.get(), together.data(), end - begin, x.values, x.stride, chunk.n_tokens)));
    }
    return {};
}

// y[token][head] = W[head] x[token][head]; `x_head` and `y_head` elements from one head to the next.
Status DeviceExecutor::multiply_heads(const model::Matrix& weight, std::size_t n_heads, Input x, std::size_t x_head,
                                      float* y, std::size_t y_stride, std::size_t y_head, const Chunk& chunk) {
    kernels::DeviceMatrix w = weights_->matrix(weight);
    w.rows /= n_heads;
    if (!on_matrix_units(chunk, weight)) {
        return check(ops_.gemv_heads(stream_.get(), w, n_heads, x.values, x.stride, x_head, chunk.n_tokens, y, y_stride,
                                     y_head));
    }
    for (std::size_t head = 0; head < n_heads; ++head) {
        HETERO_CHECK(multiply(w, x, chunk.n_tokens, true, y + head * y_head, y_stride));
        x.half += x_head;
        w.data = static_cast<const std::byte*>(w.data) + w.rows * w.row_bytes;
        if (w.row_scale != nullptr) w.row_scale += w.rows;
        if (w.bias != nullptr) w.bias += w.rows;
    }
    return {};
}

Status DeviceExecutor::op(const model::Embed& embed, const Chunk& chunk) {
    const auto* ids = reinterpret_cast<const std::int32_t*>(batch_device_.get()) + chunk.begin;
    return check(ops_.embed(stream_.get(), weights_->matrix(embed.table), ids, chunk.n_tokens, embed.scale,
                            at(embed.out), width(embed.out)));
}

Status DeviceExecutor::op(const model::Normalize& one, const Chunk& chunk) {
    const std::size_t n = width(one.in);
    kernels::DeviceOutput out{at(one.out), width(one.out)};
    // Products read it next: it is rounded for them at once.
    const bool rounds =
        setup_.precision == Precision::fast && (chunk.phase == Phase::prefill || chunk.n_tokens > most_gemv_tokens);
    if (rounds) {
        out.half = as<std::uint16_t>(Scratch::half);
        out.half_stride = half_stride(n);
    }
    HETERO_CHECK(check(ops_.norm(stream_.get(), weights_->norm(one.norm), {at(one.in), width(one.in), n},
                                 chunk.n_tokens, 1, n, false, out)));
    rounded_ = rounds;
    rounded_register_ = one.out;
    return {};
}

Status DeviceExecutor::op(const model::Project& project, const Chunk& chunk) {
    const std::array weights = {&project.weight};
    HETERO_TRY(const Input x, input(project.in, chunk, weights));
    return multiply(project.weight, x, chunk, at(project.out), width(project.out));
}

Status DeviceExecutor::op(const model::HeadProject& project, const Chunk& chunk) {
    const std::size_t dim = project.weight.rows / project.n_heads;
    const std::array weights = {&project.weight};
    HETERO_TRY(const Input x, input(project.in, chunk, weights));
    return multiply_heads(project.weight, project.n_heads, x, project.weight.cols, at(project.out), width(project.out),
                          dim, chunk);
}

Status DeviceExecutor::op(const model::ProjectAdd& project, const Chunk& chunk) {
    const std::array weights = {&project.weight};
    HETERO_TRY(const Input x, input(project.in, chunk, weights));
    return multiply_add(project.weight, project.norm, x, chunk, project.out);
}

Status DeviceExecutor::op(const model::FfnAdd& ffn, const Chunk& chunk) {
    const std::size_t rows = ffn.up.rows;
    const bool gated = ffn.gate.rows != 0;
    const std::array weights = {&ffn.gate, &ffn.up};
    HETERO_TRY(const Input in, input(ffn.in, chunk, weights));
    auto *gate = as<float>(Scratch::gate), *up = as<float>(Scratch::up);
    const Product products[] = {{gated ? ffn.gate : ffn.up, gate, rows}, {ffn.up, up, rows}};
    HETERO_CHECK(multiply(std::span(products).first(gated ? 2 : 1), in, chunk));
    Input activated{gate, rows, nullptr, half_stride(rows)};
    kernels::DeviceOutput out;
    if (on_matrix_units(chunk, ffn.down)) {
        out.half = as<std::uint16_t>(Scratch::activated);
        out.half_stride = activated.half_stride;
        activated.half = out.half;
    } else {
        out.f32 = gate;
        out.f32_stride = rows;
    }
    HETERO_CHECK(check(
        ops_.activate(stream_.get(), ffn.activation, gate, gated ? up : nullptr, rows, chunk.n_tokens, rows, out)));
    return multiply_add(ffn.down, ffn.norm, activated, chunk, ffn.out);
}

Status DeviceExecutor::op(const model::MoeAdd& moe, const Chunk& chunk) {
    const std::size_t n_tokens = chunk.n_tokens, top_k = moe.rule.top_k, n_slots = n_tokens * top_k;
    const std::size_t n_experts = moe.experts.size();
    const std::array routers = {&moe.experts.front().up};
    HETERO_TRY(const Input in, input(moe.in, chunk, routers));
    auto* scores = as<float>(Scratch::scores);
    HETERO_CHECK(check(ops_.gemv(stream_.get(), weights_->matrix(moe.router), in.values, in.stride, n_tokens, scores,
                                 n_experts, false)));
    kernels::DeviceRouting routing;
    routing.sigmoid = moe.rule.score == model::RoutingRule::Score::sigmoid;
    routing.group_by_two = moe.rule.group_score == model::RoutingRule::GroupScore::highest_two;
    routing.n_experts = static_cast<std::uint32_t>(n_experts);
    routing.top_k = moe.rule.top_k;
    routing.n_groups = moe.rule.n_groups;
    routing.top_groups = moe.rule.top_groups;
    routing.normalize = moe.rule.normalize;
    routing.scale = moe.rule.scale;
    routing.bias = weights_->vector(moe.selection_bias.values);
    kernels::DeviceSlots slots;
    slots.expert = as<std::int32_t>(Scratch::slots);
    slots.weight = reinterpret_cast<float*>(slots.expert + n_slots);
    slots.slot = slots.expert + 2 * n_slots;
    slots.token = slots.expert + 3 * n_slots;
    slots.first = slots.expert + 4 * n_slots;
    HETERO_CHECK(check(ops_.route(stream_.get(), routing, scores, n_tokens, slots, op_fault())));

    const std::size_t rows = moe.experts.front().up.rows, hidden = moe.experts.front().down.rows;
    const auto rows_of = [](const Input& x) {
        return x.half != nullptr ? kernels::DeviceRows{kernels::DeviceInput::bf16, x.half, x.half_stride, nullptr}
                                 : kernels::DeviceRows{kernels::DeviceInput::f32, x.values, x.stride, nullptr};
    };
    auto *gate = as<float>(Scratch::gate), *up = as<float>(Scratch::up), *products = as<float>(Scratch::experts);
    const auto multiply_experts = [&](model::Matrix model::Expert::*which, const Input& x, bool by_slot, float* y) {
        const kernels::DeviceExperts experts = weights_->experts(moe, which);
        return check(
            ops_.experts_gemm(stream_.get(), experts, slots, n_slots, rows_of(x), by_slot, y, experts.first.rows));
    };
    HETERO_CHECK(multiply_experts(&model::Expert::gate, in, false, gate));
    HETERO_CHECK(multiply_experts(&model::Expert::up, in, false, up));
    Input activated{gate, rows, nullptr, half_stride(rows)};
    kernels::DeviceOutput out;
    if (in.half != nullptr) {
        out.half = as<std::uint16_t>(Scratch::activated);
        out.half_stride = activated.half_stride;
        activated.half = out.half;
    } else {
        out.f32 = gate;
        out.f32_stride = rows;
    }
    HETERO_CHECK(check(ops_.activate(stream_.get(), moe.activation, gate, up, rows, n_slots, rows, out)));
    HETERO_CHECK(multiply_experts(&model::Expert::down, activated, true, products));
    return check(
        ops_.combine(stream_.get(), slots, top_k, products, hidden, n_tokens, hidden, at(moe.out), width(moe.out)));
}

}  // namespace hetero::engine
