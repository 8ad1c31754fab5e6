// The part of HDF5 that hetero needs, over the C library: groups, scalar attributes, and contiguous datasets without
// filters. No HDF5 header and no HDF5 type is seen outside lib/io.
//
// Three things differ from plain use of the library, each for cause:
// - Bytes go through a ByteStore instead of the library's own drivers. So no file lock is ever taken (on shared file
//   systems locks fail, and a viewer may hold one), an image in memory is used in place, and a failed write is known
//   with the system's reason, also where H5Fclose hides it.
// - Only superblock versions 2 and 3 are opened: from these on, metadata carry checksums. Superblock and object headers
//   are checked before the library decodes them, as it follows wrong sizes beyond what is there. What they say plainly
//   is read from them, so that the library is not even started for a file of ours. Strings of variable length lie in
//   global heaps, which have no checksums: they are read here, every number checked, and never by the library.
// - Numbers are handed over in the file's own type. The library converts nothing: 1.10.8 rounds float to half wrongly.
//
// Format: https://docs.hdfgroup.org/hdf5/develop/_f_m_t3.html
// One File is for one thread at a time. Files of different threads may be used at once: calls of the library take
// turns, bytes of datasets move without it.
#pragma once
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "base/result.h"

namespace hetero::io {

// Where the bytes of a file lie. Errors have the system's reason, not the name.
class ByteStore {
public:
    virtual ~ByteStore() = default;
    [[nodiscard]] virtual std::uint64_t size() const noexcept = 0;
    // All of it, or bad_input. Several threads may read at once while nobody writes.
    virtual Status read_at(std::uint64_t offset, std::span<std::byte> out) = 0;
    virtual Status write_at(std::uint64_t offset, std::span<const std::byte> bytes) = 0;
    // The same, at some time before settle() has returned; until then `owner` keeps the bytes. Errors: of this write or
    // of an earlier one.
    virtual Status write_later(std::uint64_t offset, std::span<const std::byte> bytes,
                               std::shared_ptr<const void> /*owner*/) {
        return write_at(offset, bytes);
    }
    [[nodiscard]] virtual std::uint64_t unsettled() { return 0; }  // of those writes, how many are not done
    virtual Status settle() { return {}; }
    virtual Status resize(std::uint64_t bytes) = 0;
    virtual void expect(std::uint64_t /*bytes*/) noexcept {}  // a hint: about so much will be written
};

// A regular file for reading; missing, not regular, not readable: bad_input.
Result<std::unique_ptr<ByteStore>> open_file_store(const std::string& path);
// An existing file for reading and writing.
Result<std::unique_ptr<ByteStore>> open_writable_file_store(const std::string& path);
// Takes the bytes for reading, or starts empty for writing; `bytes()` gives them.
class MemoryStore final : public ByteStore {
public:
    explicit MemoryStore(std::vector<std::byte> bytes = {}) : bytes_(std::move(bytes)) {}
    [[nodiscard]] std::span<const std::byte> bytes() const noexcept { return bytes_; }
    [[nodiscard]] std::uint64_t size() const noexcept override { return bytes_.size(); }
    Status read_at(std::uint64_t offset, std::span<std::byte> out) override;
    Status write_at(std::uint64_t offset, std::span<const std::byte> bytes) override;
    Status resize(std::uint64_t bytes) override;
    void expect(std::uint64_t bytes) noexcept override;

private:
    std::vector<std::byte> bytes_;
};

namespace h5 {

enum class Element : std::uint8_t { f16, bf16, f32, i8, u8, i32, u32 };
[[nodiscard]] std::string_view element_name(Element element) noexcept;  // "float16", "bfloat16", "int8"
[[nodiscard]] std::size_t element_bytes(Element element) noexcept;

struct Extent {
    Element element = Element::f32;
    std::vector<std::uint64_t> shape;
};

// string: UTF-8 of variable length; bool: the enum FALSE, TRUE that h5py writes.
using Value = std::variant<std::string, std::int64_t, double, bool>;

class File;
struct ManyLinks;
struct ObjectHeader;

// While it lives the calling thread has the library to itself: a row of small calls then takes one turn instead of one
// each. Not to be held while waiting for another thread.
class Turn {
public:
    Turn();

private:
    std::lock_guard<std::recursive_mutex> held_;
};

// An open group or dataset. Closed by its destructor; must not outlive its File.
class Node {
public:
    Node(Node&& other) noexcept;
    Node& operator=(Node&& other) noexcept;
    Node(const Node&) = delete;
    Node& operator=(const Node&) = delete;
    ~Node();

    [[nodiscard]] const std::string& path() const noexcept { return path_; }  // "/sequences/0000"

