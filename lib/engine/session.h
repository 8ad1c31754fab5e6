// Runs a model: prefill in chunks, decode token by token, over a KV cache that can be exported and imported.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/communicator.h"
#include "base/hash.h"
#include "base/result.h"
#include "engine/device/coded_layers.h"
#include "engine/device/device.h"
#include "engine/device/tiers.h"
#include "engine/kv_format.h"
#include "engine/likeliest.h"
#include "engine/linear.h"
#include "engine/plan.h"
#include "engine/queries.h"
#include "kv/state.h"
#include "kv/stream.h"
#include "model/model.h"

namespace hetero::engine {

using TokenId = std::int32_t;

struct Options {
    int threads = 0;                                // 0: default_thread_count()
    kernels::DType kv_dtype = kernels::DType::f16;  // resident type: f16, bf16, f32
    std::uint32_t chunk_tokens = 512;               // of prefill
    // Where layers are observed, so many tokens pass a layer before the next one begins: memory for the activations
    // between two layers, at most block_bytes. 0: chunk after chunk.
    std::uint64_t block_tokens = 0;
    // The processes that compute together, one session in each; outlives the session. Each keeps the K and V of its own
    // heads, and all make the same calls with the same arguments.
    Communicator* group = nullptr;             // null: this process alone
    Precision precision = Precision::precise;  // of products with the weights
    WarmFolder warm = {};                      // of Precision::fast
    Exec exec = Exec::graph;                   // how the ops are run; the bits are the same
    std::uint32_t sequences = 1;               // memory for so many: a session and its forks
    std::optional<KvCodecs> kv_codecs = {};    // K and V stay in codes instead, made from f16 (kv_dtype)
    Device device = {};                        // that computes
    KvTiers kv_tiers = {};                     // where K and V stay, of a device
    LayerSchemes hand_out = {};                // what a device codes observed layers to: see codes_layers()
    bool layers_stay = false;                  // there, until they are sent (CodedLayer::remote), where it codes all
    WeightsProgressFn on_weights = {};         // while weights are copied to a device
};

inline constexpr std::uint64_t default_block_tokens = 8192, block_bytes = 256ULL << 20;

enum class Logits { none, last, all };

// The hard invariants of states that this model makes.
[[nodiscard]] kv::Identity identity_of(const model::Model& model, const Digest& tokenizer_digest);

// What each layer of this model's states keeps, as kv::Header::layer_shapes has it: empty where all layers keep K and V
// of every token.
[[nodiscard]] std::vector<kv::LayerShape> layer_shapes(const model::Model& model);

class Session {
public:
    // Takes the memory for `capacity` tokens (at most the context) at once; not enough: resource, with both figures.
    // More ranks in the group than query heads: usage.
    static Result<std::unique_ptr<Session>> create(std::shared_ptr<const model::Model> model, const Options& options,
                                                   std::uint64_t capacity_tokens);
    ~Session();

    [[nodiscard]] const model::Model& model() const noexcept;
    [[nodiscard]] int threads() const noexcept;
    [[nodiscard]] std::string device() const;  // "cpu", "cuda:0"
    [[nodiscard]] kernels::DType kv_dtype() const noexcept;
    // How export_layer() stores a part, in every layer.
    [[nodiscard]] kv::Scheme kv_scheme(kv::PartId part) const;
    [[nodiscard]] std::uint64_t kv_bytes() const noexcept;  // of the pages in use, by sessions forked from it, too
    [[nodiscard]] std::uint64_t packed_bytes()
        const noexcept;                                     // of its weights, shared with sessions of the same model
    [[nodiscard]] bool warm() const noexcept;               // a file of Options::warm has them
    [[nodiscard]] std::uint64_t position() const noexcept;  // tokens in the cache
    [[nodiscard]] std::uint64_t capacity() const noexcept;

    // Appends tokens. `on_logits` (may be empty) gets [vocab_size] for each position that was asked for, in order.
    // Errors: usage (token out of the vocabulary, capacity exceeded), bad_input (a K or V value that overflows the KV
    // type: layer, part, token, head and dim are named, and bf16 is suggested; NaN likewise).
    // `on_progress` (may be empty) is called after each chunk with the tokens done.
    using LogitsFn = std::function<Status(std::uint64_t position, std::span<const float> logits)>;
    Status prefill(std::span<const TokenId> tokens, Logits which, const LogitsFn& on_logits,
                   const std::function<void(std::uint64_t done)>& on_progress = {});

    // One step: appends `token`, gives the logits of the next one [vocab_size], valid until the next call.
    Result<std::span<const float>> decode(TokenId token);

