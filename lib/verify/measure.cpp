#include "verify/measure.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "engine/layers.h"
#include "engine/probability.h"
#include "verify/attention.h"

namespace hetero::verify {
namespace {

using engine::Session;

constexpr std::size_t block_tokens = 32;       // fed at once: bounds the [token][vocab] buffer of the reference
constexpr std::uint64_t resampled_steps = 16;  // adjacent ones, drawn together
constexpr std::uint32_t resamples = 1000;
constexpr std::uint64_t most_attention_steps = 64;  // of a sequence, spread evenly: their queries are enough

Result<std::unique_ptr<Session>> make_session(const std::shared_ptr<const model::Model>& model,
                                              const engine::KvStorage& storage, const Options& options,
                                              std::uint64_t capacity) {
    engine::Options engine_options;
    engine_options.threads = options.threads;
    engine_options.kv_dtype = storage.dtype;
    engine_options.kv_codecs = storage.codecs;
    engine_options.precision = options.precision;
    engine_options.device = options.device;
    engine_options.chunk_tokens = block_tokens;
    return Session::create(model, engine_options, capacity);
}

Status import_sequence(Session& session, const Stored& stored) {
    const kv::Header& header = stored.state->header;
    return engine::import_layers(session, header, stored.state->layers[stored.sequence],
                                 header.sequences[stored.sequence].tokens.size());
}

// The cache as the state has it, whatever was computed since.
Status reset(Session& session, const Stored& stored) {
    HETERO_CHECK(session.truncate(0));
    return import_sequence(session, stored);
}

// What follows the sequence: the stored choice, or that of the logits at its last position.
Result<TokenId> first_token(Session& session, const Stored& stored) {
    const kv::Sequence& sequence = stored.state->header.sequences[stored.sequence];
    if (sequence.pending_token >= 0) return sequence.pending_token;
    if (!sequence.logits.empty()) return engine::argmax(sequence.logits);
    HETERO_CHECK(session.truncate(sequence.tokens.size() - 1));
    HETERO_TRY(const auto logits, session.decode(sequence.tokens.back()));
    const TokenId token = engine::argmax(logits);
    HETERO_CHECK(reset(session, stored));
    return token;
}

// The greedy continuation of the reference.
Result<std::vector<TokenId>> continuation(Session& session, const Stored& reference, std::uint64_t steps) {
    HETERO_TRY(TokenId token, first_token(session, reference));
    std::vector<TokenId> tokens{token};
    while (tokens.size() < steps) {
        HETERO_TRY(const auto logits, session.decode(token));
        token = engine::argmax(logits);
        tokens.push_back(token);
    }
    HETERO_CHECK(reset(session, reference));
    return tokens;
}

// One sequence after the reference and after every candidate.
class SequenceRun {
public:
    SequenceRun(const std::shared_ptr<const model::Model>& model, const Options& options, ThreadPool& pool,
                std::uint32_t number, std::span<Report> reports)
        : model_(model), options_(options), pool_(pool), number_(number), reports_(reports) {}

    Status start(const kv::State& reference, std::span<const kv::State* const> candidates) {
        const kv::Sequence& sequence = reference.header.sequences[number_];
        const std::uint64_t capacity = sequence.tokens.size() + options_.steps;
        if (sequence.tokens.empty()) return fail(Errc::bad_input, "sequence {} has no tokens", sequence.id);
        if (capacity > model_->config.context_length) {
            return fail(Errc::bad_input,
                        "sequence {}: {} tokens and {} steps exceed the context of {}; use fewer steps", sequence.id,
                        sequence.tokens.size(), options_.steps, model_->config.context_length);
        }
        reference_ = {&reference, number_};
        HETERO_TRY(session_, make_session(model_, kv::source_dtype(reference.header), options_, capacity));
        HETERO_CHECK(import_sequence(*session_, reference_));
        if (options_.forced.empty()) {
            HETERO_TRY(fed_, continuation(*session_, reference_, options_.steps));
        } else {
            fed_ = options_.forced[number_];
        }
        for (const kv::State* candidate : candidates) {
            const auto& sequences = candidate->header.sequences;
            const auto found = std::find_if(sequences.begin(), sequences.end(),
                                            [&](const kv::Sequence& one) { return one.id == sequence.id; });
            if (found == sequences.end()) {
                return fail(Errc::bad_input, "the second state holds no sequence '{}'", sequence.id);
            }
            if (found->tokens.size() != sequence.tokens.size()) {
                return fail(Errc::bad_input, "sequence {}: the states hold {} and {} tokens", sequence.id,
                            sequence.tokens.size(), found->tokens.size());
            }
            candidates_.push_back({candidate, static_cast<std::size_t>(found - sequences.begin())});
            const engine::KvStorage storage =
                options_.resident ? *options_.resident : engine::KvStorage(kv::source_dtype(candidate->header));
            HETERO_TRY(auto session, make_session(model_, storage, options_, capacity));
            HETERO_CHECK(import_sequence(*session, candidates_.back()));
            if (storage.codecs) HETERO_CHECK(look_at_codes(*session));
            sessions_.push_back(std::move(session));
        }
        for (Report& report : reports_) report.fed.push_back(fed_);
        watch();
        return {};
    }

