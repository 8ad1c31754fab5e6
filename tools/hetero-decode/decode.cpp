#include "decode.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <memory>

#include "base/clock.h"
#include "base/redact.h"
#include "base/statistics.h"
#include "base/threads.h"
#include "base/trace.h"
#include "common/group.h"
#include "common/kv_session.h"
#include "common/sources.h"
#include "common/transfers.h"

namespace hetero::tool {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::uint64_t default_batch = 64;  // beyond it a step gains nothing

std::string to_hex(std::string_view bytes) {
    std::string hex;
    for (const char c : bytes) hex += fmt::format("{:02x}", static_cast<unsigned char>(c));
    return hex;
}

Json describe(const std::string& id, std::size_t n_prompt, const engine::Generation& generation, double import_ms) {
    const std::string text = to_valid_utf8(generation.text);
    Json entry = {{"id", id},
                  {"n_prompt_tokens", n_prompt},
                  {"n_tokens", generation.token_ids.size()},
                  {"token_ids", redacts() ? Json(nullptr) : Json(generation.token_ids)},
                  {"text", redacts() ? Json(nullptr) : Json(text)}};
    if (redacts()) {
        entry["text_bytes"] = generation.text.size();
    } else if (text != generation.text) {
        entry["bytes_hex"] = to_hex(generation.text);
    }
    entry["finish_reason"] = engine::finish_reason_name(generation.reason);
    entry["ttft_ms"] = generation.token_ids.empty() ? Json(nullptr) : number(import_ms + generation.ttft_ms);
    Json& itl = entry["itl_ms"] = Json::array();
    double total_ms = 0;
    for (const double value : generation.itl_ms) {
        itl.push_back(number(value));
        total_ms += value;
    }
    entry["itl_p50_ms"] = number(percentile(generation.itl_ms, 50));
    entry["itl_p99_ms"] = number(percentile(generation.itl_ms, 99));
    entry["tokens_per_s"] =
        total_ms > 0 ? number(static_cast<double>(generation.itl_ms.size()) / total_ms * 1e3) : Json(nullptr);
    return entry;
}

// A run of one token has no time between tokens.
std::string itl_text(const engine::Generation& generation, double percent) {
    if (generation.itl_ms.empty()) return "-";
    return fmt::format("{:.2f} ms", percentile(generation.itl_ms, percent));
}

// At the last of the tokens that `session` holds, whose state has none: by a step that computes it again.
Result<std::vector<float>> last_logits(engine::Session& session, std::span<const TokenId> tokens) {
    HETERO_CHECK(session.truncate(tokens.size() - 1));
    HETERO_TRY(const std::span<const float> logits, session.decode(tokens.back()));
    return std::vector<float>(logits.begin(), logits.end());
}

// A sequence goes from the source into a session layer by layer, and from there to the sink: memory holds its KV once.
// Where not all are decoded together they are read first, as nothing may be printed before the source has confirmed
// all of them.
class DecodeRun {
public:
    DecodeRun(Tool& tool, const DecodeOptions& options, const LoadedModel& loaded, kv::Source& source)
        : tool_(tool),
          options_(options),
          loaded_(loaded),
          source_(source),
          header_(source.header()),
          writer_(options.transfer.shards) {}

    Status run() {
        HETERO_TRY(const engine::KvStorage storage, resident_storage(options_.kv_dtype, &header_));
        HETERO_CHECK(read_prompt());
        HETERO_CHECK(make_sessions(storage));
        continued_ = make_header(loaded_, storage);
        const std::string kv_dtype = engine::resident_name(continued_.k_schemes.front(), continued_.v_schemes.front());
        tool_.report()["kv_dtype"] = kv_dtype;
        continued_.provenance = header_.provenance;
        continued_.provenance.push_back(
            tool_.provenance(fmt::format("decode n={} kv_dtype={} precision={}", options_.generate.max_tokens, kv_dtype,
                                         options_.model.precision_name())));
        const std::size_t n = header_.sequences.size(), batch = sessions_.size();
        if (batch < n) HETERO_CHECK(read_all());
        for (std::size_t first = 0; first < n; first += batch) {
            HETERO_CHECK(run_batch(first, std::min(batch, n - first)));
        }
        tool_.report()["batch"] = batch;
        tool_.report()["decode_tokens_per_s"] =
            decode_ms_ > 0 ? number(static_cast<double>(n_generated_) / decode_ms_ * 1e3) : Json(nullptr);
        report_memory(tool_, *sessions_.front());
        return {};
    }

