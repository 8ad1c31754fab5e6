#include "transport/pipe.h"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <csignal>
#include <thread>

#include "kv/file.h"
#include "synthetic_state.h"

using namespace hetero;
using namespace hetero::transport;

namespace {

constexpr std::uint64_t plenty = 1ULL << 30;

kv::State make_state() {
    test::StateShape shape;
    shape.tokens = {300, 7};
    shape.head_dim = 32;
    shape.tokens_per_chunk = 64;
    auto state = test::synthetic_state(shape, 4);
    REQUIRE_MESSAGE(state, state.error().message);
    return std::move(*state);
}

// Bytes that write_pipe() sends for a state.
std::vector<std::byte> image_of(const kv::State& state, std::uint64_t max_memory) {
    const int fd = ::memfd_create("pipe", MFD_CLOEXEC);
    REQUIRE(fd >= 0);
    const auto sink = write_pipe(fd, "stdout", max_memory);
    const Status written = kv::write_all(state, *sink);
    REQUIRE_MESSAGE(written, written.error().message);
    std::vector<std::byte> image(static_cast<std::size_t>(::lseek(fd, 0, SEEK_END)));
    REQUIRE(::pread(fd, image.data(), image.size(), 0) == static_cast<ssize_t>(image.size()));
    ::close(fd);
    return image;
}

// read_pipe() and read_all() at the end of a real pipe into which another thread writes in odd pieces.
Result<kv::State> read_back(std::span<const std::byte> image, std::uint64_t max_memory) {
    int ends[2] = {};
    REQUIRE(::pipe(ends) == 0);
    std::thread writer([&] {
        for (std::size_t at = 0; at < image.size();) {
            const ssize_t n = ::write(ends[1], image.data() + at, std::min<std::size_t>(7919, image.size() - at));
            if (n <= 0) break;
            at += static_cast<std::size_t>(n);
        }
        ::close(ends[1]);
    });
    auto read = [&]() -> Result<kv::State> {
        HETERO_TRY(const auto source, read_pipe(ends[0], "stdin", max_memory));
        CHECK(source->name() == "stdin");
        return kv::read_all(*source);
    }();
    writer.join();
    ::close(ends[0]);
    return read;
}

bool same(const kv::State& a, const kv::State& b) {
    if (a.layers.size() != b.layers.size()) return false;
    for (std::size_t s = 0; s < a.layers.size(); ++s)
        for (std::size_t l = 0; l < a.layers[s].size(); ++l)
            if (!test::same_bytes(a.layers[s][l], b.layers[s][l])) return false;
    return true;
}

}  // namespace

TEST_CASE("a state through a pipe, in memory and spooled, gives the same bytes") {
    const kv::State state = make_state();
    for (const std::uint64_t out_memory : {plenty, std::uint64_t{1000}}) {
        const auto image = image_of(state, out_memory);
        for (const std::uint64_t in_memory :
             {plenty, std::uint64_t{image.size()}, std::uint64_t{1000}, std::uint64_t{1}}) {
            const auto back = read_back(image, in_memory);
            REQUIRE_MESSAGE(back, back.error().message);
            CHECK(same(state, *back));
        }
    }
}

TEST_CASE("an empty stdin is the sign of a failed command, not an empty state") {
    for (const std::uint64_t memory : {plenty, std::uint64_t{1}}) {
        const auto back = read_back({}, memory);
        REQUIRE_FALSE(back);
        CHECK(back.error().code == Errc::bad_input);
        CHECK(back.error().message.find("stdin: empty") != std::string::npos);
    }
}

TEST_CASE("a truncated image is refused wherever it is cut, and named stdin") {
    const kv::State state = make_state();
    const auto image = image_of(state, plenty);
    for (int i = 1; i < 64; ++i) {
        const std::size_t size = image.size() * static_cast<std::size_t>(i) / 64;
        for (const std::uint64_t memory : {plenty, std::uint64_t{1000}}) {
            const auto back = read_back(std::span(image).first(size), memory);
            CAPTURE(size);
            REQUIRE_FALSE(back);
            CHECK(back.error().code == Errc::bad_input);
            CHECK(back.error().message.find("stdin") != std::string::npos);
            CHECK(back.error().message.find("/proc/") == std::string::npos);
        }
    }
    CHECK_FALSE(read_back(std::span(image).first(image.size() - 1), plenty));
}

TEST_CASE("nothing is written before commit") {
    const kv::State state = make_state();
    for (const std::uint64_t memory : {plenty, std::uint64_t{1000}}) {
        const int fd = ::memfd_create("pipe", MFD_CLOEXEC);
        {
            const auto sink = write_pipe(fd, "stdout", memory);
            REQUIRE(sink->begin(state.header));
            REQUIRE(sink->write_layer(state.layers[0][0]));
            SUBCASE("abort") { sink->abort({Errc::bad_input, "x"}); }
            SUBCASE("dropped") {}
        }
        CHECK(::lseek(fd, 0, SEEK_END) == 0);
        ::close(fd);
    }
}

TEST_CASE("a full device and a reader that went away are errors") {
    const kv::State state = make_state();
    for (const std::uint64_t memory : {plenty, std::uint64_t{1000}}) {
        const int full = ::open("/dev/full", O_WRONLY | O_CLOEXEC);
        REQUIRE(full >= 0);
        const Status written = kv::write_all(state, *write_pipe(full, "stdout", memory));
        REQUIRE_FALSE(written);
        CHECK(written.error().code == Errc::resource);
        CHECK(written.error().message.find("No space left on device") != std::string::npos);
        ::close(full);

        auto* before = std::signal(SIGPIPE, SIG_IGN);
        int ends[2] = {};
        REQUIRE(::pipe(ends) == 0);
        ::close(ends[0]);
        const Status broken = kv::write_all(state, *write_pipe(ends[1], "stdout", memory));
        REQUIRE_FALSE(broken);
        CHECK(broken.error().code == Errc::peer);
        ::close(ends[1]);
        std::signal(SIGPIPE, before);
    }
}
