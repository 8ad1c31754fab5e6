#include "io/kept_bytes.h"

#include <doctest/doctest.h>
#include <unistd.h>

#include <fstream>
#include <vector>

#include "support/temp_dir.h"

using namespace hetero;
using io::KeptBytes;

namespace {

std::vector<std::byte> some_bytes(std::size_t n) {
    std::vector<std::byte> bytes(n);
    for (std::size_t i = 0; i < n; ++i) bytes[i] = static_cast<std::byte>(i * 31 % 251);
    return bytes;
}

void flip(const std::string& path, std::size_t offset) {
    std::fstream file(path, std::ios::binary | std::ios::in | std::ios::out);
    file.seekg(static_cast<std::streamoff>(offset));
    const auto byte = static_cast<char>(file.get() ^ 0x10);
    file.seekp(static_cast<std::streamoff>(offset));
    file.put(byte);
    REQUIRE(file.good());
}

std::string refusal(const Result<KeptBytes>& kept) {
    REQUIRE_FALSE(kept.has_value());
    CHECK(kept.error().code == Errc::bad_input);
    return kept.error().message;
}

}  // namespace

TEST_CASE("kept bytes come back, for their key and size only") {
    const test::TempDir folder;
    const std::string path = folder / "deep/er/one.kept";
    ThreadPool pool(2);
    for (const std::size_t size : {std::size_t{0}, std::size_t{1}, std::size_t{4} << 20, (std::size_t{9} << 20) + 5}) {
        CAPTURE(size);
        const std::vector<std::byte> bytes = some_bytes(size);
        REQUIRE(KeptBytes::write(path, "key", bytes, pool).has_value());
        {
            const auto kept = KeptBytes::open(path, "key", size, pool);
            REQUIRE_MESSAGE(kept.has_value(), kept.error().message);
            CHECK(std::equal(kept->bytes().begin(), kept->bytes().end(), bytes.begin(), bytes.end()));
            CHECK(reinterpret_cast<std::uintptr_t>(kept->bytes().data()) % 64 == 0);
        }
        CHECK(refusal(KeptBytes::open(path, "kez", size, pool)).find("another model") != std::string::npos);
        CHECK(refusal(KeptBytes::open(path, "key", size + 1, pool)).find("were expected") != std::string::npos);
    }
    CHECK(refusal(KeptBytes::open(folder / "none", "key", 1, pool)).find("none") != std::string::npos);
}

TEST_CASE("a changed byte and a missing end are found") {
    const test::TempDir folder;
    const std::string path = folder / "one.kept";
    ThreadPool pool(2);
    constexpr std::size_t size = (std::size_t{5} << 20) + 77, data = std::size_t{2} << 20;
    const std::vector<std::byte> bytes = some_bytes(size);
    // In the head: magic, version, count, size, key, a checksum, the checksum of all; then the first and last piece.
    for (const std::size_t offset :
         {std::size_t{0}, std::size_t{8}, std::size_t{12}, std::size_t{16}, std::size_t{24}, std::size_t{56},
          std::size_t{64}, data, data + (std::size_t{4} << 20), data + size - 1}) {
        CAPTURE(offset);
        REQUIRE(KeptBytes::write(path, "key", bytes, pool).has_value());
        flip(path, offset);
        refusal(KeptBytes::open(path, "key", size, pool));
    }
    for (const std::size_t length : {std::size_t{0}, std::size_t{30}, data - 1, data, data + size - 1}) {
        CAPTURE(length);
        REQUIRE(KeptBytes::write(path, "key", bytes, pool).has_value());
        REQUIRE(::truncate(path.c_str(), static_cast<off_t>(length)) == 0);
        refusal(KeptBytes::open(path, "key", size, pool));
    }
}
