// Groups, datasets and attributes.
#include <algorithm>
#include <array>

#include "io/hdf5_internal.h"

namespace hetero::io::h5 {
namespace {

constexpr std::size_t max_rank = 8;

constexpr std::uint64_t many_links = 64;
// The header of a group of many links has room for so many of so many bytes, for its continuation and some attributes.
constexpr unsigned spare_links = 24, spare_name_bytes = 5;

std::string shape_text(const std::vector<std::uint64_t>& shape) {
    std::string text = "[";
    for (std::size_t i = 0; i < shape.size(); ++i) text += fmt::format("{}{}", i == 0 ? "" : ", ", shape[i]);
    return text + "]";
}

std::optional<haddr_t> address_of(hid_t id) {
#if H5_VERSION_GE(1, 12, 0)
    H5O_info1_t info{};
#else
    H5O_info_t info{};
#endif
    if (H5Oget_info2(id, &info, H5O_INFO_BASIC) < 0) return std::nullopt;
    return info.addr;
}

}  // namespace

Node::Node(Node&& other) noexcept
    : file_(other.file_),
      id_(std::exchange(other.id_, -1)),
      path_(std::move(other.path_)),
      header_(std::move(other.header_)),
      many_(other.many_),
      extent_(std::move(other.extent_)),
      bytes_(other.bytes_),
      offset_(other.offset_) {}

Node& Node::operator=(Node&& other) noexcept {
    if (this != &other) {
        std::swap(file_, other.file_);
        std::swap(id_, other.id_);
        std::swap(path_, other.path_);
        std::swap(header_, other.header_);
        std::swap(many_, other.many_);
        std::swap(extent_, other.extent_);
        std::swap(bytes_, other.bytes_);
        std::swap(offset_, other.offset_);
    }
    return *this;
}

Node::~Node() {
    if (id_ < 0) return;
    const Quiet quiet;
    H5Oclose(id_);
}

std::string Node::child_path(const std::string& name) const { return path_ == "/" ? path_ + name : path_ + "/" + name; }

std::int64_t Node::id() const {
    if (id_ >= 0) return id_;
    const hid_t file = file_->id();
    const Quiet quiet;
    if (file >= 0) id_ = H5Oopen(file, path_.c_str(), H5P_DEFAULT);
    return id_;
}

bool Node::has(const std::string& name) const noexcept {
    if (many_ != nullptr) return many_->addresses.contains(name);
    if (header_ != nullptr && header_->all_links) return header_->link(name) != nullptr;
    const hid_t own = id();
    const Quiet quiet;
    return H5Lexists(own, name.c_str(), H5P_DEFAULT) > 0;
}

Result<std::uint64_t> Node::link_count() const {
    if (many_ != nullptr) return many_->addresses.size();
    if (header_ != nullptr && header_->all_links) return header_->links.size();
    const hid_t own = id();
    const Quiet quiet;
    H5G_info_t info{};
    if (H5Gget_info(own, &info) < 0) return file_->failure(path_ + ": damaged group");
    return info.nlinks;
}

Result<std::shared_ptr<const ObjectHeader>> Node::check_child(const std::string& name, const std::string& path) const {
    if (header_ != nullptr && header_->all_links) {
        const ObjectHeader::Link* link = header_->link(name);
        if (link == nullptr) return fail(Errc::bad_input, "{} is missing", path);
        return read_header(*file_->store_, link->address, path);
    }
    if (many_ != nullptr) {
        if (!has(name)) return fail(Errc::bad_input, "{} is missing", path);
        return nullptr;
    }
    const hid_t own = id();
    const Quiet quiet;
    if (H5Lexists(own, name.c_str(), H5P_DEFAULT) <= 0) return fail(Errc::bad_input, "{} is missing", path);
#if H5_VERSION_GE(1, 12, 0)
    H5L_info1_t link{};
    const herr_t found = H5Lget_info1(own, name.c_str(), &link, H5P_DEFAULT);
#else
    H5L_info_t link{};
    const herr_t found = H5Lget_info(own, name.c_str(), &link, H5P_DEFAULT);
#endif
    if (found < 0) return file_->failure(path + ": damaged link");
    if (link.type != H5L_TYPE_HARD) return fail(Errc::bad_input, "{}: a soft or external link; none is expected", path);
    if (file_->channel_->writable) return nullptr;
    return read_header(*file_->store_, link.u.address, path);
}

// What no link of the library's leads to lives by a count that is raised here.
Status Node::link(const std::string& name, std::int64_t child) {
    const std::optional<haddr_t> address = address_of(child);
    if (has(name) || !address || H5Oincr_refcount(child) < 0)
        return file_->failure(child_path(name) + ": cannot be linked");
    many_->addresses.emplace(name, *address);
    return {};
}

Result<Node> Node::create_group(const std::string& name, std::uint64_t links) {
    const Quiet quiet;
    const std::string path = child_path(name);
    Id creation;
    if (links > many_links) {
        creation = Id(H5Pcopy(library().group_creation.get()));
        if (!creation || H5Pset_est_link_info(creation.get(), spare_links, spare_name_bytes) < 0)
            return file_->failure(path + ": cannot describe the group");
    }
    const hid_t list = creation ? creation.get() : library().group_creation.get();
    const hid_t id = many_ == nullptr ? H5Gcreate2(id_, name.c_str(), H5P_DEFAULT, list, H5P_DEFAULT)
                                      : H5Gcreate_anon(id_, list, H5P_DEFAULT);
    if (id < 0) return file_->failure(path + ": cannot create the group");
    Node node(file_, id, path);
    if (many_ != nullptr) HETERO_CHECK(link(name, id));
    if (links > many_links) {
        const std::optional<haddr_t> address = address_of(id);
        if (!address) return file_->failure(path + ": cannot be found again");
        node.many_ = &file_->many_links_.insert_or_assign(path, ManyLinks{*address, {}}).first->second;
    }
    return node;
}

Result<Node> Node::create_dataset(const std::string& name, const Extent& extent) {
    const Quiet quiet;
    const std::string path = child_path(name);
    const std::vector<hsize_t> dims(extent.shape.begin(), extent.shape.end());
    const Id space(H5Screate_simple(static_cast<int>(dims.size()), dims.data(), nullptr));
    if (!space) return file_->failure(path + ": cannot describe the dataset");
    const hid_t type = library().types[static_cast<std::size_t>(extent.element)].get(),
                list = library().dataset_creation.get();
    const hid_t id = many_ == nullptr ? H5Dcreate2(id_, name.c_str(), type, space.get(), H5P_DEFAULT, list, H5P_DEFAULT)
                                      : H5Dcreate_anon(id_, type, space.get(), list, H5P_DEFAULT);
    if (id < 0) return file_->failure(path + ": cannot create the dataset");
    Node node(file_, id, path);
    if (many_ != nullptr) HETERO_CHECK(link(name, id));
    node.extent_ = extent;
    node.bytes_ = element_bytes(extent.element);
    for (const std::uint64_t n : extent.shape) node.bytes_ *= n;
    if (node.bytes_ == 0) return node;
    node.offset_ = H5Dget_offset(id);
    if (node.offset_ == HADDR_UNDEF) return file_->failure(path + ": the dataset was given no space");
    return node;
}

Result<Node> Node::open_group(const std::string& name) const {
    const std::string path = child_path(name);
    HETERO_TRY(auto header, check_child(name, path));
    if (!file_->headers_tell_) header = nullptr;
    if (header != nullptr && header->is_group) return Node(file_, -1, path, std::move(header));
    const hid_t own = id();
    const Quiet quiet;
    const hid_t opened =
        many_ == nullptr ? H5Gopen2(own, name.c_str(), H5P_DEFAULT) : H5Oopen_by_addr(own, many_->addresses.at(name));
    if (opened < 0) return file_->failure(path + ": damaged, or not a group");
    Node node(file_, opened, path, std::move(header));
    const auto many = file_->many_links_.find(path);
    if (many != file_->many_links_.end()) node.many_ = &many->second;
    return node;
}

Result<Node> Node::open_dataset(const std::string& name) const {
    const std::string path = child_path(name);
    HETERO_TRY(auto header, check_child(name, path));
    if (!file_->headers_tell_) header = nullptr;
    if (header != nullptr) {
        if (auto data = plain_data(*header)) {
            Node node(file_, -1, path, std::move(header));
            node.extent_ = {data->element, std::move(data->shape)};
            HETERO_CHECK(node.place(data->offset, data->bytes));
            return node;
        }
    }
    const hid_t own = id();
    const Quiet quiet;
    const hid_t opened = H5Dopen2(own, name.c_str(), H5P_DEFAULT);
    if (opened < 0) return file_->failure(path + ": damaged, or not a dataset");
    Node node(file_, opened, path, std::move(header));
    HETERO_CHECK(node.ask_extent());
    return node;
}

Status Node::ask_extent() {
    const Id creation(H5Dget_create_plist(id_));
    const Id type(H5Dget_type(id_));
    const Id space(H5Dget_space(id_));
    if (!creation || !type || !space) return file_->failure(path_ + ": damaged dataset");
    if (H5Pget_layout(creation.get()) != H5D_CONTIGUOUS || H5Pget_nfilters(creation.get()) != 0 ||
        H5Pget_external_count(creation.get()) != 0)
        return fail(Errc::bad_input, "{}: stored in chunks, compressed or in another file; contiguous is expected",
                    path_);
    const std::optional<Element> element = element_of(type.get());
    if (!element) return fail(Errc::bad_input, "{}: element type is none that hetero-kv(5) has", path_);
    extent_.element = *element;

    const int rank = H5Sget_simple_extent_ndims(space.get());
    std::array<hsize_t, H5S_MAX_RANK> dims{};
    if (rank < 0 || H5Sget_simple_extent_dims(space.get(), dims.data(), nullptr) != rank)
        return file_->failure(path_ + ": damaged dataset");
    extent_.shape.assign(dims.begin(), dims.begin() + rank);
    return place(H5Dget_offset(id_), std::nullopt);
}

// `bytes`: of its storage, where that is known.
Status Node::place(std::uint64_t offset, std::optional<std::uint64_t> bytes) {
    const std::vector<std::uint64_t>& shape = extent_.shape;
    if (shape.empty() || shape.size() > max_rank)
        return fail(Errc::bad_input, "{}: rank {}, 1 to {} are expected", path_, shape.size(), max_rank);
    const std::uint64_t file_bytes = file_->store_->size();
    bytes_ = element_bytes(extent_.element);
    bool fits = true;
    for (const std::uint64_t n : shape) {
        if (n != 0 && bytes_ > file_bytes / n) fits = false;
        if (fits) bytes_ *= n;
    }
    offset_ = fits && bytes_ == 0 ? 0 : offset;
    if (!fits || offset_ > file_bytes || bytes_ > file_bytes - offset_ || (bytes && bytes_ != *bytes))
        return fail(Errc::bad_input, "{}: {} elements of {} do not lie within the file's {} bytes", path_,
                    shape_text(shape), element_name(extent_.element), file_bytes);
    return {};
}

// Space was taken when the dataset was made, and its bytes are the file's own: the library has no part in writing them.
Status Node::write(std::span<const std::byte> bytes, std::shared_ptr<const void> owner) {
    if (bytes.size() != bytes_)
        return fail(Errc::internal, "{}: {} bytes to write, the dataset has {}", path_, bytes.size(), bytes_);
    if (bytes.empty()) return {};
    File::Channel& channel = *file_->channel_;
    if (!channel.error) {
        const Status status = owner == nullptr ? file_->store_->write_at(offset_, bytes)
                                               : file_->store_->write_later(offset_, bytes, std::move(owner));
        if (!status) channel.error = status.error();
    }
    if (channel.error) return tl::unexpected<Error>(*channel.error);
    return {};
}

Status Node::read(std::span<std::byte> out) const {
    if (out.size() != bytes_)
        return fail(Errc::internal, "{}: {} bytes asked for, the dataset has {}", path_, out.size(), bytes_);
    return read_at(0, out);
}

Status Node::read_at(std::uint64_t begin, std::span<std::byte> out) const {
    if (begin > bytes_ || out.size() > bytes_ - begin)
        return fail(Errc::internal, "{}: {} bytes from {} asked for, the dataset has {}", path_, out.size(), begin,
                    bytes_);
    if (auto status = file_->store_->read_at(offset_ + begin, out); !status) return fail_with(status.error(), path_);
    return {};
}

Status Node::set(const std::string& name, const Value& value) {
    const Quiet quiet;
    hid_t type = -1;
    const void* data = nullptr;
    const char* text = nullptr;
    std::int8_t truth = 0;
    if (const auto* string = std::get_if<std::string>(&value)) {
        if (string->find('\0') != std::string::npos)
            return fail(Errc::bad_input, "attribute {} of {}: text with a NUL cannot be stored", name, path_);
        type = library().string.get();
        text = string->c_str();
        data = &text;
    } else if (const auto* integer = std::get_if<std::int64_t>(&value)) {
        type = H5T_STD_I64LE;
        data = integer;
    } else if (const auto* number = std::get_if<double>(&value)) {
        type = H5T_IEEE_F64LE;
        data = number;
    } else {
        type = library().boolean.get();
        truth = std::get<bool>(value) ? 1 : 0;
        data = &truth;
    }
    Id attribute;
    if (H5Aexists(id_, name.c_str()) > 0) {
        attribute = Id(H5Aopen(id_, name.c_str(), H5P_DEFAULT));
    } else if (const Id space(H5Screate(H5S_SCALAR)); space) {
        attribute = Id(H5Acreate2(id_, name.c_str(), type, space.get(), H5P_DEFAULT, H5P_DEFAULT));
    }
    if (!attribute || H5Awrite(attribute.get(), type, data) < 0 || file_->channel_->error)
        return file_->failure(fmt::format("attribute {} of {}: cannot write", name, path_));
    return {};
}

Result<std::optional<Value>> Node::read_attribute(const std::string& name, Kind kind) const {
    const ObjectHeader::Attribute* attribute = header_ == nullptr ? nullptr : header_->attribute(name);
    if (attribute == nullptr) {
        return header_ != nullptr && header_->all_attributes ? std::optional<Value>{} : ask_attribute(name, kind);
    }
    std::optional<Value> value;
    if (kind == Kind::integer) value = plain_integer(*attribute);
    if (kind == Kind::number) value = plain_number(*attribute);
    if (kind == Kind::boolean) value = plain_boolean(*attribute);
    if (kind == Kind::string) {
        if (const auto reference = plain_string(*attribute)) {
            auto text = file_->channel_->heap.string(*file_->store_, *reference);
            if (!text) return fail_with(text.error(), fmt::format("attribute {} of {}", name, path_));
            value = std::move(*text);
        }
    }
    return value ? value : ask_attribute(name, kind);
}

Result<std::optional<Value>> Node::ask_attribute(const std::string& name, Kind kind) const {
    const hid_t own = id();
    const Quiet quiet;
    const auto damaged = [&] { return file_->failure(fmt::format("attribute {} of {}: damaged", name, path_)); };
    const auto mistyped = [&](std::string_view expected) {
        return fail(Errc::bad_input, "attribute {} of {}: not a single {}", name, path_, expected);
    };
    const htri_t there = H5Aexists(own, name.c_str());
    if (there < 0) return damaged();
    if (there == 0) return std::optional<Value>{};
    const Id attribute(H5Aopen(own, name.c_str(), H5P_DEFAULT));
    if (!attribute) return damaged();
    const Id space(H5Aget_space(attribute.get()));
    const Id type(H5Aget_type(attribute.get()));
    if (!space || !type) return damaged();
    const bool single = H5Sget_simple_extent_npoints(space.get()) == 1;
    const H5T_class_t type_class = H5Tget_class(type.get());
    const std::size_t type_bytes = H5Tget_size(type.get());

    switch (kind) {
        case Kind::integer: {
            std::int64_t value = 0;
            if (!single || type_class != H5T_INTEGER || type_bytes > sizeof value) return mistyped("integer");
            if (H5Aread(attribute.get(), H5T_NATIVE_INT64, &value) < 0) return damaged();
            return Value(value);
        }
        case Kind::number: {
            double value = 0;
            if (!single || type_class != H5T_FLOAT || H5Tequal(type.get(), H5T_IEEE_F64LE) <= 0)
                return mistyped("float64");
            if (H5Aread(attribute.get(), H5T_NATIVE_DOUBLE, &value) < 0) return damaged();
            return Value(value);
        }
        case Kind::boolean: {
            std::int8_t value = 0;
            if (!single || type_class != H5T_ENUM || type_bytes != 1) return mistyped("bool (enum FALSE, TRUE)");
            if (H5Aread(attribute.get(), type.get(), &value) < 0) return damaged();
            if (value != 0 && value != 1) return mistyped("bool (enum FALSE, TRUE)");
            return Value(value == 1);
        }
        case Kind::string:
            break;
    }
    if (!single || type_class != H5T_STRING) return mistyped("string");
    std::string text;
    if (H5Tis_variable_str(type.get()) > 0) {
        std::array<std::byte, heap_reference_bytes> reference{};
        if (H5Aread(attribute.get(), library().heap_reference.get(), reference.data()) < 0) return damaged();
        HeapCollection anew;  // while the file is written, what was read of it may change
        auto found = (file_->channel_->writable ? anew : file_->channel_->heap).string(*file_->store_, reference);
        if (!found) return fail_with(found.error(), fmt::format("attribute {} of {}", name, path_));
        text = std::move(*found);
    } else {
        if (type_bytes > file_->store_->size()) return damaged();
        text.resize(type_bytes);
        if (H5Aread(attribute.get(), type.get(), text.data()) < 0) return damaged();
        text.resize(std::min(text.find('\0'), text.size()));
    }
    return Value(std::move(text));
}

}  // namespace hetero::io::h5
