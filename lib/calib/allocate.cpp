#include "calib/allocate.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <new>
#include <numeric>

namespace hetero::calib {
namespace {

constexpr double unreachable = std::numeric_limits<double>::infinity();
constexpr std::size_t max_options = 255;

Status check(std::span<const std::vector<Option>> parts) {
    if (parts.empty()) return fail(Errc::usage, "nothing to choose for");
    for (std::size_t part = 0; part < parts.size(); ++part) {
        if (parts[part].empty() || parts[part].size() > max_options) {
            return fail(Errc::usage, "part {} has {} options; 1 to {} can be weighed", part, parts[part].size(),
                        max_options);
        }
        for (const Option& option : parts[part]) {
            if (option.loss >= 0 && std::isfinite(option.loss) && option.cost < (1ULL << 48)) continue;
            return fail(Errc::usage, "part {}: an option of cost {} and loss {}", part, option.cost, option.loss);
        }
    }
    return {};
}

std::uint64_t cheapest(const std::vector<Option>& options) {
    return std::min_element(options.begin(), options.end(),
                            [](const Option& a, const Option& b) { return a.cost < b.cost; })
        ->cost;
}

}  // namespace

Result<std::vector<FrontPoint>> pareto_front(std::span<const std::vector<Option>> parts, std::size_t max_units) try {
    HETERO_CHECK(check(parts));
    // Costs above each part's cheapest option, in units.
    std::uint64_t unit = 0, spread = 0;
    for (const std::vector<Option>& options : parts) {
        const std::uint64_t base = cheapest(options);
        std::uint64_t most = 0;
        for (const Option& option : options) {
            unit = std::gcd(unit, option.cost - base);
            most = std::max(most, option.cost - base);
        }
        spread += most;
    }
    unit = std::max<std::uint64_t>(unit, 1);
    // Rounding up may add a unit for each part.
    while (spread / unit + parts.size() + 1 > std::max(max_units, parts.size() + 2)) unit *= 2;
    const std::size_t states = spread / unit + parts.size() + 1;

    // best[u]: the smallest loss of the parts so far for exactly u units; taken[part][u]: how it came about.
    std::vector<double> best(states, unreachable), next(states);
    std::vector<std::vector<std::uint8_t>> taken(parts.size(), std::vector<std::uint8_t>(states));
    best[0] = 0;
    std::size_t reach = 0;
    for (std::size_t part = 0; part < parts.size(); ++part) {
        std::fill(next.begin(), next.end(), unreachable);
        const std::uint64_t base = cheapest(parts[part]);
        std::size_t most = 0;
        for (std::size_t option = 0; option < parts[part].size(); ++option) {
            const std::size_t step = (parts[part][option].cost - base + unit - 1) / unit;
            most = std::max(most, step);
            for (std::size_t u = 0; u <= reach; ++u) {
                const double loss = best[u] + parts[part][option].loss;
                if (!(loss < next[u + step])) continue;
                next[u + step] = loss;
                taken[part][u + step] = static_cast<std::uint8_t>(option);
            }
        }
        reach += most;
        best.swap(next);
    }

    std::vector<FrontPoint> front;
    double lowest = unreachable;
    for (std::size_t u = 0; u <= reach; ++u) {
        if (!(best[u] < lowest)) continue;
        lowest = best[u];
        FrontPoint point;
        point.loss = best[u];
        point.chosen.resize(parts.size());
        std::size_t at = u;
        for (std::size_t part = parts.size(); part-- > 0;) {
            const std::uint8_t option = taken[part][at];
            point.chosen[part] = option;
            point.cost += parts[part][option].cost;
            at -= (parts[part][option].cost - cheapest(parts[part]) + unit - 1) / unit;
        }
        // With rounded costs a point may cost no more than the one before it.
        while (!front.empty() && front.back().cost >= point.cost) front.pop_back();
        front.push_back(std::move(point));
    }
    return front;
} catch (const std::bad_alloc&) {
    return fail(Errc::resource, "out of memory: options of {} parts", parts.size());
}

const FrontPoint* within(std::span<const FrontPoint> front, std::uint64_t budget) noexcept {
    const FrontPoint* found = nullptr;
    for (const FrontPoint& point : front) {
        if (point.cost <= budget) found = &point;
    }
    return found;
}

}  // namespace hetero::calib
