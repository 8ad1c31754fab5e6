#include "stages.h"

#include <algorithm>
#include <map>
#include <utility>

#include "base/clock.h"
#include "base/hash.h"
#include "base/statistics.h"
#include "base/threads.h"
#include "engine/session.h"
#include "hw/section.h"
#include "plan/shape.h"

namespace hetero::tool {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::uint32_t chunk_tokens = 512;  // of hetero-prefill(1)
constexpr std::uint32_t steps = 24;          // of decode, the median of which counts
constexpr double longest_s = 20;             // of one prefill: longer lengths are left out

// Both ends of what a prompt may be, and lengths that fill their last chunk and that do not.
std::vector<std::uint32_t> lengths(bool quick) {
    return quick ? std::vector<std::uint32_t>{48, 320, 1024}
                 : std::vector<std::uint32_t>{48, 192, 448, 960, 1600, 2560};
}

using Decode = std::pair<std::uint32_t, std::uint32_t>;  // context of each sequence, sequences

class StageProbe {
public:
    StageProbe(const plan::DescribedModel& model, const StagesCommand& command) : model_(model), command_(command) {
        options_.threads = command.threads;
        options_.chunk_tokens = chunk_tokens;
        options_.precision = engine::Precision::fast;
    }

    Status run() {
        const double budget_s = command_.quick ? 0 : 25;
        const int rounds = command_.quick ? 1 : 5;
        const Clock::time_point start = Clock::now();
        // All in turn, round after round: a machine whose speed drifts is as fast for one as for the other.
        for (int round = 0; round < rounds && (round == 0 || milliseconds_since(start) < budget_s * 1e3); ++round) {
            for (const std::uint32_t tokens : lengths(command_.quick)) {
                if (std::uint64_t{tokens} + steps > model_.shape.context_tokens && prefill_.size() > 1) break;
                if (expected_s(tokens) > longest_s && prefill_.size() > 1) break;
                HETERO_CHECK(one(tokens));
            }
            for (const std::uint32_t sequences : {2U, 4U, 8U}) {
                if (command_.quick && sequences != 4) continue;
                if (expected_s(batch_context * sequences) > longest_s) break;
                HETERO_CHECK(together(sequences));
            }
        }
        return {};
    }

    [[nodiscard]] Json entry() const {
        Json out;
        out["model"] = model_.shape.name;
        out["weights_digest"] = to_hex(model_.model->weights_digest);
        if (!model_.shape.stored_dtype.empty()) out["dtype"] = model_.shape.stored_dtype;
        out["threads"] = threads_;
        out["chunk_tokens"] = chunk_tokens;
        out["method"] = fmt::format(
            "the engine's default path, a new session each time; KV in f16; decode: median of {} steps; best of all "
            "rounds",
            steps);
        for (const auto& [tokens, seconds] : prefill_)
            out["prefill"].push_back({{"tokens", tokens}, {"seconds", hw::rounded(seconds)}});
        for (const auto& [key, seconds] : decode_) {
            const auto context = std::uint64_t{key.first + steps / 2} * key.second;
            out["decode"].push_back(
                {{"context_tokens", context}, {"sequences", key.second}, {"step_seconds", hw::rounded(seconds)}});
        }
        return out;
    }

private:
    static constexpr std::uint32_t batch_context = 192;

    [[nodiscard]] std::vector<engine::TokenId> tokens_of(std::uint32_t n) const {
        std::vector<engine::TokenId> tokens(n);
        for (std::uint32_t i = 0; i < n; ++i)
            tokens[i] = static_cast<engine::TokenId>(std::uint64_t{i} * 7919 % model_.model->config.vocab_size);
        return tokens;
    }
    [[nodiscard]] double expected_s(std::uint32_t tokens) const {
        if (prefill_.empty()) return 0;
        const auto& [most, seconds] = *prefill_.rbegin();
        return seconds * std::max(1.0, static_cast<double>(tokens) / most);
    }
    template <class Key>
    static void keep_best(std::map<Key, double>& all, const Key& key, double seconds) {
        const auto [at, is_new] = all.try_emplace(key, seconds);
        if (!is_new) at->second = std::min(at->second, seconds);
    }
    static Status ignore(std::uint64_t, std::span<const float>) { return {}; }

    // A prompt and what follows it, in a session of their own: memory is as new as it is to a prompt that comes.
    Status one(std::uint32_t tokens) {
        HETERO_TRY(const auto session, engine::Session::create(model_.model, options_, tokens + steps));
        threads_ = session->threads();
        const auto prompt = tokens_of(tokens);
        Clock::time_point start = Clock::now();
        HETERO_CHECK(session->prefill(prompt, engine::Logits::last, ignore));
        keep_best(prefill_, tokens, milliseconds_since(start) / 1e3);
        std::vector<double> taken;
        for (std::uint32_t i = 0; i < steps; ++i) {
            start = Clock::now();
            HETERO_CHECK(session->decode(prompt[i]));
            taken.push_back(milliseconds_since(start) / 1e3);
        }
        keep_best(decode_, Decode{tokens, 1}, percentile(taken, 50));
        return {};
    }

    // Sequences that share no memory.
    Status together(std::uint32_t sequences) {
        engine::Options options = options_;
        options.sequences = sequences;
        std::vector<std::unique_ptr<engine::Session>> all;
        HETERO_TRY(all.emplace_back(), engine::Session::create(model_.model, options, batch_context + steps));
        while (all.size() < sequences) {
            HETERO_TRY(all.emplace_back(), all.front()->fork(0));
        }
        const auto prompt = tokens_of(batch_context);
        for (const auto& session : all) HETERO_CHECK(session->prefill(prompt, engine::Logits::none, {}));
        std::vector<engine::Session::Step> next;
        for (const auto& session : all) next.push_back({session.get(), prompt[next.size()]});
        std::vector<double> taken;
        for (std::uint32_t i = 0; i < steps; ++i) {
            const Clock::time_point start = Clock::now();
            HETERO_CHECK(engine::Session::decode_together(next, ignore));
            taken.push_back(milliseconds_since(start) / 1e3);
        }
        keep_best(decode_, Decode{batch_context, sequences}, percentile(taken, 50));
        return {};
    }

    const plan::DescribedModel& model_;
    const StagesCommand& command_;
    engine::Options options_;
    int threads_ = 0;
    std::map<std::uint32_t, double> prefill_;  // [tokens] seconds
    std::map<Decode, double> decode_;          // seconds of a step
};

}  // namespace

Result<std::string> measure_stages(const StagesCommand& command) {
    HETERO_TRY(const plan::DescribedModel model, plan::describe_model(command.model));
    if (model.model == nullptr)
        return fail(Errc::bad_input, "{}: a configuration without weights cannot be run", command.model);
    StageProbe probe(model, command);
    HETERO_CHECK(probe.run());
    return Json::array({probe.entry()}).dump();
}

}  // namespace hetero::tool
