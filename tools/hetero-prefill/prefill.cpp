#include "prefill.h"

#include <algorithm>
#include <chrono>
#include <exception>
#include <optional>
#include <thread>

#include "base/clock.h"
#include "base/redact.h"
#include "base/trace.h"
#include "common/group.h"
#include "common/kv_session.h"
#include "common/progress.h"
#include "common/transfers.h"
#include "engine/layers.h"
#include "engine/sampler.h"
#include "npy.h"
#include "streamed_source.h"

namespace hetero::tool {
namespace {

using Clock = std::chrono::steady_clock;

// One prompt, and where its first tokens' KV comes from.
struct Job {
    Prompt prompt;
    std::optional<std::size_t> prefix;  // sequence of the prefix state
    std::uint64_t reused = 0;           // tokens taken from it
};

Status truncate_prompts(Tool& tool, std::vector<Prompt>& prompts, const PrefillOptions& options, std::size_t context) {
    for (Prompt& prompt : prompts) {
        std::vector<TokenId>& tokens = prompt.tokens;
        if (options.truncate != "off" && tokens.size() > context) {
            tool.note("sequence {}: cut from {} to {} tokens", prompt.id, tokens.size(), context);
            const auto surplus = static_cast<std::ptrdiff_t>(tokens.size() - context);
            if (options.truncate == "start") {
                tokens.erase(tokens.begin(), tokens.begin() + surplus);
            } else {
                tokens.erase(tokens.end() - surplus, tokens.end());
            }
        }
    }
    return {};
}

Result<std::vector<Job>> plan_jobs(std::vector<Prompt> prompts, const kv::State* prefix,
                                   const std::string& prefix_name) {
    std::vector<Job> jobs;
    for (Prompt& prompt : prompts) jobs.push_back({std::move(prompt), std::nullopt, 0});
    if (prefix == nullptr) return jobs;
    const std::vector<kv::Sequence>& held = prefix->header.sequences;
    for (Job& job : jobs) {
        if (jobs.size() == 1 && held.size() == 1) {
            job.prefix = 0;  // the only ones belong together, whatever they are called
        } else {
            const auto found = std::find_if(held.begin(), held.end(),
                                            [&](const kv::Sequence& one) { return one.id == job.prompt.id; });
            if (found != held.end()) job.prefix = static_cast<std::size_t>(found - held.begin());
        }
        if (!job.prefix) continue;
        const std::vector<TokenId>& have = held[*job.prefix].tokens;
        const std::vector<TokenId>& want = job.prompt.tokens;
        job.reused = common_prefix(have, want);
        if (job.reused < std::min(have.size(), want.size())) {
            return fail(Errc::bad_input,
                        "{}: sequence {} differs from the prompt at position {}: token {} there, {} in the prompt",
                        prefix_name, held[*job.prefix].id, job.reused, private_token(have[job.reused]),
                        private_token(want[job.reused]));
        }
    }
    return jobs;
}

Json describe(const std::vector<Job>& jobs) {
    Json list = Json::array();
    for (const Job& job : jobs) {
        list.push_back({{"id", job.prompt.id},
                        {"n_tokens", job.prompt.tokens.size()},
                        {"n_reused", job.reused},
                        {"special_parsed", job.prompt.special_parsed},
                        {"token_ids", redacts() ? Json(nullptr) : Json(job.prompt.tokens)}});
    }
    return list;
}

// What was computed: the last sequence is in the session, those before it are in memory. Each layer is taken out once.
class ComputedSource final : public kv::Source {
public:
    ComputedSource(const kv::Header& header, const engine::Session& session, const GroupWriter& writer,
                   std::vector<std::vector<kv::Layer>> finished)
        : header_(header), session_(session), writer_(writer), finished_(std::move(finished)) {}

