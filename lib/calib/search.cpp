#include "calib/search.h"

#include <algorithm>
#include <cmath>
#include <tuple>

namespace hetero::calib {
namespace {

using kv::PartId;

constexpr PartId both[] = {PartId::k, PartId::v};
constexpr double k_weights[] = {1, 0.5, 2};

PartId part_of(std::size_t part) { return both[part % 2]; }

}  // namespace

kv::Scheme Ladder::scheme(PartId part, std::size_t option) const {
    return kv::scheme_from_spec(of(part)[option], sinks, window, kernels::DType::f16);
}

Ladder default_ladder() {
    const auto parse = [](std::initializer_list<std::string_view> texts) {
        std::vector<quant::Spec> specs;
        for (const std::string_view text : texts) specs.push_back(*quant::parse_spec(text));
        return specs;
    };
    Ladder ladder;
    ladder.k = parse({"wf3:g64", "wf3:g32", "wf4:g64", "wf4:g32", "wf5:g64", "wf5:g32", "wf6:g64", "wf6:g32", "wf8:g64",
                      "wf8:g32", "wf9:g32", "f16"});
    ladder.base_k = 3;
    ladder.v = parse({"had:int3:asym", "had:int3:g32:asym", "had:int4", "had:int4:asym", "had:int4:g32:asym",
                      "had:int5", "had:int5:asym", "had:int6", "had:int6:asym", "had:int8", "f16"});
    ladder.base_v = 3;
    ladder.sinks = 4;
    return ladder;
}

std::vector<Job> search_jobs(const Ladder& ladder, std::size_t n_layers) {
    std::vector<Job> jobs;
    const Assignment none = uniform(n_layers, {}, {});
    for (std::size_t part = 0; part < 2 * n_layers; ++part) {
        Job& job = jobs.emplace_back(Job{Job::Kind::drift, none});
        job.assignment.of(part_of(part))[part / 2] = ladder.scheme(part_of(part), ladder.base(part_of(part)));
    }
    for (const PartId part : both) {
        for (std::size_t option = 0; option < ladder.of(part).size(); ++option) {
            Job& job = jobs.emplace_back(Job{Job::Kind::drift, none});
            job.assignment.of(part).assign(n_layers, ladder.scheme(part, option));
        }
    }
    return jobs;
}

Result<Evidence> gather(Bench& bench, const Ladder& ladder, const std::vector<Outcome>& outcomes,
                        const std::vector<std::size_t>& texts) {
    const std::size_t n_parts = std::size_t{2} * bench.identity().n_layers;
    if (outcomes.size() != n_parts + ladder.k.size() + ladder.v.size()) {
        return fail(Errc::internal, "{} outcomes of a search with {} parts", outcomes.size(), n_parts);
    }
    Evidence out;
    std::size_t at = 0;
    while (out.alone.size() < n_parts) out.alone.push_back(outcomes[at++].figures.kl_mean);
    while (out.whole_k.size() < ladder.k.size()) out.whole_k.push_back(outcomes[at++].figures.kl_mean);
    while (out.whole_v.size() < ladder.v.size()) out.whole_v.push_back(outcomes[at++].figures.kl_mean);
    for (std::size_t part = 0; part < n_parts; ++part) {
        std::vector<double>& noise = out.noise.emplace_back();
        std::vector<std::uint64_t>& cost = out.cost.emplace_back();
        for (std::size_t option = 0; option < ladder.of(part_of(part)).size(); ++option) {
            const kv::Scheme scheme = ladder.scheme(part_of(part), option);
            double sum = 0;
            for (const std::size_t text : texts) {
                HETERO_TRY(const double one, bench.noise(text, part / 2, part_of(part), scheme));
                sum += one;
            }
            noise.push_back(sum / static_cast<double>(texts.size()));
            cost.push_back(bench.part_bytes(part / 2, part_of(part), scheme));
        }
    }
    return out;
}

Result<std::vector<std::vector<Option>>> expected_losses(const Ladder& ladder, const Evidence& evidence,
                                                         double k_weight) {
    const std::size_t n_parts = evidence.alone.size();
    std::vector<std::vector<Option>> out(n_parts);
    for (std::size_t part = 0; part < n_parts; ++part) {
        const double base = evidence.noise[part][ladder.base(part_of(part))];
        for (std::size_t option = 0; option < ladder.of(part_of(part)).size(); ++option) {
            const double ratio = base > 0 ? evidence.noise[part][option] / base : 0;
            out[part].push_back({evidence.cost[part][option], evidence.alone[part] * ratio});
        }
    }
    for (const PartId id : both) {
        const std::vector<double>& whole = id == PartId::k ? evidence.whole_k : evidence.whole_v;
        const std::size_t first = id == PartId::k ? 0 : 1;
        for (std::size_t option = 0; option < whole.size(); ++option) {
            double sum = 0;
            for (std::size_t part = first; part < n_parts; part += 2) sum += out[part][option].loss;
            const double factor = (sum > 0 ? whole[option] / sum : 1) * (id == PartId::k ? k_weight : 1);
            for (std::size_t part = first; part < n_parts; part += 2) {
                double& loss = out[part][option].loss;
                loss *= factor;
                if (!(loss >= 0 && std::isfinite(loss))) {
                    return fail(Errc::usage, "layer {}, {}: an expected loss of {}", part / 2, kv::part_name(id), loss);
                }
            }
        }
    }
    return out;
}

Assignment to_assignment(const Ladder& ladder, const std::vector<std::uint32_t>& chosen) {
    Assignment out;
    for (std::size_t part = 0; part < chosen.size(); ++part) {
        out.of(part_of(part)).push_back(ladder.scheme(part_of(part), chosen[part]));
    }
    return out;
}

Result<std::vector<Assignment>> candidates(const Ladder& ladder, const Evidence& evidence, std::uint64_t budget,
                                           bool thorough) {
    std::vector<Assignment> out;
    const auto offer = [&](Assignment assignment) {
        if (std::find(out.begin(), out.end(), assignment) == out.end()) out.push_back(std::move(assignment));
    };
    for (const double weight : std::span(k_weights).first(thorough ? std::size(k_weights) : 1)) {
        HETERO_TRY(const auto losses, expected_losses(ladder, evidence, weight));
        HETERO_TRY(const std::vector<FrontPoint> front, pareto_front(losses));
        if (const FrontPoint* point = within(front, budget)) offer(to_assignment(ladder, point->chosen));
    }

    // Alike in all layers: expected loss, option of K, of V.
    std::vector<std::tuple<double, std::size_t, std::size_t>> alike;
    const std::size_t n_parts = evidence.cost.size();
    for (std::size_t k = 0; k < ladder.k.size(); ++k) {
        for (std::size_t v = 0; v < ladder.v.size(); ++v) {
            std::uint64_t cost = 0;
            for (std::size_t part = 0; part < n_parts; ++part) cost += evidence.cost[part][part % 2 == 0 ? k : v];
            if (cost <= budget) alike.emplace_back(evidence.whole_k[k] + evidence.whole_v[v], k, v);
        }
    }
    std::sort(alike.begin(), alike.end());
    for (std::size_t i = 0; i < std::min<std::size_t>(alike.size(), thorough ? 2 : 1); ++i) {
        const auto& [loss, k, v] = alike[i];
        offer(uniform(n_parts / 2, ladder.scheme(PartId::k, k), ladder.scheme(PartId::v, v)));
    }
    return out;
}

}  // namespace hetero::calib
