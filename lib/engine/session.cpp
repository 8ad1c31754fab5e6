#include "engine/session.h"

#include <algorithm>
#include <limits>
#include <new>

#include "base/limits.h"
#include "base/threads.h"
#include "engine/device/device_executor.h"
#include "engine/executor.h"
#include "engine/first_error.h"
#include "engine/gather_heads.h"
#include "engine/kv_cache.h"
#include "io/file_memory.h"
#include "kv/convert.h"

namespace hetero::engine {
namespace {

using kv::PartId;

constexpr std::uint32_t most_sequences = 1U << 16;

Status check_options(const Options& options) {
    const kernels::DType type = options.kv_dtype;
    if (type != kernels::DType::f16 && type != kernels::DType::bf16 && type != kernels::DType::f32) {
        return fail(Errc::usage, "the KV type must be f16, bf16 or f32, not {}", kernels::dtype_info(type).name);
    }
    if (options.kv_codecs && type != kernels::DType::f16) {
        return fail(Errc::usage, "KV codes are made from f16, not {}", kernels::dtype_info(type).name);
    }
    if (options.chunk_tokens == 0) return fail(Errc::usage, "a prefill chunk must have at least one token");
    if (options.sequences == 0 || options.sequences > most_sequences) {
        return fail(Errc::usage, "a session of {} sequences: 1 to {} are possible", options.sequences, most_sequences);
    }
    if (options.device.ops == nullptr && !options.kv_tiers.all_on_device())
        return fail(Errc::usage, "K and V stay elsewhere (--kv-tier) only where a device computes");
    if (options.device.ops != nullptr && options.group != nullptr && options.group->size() > 1)
        return fail(
            Errc::usage,
            "{}: ranks that compute together (--tp) do so on CPUs: give --device cpu, or leave out --tp, and where "
            "K and V are too large for one device keep them in the host's memory (--kv-tier host)",
            device_name(options.device));
    if (options.threads < 0) return fail(Errc::usage, "the number of threads cannot be {}", options.threads);
    return {};
}

Status check_memory(std::uint64_t kv_bytes, std::uint64_t work_bytes, std::uint32_t sequences, std::uint64_t capacity) {
    const std::uint64_t available = read_system_limits().memory_available_bytes;
    std::uint64_t needed = 0;
    if (__builtin_add_overflow(kv_bytes, work_bytes, &needed)) needed = std::numeric_limits<std::uint64_t>::max();
    if (available != 0 && needed > available) {
        return fail(Errc::resource,
                    "a session of {}{} tokens needs {} bytes ({} of KV cache, {} to work in), but {} are available; "
                    "ask for fewer tokens or a smaller chunk",
                    sequences == 1 ? "" : fmt::format("{} sequences of ", sequences), capacity, needed, kv_bytes,
                    work_bytes, available);
    }
    return {};
}

// Not more than a prompt can have, and whole chunks: 0 where one is all there would be.
std::uint32_t block_tokens_of(const Options& options, const model::Program& program, std::uint64_t capacity,
                              std::uint32_t chunk) {
    if (options.block_tokens == 0) return 0;
    const std::uint64_t most = block_bytes / std::max<std::uint64_t>(bytes_per_block_token(program), 1);
    const std::uint64_t needed = (capacity + chunk - 1) / chunk;
    const std::uint64_t chunks = std::min(needed, std::min(options.block_tokens, most) / chunk);
    return chunks < 2 ? 0 : static_cast<std::uint32_t>(chunks * chunk);
}

kv::LayerShape layer_shape(const model::KvLayout& layout) {
    if (layout.kind == model::KvLayout::Kind::latent) return {kv::LayerKind::mla, 0};
    return layout.window == 0 ? kv::LayerShape{} : kv::LayerShape{kv::LayerKind::swa, layout.window};
}

}  // namespace

std::vector<kv::LayerShape> layer_shapes(const model::Model& model) {
    std::vector<kv::LayerShape> shapes;
    for (const model::KvLayout& layout : model.program.kv) shapes.push_back(layer_shape(layout));
    const bool usual = std::all_of(shapes.begin(), shapes.end(),
                                   [](const kv::LayerShape& shape) { return shape == kv::LayerShape{}; });
    if (usual) shapes.clear();
    return shapes;
}

kv::Identity identity_of(const model::Model& model, const Digest& tokenizer_digest) {
    const model::Config& config = model.config;
    kv::Identity identity;
    identity.model_id = config.name;
    identity.arch = config.arch;
    identity.n_layers = config.n_layers;
    identity.n_heads = config.n_heads;
    const model::KvLayout& layout = model.program.kv.front();  // all layers have these alike
    identity.n_kv_heads = layout.n_kv_heads;
    identity.head_dim_k = layout.head_dim_k;
    identity.head_dim_v = layout.head_dim_v;
    identity.vocab_size = config.vocab_size;
    identity.context_length = config.context_length;
    identity.rope_theta = config.rope.theta;
    identity.rope_scaling = model.rope_scaling_text();
    identity.rope_applied = true;
    identity.arch_digest = model.arch_digest;
    identity.tokenizer_digest = tokenizer_digest;
    identity.lineage = model.lineage;
    identity.weights_digest = model.weights_digest;
    return identity;
}

// What the sessions of one family share.
struct Session::Core {
    Core(std::shared_ptr<const model::Model> model_, const Options& options_, Communicator& group_,
         std::uint32_t chunk_tokens_, std::uint32_t block_tokens_, std::shared_ptr<KvPool> kv_)
        : model(std::move(model_)),
          options(options_),
          group(group_),
          pool(options.threads == 0 ? default_thread_count() : options.threads),
          kv(std::move(kv_)),
          packed(options.precision == Precision::fast && options.device.ops == nullptr
                     ? PackedWeights::of(model, pool, Share(group), options.warm)
                     : nullptr),
          chunk_tokens(chunk_tokens_),
          block_tokens(block_tokens_) {
        pieces.reserve(options.sequences);
    }
    // Makes what computes.
    Status start(std::uint64_t capacity, const WeightsProgressFn& on_weights) {
        if (options.device.ops == nullptr) {
            runner = std::make_unique<Executor>(model->program, pool, most_tokens(chunk_tokens, options), group, packed,
                                                options.exec, block_tokens);
            return {};
        }
        LayerSchemes there = CodedLayers::possible(*kv, options.hand_out, !options.layers_stay);
        const bool stay = options.layers_stay && there == options.hand_out;  // what is coded here cannot
        if (options.layers_stay && !stay) there = CodedLayers::possible(*kv, options.hand_out, true);
        codes_layers = !there.empty();
        DeviceExecutor::Setup setup{model,
                                    kv,
                                    &pool,
                                    options.device,
                                    options.kv_tiers,
                                    options.precision,
                                    options.exec,
                                    most_tokens(chunk_tokens, options),
                                    block_tokens,
                                    options.sequences,
                                    capacity,
                                    on_weights,
                                    std::move(there),
                                    layer_shapes(*model),
                                    stay};
        HETERO_TRY(runner, DeviceExecutor::create(setup));
        options.on_weights = {};  // its captures need not live on
        return {};
    }
    [[nodiscard]] static std::uint32_t most_tokens(std::uint32_t chunk, const Options& options) {
        return std::max(chunk, options.sequences);
    }

