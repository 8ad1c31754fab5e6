#include "plan/practices.h"

#include <algorithm>
#include <cmath>

namespace hetero::plan {
namespace {

// Where KV is, and why there.
std::string residency(const Problem& problem, const Candidate& chosen) {
    std::string out;
    if (chosen.tier.empty()) {
        out = "no prompt begins as another did (--prefix-hit): nothing is retained, each state goes with its request";
    } else {
        out = chosen.computes_cached()
                  ? fmt::format("the {} cached tokens of a prompt are computed again", problem.workload.cached_tokens)
                  : fmt::format("KV of cached tokens ({:.4g} GB) is kept on the {}", chosen.retained_bytes / 1e9,
                                chosen.tier);
        out += "; per prompt";
        for (const TierPrice& price : chosen.tiers) {
            out += fmt::format("{} {} {:.4g} ms", &price == &chosen.tiers.front() ? "" : ",",
                               price.tier == "none" ? "computing takes" : price.tier, price.seconds * 1e3);
            if (price.missing_bytes > 0) out += fmt::format(" ({:.4g} GB too small)", price.missing_bytes / 1e9);
        }
    }
    // What is decoded is read whole for each token.
    const Group& decode = chosen.groups.back();
    for (const Tier& tier : problem.sides[decode.side].tiers) {
        if (tier.name != "host") continue;
        const double bytes =
            decode.worker.kv.bytes(problem.workload.prompt_tokens + problem.workload.output_tokens / 2.0);
        out += fmt::format("; what is decoded stays on the device: from the host each token would take {:.4g} ms more",
                           bytes / tier.bytes_per_s * 1e3);
    }
    return out;
}

}  // namespace

std::vector<Practice> practices(const Problem& problem, const Candidate& chosen, bool certificate_given) {
    const bool split = is_split(chosen.kind);
    std::vector<Practice> out;
    const auto add = [&](std::string text, bool kept, std::string why) {
        out.push_back({static_cast<int>(out.size()) + 1, std::move(text), kept, std::move(why)});
    };
    add("stages are placed by what devices achieve", chosen.verified,
        chosen.verified ? "all rates of this plan were measured" : "not measured: " + chosen.assumed.front());
    std::string paths;
    for (const Group& group : chosen.groups)
        paths += fmt::format("{}{} on {}", paths.empty() ? "" : ", ", group.dtype, problem.sides[group.side].name);
    add("a precision counts where it runs from end to end", true,
        fmt::format("profiles have an executable path for {}", paths));
    const bool sized = !chosen.figures || !split ||
                       std::min(chosen.figures->prefill_busy, chosen.figures->decode_busy) >= 0.5 ||
                       std::all_of(chosen.groups.begin(), chosen.groups.end(),
                                   [](const Group& group) { return group.instances == 1; });
    add("pools are sized by pressure", sized,
        chosen.figures ? fmt::format("prefill busy {:.0f} %, decode {:.0f} %", chosen.figures->prefill_busy * 100,
                                     chosen.figures->decode_busy * 100)
                       : "not played");
    add("the KV state is a versioned object at the boundary", true,
        "every state carries schema, model, tokens, positions, layout and formats (hetero-kv(5))");
    add("the representation is checked before bytes move", true,
        "receivers refuse a state of another model or schema by its header (hetero-wire(5))");
    add("conversion and consumption count, not only bytes", true,
        split ? fmt::format("{:.4g} ms to send, {:.4g} ms of them to convert, {:.4g} ms after prefill",
                            chosen.transfer_alone_s * 1e3, chosen.convert_s * 1e3, chosen.visible_alone_s * 1e3)
              : "nothing is sent");
    add("one side owns a state at each moment", true,
        "the decoder reserves before anything is sent; the sender keeps its copy until the commit");
    add("retention is apart from residency", true, residency(problem, chosen));
    const bool memory = chosen.inadmissible.empty();
    add("KV memory is a shared resource with its transient peak", memory,
        chosen.figures ? fmt::format("{:.4g} GB on a worker at the peak, reservations and staging included",
                                     static_cast<double>(chosen.figures->peak_kv_bytes) / 1e9)
                       : chosen.inadmissible);
    if ((chosen.wire.quantized || chosen.resident.quantized) && !certificate_given) {
        out[1].kept = false;
        out[1].why += fmt::format("; but KV as {} has no certificate of quality", chosen.wire.name);
    }
    return out;
}

}  // namespace hetero::plan
