#include "common/models.h"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <optional>

#include "base/clock.h"
#include "base/log.h"
#include "base/process_memory.h"
#include "base/threads.h"
#include "common/progress.h"
#include "io/gguf.h"
#include "kernels/api/ops.h"
#include "kv/shards.h"
#include "transport/group.h"

namespace hetero::tool {
namespace {

Result<std::shared_ptr<const Tokenizer>> load_tokenizer(const model::Model& model) {
    if (model.gguf) {
        HETERO_TRY(const auto kind, model.gguf->string("tokenizer.ggml.model"));
        if (!kind) return nullptr;
        return Tokenizer::from_gguf(*model.gguf);
    }
    std::error_code error;
    if (!std::filesystem::exists(std::filesystem::path(model.path) / "tokenizer.json", error)) return nullptr;
    return Tokenizer::from_folder(model.path);
}

// Ranks that compute together have the same weights, wherever each finds them.
Status check_same_weights(Communicator& group, const LoadedModel& loaded, const std::string& path) {
    const std::string own = to_hex(loaded.identity.weights_digest) + to_hex(kv::compat_hash(loaded.identity));
    const auto bytes = std::as_bytes(std::span(own));
    std::vector<std::byte> first(bytes.begin(), bytes.end());
    HETERO_CHECK(group.broadcast(first));
    if (std::equal(first.begin(), first.end(), bytes.begin(), bytes.end())) return group.agree({});
    return group.agree(fail(Errc::bad_input, "{}: rank {} of the group finds another model here than its first rank",
                            path, group.rank()));
}

}  // namespace

void add_thread_option(OptionTable& table, std::uint64_t* threads) {
    table.integer("-t,--threads", "N", threads, 0, 1024, "threads; 0: as many as this process may use").setting = true;
}

void add_model_options(OptionTable& table, ModelOptions& options) {
    Option& model =
        table.text("-m,--model", "MODEL", &options.path, "the model: a .gguf file or a Hugging Face folder");
    model.setting = true;
    model.completion = Completion::file;
    add_device_options(table, options.device);
    add_thread_option(table, &options.threads);
}

void add_precise_option(OptionTable& table, ModelOptions& options) {
    table.flag("--precise", &options.precise, "products in f32: slower, without rounding activations to 8 bits")
        .setting = true;
}

void add_exec_option(OptionTable& table, ModelOptions& options) {
    table
        .choice("--exec", &options.exec, {"graph", "eager"},
                "run the ops as planned, or look at what each of them writes; the results are the same")
        .setting = true;
}

void add_tier_option(OptionTable& table, ModelOptions& options) {
    table
        .custom(
            "--kv-tier", "TIERS",
            [&options](std::string_view text) -> Status {
                HETERO_TRY(options.kv_tiers, engine::KvTiers::parse(text));
                options.kv_tier_text = text;
                return {};
            },
            [&options] { return options.kv_tier_text; },
            "where K and V stay when a GPU computes: device, host or file, or rules as 8-31=host,v=host")
        .setting = true;
}

void add_warm_options(OptionTable& table, ModelOptions& options) {
    table.flag("--warm", &options.warm, "keep the packed weights, so that the next start does not pack them");
    Option& cache = table.text("--cache", "DIR", &options.cache, "where they are kept; ~/.cache/hetero unless given");
    cache.setting = true;
    cache.completion = Completion::directory;
}

Status check_warm(const OptionTable& table, ModelOptions& options) {
    if (!options.warm || !options.precise) return {};
    if (table.on_command_line("warm")) {
        return fail(Errc::usage, "--warm keeps packed weights, and --precise has none");
    }
    options.warm = false;
    return {};
}

engine::WarmFolder ModelOptions::warm_folder() const {
    std::string folder = cache;
    if (const char* home = std::getenv("HOME"); folder.empty() && home != nullptr && *home != '\0') {
        folder = std::string(home) + "/.cache/hetero";
    }
    return {folder.empty() ? "" : folder + "/packed", warm};
}

int ModelOptions::thread_count() const {
    const int most = default_thread_count();
    if (threads == 0) return most;
    if (threads > static_cast<std::uint64_t>(most)) {
        log::warn("{} threads asked for, going on with {}: as many CPUs are left to this process", threads, most);
        return most;
    }
    return static_cast<int>(threads);
}

void report_memory(Tool& tool, const engine::Session& session) {
    const ProcessMemory memory = read_process_memory();
    tool.report()["device"] = session.device();
    tool.report()["memory"] = {{"peak_rss_bytes", memory.peak_rss_bytes},
                               {"anonymous_bytes", memory.anonymous_bytes},
                               {"file_backed_bytes", memory.file_backed_bytes},
                               {"packed_bytes", session.packed_bytes()},
                               {"kv_bytes", session.kv_bytes()},
                               {"warm", session.warm()}};
}

Result<LoadedModel> load_alone(const ModelOptions& options) {
    if (options.path.empty()) return fail(Errc::usage, "no model: give one with -m");
    const auto start = std::chrono::steady_clock::now();
    LoadedModel loaded;
    HETERO_TRY(loaded.model, model::Model::load(options.path));
    HETERO_TRY(loaded.tokenizer, load_tokenizer(*loaded.model));
    loaded.identity = engine::identity_of(*loaded.model, loaded.tokenizer ? loaded.tokenizer->digest() : Digest{});
    loaded.layer_shapes = engine::layer_shapes(*loaded.model);
    release_free_memory();  // that of the file's vocabulary: what follows is large, and would lie beside it
    loaded.load_ms = milliseconds_since(start);
    return loaded;
}

Result<LoadedModel> load_model(const ModelOptions& options, std::optional<LoadedModel> own) {
    const auto start = std::chrono::steady_clock::now();
    const double before_ms = own ? own->load_ms : 0;
    auto loaded = own ? Result<LoadedModel>(*std::move(own)) : load_alone(options);
    Communicator& group = transport::group();
    HETERO_CHECK(group.agree(loaded ? Status{} : Status(tl::unexpected<Error>(loaded.error()))));
    HETERO_CHECK(check_same_weights(group, *loaded, options.path));
    loaded->load_ms = before_ms + milliseconds_since(start);
    return loaded;
}

Status check_state(const LoadedModel& model, const std::string& model_path, const kv::Header& state,
                   const std::string& state_name) {
    if (const auto mismatches = kv::compare(state.identity, model.identity); !mismatches.empty())
        return fail(Errc::bad_input, "{} was not made by the model {}: {}", state_name, model_path,
                    kv::to_text(mismatches, "the state", "the model"));
    std::vector<kv::LayerShape> stored, needed;
    for (std::size_t layer = 0; layer < state.identity.n_layers; ++layer) {
        stored.push_back(state.layer_shape(layer));
        needed.push_back(model.layer_shapes.empty() ? kv::LayerShape{} : model.layer_shapes[layer]);
        if (needed.back().takes(stored.back())) stored.back() = needed.back();
    }
    if (const auto mismatches = kv::compare(stored, needed); !mismatches.empty())
        return fail(Errc::bad_input, "{} stores other kinds of layers than the model {}: {}", state_name, model_path,
                    kv::to_text(mismatches, "the state", "the model"));
    const Communicator& group = transport::group();
    const bool own_shard = group.size() > 1 && state.shard.tp_size == static_cast<std::uint32_t>(group.size()) &&
                           state.shard.tp_rank == static_cast<std::uint32_t>(group.rank());
    return own_shard ? Status{} : kv::check_whole(state, state_name);
}

void report_weights(Tool& tool, const std::string& who, const kv::Identity& a, const kv::Identity& b) {
    const bool same = a.weights_digest == b.weights_digest;
    tool.report()["same_weights"] = same;
    if (!same) tool.note("{}: made with another precision of the weights", who);
}

Result<engine::KvStorage> resident_storage(const std::string& choice, const kv::Header* state) {
    if (choice == "auto") return engine::KvStorage(state == nullptr ? kernels::DType::f16 : kv::source_dtype(*state));
    if (const auto dtype = kernels::dtype_from_name(choice)) return engine::KvStorage(*dtype);
    HETERO_TRY(engine::KvCodecs codecs, engine::resident_codecs(choice));
    return engine::KvStorage(kernels::DType::f16, std::move(codecs));
}

engine::Options session_options(const ModelOptions& options, const engine::KvStorage& storage,
                                std::uint64_t chunk_tokens) {
    engine::Options session;
    session.threads = options.thread_count();
    session.kv_dtype = storage.dtype;
    session.kv_codecs = storage.codecs;
    session.chunk_tokens = static_cast<std::uint32_t>(chunk_tokens);
    session.group = &transport::group();
    session.precision = options.precision();
    session.warm = options.warm_folder();
    session.device = options.device.found;
    if (options.device.is_auto() && session.group->size() > 1) session.device = {};
    if (session.device.ops != nullptr || !options.device.is_auto()) session.kv_tiers = options.kv_tiers;
    session.exec = options.exec == "eager" ? engine::Exec::eager : engine::Exec::graph;
    return session;
}

Result<std::unique_ptr<engine::Session>> make_session(Tool& tool, const ModelOptions& model_options,
                                                      const LoadedModel& loaded, engine::Options& options,
                                                      std::uint64_t capacity, std::uint32_t least_sequences) {
    const std::uint32_t most_sequences = options.sequences;
    const DeviceOptions& device = model_options.device;
    const bool alone = options.group->size() == 1;
    bool noted = false;
    std::optional<Progress> progress;
    const engine::WeightsProgressFn on_weights = [&](std::uint64_t done, std::uint64_t total) {
        constexpr std::uint64_t mb = 1000000;
        if (!progress) progress.emplace(tool, "weights to " + engine::device_name(options.device), total / mb, "MB");
        progress->update(done / mb);
    };
    for (;;) {
        options.on_weights = on_weights;
        auto made = engine::Session::create(loaded.model, options, capacity);
        options.on_weights = {};  // its captures end here
        if (made && !noted)
            note_device(tool, device, options.device, alone ? device.why_cpu : "ranks compute together on CPUs");
        if (made || made.error().code != Errc::resource) return made;
        if (options.sequences > least_sequences) {
            options.sequences = std::max((options.sequences + 1) / 2, least_sequences);
        } else if (device.is_auto() && options.device.ops != nullptr) {
            note_cpu(tool, made.error().message);
            noted = true;
            options.device = {};
            options.kv_tiers = {};
            options.sequences = most_sequences;
        } else {
            return made;
        }
    }
}

}  // namespace hetero::tool