    // All checks, and no token: reads the state to its end.
    Status dry_run() {
        HETERO_CHECK(read_prompt());
        for (const kv::Sequence& held : header_.sequences) {
            if (!prompt_.empty()) {
                if (auto status = check_belongs(held.tokens, prompt_); !status) {
                    return fail_with(status.error(), options_.input);
                }
                if (prompt_ != held.tokens)
                    HETERO_CHECK(check_resumable(header_, static_cast<std::size_t>(&held - header_.sequences.data()),
                                                 prompt_.size()));
            }
            const std::size_t n_prompt = prompt_.empty() ? held.tokens.size() : prompt_.size();
            tool_.report()["sequences"].push_back({{"id", held.id}, {"n_prompt_tokens", n_prompt}});
        }
        const Clock::time_point start = Clock::now();
        HETERO_CHECK(copy_state(source_, *discarding_sink()));
        read_ms_ = milliseconds_since(start);
        tool_.note("dry run: {} sequences, KV {} bytes", header_.sequences.size(), header_.payload_bytes());
        return {};
    }

    // The continued state; the KV of the last batch comes from its sessions. Once, after run().
    Status write(const transport::Endpoint& endpoint) {
        HETERO_TRY(const auto sink,
                   writer_.open(endpoint, options_.transfer.transport(tool_), *sessions_.front(), continued_));
        const auto write_layers = [&]() -> Status {
            HETERO_CHECK(sink->begin(continued_));
            for (std::vector<kv::Layer>& layers : finished_) {
                for (const kv::Layer& layer : layers) HETERO_CHECK(sink->write_layer(layer));
                layers = {};
            }
            for (std::size_t s = 0; s < header_.sequences.size() - finished_.size(); ++s) {
                for (std::uint32_t i = 0; i < loaded_.identity.n_layers; ++i) {
                    HETERO_TRY(const kv::Layer layer, writer_.layer(*sessions_[s], i));
                    HETERO_CHECK(sink->write_layer(layer));
                }
            }
            return sink->commit();
        };
        Status status = write_layers();
        if (!status) sink->abort(status.error());
        return status;
    }

    [[nodiscard]] double read_ms() const noexcept { return read_ms_; }

private:
    // As many as are decoded together: those asked for, or all that memory holds.
    Status make_sessions(const engine::KvStorage& storage) {
        std::uint64_t capacity = 1;
        for (const kv::Sequence& sequence : header_.sequences) {
            const std::uint64_t longest = std::max<std::uint64_t>(sequence.tokens.size(), prompt_.size());
            capacity = std::max(capacity, longest + options_.generate.max_tokens + 1);
        }
        capacity = std::min<std::uint64_t>(capacity, loaded_.identity.context_length);
        engine::Options options = session_options(options_.model, storage, options_.chunk_tokens);
        const std::uint64_t most = options_.batch == 0 ? default_batch : options_.batch;
        options.sequences = static_cast<std::uint32_t>(std::min<std::uint64_t>(most, header_.sequences.size()));
        const std::uint32_t least = options_.batch == 0 ? 1 : options.sequences;
        HETERO_TRY(auto root, make_session(tool_, options_.model, loaded_, options, capacity, least));
        sessions_.push_back(std::move(root));
        while (sessions_.size() < options.sequences) {
            HETERO_TRY(auto session, sessions_.front()->fork(0));
            sessions_.push_back(std::move(session));
        }
        return {};
    }

    // The prompt is read the way the state's own was, so that equal text gives equal tokens.
    Status read_prompt() {
        if (!has_prompt(options_.prompt)) return {};
        PromptOptions how = options_.prompt;
        how.special = how.special || header_.sequences.front().special_parsed;
        HETERO_TRY(auto prompts, read_prompts(how, loaded_));
        prompt_ = std::move(prompts.front().tokens);
        return check_tokens(prompt_, loaded_.identity);
    }

