#include "io/safetensors.h"

#include <sys/stat.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "base/printable.h"
#include "io/mapped_file.h"
#include "io/safetensors_header.h"
#include "io/safetensors_types.h"

namespace hetero::io {
namespace {

static_assert(std::endian::native == std::endian::little, "safetensors is little-endian and read in place");

constexpr std::uint64_t max_header_bytes = 100'000'000;  // as in the reference implementation

struct Entry {
    TensorView view;
    std::string stored_type;
    bool supported = false;  // there is a DType for it
};
using Entries = std::map<std::string, Entry, std::less<>>;

class Shard {
public:
    static Result<Shard> open(const std::string& path);
    Entries entries;
    [[nodiscard]] const std::string& path() const { return file_.path(); }
    bool forget(std::span<const std::byte> data) const { return file_.forget(data); }

private:
    Status place(std::uint64_t data_begin);
    Status check_size(const HeaderTensor& tensor) const;
    void add(const HeaderTensor& tensor, std::span<const std::byte> data);

    MappedFile file_;
    std::vector<HeaderTensor> tensors_;
    std::vector<std::unique_ptr<std::byte[]>> realigned_;
};

Result<Shard> Shard::open(const std::string& path) {
    Shard shard;
    HETERO_TRY(shard.file_, MappedFile::open(path));
    const std::span<const std::byte> bytes = shard.file_.bytes();
    std::uint64_t header_bytes = 0;
    if (bytes.size() < sizeof header_bytes + 2) {
        return fail(Errc::bad_input,
                    "{}: is too short for safetensors: it has {} bytes, and the shortest possible header takes {}",
                    path, bytes.size(), sizeof header_bytes + 2);
    }
    std::memcpy(&header_bytes, bytes.data(), sizeof header_bytes);
    if (header_bytes > max_header_bytes) {
        return fail(Errc::bad_input,
                    "{}: announces a header of {} bytes, above the limit of {}; it is damaged or not safetensors", path,
                    header_bytes, max_header_bytes);
    }
    if (header_bytes > bytes.size() - sizeof header_bytes) {
        return fail(Errc::bad_input, "{}: announces a header of {} bytes, but only {} follow; fetch it again", path,
                    header_bytes, bytes.size() - sizeof header_bytes);
    }
    const std::string_view header(reinterpret_cast<const char*>(bytes.data() + sizeof header_bytes), header_bytes);
    HETERO_TRY(shard.tensors_, parse_safetensors_header(header, path));
    HETERO_CHECK(shard.place(sizeof header_bytes + header_bytes));
    return shard;
}

// The byte range must be what shape and type say.
Status Shard::check_size(const HeaderTensor& tensor) const {
    const SafetensorsType* type = safetensors_type(tensor.dtype);
    if (type == nullptr) return {};  // its size is unknown; refused when it is asked for
    std::uint64_t bits = type->bits;
    bool empty = false;
    for (const std::uint64_t size : tensor.shape) {
        // An empty dimension must not hide that the others are beyond all bounds.
        if (__builtin_mul_overflow(bits, std::max<std::uint64_t>(size, 1), &bits)) {
            return fail(Errc::bad_input, "{}: tensor '{}' has more elements than can be counted", path(),
                        printable(tensor.name));
        }
        empty = empty || size == 0;
    }
    if (empty) bits = 0;
    const std::uint64_t bytes = tensor.end - tensor.begin;
    if (bits % 8 != 0 || bits / 8 != bytes) {
        return fail(Errc::bad_input,
                    "{}: tensor '{}' of type {} and shape [{}] takes {} bits, but its range has {} bytes", path(),
                    printable(tensor.name), tensor.dtype, fmt::join(tensor.shape, ", "), bits, bytes);
    }
    return {};
}

// The format wants the data to be covered exactly: no gap, no overlap, nothing after the last tensor.
Status Shard::place(std::uint64_t data_begin) {
    const std::span<const std::byte> data = file_.bytes().subspan(data_begin);
    std::sort(tensors_.begin(), tensors_.end(), [](const HeaderTensor& a, const HeaderTensor& b) {
        return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
    });
    std::uint64_t covered = 0;
    for (const HeaderTensor& tensor : tensors_) {
        if (tensor.end < tensor.begin) {
            return fail(Errc::bad_input, "{}: tensor '{}' ends at {}, before it begins at {}", path(),
                        printable(tensor.name), tensor.end, tensor.begin);
        }
        if (tensor.end > data.size()) {
            return fail(Errc::bad_input,
                        "{}: is too short: it has {} bytes of data, tensor '{}' needs bytes {} to {}; fetch it again",
                        path(), data.size(), printable(tensor.name), tensor.begin, tensor.end);
        }
        if (tensor.begin != covered) {
            return fail(Errc::bad_input, "{}: tensor '{}' begins at {}, but the data before it ends at {}: {}", path(),
                        printable(tensor.name), tensor.begin, covered,
                        tensor.begin < covered ? "they overlap" : "bytes that belong to no tensor are not allowed");
        }
        covered = tensor.end;
        HETERO_CHECK(check_size(tensor));
    }
    if (covered != data.size()) {
        return fail(Errc::bad_input, "{}: has {} bytes of data, but its tensors end at {}", path(), data.size(),
                    covered);
    }
    for (const HeaderTensor& tensor : tensors_) add(tensor, data.subspan(tensor.begin, tensor.end - tensor.begin));
    tensors_ = {};
    return {};
}

void Shard::add(const HeaderTensor& tensor, std::span<const std::byte> data) {
    const SafetensorsType* type = safetensors_type(tensor.dtype);
    Entry entry;
    entry.view.shape = tensor.shape;
    entry.view.file = path();
    entry.view.bytes = data;
    entry.stored_type = printable(tensor.dtype, 30);
    if (type != nullptr && type->dtype) {
        entry.supported = true;
        entry.view.dtype = *type->dtype;
        // The header may have any length, so that the elements after it lie unaligned in the map. Kernels need them
        // aligned.
        const std::uint32_t element_bytes = type->bits / 8;
        if (!data.empty() && reinterpret_cast<std::uintptr_t>(data.data()) % element_bytes != 0) {
            auto copy = std::make_unique_for_overwrite<std::byte[]>(data.size());
            std::memcpy(copy.get(), data.data(), data.size());
            entry.view.bytes = {copy.get(), data.size()};
            realigned_.push_back(std::move(copy));
        }
    }
    entries.emplace(tensor.name, std::move(entry));
}

class SafetensorsSource final : public TensorSource {
public:
    // `entries` point into `shards`.
    SafetensorsSource(std::string path, std::vector<Shard> shards, Entries entries)
        : path_(std::move(path)), shards_(std::move(shards)), entries_(std::move(entries)) {
        for (const auto& item : entries_) names_.push_back(item.first);
    }

