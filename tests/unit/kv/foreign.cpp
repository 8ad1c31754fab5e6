// Files that other programs have made or changed by means of the HDF5 library.
#include <hdf5.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "h5_edit.h"

using namespace hetero;
using namespace hetero::test;

namespace {

kv::State two_layers() {
    Plan plan;
    plan.k = int8_scheme(quant::Axis::token, 4, true);
    return make_state(plan);
}

Result<kv::State> after(const std::function<void(hid_t file)>& change) { return test::after(two_layers(), change); }

}  // namespace

TEST_CASE("a larger minor version is read, and unknown names are ignored") {
    const kv::State state = two_layers();
    const auto back = test::after(state, [](hid_t file) {
        set_integer(file, "/", "schema_minor", 7);
        set_text(file, "/", "from_the_future", "yes");
        set_text(file, "/sequences/0000/layers/000/k", "colour", "blue");
        replace_dataset(file, "/sequences/0000/layers/000/new_array", H5T_STD_I64BE, {3, 2});
        replace_dataset(file, "/sequences/0000/mask", H5T_STD_U8LE, {9}, 3, 1);
    });
    REQUIRE_MESSAGE(back.has_value(), back.error().message);
    CHECK(difference(state, *back) == "");
}

TEST_CASE("the HDF5 library finds many sequences, and adds to them and takes away") {
    Plan plan;
    plan.n_layers = 1;
    plan.vocab_size = 600;
    plan.logits = false;
    plan.lengths.assign(300, 2);
    const kv::State state = make_state(plan);
    const auto back = test::after(state, [](hid_t file) {
        for (const char* name : {"/sequences", "/integrity"}) {
            H5G_info_t info{};
            REQUIRE(H5Gget_info_by_name(file, name, &info, H5P_DEFAULT) >= 0);
            CHECK(info.nlinks == 300);
        }
        CHECK(get_integer(file, "/sequences/0299", "n_tokens") == 2);
        for (int i = 0; i < 100; ++i)
            replace_dataset(file, fmt::format("/sequences/mine {}", i).c_str(), H5T_STD_U8LE, {9}, 3, 1);
        set_text(file, "/sequences/0150", "colour", "blue");
    });
    REQUIRE_MESSAGE(back.has_value(), back.error().message);
    CHECK(difference(state, *back) == "");
    check_refused(test::after(state, [](hid_t file) { H5Ldelete(file, "/sequences/0123", H5P_DEFAULT); }),
                  {"n_sequences of / is 300, /sequences has 299 groups"});
}

TEST_CASE("a larger major version is refused, with both versions") {
    check_refused(after([](hid_t file) { set_integer(file, "/", "schema_major", 2); }), {"2.0", "version 1"});
    check_refused(after([](hid_t file) { set_integer(file, "/", "schema_major", 0); }), {"0.0", "no such version"});
    check_refused(after([](hid_t file) { set_integer(file, "/", "schema_minor", -1); }), {"1.-1"});
}

TEST_CASE("a partial state is refused") {
    check_refused(after([](hid_t file) { set_text(file, "/", "state", "partial"); }), {"not complete", "partial"});
}

TEST_CASE("changed attributes and arrays are found, with what was expected") {
    check_refused(after([](hid_t file) { set_number(file, "rope_theta", 100000); }), {"compat_hash"});
    check_refused(after([](hid_t file) { set_text(file, "/", "model_id", "another"); }), {"root of /integrity"});
    check_refused(after([](hid_t file) { set_text(file, "/", "provenance", ""); }), {"root of /integrity"});
    check_refused(after([](hid_t file) { set_integer(file, "/sequences/0000", "pending_token", 3); }),
                  {"root of /integrity"});
    check_refused(after([](hid_t file) { set_integer(file, "/sequences/0000/layers/001/k", "group", 8); }),
                  {"root of /integrity"});
    check_refused(after([](hid_t file) { set_integer(file, "/sequences/0000", "next_position", 6); }),
                  {"next_position", "6", "5"});
    check_refused(after([](hid_t file) { set_text(file, "/", "rope_convention", "interleaved"); }),
                  {"rope_convention", "interleaved", "half-split"});
    check_refused(after([](hid_t file) { set_integer(file, "/", "tp_size", 2); }), {"root of /integrity"});
    check_refused(after([](hid_t file) { H5Ldelete(file, "/sequences/0000/layers/001/k_scale", H5P_DEFAULT); }),
                  {"/sequences/0000/layers/001/k_scale is missing"});
    check_refused(after([](hid_t file) { H5Ldelete(file, "/integrity", H5P_DEFAULT); }), {"/integrity is missing"});
    check_refused(after([](hid_t file) { H5Adelete(file, "arch"); }), {"attribute arch of / is missing"});
    check_refused(after([](hid_t file) { set_text(file, "/", "n_layers", "2"); }),
                  {"attribute n_layers of /", "integer"});
}