    // In a group each rank may have read a shard of its own: no token before all are whole.
    Status finish_reading() { return transport::group().agree(source_.finish()); }

    Status read_all() {
        const Clock::time_point start = Clock::now();
        for (std::size_t i = 0; i < header_.sequences.size(); ++i) {
            std::vector<kv::Layer>& layers = held_.emplace_back();
            for (std::uint32_t layer = 0; layer < header_.identity.n_layers; ++layer) {
                HETERO_TRY(auto value, source_.read_layer());
                layers.push_back(std::move(value));
            }
        }
        HETERO_CHECK(finish_reading());
        read_ms_ += milliseconds_since(start);
        return {};
    }

    // Puts a sequence into a session. Returns the time that took without reading.
    Result<double> import(std::size_t index, engine::Session& session) {
        const std::uint64_t n_tokens = header_.sequences[index].tokens.size();
        HETERO_CHECK(session.truncate(0));
        Clock::duration importing{};
        kv::Layer layer;
        const bool streams = held_.empty() && session.takes_stream(header_);
        const auto in_state = [&](const Status& status) {
            return fail_with(status.error(),
                             fmt::format("{}: sequence {}", source_.name(), header_.sequences[index].id));
        };
        for (std::uint32_t i = 0; i < header_.identity.n_layers; ++i) {
            const Clock::time_point start = Clock::now();
            if (streams) {
                HETERO_TRY(const auto stream, source_.read_stream());
                if (stream != nullptr) {
                    if (const Status taken = session.import_layer(header_, i, *stream, n_tokens); !taken)
                        return in_state(taken);
                    const Clock::time_point imported = Clock::now();
                    trace::add("import", fmt::format("layer {}", i), start, imported);
                    read_ms_ += to_milliseconds(imported - start);
                    continue;
                }
            }
            if (held_.empty()) {
                HETERO_CHECK(source_.read_into(layer));
            } else {
                layer = std::move(held_[index][i]);
            }
            const Clock::time_point there = Clock::now();
            if (const Status taken = session.import_layer(header_, i, layer, n_tokens); !taken) {
                return in_state(taken);
            }
            const Clock::time_point imported = Clock::now();
            importing += imported - there;
            trace::add("import", fmt::format("layer {}", i), there, imported);
            if (held_.empty()) read_ms_ += to_milliseconds(there - start);
        }
        return to_milliseconds(importing);
    }

    // One of a batch. Its session holds it.
    struct Member {
        std::vector<TokenId> tokens;
        std::vector<float> logits;
        TokenId pending = -1;
        std::size_t n_prompt = 0;
        double import_ms = 0;
    };

    // Reads a batch into its sessions; after the last one the source confirms all.
    Result<std::vector<Member>> read_batch(std::size_t first, std::size_t count) {
        std::vector<Member> members(count);
        for (std::size_t i = 0; i < count; ++i) {
            const bool same_prompt = prompt_.empty() || prompt_ == header_.sequences[first + i].tokens;
            if (!same_prompt) HETERO_CHECK(check_resumable(header_, first + i, prompt_.size()));
            HETERO_TRY(members[i].import_ms, import(first + i, *sessions_[i]));
        }
        if (held_.empty()) {
            const trace::Span span("import", "commit");
            const Clock::time_point start = Clock::now();
            HETERO_CHECK(finish_reading());
            read_ms_ += milliseconds_since(start);
        }
        return members;
    }