    [[nodiscard]] const kv::Header& header() const noexcept override { return header_; }
    [[nodiscard]] const std::string& name() const noexcept override { return name_; }
    Result<kv::Layer> read_layer() override {
        const std::size_t n_layers = header_.identity.n_layers, sequence = next_ / n_layers, layer = next_ % n_layers;
        ++next_;
        if (sequence < finished_.size()) return std::move(finished_[sequence][layer]);
        return writer_.layer(session_, static_cast<std::uint32_t>(layer));
    }
    Status finish() override { return {}; }

private:
    const kv::Header& header_;
    const engine::Session& session_;
    const GroupWriter& writer_;
    std::vector<std::vector<kv::Layer>> finished_;  // [sequence][layer]
    std::size_t next_ = 0;
    std::string name_ = "what was computed";
};

class PrefillRun {
public:
    PrefillRun(Tool& tool, const PrefillOptions& options, const LoadedModel& loaded, std::vector<Job> jobs,
               const kv::State* prefix)
        : tool_(tool),
          options_(options),
          loaded_(loaded),
          jobs_(std::move(jobs)),
          prefix_(prefix),
          writer_(options.transfer.shards) {}

    // Computes all sequences, and writes them as they are complete. What the last one left in the session is exported
    // while it is written.
    Status compute_and_write(engine::Session& session, kv::Header& header, const transport::Endpoint& endpoint,
                             const Delivery& delivery) {
        for (const Job& job : jobs_)
            header.sequences.push_back({job.prompt.id, job.prompt.tokens, -1, job.prompt.special_parsed, {}});
        if (endpoint.is_link()) {
            HETERO_CHECK(stream(session, header, endpoint, delivery));
        } else {
            HETERO_CHECK(compute(session, header, nullptr));
            HETERO_CHECK(write(session, header, endpoint, delivery));
        }
        report_group(tool_, before_);
        return logits_file_ ? logits_file_->publish() : Status{};
    }

    void report(const kv::Header& header) {
        std::uint64_t n_tokens = 0;
        for (const Job& job : jobs_) n_tokens += job.prompt.tokens.size();
        const double rate = milliseconds_ > 0 ? static_cast<double>(computed_) / milliseconds_ * 1e3 : 0;
        Json& report = tool_.report();
        report["model"] = header.identity.model_id;
        report["n_tokens"] = n_tokens;
        report["n_computed"] = computed_;
        report["precision"] = options_.model.precision_name();
        report["load_ms"] = number(loaded_.load_ms);
        report["prefill_ms"] = number(milliseconds_);
        report["tokens_per_s"] = number(rate);
        const std::uint64_t bytes = stored_.payload_bytes();
        const std::string dtype = engine::resident_name(header.k_schemes.front(), header.v_schemes.front());
        report["kv_dtype"] = dtype;
        report["kv_bytes"] = bytes;
        Json& sequences = report["sequences"] = describe(jobs_);
        for (std::size_t i = 0; i < first_tokens_.size(); ++i) sequences[i]["first_token"] = first_tokens_[i];
        const bool as_it_is = stored_.k_schemes == header.k_schemes && stored_.v_schemes == header.v_schemes;
        tool_.note("{} tokens ({} computed) in {:.1f} ms, {:.1f} tokens/s; KV {} bytes {}", n_tokens, computed_,
                   milliseconds_, rate, bytes,
                   as_it_is ? dtype : fmt::format("({:.2f} bits per value)", bits_per_value(stored_)));
    }

private:
    // To `streamed` as layers are complete, where there is one.
    Status compute(engine::Session& session, kv::Header& header, StreamedSource* streamed) {
        std::uint64_t total = 0, done = 0;
        for (const Job& job : jobs_) total += job.prompt.tokens.size() - job.reused;
        Progress progress(tool_, "prefill", total, "tokens");
        if (!options_.logits_out.empty() && transport::group().is_root()) {
            HETERO_TRY(auto writer,
                       NpyWriter::create(options_.logits_out, total, header.identity.vocab_size, tool_.overwrite()));
            logits_file_.emplace(std::move(writer));
        }
        before_ = transport::group().counters();
        const Clock::time_point start = Clock::now();
        for (std::size_t i = 0; i < jobs_.size(); ++i) {
            const Job& job = jobs_[i];
            const Clock::time_point begin = Clock::now();
            Clock::time_point layer_begin = begin;
            session.observe_layers([&](std::uint32_t layer, std::uint64_t end) -> Status {
                const Clock::time_point now = Clock::now();
                trace::add("prefill", fmt::format("layer {}", layer), layer_begin, now);
                layer_begin = now;
                return streamed != nullptr ? streamed->layer_done(layer, end) : Status{};
            });
            HETERO_TRY(auto logits, compute_one(session, job, [&](std::uint64_t n) { progress.update(done + n); }));
            trace::add("prefill", "to the logits", layer_begin, Clock::now());
            trace::add("prompts", fmt::format("sequence {}, {} tokens", i, job.prompt.tokens.size()), begin,
                       Clock::now());
            done += job.prompt.tokens.size() - job.reused;
            HETERO_CHECK(choose_first(header.sequences[i], std::move(logits), begin));
            const bool more = i + 1 < jobs_.size();
            if (streamed != nullptr) {
                HETERO_CHECK(streamed->sequence_done(job.prompt.tokens.size(), more));
            } else if (more) {
                HETERO_TRY(finished_.emplace_back(), writer_.layers(session));
            }
        }
        ended_ = Clock::now();
        milliseconds_ = to_milliseconds(ended_ - start);
        computed_ = total;
        return {};
    }

