// Bytes that another thread writes.
#include "io/write_behind.h"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <vector>

#include "support/temp_dir.h"

using namespace hetero;
using io::WriteBehind;

namespace {

class Descriptor {
public:
    Descriptor(const std::string& path, int flags) : fd_(::open(path.c_str(), flags | O_CLOEXEC, 0600)) {
        REQUIRE(fd_ >= 0);
    }
    ~Descriptor() { ::close(fd_); }
    Descriptor(const Descriptor&) = delete;
    Descriptor& operator=(const Descriptor&) = delete;
    [[nodiscard]] int get() const { return fd_; }

private:
    int fd_;
};

std::shared_ptr<std::vector<std::byte>> bytes_of(std::size_t size, unsigned seed) {
    auto bytes = std::make_shared<std::vector<std::byte>>(size);
    for (std::size_t i = 0; i < size; ++i) (*bytes)[i] = static_cast<std::byte>((i * 7 + seed) >> (i % 3));
    return bytes;
}

}  // namespace

TEST_CASE("writes arrive at their offsets, and their bytes are let go") {
    const test::TempDir folder;
    const std::string path = folder / "file";
    const Descriptor file(path, O_RDWR | O_CREAT);
    // More than may wait, one write that alone is more than that, and an empty one.
    std::vector<std::size_t> sizes(40, 700'001);
    sizes.push_back(WriteBehind::most_bytes + 5);
    sizes.push_back(0);
    std::vector<std::byte> expected;
    std::vector<std::weak_ptr<std::vector<std::byte>>> held;
    {
        WriteBehind behind(file.get());
        for (std::size_t i = 0; i < sizes.size(); ++i) {
            auto bytes = bytes_of(sizes[i], static_cast<unsigned>(i));
            held.push_back(bytes);
            const std::uint64_t offset = expected.size();
            expected.insert(expected.end(), bytes->begin(), bytes->end());
            const std::span<const std::byte> span = *bytes;
            REQUIRE(behind.write(offset, span, std::move(bytes)).has_value());
            CHECK(behind.unsettled() <= i + 1);
        }
        REQUIRE(behind.drain().has_value());
        CHECK(behind.unsettled() == 0);
        for (const auto& one : held) CHECK(one.expired());
    }
    std::vector<std::byte> found(expected.size() + 1);
    REQUIRE(::pread(file.get(), found.data(), found.size(), 0) == static_cast<ssize_t>(expected.size()));
    CHECK(std::equal(expected.begin(), expected.end(), found.begin()));
}

TEST_CASE("the first write that failed is the error of all that follow, and is never counted as done") {
    const test::TempDir folder;
    const std::string path = folder / "file";
    { const Descriptor made(path, O_RDWR | O_CREAT); }
    const Descriptor file(path, O_RDONLY);
    WriteBehind behind(file.get());
    auto bytes = bytes_of(100, 1);
    const std::weak_ptr<std::vector<std::byte>> held = bytes;
    const std::span<const std::byte> span = *bytes;
    static_cast<void>(behind.write(0, span, std::move(bytes)));
    for (int i = 0; i < 2; ++i) {
        const Status drained = behind.drain();
        REQUIRE_FALSE(drained.has_value());
        CHECK(drained.error().code == Errc::resource);
        CHECK(drained.error().message == "cannot be written: Bad file descriptor");
        CHECK(behind.unsettled() == 1);
        CHECK(held.expired());
        CHECK_FALSE(behind.write(0, span.first(0), nullptr).has_value());
    }
}