    // `links`: about how many groups and datasets will be in it. Where they are many, they are there once the file is
    // finished; until then other nodes of this file find them all the same.
    Result<Node> create_group(const std::string& name, std::uint64_t links = 0);
    // Space is taken at once and left unwritten; write() must follow.
    Result<Node> create_dataset(const std::string& name, const Extent& extent);
    Result<Node> open_group(const std::string& name) const;
    // Refuses what is not contiguous, has filters, an element type that is none of ours, or lies outside the file.
    Result<Node> open_dataset(const std::string& name) const;
    [[nodiscard]] bool has(const std::string& name) const noexcept;
    Result<std::uint64_t> link_count() const;  // of a group

    Status set(const std::string& name, const Value& value);  // creates or replaces an attribute
    // nullopt where there is no such attribute; bad_input where it is of another type or not scalar.
    template <class T>
    Result<std::optional<T>> get(const std::string& name) const {
        HETERO_TRY(std::optional<Value> value, read_attribute(name, kind<T>()));
        if (!value) return std::optional<T>{};
        return std::optional<T>(std::move(std::get<T>(*value)));
    }

    // Of datasets only. `bytes` and `out` must have the dataset's size; with an owner they are written by
    // File::finish(), as ByteStore::write_later() does.
    [[nodiscard]] const Extent& extent() const noexcept { return extent_; }
    [[nodiscard]] std::uint64_t bytes() const noexcept { return bytes_; }
    Status write(std::span<const std::byte> bytes, std::shared_ptr<const void> owner = nullptr);
    [[nodiscard]] std::uint64_t offset() const noexcept { return offset_; }  // in the file, of what it has
    Status read(std::span<std::byte> out) const;
    Status read_at(std::uint64_t begin, std::span<std::byte> out) const;  // some of them; by several threads at once

private:
    friend class File;
    enum class Kind { string, integer, number, boolean };
    template <class T>
    static constexpr Kind kind() {
        if constexpr (std::is_same_v<T, std::string>) return Kind::string;
        if constexpr (std::is_same_v<T, std::int64_t>) return Kind::integer;
        if constexpr (std::is_same_v<T, double>) return Kind::number;
        if constexpr (std::is_same_v<T, bool>) return Kind::boolean;
    }
    Node(File* file, std::int64_t id, std::string path, std::shared_ptr<const ObjectHeader> header = nullptr)
        : file_(file), id_(id), path_(std::move(path)), header_(std::move(header)) {}
    // Of the library, which is asked to open the object where it has not been yet; below 0: it cannot.
    [[nodiscard]] std::int64_t id() const;
    Result<std::optional<Value>> read_attribute(const std::string& name, Kind kind) const;
    Result<std::optional<Value>> ask_attribute(const std::string& name, Kind kind) const;  // the library
    [[nodiscard]] std::string child_path(const std::string& name) const;
    Status link(const std::string& name, std::int64_t child);  // where links are many
    // That it is there and safe to open. While the file is written: null.
    Result<std::shared_ptr<const ObjectHeader>> check_child(const std::string& name, const std::string& path) const;
    // Fills extent_, bytes_ and offset_.
    Status ask_extent();  // the library
    Status place(std::uint64_t offset, std::optional<std::uint64_t> bytes);

    File* file_;
    mutable std::int64_t id_;
    std::string path_;
    std::shared_ptr<const ObjectHeader> header_;  // null: the library is asked about everything
    ManyLinks* many_ = nullptr;                   // of a group that is written and has them
    Extent extent_;
    std::uint64_t bytes_ = 0;
    std::uint64_t offset_ = 0;
};

class File {
public:
    // For reading. Refuses other kinds of files, older superblocks, damaged superblocks, files that their writer has
    // not closed ("not complete"), truncated files and bytes after the end.
    static Result<std::unique_ptr<File>> open(std::unique_ptr<ByteStore> store);
    static Result<std::unique_ptr<File>> create(std::unique_ptr<ByteStore> store);
    ~File();
    File(const File&) = delete;
    File& operator=(const File&) = delete;

    Result<Node> root();
    [[nodiscard]] std::uint64_t size() const noexcept { return store_->size(); }

    // Writes everything out, closes the HDF5 side, and reports any write that failed since create(). Nodes must be
    // closed. The store stays, to be read again.
    Status finish();
    [[nodiscard]] std::unique_ptr<ByteStore> release_store() { return std::move(store_); }  // after finish()

    struct Channel;  // what the driver sees of this file

private:
    friend class Node;
    explicit File(std::unique_ptr<ByteStore> store);
    // Of the library, which opens a file for reading when it is first asked about it; below 0: it cannot.
    [[nodiscard]] std::int64_t id();
    bool close();
    void leave_to_library();  // the library may come back to the channel as long as the process lives
    [[nodiscard]] tl::unexpected<Error> failure(const std::string& what) const;

    std::unique_ptr<ByteStore> store_;
    std::unique_ptr<Channel> channel_;
    std::map<std::string, ManyLinks> many_links_;  // by the group's path
    std::int64_t id_ = -1;
    std::shared_ptr<const ObjectHeader> root_;  // of a file for reading
    bool headers_tell_ = true;                  // false: the library is asked about everything
};

}  // namespace h5
}  // namespace hetero::io
