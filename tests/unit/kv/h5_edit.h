// Changes of files by means of the HDF5 library, as another program would make them.
#pragma once
#include <hdf5.h>

#include <functional>

#include "states.h"

namespace hetero::test {

// Saves a state, lets `change` loose on it, and gives the reader's answer.
inline Result<kv::State> after(const kv::State& state, const std::function<void(hid_t file)>& change) {
    const TempDir folder;
    const std::string path = folder / "a.h5";
    save(state, path);
    const hid_t file = H5Fopen(path.c_str(), H5F_ACC_RDWR, H5P_DEFAULT);
    REQUIRE(file >= 0);
    change(file);
    REQUIRE(H5Fclose(file) >= 0);
    return load(path);
}

inline void set_integer(hid_t file, const char* object, const char* name, std::int64_t value) {
    const hid_t owner = H5Oopen(file, object, H5P_DEFAULT);
    const hid_t attribute = H5Aopen(owner, name, H5P_DEFAULT);
    REQUIRE(attribute >= 0);
    REQUIRE(H5Awrite(attribute, H5T_NATIVE_INT64, &value) >= 0);
    H5Aclose(attribute);
    H5Oclose(owner);
}

inline std::int64_t get_integer(hid_t file, const char* object, const char* name) {
    std::int64_t value = 0;
    const hid_t attribute = H5Aopen_by_name(file, object, name, H5P_DEFAULT, H5P_DEFAULT);
    REQUIRE(attribute >= 0);
    REQUIRE(H5Aread(attribute, H5T_NATIVE_INT64, &value) >= 0);
    H5Aclose(attribute);
    return value;
}

inline void set_number(hid_t file, const char* name, double value) {
    const hid_t attribute = H5Aopen(file, name, H5P_DEFAULT);
    REQUIRE(attribute >= 0);
    REQUIRE(H5Awrite(attribute, H5T_NATIVE_DOUBLE, &value) >= 0);
    H5Aclose(attribute);
}

inline void set_text(hid_t file, const char* object, const char* name, const char* value) {
    const hid_t type = H5Tcopy(H5T_C_S1);
    H5Tset_size(type, H5T_VARIABLE);
    H5Tset_cset(type, H5T_CSET_UTF8);
    const hid_t space = H5Screate(H5S_SCALAR);
    if (H5Aexists_by_name(file, object, name, H5P_DEFAULT) > 0) H5Adelete_by_name(file, object, name, H5P_DEFAULT);
    const hid_t attribute = H5Acreate_by_name(file, object, name, type, space, H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT);
    REQUIRE(attribute >= 0);
    REQUIRE(H5Awrite(attribute, type, &value) >= 0);
    H5Aclose(attribute);
    H5Sclose(space);
    H5Tclose(type);
}

inline std::string get_text(hid_t file, const char* object, const char* name) {
    const hid_t attribute = H5Aopen_by_name(file, object, name, H5P_DEFAULT, H5P_DEFAULT);
    REQUIRE(attribute >= 0);
    const hid_t type = H5Aget_type(attribute);
    char* text = nullptr;
    REQUIRE(H5Aread(attribute, type, &text) >= 0);
    std::string value = text;
    H5free_memory(text);
    H5Tclose(type);
    H5Aclose(attribute);
    return value;
}

// Puts another dataset in the place of one.
inline void replace_dataset(hid_t file, const char* path, hid_t type, std::vector<hsize_t> shape,
                            hsize_t chunk_rows = 0, int gzip = 0) {
    if (H5Lexists(file, path, H5P_DEFAULT) > 0) H5Ldelete(file, path, H5P_DEFAULT);
    const hid_t space = H5Screate_simple(static_cast<int>(shape.size()), shape.data(), nullptr);
    const hid_t list = H5Pcreate(H5P_DATASET_CREATE);
    if (chunk_rows != 0) {
        auto chunk = shape;
        chunk[0] = chunk_rows;
        H5Pset_chunk(list, static_cast<int>(chunk.size()), chunk.data());
    } else {
        H5Pset_alloc_time(list, H5D_ALLOC_TIME_EARLY);
    }
    if (gzip != 0) H5Pset_deflate(list, static_cast<unsigned>(gzip));
    const hid_t dataset = H5Dcreate2(file, path, type, space, H5P_DEFAULT, list, H5P_DEFAULT);
    REQUIRE(dataset >= 0);
    H5Dclose(dataset);
    H5Pclose(list);
    H5Sclose(space);
}

inline void check_refused(const Result<kv::State>& result, std::initializer_list<std::string_view> parts) {
    REQUIRE(!result.has_value());
    CHECK(result.error().code == Errc::bad_input);
    for (const auto part : parts)
        CHECK_MESSAGE(result.error().message.find(part) != std::string::npos, part,
                      " is not in: ", result.error().message);
    CHECK(result.error().message.find('\n') == std::string::npos);
}

}  // namespace hetero::test
