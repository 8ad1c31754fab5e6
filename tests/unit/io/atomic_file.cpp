#include "io/atomic_file.h"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <set>
#include <thread>

#include "support/golden.h"
#include "support/temp_dir.h"

using namespace hetero;
using io::AtomicFile;
using io::Overwrite;

namespace {

std::span<const std::byte> bytes_of(std::string_view text) { return std::as_bytes(std::span(text)); }

Status write_whole(const std::string& path, std::string_view text, Overwrite overwrite) {
    HETERO_TRY(AtomicFile file, AtomicFile::create(path, overwrite));
    HETERO_CHECK(file.write(bytes_of(text)));
    return file.publish();
}

void check_refused(const Status& status, Errc code, std::initializer_list<std::string_view> parts) {
    REQUIRE_FALSE(status.has_value());
    CHECK(status.error().code == code);
    for (const std::string_view part : parts)
        CHECK_MESSAGE(status.error().message.find(part) != std::string::npos, part, " in: ", status.error().message);
}

Status as_status(const Result<AtomicFile>& file) {
    if (!file) return tl::unexpected<Error>(file.error());
    return {};
}

}  // namespace

TEST_CASE("the file is there only after publish, whole, private and without a temporary") {
    const test::TempDir folder;
    const std::string path = folder / "out.h5";
    const mode_t mask = ::umask(0);
    {
        auto file = AtomicFile::create(path, Overwrite::refuse);
        REQUIRE_MESSAGE(file.has_value(), file.error().message);
        REQUIRE(file->write(bytes_of("hello ")).has_value());
        CHECK(folder.names().size() == 1);
        CHECK(folder / folder.names().front() == file->temporary_path());
        CHECK(folder.names().front().starts_with(".out.h5."));
        CHECK(folder.names().front().ends_with(".part"));
        REQUIRE(file->write(bytes_of("world")).has_value());
        REQUIRE(::write(file->fd(), "!", 1) == 1);  // others write through the descriptor too
        REQUIRE(file->publish().has_value());
        CHECK(folder.names() == std::vector<std::string>{"out.h5"});
        check_refused(file->publish(), Errc::internal, {"twice"});
        check_refused(file->write(bytes_of("x")), Errc::internal, {path});
    }
    ::umask(mask);
    CHECK(folder.names() == std::vector<std::string>{"out.h5"});
    CHECK(test::read_file(path) == "hello world!");
    struct stat info {};
    REQUIRE(::stat(path.c_str(), &info) == 0);
    CHECK((info.st_mode & 0777U) == 0600U);
}

TEST_CASE("what is not published leaves nothing, and an older file as it was") {
    const test::TempDir folder;
    const std::string path = folder.write("out.h5", "older");
    {
        auto file = AtomicFile::create(path, Overwrite::replace);
        REQUIRE(file.has_value());
        REQUIRE(file->write(bytes_of("half of the n")).has_value());
    }
    CHECK(folder.names() == std::vector<std::string>{"out.h5"});
    CHECK(test::read_file(path) == "older");
}

TEST_CASE("names without a folder, and names as long as the file system allows") {
    const test::TempDir folder;
    const std::filesystem::path before = std::filesystem::current_path();
    std::filesystem::current_path(folder.path());
    CHECK(write_whole("plain", "1", Overwrite::refuse).has_value());
    CHECK(write_whole("./dotted", "2", Overwrite::refuse).has_value());
    std::filesystem::current_path(before);
    CHECK(write_whole(folder / std::string(255, 'n'), "3", Overwrite::refuse).has_value());
    CHECK(folder.names() == std::vector<std::string>{"dotted", std::string(255, 'n'), "plain"});
    check_refused(write_whole(folder / std::string(256, 'n'), "4", Overwrite::refuse), Errc::resource,
                  {"File name too long"});
    CHECK(folder.names().size() == 3);
}

TEST_CASE("replacing happens only on request") {
    const test::TempDir folder;
    const std::string path = folder.write("out.h5", "older");
    check_refused(io::check_output_path(path, Overwrite::refuse), Errc::bad_input, {path, "exists", "--force"});
    check_refused(write_whole(path, "new", Overwrite::refuse), Errc::bad_input, {path, "exists"});
    CHECK(test::read_file(path) == "older");
    CHECK(io::check_output_path(path, Overwrite::replace).has_value());
    CHECK(test::read_file(path) == "older");
    CHECK(write_whole(path, "new", Overwrite::replace).has_value());
    CHECK(test::read_file(path) == "new");
    CHECK(folder.names() == std::vector<std::string>{"out.h5"});
}

