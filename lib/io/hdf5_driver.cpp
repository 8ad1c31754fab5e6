// A virtual file driver over a ByteStore. It has no lock callback.
#include <algorithm>
#include <cstring>
#include <new>

#include "io/hdf5_internal.h"
#if H5_VERSION_GE(1, 13, 0)
#include <H5FDdevelop.h>
#endif

namespace hetero::io::h5 {
namespace {

struct StoreFile {
    H5FD_t base;  // first: the library casts to it
    File::Channel* channel;
    haddr_t end_of_allocation;
};

StoreFile* self(H5FD_t* file) { return reinterpret_cast<StoreFile*>(file); }
const StoreFile* self(const H5FD_t* file) { return reinterpret_cast<const StoreFile*>(file); }

// A library that is told of a failed write cannot close the file, and at exit follows what is gone by then. So writes
// always succeed as far as it knows; File looks at the channel after each call.
void keep_first(File::Channel& channel, const Status& status) {
    if (!status && !channel.error) channel.error = status.error();
}

H5FD_t* open_callback(const char* /*name*/, unsigned /*flags*/, hid_t access, haddr_t /*max_address*/) {
    const auto* info = static_cast<const DriverInfo*>(H5Pget_driver_info(access));
    if (info == nullptr) return nullptr;
    auto* file = new (std::nothrow) StoreFile{};
    if (file == nullptr) return nullptr;
    file->channel = info->channel;
    return &file->base;
}

herr_t close_callback(H5FD_t* file) {
    delete self(file);
    return 0;
}

int compare_callback(const H5FD_t* left, const H5FD_t* right) {
    const auto a = reinterpret_cast<std::uintptr_t>(self(left)->channel->store);
    const auto b = reinterpret_cast<std::uintptr_t>(self(right)->channel->store);
    return a < b ? -1 : a > b ? 1 : 0;
}

// Small writes are gathered. Small reads are not: the library's accumulator follows addresses that a damaged file gives
// without looking (it crashes on addresses near 2^64), while its plain read compares them with the end of the file.
herr_t query_callback(const H5FD_t* file, unsigned long* flags) {
    if (flags == nullptr) return 0;
    *flags = 0;
    if (file != nullptr && self(file)->channel->writable)
        *flags = H5FD_FEAT_AGGREGATE_METADATA | H5FD_FEAT_ACCUMULATE_METADATA | H5FD_FEAT_AGGREGATE_SMALLDATA;
    return 0;
}

haddr_t get_eoa_callback(const H5FD_t* file, H5FD_mem_t /*type*/) { return self(file)->end_of_allocation; }

herr_t set_eoa_callback(H5FD_t* file, H5FD_mem_t /*type*/, haddr_t address) {
    self(file)->end_of_allocation = address;
    return 0;
}

haddr_t get_eof_callback(const H5FD_t* file, H5FD_mem_t /*type*/) {
    const File::Channel& channel = *self(file)->channel;
    return channel.store == nullptr ? 0 : channel.store->size();
}

herr_t read_callback(H5FD_t* file, H5FD_mem_t /*type*/, hid_t /*dxpl*/, haddr_t address, std::size_t size,
                     void* buffer) {
    // What is allocated and not yet written reads as zeros, as with the library's own drivers.
    File::Channel& channel = *self(file)->channel;
    const std::uint64_t end = channel.store == nullptr ? 0 : channel.store->size();
    const std::size_t there = address >= end ? 0 : std::min<std::uint64_t>(size, end - address);
    auto* out = static_cast<std::byte*>(buffer);
    std::memset(out + there, 0, size - there);
    if (there == 0) return 0;
    const Status status = channel.store->read_at(address, {out, there});
    keep_first(channel, status);
    return status ? 0 : -1;
}

herr_t write_callback(H5FD_t* file, H5FD_mem_t /*type*/, hid_t /*dxpl*/, haddr_t address, std::size_t size,
                      const void* buffer) {
    File::Channel& channel = *self(file)->channel;
    if (channel.error || channel.store == nullptr) return 0;  // the file is lost
    if (!channel.writable) return -1;
    keep_first(channel, channel.store->write_at(address, {static_cast<const std::byte*>(buffer), size}));
    return 0;
}

herr_t truncate_callback(H5FD_t* file, hid_t /*dxpl*/, hbool_t /*closing*/) {
    const StoreFile* store_file = self(file);
    File::Channel& channel = *store_file->channel;
    if (!channel.writable || channel.error || channel.store == nullptr ||
        channel.store->size() == store_file->end_of_allocation)
        return 0;
    keep_first(channel, channel.store->resize(store_file->end_of_allocation));
    return 0;
}

H5FD_class_t driver_class() {
    H5FD_class_t driver{};
#if H5_VERSION_GE(1, 13, 0)
    driver.version = H5FD_CLASS_VERSION;
    driver.value = static_cast<H5FD_class_value_t>(1023);  // 512..65535 are free for drivers outside the library
#endif
    driver.name = "hetero byte store";
    driver.maxaddr = (haddr_t{1} << 62) - 1;
    driver.fc_degree = H5F_CLOSE_WEAK;
    driver.fapl_size = sizeof(DriverInfo);
    driver.open = open_callback;
    driver.close = close_callback;
    driver.cmp = compare_callback;
    driver.query = query_callback;
    driver.get_eoa = get_eoa_callback;
    driver.set_eoa = set_eoa_callback;
    driver.get_eof = get_eof_callback;
    driver.read = read_callback;
    driver.write = write_callback;
    driver.truncate = truncate_callback;
    const H5FD_mem_t map[] = H5FD_FLMAP_DICHOTOMY;
    std::copy(std::begin(map), std::end(map), std::begin(driver.fl_map));
    return driver;
}

}  // namespace

hid_t byte_store_driver() {
    static const H5FD_class_t driver = driver_class();
    static const hid_t id = H5FDregister(&driver);
    return id;
}

}  // namespace hetero::io::h5
