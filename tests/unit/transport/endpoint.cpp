#include "transport/endpoint.h"

#include <doctest/doctest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "kv/file.h"
#include "synthetic_state.h"

using namespace hetero;
using namespace hetero::transport;

namespace {

struct Folder {
    std::filesystem::path path;
    Folder() {
        std::string name = (std::filesystem::temp_directory_path() / "hetero-test-XXXXXX").string();
        REQUIRE(::mkdtemp(name.data()) != nullptr);
        path = name;
    }
    ~Folder() { std::filesystem::remove_all(path); }
    [[nodiscard]] std::string file(const char* name) const { return (path / name).string(); }
};

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
    for (const char* text :
         {"", "mpi:", "mpi:x", "mpi:-1", "mpi:1x", "mpi:1 ", "mpi: 1", "mpi:+1", "mpi:99999999999"}) {
        const auto endpoint = parse_endpoint(text);
        REQUIRE_MESSAGE(!endpoint, text);
        CHECK(endpoint.error().code == Errc::usage);
    }
}

TEST_CASE("what can be known before long work is refused before it") {
    const Folder folder;
    const TransportOptions options;
    std::ofstream(folder.file("there")) << "x";

    CHECK(prepare({file(folder.file("there"))}, {file(folder.file("new"))}, options));
    SUBCASE("input missing, or a directory") {
        CHECK(prepare({file(folder.file("missing"))}, {}, options).error().code == Errc::bad_input);
        CHECK(prepare({file(folder.path.string())}, {}, options).error().code == Errc::bad_input);
    }
    SUBCASE("output folder missing") { CHECK_FALSE(prepare({}, {file(folder.file("no/such/folder.h5"))}, options)); }
    SUBCASE("overwriting") {
        CHECK_FALSE(prepare({}, {file(folder.file("there"))}, options));
        TransportOptions force;
        force.overwrite = io::Overwrite::replace;
        CHECK(prepare({}, {file(folder.file("there"))}, force));
    }
    SUBCASE("input and output are one file, by whatever name") {
        TransportOptions force;
        force.overwrite = io::Overwrite::replace;
        REQUIRE(::link(folder.file("there").c_str(), folder.file("other").c_str()) == 0);
        const Status refused = prepare({file(folder.file("there"))}, {file(folder.file("other"))}, force);
        REQUIRE_FALSE(refused);
        CHECK(refused.error().code == Errc::usage);
    }
    SUBCASE("one stdin for two states") {
        const Endpoint pipe{EndpointKind::pipe, "", -1};
        CHECK(prepare({pipe, pipe}, {}, options).error().code == Errc::usage);
    }
    SUBCASE("a time-out that is none") {
        TransportOptions zero;
        zero.timeout_s = 0;
        CHECK(prepare({}, {}, zero).error().code == Errc::usage);
    }
    CHECK(std::filesystem::file_size(folder.file("there")) == 1);
}

TEST_CASE("an mpi: endpoint outside of mpirun is refused without starting MPI") {
    for (const char* name : {"OMPI_COMM_WORLD_SIZE", "PMIX_RANK", "PMI_RANK"}) ::unsetenv(name);
    const Status refused = prepare({{EndpointKind::mpi, "", 1}}, {}, {});
    REQUIRE_FALSE(refused);
    CHECK(refused.error().code == Errc::usage);
    CHECK(refused.error().message.find("mpi:1") != std::string::npos);
    leave(nullptr);
}

TEST_CASE("a state through files by way of endpoints") {
    const Folder folder;
    const auto state = test::synthetic_state({}, 5);
    REQUIRE_MESSAGE(state, state.error().message);
    const Endpoint endpoint = file(folder.file("a.h5"));
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
