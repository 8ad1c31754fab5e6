#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>

#include "base/hash.h"
#include "base/printable.h"
#include "base/units.h"
#include "hw/profile.h"
#include "plan.h"
#include "plan/fleet.h"
#include "plan/trace.h"

namespace hetero::tool {
namespace {

std::vector<std::string> words(std::string_view list) {
    std::vector<std::string> out;
    while (!list.empty()) {
        const std::size_t comma = list.find(',');
        if (comma != 0) out.emplace_back(list.substr(0, comma));
        list.remove_prefix(comma == std::string_view::npos ? list.size() : comma + 1);
    }
    return out;
}

Result<hw::Device> device_of(const hw::Machine& machine, const std::string& wanted) {
    const bool gpu = wanted == "gpu" || (wanted == "auto" && !machine.gpus.empty());
    if (!gpu) return machine.cpu;
    if (machine.gpus.empty()) return fail(Errc::bad_input, "machine {} has no GPU in its profile", machine.name);
    if (machine.gpus.size() > 1)
        return fail(Errc::bad_input, "machine {} has GPUs of {} kinds: give them profiles of their own", machine.name,
                    machine.gpus.size());
    hw::Device device = machine.gpus.front();
    if (device.codecs.empty()) device.codecs = machine.cpu.codecs;  // its host converts KV
    return device;
}

// Weights as they are stored, where the device has a path for them; of a configuration alone the first of the usual
// types that it has.
std::vector<std::string> dtypes_of(const hw::Device& device, const plan::ModelShape& shape, const std::string& asked) {
    if (!asked.empty()) return words(asked);
    if (!shape.stored_dtype.empty()) return {shape.stored_dtype};
    const auto there = plan::executable_dtypes(device);
    for (const char* usual : {"bf16", "f16"})
        if (std::find(there.begin(), there.end(), usual) != there.end()) return {usual};
    return there.empty() ? std::vector<std::string>{"bf16"} : std::vector<std::string>{there.front()};
}

// What the profile's device took for these very weights.
std::optional<plan::StageProfile> measured_stages(const hw::Device& device, const plan::DescribedModel& model) {
    if (model.model == nullptr) return std::nullopt;
    const std::string digest = to_hex(model.model->weights_digest);
    for (const plan::StageProfile& stages : device.stages)
        if (stages.weights_digest == digest) return stages;
    return std::nullopt;
}

// Places of a machine where KV may be kept between requests, beside the device's own memory.
std::vector<plan::Tier> tiers_of(const hw::Machine& machine, const hw::Device& device) {
    std::vector<plan::Tier> out;
    const auto add = [&](const char* name, const std::optional<double>& gb_per_s,
                         const std::optional<std::uint64_t>& bytes, hw::Origin origin) {
        if (gb_per_s && bytes)
            out.push_back({name, *gb_per_s * 1e9, static_cast<double>(*bytes) * 0.9, origin == hw::Origin::measured});
    };
    if (device.gpu) add("host", device.copies.host_to_device_gb_per_s, machine.cpu.memory_bytes, device.copies.origin);
    add("file", machine.disk.read_gb_per_s, machine.disk.free_bytes, machine.disk.origin);
    return out;
}

bool are_distinct(std::vector<std::string> names) {
    std::sort(names.begin(), names.end());
    return std::adjacent_find(names.begin(), names.end()) == names.end();
}

// "NAME=USD", of any machine of the kind.
Result<std::optional<double>> price_of(const PlanOptions& options, const plan::MachineKind& kind) {
    for (const std::string& text : options.prices) {
        const std::size_t at = text.rfind('=');
        const auto usd = at == std::string::npos ? Result<double>(-1.0) : parse_finite(text.substr(at + 1));
        if (!usd || !(*usd >= 1e-9 && *usd <= 1e12))
            return fail(Errc::usage, "--price-of '{}': expected NAME=USD, USD above 0", printable(text, 128));
        if (std::find(kind.hosts.begin(), kind.hosts.end(), printable(text.substr(0, at), 1024)) != kind.hosts.end())
            return std::optional(*usd);
    }
    return std::optional<double>{};
}

Result<plan::Side> side_of(const plan::MachineKind& kind, const hw::Profile& fleet, const PlanOptions& options,
                           const plan::DescribedModel& model, std::size_t index) {
    const hw::Machine& machine = *kind.machine;
    const bool first = index == 0, second = index == 1;
    plan::Side side;
    side.name = kind.hosts.front();
    side.rough = fleet.quick;
    HETERO_TRY(side.device, device_of(machine, options.device));
    const std::uint64_t times = first ? options.machines : second ? options.machines_decode : 1;
    side.machines = static_cast<std::uint32_t>(times * kind.hosts.size());
    if (times == 1 && are_distinct(kind.hosts)) side.hosts = kind.hosts;
    side.tiers = tiers_of(machine, side.device);
    HETERO_TRY(side.usd_per_hour, price_of(options, kind));
    if (!side.usd_per_hour && first) side.usd_per_hour = options.price;
    if (!side.usd_per_hour && second) side.usd_per_hour = options.price_decode;
    side.dtypes = dtypes_of(side.device, model.shape,
                            !first && !options.decode_dtype.empty() ? options.decode_dtype : options.dtype);
    for (const hw::Link& link : fleet.links)
        if (link.from == machine.name && link.to == machine.name && link.gb_per_s)
            side.exchange_bytes_per_s = std::max(side.exchange_bytes_per_s.value_or(0), *link.gb_per_s * 1e9);
    const std::string stages = first ? options.stages : second ? options.stages_decode : std::string();
    if (!stages.empty()) {
        HETERO_TRY(side.stages, plan::read_stage_profile(stages));
    } else {
        side.stages = measured_stages(side.device, model);
    }
    return side;
}

// What was measured between hosts is kept by host. Between kinds, of several links between machines alike the slowest,
// as a state may take it; inside one machine, and between unlike ones, the fastest.
void add_links(const hw::Profile& fleet, const std::vector<plan::MachineKind>& kinds, const PlanOptions& options,
               plan::Problem& problem) {
    const std::size_t n = problem.sides.size();
    problem.links.assign(n, std::vector<std::optional<plan::LinkRates>>(n));
    if (options.link_gb_per_s) {
        for (auto& from : problem.links)
            from.assign(n, plan::LinkRates{*options.link_gb_per_s * 1e9, options.link_latency_s,
                                           !options.link_specified, "as given"});
        return;
    }
    if (kinds.size() != n) return;  // of profiles that know nothing of each other
    const auto kind_of = [&](const std::string& host) {
        return static_cast<std::size_t>(std::find_if(kinds.begin(), kinds.end(),
                                                     [&](const auto& kind) {
                                                         return std::find(kind.hosts.begin(), kind.hosts.end(), host) !=
                                                                kind.hosts.end();
                                                     }) -
                                        kinds.begin());
    };
    for (const hw::Link& link : fleet.links) {
        const std::size_t p = kind_of(link.from), d = kind_of(link.to);
        if (!link.gb_per_s || p == n || d == n) continue;
        const plan::LinkRates rates{
            *link.gb_per_s * 1e9, link.latency_us.value_or(0) / 1e6, link.origin == hw::Origin::measured,
            fmt::format("{} to {}{}{}", link.from, link.to, link.via.empty() ? "" : " by ", link.via)};
        const bool by_host = !problem.sides[p].hosts.empty() && !problem.sides[d].hosts.empty();
        if (by_host) {
            problem.host_links.push_back({link.from, link.to, rates});
            continue;
        }
        const bool slowest = p == d && problem.sides[p].machines > 1;
        auto& best = problem.links[p][d];
        if (!best || (slowest ? rates.bytes_per_s < best->bytes_per_s : rates.bytes_per_s > best->bytes_per_s))
            best = rates;
    }
}

Status add_work(const PlanOptions& options, plan::Problem& problem) {
    plan::Workload& load = problem.workload;
    load.rate_per_s = options.rate;
    if (!options.trace.empty()) {
        if (options.prompt != 0 || options.output != 0)
            return fail(Errc::usage, "--trace has the lengths: --prompt and --output do not go with it");
        if (options.prefix_hit > 0)
            return fail(Errc::usage, "--trace has what is cached: --prefix-hit does not go with it");
        HETERO_TRY(plan::Trace trace, plan::read_trace(options.trace));
        load.prompt_tokens = static_cast<std::uint32_t>(trace.mean_prompt_tokens);
        load.output_tokens = std::max(1U, static_cast<std::uint32_t>(trace.mean_output_tokens));
        load.cached_tokens = std::min(load.prompt_tokens - 1,
                                      static_cast<std::uint32_t>(trace.mean_prompt_tokens * trace.cached_fraction));
        // Requests that all but coincide have no rate.
        if (!load.rate_per_s && trace.duration_s > 1e-6)
            load.rate_per_s = static_cast<double>(trace.requests.size()) / trace.duration_s;
        load.retained_tokens = trace.retained_tokens;
        load.trace = std::move(trace.requests);
        return {};
    }
    if (options.prompt == 0 || options.output == 0)
        return fail(Errc::usage, "no work: give --prompt and --output, or --trace");
    load.prompt_tokens = static_cast<std::uint32_t>(options.prompt);
    load.output_tokens = static_cast<std::uint32_t>(options.output);
    load.cached_tokens = std::min(load.prompt_tokens - 1,
                                  static_cast<std::uint32_t>(static_cast<double>(options.prompt) * options.prefix_hit));
    load.retained_tokens = options.prefixes * load.cached_tokens;
    return {};
}

// No engine serves what is longer than the model's context.
Status check_context(const PlanOptions& options, const plan::Workload& load, const plan::ModelShape& shape) {
    if (shape.context_tokens == 0) return {};
    const auto tokens = [](const auto& work) { return std::uint64_t{work.prompt_tokens} + work.output_tokens; };
    if (load.trace.empty()) {
        if (tokens(load) <= shape.context_tokens) return {};
        return fail(Errc::bad_input, "a prompt of {} tokens with {} more does not fit the model's context of {}",
                    load.prompt_tokens, load.output_tokens, shape.context_tokens);
    }
    const auto fits = [&](const sched::Request& request) { return tokens(request) <= shape.context_tokens; };
    const auto longer =
        load.trace.size() - static_cast<std::size_t>(std::count_if(load.trace.begin(), load.trace.end(), fits));
    if (longer == 0) return {};
    return fail(Errc::bad_input, "{}: {} of {} requests do not fit the model's context of {} tokens: leave them out",
                options.trace, longer, load.trace.size(), shape.context_tokens);
}

}  // namespace

Result<Stated> state_problem(Tool& tool, const PlanOptions& options) {
    if (options.model.empty()) return fail(Errc::usage, "no model: give one with --model");
    if (options.hw.empty()) return fail(Errc::usage, "no machines: give a profile of hw-probe with --hw");
    Stated out;
    plan::Problem& problem = out.problem;
    HETERO_CHECK(add_work(options, problem));
    HETERO_TRY(hw::Profile fleet, hw::read_profile(options.hw));
    HETERO_TRY(const plan::DescribedModel model, plan::describe_model(options.model));
    problem.shape = model.shape;
    HETERO_CHECK(check_context(options, problem.workload, model.shape));
    std::vector<plan::MachineKind> kinds = plan::kinds_of(fleet);
    if (!options.hw_decode.empty()) {
        HETERO_TRY(const hw::Profile other, hw::read_profile(options.hw_decode));
        if (fleet.machines.size() > 1 || other.machines.size() > 1)
            return fail(Errc::usage, "--hw and --hw-decode each take the profile of one machine, or --hw a fleet's");
        const auto others = plan::kinds_of(other);
        HETERO_TRY(problem.sides.emplace_back(), side_of(kinds[0], fleet, options, model, 0));
        HETERO_TRY(problem.sides.emplace_back(), side_of(others[0], other, options, model, 1));
        plan::Side &a = problem.sides[0], &b = problem.sides[1];
        a.hosts.clear();
        b.hosts.clear();
        if (a.name == b.name) {
            a.name += " (1)";
            b.name += " (2)";
        }
    } else {
        if (kinds.size() > plan::max_sides)
            return fail(Errc::usage, "{}: has machines of {} kinds; at most {} can be compared", options.hw,
                        kinds.size(), plan::max_sides);
        for (std::size_t i = 0; i < kinds.size(); ++i) {
            HETERO_TRY(problem.sides.emplace_back(), side_of(kinds[i], fleet, options, model, i));
            if (kinds[i].hosts.size() > 1 && are_distinct(kinds[i].hosts))
                tool.note("{} machines alike are planned for as one kind: {}", kinds[i].hosts.size(),
                          fmt::join(kinds[i].hosts, ", "));
        }
    }
    add_links(fleet, kinds, options, problem);
    HETERO_TRY(problem.formats.emplace_back(), format_of(model.shape, "f16"));
    for (const std::string& text : options.kv_dtypes) {
        HETERO_TRY(plan::KvFormat format, format_of(model.shape, text));
        if (format.name != "f16") problem.formats.push_back(std::move(format));
    }
    if (!options.certificate.empty()) HETERO_CHECK(add_certificate(tool, model, options.certificate, problem));
    out.certificate = options.certificate;
    if (options.ttft_s) problem.goals.ttft_s = *options.ttft_s;
    if (options.itl_s) problem.goals.itl_s = *options.itl_s;
    problem.goals.attainment = options.attainment;
    if (options.first_token == "prefill") problem.first_token = sched::FirstToken::prefill;
    if (options.first_token == "decode") problem.first_token = sched::FirstToken::decode;
    problem.prefix_at_decoder = options.prefix_at_decoder;
    problem.max_sequences = static_cast<std::uint32_t>(options.max_sequences);
    problem.chunk_tokens = static_cast<std::uint32_t>(options.chunk);
    problem.seed = options.seed;
    return out;
}

}  // namespace hetero::tool
