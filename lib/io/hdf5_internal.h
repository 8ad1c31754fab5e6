// Shared by the hdf5*.cpp files alone.
#pragma once
#include <hdf5.h>

#include <array>
#include <optional>

#include "io/hdf5.h"

namespace hetero::io::h5 {

inline constexpr std::size_t element_count = 7;
inline constexpr std::size_t heap_reference_bytes = 16;  // u32 length, u64 collection address, u32 object index

// Strings of variable length lie in collections: "GCOL", version 1, 3 reserved, u64 size; then objects of u16 index,
// u16 reference count, 4 reserved, u64 size, data padded to 8 bytes. Index 0 is the free space at the end. Attributes
// of one object mostly lie in one collection, so the last one is kept.
class HeapCollection {
public:
    Result<std::string> string(ByteStore& store, std::span<const std::byte, heap_reference_bytes> reference);

private:
    static constexpr std::uint64_t header_bytes = 16;  // of the collection, and of an object
    Status read(ByteStore& store, std::uint64_t address);
    std::uint64_t address_ = 0;
    std::vector<std::byte> bytes_;  // empty: none
};

struct File::Channel {
    ByteStore* store = nullptr;  // nullptr: gone, while the library still holds the file
    bool writable = false;
    std::optional<Error> error;  // the first read or write that failed
    HeapCollection heap;
};

// Around all use of the library, which need not be thread-safe: one thread at a time has it, and it prints nothing.
// library() comes before the first of them: it makes one itself.
class Quiet {
public:
    Quiet() {
        H5Eget_auto2(H5E_DEFAULT, &function_, &data_);
        H5Eset_auto2(H5E_DEFAULT, nullptr, nullptr);
    }
    ~Quiet() { H5Eset_auto2(H5E_DEFAULT, function_, data_); }
    Quiet(const Quiet&) = delete;
    Quiet& operator=(const Quiet&) = delete;

private:
    Turn turn_;
    H5E_auto2_t function_ = nullptr;
    void* data_ = nullptr;
};

// An HDF5 identifier, given back on destruction.
class Id {
public:
    explicit Id(hid_t id = -1) noexcept : id_(id) {}
    ~Id() { reset(); }
    Id(Id&& other) noexcept : id_(std::exchange(other.id_, -1)) {}
    Id& operator=(Id&& other) noexcept {
        if (this != &other) {
            reset();
            id_ = std::exchange(other.id_, -1);
        }
        return *this;
    }
    [[nodiscard]] hid_t get() const noexcept { return id_; }
    [[nodiscard]] explicit operator bool() const noexcept { return id_ >= 0; }
    [[nodiscard]] hid_t release() noexcept { return std::exchange(id_, -1); }
    void reset() noexcept {
        if (id_ >= 0) H5Idec_ref(id_);
        id_ = -1;
    }

private:
    hid_t id_;
};

// What an access list carries to the driver.
struct DriverInfo {
    File::Channel* channel;
};
// The driver that hands the library's reads and writes to a ByteStore; -1 where it cannot be registered.
[[nodiscard]] hid_t byte_store_driver();

// Types and lists that every call needs, made once and kept: making them takes longer than using them.
struct Library {
    bool ready = false;
    std::array<Id, element_count> types;
    Id boolean, string, heap_reference;
    Id group_creation, dataset_creation;
};

// `ready` is false where the library does not start.
[[nodiscard]] Library& library();
[[nodiscard]] std::optional<Element> element_of(hid_t type);
// Links and attributes of what is made with it stay in the object header, which has a checksum.
[[nodiscard]] Id creation_list(hid_t kind);
[[nodiscard]] Id access_list(File::Channel* channel);

// The innermost message on the library's error stack of this thread.
[[nodiscard]] std::string library_reason();

// Bob Jenkins' lookup3 (hashlittle, initial value 0): the checksum of HDF5's metadata.
[[nodiscard]] std::uint32_t metadata_checksum(std::span<const std::byte> bytes);
// Links of a group that is written, beside those that the library knows: it makes room for a few at a time, and looks
// at all that it has made before it makes more, so that 5,000 links take it half a minute.
struct ManyLinks {
    std::uint64_t group = 0;                         // address of its object header
    std::map<std::string, std::uint64_t> addresses;  // of object headers, by name
};
// Appends them to the group's header: in one piece, at the end of the file, which the library has closed.
Status write_links(ByteStore& store, const std::string& path, const ManyLinks& links);

// Checks the superblock of an HDF5 file: version 2 or 3, checksum, closed by its writer, size.
struct Superblock {
    std::uint64_t root = 0;      // address of the root group's header
    bool has_extension = false;  // it may say that metadata are not where they seem to be
};
Result<Superblock> check_superblock(ByteStore& store);
Status set_end(ByteStore& store, std::uint64_t bytes);  // of the file, as the superblock has it

// Of object headers, as files number them.
struct MessageType {
    enum : std::uint8_t {
        nothing = 0,
        dataspace = 1,
        link_info = 2,
        datatype = 3,
        fill_value = 5,
        link = 6,
        external_files = 7,
        layout = 8,
        filters = 11,
        attribute = 12,
        continuation = 16,
        attribute_info = 21
    };
};
inline constexpr std::size_t message_head_bytes = 4;              // without a creation order
inline constexpr std::size_t continuation_bytes = 16;             // of that message: u64 address, u64 length
inline constexpr std::size_t max_header_chunk_bytes = 16U << 20;  // in one piece

// Of a datatype message, as files number them.
struct TypeClass {
    enum : std::uint8_t { fixed_point = 0, floating_point = 1, string = 3, enumeration = 8, variable_length = 9 };
};

// What an object header says. All that a file of ours says is in its headers, and is read from here: the library takes
// twenty times as long. It is asked about the rest, and says what is wrong.
struct ObjectHeader {
    struct Attribute {
        std::string_view name;
        std::span<const std::byte> type, space, data;
    };
    struct Link {
        std::string_view name;
        std::uint64_t address = 0;  // of an object header of this file
    };
    struct Chunk {
        std::uint64_t address = 0;
        std::vector<std::byte> bytes;  // the checksum is the last of them
    };
    // A message that says nothing, with room for a continuation.
    struct Spare {
        std::size_t chunk = 0, at = 0;
    };
    std::vector<Chunk> chunks;  // that all else lies in
    std::optional<Spare> spare;
    std::vector<Attribute> attributes;
    std::vector<Link> links;                       // by name
    bool all_attributes = true, all_links = true;  // none are elsewhere, or of a kind that is not read here
    bool is_group = false;
    std::span<const std::byte> space, type, layout;  // of a dataset
    bool plain_data = true;                          // no filters, nothing in another file

