// Object headers, looked at before the library decodes them. Checksums find accidents; a header that was made wrong on
// purpose has a right one, and the library (1.10.8) follows sizes and counts in it without comparing them with what is
// there: members of enums, attributes, compact data. So those are compared here.
#include <algorithm>
#include <array>
#include <cstring>

#include "io/hdf5_internal.h"

namespace hetero::io::h5 {
namespace {

using Bytes = std::span<const std::byte>;

template <class T>
T load(Bytes bytes, std::size_t offset) {
    T value;
    std::memcpy(&value, bytes.data() + offset, sizeof value);
    return value;
}

// Elements of a dataspace; nullopt where it does not fit its bytes.
std::optional<std::uint64_t> count_elements(Bytes bytes) {
    if (bytes.size() < 4) return std::nullopt;
    const auto version = load<std::uint8_t>(bytes, 0);
    const std::size_t rank = load<std::uint8_t>(bytes, 1);
    const bool has_max = (load<std::uint8_t>(bytes, 2) & 1) != 0;
    const std::size_t head = version == 1 ? 8 : 4;
    if ((version != 1 && version != 2) || rank > H5S_MAX_RANK || bytes.size() < head + 8 * rank * (has_max ? 2 : 1))
        return std::nullopt;
    if (version == 2 && load<std::uint8_t>(bytes, 3) == 2) return 0;  // null dataspace
    std::uint64_t count = 1;
    for (std::size_t i = 0; i < rank; ++i)
        if (__builtin_mul_overflow(count, load<std::uint64_t>(bytes, head + 8 * i), &count)) return std::nullopt;
    return count;
}

// Size of an element; nullopt where the type does not fit its bytes or is none that a state has.
std::optional<std::uint32_t> element_size(Bytes bytes, int depth = 0) {
    if (bytes.size() < 8 || depth > 1) return std::nullopt;
    const auto version = load<std::uint8_t>(bytes, 0) >> 4;
    const auto size = load<std::uint32_t>(bytes, 4);
    const Bytes rest = bytes.subspan(8);
    if (version < 1 || version > 3) return std::nullopt;
    switch (load<std::uint8_t>(bytes, 0) & 15) {
        case TypeClass::fixed_point:
            return rest.size() >= 4 ? std::optional(size) : std::nullopt;
        case TypeClass::floating_point:
            return rest.size() >= 12 ? std::optional(size) : std::nullopt;
        case TypeClass::string:
            return size;
        case TypeClass::variable_length: {  // of characters: a string
            const bool is_string = (load<std::uint8_t>(bytes, 1) & 15) == 1;
            return is_string && size == heap_reference_bytes && element_size(rest, depth + 1) == 1U
                       ? std::optional(size)
                       : std::nullopt;
        }
        case TypeClass::enumeration: {
            constexpr std::size_t base_bytes = 12;  // of an integer type
            const std::size_t members = load<std::uint16_t>(bytes, 1);
            if (members == 0 || rest.size() < base_bytes ||
                (load<std::uint8_t>(rest, 0) & 15) != TypeClass::fixed_point)
                return std::nullopt;
            if (load<std::uint32_t>(rest, 4) != size) return std::nullopt;
            std::size_t at = base_bytes;
            for (std::size_t i = 0; i < members; ++i) {
                const void* end = at < rest.size() ? std::memchr(rest.data() + at, 0, rest.size() - at) : nullptr;
                if (end == nullptr) return std::nullopt;
                const auto name_bytes =
                    static_cast<std::size_t>(static_cast<const std::byte*>(end) - (rest.data() + at)) + 1;
                at += version >= 3 ? name_bytes : (name_bytes + 7) / 8 * 8;
            }
            return at <= rest.size() && members * std::uint64_t{size} <= rest.size() - at ? std::optional(size)
                                                                                          : std::nullopt;
        }
        default:
            return std::nullopt;
    }
}

// nullopt where it does not fit its bytes.
std::optional<ObjectHeader::Attribute> read_attribute(Bytes bytes) {
    if (bytes.size() < 9) return std::nullopt;
    const auto version = load<std::uint8_t>(bytes, 0);
    if ((version != 2 && version != 3) || load<std::uint8_t>(bytes, 1) != 0) return std::nullopt;  // nothing shared
    const std::size_t head = version == 3 ? 9 : 8;
    const std::size_t name = load<std::uint16_t>(bytes, 2), type = load<std::uint16_t>(bytes, 4),
                      space = load<std::uint16_t>(bytes, 6);
    if (name == 0 || bytes.size() - head < name + type + space || bytes[head + name - 1] != std::byte{0})
        return std::nullopt;
    ObjectHeader::Attribute read{{reinterpret_cast<const char*>(bytes.data() + head), name - 1},
                                 bytes.subspan(head + name, type),
                                 bytes.subspan(head + name + type, space),
                                 bytes.subspan(head + name + type + space)};
    const auto size = element_size(read.type);
    const auto count = count_elements(read.space);
    if (!size || *size == 0 || !count || *count > read.data.size() / *size) return std::nullopt;
    return read;
}

// nullopt where it is not a hard link, or does not fit its bytes.
std::optional<ObjectHeader::Link> read_link(Bytes bytes) {
    constexpr std::uint8_t has_order = 4, has_type = 8, has_charset = 16;
    if (bytes.size() < 2 || load<std::uint8_t>(bytes, 0) != 1) return std::nullopt;
    const auto flags = load<std::uint8_t>(bytes, 1);
    const std::size_t width = std::size_t{1} << (flags & 3);
    const std::size_t head = 2 + ((flags & has_type) != 0 ? 1 : 0) + ((flags & has_order) != 0 ? 8 : 0) +
                             ((flags & has_charset) != 0 ? 1 : 0);
    if (bytes.size() < head + width || ((flags & has_type) != 0 && load<std::uint8_t>(bytes, 2) != 0))
        return std::nullopt;
    std::uint64_t name = 0;
    std::memcpy(&name, bytes.data() + head, width);
    const Bytes rest = bytes.subspan(head + width);
    if (name == 0 || name > rest.size() || rest.size() - name < 8) return std::nullopt;
    return ObjectHeader::Link{{reinterpret_cast<const char*>(rest.data()), name}, load<std::uint64_t>(rest, name)};
}

// Of link info and attribute info: whether all are in the header. `head`: bytes before the address of the others.
bool none_elsewhere(Bytes bytes, std::size_t head) {
    return bytes.size() >= head + 8 && load<std::uint8_t>(bytes, 0) == 0 &&
           load<std::uint64_t>(bytes, head) == UINT64_MAX;
}

bool layout_fits(Bytes bytes) {
    if (bytes.size() < 4) return false;
    const auto version = load<std::uint8_t>(bytes, 0);
    if (version != 3 && version != 4) return false;
    switch (load<std::uint8_t>(bytes, 1)) {
        case 0:  // compact: u16 size, data
            return load<std::uint16_t>(bytes, 2) <= bytes.size() - 4;
        case 1:  // contiguous: address, size
            return bytes.size() >= 2 + 8 + 8;
        default:
            return false;  // chunks and virtual datasets have no place in a state
    }
}

bool fill_value_fits(Bytes bytes) {
    if (bytes.size() < 2 || load<std::uint8_t>(bytes, 0) != 3) return false;
    if ((load<std::uint8_t>(bytes, 1) & 0x20) == 0) return true;
    return bytes.size() >= 6 && load<std::uint32_t>(bytes, 2) <= bytes.size() - 6;
}

class Walk {
public:
    Walk(ByteStore& store, const std::string& path, ObjectHeader& out)
        : store_(store), path_(path), out_(out), budget_(store.size()) {}

