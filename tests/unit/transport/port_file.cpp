#include "transport/port_file.h"

#include <doctest/doctest.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "support/temp_dir.h"

using namespace hetero;
using namespace hetero::transport;

namespace {

constexpr auto refuse = io::Overwrite::refuse;

PortFile sample() { return {"123.0;tcp://10.0.0.1:4242", "7.0:99", "", ""}; }

void write(const std::string& path, std::string_view text) { std::ofstream(path) << text; }

std::size_t files_in(const test::TempDir& folder) {
    return static_cast<std::size_t>(
        std::distance(std::filesystem::directory_iterator(folder.path()), std::filesystem::directory_iterator()));
}

}  // namespace

TEST_CASE("a port is published, claimed once, and removed") {
    const test::TempDir folder;
    const std::string path = folder / "a.port";
    bool stale = true;
    CHECK_FALSE(read_port_file(path, &stale)->has_value());
    CHECK_FALSE(stale);
    {
        auto published = PublishedPort::publish(path, sample(), refuse);
        REQUIRE_MESSAGE(published, published.error().message);
        struct stat info {};
        REQUIRE(::stat(path.c_str(), &info) == 0);
        CHECK((info.st_mode & 0777) == 0600);
        CHECK_FALSE(published->claimed());
        const auto read = read_port_file(path);
        REQUIRE(read->has_value());
        CHECK((*read)->server == sample().server);
        CHECK((*read)->port == sample().port);
        CHECK((*read)->process.starts_with(std::to_string(::getpid()) + " "));

        const auto again = PublishedPort::publish(path, sample(), refuse);
        REQUIRE_FALSE(again);
        CHECK(again.error().code == Errc::bad_input);
        CHECK(again.error().message.find(std::to_string(::getpid())) != std::string::npos);
        CHECK_FALSE(published->claimed());

        CHECK(claim_port_file(path)->has_value());
        CHECK(published->claimed());
        CHECK_FALSE(claim_port_file(path)->has_value());
        CHECK(files_in(folder) == 0);
        const auto next = PublishedPort::publish(path, sample(), refuse);
        REQUIRE(next);
        CHECK(published->claimed());  // the first one does not take the second for its own
    }
    CHECK(files_in(folder) == 0);
}

TEST_CASE("one who waits may be pushed aside by force, and does not remove what is not its own") {
    const test::TempDir folder;
    const std::string path = folder / "a.port";
    auto second = [&] {
        auto first = PublishedPort::publish(path, sample(), refuse);
        REQUIRE(first);
        auto forced = PublishedPort::publish(path, {"s", "second", "", ""}, io::Overwrite::replace);
        REQUIRE(forced);
        return forced;
    }();
    CHECK((*read_port_file(path))->port == "second");
    CHECK_FALSE(second->claimed());
}

TEST_CASE("a file that an ended process left is as none, and is replaced") {
    const test::TempDir folder;
    const std::string path = folder / "a.port";
    const pid_t child = ::fork();
    if (child == 0) {
        auto published = PublishedPort::publish(path, sample(), refuse);
        ::kill(::getpid(), SIGKILL);
    }
    REQUIRE(child > 0);
    REQUIRE(::waitpid(child, nullptr, 0) == child);
    REQUIRE(std::filesystem::exists(path));
    bool stale = false;
    const auto read = read_port_file(path, &stale);
    REQUIRE(read);
    CHECK_FALSE(read->has_value());
    CHECK(stale);
    CHECK_FALSE(claim_port_file(path)->has_value());
    CHECK(std::filesystem::exists(path));
    CHECK(PublishedPort::publish(path, sample(), refuse));
}

TEST_CASE("of another machine's process it is not known whether it lives") {
    const test::TempDir folder;
    const std::string path = folder / "a.port";
    write(path, encode(PortFile{"s", "p", "elsewhere pid:[1]", "1 2"}));
    CHECK(read_port_file(path)->has_value());
    CHECK_FALSE(PublishedPort::publish(path, sample(), refuse));
    CHECK(PublishedPort::publish(path, sample(), io::Overwrite::replace));
}

TEST_CASE("names that Open MPI 4 would end the process for are known beforehand") {
    const auto fits = [](const char* server, const char* port) {
        return names_open_mpi_4(PortFile{server, port, "", ""});
    };
    const char* port = "105250817.0:3369456396";
    CHECK(fits("105644032.0;tcp://192.0.2.2:49093;tcp6://[fd00::2]:48659", port));
    CHECK(fits("1.0;tcp://192.0.2.2,10.0.0.1:1", port));
    for (const char* server :
         {"", "x", "1;tcp://192.0.2.2:1", "1.x;tcp://192.0.2.2:1", "1.0", "1.0;", "1.0;x", "1.0;tcp://192.0.2.2",
          "1.0;tcp://:1", "1.0;tcp://999.0.2.2:1", "1.0;tcp://192.0.2.2,x:1", "1.0;tcp://192.0.2.2:0",
          "1.0;tcp://192.0.2.2:65536", "1.0;tcp://192.0.2.2:99999999999", "-1.0;tcp://192.0.2.2:1"}) {
        CAPTURE(server);
        CHECK_FALSE(fits(server, port));
    }
    for (const char* bad : {"", "y", "1.0", "1.0:", "1:2", "1.0:x", "1.0:-1", "1.0:99999999999", ".0:1"}) {
        CAPTURE(bad);
        CHECK_FALSE(fits("1.0;tcp://192.0.2.2:1", bad));
    }
}

TEST_CASE("what is no port is refused, and left alone") {
    const test::TempDir folder;
    const std::string path = folder / "a.port";
    const std::string sound = encode(PortFile{"s", "p", "h", "1 2"});
    REQUIRE(decode_port_file(sound, path));
    const auto refused = [&](const std::string& text) {
        write(path, text);
        for (const auto& failed : {read_port_file(path), claim_port_file(path)}) {
            REQUIRE_FALSE(failed);
            CHECK(failed.error().code == Errc::bad_input);
            CHECK(failed.error().message.find(path) != std::string::npos);
        }
        CHECK_FALSE(PublishedPort::publish(path, sample(), io::Overwrite::replace));
        CHECK(std::filesystem::file_size(path) == text.size());
    };
    for (std::size_t size = 0; size < sound.size(); ++size) refused(sound.substr(0, size));
    refused(sound + "x");
    refused("x" + sound);
    refused(std::string(20000, 'x'));
    refused(encode(PortFile{"s", "p\nq", "h", "1 2"}));
    refused(encode(PortFile{"s", "p\x1b[2J", "h", "1 2"}));
    refused(encode(PortFile{"s", "", "h", "1 2"}));
    std::filesystem::remove(path);
    std::filesystem::create_directory(path);
    CHECK_FALSE(read_port_file(path));
    CHECK_FALSE(claim_port_file(path));
    CHECK_FALSE(PublishedPort::publish(path, sample(), io::Overwrite::replace));
}
