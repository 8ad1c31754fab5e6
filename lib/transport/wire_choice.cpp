#include "transport/wire_choice.h"

#include <algorithm>
#include <limits>

namespace hetero::transport {

double wire_seconds(const WireForm& form, std::uint64_t layers, double bytes_per_s) noexcept {
    if (!(bytes_per_s > 0)) return std::numeric_limits<double>::infinity();
    const double n = static_cast<double>(std::max<std::uint64_t>(layers, 1));
    const double send_s = static_cast<double>(form.bytes) / bytes_per_s;
    const double slowest = std::max({form.encode_s, send_s, form.decode_s});
    return (form.encode_s + send_s + form.decode_s + (n - 1) * slowest) / n;
}

// In x = seconds per byte, plain.bytes * x = wire_seconds(form) is solved where the work is the slowest stage and, if
// the solution lies beyond that, where the link is.
double break_even_bytes_per_s(const WireForm& plain, const WireForm& form, std::uint64_t layers) noexcept {
    if (form.bytes >= plain.bytes) return 0;
    const double n = static_cast<double>(std::max<std::uint64_t>(layers, 1));
    const double whole = static_cast<double>(plain.bytes), smaller = static_cast<double>(form.bytes);
    const double work = form.encode_s + form.decode_s, slower = std::max(form.encode_s, form.decode_s);
    if (work <= 0) return std::numeric_limits<double>::infinity();
    const double x = (work + (n - 1) * slower) / (n * whole - smaller);
    if (smaller * x <= slower) return 1 / x;
    return n * (whole - smaller) / work;
}

std::size_t fastest_form(std::span<const WireForm> forms, std::uint64_t layers, double bytes_per_s) noexcept {
    std::size_t best = 0;
    for (std::size_t i = 1; i < forms.size(); ++i) {
        if (wire_seconds(forms[i], layers, bytes_per_s) < wire_seconds(forms[best], layers, bytes_per_s)) best = i;
    }
    return best;
}

}  // namespace hetero::transport
