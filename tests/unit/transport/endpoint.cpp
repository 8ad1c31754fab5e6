#include "transport/endpoint.h"

#include <doctest/doctest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <set>

#include "io/mapped_file.h"
#include "kv/file.h"
#include "kv/shard_files.h"
#include "kv/shards.h"
#include "support/temp_dir.h"
#include "synthetic_state.h"

using namespace hetero;
using namespace hetero::transport;

namespace {

Endpoint file(const std::string& path) { return {EndpointKind::file, path, -1}; }

}  // namespace

TEST_CASE("endpoints are parsed, and written as they are parsed") {
    const auto check = [](const char* text, EndpointKind kind, int rank) {
        const auto endpoint = parse_endpoint(text);
        REQUIRE_MESSAGE(endpoint, text);
        CHECK(endpoint->kind == kind);
        CHECK(endpoint->rank == rank);
        CHECK(to_string(*endpoint) == text);
    };
    check("a.h5", EndpointKind::file, -1);
    check("./mpi:3", EndpointKind::file, -1);
    check("./-", EndpointKind::file, -1);
    check("MPI:3", EndpointKind::file, -1);
    check("-", EndpointKind::pipe, -1);
    check("mpi:0", EndpointKind::mpi, 0);
    check("mpi:17", EndpointKind::mpi, 17);
    check("mpi:2-5", EndpointKind::mpi, 2);
    CHECK(parse_endpoint("mpi:2-5")->ranks == 4);
    CHECK(parse_endpoint("mpi:2")->ranks == 1);
    CHECK(to_string(*parse_endpoint("mpi:2-5")) == "mpi:2-5");
    check("mpi-port:a.port", EndpointKind::mpi_port, -1);
    check("mpi-port:/x/mpi:3", EndpointKind::mpi_port, -1);
    for (const char* text :
         {"", "mpi:", "mpi-port:", "mpi:x", "mpi:-1", "mpi:1x", "mpi:1 ", "mpi: 1", "mpi:+1", "mpi:99999999999",
          "mpi:2-1", "mpi:2-", "mpi:-2", "mpi:1-2-3", "mpi:1--2", "mpi:0-99999999", "mpi:0-2147483647"}) {
        const auto endpoint = parse_endpoint(text);
        REQUIRE_MESSAGE(!endpoint, text);
        CHECK(endpoint.error().code == Errc::usage);
    }
}

TEST_CASE("what can be known before long work is refused before it") {
    const test::TempDir folder;
    const TransportOptions options;
    std::ofstream(folder / "there") << "x";

    CHECK(prepare({file(folder / "there")}, {file(folder / "new")}, options));
    SUBCASE("input missing, or a directory") {
        CHECK(prepare({file(folder / "missing")}, {}, options).error().code == Errc::bad_input);
        CHECK(prepare({file(folder.path())}, {}, options).error().code == Errc::bad_input);
    }
    SUBCASE("output folder missing") { CHECK_FALSE(prepare({}, {file(folder / "no/such/folder.h5")}, options)); }
    SUBCASE("overwriting") {
        CHECK_FALSE(prepare({}, {file(folder / "there")}, options));
        TransportOptions force;
        force.overwrite = io::Overwrite::replace;
        CHECK(prepare({}, {file(folder / "there")}, force));
    }
    SUBCASE("input and output are one file, by whatever name") {
        TransportOptions force;
        force.overwrite = io::Overwrite::replace;
        REQUIRE(::link((folder / "there").c_str(), (folder / "other").c_str()) == 0);
        const Status refused = prepare({file(folder / "there")}, {file(folder / "other")}, force);
        REQUIRE_FALSE(refused);
        CHECK(refused.error().code == Errc::usage);
    }
    SUBCASE("one stdin for two states") {
        const Endpoint pipe{EndpointKind::pipe, "", -1};
        CHECK(prepare({pipe, pipe}, {}, options).error().code == Errc::usage);
    }
    SUBCASE("no memory for a pipe") {
        for (const std::uint64_t bytes : {0, 1023, 1024}) {
            TransportOptions little;
            little.max_memory_bytes = bytes;
            const Status prepared = prepare({}, {}, little);
            if (bytes == 1024) {
                CHECK(prepared);
            } else {
                REQUIRE_FALSE(prepared);
                CHECK(prepared.error().code == Errc::usage);
            }
        }
    }
    SUBCASE("a time-out that is none") {
        TransportOptions zero;
        zero.timeout_s = 0;
        CHECK(prepare({}, {}, zero).error().code == Errc::usage);
    }
    CHECK(std::filesystem::file_size(folder / "there") == 1);
}