    // `on_block` is called with the tokens computed since.
    Status run(const std::function<void(std::uint64_t)>& on_block) {
        for (std::size_t begin = 0; begin < fed_.size(); begin += block_tokens) {
            const std::size_t count = std::min(block_tokens, fed_.size() - begin);
            HETERO_CHECK(block(begin, count));
            on_block(count * (1 + sessions_.size()));
        }
        add_attention_errors();
        return {};
    }

private:
    // What the last candidate's session holds, in place of the state it came from.
    Status look_at_codes(const Session& session) {
        const Stored from = candidates_.back();
        auto held = std::make_unique<kv::State>();
        held->header = from.state->header;
        held->header.sequences = {from.state->header.sequences[from.sequence]};
        for (const kv::PartId part : {kv::PartId::k, kv::PartId::v}) {
            held->header.schemes(part).assign(held->header.identity.n_layers, session.kv_scheme(part));
        }
        HETERO_TRY(held->layers.emplace_back(), engine::export_layers(session));
        candidates_.back() = {held.get(), 0};
        held_.push_back(std::move(held));
        return {};
    }

    void watch() {
        const std::uint64_t every = (fed_.size() + most_attention_steps - 1) / most_attention_steps;
        sums_.resize(model_->program.kv.size());
        for (auto& layer : sums_) layer.resize(candidates_.size());
        session_->observe_queries([this, every](const engine::Queries& queries) -> Status {
            const std::uint32_t layer = queries.attention.layer;
            const std::uint64_t step = queries.first - n_tokens();
            return add_attention(queries, static_cast<std::size_t>((every - step % every) % every),
                                 static_cast<std::size_t>(every), model_->program.kv[layer], reference_, candidates_,
                                 pool_, sums_[layer]);
        });
    }

    [[nodiscard]] std::uint64_t n_tokens() const { return reference_.state->header.sequences[number_].tokens.size(); }

    Status block(std::size_t begin, std::size_t count) {
        const std::size_t vocab = model_->config.vocab_size;
        const auto tokens = std::span(fed_).subspan(begin, count);
        logits_.resize(count * vocab);
        std::size_t at = 0;
        HETERO_CHECK(feed(*session_, tokens, [&](std::span<const float> logits) -> Status {
            std::copy(logits.begin(), logits.end(), logits_.data() + at++ * vocab);
            return {};
        }));
        for (std::size_t i = 0; i < sessions_.size(); ++i) {
            at = begin;
            HETERO_CHECK(feed(*sessions_[i], tokens, [&](std::span<const float> logits) -> Status {
                const std::span<const float> expected(logits_.data() + (at - begin) * vocab, vocab);
                HETERO_TRY(const Step step, compare(at++, expected, logits));
                reports_[i].steps.push_back(step);
                return {};
            }));
        }
        return {};
    }

    // In f32 a chunk gives what decoding gives, up to rounding, and is faster; fast products of the two differ by more.
    Status feed(Session& session, std::span<const TokenId> tokens,
                const std::function<Status(std::span<const float>)>& on_logits) const {
        // Tokens of a chunk see each other before they are codes.
        const bool codes = &session != session_.get() && options_.resident && options_.resident->codecs;
        if (options_.precision == engine::Precision::precise && !codes) {
            return session.prefill(tokens, engine::Logits::all,
                                   [&](std::uint64_t, std::span<const float> logits) { return on_logits(logits); });
        }
        for (const TokenId token : tokens) {
            HETERO_TRY(const auto logits, session.decode(token));
            HETERO_CHECK(on_logits(logits));
        }
        return {};
    }