    // What the reader begins with: the logits at the last position, or the token that they give.
    Status choose_first(kv::Sequence& sequence, std::vector<float> logits, Clock::time_point begin) {
        if (options_.first_token == "prefill") {
            HETERO_TRY(sequence.pending_token, engine::Sampler({}).next(logits, sequence.tokens));
            const std::string text = loaded_.tokenizer->piece(sequence.pending_token, true);
            const double ms = milliseconds_since(begin);
            first_tokens_.push_back({{"id", redacts() ? Json(nullptr) : Json(sequence.pending_token)},
                                     {"text", redacts() ? Json(nullptr) : Json(to_valid_utf8(text))},
                                     {"ttft_ms", number(ms)}});
            tool_.note("sequence {}: the first token after {:.1f} ms", sequence.id, ms);
            if (!tool_.json() && options_.output != "-" && jobs_.size() == 1) return tool_.print(text);
            return {};
        }
        if (options_.logits != "none") sequence.logits = std::move(logits);
        return {};
    }

    Status write(const engine::Session& session, kv::Header header, const transport::Endpoint& endpoint,
                 const Delivery& delivery) {
        HETERO_TRY(const auto sink, writer_.open(endpoint, options_.transfer.transport(tool_), session, header));
        ComputedSource source(header, session, writer_, std::move(finished_));
        // What a rank does not write it does not convert either.
        HETERO_TRY(const Delivered delivered, deliver(tool_, writer_.writes() ? delivery : Delivery{}, source, *sink,
                                                      endpoint, options_.model.threads));
        stored_ = delivered.header;
        return {};
    }

