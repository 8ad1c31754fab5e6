// What the messages of object headers stand for, of the types that hetero's own files have.
#include <algorithm>
#include <bit>
#include <cstring>

#include "io/hdf5_internal.h"

namespace hetero::io::h5 {
namespace {

static_assert(std::endian::native == std::endian::little);

using Bytes = std::span<const std::byte>;

template <class T>
std::optional<T> load(Bytes bytes, std::size_t offset) {
    if (offset > bytes.size() || bytes.size() - offset < sizeof(T)) return std::nullopt;
    T value;
    std::memcpy(&value, bytes.data() + offset, sizeof value);
    return value;
}

// A datatype message: u8 class and version, 24 bits of properties of the class, u32 size, then what the class has.
struct Type {
    std::uint8_t type_class = 0;  // a TypeClass
    std::uint32_t bits = 0, size = 0;
    Bytes rest;
};
std::optional<Type> type_of(Bytes bytes) {
    const auto first = load<std::uint32_t>(bytes, 0), size = load<std::uint32_t>(bytes, 4);
    if (!first || !size) return std::nullopt;
    return Type{static_cast<std::uint8_t>(*first & 15), *first >> 8, *size, bytes.subspan(8)};
}

// Little-endian, of all its bits. Bit 3 of the properties: signed.
bool is_integer(const Type& type, std::uint32_t bytes) {
    return type.type_class == TypeClass::fixed_point && (type.bits & ~8U) == 0 && type.size == bytes &&
           load<std::uint16_t>(type.rest, 0) == 0U && load<std::uint16_t>(type.rest, 2) == 8 * bytes;
}
bool is_signed(const Type& type) { return (type.bits & 8) != 0; }

// IEEE 754's form, little-endian: sign, exponent, mantissa without its first bit.
bool is_float(const Type& type, std::uint32_t bytes, std::uint8_t exponent_bits, std::uint32_t bias) {
    const auto total = static_cast<std::uint8_t>(8 * bytes),
               mantissa = static_cast<std::uint8_t>(total - 1 - exponent_bits);
    constexpr std::uint32_t implied_bit = 2U << 4;
    return type.type_class == TypeClass::floating_point && type.size == bytes &&
           type.bits == (implied_bit | std::uint32_t{total - 1U} << 8) && load<std::uint16_t>(type.rest, 0) == 0U &&
           load<std::uint16_t>(type.rest, 2) == total && load<std::uint8_t>(type.rest, 4) == mantissa &&
           load<std::uint8_t>(type.rest, 5) == exponent_bits && load<std::uint8_t>(type.rest, 6) == 0U &&
           load<std::uint8_t>(type.rest, 7) == mantissa && load<std::uint32_t>(type.rest, 8) == bias;
}

std::optional<Element> element_of(const Type& type) {
    if (is_float(type, 2, 5, 15)) return Element::f16;
    if (is_float(type, 2, 8, 127)) return Element::bf16;
    if (is_float(type, 4, 8, 127)) return Element::f32;
    if (is_integer(type, 1)) return is_signed(type) ? Element::i8 : Element::u8;
    if (is_integer(type, 4)) return is_signed(type) ? Element::i32 : Element::u32;
    return std::nullopt;
}

// A dataspace message of version 2: u8 version, rank, flags, kind, then u64 dimensions, and their limits with flag 1.
std::optional<std::vector<std::uint64_t>> shape_of(Bytes bytes) {
    constexpr std::uint8_t scalar = 0, simple = 1;
    const auto rank = load<std::uint8_t>(bytes, 1), kind = load<std::uint8_t>(bytes, 3);
    if (load<std::uint8_t>(bytes, 0) != 2U || !rank || !kind || *kind != (*rank == 0 ? scalar : simple))
        return std::nullopt;
    std::vector<std::uint64_t> shape;
    for (std::size_t i = 0; i < *rank; ++i) {
        const auto length = load<std::uint64_t>(bytes, 4 + 8 * i);
        if (!length) return std::nullopt;
        shape.push_back(*length);
    }
    return shape;
}

bool is_single(const ObjectHeader::Attribute& attribute) {
    const auto shape = shape_of(attribute.space);
    return shape && std::all_of(shape->begin(), shape->end(), [](std::uint64_t length) { return length == 1; });
}

}  // namespace

const ObjectHeader::Attribute* ObjectHeader::attribute(std::string_view name) const noexcept {
    const auto found =
        std::find_if(attributes.begin(), attributes.end(), [&](const Attribute& one) { return one.name == name; });
    return found == attributes.end() ? nullptr : &*found;
}

const ObjectHeader::Link* ObjectHeader::link(std::string_view name) const noexcept {
    const auto found = std::lower_bound(links.begin(), links.end(), name,
                                        [](const Link& one, std::string_view wanted) { return one.name < wanted; });
    return found == links.end() || found->name != name ? nullptr : &*found;
}

std::optional<PlainData> plain_data(const ObjectHeader& header) {
    const auto type = type_of(header.type);
    const auto element = type ? element_of(*type) : std::nullopt;
    auto shape = shape_of(header.space);
    // u8 version, u8 class, u64 address, u64 size
    constexpr std::uint8_t contiguous = 1;
    const auto offset = load<std::uint64_t>(header.layout, 2), bytes = load<std::uint64_t>(header.layout, 10);
    if (!header.plain_data || !element || !shape || load<std::uint8_t>(header.layout, 1) != contiguous || !offset ||
        !bytes) {
        return std::nullopt;
    }
    return PlainData{*element, std::move(*shape), *offset, *bytes};
}

std::optional<std::int64_t> plain_integer(const ObjectHeader::Attribute& attribute) {
    const auto type = type_of(attribute.type);
    if (!type || !is_single(attribute)) return std::nullopt;
    if (is_integer(*type, 8) && is_signed(*type)) return load<std::int64_t>(attribute.data, 0);
    if (is_integer(*type, 4) && is_signed(*type)) return load<std::int32_t>(attribute.data, 0);
    return std::nullopt;
}

std::optional<double> plain_number(const ObjectHeader::Attribute& attribute) {
    const auto type = type_of(attribute.type);
    if (!type || !is_float(*type, 8, 11, 1023) || !is_single(attribute)) return std::nullopt;
    return load<double>(attribute.data, 0);
}

std::optional<bool> plain_boolean(const ObjectHeader::Attribute& attribute) {
    const auto type = type_of(attribute.type);
    const auto value = load<std::uint8_t>(attribute.data, 0);
    if (!type || type->type_class != TypeClass::enumeration || type->size != 1 || !is_single(attribute) || !value ||
        *value > 1) {
        return std::nullopt;
    }
    return *value == 1;
}

std::optional<std::span<const std::byte, heap_reference_bytes>> plain_string(const ObjectHeader::Attribute& attribute) {
    constexpr std::uint32_t of_characters = 1;
    const auto type = type_of(attribute.type);
    if (!type || type->type_class != TypeClass::variable_length || (type->bits & 15) != of_characters ||
        type->size != heap_reference_bytes || !is_single(attribute) || attribute.data.size() < heap_reference_bytes) {
        return std::nullopt;
    }
    return attribute.data.first<heap_reference_bytes>();
}

}  // namespace hetero::io::h5
