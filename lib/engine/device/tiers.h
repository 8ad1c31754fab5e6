// Where a session that runs on a device keeps K and V: in the device's memory, in the host's, from where a layer is
// brought just before it is used, or in a file that the host maps.
#pragma once
#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "kv/state.h"

namespace hetero::engine {

enum class Tier : std::uint8_t { device, host, file };
[[nodiscard]] const char* tier_name(Tier tier);

// Rules, later ones before earlier ones; what none names is on the device.
class KvTiers {
public:
    // TIER, or a list of WHERE=TIER with commas between them: WHERE is k, v, a layer, a range of layers, or these with
    // .k or .v after them: "host", "v=host", "0-7=device,8-31=host,8-31.v=file". Errors: usage.
    static Result<KvTiers> parse(std::string_view text);

    // usage: a rule names a layer that is not there.
    [[nodiscard]] Status check(std::size_t n_layers) const;
    [[nodiscard]] Tier of(std::size_t layer, kv::PartId part) const;
    [[nodiscard]] bool all_on_device() const;
    [[nodiscard]] bool any(Tier tier) const;

private:
    struct Rule {
        std::uint64_t first = 0, last = ~std::uint64_t{0};
        std::array<bool, 2> parts = {true, true};  // K, V
        Tier tier = Tier::device;
    };
    std::vector<Rule> rules_;
};

}  // namespace hetero::engine