    // Another thread sends what this one computes. The group's first rank sends for all, or each its own heads.
    Status stream(engine::Session& session, kv::Header& header, const transport::Endpoint& endpoint,
                  const Delivery& delivery) {
        header.late_logits = options_.logits != "none" || options_.first_token == "prefill";
        HETERO_TRY(const auto sink, writer_.open(endpoint, options_.transfer.transport(tool_), session, header));
        kv::Header sent = header;
        const bool codes = session.codes_layers() && delivery.specs;
        if (codes) {
            const Schemes schemes = schemes_of(*delivery.specs, header);
            sent = with_schemes(std::move(sent), schemes);
            sent.provenance.push_back(quantize_entry(tool_, schemes));
        }
        StreamedSource source(std::move(sent), session, writer_);
        if (!writer_.writes()) {
            HETERO_CHECK(compute(session, header, &source));
            stored_ = header;
            return {};
        }
        Result<Delivered> delivered = fail(Errc::internal, "nothing was sent");
        const auto send = [&] {
            try {
                delivered =
                    deliver(tool_, codes ? Delivery{} : delivery, source, *sink, endpoint, options_.model.threads);
            } catch (const std::exception& error) {
                delivered = fail(Errc::resource, "{}: {}", sink->name(), error.what());
                sink->abort(delivered.error());
            }
            if (!delivered) source.failed(delivered.error());
        };
        std::thread sender;
        try {
            sender = std::thread(send);
        } catch (const std::exception& error) {
            return fail(Errc::resource, "no thread to send with: {}", error.what());
        }
        Status computed = guard([&] { return compute(session, header, &source); });
        header.late_logits = false;
        drop_logits_of_others(header);
        if (computed) {
            source.all_done(header);
        } else {
            source.failed(computed.error());
        }
        sender.join();
        session.observe_layers({});
        // Of two errors the one that came first: the other side is told that one.
        HETERO_CHECK(computed);
        if (!delivered) return tl::unexpected<Error>(delivered.error());
        stored_ = delivered->header;
        if (codes) {
            report_quantized(tool_, *delivery.specs, stored_, bits_per_value(stored_), source.max_abs_error());
            const auto exact = [&](kv::PartId part) {
                return std::equal(header.schemes(part).begin(), header.schemes(part).end(),
                                  stored_.schemes(part).begin(), stored_.schemes(part).end(), kv::conversion_is_exact);
            };
            tool_.report()["conversion"] = exact(kv::PartId::k) && exact(kv::PartId::v) ? "exact" : "lossy";
            tool_.report()["parts_on_device"] = source.coded_on_device();
        }
        report_transfer(tool_, endpoint, true, ended_);
        if (session.device() == "cpu") return {};
        Json& transfer = tool_.report()["transfer"];
        transfer["path"] = source.read_on_device() != 0 ? "device" : "staged";
        transfer["layers_from_device"] = source.read_on_device();
        return {};
    }

    template <class Body>
    static Status guard(const Body& body) {
        try {
            return body();
        } catch (const std::exception& error) {
            return fail(Errc::resource, "prefill: {}", error.what());
        }
    }

    Result<std::vector<float>> compute_one(engine::Session& session, const Job& job,
                                           const std::function<void(std::uint64_t)>& on_progress) {
        static const std::vector<float> no_logits;
        if (job.prefix) {
            const kv::Sequence& held = prefix_->header.sequences[*job.prefix];
            HETERO_CHECK(check_resumable(prefix_->header, *job.prefix, job.prompt.tokens.size()));
            HETERO_CHECK(
                engine::import_layers(session, prefix_->header, prefix_->layers[*job.prefix], held.tokens.size()));
            return extend_to(session, held.tokens, held.logits, job.prompt.tokens, on_progress);
        }
        HETERO_CHECK(session.truncate(0));
        if (options_.logits_out.empty()) return extend_to(session, {}, no_logits, job.prompt.tokens, on_progress);
        std::vector<float> last;
        const auto store = [&](std::uint64_t, std::span<const float> logits) -> Status {
            last.assign(logits.begin(), logits.end());
            return logits_file_ ? logits_file_->write_row(logits) : Status{};
        };
        HETERO_CHECK(session.prefill(job.prompt.tokens, engine::Logits::all, store, on_progress));
        return last;
    }

