#include "verify.h"

#include <memory>

#include "base/units.h"
#include "common/sources.h"
#include "io/atomic_file.h"

namespace hetero::tool {
namespace {

class Comparator {
public:
    Comparator(Tool& tool, const VerifyOptions& options, const LoadedModel* loaded)
        : tool_(tool), options_(options), loaded_(loaded) {}

    Status run(kv::Source& a, kv::Source& b) {
        out_.reference = a.header();
        out_.candidate = b.header();
        if (loaded_ != nullptr) out_.tokenizer = loaded_->tokenizer;
        HETERO_CHECK(loaded_ == nullptr ? compare_elements(a, b) : compare_with_model(a, b));
        hold();
        out_.verdict = judge();
        add_to_report(tool_.report(), out_, options_);
        report_weights(tool_, "A and B", a.header().identity, b.header().identity);
        tool_.report_is_complete();
        if (!options_.csv.empty()) HETERO_CHECK(tool_.write_file(options_.csv, to_csv(out_)));
        if (!options_.junit.empty()) HETERO_CHECK(tool_.write_file(options_.junit, to_junit(out_, options_)));
        if (!tool_.json()) HETERO_CHECK(tool_.print(to_text(out_, options_, tool_.verbose())));
        return out_.verdict;
    }

private:
    Status compare_elements(kv::Source& a, kv::Source& b) {
        verify::Diagnoser diagnoser(
            a.header(), b.header(),
            loaded_ != nullptr ? verify::ropes_of(*loaded_->model) : verify::ropes_of(a.header().identity));
        HETERO_TRY(out_.comparison,
                   kv::compare_states(a, b, options_.allow_equal_nan,
                                      [&](const kv::ComparedLayer& layer) { return diagnoser.look(layer); }));
        out_.diagnosis = diagnoser.diagnosis();
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
        if (!out_.comparison.mismatches.empty() || out_.comparison.first_nonfinite)
            return {};  // nothing that could be decoded alike
        HETERO_TRY(Drift drift, measure_drift(tool_, *loaded_, options_, *state_a, *state_b));
        out_.drift = std::move(drift.report);
        out_.control = std::move(drift.control);
        if (options_.floor != "off" && options_.floor != "auto") {
            HETERO_TRY(out_.floor, parse_finite(options_.floor));
        }
        return {};
    }

    // The figures against their bounds.
    void hold() {
        out_.metric = !out_.drift ? "elem" : options_.metric.empty() ? "prob" : options_.metric;
        verify::Bounds bounds = options_.bounds;
        bounds.elements = out_.metric == "elem";
        const std::string gate = options_.strict          ? "max"
                                 : !options_.gate.empty() ? options_.gate
                                 : bounds.elements        ? "max"
                                                          : "p99";
        bounds.gate = gate == "max" ? verify::Gate::max : verify::Gate::p99;
        out_.gated = bounds.elements ? verify::apply(bounds.gate, out_.comparison)
                                     : verify::apply(bounds.gate, out_.drift->summary);
        if (out_.control) out_.floor = verify::apply(bounds.gate, out_.control->report.summary).value;
        verify::Measured measured{&out_.reference, &out_.comparison, out_.drift ? &*out_.drift : nullptr,
                                  out_.control ? &*out_.control : nullptr, out_.floor};
        out_.checks = verify::hold(bounds, measured);
    }

    // Says why the comparison does not pass.
    [[nodiscard]] Status judge() const {
        const kv::Comparison& comparison = out_.comparison;
        if (comparison.first_nonfinite) {
            return fail(Errc::bad_input, "{} at {}", comparison.nonfinite_what,
                        verify::place_of(*comparison.first_nonfinite));
        }
        if (!comparison.mismatches.empty()) {
            const kv::Mismatch& first = comparison.mismatches.front();
            return fail(Errc::check_failed, "the states do not belong together: {}: {} in A, {} in B{}", first.field,
                        first.left, first.right,
                        comparison.mismatches.size() > 1
                            ? fmt::format(" (and {} more)", comparison.mismatches.size() - 1)
                            : "");
        }
        for (const verify::Check& check : out_.checks) {
            if (check.resolved()) continue;
            return fail(Errc::bad_input, "{} {} is {} the noise floor {:.6g} of fp16 KV: it cannot be resolved",
                        check.option, check.bound, check.at_least ? "above" : "below", *check.control);
        }
        for (const verify::Check& check : out_.checks) {
            if (check.passed()) continue;
            std::string likely;
            for (const verify::Fault& fault : out_.diagnosis.faults)
                likely += fmt::format("{}{}", likely.empty() ? "; likely: " : ", ", fault_text(fault));
            return fail(Errc::check_failed, "{} {}: {}{}", check.at_least ? "under" : "over", check.option,
                        check_text(check), likely);
        }
        return {};
    }

    Tool& tool_;
    const VerifyOptions& options_;
    const LoadedModel* loaded_;
    Outcome out_;
};

}  // namespace

Status run_verify(Tool& tool, const VerifyOptions& options) {
    HETERO_TRY(const Endpoints endpoints,
               prepare_endpoints(tool, {options.a, options.b}, {}, options.transfer,
                                 {{options.model.path, options.text}, {options.csv, options.junit}}));
    for (const std::string& path : {options.csv, options.junit}) {
        if (!path.empty()) HETERO_CHECK(io::check_output_path(path, tool.overwrite()));
    }
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
