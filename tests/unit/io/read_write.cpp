// All of some bytes, at a place of an open file.
#include "io/read_write.h"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cstdint>
#include <thread>
#include <vector>

#include "support/results.h"
#include "support/temp_dir.h"

using namespace hetero;

namespace {

std::vector<std::byte> some_bytes(std::size_t size) {
    std::vector<std::byte> bytes(size);
    for (std::size_t i = 0; i < size; ++i) bytes[i] = static_cast<std::byte>(i * 31 >> 3);
    return bytes;
}

}  // namespace

TEST_CASE("bytes are written and read at their places, up to the end of the file") {
    const test::TempDir folder;
    const int fd = ::open((folder / "file").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    REQUIRE(fd >= 0);
    const std::vector<std::byte> bytes = some_bytes(1000);
    const std::span<const std::byte> all(bytes);
    CHECK(io::write_fully(fd, 400, all.subspan(400)).has_value());
    CHECK(io::write_fully(fd, all.first(150)).has_value());
    CHECK(io::write_fully(fd, all.subspan(150, 250)).has_value());  // goes on where the one before ended
    CHECK(io::write_fully(fd, {}).has_value());

    std::vector<std::byte> read(1000);
    CHECK(io::read_fully(fd, 0, read).has_value());
    CHECK(read == bytes);
    CHECK(test::must(io::read_up_to_end(fd, 990, std::span(read).first(20))) == 10);
    CHECK(test::must(io::read_up_to_end(fd, 5000, read)) == 0);
    const Error cut = test::error_of(io::read_fully(fd, 990, std::span(read).first(20)));
    CHECK(cut.code == Errc::bad_input);
    CHECK(cut.message == "ends at byte 1000, 10 more were expected");
    CHECK(test::error_of(io::read_fully(fd, UINT64_MAX - 5, read)).code == Errc::bad_input);
    ::close(fd);
    CHECK(test::error_of(io::write_fully(fd, 0, all)).message == "cannot be written: Bad file descriptor");
    CHECK(test::error_of(io::read_fully(fd, 0, read)).message == "cannot be read: Bad file descriptor");
}

TEST_CASE("a descriptor that takes few bytes at once gets all of them") {
    std::array<int, 2> ends{};
    REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM, 0, ends.data()) == 0);
    const std::vector<std::byte> bytes = some_bytes(3 << 20);
    std::vector<std::byte> read;
    std::thread reader([&] {
        std::vector<std::byte> piece(10'000);
        for (ssize_t n = 0; (n = ::read(ends[1], piece.data(), piece.size())) > 0;)
            read.insert(read.end(), piece.begin(), piece.begin() + n);
    });
    CHECK(io::write_fully(ends[0], bytes).has_value());
    ::close(ends[0]);
    reader.join();
    ::close(ends[1]);
    CHECK(read == bytes);
}