    Result<Step> compare(std::size_t at, std::span<const float> reference, std::span<const float> candidate) const {
        auto difference = engine::compare_logits(reference, candidate, "first state", "second state");
        if (!difference) {
            return fail_with(difference.error(),
                             fmt::format("sequence {}, step {}", reference_.state->header.sequences[number_].id, at));
        }
        Step step{.sequence = number_,
                  .step = at,
                  .fed = fed_[at],
                  .max_abs_dp = difference->max_abs_dp,
                  .worst = difference->worst,
                  .p_reference = difference->p_a,
                  .p_candidate = difference->p_b,
                  .kl = difference->kl,
                  .max_abs_dlogit = difference->max_abs_dlogit,
                  .top_reference = difference->top_a,
                  .top_candidate = difference->top_b};
        if (at + 1 < fed_.size()) {
            const auto next = static_cast<std::size_t>(fed_[at + 1]);
            if (next >= reference.size()) {
                return fail(Errc::usage, "token {} is outside the vocabulary of {}", fed_[at + 1], reference.size());
            }
            step.nll_reference = difference->log_sum_a - static_cast<double>(reference[next]);
            step.nll_candidate = difference->log_sum_b - static_cast<double>(candidate[next]);
        }
        return step;
    }

    void add_attention_errors() {
        const auto relative = [](double error, double norm) { return error == 0 ? 0 : std::sqrt(error / norm); };
        for (std::uint32_t layer = 0; layer < sums_.size(); ++layer) {
            for (std::size_t i = 0; i < candidates_.size(); ++i) {
                const AttentionSums& sums = sums_[layer][i];
                AttentionError out;
                out.sequence = number_;
                out.layer = layer;
                double error = 0, norm = 0;
                for (std::size_t head = 0; head < sums.error.size(); ++head) {
                    error += sums.error[head];
                    norm += sums.norm[head];
                    out.head_relative_l2.push_back(relative(sums.error[head], sums.norm[head]));
                }
                out.relative_l2 = relative(error, norm);
                out.max_relative = sums.max_relative;
                out.worst_step = sums.worst_position < n_tokens() ? 0 : sums.worst_position - n_tokens();
                reports_[i].attention.push_back(std::move(out));
            }
        }
    }