    Status object(std::uint64_t address) {
        std::array<std::byte, 34> start{};  // the longest prefix of a header of version 2
        const std::uint64_t there = address < store_.size() ? store_.size() - address : 0;
        const std::size_t n = std::min<std::uint64_t>(there, start.size());
        HETERO_CHECK(store_.read_at(address, std::span(start).first(n)));
        const Bytes bytes(start.data(), n);
        if (n < 8 || std::memcmp(start.data(), "OHDR\2", 5) != 0) return damaged("object header");
        const auto flags = load<std::uint8_t>(bytes, 5);
        const std::size_t width = std::size_t{1} << (flags & 3);
        const std::size_t head = 6 + ((flags & 0x20) != 0 ? 16 : 0) + ((flags & 0x10) != 0 ? 4 : 0);
        if (n < head + width) return damaged("object header");
        std::uint64_t size = 0;
        std::memcpy(&size, start.data() + head, width);
        message_head_ = (flags & 4) != 0 ? 6 : 4;
        HETERO_CHECK(chunk(address, head + width, size));
        for (std::size_t i = 0; i < more_.size(); ++i) {
            const auto [at, length] = more_[i];
            if (length < 8) return damaged("object header continuation");
            HETERO_CHECK(chunk(at, 4, length - 8));
        }
        const auto by_name = [](const ObjectHeader::Link& a, const ObjectHeader::Link& b) { return a.name < b.name; };
        if (!std::is_sorted(out_.links.begin(), out_.links.end(), by_name))
            std::stable_sort(out_.links.begin(), out_.links.end(), by_name);
        return {};
    }

private:
    [[nodiscard]] tl::unexpected<Error> damaged(std::string_view what) const {
        return fail(Errc::bad_input, "{}: damaged {}", path_, what);
    }