    // What it goes on from; its session is extended to the prompt.
    Status begin(std::size_t index, engine::Session& session, Member& member) {
        const kv::Sequence& held = header_.sequences[index];
        const bool same_prompt = prompt_.empty() || prompt_ == held.tokens;
        const Clock::time_point start = Clock::now();
        member.tokens = prompt_.empty() ? held.tokens : prompt_;
        member.pending = same_prompt ? held.pending_token : -1;
        member.logits = held.logits;
        if (member.pending < 0) {
            const bool one_step = same_prompt && held.logits.empty() && !held.tokens.empty();
            auto extended = one_step ? last_logits(session, held.tokens)
                                     : extend_to(session, held.tokens, held.logits, member.tokens);
            if (!extended) return fail_with(extended.error(), options_.input);
            member.logits = std::move(*extended);
        }
        member.import_ms += milliseconds_since(start);
        member.n_prompt = member.tokens.size();
        return {};
    }

    // Sequences [first, first + count), together.
    Status run_batch(std::size_t first, std::size_t count) {
        HETERO_TRY(std::vector<Member> members, read_batch(first, count));
        for (std::size_t i = 0; i < count; ++i) HETERO_CHECK(begin(first + i, *sessions_[i], members[i]));
        // Texts of several sequences on one stdout could not be told apart.
        const bool stream = !tool_.json() && options_.output != "-" && header_.sequences.size() == 1;
        std::vector<engine::Continued> continued;
        for (std::size_t i = 0; i < count; ++i) {
            Member& member = members[i];
            continued.push_back({sessions_[i].get(), &member.tokens, member.logits, member.pending, {}});
            if (stream) continued.back().on_text = [this](std::string_view text) { return tool_.print(text); };
        }
        const Clock::time_point start = Clock::now();
        HETERO_TRY(const auto generations, engine::generate_together(continued, *loaded_.tokenizer, options_.generate));
        decode_ms_ += milliseconds_since(start);
        for (const engine::Generation& generation : generations) n_generated_ += generation.token_ids.size();
        for (std::size_t i = 0; i < count && trace::on(); ++i) trace_steps(first + i, generations[i], start);
        if (stream && isatty(STDOUT_FILENO) == 1) HETERO_CHECK(tool_.print("\n"));
        for (std::size_t i = 0; i < count; ++i) {
            report(first + i, members[i], generations[i]);
            if (!options_.output.empty()) HETERO_CHECK(keep(first + i, *sessions_[i], members[i], generations[i]));
        }
        return {};
    }

    void trace_steps(std::size_t index, const engine::Generation& generation, Clock::time_point start) const {
        const auto ms = [](double value) {
            return std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double, std::milli>(value));
        };
        const std::string track =
            header_.sequences.size() == 1 ? std::string("decode") : fmt::format("decode sequence {}", index);
        Clock::time_point begin = start;
        for (std::size_t i = 0; i < generation.token_ids.size(); ++i) {
            const Clock::time_point end = begin + ms(i == 0 ? generation.ttft_ms : generation.itl_ms[i - 1]);
            trace::add(track, fmt::format("token {}", i), begin, end);
            begin = end;
        }
    }

    void report(std::size_t index, const Member& member, const engine::Generation& generation) {
        const std::string& id = header_.sequences[index].id;
        tool_.report()["sequences"].push_back(describe(id, member.n_prompt, generation, member.import_ms));
        tool_.note("sequence {}: {} tokens, {}; TTFT {:.1f} ms, ITL p50 {}, p99 {}", id, generation.token_ids.size(),
                   engine::finish_reason_name(generation.reason), member.import_ms + generation.ttft_ms,
                   itl_text(generation, 50), itl_text(generation, 99));
    }

    // What a session holds now, and the token that was chosen but not fed.
    Status keep(std::size_t index, const engine::Session& session, Member& member,
                const engine::Generation& generation) {
        const kv::Sequence& held = header_.sequences[index];
        kv::Sequence sequence;
        sequence.id = held.id;
        sequence.special_parsed = held.special_parsed;
        sequence.pending_token = generation.pending_token;
        member.tokens.resize(session.position());
        sequence.tokens = std::move(member.tokens);
        if (generation.token_ids.empty()) {
            sequence.logits = std::move(member.logits);
        }
        continued_.sequences.push_back(std::move(sequence));
        // Those of the last batch stay where they are.
        const std::size_t batch = sessions_.size();
        if (index / batch == (header_.sequences.size() - 1) / batch) return {};
        HETERO_TRY(finished_.emplace_back(), writer_.layers(session));
        return {};
    }

