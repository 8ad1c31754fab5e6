#include "memory.h"

#include <sys/mman.h>

#include <cstdint>
#include <cstring>
#include <map>

#include "emulation.h"

namespace hetero::emulation {
namespace {

constexpr std::size_t page = 4096, guard = 1 << 20, alignment = 256;
constexpr unsigned char canary = 0xA5;

struct Allocation {
    int device;
    std::size_t bytes;
    std::byte* map;  // `guard` bytes that cannot be touched, the pages, and such a guard
    std::size_t map_bytes;
};
std::map<std::uintptr_t, Allocation> allocations;  // by the address that was given out
std::size_t used[64];
int nesting = 0;

std::size_t round_up(std::size_t n, std::size_t to) { return (n + to - 1) / to * to; }

void protect(const Allocation& one, int protection) {
    mprotect(one.map + guard, one.map_bytes - 2 * guard, protection);
}

bool whole(std::uintptr_t at, const Allocation& one) {
    const auto* end = reinterpret_cast<const unsigned char*>(at) + one.bytes;
    const auto* limit = reinterpret_cast<const unsigned char*>(one.map + one.map_bytes - guard);
    for (; end < limit; ++end)
        if (*end != canary) return false;
    const auto* begin = reinterpret_cast<const unsigned char*>(one.map + guard);
    for (; begin < reinterpret_cast<const unsigned char*>(at); ++begin)
        if (*begin != canary) return false;
    return true;
}

}  // namespace

bool allocate_device(int device, std::size_t bytes, void** memory) {
    if (bytes > settings().total_bytes - used[device]) return false;
    const std::size_t padded = round_up(bytes, alignment), map_bytes = round_up(padded, page) + 2 * guard;
    void* map = mmap(nullptr, map_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (map == MAP_FAILED) return false;
    auto* begin = static_cast<std::byte*>(map);
    mprotect(begin, guard, PROT_NONE);
    mprotect(begin + map_bytes - guard, guard, PROT_NONE);
    std::byte* at = begin + map_bytes - guard - padded;  // ends where the last page begins
    std::memset(begin + guard, canary, map_bytes - 2 * guard);
    std::memset(at, 0xFF, bytes);
    const Allocation one{device, bytes, begin, map_bytes};
    allocations[reinterpret_cast<std::uintptr_t>(at)] = one;
    used[device] += bytes;
    if (settings().strict_host && nesting == 0) protect(one, PROT_NONE);
    *memory = at;
    return true;
}

bool free_device(void* memory) {
    const auto found = allocations.find(reinterpret_cast<std::uintptr_t>(memory));
    if (found == allocations.end()) return false;
    used[found->second.device] -= found->second.bytes;
    munmap(found->second.map, found->second.map_bytes);
    allocations.erase(found);
    return true;
}

std::size_t used_bytes(int device) { return used[device]; }
std::size_t device_allocations() { return allocations.size(); }

Where where(const void* memory, std::size_t bytes) {
    const auto at = reinterpret_cast<std::uintptr_t>(memory);
    auto found = allocations.upper_bound(at);
    if (found == allocations.begin()) return Where::host;
    --found;
    const Allocation& one = found->second;
    if (at >= reinterpret_cast<std::uintptr_t>(one.map) + one.map_bytes) return Where::host;
    return at - found->first <= one.bytes && bytes <= one.bytes - (at - found->first) ? Where::device : Where::partly;
}

bool canaries_whole() {
    const DeviceAccess access;
    for (const auto& [at, one] : allocations)
        if (!whole(at, one)) return false;
    return true;
}

DeviceAccess::DeviceAccess() {
    if (nesting++ == 0 && settings().strict_host)
        for (const auto& [at, one] : allocations) protect(one, PROT_READ | PROT_WRITE);
}

DeviceAccess::~DeviceAccess() {
    if (--nesting == 0 && settings().strict_host)
        for (const auto& [at, one] : allocations) protect(one, PROT_NONE);
}

void apply_strict_host() {
    for (const auto& [at, one] : allocations) protect(one, settings().strict_host ? PROT_NONE : PROT_READ | PROT_WRITE);
}

}  // namespace hetero::emulation
