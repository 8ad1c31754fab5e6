// Formats: cgroups(7), proc(5), Documentation/admin-guide/cgroup-v2.rst and cgroup-v1/memory.rst of the Linux kernel.
#include "base/limits.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <string_view>
#include <vector>

#include "base/cpus.h"

namespace hetero {
namespace {

std::optional<std::string> read_text(const std::string& path) {
    const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) return std::nullopt;
    constexpr std::size_t max_bytes = 4U << 20;
    std::string text;
    char buffer[8192];
    ssize_t n = 0;
    while (text.size() < max_bytes && (n = ::read(fd, buffer, sizeof buffer)) > 0)
        text.append(buffer, static_cast<std::size_t>(n));
    ::close(fd);
    if (n < 0) return std::nullopt;
    return text;
}

std::string_view trim(std::string_view text) {
    constexpr std::string_view space = " \t\r\n";
    const std::size_t first = text.find_first_not_of(space);
    if (first == std::string_view::npos) return {};
    return text.substr(first, text.find_last_not_of(space) - first + 1);
}

std::vector<std::string_view> split(std::string_view text, char separator) {
    std::vector<std::string_view> parts;
    while (!text.empty()) {
        const std::size_t end = std::min(text.find(separator), text.size());
        parts.push_back(text.substr(0, end));
        text.remove_prefix(std::min(end + 1, text.size()));
    }
    return parts;
}

template <class T>
std::optional<T> to_number(std::string_view text) {
    text = trim(text);
    T value{};
    const auto [stop, ec] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (ec != std::errc() || stop != text.data() + text.size()) return std::nullopt;
    return value;
}

template <class T>
std::optional<T> read_number(const std::string& path) {
    const auto text = read_text(path);
    return text ? to_number<T>(*text) : std::nullopt;
}

// The rest of the line that starts with `label`.
std::optional<std::string_view> line_after(std::string_view text, std::string_view label) {
    for (std::string_view line : split(text, '\n')) {
        if (line.starts_with(label)) return line.substr(label.size());
    }
    return std::nullopt;
}

int online_cpus(const std::string& root) {
    if (const auto text = read_text(root + "/sys/devices/system/cpu/online")) {
        if (const auto cpus = parse_cpu_list(*text)) return static_cast<int>(cpus->size());
    }
    if (const auto text = read_text(root + "/proc/cpuinfo")) {
        int count = 0;
        for (std::string_view line : split(*text, '\n')) count += line.starts_with("processor") ? 1 : 0;
        if (count > 0) return count;
    }
    if (root.empty()) return static_cast<int>(std::max(1L, ::sysconf(_SC_NPROCESSORS_ONLN)));
    return 0;
}

// A cgroup hierarchy: the folder where its root is seen, and the process's group in it.
struct Hierarchy {
    std::string mount;
    std::string group;  // "/a/b"; "/" is the hierarchy's root, or that of the cgroup namespace
};

struct Membership {
    std::string controllers;  // "cpu,cpuacct"; empty for v2
    std::string group;
};

std::vector<Membership> read_memberships(const std::string& root, bool& found) {
    std::vector<Membership> memberships;
    const auto text = read_text(root + "/proc/self/cgroup");
    found = text.has_value();
    if (!text) return memberships;
    for (std::string_view line : split(*text, '\n')) {
        const std::size_t first = line.find(':');
        const std::size_t second = first == std::string_view::npos ? first : line.find(':', first + 1);
        if (second == std::string_view::npos) continue;
        memberships.push_back(
            {std::string(line.substr(first + 1, second - first - 1)), std::string(line.substr(second + 1))});
    }
    return memberships;
}

bool lists(std::string_view comma_separated, std::string_view word) {
    const auto words = split(comma_separated, ',');
    return std::find(words.begin(), words.end(), word) != words.end();
}

// Mount points in mountinfo have space, tab, newline and backslash as \ooo.
std::string unescape_octal(std::string_view text) {
    std::string out;
    for (std::size_t i = 0; i < text.size(); ++i) {
        const bool escape =
            text[i] == '\\' && i + 3 < text.size() &&
            std::all_of(text.begin() + static_cast<std::ptrdiff_t>(i) + 1,
                        text.begin() + static_cast<std::ptrdiff_t>(i) + 4, [](char c) { return c >= '0' && c <= '7'; });
        if (escape) {
            out += static_cast<char>((text[i + 1] - '0') * 64 + (text[i + 2] - '0') * 8 + (text[i + 3] - '0'));
            i += 3;
        } else {
            out += text[i];
        }
    }
    return out;
}

// Where a controller's hierarchy is mounted ("" asks for v2), from mountinfo:
// "36 35 0:30 /docker/x /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory". The fourth field is the group that the
// mount point shows: without a cgroup namespace, a container sees its own group at the mount point and the host's path
// in /proc/self/cgroup.
std::optional<Hierarchy> mounted_hierarchy(const std::string& root, const std::string& mountinfo,
                                           std::string_view controller, const std::string& group) {
    for (std::string_view line : split(mountinfo, '\n')) {
        const std::size_t dash = line.find(" - ");
        if (dash == std::string_view::npos) continue;
        const auto left = split(line.substr(0, dash), ' ');
        const auto right = split(line.substr(dash + 3), ' ');
        if (left.size() < 5 || right.size() < 3) continue;
        const bool wanted =
            controller.empty() ? right[0] == "cgroup2" : right[0] == "cgroup" && lists(right[2], controller);
        if (!wanted) continue;
        const std::string shown = unescape_octal(left[3]);
        std::string inside = group;
        if (shown != "/" && (group == shown || group.starts_with(shown + "/"))) inside = group.substr(shown.size());
        return Hierarchy{root + unescape_octal(left[4]), inside};
    }
    return std::nullopt;
}

bool exists(const std::string& path) { return ::access(path.c_str(), F_OK) == 0; }

Hierarchy find_hierarchy(const std::string& root, const std::string& mountinfo, std::string_view controller,
                         const Membership& membership) {
    if (auto mounted = mounted_hierarchy(root, mountinfo, controller, membership.group)) {
        if (exists(mounted->mount)) return *mounted;
    }
    const std::string base = root + "/sys/fs/cgroup";
    std::vector<std::string> candidates;
    if (controller.empty()) {
        candidates = {base + "/unified"};
    } else {
        if (!membership.controllers.empty()) candidates.push_back(base + "/" + membership.controllers);
        candidates.push_back(base + "/" + std::string(controller));
        if (controller == "cpu") candidates.push_back(base + "/cpu,cpuacct");
    }
    for (const std::string& folder : candidates) {
        if (exists(folder)) return {folder, membership.group};
    }
    return {base, membership.group};
}

// The folders of the process's group and of all groups above it that can be seen, innermost first.
std::vector<std::string> folders_upward(const Hierarchy& hierarchy) {
    // "/../x" is what a process outside the reader's cgroup namespace looks like: only the root can be seen then.
    std::string group = hierarchy.group;
    const auto parts = split(group, '/');
    if (std::find(parts.begin(), parts.end(), "..") != parts.end()) group.clear();
    std::vector<std::string> folders;
    while (!group.empty() && group != "/") {
        folders.push_back(hierarchy.mount + group);
        const std::size_t slash = group.rfind('/');
        group.resize(slash == std::string::npos ? 0 : slash);
    }
    folders.push_back(hierarchy.mount);
    return folders;
}

template <class T>
void lower(std::optional<T>& value, T candidate) {
    value = value ? std::min(*value, candidate) : candidate;
}

// v1 says "no limit" as the largest page-aligned int64 (9223372036854771712 with 4 KiB pages).
bool is_unlimited(std::uint64_t bytes) { return bytes >= (1ULL << 62); }

struct CgroupLimits {
    std::optional<double> cpus;
    std::optional<std::uint64_t> memory;
    std::optional<std::uint64_t> headroom;