    Tool& tool_;
    const DecodeOptions& options_;
    const LoadedModel& loaded_;
    kv::Source& source_;
    const kv::Header& header_;  // of source_
    std::vector<std::vector<kv::Layer>> held_,
        finished_;  // [sequence][layer]: read, to be written (but the last batch)
    kv::Header continued_;
    GroupWriter writer_;
    std::vector<TokenId> prompt_;  // empty: none given
    double read_ms_ = 0, decode_ms_ = 0;
    std::uint64_t n_generated_ = 0;
    std::vector<std::unique_ptr<engine::Session>> sessions_;  // [place in a batch], the first and its forks
};

// Text of several sequences on one stdout could not be told apart.
Status check_choice(const Tool& tool, const DecodeOptions& options, const kv::Header& header) {
    if (header.sequences.size() == 1) return {};
    if (has_prompt(options.prompt)) {
        return fail(Errc::usage, "a prompt belongs to one sequence: choose one with --sequence ({} are left)",
                    header.sequences.size());
    }
    if (tool.json() || !options.output.empty()) return {};
    return fail(Errc::usage, "the state has {} sequences ({}, ...): choose one with --sequence, or use --json",
                header.sequences.size(), header.sequences.front().id);
}

}  // namespace

Status run_decode(Tool& tool, const DecodeOptions& options, Turns* turns) {
    Files others{prompt_files(options.prompt), {}};
    others.read.push_back(options.model.path);
    std::optional<LoadedModel> model;
    if (turns != nullptr) {  // ready before a sender comes; and no sender mends a model that cannot be loaded
        HETERO_TRY(model, load_model(options.model));
    }
    HETERO_TRY(const Endpoints endpoints,
               prepare_endpoints(tool, {options.input}, {options.output}, options.transfer, std::move(others)));
    if (turns != nullptr) turns->met();
    if (!model) {
        HETERO_TRY(model, load_model(options.model));
    }
    const LoadedModel& loaded = *model;
    if (!loaded.tokenizer) return fail(Errc::bad_input, "{} has no tokenizer", options.model.path);
    transport::TransportOptions transfer = options.transfer.transport(tool);
    transfer.expected_identity = loaded.identity;
    transfer.own_heads = true;
    HETERO_TRY(auto opened, open_source(tool, endpoints.inputs.front(), transfer, "read"));
    HETERO_CHECK(check_state(loaded, options.model.path, opened.source->header(), opened.source->name()));
    report_weights(tool, opened.source->name(), opened.source->header().identity, loaded.identity);
    HETERO_TRY(auto source, select_sequences(std::move(opened.source), options.sequences));
    source = ahead(std::move(source), endpoints.inputs.front(), options.model.threads);
    HETERO_CHECK(check_choice(tool, options, source->header()));

    Json& report = tool.report();
    report["model"] = loaded.identity.model_id;
    report["precision"] = options.model.precision_name();
    report["load_ms"] = number(loaded.load_ms);
    report["read_ms"] = nullptr;  // known later; the order is that of the manual
    report["kv_bytes"] = source->header().payload_bytes();
    DecodeRun run(tool, options, loaded, *source);
    if (options.transfer.dry_run) report["dry_run"] = true;
    const Communicator::Counters before = transport::group().counters();
    HETERO_CHECK(options.transfer.dry_run ? run.dry_run() : run.run());
    report["read_ms"] = number(opened.seconds * 1e3 + run.read_ms());
    report_transfer(tool, endpoints.inputs.front(), false);
    trace_transfers(endpoints);
    report_group(tool, before);
    if (endpoints.outputs.empty() || options.transfer.dry_run) return {};
    return run.write(endpoints.outputs.front());
}

Status decode_in_turn(Tool& tool, DecodeOptions& options) {
    HETERO_TRY(Turns turns, Turns::start(tool, options.turns, options.input, options.output, options.transfer));
    HETERO_TRY(const bool turn, turns.next(tool, options.output));
    return turn ? run_decode(tool, options, &turns) : Status{};
}

}  // namespace hetero::tool