TEST_CASE("every reader has one status for a missing file, and one for a file that may not be read") {
    const test::TempDir folder;
    const auto codes = [](const std::string& path) {
        const auto state = kv::open_file(path);
        const auto model = io::MappedFile::open(path);
        const Status prepared = prepare({file(path)}, {}, {});
        REQUIRE_FALSE(state);
        REQUIRE_FALSE(model);
        REQUIRE_FALSE(prepared);
        return std::set<Errc>{state.error().code, model.error().code, prepared.error().code};
    };
    CHECK(codes(folder / "missing") == std::set<Errc>{Errc::bad_input});
    std::ofstream(folder / "secret") << "x";
    REQUIRE(::chmod(folder.path().c_str(), 0711) == 0);
    REQUIRE(::chmod((folder / "secret").c_str(), 0) == 0);
    const uid_t user = ::geteuid();
    if (user == 0) REQUIRE(::seteuid(65534) == 0);  // root may read everything
    const std::set<Errc> found = codes(folder / "secret");
    if (user == 0) REQUIRE(::seteuid(user) == 0);
    CHECK(found == std::set<Errc>{Errc::resource});
}

TEST_CASE("an mpi: endpoint outside of mpirun is refused without starting MPI") {
    for (const char* name : {"OMPI_COMM_WORLD_SIZE", "PMIX_RANK", "PMI_RANK"}) ::unsetenv(name);
    const Status refused = prepare({{EndpointKind::mpi, "", 1}}, {}, {});
    REQUIRE_FALSE(refused);
    CHECK(refused.error().code == Errc::usage);
    CHECK(refused.error().message.find("mpi:1") != std::string::npos);
    CHECK(leave(nullptr));
}

TEST_CASE("a state through files by way of endpoints") {
    const test::TempDir folder;
    const auto state = test::synthetic_state({}, 5);
    REQUIRE_MESSAGE(state, state.error().message);
    const Endpoint endpoint = file(folder / "a.h5");
    auto sink = open_sink(endpoint, {});
    REQUIRE_MESSAGE(sink, sink.error().message);
    REQUIRE(kv::write_all(*state, **sink));
    auto source = open_source(endpoint, {});
    REQUIRE_MESSAGE(source, source.error().message);
    const auto back = kv::read_all(**source);
    REQUIRE_MESSAGE(back, back.error().message);
    for (std::size_t l = 0; l < state->layers[0].size(); ++l)
        CHECK(test::same_bytes(state->layers[0][l], back->layers[0][l]));
}

TEST_CASE("shards through files by way of endpoints, and from there through the name of the whole") {
    const test::TempDir folder;
    test::StateShape shape;
    shape.kv_heads = 4;
    const auto state = test::synthetic_state(shape, 5);
    REQUIRE_MESSAGE(state, state.error().message);
    const auto whole = std::make_shared<const kv::State>(*state);
    for (const std::uint32_t rank : {0U, 1U}) {
        auto half = kv::slice_heads(kv::memory_source(whole, "memory"), {2, rank, 2 * rank, 2});
        REQUIRE_MESSAGE(half, half.error().message);
        const auto shard = kv::read_all(**half);
        REQUIRE_MESSAGE(shard, shard.error().message);
        auto sink = open_sink(file(kv::shard_path(folder / "a.h5", rank, 2)), {});
        REQUIRE_MESSAGE(sink, sink.error().message);
        REQUIRE(kv::write_all(*shard, **sink));
    }
    const Endpoint endpoint = file(folder / "a.h5");
    CHECK(prepare({endpoint}, {file(folder / "b.h5")}, {}));
    TransportOptions force;
    force.overwrite = io::Overwrite::replace;
    const Status refused = prepare({endpoint}, {file(folder / "a.tp1of2.h5")}, force);
    REQUIRE_FALSE(refused);
    CHECK(refused.error().code == Errc::usage);
    auto source = open_source(endpoint, {});
    REQUIRE_MESSAGE(source, source.error().message);
    const auto back = kv::read_all(**source);
    REQUIRE_MESSAGE(back, back.error().message);
    for (std::size_t l = 0; l < state->layers[0].size(); ++l)
        CHECK(test::same_bytes(state->layers[0][l], back->layers[0][l]));
}
