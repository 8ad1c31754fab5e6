#include "io/gguf.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <new>
#include <utility>

#include "base/printable.h"
#include "io/gguf_metadata.h"
#include "io/gguf_types.h"
#include "io/mapped_file.h"

namespace hetero::io {
namespace {

static_assert(std::endian::native == std::endian::little, "GGUF is little-endian and read in place");

// Far above what any model has; bounds the memory that a file of nothing but tiny entries can ask for.
constexpr std::uint64_t max_entries = 1U << 20;  // metadata keys, and tensors
constexpr std::uint32_t max_dims = 4;
constexpr std::uint64_t header_bytes = 24;

struct TensorInfo {
    std::string_view name;
    const GgmlType* type = nullptr;
    std::vector<std::uint64_t> shape;  // outermost first
    std::uint64_t offset = 0;          // from the start of the data
    std::uint64_t bytes = 0;
};

bool multiply(std::uint64_t& value, std::uint64_t factor) { return !__builtin_mul_overflow(value, factor, &value); }

Result<TensorInfo> read_tensor_info(GgufCursor& in) {
    TensorInfo info;
    HETERO_TRY(info.name, in.read_string());
    const std::string name = printable(info.name);
    if (info.name.empty())
        return fail(Errc::bad_input, "{}: a tensor before byte {} has no name", in.path(), in.position());
    HETERO_TRY(const std::uint32_t n_dims, in.read<std::uint32_t>());
    if (n_dims > max_dims)
        return fail(Errc::bad_input, "{}: tensor '{}' has {} dimensions, at most {} are allowed", in.path(), name,
                    n_dims, max_dims);
    std::uint64_t elements = 1;
    bool empty = false;
    for (std::uint32_t i = 0; i < n_dims; ++i) {
        HETERO_TRY(const std::uint64_t size, in.read<std::uint64_t>());
        // An empty dimension must not hide that the others are beyond all bounds.
        if (!multiply(elements, std::max<std::uint64_t>(size, 1)))
            return fail(Errc::bad_input, "{}: tensor '{}' has more elements than can be counted", in.path(), name);
        info.shape.push_back(size);
        empty = empty || size == 0;
    }
    const std::uint64_t row_elements = info.shape.empty() ? 1 : info.shape.front();
    std::reverse(info.shape.begin(), info.shape.end());

    HETERO_TRY(const std::uint32_t type_number, in.read<std::uint32_t>());
    info.type = ggml_type(type_number);
    if (info.type == nullptr) {
        return fail(Errc::bad_input, "{}: tensor '{}' has type {}, which ggml does not define (or has dropped)",
                    in.path(), name, type_number);
    }
    if (row_elements % info.type->block_elems != 0) {
        return fail(Errc::bad_input, "{}: tensor '{}' has rows of {} elements, not a multiple of the {} of a {} block",
                    in.path(), name, row_elements, info.type->block_elems, info.type->name);
    }
    info.bytes = elements / info.type->block_elems;
    if (!multiply(info.bytes, info.type->block_bytes)) {
        return fail(Errc::bad_input, "{}: tensor '{}' has more bytes than can be counted", in.path(), name);
    }
    if (empty) info.bytes = 0;
    HETERO_TRY(info.offset, in.read<std::uint64_t>());
    return info;
}

struct Entry {
    TensorView view;
    const GgmlType* type;
};

}  // namespace

struct GgufFile::Impl {
    MappedFile file;
    GgufMetadata metadata;
    std::map<std::string, Entry, std::less<>> tensors;
    std::vector<std::string> names;
    std::uint64_t alignment_bytes = 0;

    explicit Impl(MappedFile&& mapped) : file(std::move(mapped)) {}

    Status read();
    Result<std::uint64_t> read_header(GgufCursor& in, std::uint64_t& key_count) const;
    Result<std::uint64_t> alignment() const;
    Status place(const std::vector<TensorInfo>& infos, std::uint64_t position);

