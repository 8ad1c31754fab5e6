#include "common/progress.h"
#include "common/prompts.h"
#include "verify.h"

namespace hetero::tool {
namespace {

Result<std::vector<TokenId>> forced_tokens(const LoadedModel& loaded, const VerifyOptions& options) {
    if (options.text.empty()) return std::vector<TokenId>{};
    if (!loaded.tokenizer) return fail(Errc::bad_input, "{} has no tokenizer", options.model.path);
    HETERO_TRY(const std::string text, read_text(options.text));
    auto tokens = loaded.tokenizer->encode(text, SpecialText::plain);
    if (tokens.size() < options.steps) {
        return fail(Errc::bad_input, "{}: has {} tokens, --steps asks for {}", options.text, tokens.size(),
                    options.steps);
    }
    tokens.resize(options.steps);
    if (auto status = check_vocabulary(tokens, loaded.identity); !status) {
        return fail_with(status.error(), options.text);
    }
    return tokens;
}

// On the device; where "auto" found one that cannot take it, on the CPU.
template <class Measure>
auto measure_there(Tool& tool, const DeviceOptions& device, verify::Options& how, const Measure& measure) {
    auto measured = measure();
    if (measured || measured.error().code != Errc::resource || !device.is_auto() || how.device.ops == nullptr)
        return measured;
    note_cpu(tool, measured.error().message);
    how.device = {};
    return measure();
}

}  // namespace

Result<Drift> measure_drift(Tool& tool, const LoadedModel& loaded, const VerifyOptions& options, const kv::State& a,
                            const kv::State& b) {
    verify::Options drift_options;
    drift_options.steps = options.steps;
    drift_options.threads = static_cast<int>(options.model.threads);
    drift_options.device = options.model.device.found;
    drift_options.precision = options.model.precision();
    drift_options.seed = options.seed;
    if (options.kv_dtype != "auto") {
        HETERO_TRY(drift_options.resident, resident_storage(options.kv_dtype, nullptr));
    }
    HETERO_TRY(const std::vector<TokenId> forced, forced_tokens(loaded, options));
    const std::size_t n_sequences = a.header.sequences.size();
    if (!forced.empty()) drift_options.forced.assign(n_sequences, forced);
    Drift drift;
    {
        Progress progress(tool, "drift", n_sequences * options.steps * 2, "tokens");
        drift_options.on_progress = [&](std::uint64_t done, std::uint64_t) { progress.update(done); };
        const kv::State* candidate = &b;
        HETERO_TRY(auto reports, measure_there(tool, options.model.device, drift_options, [&] {
                       return verify::measure(loaded.model, a, {&candidate, 1}, drift_options);
                   }));
        drift.report = std::move(reports.front());
    }
    if (const DeviceOptions& device = options.model.device; drift_options.device.ops == device.found.ops)
        note_device(tool, device, device.found, device.why_cpu);
    if (options.floor != "auto") return drift;
    Progress progress(tool, "fp16 control", n_sequences * options.steps * 2, "tokens");
    drift_options.on_progress = [&](std::uint64_t done, std::uint64_t) { progress.update(done); };
    drift_options.forced = drift.report.fed;
    HETERO_TRY(drift.control, measure_there(tool, options.model.device, drift_options, [&] {
                   return verify::measure_control(loaded.model, a.header, drift_options);
               }));
    return drift;
}

}  // namespace hetero::tool
