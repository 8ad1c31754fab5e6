// The job of kv-verify: one state is whole, or two are near enough to each other.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "common/endpoints.h"
#include "common/models.h"
#include "common/tool.h"
#include "kv/compare.h"
#include "verify/checks.h"
#include "verify/diagnose.h"
#include "verify/measure.h"

namespace hetero::tool {

struct VerifyOptions {
    std::string a, b;
    std::vector<std::string> sequences;  // empty: all
    verify::Bounds bounds;
    std::string metric, gate;  // empty: as the comparison asks for
    bool strict = false, allow_equal_nan = false;
    ModelOptions model;
    std::string kv_dtype = "auto";  // of B while decoding
    std::uint64_t steps = 64;
    std::string text;
    std::string floor = "off";
    std::uint64_t seed = 1;
    std::string csv, junit;  // paths; empty: not wanted
    TransferOptions transfer;
};

Status run_verify(Tool& tool, const VerifyOptions& options);
// One state: reading verifies structure and checksums; a number that is not finite, and scales that were never set, are
// damage, too.
Status verify_alone(Tool& tool, kv::Source& source);

// All that a comparison of two states found.
struct Outcome {
    kv::Header reference, candidate;  // of A and B
    kv::Comparison comparison;
    std::optional<verify::Report> drift;     // none without a model, nor between states that cannot be decoded alike
    std::optional<verify::Control> control;  // of fp16
    std::optional<double> floor;             // of E_p: measured, or as stated
    verify::Diagnosis diagnosis;
    std::vector<verify::Check> checks;
    std::string metric;  // "elem" or "prob"
    verify::Gated gated;
    Status verdict;                              // names the first check that does not pass
    std::shared_ptr<const Tokenizer> tokenizer;  // for the texts of tokens; may be null
};

struct Drift {
    verify::Report report;
    std::optional<verify::Control> control;
};
// Decodes after both states, and for `--floor auto` after those that the control computes.
Result<Drift> measure_drift(Tool& tool, const LoadedModel& loaded, const VerifyOptions& options, const kv::State& a,
                            const kv::State& b);

// Reports.
void add_to_report(Json& report, const Outcome& outcome, const VerifyOptions& options);
[[nodiscard]] std::string to_text(const Outcome& outcome, const VerifyOptions& options, bool per_layer);
[[nodiscard]] std::string to_csv(const Outcome& outcome);
[[nodiscard]] std::string to_junit(const Outcome& outcome, const VerifyOptions& options);
// A token as a quoted text of printable ASCII; its number where there is no tokenizer.
[[nodiscard]] std::string token_text(const Outcome& outcome, TokenId token);
// The steps with the largest E_p, at most `n`, the largest first.
[[nodiscard]] std::vector<verify::Step> worst_steps(const verify::Report& report, std::size_t n);
// "int8:token", or where layers differ "int8:token (20 layers), int4:token (10 layers)", in the order of layers
// (alone.cpp).
[[nodiscard]] std::string schemes_text(const std::vector<kv::Scheme>& schemes);
// "heads swapped (0 and 2)".
[[nodiscard]] std::string fault_text(const verify::Fault& fault);
// "p99 |dp| is 0.02, allowed are 0.01; worst at ...".
[[nodiscard]] std::string check_text(const verify::Check& check);

}  // namespace hetero::tool