TEST_CASE("numbers that lie are refused before memory is taken for them") {
    constexpr std::int64_t huge = 0x7FFFFFFF;
    check_refused(after([](hid_t file) { set_integer(file, "/sequences/0000", "n_tokens", huge); }), {"2147483647"});
    check_refused(after([](hid_t file) { set_integer(file, "/", "n_sequences", huge); }), {"n_sequences"});
    check_refused(after([](hid_t file) { set_integer(file, "/", "n_layers", huge); }), {});
    check_refused(after([](hid_t file) { set_integer(file, "/", "n_layers", -1); }), {"n_layers", "-1"});
    check_refused(after([](hid_t file) { set_integer(file, "/", "n_layers", INT64_MIN); }), {"n_layers"});
    check_refused(after([](hid_t file) { set_integer(file, "/", "tokens_per_chunk", 0); }), {"tokens_per_chunk"});
    check_refused(after([](hid_t file) { replace_dataset(file, "/sequences/0000/tokens", H5T_STD_I32LE, {5}, 1); }),
                  {"/sequences/0000/tokens", "chunks"});
    // Shapes whose product wraps to a small number, on storage that is there.
    check_refused(after([](hid_t file) {
                      H5Ldelete(file, "/sequences/0000/tokens", H5P_DEFAULT);
                      const hsize_t shape[] = {hsize_t{1} << 40};
                      const hid_t space = H5Screate_simple(1, shape, nullptr);
                      const hid_t dataset = H5Dcreate2(file, "/sequences/0000/tokens", H5T_STD_I32LE, space,
                                                       H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT);
                      REQUIRE(dataset >= 0);
                      H5Dclose(dataset);
                      H5Sclose(space);
                  }),
                  {"/sequences/0000/tokens", "do not lie within the file"});
}

TEST_CASE("arrays of another type, shape or storage are refused with both") {
    const char* k = "/sequences/0000/layers/000/v";  // f16 [5][2][8]
    check_refused(after([&](hid_t file) { replace_dataset(file, k, H5T_IEEE_F32LE, {5, 2, 8}); }), {k});
    check_refused(after([&](hid_t file) { replace_dataset(file, k, H5T_IEEE_F64LE, {5, 2, 8}); }), {k, "type"});
    check_refused(after([&](hid_t file) { replace_dataset(file, k, H5T_IEEE_F32BE, {5, 2, 8}); }), {k, "type"});
    check_refused(after([&](hid_t file) { replace_dataset(file, k, H5T_IEEE_F32LE, {5, 2, 8}, 5, 6); }), {k, "chunks"});
    check_refused(after([&](hid_t file) {
                      H5Ldelete(file, k, H5P_DEFAULT);
                      H5Lcreate_soft("/nowhere", file, k, H5P_DEFAULT, H5P_DEFAULT);
                  }),
                  {k});
    check_refused(after([&](hid_t file) {
                      H5Ldelete(file, k, H5P_DEFAULT);
                      H5Lcreate_hard(file, "/sequences", file, k, H5P_DEFAULT, H5P_DEFAULT);
                  }),
                  {k, "not a dataset"});
}

TEST_CASE("one sequence under many names does not multiply in memory") {
    check_refused(after([](hid_t file) {
                      for (const char* name : {"/sequences/0001", "/sequences/0002"})
                          H5Lcreate_hard(file, "/sequences/0000", file, name, H5P_DEFAULT, H5P_DEFAULT);
                      set_integer(file, "/", "n_sequences", 3);
                  }),
                  {"/sequences/0001", "a second sequence has the id"});
}

TEST_CASE("one layer under many names does not multiply the state") {
    Plan plan;
    plan.lengths = {2000};  // the layers are most of the file
    plan.logits = false;
    const kv::State state = make_state(plan);
    const TempDir folder;
    const std::string path = folder / "a.h5";
    save(state, path);
    constexpr std::uint32_t many = 20;
    const hid_t file = H5Fopen(path.c_str(), H5F_ACC_RDWR, H5P_DEFAULT);
    REQUIRE(file >= 0);
    const std::string layers = "/sequences/0000/layers/";
    for (std::uint32_t i = plan.n_layers; i < many; ++i) {
        REQUIRE(H5Lcreate_hard(file, (layers + "000").c_str(), file, fmt::format("{}{:03}", layers, i).c_str(),
                               H5P_DEFAULT, H5P_DEFAULT) >= 0);
    }
    kv::Identity identity = state.header.identity;
    identity.n_layers = many;
    for (const char* name : {"n_layers", "layer_count"}) set_integer(file, "/", name, many);
    set_text(file, "/", "compat_hash", to_hex(kv::compat_hash(identity)).c_str());
    REQUIRE(H5Fclose(file) >= 0);
    // Whoever makes such a file makes its checksums too.
    const auto opened = kv::open_file(path, kv::Verify::structure_only);
    REQUIRE_FALSE(opened);
    CHECK(opened.error().code == Errc::bad_input);
    CHECK_MESSAGE(opened.error().message.find("arrays overlap") != std::string::npos, opened.error().message);
}

