// The rates of a device's kernels, as hw-probe measures them.
#include <doctest/doctest.h>

#include "emulation/emulation.h"
#include "hw/probes/gpu_rates.h"

using namespace hetero;

namespace {

const hw::GpuSizes small{.rows = 64,
                         .cols = 128,
                         .gemm_tokens = 16,
                         .kv_heads = 1,
                         .query_heads = 2,
                         .head_dim = 64,
                         .prefill_tokens = 40,
                         .decode_tokens = 70};

}  // namespace

TEST_CASE("every type that the kernels have gets rates, and the memory is given back") {
    hw::Json out;
    hw::put_gpu_rates(kernels::emulated_ops(), 0, 0, small, out);
    int executable = 0;
    for (const auto& entry : out.at("compute").at("rates")) {
        CAPTURE(entry.dump());
        const bool lacks = entry.at("dtype") == "f32" || entry.at("dtype") == "fp8_e4m3fn";
        CHECK(entry.at("executable") == !lacks);
        if (lacks) continue;
        ++executable;
        CHECK(entry.at("gemm_tokens") == 16);
    }
    CHECK(executable == 4);
    for (const auto& entry : out.at("attention").at("rates")) {
        CAPTURE(entry.dump());
        CHECK(entry.at("executable") == true);
        CHECK(entry.at("head_dim") == 64);
    }
    CHECK(emulation::usage().allocations == 0);
}

TEST_CASE("a fault is told, and nothing is said to be executable") {
    hw::Json out;
    emulation::Settings settings = emulation::settings();
    settings.total_bytes = 1000;
    const emulation::Configured configured(settings);
    hw::put_gpu_rates(kernels::emulated_ops(), 0, 0, small, out);
    for (const char* section : {"compute", "attention"})
        for (const auto& entry : out.at(section).at("rates")) {
            CAPTURE(entry.dump());
            CHECK(entry.at("executable") == false);
            CHECK(entry.at("unsupported").is_string());
        }
}