    [[nodiscard]] const Attribute* attribute(std::string_view name) const noexcept;
    [[nodiscard]] const Link* link(std::string_view name) const noexcept;
};
// Checks the object header at `address` for whatever the library would follow blindly; `path` is for messages.
Result<std::shared_ptr<const ObjectHeader>> read_header(ByteStore& store, std::uint64_t address,
                                                        const std::string& path);

// What messages of a header stand for; nullopt: it is for the library to say.
struct PlainData {
    Element element = Element::f32;
    std::vector<std::uint64_t> shape;
    std::uint64_t offset = 0, bytes = 0;
};
[[nodiscard]] std::optional<PlainData> plain_data(const ObjectHeader& header);
[[nodiscard]] std::optional<std::int64_t> plain_integer(const ObjectHeader::Attribute& attribute);
[[nodiscard]] std::optional<double> plain_number(const ObjectHeader::Attribute& attribute);
[[nodiscard]] std::optional<bool> plain_boolean(const ObjectHeader::Attribute& attribute);
[[nodiscard]] std::optional<std::span<const std::byte, heap_reference_bytes>> plain_string(
    const ObjectHeader::Attribute& attribute);  // of variable length: where it lies

// Registers the conversion that hands out where a variable-length string lies, instead of following it.
// False where the library refuses.
[[nodiscard]] bool register_heap_reference_conversion();
// H5T_OPAQUE of this tag and size is the conversion's destination.
inline constexpr const char* heap_reference_tag = "hetero heap reference";

}  // namespace hetero::io::h5
