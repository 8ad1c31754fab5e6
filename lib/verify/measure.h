// What another form of a KV state costs while decoding: the same tokens are fed after the reference state and after
// each candidate, and at every step the two predictions are compared; so is, layer by layer, what attention makes of
// the stored tokens. The quantities are defined in kv-verify(1).
#pragma once
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "base/statistics.h"
#include "engine/kv_format.h"
#include "engine/session.h"
#include "kv/compare.h"
#include "kv/stream.h"

namespace hetero::verify {

using engine::TokenId;

struct Options {
    std::uint64_t steps = 64;  // tokens fed after each sequence
    // [sequence of the reference][step], `steps` each: what is fed. Empty: the reference's greedy continuation, which
    // costs decoding it once more. Report::fed can be given here for the next candidates.
    std::vector<std::vector<TokenId>> forced;
    engine::Precision precision = engine::Precision::precise;
    // How the sessions of the candidates keep K and V, of the stored tokens and of those that are fed: codes (then the
    // attention error is that of the codes, too). Nothing: in the type that the state's numbers came from.
    std::optional<engine::KvStorage> resident;
    int threads = 0;                                                           // 0: default_thread_count()
    engine::Device device = {};                                                // of models
    std::uint64_t seed = 1;                                                    // of the draws that intervals come from
    std::function<void(std::uint64_t done, std::uint64_t total)> on_progress;  // in tokens; may be empty
};

// One step of one sequence.
struct Step {
    std::uint32_t sequence = 0;  // of the reference
    std::uint64_t step = 0;      // within the sequence, from 0; its position is the number of stored tokens + step
    TokenId fed = -1;
    double max_abs_dp = 0;                    // E_p: max over the vocabulary of |p_candidate - p_reference|
    TokenId worst = -1;                       // the token where it is reached
    double p_reference = 0, p_candidate = 0;  // of that token
    double kl = 0;                            // KL(reference || candidate), nats
    double max_abs_dlogit = 0;
    TokenId top_reference = -1, top_candidate = -1;
    // -log p of the token that is fed next; NaN at the last step of a sequence.
    double nll_reference = std::numeric_limits<double>::quiet_NaN();
    double nll_candidate = nll_reference;
    [[nodiscard]] bool top1_equal() const noexcept { return top_reference == top_candidate; }
};

// The figures of all steps. An interval holds the true value with 95 %: by bootstrap, 1000 draws of blocks of 16
// adjacent steps, those of proportions by Wilson's formula.
struct Summary {
    std::uint64_t n = 0;
    double max_abs_dp = 0, mean_abs_dp = 0, p99_abs_dp = 0;
    Interval p99_abs_dp_interval;
    double kl_mean = 0, kl_max = 0;
    Interval kl_mean_interval;
    double max_abs_dlogit = 0;
    double top1 = 1;  // fraction of the steps with the same most likely token
    Interval top1_interval;
    std::uint64_t n_scored = 0;  // steps with a next token
    double perplexity_reference = 0, perplexity_candidate = 0;
    double perplexity_change = 0;  // candidate / reference - 1
    Interval perplexity_change_interval;
};
// `steps`: those of all sequences, in order. NaN in any of them makes the figures NaN.
[[nodiscard]] Summary summarise(std::span<const Step> steps, std::uint64_t seed);
// Wilson's interval of the fraction of steps with E_p <= epsilon, and the fraction.
[[nodiscard]] Proportion within(std::span<const Step> steps, double epsilon);

// Softmax attention over the stored tokens alone, once with the reference's K and V and once with the candidate's, by
// the queries of the fed tokens as the reference computes them. (A state stores no queries.)
struct AttentionError {
    std::uint32_t sequence = 0, layer = 0;
    double relative_l2 = 0;   // |o' - o|_2 / |o|_2 over all queries and heads; 0 where both are zero
    double max_relative = 0;  // largest of a single query over all heads
    std::uint64_t worst_step = 0;
    std::vector<double> head_relative_l2;  // [query head]
};

struct Report {
    std::vector<Step> steps;  // in order of sequence, step
    Summary summary;
    std::vector<AttentionError> attention;  // in order of sequence, layer
    std::vector<std::vector<TokenId>> fed;  // [sequence][step]
};

// One report for each candidate; the reference is run once for all of them, and all have a session at a time, its
// cache in the type that the state's numbers came from (but see Options::resident). The states must have the same
// tokens, and the model's geometry (kv::compare and the tokens are the caller's question). Errors: bad_input (a
// candidate lacks a sequence, states that do not fit the model or the context, logits that are not finite: names
// sequence and step), resource, usage.
Result<std::vector<Report>> measure(const std::shared_ptr<const model::Model>& model, const kv::State& reference,
                                    std::span<const kv::State* const> candidates, const Options& options);

// The noise of the path itself: everything the same, between caches in f32 and in f16 that are computed anew from the
// tokens of `state`. `elements` compares their K and V.
struct Control {
    Report report;
    kv::Comparison elements;
};
Result<Control> measure_control(const std::shared_ptr<const model::Model>& model, const kv::Header& header,
                                const Options& options);

}  // namespace hetero::verify
