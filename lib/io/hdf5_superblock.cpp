// What the library is not trusted with: the superblock, and strings in global heaps.
#include <array>
#include <bit>
#include <cstring>

#include "io/hdf5_internal.h"

namespace hetero::io::h5 {
namespace {

template <class T>
T load(std::span<const std::byte> bytes, std::size_t offset) {
    static_assert(std::endian::native == std::endian::little);
    T value;
    std::memcpy(&value, bytes.data() + offset, sizeof value);
    return value;
}

// https://burtleburtle.net/bob/c/lookup3.c
constexpr std::array<unsigned char, 8> signature = {0x89, 'H', 'D', 'F', '\r', '\n', 0x1a, '\n'};
constexpr std::size_t superblock_bytes = 48;  // versions 2 and 3, offsets and lengths of 8 bytes
constexpr std::size_t end_at = 28, checksum_at = 44;

}  // namespace

// https://burtleburtle.net/bob/c/lookup3.c
std::uint32_t metadata_checksum(std::span<const std::byte> key) {
    std::uint32_t a = 0xdeadbeef + static_cast<std::uint32_t>(key.size());
    std::uint32_t b = a;
    std::uint32_t c = a;
    auto word = [&key](std::size_t offset) {  // little-endian, zeros past the end
        if (key.size() >= offset + 4) return load<std::uint32_t>(key, offset);
        std::uint32_t value = 0;
        for (std::size_t i = 0; i < 4 && offset + i < key.size(); ++i)
            value |= std::to_integer<std::uint32_t>(key[offset + i]) << (8 * i);
        return value;
    };
    while (key.size() > 12) {
        a += word(0);
        b += word(4);
        c += word(8);
        a -= c, a ^= std::rotl(c, 4), c += b;
        b -= a, b ^= std::rotl(a, 6), a += c;
        c -= b, c ^= std::rotl(b, 8), b += a;
        a -= c, a ^= std::rotl(c, 16), c += b;
        b -= a, b ^= std::rotl(a, 19), a += c;
        c -= b, c ^= std::rotl(b, 4), b += a;
        key = key.subspan(12);
    }
    if (key.empty()) return c;
    a += word(0);
    b += word(4);
    c += word(8);
    c ^= b, c -= std::rotl(b, 14);
    a ^= c, a -= std::rotl(c, 11);
    b ^= a, b -= std::rotl(a, 25);
    c ^= b, c -= std::rotl(b, 16);
    a ^= c, a -= std::rotl(c, 4);
    b ^= a, b -= std::rotl(a, 14);
    c ^= b, c -= std::rotl(b, 24);
    return c;
}

Result<Superblock> check_superblock(ByteStore& store) {
    std::array<std::byte, superblock_bytes> block{};
    const std::uint64_t size = store.size();
    HETERO_CHECK(store.read_at(0, std::span(block).first(std::min<std::uint64_t>(size, block.size()))));
    if (size < signature.size() || std::memcmp(block.data(), signature.data(), signature.size()) != 0) {
        const bool zeros = std::all_of(block.begin(), block.end(), [](std::byte b) { return b == std::byte{0}; });
        return fail(Errc::bad_input, "not an HDF5 file{}",
                    size == 0 ? " (it is empty: not complete, or never written)"
                    : zeros   ? " (it starts with zeros: not complete)"
                              : "");
    }
    if (size < block.size())
        return fail(Errc::bad_input, "truncated: {} bytes, the superblock alone has {}", size, block.size());
    const auto version = load<std::uint8_t>(block, 8);
    if (version != 2 && version != 3)
        return fail(Errc::bad_input,
                    "HDF5 superblock version {}; hetero-kv files have version 2 or 3, whose metadata are checksummed",
                    version);
    if (const std::uint32_t expected = load<std::uint32_t>(block, checksum_at),
        found = metadata_checksum(std::span(block).first(checksum_at));
        expected != found)
        return fail(Errc::bad_input, "damaged: HDF5 superblock has checksum {:08x}, its bytes give {:08x}", expected,
                    found);
    if (load<std::uint8_t>(block, 9) != 8 || load<std::uint8_t>(block, 10) != 8)
        return fail(Errc::bad_input, "HDF5 offsets of {} and lengths of {} bytes; 8 and 8 are expected",
                    load<std::uint8_t>(block, 9), load<std::uint8_t>(block, 10));
    if (load<std::uint8_t>(block, 11) != 0)
        return fail(Errc::bad_input, "not complete: its writer has not closed it (killed, or still writing)");
    if (load<std::uint64_t>(block, 12) != 0)
        return fail(Errc::bad_input, "HDF5 base address {}; 0 is expected", load<std::uint64_t>(block, 12));
    const auto end = load<std::uint64_t>(block, end_at);
    if (end > size) return fail(Errc::bad_input, "truncated: {} bytes, {} are expected", size, end);
    if (end < size)
        return fail(Errc::bad_input, "{} bytes follow the end of the file ({} bytes, {} are expected)", size - end,
                    size, end);
    return Superblock{load<std::uint64_t>(block, 36), load<std::uint64_t>(block, 20) != UINT64_MAX};
}

Status set_end(ByteStore& store, std::uint64_t bytes) {
    std::array<std::byte, superblock_bytes> block{};
    HETERO_CHECK(store.read_at(0, block));
    std::memcpy(block.data() + end_at, &bytes, sizeof bytes);
    const std::uint32_t checksum = metadata_checksum(std::span(block).first(checksum_at));
    std::memcpy(block.data() + checksum_at, &checksum, sizeof checksum);
    return store.write_at(0, block);
}

// ---------------------------------------------------------------------------------------------------------------------

extern "C" {
// Hands out the stored reference as it is. Sizes are equal, so nothing moves.
static herr_t heap_reference_conversion(hid_t source, hid_t destination, H5T_cdata_t* data, std::size_t /*count*/,
                                        std::size_t /*buffer_stride*/, std::size_t /*background_stride*/,
                                        void* /*buffer*/, void* /*background*/, hid_t /*dxpl*/) {
    if (data->command != H5T_CONV_INIT) return 0;
    data->need_bkg = H5T_BKG_NO;
    if (H5Tis_variable_str(source) <= 0 || H5Tget_class(destination) != H5T_OPAQUE ||
        H5Tget_size(destination) != heap_reference_bytes)
        return -1;
    char* tag = H5Tget_tag(destination);
    const bool ours = tag != nullptr && std::strcmp(tag, heap_reference_tag) == 0;
    H5free_memory(tag);
    return ours ? 0 : -1;
}
}

bool register_heap_reference_conversion() {
    static const bool done = [] {
        const Id source(H5Tcopy(H5T_C_S1));
        const Id destination(H5Tcreate(H5T_OPAQUE, heap_reference_bytes));
        return source && destination && H5Tset_size(source.get(), H5T_VARIABLE) >= 0 &&
               H5Tset_tag(destination.get(), heap_reference_tag) >= 0 &&
               H5Tregister(H5T_PERS_SOFT, "hetero_heap_ref", source.get(), destination.get(),
                           heap_reference_conversion) >= 0;
    }();
    return done;
}

Status HeapCollection::read(ByteStore& store, std::uint64_t address) {
    constexpr std::uint64_t max_bytes = 16U << 20;
    bytes_.clear();
    const std::uint64_t size = store.size();
    if (address > size || size - address < header_bytes)
        return fail(Errc::bad_input, "string lies at byte {}, outside the file", address);
    std::array<std::byte, header_bytes> header{};
    HETERO_CHECK(store.read_at(address, header));
    const auto collection_bytes = load<std::uint64_t>(header, 8);
    if (std::memcmp(header.data(), "GCOL\1", 5) != 0 || collection_bytes < header_bytes ||
        collection_bytes > size - address || collection_bytes > max_bytes)
        return fail(Errc::bad_input, "damaged HDF5 global heap at byte {}", address);
    std::vector<std::byte> bytes(collection_bytes);
    HETERO_CHECK(store.read_at(address, bytes));
    bytes_ = std::move(bytes);
    address_ = address;
    return {};
}

Result<std::string> HeapCollection::string(ByteStore& store,
                                           std::span<const std::byte, heap_reference_bytes> reference) {
    const auto length = load<std::uint32_t>(reference, 0);
    const auto address = load<std::uint64_t>(reference, 4);
    const auto wanted = load<std::uint32_t>(reference, 12);
    if (length == 0) return std::string();
    if (bytes_.empty() || address_ != address) HETERO_CHECK(read(store, address));
    std::uint64_t at = header_bytes;
    while (bytes_.size() - at >= header_bytes) {
        const auto index = load<std::uint16_t>(bytes_, at);
        const auto object_bytes = load<std::uint64_t>(bytes_, at + 8);
        at += header_bytes;
        if (index == 0 || object_bytes > bytes_.size() - at) break;
        if (index == wanted) {
            if (object_bytes != length) break;
            std::string text(reinterpret_cast<const char*>(bytes_.data()) + at, length);
            while (!text.empty() && text.back() == '\0') text.pop_back();
            return text;
        }
        at += std::min((object_bytes + 7) / 8 * 8, bytes_.size() - at);
    }
    return fail(Errc::bad_input, "damaged HDF5 global heap at byte {}: no object {} of {} bytes", address, wanted,
                length);
}

}  // namespace hetero::io::h5
