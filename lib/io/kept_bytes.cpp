#include "io/kept_bytes.h"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <new>
#include <vector>

#include "base/hash.h"
#include "io/atomic_file.h"

namespace hetero::io {
namespace {

constexpr std::size_t data_begin = std::size_t{2} << 20, piece_bytes = std::size_t{4} << 20;
constexpr char magic[8] = {'H', 'E', 'T', 'K', 'E', 'P', 'T', '\0'};
constexpr std::uint32_t version = 1;

struct Head {
    char magic[8];
    std::uint32_t version, pieces;
    std::uint64_t bytes;
    Digest key;
};
static_assert(sizeof(Head) == 56);
constexpr std::size_t most_pieces = (data_begin - sizeof(Head)) / sizeof(std::uint32_t) - 1;

std::size_t pieces_of(std::size_t bytes) { return bytes / piece_bytes + (bytes % piece_bytes != 0 ? 1 : 0); }

std::span<const std::byte> piece(std::span<const std::byte> bytes, std::size_t index) {
    const std::size_t begin = index * piece_bytes;
    return bytes.subspan(begin, std::min(piece_bytes, bytes.size() - begin));
}

// Head, checksums of the pieces, checksum of both.
std::vector<std::byte> head_of(std::string_view key, std::size_t size, std::span<const std::uint32_t> sums) {
    Head head{{}, version, static_cast<std::uint32_t>(sums.size()), size, sha256(key)};
    std::memcpy(head.magic, magic, sizeof(magic));
    std::vector<std::byte> out(sizeof(head) + sums.size_bytes() + sizeof(std::uint32_t));
    std::memcpy(out.data(), &head, sizeof(head));
    if (!sums.empty()) std::memcpy(out.data() + sizeof(head), sums.data(), sums.size_bytes());
    const std::size_t end = out.size() - sizeof(std::uint32_t);
    const std::uint32_t sum = crc32c(std::span(out).first(end));
    std::memcpy(out.data() + end, &sum, sizeof(sum));
    return out;
}

Status check(std::span<const std::byte> file, std::string_view key, std::size_t size, ThreadPool& pool) {
    const auto damaged = [] { return fail(Errc::bad_input, "is damaged"); };
    const std::size_t pieces = pieces_of(size);
    if (pieces > most_pieces || file.size() < data_begin || file.size() - data_begin != size) {
        return fail(Errc::bad_input, "has {} bytes, {} were expected", file.size(), data_begin + size);
    }
    std::vector<std::uint32_t> sums(pieces);
    if (!sums.empty()) std::memcpy(sums.data(), file.data() + sizeof(Head), pieces * sizeof(std::uint32_t));
    const std::vector<std::byte> expected = head_of(key, size, sums);
    constexpr std::size_t key_begin = sizeof(Head) - sizeof(Digest);
    if (std::memcmp(file.data(), expected.data(), key_begin) != 0) return damaged();
    if (std::memcmp(file.data() + key_begin, expected.data() + key_begin, sizeof(Digest)) != 0) {
        return fail(Errc::bad_input, "is of another model, or of another version of this program");
    }
    if (std::memcmp(file.data(), expected.data(), expected.size()) != 0) return damaged();
    const std::span<const std::byte> bytes = file.subspan(data_begin);
    std::atomic<bool> sound = true;
    pool.parallel_for(pieces, [&](std::size_t index, int) {
        if (crc32c(piece(bytes, index)) != sums[index]) sound = false;
    });
    return sound ? Status{} : damaged();
}

}  // namespace

Result<KeptBytes> KeptBytes::open(const std::string& path, std::string_view key, std::size_t size, ThreadPool& pool) {
    try {
        HETERO_TRY(MappedFile file, MappedFile::open(path, MappedFile::Use::whole));
        if (const Status sound = check(file.bytes(), key, size, pool); !sound) {
            return fail(sound.error().code, "{}: {}", path, sound.error().message);
        }
        return KeptBytes(std::move(file));
    } catch (const std::bad_alloc&) {
        return fail(Errc::resource, "{}: out of memory", path);
    }
}

Status KeptBytes::write(const std::string& path, std::string_view key, std::span<const std::byte> bytes,
                        ThreadPool& pool) {
    try {
        if (pieces_of(bytes.size()) > most_pieces) {
            return fail(Errc::resource, "{}: {} bytes are more than such a file takes", path, bytes.size());
        }
        std::error_code error;
        std::filesystem::create_directories(std::filesystem::path(path).parent_path(), error);  // create() tells
        HETERO_TRY(AtomicFile file, AtomicFile::create(path, Overwrite::replace));
        std::vector<std::uint32_t> sums(pieces_of(bytes.size()));
        pool.parallel_for(sums.size(), [&](std::size_t index, int) { sums[index] = crc32c(piece(bytes, index)); });
        std::vector<std::byte> head = head_of(key, bytes.size(), sums);
        head.resize(data_begin);
        HETERO_CHECK(file.write(head));
        for (std::size_t index = 0; index < sums.size(); ++index) HETERO_CHECK(file.write(piece(bytes, index)));
        return file.publish();
    } catch (const std::exception& error) {
        return fail(Errc::resource, "{}: {}", path, error.what());
    }
}

std::span<const std::byte> KeptBytes::bytes() const noexcept { return file_.bytes().subspan(data_begin); }

}  // namespace hetero::io
