// Products that the compute probe times: right ones pass its check, wrong ones do not.
#include "hw/probes/products.h"

#include <doctest/doctest.h>

#include <cstring>

using namespace hetero;
using hw::Products;
using kernels::DType;

TEST_CASE("a product is executable only where its results are right") {
    ThreadPool pool(2);
    const hw::Aligned<std::byte> memory(Products::gemm_rows * Products::cols * sizeof(float));
    for (const Products::Path path : {Products::Path::precise, Products::Path::fast}) {
        for (const DType type : {DType::f32, DType::f16, DType::bf16, DType::q8_0, DType::q4_0, DType::q4_1}) {
            CAPTURE(kernels::dtype_info(type).name);
            CAPTURE((path == Products::Path::fast));
            Products products(type, path, memory.span(), pool);
            CHECK(products.rows() >= Products::gemm_rows);
            CHECK(products.bytes() <= memory.size());
            const auto fault = products.fault();
            CHECK_MESSAGE(!fault.has_value(), fault.value_or(""));
            // Weights that are not those of the reference, among the first rows: as a kernel that reads the wrong ones.
            const std::size_t group = products.bytes() / (products.rows() / kernels::packed_rows);
            std::memmove(memory.data(), memory.data() + group / 2, group / 2);
            CHECK(products.fault().has_value());
        }
    }
}

TEST_CASE("of two passes the better figure counts, and a failure stays one") {
    using hw::Json;
    std::vector<Json> best{{{"executable", true}, {"gemm_gflop_per_s", 5.0}, {"batch_gflop_per_s", {1.0, 9.0}}},
                           {{"executable", true}, {"gemm_gflop_per_s", 5.0}},
                           {{"executable", false}, {"unsupported", "wrong"}}};
    hw::keep_best(best, {{{"executable", true}, {"gemm_gflop_per_s", 7.0}, {"batch_gflop_per_s", {2.0, 3.0}}},
                         {{"executable", false}, {"unsupported", "wrong now"}},
                         {{"executable", true}, {"gemm_gflop_per_s", 6.0}}});
    CHECK(best[0]["gemm_gflop_per_s"] == 7.0);
    CHECK(best[0]["batch_gflop_per_s"] == Json{2.0, 9.0});
    CHECK(best[1]["unsupported"] == "wrong now");
    CHECK_FALSE(best[1].contains("gemm_gflop_per_s"));
    CHECK(best[2]["executable"] == false);
    CHECK_FALSE(best[2].contains("gemm_gflop_per_s"));
}