    std::shared_ptr<const model::Model> model;
    Options options;
    Communicator& group;
    ThreadPool pool;
    std::shared_ptr<KvPool> kv;
    std::shared_ptr<const PackedWeights> packed;  // null: Precision::precise
    std::unique_ptr<Runner> runner;
    std::uint32_t chunk_tokens, block_tokens;
    bool codes_layers = false;
    std::vector<Runner::Piece> pieces;  // of a step
};

struct Session::Impl {
    Impl(std::shared_ptr<Core> core_, KvCache cache_)
        : core(std::move(core_)),
          model(core->model),
          options(core->options),
          group(core->group),
          cache(std::move(cache_)),
          first_held(model->program.kv.size()) {}

    std::shared_ptr<Core> core;
    std::shared_ptr<const model::Model> model;
    const Options& options;
    Communicator& group;
    KvCache cache;
    std::uint64_t position = 0;
    std::uint64_t import_tokens = 0;
    std::vector<bool> imported;  // [layer], empty unless an import is under way
    LayerFn on_layer;
    std::vector<std::uint64_t> first_held;  // [layer] tokens before it are not in the cache: the state had none

    Status check_ready() const;
    Status check_tokens(std::span<const TokenId> tokens) const;
    Status check_geometry(const kv::Header& header) const;
    Status check_kind(const kv::Header& header, std::uint32_t layer) const;
    // Tokens [first, end).
    Status import_part(const kv::Header& header, std::uint32_t layer, const kv::Part& part, PartId id,
                       std::uint64_t first, std::uint64_t end);
    Result<std::uint32_t> heads_before(const kv::Header& header, std::uint32_t layer, PartId id) const;
    Status check_values(const kv::Header& header, std::uint32_t layer, PartId id, const kv::Tensor& values,
                        std::uint64_t n_tokens, std::size_t n_bytes) const;
    // Before and after the parts of a layer; the first token that it stores.
    Result<std::uint64_t> begin_import(const kv::Header& header, std::uint32_t layer, std::uint64_t n_tokens);
    Status end_import(std::uint32_t layer, std::uint64_t first, std::uint64_t n_tokens);
    // KvCache::load() by all threads.
    Status load_values(std::uint32_t layer, PartId id, std::uint64_t first, std::uint64_t end,
                       std::span<const std::byte> in, std::uint32_t in_heads, std::uint32_t in_first);
};

Result<std::unique_ptr<Session>> Session::create(std::shared_ptr<const model::Model> model, const Options& options,
                                                 std::uint64_t capacity_tokens) {
    HETERO_CHECK(check_options(options));
    const std::uint64_t context = model->config.context_length;
    if (capacity_tokens == 0) return fail(Errc::usage, "a session must hold at least one token");
    if (capacity_tokens > context) {
        return fail(Errc::usage, "{} tokens do not fit the model's context of {}", capacity_tokens, context);
    }
    const auto chunk = static_cast<std::uint32_t>(std::min<std::uint64_t>(options.chunk_tokens, capacity_tokens));
    const model::Program& program = model->program;
    Communicator& group = options.group != nullptr ? *options.group : single_process();
    if (const std::size_t most = most_ranks(program); static_cast<std::size_t>(group.size()) > most) {
        return fail(Errc::usage, "{} ranks cannot divide the model's {} attention heads", group.size(), most);
    }
    const std::vector<Range> heads = kv_heads_by_layer(program, Share(group));
    const std::uint64_t pages = KvPool::pages_for(capacity_tokens) * options.sequences;  // below 2^64 / 64 * 2^16
    const KvStorage storage(options.kv_dtype, options.kv_codecs);
    HETERO_CHECK(KvPool::check(program.kv, storage));
    std::uint64_t kv_bytes = KvPool::bytes_needed(program.kv, storage, pages, heads);
    if (__builtin_add_overflow(kv_bytes, KvPool::tail_bytes(program.kv, storage, heads) * options.sequences,
                               &kv_bytes)) {
        kv_bytes = std::numeric_limits<std::uint64_t>::max();
    }
    const bool on_cpu = options.device.ops == nullptr, fast = options.precision == Precision::fast;
    const std::uint32_t block = block_tokens_of(options, program, capacity_tokens, chunk);
    std::uint64_t work_bytes = 0;
    if (on_cpu) {
        work_bytes =
            Executor::bytes_needed(program, Core::most_tokens(chunk, options), group, options.precision, options.exec,
                                   options.threads > 0 ? options.threads : default_thread_count()) +
            block * bytes_per_block_token(program);
        if (fast && !PackedWeights::kept(*model, Share(group))) {
            work_bytes += PackedWeights::bytes_needed(program, Share(group));
        }
    }
    std::shared_ptr<std::byte> file;
    if (options.kv_tiers.any(Tier::file) && kv_bytes != std::numeric_limits<std::uint64_t>::max()) {
        HETERO_TRY(file, io::take_file_memory(kv_bytes));
        kv_bytes = 0;
    }
    HETERO_CHECK(check_memory(kv_bytes, work_bytes, options.sequences, capacity_tokens));
    HETERO_TRY(std::shared_ptr<KvPool> pool, KvPool::create(program.kv, storage, pages, heads, std::move(file)));
    HETERO_TRY(KvCache cache, KvCache::create(pool, capacity_tokens));
    try {
        auto core = std::make_shared<Core>(std::move(model), options, group, chunk, block, std::move(pool));
        HETERO_CHECK(core->start(capacity_tokens, options.on_weights));
        return std::unique_ptr<Session>(new Session(std::make_unique<Impl>(std::move(core), std::move(cache))));
    } catch (const std::exception& error) {  // memory, or threads
        return fail(Errc::resource, "cannot set up a session of {} tokens: {}", capacity_tokens, error.what());
    }
}

Result<std::unique_ptr<Session>> Session::fork(std::uint64_t n_tokens) const {
    HETERO_CHECK(impl_->check_ready());
    if (n_tokens > position() || !can_truncate(n_tokens)) {
        return fail(Errc::usage, "a sequence of {} tokens cannot begin with the first {} of one of {}", n_tokens,
                    n_tokens, position());
    }
    HETERO_CHECK(impl_->core->runner->truncating(impl_->cache, n_tokens));
    HETERO_TRY(KvCache cache, impl_->cache.fork(n_tokens));
    try {
        auto impl = std::make_unique<Impl>(impl_->core, std::move(cache));
        impl->position = n_tokens;
        if (n_tokens != 0) impl->first_held = impl_->first_held;
        return std::unique_ptr<Session>(new Session(std::move(impl)));
    } catch (const std::bad_alloc&) {
        return fail(Errc::resource, "out of memory for another sequence");
    }
}

Session::Session(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Session::~Session() = default;

const model::Model& Session::model() const noexcept { return *impl_->model; }
int Session::threads() const noexcept { return impl_->core->pool.size(); }
kernels::DType Session::kv_dtype() const noexcept { return impl_->options.kv_dtype; }
std::string Session::device() const { return device_name(impl_->options.device); }
bool Session::warm() const noexcept { return impl_->core->packed != nullptr && impl_->core->packed->warm(); }
std::uint64_t Session::packed_bytes() const noexcept {
    return impl_->core->packed == nullptr ? 0 : impl_->core->packed->bytes();
}
std::uint64_t Session::kv_bytes() const noexcept {
    const KvPool& pool = impl_->cache.pool();
    return (pool.pages() - pool.free_pages()) * pool.page_bytes();
}
std::uint64_t Session::position() const noexcept { return impl_->position; }
std::uint64_t Session::capacity() const noexcept { return impl_->cache.capacity(); }

void Session::observe_queries(QueriesFn on_queries) { impl_->core->runner->observe_queries(std::move(on_queries)); }

void Session::observe_layers(LayerFn on_layer) { impl_->on_layer = std::move(on_layer); }

Status Session::Impl::check_ready() const {
    if (imported.empty()) return {};
    const auto missing = std::find(imported.begin(), imported.end(), false) - imported.begin();
    return fail(Errc::usage, "the import is not complete: layer {} is missing", missing);
}

Status Session::Impl::check_tokens(std::span<const TokenId> tokens) const {
    const std::uint64_t room = cache.capacity() - position;
    if (tokens.size() > room) {
        return fail(Errc::usage, "{} tokens do not fit: {} of {} positions are taken", tokens.size(), position,
                    cache.capacity());
    }
    for (std::size_t i = 0; i < tokens.size(); ++i) {
        if (tokens[i] < 0 || static_cast<std::uint32_t>(tokens[i]) >= model->config.vocab_size) {
            return fail(Errc::usage, "token {} at position {} is outside the vocabulary of {}", tokens[i], position + i,
                        model->config.vocab_size);
        }
    }
    return {};
}

Status Session::prefill(std::span<const TokenId> tokens, Logits which, const LogitsFn& on_logits,
                        const std::function<void(std::uint64_t done)>& on_progress) {
    HETERO_CHECK(impl_->check_ready());
    HETERO_CHECK(impl_->check_tokens(tokens));
    Core& core = *impl_->core;
    const std::uint64_t end = impl_->position + tokens.size();
    // Blocks only where they make layers complete early; the last one is whole, as it is the one that does.
    const bool by_layer = impl_->on_layer && core.block_tokens != 0 && tokens.size() > core.chunk_tokens;
    const std::size_t most = by_layer ? core.block_tokens : core.chunk_tokens;
    const std::size_t rest = by_layer ? tokens.size() % most : 0;
    for (std::size_t done = 0; done < tokens.size();) {
        const std::span<const TokenId> chunk =
            tokens.subspan(done, done == 0 && rest != 0 ? rest : std::min<std::size_t>(most, tokens.size() - done));
        const std::uint64_t first = impl_->position;
        const bool last = done + chunk.size() == tokens.size();
        Rows rows = Rows::none;
        if (on_logits && which == Logits::all) rows = Rows::all;
        if (on_logits && which == Logits::last && last) rows = Rows::last;
        Runner::LayerFn on_layer;
        if (impl_->on_layer && (last || (by_layer && on_progress))) {
            on_layer = [&](std::uint32_t layer) -> Status {
                if (by_layer && on_progress)
                    on_progress(done + chunk.size() * (layer + 1) / (impl_->model->program.kv.size() + 1));
                return last ? impl_->on_layer(layer, end) : Status{};
            };
        }
        const auto give = [&](std::size_t index, std::span<const float> logits) {
            return on_logits(first + index, logits);
        };
        const Runner::Piece piece{chunk, first, &impl_->cache, last};
        HETERO_CHECK(by_layer ? core.runner->run_by_layer(piece, rows, give, on_layer)
                              : core.runner->run({&piece, 1}, Phase::prefill, rows, give, on_layer));
        impl_->position += chunk.size();
        done += chunk.size();
        if (on_progress) on_progress(done);
    }
    core.runner->rest();
    return {};
}

Status Session::decode_together(std::span<const Step> steps, const StepLogitsFn& on_logits) {
    return decode_together(steps, {}, {}, on_logits);
}

Status Session::decode_together(std::span<const Step> steps, const LikeliestWanted& wanted,
                                const LikeliestFn& on_likeliest, const StepLogitsFn& on_logits) {
    if (steps.empty()) return {};
    Core& core = *steps.front().session->impl_->core;
    if (steps.size() > core.options.sequences) {
        return fail(Errc::usage, "{} sequences in a step, where {} were asked for", steps.size(),
                    core.options.sequences);
    }
    core.pieces.clear();
    for (const Step& step : steps) {
        Impl& impl = *step.session->impl_;
        if (impl.core.get() != &core) return fail(Errc::usage, "sequences of different models or sessions in a step");
        for (const Runner::Piece& piece : core.pieces) {
            if (piece.cache == &impl.cache) return fail(Errc::usage, "a sequence is twice in a step");
        }
        HETERO_CHECK(impl.check_ready());
        HETERO_CHECK(impl.check_tokens({&step.token, 1}));
        core.pieces.push_back({{&step.token, 1}, impl.position, &impl.cache, true});
    }
    HETERO_CHECK(wanted.count == 0 ? core.runner->run(core.pieces, Phase::decode, Rows::last, on_logits, {})
                                   : core.runner->step(core.pieces, wanted, on_likeliest, on_logits));
    for (const Step& step : steps) ++step.session->impl_->position;
    return {};
}

Result<std::span<const float>> Session::decode(TokenId token) {
    std::span<const float> result;
    const Step step{this, token};
    HETERO_CHECK(decode_together({&step, 1}, [&result](std::size_t, std::span<const float> logits) -> Status {
        result = logits;
        return {};
    }));
    return result;
}

kv::Scheme Session::kv_scheme(PartId part) const { return scheme_of({kv_dtype(), impl_->options.kv_codecs}, part); }

Result<kv::Layer> Session::export_layer(std::uint32_t layer) const { return export_layer(layer, impl_->position); }

Result<kv::Layer> Session::export_layer(std::uint32_t layer, std::uint64_t n_tokens) const {
    HETERO_CHECK(impl_->check_ready());
    KvCache& cache = impl_->cache;
    if (layer >= impl_->model->program.kv.size()) return fail(Errc::usage, "there is no layer {}", layer);
    const std::uint64_t first = layer_shape(impl_->model->program.kv[layer]).first_token(n_tokens);
    if (first < impl_->first_held[layer]) {
        return fail(Errc::usage, "layer {}: token {} is not in the cache; it came from a state that keeps {} on", layer,
                    first, impl_->first_held[layer]);
    }
    HETERO_CHECK(impl_->core->runner->fetch(cache, layer, first, n_tokens));
    try {
        kv::Layer out;
        for (const PartId id : {PartId::k, PartId::v}) {
            kv::Part& part = out.part(id);
            HETERO_TRY(part, kv::allocate_part(cache.pool().header_of(layer), kv_scheme(id), n_tokens - first, id));
            if (impl_->options.kv_codecs) {
                HETERO_CHECK(cache.save_codes(layer, id, first, n_tokens, part));
            } else {
                cache.save(layer, id, first, n_tokens, part.values.bytes);
            }
        }
        return out;
    } catch (const std::bad_alloc&) {
        return fail(Errc::resource, "out of memory while exporting layer {} ({} tokens)", layer, n_tokens);
    }
}

bool Session::codes_layers() const noexcept { return impl_->core->codes_layers; }

Result<CodedLayer> Session::export_coded(std::uint32_t layer, std::uint64_t end) const {
    HETERO_CHECK(impl_->check_ready());
    const LayerSchemes& schemes = impl_->options.hand_out;
    if (layer >= schemes.k.size()) return fail(Errc::usage, "there is no scheme to hand out layer {} in", layer);
    CodedLayer out;
    if (auto coded = impl_->core->runner->take_coded(layer)) {
        out = std::move(*coded);
        if (out.remote != nullptr) return out;
    } else {
        HETERO_TRY(out.layer, export_layer(layer, end));
    }
    for (const PartId id : {PartId::k, PartId::v}) {
        kv::Part& part = out.layer.part(id);
        if (part.scheme == schemes.of(layer, id)) continue;
        const std::uint64_t n_tokens = part.values.shape[0];
        auto coded = kv::convert_part(impl_->cache.pool().header_of(layer), part, schemes.of(layer, id), n_tokens, id,
                                      end - n_tokens, threads(), out.max_abs_error);
        if (!coded) return fail_with(coded.error(), fmt::format("layer {}, {}", layer, kv::part_name(id)));
        part = std::move(*coded);
    }
    return out;
}

kv::Shard Session::shard() const {
    const Communicator& group = impl_->group;
    if (group.size() == 1) return {};
    return {static_cast<std::uint32_t>(group.size()), static_cast<std::uint32_t>(group.rank()),
            impl_->cache.first_head(0), impl_->cache.heads(0)};
}

Result<kv::Layer> Session::gather_layer(std::uint32_t layer) const { return gather_layer(layer, impl_->position); }

Result<kv::Layer> Session::gather_layer(std::uint32_t layer, std::uint64_t n_tokens) const {
    HETERO_TRY(kv::Layer own, export_layer(layer, n_tokens));
    Communicator& group = impl_->group;
    if (group.size() == 1) return own;
    const KvCache& cache = impl_->cache;
    try {
        std::vector<Range> kept;  // [rank]
        for (int rank = 0; rank < group.size(); ++rank) {
            const Share share = Share(group).of(static_cast<std::size_t>(rank));
            kept.push_back(kv_heads_by_layer(impl_->model->program, share)[layer]);
        }
        kv::Layer whole;
        for (const PartId id : {PartId::k, PartId::v}) {
            const kv::Part& part = own.part(id);
            if (group.is_root()) {
                kv::Header all = cache.pool().header_of(layer);
                all.identity.n_kv_heads = static_cast<std::uint32_t>(kept.back().end);
                HETERO_TRY(whole.part(id), kv::allocate_part(all, part.scheme, part.values.shape[0], id));
            }
            for (const auto array : {&kv::Part::values, &kv::Part::scale, &kv::Part::zero}) {
                const kv::Tensor& tensor = part.*array;  // [row][head][element]
                if (tensor.empty()) continue;
                HETERO_CHECK(gather_heads(group, kept, kernels::dtype_bytes(tensor.dtype, tensor.shape[2]),
                                          tensor.shape[0], tensor.bytes, (whole.part(id).*array).bytes));
            }
            own.part(id) = {};
        }
        return whole;
    } catch (const std::bad_alloc&) {
        return fail(Errc::resource, "out of memory while gathering layer {} ({} tokens)", layer, n_tokens);
    }
}

Status Session::Impl::check_geometry(const kv::Header& header) const {
    const model::KvLayout& layout = model->program.kv.front();
    const auto differs = [](std::string_view what, std::uint64_t state, std::uint64_t here) -> Status {
        if (state == here) return {};
        return fail(Errc::bad_input, "the state has {} = {}, the model {}", what, state, here);
    };
    HETERO_CHECK(differs("n_layers", header.identity.n_layers, model->program.kv.size()));
    HETERO_CHECK(differs("n_kv_heads", header.identity.n_kv_heads, layout.n_kv_heads));
    HETERO_CHECK(differs("head_dim_k", header.identity.head_dim_k, layout.head_dim_k));
    return differs("head_dim_v", header.identity.head_dim_v, layout.head_dim_v);
}

Status Session::Impl::check_kind(const kv::Header& header, std::uint32_t layer) const {
    if (!header.layer_shapes.empty() && header.layer_shapes.size() != model->program.kv.size()) {
        return fail(Errc::bad_input, "the state has shapes of {} layers, the model {} layers",
                    header.layer_shapes.size(), model->program.kv.size());
    }
    const kv::LayerShape stored = header.layer_shape(layer), here = layer_shape(model->program.kv[layer]);
    if (here.takes(stored)) return {};
    return fail(Errc::bad_input, "layer {}: the state is {}, the model needs {}", layer, kv::to_text(stored),
                kv::to_text(here));
}

// Of the state's heads, how many come before those of this rank.
Result<std::uint32_t> Session::Impl::heads_before(const kv::Header& header, std::uint32_t layer, PartId id) const {
    const std::uint32_t heads = header.stored_heads();
    const std::uint32_t own_first = cache.first_head(layer), own_end = own_first + cache.heads(layer);
    if (own_first < header.shard.head_first || own_end > header.shard.head_first + heads) {
        return fail(Errc::bad_input, "layer {}, {}: the state has the KV heads {} to {}, here {} to {} are needed",
                    layer, kv::part_name(id), header.shard.head_first, header.shard.head_first + heads - 1, own_first,
                    own_end - 1);
    }
    return own_first - header.shard.head_first;
}

Status Session::Impl::check_values(const kv::Header& header, std::uint32_t layer, PartId id, const kv::Tensor& values,
                                   std::uint64_t n_tokens, std::size_t n_bytes) const {
    const std::uint32_t heads = header.stored_heads(), dim = cache.head_dim(layer, id);
    if (values.dtype == cache.dtype() && values.shape == std::vector<std::uint64_t>{n_tokens, heads, dim} &&
        n_bytes == kernels::dtype_bytes(cache.dtype(), n_tokens * heads * dim)) {
        return {};
    }
    return fail(Errc::bad_input, "layer {}, {}: {} bytes of {}, expected {} tokens of {} heads of {} {} values", layer,
                kv::part_name(id), n_bytes, kernels::dtype_info(values.dtype).name, n_tokens, heads, dim,
                kernels::dtype_info(cache.dtype()).name);
}

Status Session::Impl::import_part(const kv::Header& header, std::uint32_t layer, const kv::Part& part, PartId id,
                                  std::uint64_t first, std::uint64_t end) {
    const std::uint32_t heads = header.stored_heads(), dim = cache.head_dim(layer, id);
    const std::uint64_t n_tokens = end - first;
    const auto at = [&] { return fmt::format("layer {}, {}", layer, kv::part_name(id)); };
    HETERO_TRY(const std::uint32_t skipped, heads_before(header, layer, id));
    if (!options.kv_codecs && part.scheme.codec == kernels::dtype_info(cache.dtype()).name) {
        HETERO_CHECK(check_values(header, layer, id, part.values, n_tokens, part.values.bytes.size()));
        return load_values(layer, id, first, end, part.values.bytes, heads, skipped);
    }
    if (options.kv_codecs) {
        const quant::Spec& spec = id == PartId::k ? options.kv_codecs->k : options.kv_codecs->v;
        if (part.scheme.codec == spec.codec && part.scheme.params == spec.params && !part.scheme.keeps_rows()) {
            const quant::EncodedBytes expected =
                quant::find_codec(spec.codec)->bytes(spec.params, {n_tokens, heads, dim});
            for (const auto& [tensor, bytes] : {std::pair(&part.values, expected.values),
                                                {&part.scale, expected.scale},
                                                {&part.zero, expected.zero}}) {
                if (tensor->bytes.size() == bytes) continue;
                return fail(Errc::bad_input, "{}: {} bytes where {} tokens of {} heads of {} have {}", at(),
                            tensor->bytes.size(), n_tokens, heads, dim, bytes);
            }
            return cache.load_codes(layer, id, first, end, part, heads, skipped);
        }
    }
    auto values = kv::decode_part(header, part, n_tokens, id);
    if (!values) return fail_with(values.error(), at());
    if (values->size() != n_tokens * heads * dim) {
        return fail(Errc::bad_input, "{}: {} values, expected {}", at(), values->size(), n_tokens * heads * dim);
    }
    for (std::uint64_t token = 0; token < n_tokens; ++token) {
        HETERO_CHECK(cache.store(layer, id, first + token, values->data() + (token * heads + skipped) * dim));
    }
    return {};
}

Status Session::Impl::load_values(std::uint32_t layer, PartId id, std::uint64_t first, std::uint64_t end,
                                  std::span<const std::byte> in, std::uint32_t in_heads, std::uint32_t in_first) {
    constexpr std::uint64_t task_tokens = 4 * KvPool::page_tokens;
    if (first == end) return {};
    const std::size_t token_bytes = in.size() / (end - first);
    FirstError errors;
    core->pool.parallel_for((end - first + task_tokens - 1) / task_tokens, [&](std::size_t task, int) {
        const std::uint64_t begin = first + task * task_tokens, stop = std::min(begin + task_tokens, end);
        Status loaded =
            cache.load(layer, id, begin, stop, in.subspan((begin - first) * token_bytes), in_heads, in_first);
        if (!loaded) errors.note(task, std::move(loaded).error());
    });
    return errors.status();
}

Result<std::uint64_t> Session::Impl::begin_import(const kv::Header& header, std::uint32_t layer,
                                                  std::uint64_t n_tokens) {
    const std::size_t n_layers = model->program.kv.size();
    HETERO_CHECK(check_geometry(header));
    if (layer >= n_layers) return fail(Errc::usage, "there is no layer {}", layer);
    if (n_tokens > cache.capacity()) {
        return fail(Errc::usage, "a state of {} tokens does not fit a session of {}", n_tokens, cache.capacity());
    }
    if (imported.empty()) {
        imported.assign(n_layers, false);
        import_tokens = n_tokens;
        position = 0;
        cache.truncate(0);
    }
    if (import_tokens != n_tokens) {
        return fail(Errc::bad_input, "layer {} has {} tokens, the layers before it {}", layer, n_tokens, import_tokens);
    }
    if (imported[layer]) return fail(Errc::usage, "layer {} is imported twice", layer);
    HETERO_CHECK(check_kind(header, layer));
    HETERO_CHECK(cache.prepare(0, n_tokens));
    return header.layer_shape(layer).first_token(n_tokens);
}

Status Session::Impl::end_import(std::uint32_t layer, std::uint64_t first, std::uint64_t n_tokens) {
    HETERO_CHECK(core->runner->put(cache, layer, first, n_tokens));
    imported[layer] = true;
    first_held[layer] = first;
    if (std::find(imported.begin(), imported.end(), false) == imported.end()) {
        imported.clear();
        position = n_tokens;
    }
    return {};
}

Status Session::import_layer(const kv::Header& header, std::uint32_t layer, const kv::Layer& value,
                             std::uint64_t n_tokens) {
    HETERO_TRY(const std::uint64_t first, impl_->begin_import(header, layer, n_tokens));
    try {
        for (const PartId id : {PartId::k, PartId::v}) {
            HETERO_CHECK(impl_->import_part(header, layer, value.part(id), id, first, n_tokens));
        }
    } catch (const std::bad_alloc&) {
        return fail(Errc::resource, "out of memory while importing layer {} ({} tokens)", layer, n_tokens);
    }
    return impl_->end_import(layer, first, n_tokens);
}

bool Session::takes_stream(const kv::Header& header) const noexcept {
    const std::string_view resident = kernels::dtype_info(kv_dtype()).name;
    const auto same = [&](const kv::Scheme& scheme) { return scheme.codec == resident && !scheme.keeps_rows(); };
    return !impl_->options.kv_codecs && std::all_of(header.k_schemes.begin(), header.k_schemes.end(), same) &&
           std::all_of(header.v_schemes.begin(), header.v_schemes.end(), same);
}

Status Session::import_layer(const kv::Header& header, std::uint32_t layer, const kv::LayerStream& stream,
                             std::uint64_t n_tokens) {
    HETERO_TRY(const std::uint64_t first, impl_->begin_import(header, layer, n_tokens));
    KvCache& cache = impl_->cache;
    std::uint32_t skipped[2] = {};
    for (const PartId id : {PartId::k, PartId::v}) {
        HETERO_TRY(skipped[static_cast<std::size_t>(id)], impl_->heads_before(header, layer, id));
        const kv::Tensor& values = stream.layer().part(id).values;
        HETERO_CHECK(impl_->check_values(header, layer, id, values, n_tokens - first,
                                         kernels::dtype_bytes(values.dtype, values.elements())));
    }
    const std::size_t of_k = stream.chunks(PartId::k);
    FirstError errors;
    impl_->core->pool.parallel_for(of_k + stream.chunks(PartId::v), [&](std::size_t task, int) {
        const PartId id = task < of_k ? PartId::k : PartId::v;
        const auto load = [&](std::uint64_t begin, std::uint64_t end, std::span<const std::byte> rows) {
            return cache.load(layer, id, first + begin, first + end, rows, header.stored_heads(),
                              skipped[static_cast<std::size_t>(id)]);
        };
        Status read = stream.read(id, task < of_k ? task : task - of_k, load);
        if (!read) errors.note(task, std::move(read).error());
    });
    HETERO_CHECK(errors.status());
    return impl_->end_import(layer, first, n_tokens);
}

bool Session::can_truncate(std::uint64_t n_tokens) const noexcept {
    if (n_tokens == 0 || n_tokens >= impl_->position) return true;
    // What the query at n_tokens sees must be there.
    for (std::size_t layer = 0; layer < impl_->first_held.size(); ++layer) {
        const kv::LayerShape shape = layer_shape(impl_->model->program.kv[layer]);
        if (!shape.can_go_back(impl_->first_held[layer], n_tokens)) return false;
    }
    return true;
}

Status Session::truncate(std::uint64_t n_tokens) {
    if (!can_truncate(n_tokens)) {
        return fail(
            Errc::usage,
            "cannot go back from token {} to {}: the state that was imported keeps only a window of some layers",
            impl_->position, n_tokens);
    }
    HETERO_CHECK(impl_->core->runner->truncating(impl_->cache, n_tokens));
    impl_->position = std::min(impl_->position, n_tokens);
    impl_->cache.truncate(impl_->position);
    if (n_tokens == 0) {  // also ends an import that did not come to its end
        impl_->imported.clear();
        std::fill(impl_->first_held.begin(), impl_->first_held.end(), 0);
    }
    return {};
}

}  // namespace hetero::engine
