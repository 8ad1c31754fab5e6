// Runs a program over chunks of tokens, op by op. All memory is taken when it is made, and nothing but an error takes
// more; where the values lie is planned (plan.h).
// Rows, heads and tokens are divided among the threads of a pool, rows and heads among the ranks of a group before
// that; the result does not depend on how.
#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/communicator.h"
#include "base/function_ref.h"
#include "base/result.h"
#include "base/threads.h"
#include "engine/aligned.h"
#include "engine/kv_cache.h"
#include "engine/linear.h"
#include "engine/plan.h"
#include "engine/queries.h"
#include "engine/runner.h"
#include "engine/share.h"
#include "engine/slots.h"
#include "kernels/api/row_tasks.h"
#include "kernels/api/tiles.h"
#include "model/program.h"

namespace hetero::engine {

class Executor final : public Runner {
public:
    // `program`, `pool` and `group` must outlive the executor. Chunks have at most `chunk_tokens` tokens. `packed` is
    // null for products that are Precision::precise.
    // run_by_layer() takes at most `block_tokens`, a multiple of the chunk; 0: it is not used.
    Executor(const model::Program& program, ThreadPool& pool, std::uint32_t chunk_tokens, Communicator& group,
             std::shared_ptr<const PackedWeights> packed = nullptr, Exec exec = Exec::graph,
             std::uint32_t block_tokens = 0);
    // What the constructor takes with a pool of `threads`, without the KV cache and the packed weights, and without
    // what block_tokens takes: bytes_per_block_token() for each.
    [[nodiscard]] static std::uint64_t bytes_needed(const model::Program& program, std::uint32_t chunk_tokens,
                                                    const Communicator& group, Precision precision = Precision::precise,
                                                    Exec exec = Exec::graph, int threads = 1);

    Status run(std::span<const Piece> pieces, Phase phase, Rows rows, const LogitsFn& on_logits,
               const LayerFn& on_layer) override;
    // The bits are those of run() with chunk after chunk.
    Status run_by_layer(const Piece& block, Rows rows, const LogitsFn& on_logits, const LayerFn& on_layer) override;
    void rest() noexcept override;
    void observe_queries(QueriesFn on_queries) override { on_queries_ = std::move(on_queries); }

private:
    struct Chunk {
        std::span<const Piece> pieces;
        std::size_t n_tokens = 0;
        Phase phase = Phase::prefill;
        Rows rows = Rows::none;
        const LogitsFn* on_logits = nullptr;
        const LayerFn* on_layer = nullptr;  // null or empty: nobody asks
    };
    // Queries that attend in one task: tokens [begin, end) of those in flight.
    struct QueryBlock {
        const Piece* piece;
        std::uint32_t begin, end;
    };
    struct Sizes : Widths {
        std::size_t residual = 0, tiled = 0;       // widest, elements per token
        std::size_t spans = 0;                     // of a decode step
        std::size_t quantized = 0, activated = 0;  // bytes per token
    };
    struct RopeTable {
        std::vector<double> frequencies;  // [pair], radians per position
        double factor = 1;                // of the rotated values
        std::vector<float> cos, sin;      // [token of the chunk, or of the block][pair]
    };
    // Before a chunk of so many tokens. A few touch little of the arena, and a step would fill huge pages with zeros
    // for them; many touch all of it.
    void take_pages(std::size_t n_tokens) noexcept;
    template <class Visit>
    void for_buffers(const Visit& visit) noexcept;  // visit(memory, bytes) of those that rest() gives back

    // y[token][row] = W x[token], for one matrix of a group that is computed together.
    struct Product {
        const model::Matrix* weight;
        const float* x;
        std::size_t x_stride;
        float* y;
        std::size_t y_stride;
        Range rows = {};                          // of multiply_all(): those that this rank computes
        const PackedMatrix* packed = nullptr;     // set by prepare(), where the product is fast
        const std::uint8_t* quantized = nullptr;  // x for it
        const std::uint8_t* residual = nullptr;   // where fine: what quantized lacks of x
        const kernels::Bf16* tiles = nullptr;     // instead of both, in a chunk that is computed in tiles

        // That of the tokens from this one on, a multiple of activation_tile; of tiles: 0.
        [[nodiscard]] Product from(std::size_t token) const;
    };
    // How a product is divided into tasks, [block of tokens][block of rows]. Where there are many tokens, each thread
    // has its own in all products and loops over tokens: they stay in its cache.
    struct Tasks {
        std::size_t n_tokens, n_rows;
        std::size_t tokens, rows;  // of a block

        [[nodiscard]] std::size_t row_blocks() const { return (n_rows + rows - 1) / rows; }
        [[nodiscard]] std::size_t count() const { return (n_tokens + tokens - 1) / tokens * row_blocks(); }
        [[nodiscard]] Range tokens_of(std::size_t task) const;
        [[nodiscard]] Range rows_of(std::size_t task) const;
    };
    [[nodiscard]] Tasks tasks_of(std::size_t n_rows, std::size_t n_tokens) const;