TEST_CASE("a file that appears while the output is made is not replaced") {
    const test::TempDir folder;
    const std::string path = folder / "out.h5";
    auto file = AtomicFile::create(path, Overwrite::refuse);
    REQUIRE(file.has_value());
    REQUIRE(file->write(bytes_of("mine")).has_value());
    folder.write("out.h5", "theirs");
    check_refused(file->publish(), Errc::bad_input, {path, "--force"});
    CHECK(test::read_file(path) == "theirs");
    CHECK(folder.names() == std::vector<std::string>{"out.h5"});
}

TEST_CASE("of many writers that may not replace, one wins; of many that may, each leaves a whole file") {
    for (const Overwrite overwrite : {Overwrite::refuse, Overwrite::replace}) {
        for (int round = 0; round < 10; ++round) {
            const test::TempDir folder;
            const std::string path = folder / "out.h5";
            std::atomic<int> ready{0}, published{0}, refused{0};
            std::vector<std::thread> writers;
            for (char letter = 'a'; letter < 'a' + 6; ++letter) {
                writers.emplace_back([&, letter] {
                    auto file = AtomicFile::create(path, overwrite);
                    const bool written =
                        file.has_value() && file->write(bytes_of(std::string(50'000, letter))).has_value();
                    ready.fetch_add(1);
                    while (ready < 6) std::this_thread::yield();
                    if (!written) return;
                    const Status status = file->publish();
                    if (status) published.fetch_add(1);
                    if (!status && status.error().code == Errc::bad_input) refused.fetch_add(1);
                });
            }
            for (std::thread& writer : writers) writer.join();
            CHECK(published == (overwrite == Overwrite::refuse ? 1 : 6));
            CHECK(published + refused == 6);
            const std::string text = test::read_file(path);
            CHECK(text == std::string(50'000, text.empty() ? '?' : text.front()));
            CHECK(folder.names() == std::vector<std::string>{"out.h5"});
        }
    }
}

TEST_CASE("temporaries of one output have different names, and leftovers of others do no harm") {
    const test::TempDir folder;
    folder.write(".out.h5.0123456789abcdef.part", "left by a writer that was killed");
    std::vector<AtomicFile> files;
    std::set<std::string> names;
    for (int i = 0; i < 100; ++i) {
        auto file = AtomicFile::create(folder / "out.h5", Overwrite::refuse);
        REQUIRE_MESSAGE(file.has_value(), file.error().message);
        names.insert(file->temporary_path());
        files.push_back(std::move(*file));
    }
    CHECK(names.size() == 100);
    files.clear();
    CHECK(folder.names() == std::vector<std::string>{".out.h5.0123456789abcdef.part"});
}

TEST_CASE("only regular files are replaced") {
    const test::TempDir folder;
    const std::string target = folder.write("target", "kept");
    REQUIRE(::mkfifo((folder / "fifo").c_str(), 0600) == 0);
    REQUIRE(::symlink("target", (folder / "link").c_str()) == 0);
    REQUIRE(::symlink("nowhere", (folder / "dangling").c_str()) == 0);
    std::filesystem::create_directory(folder / "folder");
    const auto before = folder.names();
    for (const std::string& path :
         {folder / "fifo", folder / "link", folder / "dangling", folder / "folder", std::string("/dev/null")}) {
        for (const Overwrite overwrite : {Overwrite::refuse, Overwrite::replace}) {
            check_refused(io::check_output_path(path, overwrite), Errc::bad_input, {path});
            check_refused(write_whole(path, "x", overwrite), Errc::bad_input, {path});
        }
    }
    // One that appears in the meantime.
    auto file = AtomicFile::create(folder / "late", Overwrite::replace);
    REQUIRE(file.has_value());
    REQUIRE(::mkfifo((folder / "late").c_str(), 0600) == 0);
    check_refused(file->publish(), Errc::bad_input, {"late", "not a regular file"});
    struct stat info {};
    REQUIRE(::lstat((folder / "late").c_str(), &info) == 0);
    CHECK(S_ISFIFO(info.st_mode));
    ::unlink((folder / "late").c_str());
    CHECK(folder.names() == before);
    CHECK(test::read_file(target) == "kept");
    CHECK(::lstat("/dev/null", &info) == 0);
    CHECK(S_ISCHR(info.st_mode));
}

TEST_CASE("places where nothing can be written are found before the work") {
    const test::TempDir folder;
    const std::string file = folder.write("file", "x");
    check_refused(io::check_output_path(folder / "none/out.h5", Overwrite::refuse), Errc::resource,
                  {"none/out.h5", "no directory " + (folder / "none")});
    check_refused(io::check_output_path(file + "/out.h5", Overwrite::refuse), Errc::resource, {"Not a directory"});
    check_refused(io::check_output_path("/proc/out.h5", Overwrite::refuse), Errc::resource, {"/proc/out.h5"});
    for (const char* path : {"", "/", ".", "..", "folder/", "folder/.."}) {
        check_refused(io::check_output_path(path, Overwrite::replace), Errc::bad_input, {"does not name a file"});
    }
    check_refused(io::check_output_path(std::string("a\0b", 3), Overwrite::refuse), Errc::bad_input,
                  {"does not name a file"});
    CHECK(io::check_output_path(folder / "out.h5", Overwrite::refuse).has_value());
    CHECK(folder.names() == std::vector<std::string>{"file"});
    if (::geteuid() != 0) {  // root may write everywhere
        REQUIRE(::chmod(folder.path().c_str(), 0500) == 0);
        check_refused(io::check_output_path(folder / "out.h5", Overwrite::refuse), Errc::resource,
                      {"Permission denied"});
        REQUIRE(::chmod(folder.path().c_str(), 0700) == 0);
    }
}

TEST_CASE("a write that the system cuts short is reported with the system's reason and leaves nothing") {
    const test::TempDir folder;
    rlimit before{};
    REQUIRE(::getrlimit(RLIMIT_FSIZE, &before) == 0);
    struct sigaction ignore {};
    struct sigaction old_action {};
    ignore.sa_handler = SIG_IGN;
    REQUIRE(::sigaction(SIGXFSZ, &ignore, &old_action) == 0);
    auto file = AtomicFile::create(folder / "out.h5", Overwrite::refuse);
    REQUIRE(file.has_value());
    const rlimit small{10'000, before.rlim_max};
    REQUIRE(::setrlimit(RLIMIT_FSIZE, &small) == 0);
    const Status fits = file->write(bytes_of(std::string(9'000, 'x')));
    const Status too_much = file->write(bytes_of(std::string(9'000, 'x')));  // 1,000 fit, then EFBIG
    REQUIRE(::setrlimit(RLIMIT_FSIZE, &before) == 0);
    REQUIRE(::sigaction(SIGXFSZ, &old_action, nullptr) == 0);
    CHECK(fits.has_value());
    check_refused(too_much, Errc::resource, {folder / "out.h5", "File too large"});
    *file = std::move(*AtomicFile::create(folder / "other", Overwrite::refuse));
    CHECK(folder.names().size() == 1);  // the temporary of `other`
    CHECK(folder.names().front().starts_with(".other."));
}

TEST_CASE("moving hands over the temporary") {
    const test::TempDir folder;
    auto first = AtomicFile::create(folder / "first", Overwrite::refuse);
    auto second = AtomicFile::create(folder / "second", Overwrite::refuse);
    REQUIRE(first.has_value());
    REQUIRE(second.has_value());
    REQUIRE(second->write(bytes_of("2")).has_value());
    AtomicFile moved = std::move(*second);
    *first = std::move(moved);  // drops the temporary of `first`
    CHECK(folder.names().size() == 1);
    CHECK(first->publish().has_value());
    CHECK(folder.names() == std::vector<std::string>{"second"});
    CHECK(test::read_file(folder / "second") == "2");
    CHECK(as_status(AtomicFile::create(folder / "second", Overwrite::replace)).has_value());
    CHECK(folder.names() == std::vector<std::string>{"second"});
}

TEST_CASE("a signal handler can remove what is unfinished, and only that") {
    const test::TempDir folder;
    const pid_t child = ::fork();
    REQUIRE(child >= 0);
    if (child == 0) {
        struct sigaction action {};
        action.sa_handler = [](int) {
            io::remove_temporaries_on_signal();
            ::_exit(99);
        };
        ::sigaction(SIGTERM, &action, nullptr);
        auto done = AtomicFile::create(folder / "done", Overwrite::refuse);
        auto dropped = AtomicFile::create(folder / "dropped", Overwrite::refuse);
        auto open_one = AtomicFile::create(folder / "one", Overwrite::refuse);
        auto open_two = AtomicFile::create(folder / "two", Overwrite::refuse);
        const bool ready = done && done->publish() && dropped && open_one && open_two && folder.names().size() == 4;
        *dropped = std::move(*open_two);
        ::raise(ready && folder.names().size() == 3 ? SIGTERM : SIGKILL);
        ::_exit(1);
    }
    int status = 0;
    REQUIRE(::waitpid(child, &status, 0) == child);
    REQUIRE(WIFEXITED(status));
    CHECK(WEXITSTATUS(status) == 99);
    CHECK(folder.names() == std::vector<std::string>{"done"});
}

TEST_CASE("after a handler took the temporaries, the file cannot be published by half") {
    const test::TempDir folder;
    auto file = AtomicFile::create(folder / "out.h5", Overwrite::refuse);
    REQUIRE(file.has_value());
    io::remove_temporaries_on_signal();
    CHECK(folder.names().empty());
    check_refused(file->publish(), Errc::resource, {"out.h5", "No such file"});
    CHECK(folder.names().empty());
    CHECK(write_whole(folder / "out.h5", "x", Overwrite::refuse).has_value());
}
