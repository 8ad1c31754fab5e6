// What computes for a session: runs a program's ops over pieces of sequences and keeps their K and V, on the CPU
// (executor.h) or on a device (device/device_executor.h).
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>

#include "base/function_ref.h"
#include "base/result.h"
#include "engine/device/coded_layers.h"
#include "engine/kv_cache.h"
#include "engine/likeliest.h"
#include "engine/plan.h"
#include "engine/queries.h"

namespace hetero::engine {

// Which positions of a chunk get logits.
enum class Rows : std::uint8_t { none, last, all };

// What a chunk is computed for. Within a phase the bits of a token do not depend on the chunk it came in; between
// phases they differ by rounding.
enum class Phase : std::uint8_t { prefill, decode };

class Runner {
public:
    // Some tokens of one sequence, at positions [first, first + tokens.size()).
    struct Piece {
        std::span<const std::int32_t> tokens;
        std::uint64_t first = 0;
        KvCache* cache = nullptr;
        bool last = true;  // no call with later tokens follows before the layers are wanted
    };
    using LogitsFn = std::function<Status(std::size_t index, std::span<const float> logits)>;
    // Called when the K and V of a layer are in the caches, layer by layer in order; an error from it ends the run.
    using LayerFn = std::function<Status(std::uint32_t layer)>;

    Runner() = default;
    Runner(const Runner&) = delete;
    Runner& operator=(const Runner&) = delete;
    virtual ~Runner() = default;

    // Computes the pieces, of different sequences, together, appends their K and V to their caches, and hands the
    // wanted logits to `on_logits` in order (index among all tokens; Rows::last: of each piece); the last ones are
    // valid until the next call. Token ids must be valid. All ranks of a group call it with the same arguments and
    // get the same logits; the caches are of this rank's heads. `on_layer` may be empty.
    // Errors: those of KvCache::prepare, of KvCache::store (the smallest place is named), of the group or the device,
    // and what on_logits returns; with Exec::eager, a value that is not finite, named by op, register and position.
    virtual Status run(std::span<const Piece> pieces, Phase phase, Rows rows, const LogitsFn& on_logits,
                       const LayerFn& on_layer) = 0;
    // As run() of a step of decode, for callers that can mostly do without all logits: on_likeliest is told of each
    // piece in order, and where it answers false, or a logit is NaN or +infinity, on_logits is handed all. A runner
    // that has them at hand anyway calls on_logits alone.
    virtual Status step(std::span<const Piece> pieces, const LikeliestWanted& /*wanted*/,
                        const LikeliestFn& /*on_likeliest*/, const LogitsFn& on_logits) {
        return run(pieces, Phase::decode, Rows::last, on_logits, {});
    }
    // Prefill of more tokens of one sequence than a chunk has: all of them pass a layer, chunk by chunk, before the
    // next layer is begun, so that its K and V are complete early.
    virtual Status run_by_layer(const Piece& block, Rows rows, const LogitsFn& on_logits, const LayerFn& on_layer) = 0;
    // A prompt is done: memory whose contents are only needed within a run may be given back until the next one.
    virtual void rest() noexcept {}
    // Called before each attention op; an error ends the run. Empty: no more.
    virtual void observe_queries(QueriesFn on_queries) = 0;

    // Where K and V are kept elsewhere than in the pool's memory:
    // brings tokens [first, end) of a layer to it, before it is read,
    virtual Status fetch(KvCache& /*cache*/, std::size_t /*layer*/, std::uint64_t /*first*/, std::uint64_t /*end*/) {
        return {};
    }
    // or from it, after it was written.
    virtual Status put(KvCache& /*cache*/, std::size_t /*layer*/, std::uint64_t /*first*/, std::uint64_t /*end*/) {
        return {};
    }
    // Of a layer of the piece that was handed out last, in the schemes that its device codes layers in; by another
    // thread, too. Nothing: fetch() it.
    virtual std::optional<CodedLayer> take_coded(std::size_t /*layer*/) { return {}; }
    // Before the cache goes back to its first n_tokens.
    virtual Status truncating(KvCache& /*cache*/, std::uint64_t /*n_tokens*/) { return {}; }

protected:
    // internal: what run(), or run_by_layer(), must not be called with.
    static Status check_pieces(std::span<const Piece> pieces, std::size_t chunk_tokens, std::size_t sequences);
    static Status check_block(const Piece& block, std::size_t block_tokens);
    // The ops of a segment over a chunk of a block.
    struct SegmentChunk {
        std::size_t begin_op = 0, end_op = 0;
        std::size_t begin = 0, n_tokens = 0;  // in the block
        Rows rows = Rows::none;               // that get logits
        bool last = false;                    // chunk of the segment
    };
    // run_by_layer(): each segment over all chunks of so many tokens, before the next one.
    static Status for_chunks(std::size_t n_tokens, std::size_t chunk_tokens, const Segments& segments, Rows rows,
                             FunctionRef<Status(const SegmentChunk&)> run);
};

}  // namespace hetero::engine