    Tool& tool_;
    const PrefillOptions& options_;
    const LoadedModel& loaded_;
    std::vector<Job> jobs_;
    const kv::State* prefix_;
    GroupWriter writer_;
    std::vector<std::vector<kv::Layer>> finished_;  // [sequence][layer], of all but the last
    std::optional<NpyWriter> logits_file_;
    kv::Header stored_;               // as it was written
    std::vector<Json> first_tokens_;  // [sequence], where they are chosen here
    Communicator::Counters before_;
    std::uint64_t computed_ = 0;
    double milliseconds_ = 0;
    Clock::time_point ended_;
};

// What a state in another representation than the session's cannot come from. `prefix`: where the state begins with
// one.
Status check_delivery(const Delivery& delivery, const engine::KvStorage& storage, const kv::Header* prefix) {
    if (!delivery.specs) return {};
    if (storage.codecs) {
        return fail(Errc::usage, "{}: --kv-dtype keeps codes, which are stored as they are: give one of the two",
                    delivery.specs->plan ? "--plan" : "--wire-dtype");
    }
    if (prefix != nullptr && is_quantized(*prefix)) {
        return fail(Errc::usage,
                    "{}: the prefix is quantized already, and quantizing again adds error to error: start from the "
                    "unquantized state",
                    delivery.specs->plan ? "--plan" : "--wire-dtype");
    }
    return {};
}

bool sends_shards(const PrefillOptions& options) {
    const auto output = transport::parse_endpoint(options.output);
    return options.transfer.shards && options.transfer.tp > 1 && output && output->kind == transport::EndpointKind::mpi;
}

}  // namespace

Status run_warm(Tool& tool, const PrefillOptions& options) {
    HETERO_TRY(const Endpoints endpoints,
               prepare_endpoints(tool, {}, {}, options.transfer, {{options.model.path}, {}}));
    HETERO_TRY(const LoadedModel loaded, load_model(options.model));
    engine::Options how = session_options(options.model, kernels::DType::f16, options.chunk_tokens);
    how.device = {};  // a GPU takes weights as they are
    how.kv_tiers = {};
    HETERO_TRY(const auto session, engine::Session::create(loaded.model, how, 1));
    report_memory(tool, *session);
    const std::string folder = options.model.warm_folder().path;
    if (session->packed_bytes() == 0) {
        tool.note("{}: its weights are used as they lie in the file, nothing is packed and nothing kept",
                  options.model.path);
        return {};
    }
    if (!session->warm()) {
        return fail(Errc::resource, "the packed weights are not kept in '{}'; name a folder with --cache", folder);
    }
    tool.note("{} bytes of packed weights are kept in {}", session->packed_bytes(), folder);
    return {};
}

Status run_prefill(Tool& tool, const PrefillOptions& options) {
    HETERO_TRY(const Delivery delivery, read_delivery(tool.options(), options.delivery, options.output));
    if (options.kv_dtype != "auto") {
        HETERO_TRY(const engine::KvStorage wanted, resident_storage(options.kv_dtype, nullptr));
        HETERO_CHECK(check_delivery(delivery, wanted, nullptr));
    }
    Files others{prompt_files(options.prompt), {options.logits_out}};
    others.read.push_back(options.model.path);
    others.read.insert(others.read.end(), options.delivery.plans.begin(), options.delivery.plans.end());
    TransferOptions transfer = options.transfer;
    std::optional<LoadedModel> own;
    if (sends_shards(options)) {  // the ranks tell each other of how many heads
        if (delivery.automatic)
            return fail(Errc::usage,
                        "--wire-dtype auto: links of several ranks are not measured; name the representation");
        HETERO_TRY(own, load_alone(options.model));
        transfer.hold_shards = true;
        transfer.heads = kv::head_counts(own->identity);
    }
    HETERO_TRY(const Endpoints endpoints,
               prepare_endpoints(tool, {options.prefix}, {options.output}, transfer, std::move(others)));
    Communicator& group = transport::group();
    Status writable;
    if (!options.logits_out.empty() && group.is_root()) {
        writable = io::check_output_path(options.logits_out, tool.overwrite());
    }
    HETERO_CHECK(group.agree(writable));
    HETERO_TRY(const LoadedModel loaded, load_model(options.model, std::move(own)));
    if (delivery.specs) HETERO_CHECK(check_specs(tool, *delivery.specs, loaded.identity));  // before weights are packed
    if (options.first_token == "prefill" && !loaded.tokenizer)
        return fail(Errc::bad_input, "--first-token prefill: {} has no tokenizer", options.model.path);
    HETERO_TRY(auto prompts, read_prompts(options.prompt, loaded));
    HETERO_CHECK(truncate_prompts(tool, prompts, options, loaded.identity.context_length));
    std::uint64_t capacity = 0;
    for (const Prompt& prompt : prompts) {
        if (auto status = check_tokens(prompt.tokens, loaded.identity); !status) {
            return prompts.size() == 1 ? status : fail_with(status.error(), "sequence " + prompt.id);
        }
        capacity = std::max<std::uint64_t>(capacity, prompt.tokens.size());
    }

    std::optional<kv::State> prefix;
    if (!endpoints.inputs.empty()) {
        transport::TransportOptions reading = options.transfer.transport(tool);
        reading.expected_identity = loaded.identity;
        HETERO_TRY(const auto opened, open_source(tool, endpoints.inputs.front(), reading, "prefix"));
        const auto& source = opened.source;
        HETERO_CHECK(check_state(loaded, options.model.path, source->header(), source->name()));
        report_weights(tool, source->name(), source->header().identity, loaded.identity);
        HETERO_TRY(prefix, kv::read_all(*source));
        for (const kv::Sequence& held : prefix->header.sequences) capacity = std::max(capacity, held.next_position());
    }
    HETERO_TRY(auto jobs, plan_jobs(std::move(prompts), prefix ? &*prefix : nullptr, options.prefix));
    HETERO_TRY(const engine::KvStorage storage, resident_storage(options.kv_dtype, prefix ? &prefix->header : nullptr));

    HETERO_CHECK(check_delivery(delivery, storage, prefix ? &prefix->header : nullptr));
    kv::Header header = make_header(loaded, storage);
    if (prefix) header.provenance = prefix->header.provenance;
    const std::string dtype = engine::resident_name(header.k_schemes.front(), header.v_schemes.front());
    header.provenance.push_back(tool.provenance(fmt::format("prefill kv_dtype={} chunk={} precision={}", dtype,
                                                            options.chunk_tokens, options.model.precision_name())));
    if (options.transfer.dry_run) {
        for (const Job& job : jobs)
            header.sequences.push_back({job.prompt.id, job.prompt.tokens, -1, job.prompt.special_parsed, {}});
        std::uint64_t n_tokens = 0;
        for (const Job& job : jobs) n_tokens += job.prompt.tokens.size();
        tool.report()["dry_run"] = true;
        tool.report()["n_tokens"] = n_tokens;
        if (delivery.specs) {
            const Schemes schemes = schemes_of(*delivery.specs, header);
            report_schemes(tool.report(), *delivery.specs, schemes, header.identity);
            header = with_schemes(header, schemes);
            tool.report()["bits_per_value"] = number(bits_per_value(header));
        }
        tool.report()["kv_bytes"] = header.payload_bytes();
        tool.report()["sequences"] = describe(jobs);
        tool.note("dry run: {} sequences, KV {} bytes {}", jobs.size(), header.payload_bytes(), dtype);
        return {};
    }

    engine::Options how = session_options(options.model, storage, options.chunk_tokens);
    if (endpoints.outputs.front().is_link()) {
        how.block_tokens = engine::default_block_tokens;
        how.layers_stay = !options.staged && transport::reads_device_memory(endpoints.outputs.front());
        if (delivery.specs || (how.layers_stay && !delivery.automatic)) {
            const Schemes schemes = delivery.specs ? schemes_of(*delivery.specs, header) : schemes_of(header);
            how.hand_out = {schemes.k, schemes.v};
        }
    }
    HETERO_TRY(auto session, make_session(tool, options.model, loaded, how, capacity));
    PrefillRun run(tool, options, loaded, std::move(jobs), prefix ? &*prefix : nullptr);
    HETERO_CHECK(run.compute_and_write(*session, header, endpoints.outputs.front(), delivery));
    trace_transfers(endpoints);
    run.report(header);
    report_memory(tool, *session);
    return {};
}

}  // namespace hetero::tool
