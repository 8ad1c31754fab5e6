// Sound files with bytes changed, cut out or put in: each opens or is refused, and what opens can be read in full.
#include <doctest/doctest.h>
#include <fcntl.h>
#include <unistd.h>

#include <cstdint>
#include <random>

#include "gguf_bytes.h"
#include "io/gguf.h"
#include "io/safetensors.h"
#include "support/golden.h"
#include "support/temp_dir.h"

using namespace hetero;

namespace {

struct Counts {
    int opened = 0, refused = 0;
};

std::string mutate(const std::string& sound, std::mt19937& random) {
    std::string bytes = sound;
    auto position = [&] { return random() % bytes.size(); };
    const auto changes = 1 + random() % 3;
    for (std::uint32_t i = 0; i < changes && !bytes.empty(); ++i) {
        switch (random() % 6) {
            case 0:
                bytes[position()] = static_cast<char>(random());
                break;
            case 1:
                bytes[position()] ^= static_cast<char>(1U << (random() % 8));
                break;
            case 2:
                bytes.resize(position());
                break;
            case 3:
                bytes.erase(position(), 1 + random() % 8);
                break;
            case 4:
                bytes.insert(position(), 1 + random() % 8, static_cast<char>(random()));
                break;
            default: {  // a number that overflows when something is added to it or multiplied with it
                const std::uint64_t extremes[] = {0,     1,         0x7FFFFFFFFFFFFFFFULL, 0x8000000000000000ULL,
                                                  ~0ULL, ~0ULL - 7, 0xFFFFFFFFULL,         1ULL << 32};
                const std::string number = test::raw(extremes[random() % std::size(extremes)]);
                const std::size_t at = position();
                bytes.replace(at, std::min(number.size(), bytes.size() - at),
                              number.substr(0, std::min(number.size(), bytes.size() - at)));
            }
        }
    }
    return bytes;
}

// Touches everything that the source offers.
std::uint64_t read_all(const io::TensorSource& source) {
    std::uint64_t sum = 0;
    for (const std::string& name : source.names()) {
        const io::TensorView* view = source.find(name);
        if (view == nullptr) {
            REQUIRE_FALSE(source.why(name).empty());
            continue;
        }
        std::uint64_t elements = 1;
        for (const std::uint64_t n : view->shape) elements *= n;
        REQUIRE(view->bytes.size() == kernels::dtype_bytes(view->dtype, elements));
        for (const std::byte byte : view->bytes) sum += static_cast<std::uint64_t>(byte);
    }
    return sum;
}

std::uint64_t read_strings(const io::GgufFile& file) {
    std::uint64_t sum = 0;
    for (const auto& [key, value] : file.metadata()) {
        if (const auto* text = std::get_if<std::string_view>(&value)) sum += std::hash<std::string_view>{}(*text);
        const auto strings = file.strings(key);
        if (!strings || !*strings) continue;
        for (const std::string_view text : **strings) sum += std::hash<std::string_view>{}(text);
    }
    return sum;
}

// `open` says whether it opened the file.
template <class Open>
Counts run(const std::string& sound, int rounds, std::uint32_t seed, const Open& open) {
    const test::TempDir folder;
    std::mt19937 random(seed);
    Counts counts;
    REQUIRE(open(folder.write("sound", sound)));
    for (int i = 0; i < rounds; ++i) {
        const std::string path = folder.write("mutated", mutate(sound, random));
        ++(open(path) ? counts.opened : counts.refused);
    }
    return counts;
}

template <class T>
bool accepted(const Result<T>& result) {
    if (result) return true;
    REQUIRE(result.error().code == Errc::bad_input);
    REQUIRE(result.error().message.find("mutated") != std::string::npos);
    REQUIRE(result.error().message.find('\n') == std::string::npos);
    return false;
}

}  // namespace

TEST_CASE("mutated GGUF files") {
    std::uint64_t sum = 0;
    auto open = [&](const std::string& path) {
        const auto file = io::GgufFile::open(path);
        if (!accepted(file)) return false;
        sum += read_all(**file) + read_strings(**file);
        return true;
    };
    // The header of types.gguf is what is interesting: its data follows only as far as it has to.
    test::GgufBytes small;
    small.key("general.alignment", test::GgufBytes::u32, test::raw(32U));
    small.key(
        "a", test::GgufBytes::array,
        test::GgufBytes::array_of(test::GgufBytes::string, 2, test::GgufBytes::text("xy") + test::GgufBytes::text("")));
    small.key(
        "b", test::GgufBytes::array,
        test::GgufBytes::array_of(test::GgufBytes::u64, 2, test::raw<std::uint64_t>(1) + test::raw<std::uint64_t>(2)));
    small.key("c", test::GgufBytes::string, test::GgufBytes::text("text")).key("d", test::GgufBytes::boolean, "\1");
    small.tensor("one", {4, 2}, 0, 0).tensor("two", {32, 1, 2}, 8, 32);
    small.data = std::string(32 + 68, 'x');
    const Counts counts = run(small.bytes(), 6000, 1, open);
    CHECK(counts.refused > 1000);
    CHECK(counts.opened > 100);
    const Counts types = run(test::read_file(test::testdata("golden/gguf/types.gguf")), 500, 2, open);
    CHECK(types.refused > 50);
    CHECK(types.opened > 50);
    CHECK(sum > 0);
}

TEST_CASE("mutated safetensors files and indexes") {
    std::uint64_t sum = 0;
    auto open = [&](const std::string& path) {
        const auto source = io::open_safetensors(path);
        if (!accepted(source)) return false;
        sum += read_all(**source);
        return true;
    };
    const std::string header =
        R"({"__metadata__":{"format":"pt","note":"a \"quoted\" one"},"a.weight":{"dtype":"F32","shape":[2,2],"data_offsets":[0,16]},)"
        R"("b":{"dtype":"F16","shape":[],"data_offsets":[16,18]},"c":{"dtype":"I64","shape":[1],"data_offsets":[18,26]}})";
    const std::string sound = test::raw<std::uint64_t>(header.size()) + header + std::string(26, 'x');
    const Counts counts = run(sound, 6000, 3, open);
    CHECK(counts.refused > 1000);
    CHECK(counts.opened > 50);

    // The shard is sound, the index is not.
    const test::TempDir folder;
    const std::string index =
        R"({"metadata":{"total_size":26},"weight_map":{"a.weight":"s.safetensors","b":"s.safetensors","c":"s.safetensors"}})";
    folder.write("s.safetensors", sound);
    std::mt19937 random(4);
    int opened = 0;
    for (int i = 0; i < 3000; ++i) {
        folder.write("model.safetensors.index.json", mutate(index, random));
        const auto source = io::open_safetensors_folder(folder.path());
        if (!source) {
            REQUIRE(source.error().code == Errc::bad_input);
            continue;
        }
        ++opened;
        sum += read_all(**source);
    }
    CHECK(opened > 20);
    CHECK(opened < 2900);
    CHECK(sum > 0);
}