    void add_quota(std::int64_t quota_us, std::int64_t period_us) {
        if (quota_us > 0 && period_us > 0) lower(cpus, static_cast<double>(quota_us) / static_cast<double>(period_us));
    }

    // Pages of files that were read and are not in active use are counted as used, and are given up when memory is
    // needed.
    void add_memory(std::uint64_t limit, std::optional<std::uint64_t> used, std::uint64_t reclaimable) {
        if (is_unlimited(limit)) return;
        lower(memory, limit);
        const std::uint64_t held = used.value_or(0) - std::min(used.value_or(0), reclaimable);
        lower(headroom, limit - std::min(limit, held));
    }
};

std::uint64_t stat_value(const std::optional<std::string>& stat, std::string_view label, std::uint64_t otherwise) {
    if (!stat) return otherwise;
    const auto rest = line_after(*stat, label);
    return rest ? to_number<std::uint64_t>(*rest).value_or(otherwise) : otherwise;
}

void read_v2(const Hierarchy& hierarchy, CgroupLimits& limits) {
    for (const std::string& folder : folders_upward(hierarchy)) {
        if (const auto text = read_text(folder + "/cpu.max")) {
            const auto words = split(trim(*text), ' ');
            if (!words.empty() && words[0] != "max") {
                const auto period = words.size() > 1 ? to_number<std::int64_t>(words[1]) : std::int64_t{100'000};
                limits.add_quota(to_number<std::int64_t>(words[0]).value_or(0), period.value_or(0));
            }
        }
        if (const auto limit = read_number<std::uint64_t>(folder + "/memory.max")) {  // "max" is no number
            const auto stat = read_text(folder + "/memory.stat");
            limits.add_memory(*limit, read_number<std::uint64_t>(folder + "/memory.current"),
                              stat_value(stat, "inactive_file ", 0));
        }
    }
}

void read_v1_cpu(const Hierarchy& hierarchy, CgroupLimits& limits) {
    for (const std::string& folder : folders_upward(hierarchy)) {
        const auto quota = read_number<std::int64_t>(folder + "/cpu.cfs_quota_us");  // -1: none
        const auto period = read_number<std::int64_t>(folder + "/cpu.cfs_period_us");
        if (quota) limits.add_quota(*quota, period.value_or(100'000));
    }
}

void read_v1_memory(const Hierarchy& hierarchy, CgroupLimits& limits) {
    for (const std::string& folder : folders_upward(hierarchy)) {
        const auto limit = read_number<std::uint64_t>(folder + "/memory.limit_in_bytes");
        if (!limit) continue;
        const auto stat = read_text(folder + "/memory.stat");
        limits.add_memory(*limit, read_number<std::uint64_t>(folder + "/memory.usage_in_bytes"),
                          stat_value(stat, "total_inactive_file ", 0));
        // Of groups above that cannot be seen from in here; how much of those is used, nobody tells.
        const std::uint64_t above = stat_value(stat, "hierarchical_memory_limit ", ~0ULL);
        if (!is_unlimited(above)) lower(limits.memory, above);
    }
}

std::uint64_t meminfo_bytes(std::string_view text, std::string_view label) {
    const auto rest = line_after(text, label);
    if (!rest) return 0;
    const auto words = split(trim(*rest), ' ');
    const std::uint64_t kib = words.empty() ? 0 : to_number<std::uint64_t>(words[0]).value_or(0);
    return kib < (1ULL << 50) ? kib * 1024 : 0;
}

}  // namespace

int SystemLimits::threads() const {
    double count = cpus_allowed > 0 ? cpus_allowed : cpus_online;
    if (cpus_online > 0) count = std::min(count, static_cast<double>(cpus_online));
    if (cpu_quota) count = std::min(count, std::ceil(*cpu_quota));
    return std::max(1, static_cast<int>(count));
}

std::uint64_t SystemLimits::memory_bytes() const {
    if (!memory_limit_bytes) return memory_host_bytes;
    return memory_host_bytes == 0 ? *memory_limit_bytes : std::min(memory_host_bytes, *memory_limit_bytes);
}

SystemLimits read_system_limits(const std::string& root) {
    SystemLimits result;
    result.cpus_online = online_cpus(root);
    const auto allowed = static_cast<int>(allowed_cpus(root).size());
    result.cpus_allowed = allowed > 0 ? allowed : result.cpus_online;
    if (const auto text = read_text(root + "/proc/meminfo")) {
        result.memory_host_bytes = meminfo_bytes(*text, "MemTotal:");
        result.memory_available_bytes = meminfo_bytes(*text, "MemAvailable:");
        if (result.memory_available_bytes == 0) result.memory_available_bytes = meminfo_bytes(*text, "MemFree:");
    }

    bool has_memberships = false;
    const std::vector<Membership> memberships = read_memberships(root, has_memberships);
    const std::string mountinfo = read_text(root + "/proc/self/mountinfo").value_or("");
    auto member_of = [&](std::string_view controller) -> std::optional<Membership> {
        for (const Membership& m : memberships) {
            if (controller.empty() ? m.controllers.empty() : lists(m.controllers, controller)) return m;
        }
        if (!has_memberships)
            return Membership{"", "/"};  // an unreadable /proc: what is at the mount points still counts
        return std::nullopt;
    };

    CgroupLimits limits;
    const auto unified = member_of("");
    const auto cpu = member_of("cpu");
    const auto memory = member_of("memory");
    if (unified) read_v2(find_hierarchy(root, mountinfo, "", *unified), limits);
    if (cpu) read_v1_cpu(find_hierarchy(root, mountinfo, "cpu", *cpu), limits);
    if (memory) read_v1_memory(find_hierarchy(root, mountinfo, "memory", *memory), limits);

    if (!has_memberships) {
        const std::string base = root + "/sys/fs/cgroup";
        const bool v1 = exists(base + "/memory") || exists(base + "/cpu") || exists(base + "/cpu,cpuacct");
        const bool v2 = exists(base + "/cgroup.controllers") || exists(base + "/unified");
        result.cgroup_version = v1 && v2 ? "hybrid" : v1 ? "v1" : v2 ? "v2" : "none";
    } else {
        const bool v1 = std::any_of(memberships.begin(), memberships.end(), [](const Membership& m) {
            return !m.controllers.empty() && !m.controllers.starts_with("name=");
        });
        result.cgroup_version = v1 && unified ? "hybrid" : v1 ? "v1" : unified ? "v2" : "none";
    }

    result.cpu_quota = limits.cpus;
    result.memory_limit_bytes = limits.memory;
    if (limits.headroom) result.memory_available_bytes = std::min(result.memory_available_bytes, *limits.headroom);
    if (limits.memory) result.memory_available_bytes = std::min(result.memory_available_bytes, *limits.memory);
    return result;
}

}  // namespace hetero