    // `head` bytes, `size` bytes of messages, and the checksum.
    Status chunk(std::uint64_t address, std::uint64_t head, std::uint64_t size) {
        const std::uint64_t file_bytes = store_.size();
        if (size > max_header_chunk_bytes || size + head + 4 > budget_ || address > file_bytes ||
            size + head + 4 > file_bytes - address)
            return damaged("object header: it is longer than the file");
        budget_ -= size + head + 4;
        std::vector<std::byte>& bytes =
            out_.chunks.emplace_back(address, std::vector<std::byte>(head + size + 4)).bytes;
        HETERO_CHECK(store_.read_at(address, bytes));
        const Bytes covered = Bytes(bytes).first(head + size);
        const bool follows = head == 4;
        if (follows && std::memcmp(bytes.data(), "OCHK", 4) != 0) return damaged("object header continuation");
        if (load<std::uint32_t>(bytes, head + size) != metadata_checksum(covered))
            return damaged("object header: its checksum is wrong");
        for (std::uint64_t at = head; covered.size() - at >= message_head_;) {
            const auto type = load<std::uint8_t>(covered, at);
            const std::size_t length = load<std::uint16_t>(covered, at + 1);
            const auto flags = load<std::uint8_t>(covered, at + 3);
            if (type == MessageType::nothing && length >= continuation_bytes && !out_.spare)
                out_.spare = {out_.chunks.size() - 1, at};
            at += message_head_;
            if (length > covered.size() - at) return damaged("object header: a message ends after it");
            HETERO_CHECK(message(type, flags, covered.subspan(at, length)));
            at += length;
        }
        return {};
    }

    Status message(std::uint8_t type, std::uint8_t flags, Bytes bytes) {
        constexpr std::uint8_t shared = 2;
        if ((flags & shared) != 0) return damaged("object header: shared messages are not used in a state");
        bool fits = true;
        switch (type) {
            case MessageType::dataspace:
                fits = count_elements(bytes).has_value();
                out_.space = bytes;
                break;
            case MessageType::datatype:
                fits = element_size(bytes).has_value();
                out_.type = bytes;
                break;
            case MessageType::fill_value:
                fits = fill_value_fits(bytes);
                break;
            case MessageType::layout:
                if (!layout_fits(bytes))
                    return fail(Errc::bad_input,
                                "{}: stored in chunks, or damaged; contiguous storage without filters is expected",
                                path_);
                out_.layout = bytes;
                break;
            case MessageType::filters:
            case MessageType::external_files:
                out_.plain_data = false;
                break;
            case MessageType::link_info:
                out_.is_group = true;
                if (bytes.size() < 2 || !none_elsewhere(bytes, (load<std::uint8_t>(bytes, 1) & 1) != 0 ? 10 : 2))
                    out_.all_links = false;
                break;
            case MessageType::link:
                if (const auto read = read_link(bytes)) {
                    out_.links.push_back(*read);
                } else {
                    out_.all_links = false;
                }
                break;
            case MessageType::attribute_info:
                if (bytes.size() < 2 || !none_elsewhere(bytes, (load<std::uint8_t>(bytes, 1) & 1) != 0 ? 4 : 2))
                    out_.all_attributes = false;
                break;
            case MessageType::attribute: {
                const auto read = read_attribute(bytes);
                fits = read.has_value();
                if (fits) out_.attributes.push_back(*read);
                break;
            }
            case MessageType::continuation:
                fits = bytes.size() >= continuation_bytes;
                if (fits) more_.emplace_back(load<std::uint64_t>(bytes, 0), load<std::uint64_t>(bytes, 8));
                break;
            default:
                break;
        }
        if (!fits)
            return damaged(type == MessageType::attribute ? "attribute, or one of a type that no state has"
                                                          : "object header");
        return {};
    }

    ByteStore& store_;
    const std::string& path_;
    ObjectHeader& out_;
    std::uint64_t budget_;  // the chunks of a header do not overlap
    std::size_t message_head_ = 4;
    std::vector<std::pair<std::uint64_t, std::uint64_t>> more_;
};

}  // namespace

Result<std::shared_ptr<const ObjectHeader>> read_header(ByteStore& store, std::uint64_t address,
                                                        const std::string& path) {
    auto header = std::make_shared<ObjectHeader>();
    HETERO_CHECK(Walk(store, path, *header).object(address));
    return header;
}

}  // namespace hetero::io::h5
