// Which backend runs, and what is said when it cannot be the one asked for.
#include <doctest/doctest.h>

#include <array>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "kernels/registry.h"

using namespace hetero::kernels;

namespace {

std::vector<const Ops*> compiled_in() {
    std::vector<const Ops*> list;
    for (const Ops* const* b = all_backends(); *b; ++b) list.push_back(*b);
    return list;
}

// What a program started with this HETERO_BACKEND prints: its backend, then the error.
std::string run_with(const std::string& setting) {
    const std::string command = setting + " '" + HETERO_PRINT_BACKEND + "' 2>&1";
    FILE* pipe = popen(command.c_str(), "r");
    REQUIRE(pipe != nullptr);
    std::string text;
    std::array<char, 256> buffer{};
    while (std::fgets(buffer.data(), buffer.size(), pipe)) text += buffer.data();
    REQUIRE(pclose(pipe) == 0);
    return text;
}

using Function = void (*)();

// Every function pointer of the table, after the name.
std::vector<Function> functions(const Ops& ops) {
    constexpr std::size_t kCount = (sizeof(Ops) - sizeof(const char*)) / sizeof(Function);
    static_assert(sizeof(Ops) == sizeof(const char*) + kCount * sizeof(Function));
    std::vector<Function> list(kCount);
    std::memcpy(list.data(), reinterpret_cast<const char*>(&ops) + sizeof(const char*), kCount * sizeof(Function));
    return list;
}

}  // namespace

TEST_CASE("scalar is always there and comes first") {
    const auto list = compiled_in();
    REQUIRE(!list.empty());
    CHECK(std::string(list.front()->name) == "scalar");
    CHECK(backend_supported(*list.front()));
}

TEST_CASE("every backend has all ops, and none of them is the scalar one") {
    const auto list = compiled_in();
    const auto scalar = functions(*list.front());
    for (const Ops* backend : list) {
        INFO(backend->name);
        const auto own = functions(*backend);
        for (std::size_t i = 0; i < own.size(); ++i) {
            CHECK(static_cast<bool>(own[i]));
            if (backend != list.front()) CHECK((own[i] != scalar[i]));
        }
    }
}

TEST_CASE("the default is the last backend that the CPU runs") {
    const Ops* best = nullptr;
    for (const Ops* backend : compiled_in())
        if (backend_supported(*backend)) best = backend;
    for (const char* nothing : {static_cast<const char*>(nullptr), ""}) {
        const BackendChoice choice = choose_backend(nothing);
        CHECK(choice.ops == best);
        CHECK(choice.error == nullptr);
    }
    CHECK(run_with("env -u HETERO_BACKEND") == std::string(best->name) + "\n");
}

TEST_CASE("HETERO_BACKEND is followed, or refused with the reason") {
    for (const Ops* backend : compiled_in()) {
        INFO(backend->name);
        const BackendChoice choice = choose_backend(backend->name);
        const std::string printed = run_with(std::string("HETERO_BACKEND=") + backend->name);
        if (backend_supported(*backend)) {
            CHECK(choice.ops == backend);
            CHECK(choice.error == nullptr);
            CHECK(printed == std::string(backend->name) + "\n");
        } else {
            REQUIRE(choice.error != nullptr);
            CHECK(std::string(choice.error).find("cannot run it") != std::string::npos);
            CHECK(printed.find(backend->name) != 0);
        }
    }
}

TEST_CASE("an unknown backend is named, with those there are") {
    const std::string expected = "HETERO_BACKEND=sse9: no such backend; use one of scalar";
    const BackendChoice choice = choose_backend("sse9");
    REQUIRE(choice.ops != nullptr);
    REQUIRE(choice.error != nullptr);
    CHECK(std::string(choice.error).rfind(expected, 0) == 0);
    CHECK(run_with("HETERO_BACKEND=sse9").find(expected) != std::string::npos);
    CHECK(choose_backend("AVX2").error != nullptr);  // names are exact
    CHECK(choose_backend(std::string(5000, 'x').c_str()).error != nullptr);
}

TEST_CASE("a table that is no backend is not supported") {
    const Ops other{};
    CHECK_FALSE(backend_supported(other));
}
