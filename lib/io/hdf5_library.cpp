// Types and property lists of the library, and what its error stack says.
#include <array>
#include <new>

#include "io/hdf5_internal.h"

namespace hetero::io::h5 {
namespace {

std::recursive_mutex turns;

constexpr unsigned max_compact = 65535;        // links and attributes stay in the object header, which is checksummed
constexpr hsize_t align_threshold = 1U << 20;  // arrays from here on start at a page, so that they can be mapped
constexpr hsize_t alignment = 4096;

// Objects are visited once, in order: what the library keeps of them is not to grow with their number. A group of many
// links is a large object that is needed again and again.
constexpr std::size_t metadata_cache_bytes = std::size_t{128} << 10, most_cache_bytes = std::size_t{8} << 20;

struct ElementInfo {
    std::string_view name;
    std::size_t bytes;
};
constexpr std::array<ElementInfo, element_count> elements = {
    {{"float16", 2}, {"bfloat16", 2}, {"float32", 4}, {"int8", 1}, {"uint8", 1}, {"int32", 4}, {"uint32", 4}}};

// A 16-bit float: sign in bit 15, then `exponent_bits`, then the mantissa. Fields go before the size, as the library
// checks them against the size that it has at that moment.
Id small_float(std::size_t exponent_bits, std::size_t bias) {
    Id type(H5Tcopy(H5T_IEEE_F32LE));
    const std::size_t mantissa_bits = 15 - exponent_bits;
    if (!type || H5Tset_fields(type.get(), 15, mantissa_bits, exponent_bits, 0, mantissa_bits) < 0 ||
        H5Tset_precision(type.get(), 16) < 0 || H5Tset_size(type.get(), 2) < 0 || H5Tset_ebias(type.get(), bias) < 0)
        return Id();
    return type;
}

Id element_type(Element element) {
    switch (element) {
        case Element::f16:
            return small_float(5, 15);
        case Element::bf16:
            return small_float(8, 127);
        case Element::f32:
            return Id(H5Tcopy(H5T_IEEE_F32LE));
        case Element::i8:
            return Id(H5Tcopy(H5T_STD_I8LE));
        case Element::u8:
            return Id(H5Tcopy(H5T_STD_U8LE));
        case Element::i32:
            return Id(H5Tcopy(H5T_STD_I32LE));
        case Element::u32:
            return Id(H5Tcopy(H5T_STD_U32LE));
    }
    return Id();
}

// The enum that h5py writes for NumPy's bool.
Id boolean_type() {
    Id type(H5Tenum_create(H5T_STD_I8LE));
    const std::int8_t no = 0;
    const std::int8_t yes = 1;
    if (!type || H5Tenum_insert(type.get(), "FALSE", &no) < 0 || H5Tenum_insert(type.get(), "TRUE", &yes) < 0)
        return Id();
    return type;
}

Id string_type() {
    Id type(H5Tcopy(H5T_C_S1));
    if (!type || H5Tset_size(type.get(), H5T_VARIABLE) < 0 || H5Tset_cset(type.get(), H5T_CSET_UTF8) < 0) return Id();
    return type;
}

bool limit_metadata_cache(hid_t access) {
    H5AC_cache_config_t config{};
    config.version = H5AC__CURR_CACHE_CONFIG_VERSION;
    if (H5Pget_mdc_config(access, &config) < 0) return false;
    config.set_initial_size = true;
    config.initial_size = config.min_size = metadata_cache_bytes;
    config.max_size = most_cache_bytes;
    config.min_clean_fraction = 0;
    config.incr_mode = H5C_incr__off;
    config.flash_incr_mode = H5C_flash_incr__add_space;  // where a single object needs it
    config.decr_mode = H5C_decr__off;
    return H5Pset_mdc_config(access, &config) >= 0;
}

// At exit the library would close what damaged files have left in it, and print that it cannot: it is told not to. A
// program that uses the library before us keeps its clean-up at exit.
Library* start_library() {
    auto* library = new (std::nothrow) Library;  // never freed: used until the process ends
    if (library == nullptr) return nullptr;
    H5dont_atexit();  // has an effect before the library's first use alone
    const Quiet quiet;
    if (H5open() < 0 || byte_store_driver() < 0 || !register_heap_reference_conversion()) return library;
    library->ready = true;
    for (std::size_t i = 0; i < elements.size(); ++i) {
        library->types[i] = element_type(static_cast<Element>(i));
        library->ready = library->ready && library->types[i];
    }
    library->boolean = boolean_type();
    library->string = string_type();
    library->heap_reference = Id(H5Tcreate(H5T_OPAQUE, heap_reference_bytes));
    library->group_creation = creation_list(H5P_GROUP_CREATE);
    library->dataset_creation = creation_list(H5P_DATASET_CREATE);
    library->ready = library->ready && library->boolean && library->string && library->heap_reference &&
                     library->group_creation && library->dataset_creation &&
                     H5Tset_tag(library->heap_reference.get(), heap_reference_tag) >= 0 &&
                     H5Pset_layout(library->dataset_creation.get(), H5D_CONTIGUOUS) >= 0 &&
                     H5Pset_alloc_time(library->dataset_creation.get(), H5D_ALLOC_TIME_EARLY) >= 0 &&
                     H5Pset_fill_time(library->dataset_creation.get(), H5D_FILL_TIME_NEVER) >= 0;
    return library;
}

}  // namespace

Turn::Turn() : held_(turns) {}

Id creation_list(hid_t kind) {
    Id list(H5Pcreate(kind));
    if (!list || H5Pset_attr_phase_change(list.get(), max_compact, 0) < 0) return Id();
    if (H5Pset_obj_track_times(list.get(), false) < 0) return Id();  // the same state gives the same bytes
    if (kind != H5P_DATASET_CREATE && H5Pset_link_phase_change(list.get(), max_compact, 0) < 0) return Id();
    return list;
}

Library& library() {
    static Library* const started = start_library();
    static Library none;
    return started == nullptr ? none : *started;
}

std::optional<Element> element_of(hid_t type) {
    for (std::size_t i = 0; i < elements.size(); ++i)
        if (H5Tequal(library().types[i].get(), type) > 0) return static_cast<Element>(i);
    return std::nullopt;
}

Id access_list(File::Channel* channel) {
    const DriverInfo info{channel};
    Id list(H5Pcreate(H5P_FILE_ACCESS));
    if (!list || H5Pset_driver(list.get(), byte_store_driver(), &info) < 0 ||
        H5Pset_libver_bounds(list.get(), H5F_LIBVER_V110, H5F_LIBVER_V110) < 0 ||
        H5Pset_fclose_degree(list.get(), H5F_CLOSE_STRONG) < 0 ||
        H5Pset_alignment(list.get(), align_threshold, alignment) < 0 || !limit_metadata_cache(list.get()))
        return Id();
    return list;
}

std::string_view element_name(Element element) noexcept { return elements[static_cast<std::size_t>(element)].name; }
std::size_t element_bytes(Element element) noexcept { return elements[static_cast<std::size_t>(element)].bytes; }

std::string library_reason() {
    std::string reason;
    auto innermost = [](unsigned n, const H5E_error2_t* error, void* out) -> herr_t {
        if (n == 0 && error->desc != nullptr) *static_cast<std::string*>(out) = error->desc;
        return 0;
    };
    H5Ewalk2(H5E_DEFAULT, H5E_WALK_UPWARD, innermost, &reason);
    return reason.empty() ? "HDF5 gives no reason" : reason;
}

}  // namespace hetero::io::h5
