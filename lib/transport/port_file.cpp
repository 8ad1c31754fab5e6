#include "transport/port_file.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <utility>

#include "base/errno_text.h"
#include "io/temporaries.h"

namespace hetero::transport {
namespace {

constexpr std::string_view magic = "hetero mpi-port 1";
constexpr std::size_t longest_file = 8192;

// One page at most: what follows is not read.
std::string read_up_to(int fd, std::size_t limit) {
    std::string text(limit, '\0');
    std::size_t size = 0;
    while (size < limit) {
        const ssize_t got = ::read(fd, text.data() + size, limit - size);
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) break;
        size += static_cast<std::size_t>(got);
    }
    text.resize(size);
    return text;
}

// "PID START": a number that is given again later has another start time. Empty: there is no such process.
std::string process_text(long pid) {
    const FileDescriptor file(::open(fmt::format("/proc/{}/stat", pid).c_str(), O_RDONLY | O_CLOEXEC));
    const std::string stat = file.valid() ? read_up_to(file.get(), 4096) : std::string();
    std::size_t at = stat.rfind(')');  // the name before it may hold anything
    if (at == std::string::npos) return {};
    for (int field = 2; field < 22 && at != std::string::npos; ++field) at = stat.find(' ', at + 1);
    if (at == std::string::npos) return {};
    return fmt::format("{} {}", pid, stat.substr(at + 1, stat.find(' ', at + 1) - at - 1));
}

std::string host_text() {
    std::array<char, 256> name{}, space{};
    ::gethostname(name.data(), name.size() - 1);
    if (::readlink("/proc/self/ns/pid", space.data(), space.size() - 1) < 0) space[0] = '\0';
    return fmt::format("{} {}", name.data(), space.data());
}

std::optional<std::uint32_t> whole_number(std::string_view text) {
    std::uint32_t value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc{} || end != text.data() + text.size()) return std::nullopt;
    return value;
}

// What is before `separator`, which is taken away with it; all of it where there is none.
std::string_view take(std::string_view& text, char separator) {
    const std::size_t end = std::min(text.find(separator), text.size());
    const std::string_view taken = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    return taken;
}

bool is_process_name(std::string_view text) {
    const std::string_view job = take(text, '.');
    return whole_number(job) && whole_number(text);
}

bool is_address(std::string_view text) {
    constexpr std::string_view ipv4 = "tcp://";
    if (!text.starts_with(ipv4)) return text.find("://") != std::string_view::npos;
    text.remove_prefix(ipv4.size());
    const std::size_t colon = text.rfind(':');
    if (colon == std::string_view::npos) return false;
    const auto port = whole_number(text.substr(colon + 1));
    std::string_view hosts = text.substr(0, colon);
    if (!port || *port == 0 || *port > 65535 || hosts.empty()) return false;
    while (!hosts.empty()) {
        in_addr address{};
        if (::inet_pton(AF_INET, std::string(take(hosts, ',')).c_str(), &address) != 1) return false;
    }
    return true;
}

bool has_ended(const PortFile& file) {
    if (file.host != host_text()) return false;
    long pid = 0;
    const auto [end, error] = std::from_chars(file.process.data(), file.process.data() + file.process.size(), pid);
    return error != std::errc{} || pid <= 0 || process_text(pid) != file.process;
}

Result<std::optional<PortFile>> read_any(const std::string& path) {
    const FileDescriptor opened(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
    if (!opened.valid()) {
        if (errno == ENOENT || errno == ESTALE) return std::optional<PortFile>{};
        return fail(open_errc(errno), "mpi-port:{}: cannot be opened: {}", path, errno_text(errno));
    }
    struct stat info {};
    const bool regular = ::fstat(opened.get(), &info) == 0 && S_ISREG(info.st_mode);
    const std::string text = regular ? read_up_to(opened.get(), longest_file) : std::string();
    HETERO_TRY(PortFile file, decode_port_file(text, path));
    return std::optional(std::move(file));
}

}  // namespace

std::string encode(const PortFile& file) {
    return fmt::format("{}\nserver {}\nport {}\nhost {}\nprocess {}\n", magic, file.server, file.port, file.host,
                       file.process);
}

