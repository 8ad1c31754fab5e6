#include "calib/journal.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <charconv>
#include <filesystem>
#include <fstream>
#include <optional>

#include "base/errno_text.h"

namespace hetero::calib {
namespace {

// A line: key, steps, CRC-32C of what stands before its own space. A step: bits of E_p and KL, and 1 where the
// likeliest tokens agree. All in hex digits.
constexpr std::size_t key_digits = 64, step_digits = 33, crc_digits = 8;
constexpr std::string_view prefix = "journal-", suffix = ".txt";

std::string to_line(const Digest& key, std::span<const Step> steps) {
    std::string line = to_hex(key) + ' ';
    for (const Step& step : steps) {
        line += fmt::format("{:016x}{:016x}{}", std::bit_cast<std::uint64_t>(step.max_abs_dp),
                            std::bit_cast<std::uint64_t>(step.kl), step.top1_equal ? 1 : 0);
    }
    return fmt::format("{} {:08x}\n", line, crc32c(std::as_bytes(std::span(line))));
}

template <class T>
bool take_hex(std::string_view& text, std::size_t digits, T& value) {
    const char* end = text.data() + digits;
    const auto [at, error] = std::from_chars(text.data(), end, value, 16);
    text.remove_prefix(digits);
    return error == std::errc() && at == end;
}

std::optional<std::pair<Digest, std::vector<Step>>> from_line(std::string_view line) {
    if (line.size() < key_digits + 2 + crc_digits || line[line.size() - crc_digits - 1] != ' ') return std::nullopt;
    const std::string_view body = line.substr(0, line.size() - crc_digits - 1);
    std::string_view tail = line.substr(body.size() + 1), data = body.substr(key_digits + 1);
    std::pair<Digest, std::vector<Step>> entry;
    std::uint32_t crc = 0;
    if (!take_hex(tail, crc_digits, crc) || crc != crc32c(std::as_bytes(std::span(body))) ||
        !from_hex(body.substr(0, key_digits), entry.first) || data.size() % step_digits != 0) {
        return std::nullopt;
    }
    while (!data.empty()) {
        std::uint64_t dp = 0, kl = 0;
        if (!take_hex(data, 16, dp) || !take_hex(data, 16, kl)) return std::nullopt;
        entry.second.push_back({std::bit_cast<double>(dp), std::bit_cast<double>(kl), data.front() == '1'});
        data.remove_prefix(1);
    }
    return entry;
}

Status write_all(int fd, std::string_view text, const std::string& path) {
    while (!text.empty()) {
        const ssize_t n = ::write(fd, text.data(), text.size());
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return fail(Errc::resource, "{}: cannot be written: {}", path, errno_text(errno));
        text.remove_prefix(static_cast<std::size_t>(n));
    }
    return {};
}

}  // namespace

Result<Journal> Journal::open(const std::string& folder, const std::string& writer) {
    namespace fs = std::filesystem;
    std::error_code error;
    fs::create_directories(folder, error);
    if (error) return fail(Errc::resource, "{}: cannot be made: {}", folder, errno_text(error.value()));
    Journal journal;
    journal.path_ = (fs::path(folder) / fmt::format("{}{}{}", prefix, writer, suffix)).string();
    journal.fd_ = ::open(journal.path_.c_str(), O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    if (journal.fd_ < 0) return fail(Errc::resource, "{}: {}", journal.path_, errno_text(errno));
    // A file system without locks leaves it to the caller that writers have unlike names.
    if (::flock(journal.fd_, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
        return fail(Errc::resource, "{}: another process writes it; wait for it, or use another folder", journal.path_);
    }
    std::vector<std::string> files;
    for (fs::directory_iterator at(folder, error), end; !error && at != end; at.increment(error)) {
        const std::string name = at->path().filename().string();
        if (!name.starts_with(prefix) || !name.ends_with(suffix)) continue;
        if (std::error_code unknown; !at->is_regular_file(unknown))
            return fail(Errc::bad_input, "{}: is no regular file; remove it, or use another folder",
                        at->path().string());
        files.push_back(at->path().string());
    }
    if (error) return fail(Errc::resource, "{}: cannot be read: {}", folder, errno_text(error.value()));
    std::sort(files.begin(), files.end());
    for (const std::string& file : files) HETERO_CHECK(journal.read(file));
    // What a killed writer left of its last line must not spoil the next one.
    char last = '\n';
    const off_t size = ::lseek(journal.fd_, 0, SEEK_END);
    if (size > 0 && ::pread(journal.fd_, &last, 1, size - 1) == 1 && last != '\n') {
        HETERO_CHECK(write_all(journal.fd_, "\n", journal.path_));
    }
    return journal;
}

Journal::~Journal() {
    if (fd_ >= 0) ::close(fd_);
}

Journal::Journal(Journal&& other) noexcept
    : path_(std::move(other.path_)), fd_(std::exchange(other.fd_, -1)), entries_(std::move(other.entries_)) {}

Status Journal::read(const std::string& path) {
    std::ifstream in(path, std::ios::binary);
    if (!in) return fail(Errc::resource, "{}: cannot be read", path);
    std::string line;
    while (std::getline(in, line)) {
        if (auto entry = from_line(line)) entries_.insert(std::move(*entry));
    }
    return {};
}

const std::vector<Step>* Journal::find(const Digest& key) const {
    const auto found = entries_.find(key);
    return found == entries_.end() ? nullptr : &found->second;
}

Status Journal::add(const Digest& key, std::span<const Step> steps) {
    HETERO_CHECK(write_all(fd_, to_line(key, steps), path_));
    entries_.emplace(key, std::vector(steps.begin(), steps.end()));
    return {};
}

}  // namespace hetero::calib