    static Sizes sizes_of(const model::Program& program);
    // The buffers that are planned: the program's registers, then these.
    enum class Scratch : std::uint8_t {
        k,
        v,
        gate,
        up,
        product,
        head_normed,
        logits,
        quantized,
        activated,
        spans,
        count_
    };
    static std::vector<Value> values_of(const model::Program& program, std::size_t chunk_tokens, Precision precision,
                                        int ranks);
    [[nodiscard]] float* at(model::Register index) { return registers_[index]; }
    [[nodiscard]] Status look_at(const model::Op& op) const;
    // body(token, worker) for each token; the caller alone does what takes less time than a meeting of the threads.
    // `width`: about how many elements a token has.
    template <class Body>
    void for_tokens(std::size_t n_tokens, std::size_t width, const Body& body) {
        constexpr std::size_t alone = 12288;  // some 2 us
        if (n_tokens * width > alone) return pool_.parallel_for(n_tokens, body);
        for (std::size_t token = 0; token < n_tokens; ++token) body(token, 0);
    }
    [[nodiscard]] std::size_t width(model::Register index) const { return program_.registers[index].width; }
    Status place(std::span<const Piece> pieces, Rows rows);
    void fill_rope(std::size_t n_tokens);
    [[nodiscard]] kernels::RopeTable rope_table(std::size_t index) const;  // of the chunk in work
    Status run_ops(std::size_t begin, std::size_t end, const Chunk& chunk);

    Status op(const model::Embed& embed, const Chunk& chunk);
    Status op(const model::Normalize& one, const Chunk& chunk);
    Status op(const model::Qkv& qkv, const Chunk& chunk);
    Status op(const model::LatentKv& kv, const Chunk& chunk);
    Status op(const model::LatentQuery& query, const Chunk& chunk);
    Status op(const model::Attention& attention, const Chunk& chunk);
    Status op(const model::Project& project, const Chunk& chunk);
    Status op(const model::HeadProject& project, const Chunk& chunk);
    Status op(const model::ProjectAdd& project, const Chunk& chunk);
    Status op(const model::FfnAdd& ffn, const Chunk& chunk);
    Status op(const model::MoeAdd& moe, const Chunk& chunk);
    Status op(const model::Head& head, const Chunk& chunk);

    kernels::AttentionArgs attention_args(const model::Attention& attention, std::size_t head, std::size_t n_heads,
                                          std::size_t token);
    [[nodiscard]] std::size_t heads_together(const model::Attention& attention, std::size_t tasks,
                                             std::size_t tasks_of_thread) const;
    void attend_blocks(const model::Attention& attention, std::span<const QueryBlock> blocks);  // prefill
    // Where K is coded in groups of tokens: stores the K of one group after the other, each before its queries attend.
    Status attend_groups(const model::Attention& attention, const Chunk& chunk);
    Status store_k(const model::Attention& attention, std::size_t begin, std::size_t end);
    Status attend_steps(const model::Attention& attention, const Chunk& chunk);  // decode
    // In place, of this rank's heads.
    void rotate_heads(float* heads, std::size_t stride, const model::Attention& attention, std::size_t dim,
                      std::size_t n_tokens);
    // Decode, of tokens [begin, end).
    void attend_spans(const model::Attention& attention, std::size_t begin, std::size_t end);