Result<PortFile> decode_port_file(std::string_view text, const std::string& path) {
    PortFile file;
    const auto line = [&]() -> std::optional<std::string_view> {
        const std::size_t end = text.find('\n');
        if (end == std::string_view::npos) return std::nullopt;
        const std::string_view found = text.substr(0, end);
        text.remove_prefix(end + 1);
        return found;
    };
    const auto printable = [](std::string_view value) {
        return std::all_of(value.begin(), value.end(), [](char c) { return c >= ' ' && c <= '~'; });
    };
    const auto not_a_port = [&] {
        return fail(Errc::bad_input, "mpi-port:{}: this file is not a port that a hetero tool has published", path);
    };
    if (line() != magic) return not_a_port();
    for (const auto& [key, value] : {std::pair(std::string_view("server "), &file.server),
                                     {"port ", &file.port},
                                     {"host ", &file.host},
                                     {"process ", &file.process}}) {
        const auto found = line();
        if (!found || !found->starts_with(key) || !printable(*found)) return not_a_port();
        *value = found->substr(key.size());
    }
    if (!text.empty() || file.port.empty()) return not_a_port();
    return file;
}

bool names_open_mpi_4(const PortFile& file) {
    std::string_view port = file.port, server = file.server;
    if (!is_process_name(take(port, ':')) || !whole_number(port)) return false;
    if (!is_process_name(take(server, ';')) || server.empty()) return false;
    while (!server.empty())
        if (!is_address(take(server, ';'))) return false;
    return true;
}

Result<std::optional<PortFile>> read_port_file(const std::string& path, bool* stale) {
    HETERO_TRY(std::optional<PortFile> file, read_any(path));
    const bool ended = file && has_ended(*file);
    if (stale != nullptr) *stale = ended;
    if (ended) file.reset();
    return file;
}

Result<std::optional<PortFile>> claim_port_file(const std::string& path) {
    HETERO_TRY(auto there, read_port_file(path));
    if (!there) return there;
    HETERO_TRY(const io::SplitPath target, io::split_path(path));
    const std::string own = io::temporary_name(target);
    if (::rename(path.c_str(), own.c_str()) != 0) {
        if (errno == ENOENT) return std::optional<PortFile>{};  // another sender was faster
        return fail(Errc::resource, "mpi-port:{}: cannot be taken away: {}", path, errno_text(errno));
    }
    auto claimed = read_any(own);
    if (claimed) {
        ::unlink(own.c_str());
    } else {
        io::rename_without_replacing(own.c_str(), path.c_str());  // another file has got the name meanwhile
    }
    return claimed;
}

Result<PublishedPort> PublishedPort::publish(const std::string& path, PortFile file, io::Overwrite overwrite) {
    HETERO_TRY(const io::SplitPath target, io::split_path(path));
    HETERO_TRY(const auto there, read_any(path));
    if (there && !has_ended(*there) && overwrite == io::Overwrite::refuse)
        return fail(Errc::bad_input,
                    "mpi-port:{}: process {} of {} waits there; where it has ended remove the file, or give --force",
                    path, there->process.substr(0, there->process.find(' ')),
                    there->host.substr(0, there->host.find(' ')));
    if (there) ::unlink(path.c_str());

    file.host = host_text();
    file.process = process_text(::getpid());
    HETERO_TRY(auto written, io::AtomicFile::create(path, io::Overwrite::refuse, io::private_file));
    const std::string text = encode(file);
    HETERO_CHECK(written.write(std::as_bytes(std::span(text))));
    PublishedPort port;
    port.path_ = path;
    port.file_ = FileDescriptor(::fcntl(written.fd(), F_DUPFD_CLOEXEC, 0));
    if (!port.file_.valid())
        return fail(Errc::resource, "mpi-port:{}: cannot be kept open: {}", path, errno_text(errno));
    HETERO_CHECK(written.publish());
    port.registration_ = io::Temporary::take(path, false);
    return port;
}

PublishedPort::PublishedPort(PublishedPort&& other) noexcept
    : path_(std::move(other.path_)),
      file_(std::move(other.file_)),
      registration_(std::exchange(other.registration_, nullptr)) {}

PublishedPort::~PublishedPort() {
    if (registration_ != nullptr && !claimed()) release(true);
}

void PublishedPort::release(bool remove) noexcept {
    if (registration_ != nullptr) registration_->release(remove);
    registration_ = nullptr;
}

bool PublishedPort::claimed() noexcept {
    if (registration_ == nullptr) return true;
    // By opening it: file systems of a network look the name up again for that.
    const FileDescriptor opened(::open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
    if (!opened.valid() && errno != ENOENT && errno != ESTALE) return false;
    struct stat there {
    }, own{};
    const bool ours = opened.valid() && ::fstat(opened.get(), &there) == 0 && ::fstat(file_.get(), &own) == 0 &&
                      there.st_nlink > 0 && there.st_dev == own.st_dev && there.st_ino == own.st_ino;
    if (!ours) release(false);
    return !ours;
}

}  // namespace hetero::transport
