#include "verify.h"

#include <cmath>
#include <map>
#include <memory>
#include <string>

#include "base/units.h"
#include "common/kv_session.h"
#include "common/sources.h"
#include "kv/convert.h"

namespace hetero::tool {
namespace {

// Layers of each kind.
std::map<std::string, std::uint32_t> count_kinds(const kv::Header& header) {
    std::map<std::string, std::uint32_t> counts;
    for (std::uint32_t i = 0; i < header.identity.n_layers; ++i) ++counts[kv::kind_name(header.layer_shape(i).kind)];
    return counts;
}

// " (4 gqa, 22 swa)"; nothing where all are gqa.
std::string kinds_text(const kv::Header& header) {
    if (header.all_gqa()) return "";
    std::string text;
    for (const auto& [kind, count] : count_kinds(header))
        text += fmt::format("{}{} {}", text.empty() ? " (" : ", ", count, kind);
    return text + ")";
}

std::string shard_text(const kv::Header& header) {
    const kv::Shard& shard = header.shard;
    if (!header.is_shard()) return "";
    return fmt::format("; shard {} of {}: {} KV heads from head {} on, of {}", shard.tp_rank, shard.tp_size,
                       shard.head_count, shard.head_first, header.identity.n_kv_heads);
}

// Reading verifies structure and checksums; a number that is not finite is damage, too.
Status verify_alone(Tool& tool, kv::Source& source) {
    const kv::Header& header = source.header();
    std::uint64_t n_tokens = 0;
    for (std::size_t s = 0; s < header.sequences.size(); ++s) {
        n_tokens += header.sequences[s].tokens.size();
        for (std::uint32_t i = 0; i < header.identity.n_layers; ++i) {
            HETERO_TRY(const kv::Layer layer, source.read_layer());
            for (const kv::PartId id : {kv::PartId::k, kv::PartId::v}) {
                HETERO_TRY(const auto values, kv::decode_part(header, layer.part(id), header.stored_tokens(s, i), id,
                                                              header.first_token(s, i)));
                for (std::size_t at = 0; at < values.size(); ++at) {
                    if (std::isfinite(values[at])) continue;
                    return fail(Errc::bad_input, "{}: {} at {}", source.name(), values[at],
                                to_text(kv::locate(header, s, i, id, at)));
                }
            }
        }
    }
    HETERO_CHECK(source.finish());
    Json& report = tool.report();
    report["pass"] = true;
    report["sequences"] = header.sequences.size();
    report["n_tokens"] = n_tokens;
    report["kv_bytes"] = header.payload_bytes();
    report["layer_kinds"] = Json::object();
    for (const auto& [kind, count] : count_kinds(header)) report["layer_kinds"][kind] = count;
    report["shard"] = nullptr;
    if (header.is_shard())
        report["shard"] = {{"tp_size", header.shard.tp_size},
                           {"tp_rank", header.shard.tp_rank},
                           {"head_first", header.shard.head_first},
                           {"head_count", header.shard.head_count}};
    report["codec_k"] = header.k_schemes.front().codec;
    report["codec_v"] = header.v_schemes.front().codec;
    if (tool.json()) return {};
    return tool.print(fmt::format(
        "{}: complete and undamaged; {} sequences, {} tokens, {} layers{}, K {}, V {}, {} bytes{}\n", source.name(),
        header.sequences.size(), n_tokens, header.identity.n_layers, kinds_text(header), header.k_schemes.front().codec,
        header.v_schemes.front().codec, header.payload_bytes(), shard_text(header)));
}

class Comparator {
public:
    Comparator(Tool& tool, const VerifyOptions& options, const LoadedModel* loaded)
        : tool_(tool), options_(options), loaded_(loaded) {}

    Status run(kv::Source& a, kv::Source& b) {
        HETERO_CHECK(loaded_ == nullptr ? compare_elements(a, b) : compare_with_model(a, b));
        Json& report = tool_.report();
        // No drift without a model, nor between states that cannot be decoded alike.
        const std::string metric = !drift_ ? "elem" : options_.metric.empty() ? "prob" : options_.metric;
        const Status verdict = judge(metric);
        report["pass"] = verdict.has_value();
        report["metric"] = metric;
        report["epsilon"] = *options_.epsilon;
        report["gate"] = gate_.name;
        report["gate_value"] = number(gate_.value);
        report["gate_n"] = gate_n_;
        report["max_stands_in_for_p99"] = gate_.max_stands_in;
        if (drift_) report["precision"] = options_.model.precision_name();
        report["floor"] = floor_ ? number(*floor_) : Json(nullptr);
        add_to_report(report, drift_);
        report_weights(tool_, "A and B", a.header().identity, b.header().identity);
        report.update(to_json(comparison_));
        tool_.report_is_complete();
        if (!tool_.json()) HETERO_CHECK(tool_.print(text(metric, verdict.has_value())));
        return verdict;
    }

private:
    Status compare_elements(kv::Source& a, kv::Source& b) {
        HETERO_TRY(comparison_, kv::compare_states(a, b, options_.allow_equal_nan));
        return {};
    }

