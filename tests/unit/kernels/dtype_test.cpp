#include "kernels/api/dtype.h"

#include <doctest/doctest.h>

using namespace hetero::kernels;

TEST_CASE("names lead to types and back") {
    for (int i = 0; i < static_cast<int>(DType::count_); ++i) {
        const auto type = static_cast<DType>(i);
        const DTypeInfo& info = dtype_info(type);
        INFO(i);
        CHECK(dtype_from_name(info.name) == type);
        CHECK(info.block_elems > 0);
        CHECK(info.block_bytes > 0);
    }
    CHECK_FALSE(dtype_from_name("F32").has_value());
    CHECK_FALSE(dtype_from_name("").has_value());
    CHECK_FALSE(dtype_from_name("q9_9").has_value());
}

TEST_CASE("sizes of blocks are ggml's") {
    CHECK(dtype_bytes(DType::f32, 5) == 20);
    CHECK(dtype_bytes(DType::bf16, 5) == 10);
    CHECK(dtype_bytes(DType::i8, 5) == 5);
    CHECK(dtype_bytes(DType::q8_0, 64) == 68);
    CHECK(dtype_bytes(DType::q4_0, 32) == 18);
    CHECK(dtype_bytes(DType::q4_1, 1536) == 960);
    CHECK(dtype_bytes(DType::q5_0, 32) == 22);
    CHECK(dtype_bytes(DType::q5_1, 32) == 24);
    CHECK(dtype_bytes(DType::q2_k, 512) == 168);
    CHECK(dtype_bytes(DType::q3_k, 512) == 220);
    CHECK(dtype_bytes(DType::q4_k, 512) == 288);
    CHECK(dtype_bytes(DType::q5_k, 512) == 352);
    CHECK(dtype_bytes(DType::q6_k, 512) == 420);
    CHECK(dtype_bytes(DType::iq4_nl, 32) == 18);
}

TEST_CASE("a number that is no type has a harmless description") {
    CHECK(dtype_info(static_cast<DType>(200)).name == "unknown");
    CHECK(dtype_info(DType::count_).block_elems == 1);
}
