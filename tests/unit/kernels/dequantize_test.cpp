// Weight formats against blocks made by ggml's own quantizers (testdata/golden/gguf).
#include <algorithm>
#include <bit>
#include <cctype>

#include "kernels/api/ops.h"
#include "support/golden.h"

using namespace hetero::kernels;
using hetero::test::Golden;

namespace {

std::string upper(std::string_view name) {
    std::string text(name);
    for (char& c : text) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
    return text;
}

bool is_weight_type(DType type) { return type != DType::i8 && type != DType::u8 && type != DType::i32; }

// How many values differ in any bit.
std::size_t differing(const std::vector<float>& a, const std::vector<float>& b) {
    REQUIRE(a.size() == b.size());
    std::size_t n = 0;
    for (std::size_t i = 0; i < a.size(); ++i)
        n += std::bit_cast<std::uint32_t>(a[i]) != std::bit_cast<std::uint32_t>(b[i]);
    return n;
}

}  // namespace

TEST_CASE("dequantize equals ggml bit for bit") {
    const Golden golden("golden/gguf/dequant.safetensors");
    const auto names = golden.names();
    for (int i = 0; i < static_cast<int>(DType::count_); ++i) {
        const auto type = static_cast<DType>(i);
        if (!is_weight_type(type) || type == DType::f32) continue;
        const std::string name = upper(dtype_info(type).name);
        int sets = 0;
        for (const std::string& raw_name : names) {
            if (!raw_name.ends_with(".raw")) continue;
            const std::string stem = raw_name.substr(0, raw_name.size() - 4);
            const bool ours =
                stem == name || stem == name + ".rand" || (stem.starts_with("real.") && stem.ends_with("." + name));
            if (!ours) continue;
            ++sets;
            const auto raw = golden.get<std::uint8_t>(raw_name);
            const auto expected = golden.get<float>(stem + ".f32");
            REQUIRE(dtype_bytes(type, expected.size()) == raw.size());
            for (const Ops* const* b = all_backends(); *b; ++b) {
                if (!backend_supported(**b)) continue;
                INFO(stem, " on ", (*b)->name);
                std::vector<float> values(expected.size());
                (*b)->dequantize(type, raw.data(), values.data(), values.size());
                CHECK(differing(values, expected) == 0);
            }
        }
        INFO(name);
        CHECK(sets >= 1);
    }
}