    Status compare_with_model(kv::Source& a, kv::Source& b) {
        const bool same = kv::compare(a.header().identity, b.header().identity).empty();
        if (same) {
            HETERO_CHECK(check_state(*loaded_, options_.model.path, a.header(), a.name()));
        }
        HETERO_TRY(auto read_a, kv::read_all(a));
        HETERO_TRY(auto read_b, kv::read_all(b));
        const auto state_a = std::make_shared<const kv::State>(std::move(read_a));
        const auto state_b = std::make_shared<const kv::State>(std::move(read_b));
        const auto source_a = kv::memory_source(state_a, a.name());
        const auto source_b = kv::memory_source(state_b, b.name());
        HETERO_CHECK(compare_elements(*source_a, *source_b));
        if (!comparison_.mismatches.empty() || comparison_.first_nonfinite)
            return {};  // nothing that could be decoded alike
        HETERO_TRY(drift_, states_drift(*loaded_, options_, *state_a, *state_b));
        if (options_.floor == "auto") {
            HETERO_TRY(const Drift floor, noise_floor(*loaded_, options_, *state_a));
            floor_ = apply_gate(prob_gate(), floor.steps.size(), floor.p99_abs_dp, floor.max_abs_dp).value;
        } else if (options_.floor != "off") {
            HETERO_TRY(floor_, parse_finite(options_.floor));
        }
        return {};
    }

    [[nodiscard]] std::string prob_gate() const {
        if (options_.strict) return "max";
        return options_.gate.empty() ? "p99" : options_.gate;
    }

    // Sets gate_; says why the comparison does not pass.
    Status judge(const std::string& metric) {
        const double epsilon = *options_.epsilon;
        std::uint64_t elements = 0;
        for (const kv::PartDifference& part : comparison_.parts) elements += part.elements;
        const bool elem = metric == "elem";
        if (elem) {
            const std::string gate = options_.strict || options_.gate.empty() ? "max" : options_.gate;
            gate_n_ = elements;
            gate_ = apply_gate(gate, elements, comparison_.p99_abs, comparison_.max_abs);
        } else {
            gate_n_ = drift_->steps.size();
            gate_ = apply_gate(prob_gate(), gate_n_, drift_->p99_abs_dp, drift_->max_abs_dp);
        }
        if (comparison_.first_nonfinite) {
            return fail(Errc::bad_input, "{} at {}", comparison_.nonfinite_what, to_text(*comparison_.first_nonfinite));
        }
        if (!comparison_.mismatches.empty()) {
            const kv::Mismatch& first = comparison_.mismatches.front();
            return fail(Errc::check_failed, "the states do not belong together: {}: {} in A, {} in B{}", first.field,
                        first.left, first.right,
                        comparison_.mismatches.size() > 1
                            ? fmt::format(" (and {} more)", comparison_.mismatches.size() - 1)
                            : "");
        }
        if (!elem && floor_ && epsilon < *floor_) {
            return fail(Errc::bad_input, "epsilon {} is below the noise floor {:.6g} of fp16 KV: it cannot be resolved",
                        epsilon, *floor_);
        }
        if (!(gate_.value <= epsilon)) {
            return fail(Errc::check_failed, "over epsilon: {} |d{}| is {:.6g}, allowed are {}; worst at {}",
                        gate_.max_stands_in ? "max" : gate_.name, elem ? "" : "p", gate_.value, epsilon,
                        elem ? to_text(comparison_.worst)
                             : fmt::format("sequence {}, step {}", drift_->worst_sequence, drift_->worst_step));
        }
        // The first token comes from the stored logits, not from K and V.
        if (const double first = elem ? comparison_.logits_max_abs : comparison_.logits_max_abs_dp;
            !(first <= epsilon)) {
            return fail(Errc::check_failed,
                        "over epsilon: max |d{}| of the stored logits is {:.6g}, allowed are {}; worst at {}",
                        elem ? "" : "p", first, epsilon, comparison_.logits_worst);
        }
        if (!elem && !(drift_->kl_max <= epsilon)) {
            return fail(Errc::check_failed, "over epsilon: max KL is {:.6g}, allowed are {}", drift_->kl_max, epsilon);
        }
        return {};
    }

    [[nodiscard]] std::string text(const std::string& metric, bool pass) const {
        std::string lines = to_text(comparison_, tool_.verbose());
        if (drift_) {
            lines += to_text(*drift_);
            lines += floor_ ? fmt::format("floor      {:.6g}\n", *floor_)
                            : "floor      unknown (--floor auto measures it)\n";
        }
        lines += fmt::format("gate       {} {} of {} values: {:.6g}, epsilon {}{}\n", metric, gate_.name, gate_n_,
                             gate_.value, *options_.epsilon,
                             gate_.max_stands_in ? " (the maximum, as they are fewer than 256)" : "");
        return lines + (pass ? "PASS\n" : "FAIL\n");
    }

    Tool& tool_;
    const VerifyOptions& options_;
    const LoadedModel* loaded_;
    kv::Comparison comparison_;
    std::optional<Drift> drift_;
    std::optional<double> floor_;
    Gate gate_;
    std::uint64_t gate_n_ = 0;
};

}  // namespace

Status run_verify(Tool& tool, const VerifyOptions& options) {
    HETERO_TRY(const Endpoints endpoints, prepare_endpoints(tool, {options.a, options.b}, {}, options.transfer,
                                                            {{options.model.path, options.text}, {}}));
    std::optional<LoadedModel> loaded;
    if (!options.model.path.empty()) {
        HETERO_TRY(loaded, load_model(options.model));
    }
    const auto open = [&](std::size_t i, const char* label) -> Result<std::unique_ptr<kv::Source>> {
        HETERO_TRY(auto opened, open_source(tool, endpoints.inputs[i], options.transfer.transport(tool), label));
        return select_sequences(std::move(opened.source), options.sequences);
    };
    HETERO_TRY(const auto a, open(0, "verify"));
    if (endpoints.inputs.size() == 1) return verify_alone(tool, *a);
    HETERO_TRY(const auto b, open(1, "B"));
    return Comparator(tool, options, loaded ? &*loaded : nullptr).run(*a, *b);
}

}  // namespace hetero::tool