    const std::shared_ptr<const model::Model>& model_;
    const Options& options_;
    ThreadPool& pool_;
    std::uint32_t number_;
    std::span<Report> reports_;  // [candidate]
    Stored reference_;
    std::vector<Stored> candidates_;
    std::vector<std::unique_ptr<const kv::State>> held_;  // of candidates that are looked at as codes
    std::unique_ptr<Session> session_;
    std::vector<std::unique_ptr<Session>> sessions_;  // [candidate]
    std::vector<TokenId> fed_;
    std::vector<float> logits_;                     // [token of the block][vocab], the reference's
    std::vector<std::vector<AttentionSums>> sums_;  // [layer][candidate]
};

Status check_options(const kv::State& reference, const Options& options) {
    if (options.steps == 0) return fail(Errc::usage, "at least one step is needed");
    if (options.forced.empty()) return {};
    if (options.forced.size() != reference.header.sequences.size()) {
        return fail(Errc::usage, "tokens to feed are given for {} sequences, the state has {}", options.forced.size(),
                    reference.header.sequences.size());
    }
    for (const auto& tokens : options.forced) {
        if (tokens.size() != options.steps) {
            return fail(Errc::usage, "{} tokens are given for {} steps", tokens.size(), options.steps);
        }
    }
    return {};
}

// The tokens of `header` through a session of this type, as a state.
Result<kv::State> recompute(const std::shared_ptr<const model::Model>& model, const kv::Header& header,
                            const Options& options, kernels::DType dtype) {
    kv::State state;
    state.header = header;
    for (const kv::PartId part : {kv::PartId::k, kv::PartId::v}) {
        state.header.schemes(part).assign(header.identity.n_layers, engine::scheme_of(dtype, part));
    }
    state.header.tokens_per_chunk = 0;
    engine::Options engine_options;
    engine_options.threads = options.threads;
    engine_options.kv_dtype = dtype;
    engine_options.precision = options.precision;
    engine_options.device = options.device;
    for (kv::Sequence& sequence : state.header.sequences) {
        sequence.logits.clear();
        HETERO_TRY(const auto session, Session::create(model, engine_options, sequence.tokens.size()));
        HETERO_CHECK(session->prefill(sequence.tokens, engine::Logits::none, {}));
        HETERO_TRY(state.layers.emplace_back(), engine::export_layers(*session));
    }
    return state;
}

}  // namespace

Summary summarise(std::span<const Step> steps, std::uint64_t seed) {
    Summary out;
    out.n = steps.size();
    std::vector<double> dp, kl, dlogit, reference, candidate;
    std::uint64_t same = 0;
    std::vector<std::size_t> blocks, scored_blocks;  // never across sequences
    const auto extend = [&](std::vector<std::size_t>& lengths, const Step& step) {
        if (step.step % resampled_steps == 0 || lengths.empty()) lengths.push_back(0);
        ++lengths.back();
    };
    for (const Step& step : steps) {
        dp.push_back(step.max_abs_dp);
        kl.push_back(step.kl);
        dlogit.push_back(step.max_abs_dlogit);
        same += step.top1_equal() ? 1 : 0;
        extend(blocks, step);
        if (std::isnan(step.nll_reference)) continue;
        reference.push_back(step.nll_reference);
        candidate.push_back(step.nll_candidate);
        extend(scored_blocks, step);
    }
    std::vector<double> drawn;
    const auto interval = [&](const std::vector<std::size_t>& lengths, const std::vector<double>& values,
                              const std::function<double(std::span<const double>)>& statistic) {
        return block_bootstrap(lengths, resamples, seed, [&](std::span<const std::size_t> places) {
            drawn.clear();
            for (const std::size_t place : places) drawn.push_back(values[place]);
            return statistic(drawn);
        });
    };
    const auto p99 = [](std::span<const double> values) { return percentile(values, 99); };
    out.max_abs_dp = maximum(dp);
    out.mean_abs_dp = mean(dp);
    out.p99_abs_dp = p99(dp);
    out.p99_abs_dp_interval = interval(blocks, dp, p99);
    out.kl_mean = mean(kl);
    out.kl_max = maximum(kl);
    out.kl_mean_interval = interval(blocks, kl, mean);
    out.max_abs_dlogit = maximum(dlogit);
    const Proportion top1 = proportion(same, steps.size());
    out.top1 = top1.value;
    out.top1_interval = top1.interval;
    out.n_scored = reference.size();
    out.perplexity_reference = std::exp(mean(reference));
    out.perplexity_candidate = std::exp(mean(candidate));
    // Paired: the change of each resample is of the same tokens.
    std::vector<double> change(reference.size());
    for (std::size_t i = 0; i < change.size(); ++i) change[i] = candidate[i] - reference[i];
    const auto ratio = [](std::span<const double> values) { return std::expm1(mean(values)); };
    out.perplexity_change = ratio(change);
    out.perplexity_change_interval = interval(scored_blocks, change, ratio);
    return out;
}

Proportion within(std::span<const Step> steps, double epsilon) {
    std::uint64_t count = 0;
    for (const Step& step : steps) count += step.max_abs_dp <= epsilon ? 1 : 0;
    return proportion(count, steps.size());
}

Result<std::vector<Report>> measure(const std::shared_ptr<const model::Model>& model, const kv::State& reference,
                                    std::span<const kv::State* const> candidates, const Options& options) {
    HETERO_CHECK(check_options(reference, options));
    try {
        ThreadPool pool(options.threads);
        std::vector<Report> reports(candidates.size());
        const std::size_t n_sequences = reference.header.sequences.size();
        const std::uint64_t total = n_sequences * options.steps * (1 + candidates.size());
        std::uint64_t done = 0;
        for (std::size_t i = 0; i < n_sequences; ++i) {
            SequenceRun run(model, options, pool, static_cast<std::uint32_t>(i), reports);
            HETERO_CHECK(run.start(reference, candidates));
            HETERO_CHECK(run.run([&](std::uint64_t tokens) {
                done += tokens;
                if (options.on_progress) options.on_progress(done, total);
            }));
        }
        for (Report& report : reports) report.summary = summarise(report.steps, options.seed);
        return reports;
    } catch (const std::bad_alloc&) {
        return fail(Errc::resource, "out of memory while comparing {} steps", options.steps);
    }
}

Result<Control> measure_control(const std::shared_ptr<const model::Model>& model, const kv::Header& header,
                                const Options& options) {
    try {
        HETERO_TRY(auto full, recompute(model, header, options, kernels::DType::f32));
        HETERO_TRY(auto half, recompute(model, header, options, kernels::DType::f16));
        const auto full_state = std::make_shared<const kv::State>(std::move(full));
        const auto half_state = std::make_shared<const kv::State>(std::move(half));
        const kv::State* candidate = half_state.get();
        Options floats = options;
        floats.resident.reset();
        HETERO_TRY(auto reports, measure(model, *full_state, {&candidate, 1}, floats));
        Control control;
        control.report = std::move(reports.front());
        const auto a = kv::memory_source(full_state, "f32"), b = kv::memory_source(half_state, "f16");
        HETERO_TRY(control.elements, kv::compare_states(*a, *b, false));
        return control;
    } catch (const std::bad_alloc&) {
        return fail(Errc::resource, "out of memory while measuring the noise of f16");
    }
}

}  // namespace hetero::verify