    // Before products of one input are computed: quantizes the input, or rounds it to tiles, for those whose weights
    // are packed. `fine`: where it is quantized, its rounding error is too, and multiplied in a second product.
    void prepare(std::span<Product> products, std::size_t n_tokens, bool fine = false);
    void quantize(const float* x, std::size_t x_stride, std::size_t cols, std::size_t n_tokens, std::uint8_t* out,
                  std::uint8_t* residual = nullptr);  // where fine: what `out` lacks, quantized too
    // Rows [begin, end) of one prepared product; to y[token][row - begin] of stride y_stride, or where the product
    // says.
    void multiply(const Product& product, std::size_t begin, std::size_t end, std::size_t n_tokens, float* y,
                  std::size_t y_stride) const;
    void multiply(const Product& product, std::size_t begin, std::size_t end, std::size_t n_tokens) const {
        multiply(product, begin, end, n_tokens, product.y + begin, product.y_stride);
    }
    // Several products of the same input as one parallel loop: fewer meetings of the threads.
    void multiply_all(std::span<Product> products, std::size_t n_tokens, bool fine = false);
    // y += norm(W x)
    Status multiply_add(const model::Matrix& weight, const std::optional<model::Norm>& norm, const float* x,
                        std::size_t x_stride, float* y, std::size_t y_stride, std::size_t n_tokens);
    // y[token][head] = W[head] x[token][head] for this rank's heads; `x_head` and `y_head` elements from one head to
    // the next.
    void multiply_heads(const model::Matrix& weight, std::size_t n_heads, const float* x, std::size_t x_stride,
                        std::size_t x_head, float* y, std::size_t y_stride, std::size_t y_head, std::size_t n_tokens);
    // Divides the rows of a matrix of every expert that has slots among the threads: body(expert, begin, end).
    void for_expert_rows(Range rows, FunctionRef<void(std::uint32_t expert, std::size_t begin, std::size_t end)> body);
    // The input of the experts' products, x [slot][cols], quantized expert by expert; and an expert's product of it.
    void quantize_slots(std::size_t cols, const float* x);
    [[nodiscard]] Product expert_product(const model::Matrix& weight, std::size_t first_slot, const float* x,
                                         float* y) const;
    // Completes y[token][...], of which each rank has computed a part: rows of a matrix, or heads of `dim` elements.
    Status gather_rows(float* y, std::size_t rows, std::size_t stride, std::size_t n_tokens);
    Status gather_heads(float* y, std::size_t n_heads, std::size_t dim, std::size_t stride, std::size_t n_tokens);
    Status gather(float* y, std::size_t stride, std::size_t n_tokens);  // of parts_
    [[nodiscard]] kernels::RowProduct how_to_multiply() const;
    [[nodiscard]] std::size_t rows_per_task(std::size_t rows) const;
    // The activations of an FFN whose weights are packed: straight to activated_, as tiles or quantized, and in tiles
    // of a rank of several to gate_.
    void activate_tiles(const model::FfnAdd& ffn, std::span<const Product> products, std::size_t n_tokens);
    void activate_codes(const model::FfnAdd& ffn, std::span<const Product> products, std::size_t n_tokens);
    // Rows of gate and up and what comes of them, to the worker's own [token][stride].
    const float* activate_block(const model::FfnAdd& ffn, std::span<const Product> products, Range rows, Range tokens,
                                std::size_t stride, int worker);

    const model::Program& program_;
    ThreadPool& pool_;
    Communicator& group_;
    Share share_;
    Sizes sizes_;
    std::uint32_t chunk_tokens_;
    QueriesFn on_queries_;
    // Of the tokens in flight, those of all pieces one after the other.
    std::vector<std::int32_t> ids_;
    std::vector<std::uint64_t> positions_;
    std::vector<KvCache*> caches_;
    std::vector<QueryBlock> blocks_;
    std::vector<std::uint32_t> wanted_;  // tokens that get logits
    Exec exec_;
    struct FreeArena {
        std::size_t bytes;
        void operator()(std::byte* memory) const noexcept { AlignedAllocator<std::byte>().deallocate(memory, bytes); }
    };
    std::unique_ptr<std::byte, FreeArena> arena_;
    bool huge_pages_ = false;  // under the arena and what else rest() gives back
    // In the arena:
    std::vector<float*> registers_;          // [register][token][width]
    std::span<float> k_, v_;                 // [token][kv_head][head_dim] of the layer in work
    std::span<float> gate_, up_;             // [token][ffn]
    std::span<float> product_;               // [token][row], before it is added
    std::span<float> head_normed_, logits_;  // [head token][hidden], [head token][vocab]
    std::span<std::uint8_t> quantized_;      // activations of the products in work
    std::span<std::uint8_t> activated_;      // the input of an FFN's last product
    std::span<float> spans_;                 // [token][head][span][max, sum, head_dim] of a decode step
    std::vector<RopeTable> ropes_;           // [rope]
    std::size_t rope_first_ = 0;             // where the chunk in work has its rows in them
    std::size_t ops_for_kv_ = 0;             // those after it only serve logits
    Segments segments_;                      // of run_by_layer(), where there is one
    std::uint32_t block_tokens_;
    std::vector<AlignedVector<float>> carried_;  // [register of segments_.carried][token of the block][width]
    Slots slots_;
    std::shared_ptr<const PackedWeights> packed_;  // null: precise
    // Prefill in bf16 (kernels/api/tiles.h), where this backend has it and the weights are packed.
    const kernels::TileOps* tile_ops_;          // null: no
    const kernels::TileOps* tiling_ = nullptr;  // of the chunk in work
    // Of a chunk of a prompt: the backend's for many queries, where the weights are packed and there is one.
    kernels::PrefillAttention attention_;
    std::uint32_t query_block_tokens_;              // of one task of it
    AlignedVector<kernels::Bf16> tiles_;            // the input of the products in work
    AlignedVector<kernels::Bf16> activated_tiles_;  // the input of an FFN's last product
    AlignedVector<float> work_;                     // [worker][gate, up][token][row of a task]
    AlignedVector<float> residuals_;                // [worker][token of a tile][col], of fine products
    const float* rounded_ = nullptr;       // the register that tiles_ has, when the op before this one rounded it
    std::vector<Range> parts_;             // [rank], elements of a token that are gathered
    std::vector<std::size_t> part_bytes_;  // [rank]
    std::vector<float> sent_;              // [token][element] of this rank's part
};

}  // namespace hetero::engine
