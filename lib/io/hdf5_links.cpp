// Links of a group of many, as continuation of an object header of version 2.
#include <cstring>

#include "io/hdf5_internal.h"

namespace hetero::io::h5 {
namespace {

template <class T>
void store_at(std::vector<std::byte>& bytes, std::size_t at, T value) {
    std::memcpy(bytes.data() + at, &value, sizeof value);
}

template <class T>
void append(std::vector<std::byte>& bytes, T value) {
    bytes.resize(bytes.size() + sizeof value);
    store_at(bytes, bytes.size() - sizeof value, value);
}

void append_text(std::vector<std::byte>& bytes, std::string_view text) {
    const auto all = std::as_bytes(std::span(text));
    bytes.insert(bytes.end(), all.begin(), all.end());
}

// Of a message: u8 type, u16 length, u8 flags.
void append_head(std::vector<std::byte>& bytes, std::uint8_t type, std::size_t length) {
    append(bytes, type);
    append(bytes, static_cast<std::uint16_t>(length));
    append(bytes, std::uint8_t{0});
}

// A hard link: u8 version, u8 flags (0: the length of the name is one byte, of ASCII), name, u64 address.
Status append_link(std::vector<std::byte>& bytes, const std::string& name, std::uint64_t address) {
    if (name.empty() || name.size() > UINT8_MAX) return fail(Errc::internal, "a link's name has {} bytes", name.size());
    append_head(bytes, MessageType::link, 3 + name.size() + sizeof address);
    append(bytes, std::uint8_t{1});
    append(bytes, std::uint8_t{0});
    append(bytes, static_cast<std::uint8_t>(name.size()));
    append_text(bytes, name);
    append(bytes, address);
    return {};
}

}  // namespace

Status write_links(ByteStore& store, const std::string& path, const ManyLinks& links) {
    if (links.addresses.empty()) return {};
    std::vector<std::byte> piece;
    append_text(piece, "OCHK");
    for (const auto& [name, address] : links.addresses) HETERO_CHECK(append_link(piece, name, address));
    append(piece, metadata_checksum(piece));
    if (piece.size() > max_header_chunk_bytes)
        return fail(Errc::resource, "{}: {} links need {} bytes, there is room for {}", path, links.addresses.size(),
                    piece.size(), max_header_chunk_bytes);
    HETERO_TRY(const auto header, read_header(store, links.group, path));
    if (!header->spare) return fail(Errc::internal, "{}: no room to continue its header", path);
    ObjectHeader::Chunk chunk = header->chunks[header->spare->chunk];
    const std::size_t at = header->spare->at, end = chunk.bytes.size() - sizeof(std::uint32_t);
    const std::uint64_t place = store.size();
    store_at(chunk.bytes, at, std::uint8_t{MessageType::continuation});  // as long as the message was, or longer
    store_at(chunk.bytes, at + message_head_bytes, place);
    store_at(chunk.bytes, at + message_head_bytes + sizeof place, std::uint64_t{piece.size()});
    store_at(chunk.bytes, end, metadata_checksum(std::span(chunk.bytes).first(end)));
    HETERO_CHECK(store.write_at(place, piece));
    HETERO_CHECK(set_end(store, place + piece.size()));
    return store.write_at(chunk.address, chunk.bytes);
}

}  // namespace hetero::io::h5