    [[nodiscard]] const TensorView* find(std::string_view name) const override {
        const auto found = entries_.find(name);
        return found == entries_.end() || !found->second.supported ? nullptr : &found->second.view;
    }
    [[nodiscard]] std::string why(std::string_view name) const override {
        const auto found = entries_.find(name);
        if (found == entries_.end()) return fmt::format("{}: there is no tensor '{}'", path_, printable(name));
        if (found->second.supported) return {};
        return fmt::format("{}: tensor '{}' is stored as {}, a type that hetero does not support",
                           found->second.view.file, printable(name), found->second.stored_type);
    }
    [[nodiscard]] const std::vector<std::string>& names() const override { return names_; }
    void forget(const TensorView& view) const override {
        for (const Shard& shard : shards_) {
            if (shard.forget(view.bytes)) return;
        }
    }

private:
    std::string path_;
    std::vector<Shard> shards_;
    Entries entries_;
    std::vector<std::string> names_;
};

bool exists(const std::string& path) {
    struct stat info {};
    return ::stat(path.c_str(), &info) == 0;
}

// The tensors that the index names, taken from their shards.
Result<std::shared_ptr<const TensorSource>> open_sharded(const std::string& folder, const std::string& index_path) {
    HETERO_TRY(const MappedFile index, MappedFile::open(index_path));
    if (index.bytes().size() > max_header_bytes) {
        return fail(Errc::bad_input, "{}: has {} bytes, above the limit of {}", index_path, index.bytes().size(),
                    max_header_bytes);
    }
    const std::string_view text(reinterpret_cast<const char*>(index.bytes().data()), index.bytes().size());
    HETERO_TRY(const WeightMap weight_map, parse_safetensors_index(text, index_path));

    std::map<std::string, std::vector<std::string_view>, std::less<>> tensors_of;
    for (const auto& [tensor, file] : weight_map) tensors_of[file].push_back(tensor);
    for (const auto& [file, names] : tensors_of) {
        if (!exists(folder + "/" + file)) {
            return fail(Errc::bad_input,
                        "{}/{}: is missing; {} names it for {} tensors, '{}' first; fetch the model again", folder,
                        file, index_path, names.size(), printable(names.front()));
        }
    }
    std::vector<Shard> shards;
    Entries entries;
    for (const auto& [file, names] : tensors_of) {
        HETERO_TRY(Shard shard, Shard::open(folder + "/" + file));
        for (const std::string_view name : names) {
            const auto found = shard.entries.find(name);
            if (found == shard.entries.end()) {
                return fail(Errc::bad_input,
                            "{}: does not hold tensor '{}', which {} says it does; fetch the model again", shard.path(),
                            printable(name), index_path);
            }
            entries.emplace(name, std::move(found->second));
        }
        shard.entries.clear();
        shards.push_back(std::move(shard));
    }
    return std::make_shared<const SafetensorsSource>(folder, std::move(shards), std::move(entries));
}

template <class Open>
Result<std::shared_ptr<const TensorSource>> within_memory(const std::string& path, Open open) {
    try {
        return open();
    } catch (const std::bad_alloc&) {
        return fail(Errc::resource, "{}: not enough memory to open it", path);
    }
}

}  // namespace

Result<std::shared_ptr<const TensorSource>> open_safetensors(const std::string& path) {
    return within_memory(path, [&]() -> Result<std::shared_ptr<const TensorSource>> {
        HETERO_TRY(Shard shard, Shard::open(path));
        Entries entries = std::move(shard.entries);
        std::vector<Shard> shards;
        shards.push_back(std::move(shard));
        return std::make_shared<const SafetensorsSource>(path, std::move(shards), std::move(entries));
    });
}

Result<std::shared_ptr<const TensorSource>> open_safetensors_folder(const std::string& folder) {
    const std::string single = folder + "/model.safetensors";
    const std::string index = folder + "/model.safetensors.index.json";
    if (exists(single)) return open_safetensors(single);
    if (exists(index)) return within_memory(folder, [&] { return open_sharded(folder, index); });
    return fail(Errc::bad_input, "{}: holds neither model.safetensors nor model.safetensors.index.json", folder);
}

}  // namespace hetero::io
