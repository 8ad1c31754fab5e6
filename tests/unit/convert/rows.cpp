// Rows of an output tensor, gathered from pieces of the input.
#include "convert/rows.h"

#include <numeric>

#include "support.h"

using namespace hetero;
using namespace hetero::test;
using convert::Piece;
using convert::RowOrder;
using convert::Rows;
using convert::TensorPlan;
using kernels::DType;

namespace {

// "a" [8][3] of 0, 1, 2, ...; "v" [6] of the same; "q" int8 with row scales.
MadeTensors tensors() {
    std::vector<float> count(24);
    std::iota(count.begin(), count.end(), 0.0F);
    MadeTensors made;
    made.add("a", DType::f32, {8, 3}, count.data());
    made.add("cube", DType::f32, {2, 4, 3}, count.data());
    made.add("v", DType::f32, {6}, count.data());
    const std::int8_t codes[] = {1, -2, 3, 100, -127, 0};
    const float scales[] = {0.5F, 2.0F};
    made.add("q.weight", DType::i8, {2, 3}, codes);
    made.add("q.weight_scale", DType::f32, {2, 1}, scales);
    made.add("bare.weight", DType::i8, {2, 3}, codes);
    return made;
}

std::vector<float> all(const Rows& rows) {
    std::vector<float> values(rows.rows() * rows.cols());
    for (std::uint64_t row = 0; row < rows.rows(); ++row) {
        rows.read(row, std::span(values).subspan(row * rows.cols(), rows.cols()));
    }
    return values;
}

Piece piece(std::string source, std::uint64_t first, std::uint64_t rows, std::uint64_t cols = 3) {
    Piece one;
    one.source = std::move(source);
    one.first_row = first;
    one.rows = rows;
    one.cols = cols;
    return one;
}

}  // namespace

TEST_CASE("rows come in the order of the pieces") {
    const MadeTensors source = tensors();
    const TensorPlan plan{"out", {3, 3}, {piece("a", 6, 1), piece("cube", 1, 2)}, 0, {}, true};
    const Rows rows = must(Rows::open(source, plan));
    CHECK(all(rows) == std::vector<float>{18, 19, 20, 3, 4, 5, 6, 7, 8});
    CHECK(rows.source_bytes() == 36);
    CHECK(rows.stored(0, DType::f32).size() == 12);
    CHECK(rows.stored(0, DType::f16).empty());
    TensorPlan shifted = plan;
    shifted.add = 1;
    const Rows plus = must(Rows::open(source, shifted));
    CHECK(all(plus) == std::vector<float>{19, 20, 21, 4, 5, 6, 7, 8, 9});
    CHECK(plus.stored(0, DType::f32).empty());
}

TEST_CASE("rotary rows are interleaved within each head, and back") {
    const MadeTensors source = tensors();
    // Two heads of four rows: all rotate.
    TensorPlan plan{"out", {8, 3}, {piece("a", 0, 8)}, 0, {}, true};
    Piece& one = plan.pieces.front();
    one.order = RowOrder::interleave;
    one.head_rows = 4;
    one.rotary_rows = 4;
    const auto first_column = [&](const TensorPlan& of) {
        std::vector<int> column;
        const std::vector<float> values = all(must(Rows::open(source, of)));
        for (std::size_t i = 0; i < values.size(); i += 3) column.push_back(static_cast<int>(values[i]) / 3);
        return column;
    };
    CHECK(first_column(plan) == std::vector<int>{0, 2, 1, 3, 4, 6, 5, 7});
    one.order = RowOrder::deinterleave;
    CHECK(first_column(plan) == std::vector<int>{0, 2, 1, 3, 4, 6, 5, 7});  // of four rows, its own inverse
    one.head_rows = 8;
    one.rotary_rows = 6;
    one.rotary_first = 1;
    CHECK(first_column(plan) == std::vector<int>{0, 1, 3, 5, 2, 4, 6, 7});
    one.order = RowOrder::interleave;
    CHECK(first_column(plan) == std::vector<int>{0, 1, 4, 2, 5, 3, 6, 7});
}

TEST_CASE("a piece can be transposed") {
    const MadeTensors source = tensors();
    TensorPlan plan{"out", {3, 2}, {piece("a", 1, 2)}, 0, {}, true};
    plan.pieces.front().transpose = true;
    CHECK(all(must(Rows::open(source, plan))) == std::vector<float>{3, 6, 4, 7, 5, 8});
}

TEST_CASE("vectors, whole and in pieces") {
    const MadeTensors source = tensors();
    const TensorPlan whole{"out", {6}, {piece("v", 0, 1, 6)}, 0, {}, false};
    CHECK(all(must(Rows::open(source, whole))) == std::vector<float>{0, 1, 2, 3, 4, 5});
    const TensorPlan parts{"out", {5}, {piece("v", 4, 2, 1), piece("v", 0, 3, 1)}, 0, {}, false};
    CHECK(all(must(Rows::open(source, parts))) == std::vector<float>{4, 5, 0, 1, 2});
    const TensorPlan given{"out", {3}, {}, 0, {7, 8, 9}, false};
    CHECK(all(must(Rows::open(source, given))) == std::vector<float>{7, 8, 9});
}

TEST_CASE("int8 rows are multiplied by their scales, or copied with them") {
    const MadeTensors source = tensors();
    const TensorPlan plan{"out", {2, 3}, {piece("q.weight", 0, 2)}, 0, {}, true};
    const Rows rows = must(Rows::open(source, plan));
    CHECK(all(rows) == std::vector<float>{0.5F, -1, 1.5F, 200, -254, 0});
    CHECK(rows.stored(1, DType::i8).size() == 3);
    CHECK(rows.stored_scale(1) == 2.0F);
    const TensorPlan bare{"out", {2, 3}, {piece("bare.weight", 0, 2)}, 0, {}, true};
    CHECK(message_of(Rows::open(source, bare)).find("bare.weight") != std::string::npos);
}

TEST_CASE("plans that do not fit their input are refused") {
    const MadeTensors source = tensors();
    const auto refused = [&](const TensorPlan& plan) { return !Rows::open(source, plan).has_value(); };
    CHECK(refused({"out", {2, 3}, {piece("missing", 0, 2)}, 0, {}, true}));
    CHECK(refused({"out", {2, 3}, {piece("a", 7, 2)}, 0, {}, true}));
    CHECK(refused({"out", {3, 3}, {piece("a", 0, 2)}, 0, {}, true}));
    CHECK(refused({"out", {2, 4}, {piece("a", 0, 2)}, 0, {}, true}));
    CHECK(refused({"out", {2, 3}, {}, 0, {}, true}));
    CHECK(refused({"out", {4, 6}, {piece("a", 0, 4, 6)}, 0, {}, true}));
    CHECK(refused({"out", {4}, {}, 0, {7, 8, 9}, false}));
    TensorPlan odd{"out", {8, 3}, {piece("a", 0, 8)}, 0, {}, true};
    odd.pieces.front().order = RowOrder::interleave;
    odd.pieces.front().head_rows = 3;
    CHECK(refused(odd));
}