    template <class T>
    Result<const T*> look_up(std::string_view key, std::string_view expected) const;
    template <class T>
    Result<std::optional<std::vector<T>>> look_up_array(std::string_view key, GgufArray::Kind kind,
                                                        std::string_view expected) const;
    [[nodiscard]] tl::unexpected<Error> wrong_type(std::string_view key, std::string_view expected,
                                                   const GgufValue& found) const {
        return fail(Errc::bad_input, "{}: metadata '{}' is {}, {} is expected", file.path(), printable(key),
                    gguf_kind_name(found), expected);
    }
};

Status check_count(const GgufCursor& in, std::uint64_t count, std::uint64_t min_bytes, std::string_view what) {
    if (count > in.left() / min_bytes) {
        return fail(Errc::bad_input,
                    "{}: GGUF file is too short or damaged: it announces {} {}, more than its {} bytes can hold",
                    in.path(), count, what, in.position() + in.left());
    }
    if (count > max_entries)
        return fail(Errc::bad_input, "{}: has {} {}, at most {} are supported", in.path(), count, what, max_entries);
    return {};
}

// Returns the number of tensors.
Result<std::uint64_t> GgufFile::Impl::read_header(GgufCursor& in, std::uint64_t& key_count) const {
    constexpr std::string_view magic = "GGUF";
    const std::span<const std::byte> bytes = file.bytes();
    const std::size_t shown = std::min(bytes.size(), magic.size());
    if (shown > 0 && std::memcmp(bytes.data(), magic.data(), shown) != 0) {
        return fail(Errc::bad_input, "{}: is not a GGUF file (it does not start with 'GGUF')", file.path());
    }
    if (bytes.size() < header_bytes) {
        return fail(Errc::bad_input,
                    "{}: GGUF file is too short: it has {} bytes, its header alone takes {}; fetch it again",
                    file.path(), bytes.size(), header_bytes);
    }
    HETERO_CHECK(in.read<std::uint32_t>());
    HETERO_TRY(const std::uint32_t version, in.read<std::uint32_t>());
    if (version != 2 && version != 3) {
        const bool swapped = version == 0x02000000U || version == 0x03000000U;
        return fail(Errc::bad_input, "{}: GGUF version {} is not supported (2 and 3 are){}", file.path(), version,
                    swapped ? ": it is a big-endian file" : "");
    }
    HETERO_TRY(const std::uint64_t tensor_count, in.read<std::uint64_t>());
    HETERO_TRY(key_count, in.read<std::uint64_t>());
    constexpr std::uint64_t min_key_bytes = 8 + 4 + 1;             // name length, type, value
    constexpr std::uint64_t min_tensor_bytes = 8 + 1 + 4 + 4 + 8;  // name length, name, dimensions, type, offset
    HETERO_CHECK(check_count(in, key_count, min_key_bytes, "metadata keys"));
    HETERO_CHECK(check_count(in, tensor_count, min_tensor_bytes, "tensors"));
    return tensor_count;
}

Result<std::uint64_t> GgufFile::Impl::alignment() const {
    // The format says uint32. An integer of another width with a usable value leaves nothing to guess, so it is taken.
    HETERO_TRY(const std::int64_t* stored, look_up<std::int64_t>("general.alignment", "an integer"));
    if (stored == nullptr) return 32;
    const std::int64_t value = *stored;
    if (value < 8 || value > (1LL << 31) || !std::has_single_bit(static_cast<std::uint64_t>(value))) {
        return fail(Errc::bad_input, "{}: general.alignment is {}, it must be a power of two of at least 8",
                    file.path(), value);
    }
    return static_cast<std::uint64_t>(value);
}

// Checks where each tensor lies and fills `tensors`. `position`: end of the tensor table.
Status GgufFile::Impl::place(const std::vector<TensorInfo>& infos, std::uint64_t position) {
    HETERO_TRY(alignment_bytes, alignment());
    const std::uint64_t align = alignment_bytes;
    const std::span<const std::byte> bytes = file.bytes();
    const std::uint64_t data_begin = (position + align - 1) / align * align;

    const TensorInfo* first_outside = nullptr;
    std::uint64_t needed = data_begin;
    for (const TensorInfo& info : infos) {
        if (info.offset % align != 0) {
            return fail(Errc::bad_input, "{}: tensor '{}' is at offset {}, not a multiple of the alignment {}",
                        file.path(), printable(info.name), info.offset, align);
        }
        std::uint64_t end = 0;
        if (__builtin_add_overflow(data_begin, info.offset, &end) || __builtin_add_overflow(end, info.bytes, &end)) {
            return fail(Errc::bad_input, "{}: tensor '{}' at offset {} with {} bytes ends beyond any file", file.path(),
                        printable(info.name), info.offset, info.bytes);
        }
        if (end > bytes.size() && first_outside == nullptr) first_outside = &info;
        needed = std::max(needed, end);
    }
    if (first_outside != nullptr) {
        return fail(Errc::bad_input,
                    "{}: GGUF file is too short: it has {} bytes and needs {}; '{}' is the first tensor that does not "
                    "fit; fetch "
                    "it again",
                    file.path(), bytes.size(), needed, printable(first_outside->name));
    }

    std::vector<const TensorInfo*> by_offset;
    for (const TensorInfo& info : infos) {
        if (info.bytes > 0) by_offset.push_back(&info);
    }
    std::sort(by_offset.begin(), by_offset.end(), [](auto* a, auto* b) { return a->offset < b->offset; });
    for (std::size_t i = 1; i < by_offset.size(); ++i) {
        const TensorInfo& before = *by_offset[i - 1];
        if (before.offset + before.bytes > by_offset[i]->offset) {
            return fail(Errc::bad_input, "{}: tensors '{}' and '{}' overlap", file.path(), printable(before.name),
                        printable(by_offset[i]->name));
        }
    }

    for (const TensorInfo& info : infos) {
        Entry entry{{}, info.type};
        entry.view.shape = info.shape;
        entry.view.file = file.path();
        if (info.type->dtype) entry.view.dtype = *info.type->dtype;
        if (info.bytes > 0) entry.view.bytes = bytes.subspan(data_begin + info.offset, info.bytes);
        if (!tensors.emplace(info.name, std::move(entry)).second) {
            return fail(Errc::bad_input, "{}: tensor '{}' is there twice", file.path(), printable(info.name));
        }
    }
    for (const auto& item : tensors) names.push_back(item.first);
    return {};
}

Status GgufFile::Impl::read() {
    GgufCursor in(file);
    std::uint64_t key_count = 0;
    HETERO_TRY(const std::uint64_t tensor_count, read_header(in, key_count));
    HETERO_TRY(metadata, read_gguf_metadata(in, key_count));
    std::vector<TensorInfo> infos;
    infos.reserve(tensor_count);
    for (std::uint64_t i = 0; i < tensor_count; ++i) {
        HETERO_TRY(TensorInfo info, read_tensor_info(in));
        infos.push_back(std::move(info));
    }
    return place(infos, in.position());
}

template <class T>
Result<const T*> GgufFile::Impl::look_up(std::string_view key, std::string_view expected) const {
    const auto found = metadata.values.find(key);
    if (found == metadata.values.end()) return nullptr;
    const T* value = std::get_if<T>(&found->second);
    if (value == nullptr) return wrong_type(key, expected, found->second);
    return value;
}

template <class T>
Result<std::optional<std::vector<T>>> GgufFile::Impl::look_up_array(std::string_view key, GgufArray::Kind kind,
                                                                    std::string_view expected) const {
    const auto found = metadata.values.find(key);
    if (found == metadata.values.end()) return std::nullopt;
    const GgufArray* array = std::get_if<GgufArray>(&found->second);
    if (array == nullptr || array->kind != kind) return wrong_type(key, expected, found->second);
    return read_gguf_array<T>(file, *array);
}

GgufFile::GgufFile(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
GgufFile::~GgufFile() = default;

Result<std::shared_ptr<const GgufFile>> GgufFile::open(const std::string& path) {
    HETERO_TRY(MappedFile file, MappedFile::open(path));
    try {
        auto impl = std::make_unique<Impl>(std::move(file));
        HETERO_CHECK(impl->read());
        return std::make_shared<const GgufFile>(std::move(impl));
    } catch (const std::bad_alloc&) {
        return fail(Errc::resource, "{}: not enough memory for its metadata", path);
    }
}

const std::string& GgufFile::path() const noexcept { return impl_->file.path(); }
const std::map<std::string, GgufValue, std::less<>>& GgufFile::metadata() const noexcept {
    return impl_->metadata.values;
}
const std::vector<GgufRawKey>& GgufFile::raw_metadata() const noexcept { return impl_->metadata.raw; }
std::uint64_t GgufFile::alignment_bytes() const noexcept { return impl_->alignment_bytes; }

Result<std::optional<std::int64_t>> GgufFile::integer(std::string_view key) const {
    HETERO_TRY(const std::int64_t* value, impl_->look_up<std::int64_t>(key, "an integer below 2^63"));
    return value == nullptr ? std::nullopt : std::optional(*value);
}

Result<std::optional<double>> GgufFile::number(std::string_view key) const {
    const auto found = impl_->metadata.values.find(key);
    if (found == impl_->metadata.values.end()) return std::nullopt;
    if (const auto* value = std::get_if<double>(&found->second)) return *value;
    if (const auto* value = std::get_if<std::int64_t>(&found->second)) return static_cast<double>(*value);
    if (const auto* value = std::get_if<std::uint64_t>(&found->second)) return static_cast<double>(*value);
    return impl_->wrong_type(key, "a number", found->second);
}

Result<std::optional<bool>> GgufFile::boolean(std::string_view key) const {
    HETERO_TRY(const bool* value, impl_->look_up<bool>(key, "a boolean"));
    return value == nullptr ? std::nullopt : std::optional(*value);
}

Result<std::optional<std::string_view>> GgufFile::string(std::string_view key) const {
    HETERO_TRY(const std::string_view* value, impl_->look_up<std::string_view>(key, "a string"));
    return value == nullptr ? std::nullopt : std::optional(*value);
}

Result<std::optional<std::vector<std::string_view>>> GgufFile::strings(std::string_view key) const {
    return impl_->look_up_array<std::string_view>(key, GgufArray::Kind::strings, "an array of strings");
}

Result<std::optional<std::vector<std::int64_t>>> GgufFile::integers(std::string_view key) const {
    return impl_->look_up_array<std::int64_t>(key, GgufArray::Kind::integers, "an array of integers");
}

Result<std::optional<std::vector<double>>> GgufFile::numbers(std::string_view key) const {
    return impl_->look_up_array<double>(key, GgufArray::Kind::floats, "an array of floats");
}

const TensorView* GgufFile::find(std::string_view name) const {
    const auto found = impl_->tensors.find(name);
    return found == impl_->tensors.end() || !found->second.type->dtype ? nullptr : &found->second.view;
}

std::string GgufFile::why(std::string_view name) const {
    const auto found = impl_->tensors.find(name);
    if (found == impl_->tensors.end()) return fmt::format("{}: there is no tensor '{}'", path(), printable(name));
    if (found->second.type->dtype) return {};
    return fmt::format("{}: tensor '{}' is stored as {}, a type that hetero does not support", path(), printable(name),
                       found->second.type->name);
}

const std::vector<std::string>& GgufFile::names() const { return impl_->names; }

void GgufFile::forget(const TensorView& view) const { impl_->file.forget(view.bytes); }

}  // namespace hetero::io