    // Called with the queries of every layer while tokens are computed; empty: no more.
    void observe_queries(QueriesFn on_queries);

    // Called by prefill(), in the thread that called it and in the order of layers, when the K and V of all tokens of a
    // layer are in the cache, `end` of them in all; later layers are still to be computed. From then on another thread
    // may call export_layer(layer, end), until prefill() returns and longer, as long as nothing else changes the
    // session. An error ends prefill(), as usual with an unspecified position. Empty: no more.
    using LayerFn = std::function<Status(std::uint32_t layer, std::uint64_t end)>;
    void observe_layers(LayerFn on_layer);

    // Whether a device computes that has kernels for some of Options::hand_out. Layers that are observed are coded there
    // then, beside the compute, and are to be taken by export_coded(), each once, instead of export_layer(): what of a
    // layer was not coded there, or has been taken, is coded here.
    [[nodiscard]] bool codes_layers() const noexcept;
    // In the schemes of Options::hand_out. Errors: those of export_layer(layer, end), and of the codecs.
    Result<CodedLayer> export_coded(std::uint32_t layer, std::uint64_t end) const;

    // Another sequence that begins with the first n_tokens of this one, of the same capacity: it uses the same weights,
    // threads and memory, shares the pages of what is common, and is used by the same thread. With 0 it is empty.
    // Errors: usage (more tokens than there are, or than can_truncate() lets go back to), resource.
    Result<std::unique_ptr<Session>> fork(std::uint64_t n_tokens) const;

    // One step of several sequences, a session and its forks: appends a token to each and hands out the logits of the
    // next one, in order; each sequence gets the bits of decode() alone, whoever is beside it. An error is one for all:
    // none has advanced. At most Options::sequences.
    struct Step {
        Session* session;
        TokenId token;
    };
    using StepLogitsFn = std::function<Status(std::size_t index, std::span<const float> logits)>;
    static Status decode_together(std::span<const Step> steps, const StepLogitsFn& on_logits);
    // The same for a caller who can mostly choose from the likeliest tokens (Sampler): see Runner::step.
    static Status decode_together(std::span<const Step> steps, const LikeliestWanted& wanted,
                                  const LikeliestFn& on_likeliest, const StepLogitsFn& on_logits);

    // The cache as a layer of a KV state, in the resident type: the heads of this rank, of the tokens before position()
    // that layer_shapes() says are stored. Errors: usage (no such layer; tokens that an imported state did not have).
    Result<kv::Layer> export_layer(std::uint32_t layer) const;
    // The same of the first `end` tokens, while prefill() runs: see observe_layers().
    Result<kv::Layer> export_layer(std::uint32_t layer, std::uint64_t end) const;
    // Which heads these are, as the header of such a state says it.
    [[nodiscard]] kv::Shard shard() const;
    // The heads of all ranks, on the group's rank 0; the others get an empty layer. A call of all ranks.
    Result<kv::Layer> gather_layer(std::uint32_t layer) const;
    Result<kv::Layer> gather_layer(std::uint32_t layer, std::uint64_t end) const;
    // Replaces the cache of one layer; all layers must be given, in any order, before the session is used.
    // n_tokens of every layer must agree. A state in the resident type or codec is taken bit for bit, any other codec
    // is decoded to it. A layer has the tokens that header.layer_shape(layer) says; a layer with a window may come
    // whole. The state has all heads, or at least those of this rank; others are left out. Only the shape is compared
    // with the model's: whether the state belongs to it (kv::compare) is the caller's question. Errors: bad_input
    // (another kind or shape, damaged sizes, a value that is not finite in the resident type).
    Status import_layer(const kv::Header& header, std::uint32_t layer, const kv::Layer& value, std::uint64_t n_tokens);
    // The same without a copy between: whole pieces go into the cache, by all threads, while others are read. Only
    // where takes_stream(): a state of floats in the resident type.
    Status import_layer(const kv::Header& header, std::uint32_t layer, const kv::LayerStream& stream,
                        std::uint64_t n_tokens);
    [[nodiscard]] bool takes_stream(const kv::Header& header) const noexcept;
    // Forgets tokens from the end. Where the cache came from a state whose layers keep only a window, no more than the
    // last token can be forgotten, or all: else usage.
    Status truncate(std::uint64_t n_tokens);
    [[nodiscard]] bool can_truncate(std::uint64_t n_tokens) const noexcept;

private:
    struct Core;
    struct Impl;
    explicit Session(std::unique_ptr<Impl> impl);
    std::unique_ptr<Impl> impl_;
};

}  // namespace hetero::engine