TEST_CASE("more layers than a state may have are refused before any is opened") {
    constexpr std::uint32_t many = 20000;
    kv::Identity identity = two_layers().header.identity;
    identity.n_layers = many;
    check_refused(after([&](hid_t file) {
                      for (const char* name : {"n_layers", "layer_count"}) set_integer(file, "/", name, many);
                      set_text(file, "/", "compat_hash", to_hex(kv::compat_hash(identity)).c_str());
                  }),
                  {"n_layers is 20000"});
}

TEST_CASE("HDF5 files of others are refused as such") {
    const TempDir folder;
    for (const bool recent : {true, false}) {
        CAPTURE(recent);
        const std::string path = folder / (recent ? "recent.h5" : "old.h5");
        const hid_t access = H5Pcreate(H5P_FILE_ACCESS);
        if (recent) H5Pset_libver_bounds(access, H5F_LIBVER_V110, H5F_LIBVER_V110);
        const hid_t file = H5Fcreate(path.c_str(), H5F_ACC_EXCL, H5P_DEFAULT, access);
        REQUIRE(file >= 0);
        replace_dataset(file, "/values", H5T_IEEE_F32LE, {3, 100, 64});
        H5Fclose(file);
        H5Pclose(access);
        check_refused(load(path), {path, recent ? "attribute format of / is missing" : "superblock version 0"});
    }
}

TEST_CASE("a state opens while another process holds a lock on it") {
    const TempDir folder;
    const kv::State state = two_layers();
    save(state, folder / "a.h5");
    const hid_t other = H5Fopen((folder / "a.h5").c_str(), H5F_ACC_RDONLY, H5P_DEFAULT);  // the library locks it
    REQUIRE(other >= 0);
    const auto back = load(folder / "a.h5");
    REQUIRE_MESSAGE(back.has_value(), back.error().message);
    CHECK(difference(state, *back) == "");
    H5Fclose(other);
}

TEST_CASE("a killed writer leaves a temporary that is refused as not complete") {
    const TempDir folder;
    Plan plan;
    plan.lengths = {3000};  // enough to have reached the file
    plan.n_layers = 3;
    const kv::State state = make_state(plan);
    const pid_t child = ::fork();
    REQUIRE(child >= 0);
    if (child == 0) {
        auto sink = kv::create_file(folder / "a.h5", io::Overwrite::refuse);
        if (!sink || !(*sink)->begin(state.header) || !(*sink)->write_layer(state.layers[0][0])) ::_exit(1);
        ::kill(::getpid(), SIGKILL);
    }
    int status = 0;
    REQUIRE(::waitpid(child, &status, 0) == child);
    REQUIRE(WIFSIGNALED(status));
    const auto names = folder.names();
    REQUIRE(names.size() == 1);
    CHECK(names[0] != "a.h5");
    CHECK(std::filesystem::file_size(folder / names[0]) > 3000 * 16);
    check_refused(load(folder / names[0]), {"not complete"});
    save(state, folder / "a.h5");  // and does not hinder the next one
    CHECK(load(folder / "a.h5").has_value());
}

TEST_CASE("where the system refuses to write, the reason is told and nothing is left") {
    const TempDir folder;
    Plan plan;
    plan.lengths = {4000};
    const kv::State state = make_state(plan);
    const pid_t child = ::fork();
    REQUIRE(child >= 0);
    if (child == 0) {
        ::signal(SIGXFSZ, SIG_IGN);
        const rlimit limit{100000, 100000};
        ::setrlimit(RLIMIT_FSIZE, &limit);
        auto sink = kv::create_file(folder / "a.h5", io::Overwrite::refuse);
        if (!sink) ::_exit(2);
        const auto written = kv::write_all(state, **sink);
        const bool told = !written && written.error().code == Errc::resource &&
                          written.error().message.find("File too large") != std::string::npos &&
                          written.error().message.find("a.h5") != std::string::npos;
        ::_exit(told ? 0 : 1);
    }
    int status = 0;
    REQUIRE(::waitpid(child, &status, 0) == child);
    REQUIRE(WIFEXITED(status));
    CHECK(WEXITSTATUS(status) == 0);
    CHECK(folder.names().empty());
}
