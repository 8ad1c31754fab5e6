// Whether two models compute the same: the same ops over the same rows.
#pragma once
#include "unit/convert/carry_out.h"

namespace hetero::test {

inline std::vector<float> row_of(const model::Matrix& matrix, std::uint64_t row) {
    std::vector<float> values(matrix.cols);
    const std::size_t offset = matrix.group_rows == 0 ? row * matrix.row_bytes
                                                      : row / matrix.group_rows * matrix.group_bytes +
                                                            row % matrix.group_rows * matrix.row_bytes;
    kernels::ops().dequantize(matrix.dtype, matrix.data + offset, values.data(), matrix.cols);
    return values;
}

// `heads`: of `other`, where its rows are interleaved within each head and those of `one` are not; 0: they are not.
inline void check_same(const model::Matrix& one, const model::Matrix& other, std::uint64_t heads = 0) {
    REQUIRE(one.rows == other.rows);
    REQUIRE(one.cols == other.cols);
    CHECK(one.bias == other.bias);
    for (std::uint64_t row = 0; row < one.rows; ++row) {
        std::uint64_t place = row;
        if (heads != 0) {
            const std::uint64_t dim = one.rows / heads;
            place = row / dim * dim + interleaved_place(row % dim, dim);
        }
        const std::vector<float> a = row_of(one, row), b = row_of(other, place);
        if (std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0) continue;
        FAIL_CHECK("row ", row, " of ", one.name, " is not row ", place, " of ", other.name);
        return;
    }
}
inline void check_same(const model::Norm& one, const model::Norm& other) {
    CHECK(one.kind == other.kind);
    CHECK(one.eps == other.eps);
    CHECK(one.weight.values == other.weight.values);
    CHECK(one.bias.values == other.bias.values);
}
inline void check_same(const std::optional<model::Norm>& one, const std::optional<model::Norm>& other) {
    REQUIRE(one.has_value() == other.has_value());
    if (one) check_same(*one, *other);
}

struct SameOp {
    bool interleaved;  // rows of Q and K in `other`
    const model::Model& model;

    void operator()(const model::Embed& a, const model::Embed& b) const {
        check_same(a.table, b.table);
        CHECK(a.scale == b.scale);
    }
    void operator()(const model::Normalize& a, const model::Normalize& b) const {
        check_same(a.norm, b.norm);
        CHECK(a.in == b.in);
        CHECK(a.out == b.out);
    }
    void operator()(const model::Qkv& a, const model::Qkv& b) const {
        check_same(a.q, b.q, interleaved ? a.n_heads : 0);
        check_same(a.k, b.k, interleaved ? model.config.n_kv_heads : 0);
        check_same(a.v, b.v);
        check_same(a.q_norm, b.q_norm);
        check_same(a.k_norm, b.k_norm);
        CHECK(a.rope == b.rope);
    }
    void operator()(const model::Project& a, const model::Project& b) const {
        check_same(a.weight, b.weight);
        CHECK(a.in == b.in);
        CHECK(a.out == b.out);
    }
    void operator()(const model::HeadProject& a, const model::HeadProject& b) const {
        check_same(a.weight, b.weight);
        CHECK(a.n_heads == b.n_heads);
    }
    void operator()(const model::LatentKv& a, const model::LatentKv& b) const { check_same(a.norm, b.norm); }
    void operator()(const model::LatentQuery& a, const model::LatentQuery& b) const {
        check_same(a.k_absorb, b.k_absorb);
        CHECK(a.n_heads == b.n_heads);
    }
    void operator()(const model::MoeAdd& a, const model::MoeAdd& b) const {
        check_same(a.router, b.router);
        CHECK(a.selection_bias.values == b.selection_bias.values);
        REQUIRE(a.experts.size() == b.experts.size());
        for (std::size_t i = 0; i < a.experts.size(); ++i) {
            check_same(a.experts[i].gate, b.experts[i].gate);
            check_same(a.experts[i].up, b.experts[i].up);
            check_same(a.experts[i].down, b.experts[i].down);
        }
        CHECK(a.rule.score == b.rule.score);
        CHECK(a.rule.group_score == b.rule.group_score);
        CHECK(a.rule.top_k == b.rule.top_k);
        CHECK(a.rule.n_groups == b.rule.n_groups);
        CHECK(a.rule.top_groups == b.rule.top_groups);
        CHECK(a.rule.normalize == b.rule.normalize);
        CHECK(a.rule.scale == b.rule.scale);
        CHECK(a.activation == b.activation);
    }
    void operator()(const model::Attention& a, const model::Attention& b) const {
        CHECK(a.scale == b.scale);
        CHECK(a.window == b.window);
        CHECK(a.softcap == b.softcap);
    }
    void operator()(const model::ProjectAdd& a, const model::ProjectAdd& b) const {
        check_same(a.weight, b.weight);
        check_same(a.norm, b.norm);
    }
    void operator()(const model::FfnAdd& a, const model::FfnAdd& b) const {
        check_same(a.gate, b.gate);
        check_same(a.up, b.up);
        check_same(a.down, b.down);
        check_same(a.norm, b.norm);
        CHECK(a.activation == b.activation);
    }
    void operator()(const model::Head& a, const model::Head& b) const {
        check_same(a.norm, b.norm);
        check_same(a.weight, b.weight);
        CHECK(a.softcap == b.softcap);
    }
    template <class A, class B>
    void operator()(const A&, const B&) const {
        FAIL_CHECK("another op");
    }
};

inline void check_same_program(const model::Model& one, const model::Model& other) {
    REQUIRE(one.program.ops.size() == other.program.ops.size());
    const bool interleaved = one.config.rope.pairing != other.config.rope.pairing;
    if (interleaved) CHECK(other.config.rope.pairing == kernels::RopePairing::interleaved);
    for (std::size_t i = 0; i < one.program.ops.size(); ++i) {
        CAPTURE(i);
        std::visit(SameOp{interleaved, one}, one.program.ops[i], other.program.ops[i]);
    }
    REQUIRE(one.program.ropes.size() == other.program.ropes.size());
    for (std::size_t i = 0; i < one.program.ropes.size(); ++i) {
        CHECK(model::inverse_frequencies(one.program.ropes[i]) == model::inverse_frequencies(other.program.ropes[i]));
    }
}

}  // namespace hetero::test
