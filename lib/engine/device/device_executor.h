// Runs a program on a device. Weights, registers and the pages of K and V lie in its memory, all of which is taken when
// the executor is made. What the host adds to a step, token ids, positions and page tables, is copied there in one
// piece; the ops read it there, so that the ops of a decode step are captured once for a number of sequences and a
// power of two of tokens, and launched as one graph from then on (Exec::graph). Exec::eager gives every op to the
// device by itself and looks at what it wrote; the bits are the same.
//
// Precision::fast multiplies prompts in bf16 on matrix units, and single tokens by the weights as they are;
// Precision::precise all tokens so, in f32.
#pragma once
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <tuple>
#include <vector>

#include "engine/aligned.h"
#include "engine/device/coded_layers.h"
#include "engine/device/pages.h"
#include "engine/device/tails.h"
#include "engine/device/weights.h"
#include "engine/linear.h"
#include "engine/plan.h"
#include "engine/runner.h"

namespace hetero::engine {

class DeviceExecutor final : public Runner {
public:
    struct Setup {
        std::shared_ptr<const model::Model> model;
        std::shared_ptr<KvPool> kv;  // a page of it is a page on the device
        ThreadPool* pool = nullptr;  // for the upload alone
        Device device;
        KvTiers tiers;
        Precision precision = Precision::fast;
        Exec exec = Exec::graph;
        std::uint32_t chunk_tokens = 0, block_tokens = 0;  // of run() and run_by_layer(); 0: it is not used
        std::uint32_t sequences = 1;
        std::uint64_t capacity = 0;  // tokens of a sequence
        WeightsProgressFn on_weights = {};
        LayerSchemes hand_out = {};               // how layers are handed out; empty: as they are
        std::vector<kv::LayerShape> shapes = {};  // of states; empty: all gqa
        bool layers_stay = false;                 // CodedLayers::Setup::stay
        [[nodiscard]] CodedLayers::Setup coding() const {
            return {device, kv, hand_out, shapes, capacity, layers_stay};
        }
    };
    // Of the device's memory.
    struct Memory {
        std::uint64_t weights = 0, kv = 0, work = 0;
        [[nodiscard]] std::uint64_t total() const noexcept { return weights + kv + work; }
    };
    [[nodiscard]] static Memory bytes_needed(const Setup& setup);
    // resource: less memory than it takes, with both figures, or a fault of the device. usage: a model or an option
    // that is not for a device.
    static Result<std::unique_ptr<Runner>> create(const Setup& setup);
    ~DeviceExecutor() override;

    Status run(std::span<const Piece> pieces, Phase phase, Rows rows, const LogitsFn& on_logits,
               const LayerFn& on_layer) override;
    Status step(std::span<const Piece> pieces, const LikeliestWanted& wanted, const LikeliestFn& on_likeliest,
                const LogitsFn& on_logits) override;
    Status run_by_layer(const Piece& block, Rows rows, const LogitsFn& on_logits, const LayerFn& on_layer) override;
    void observe_queries(QueriesFn on_queries) override { on_queries_ = std::move(on_queries); }
    Status fetch(KvCache& cache, std::size_t layer, std::uint64_t first, std::uint64_t end) override;
    Status put(KvCache& cache, std::size_t layer, std::uint64_t first, std::uint64_t end) override;
    Status truncating(KvCache& cache, std::uint64_t n_tokens) override;
    std::optional<CodedLayer> take_coded(std::size_t layer) override {
        return coded_ == nullptr ? std::nullopt : coded_->take(layer);
    }

private:
    static constexpr std::size_t precise_query_tokens = 64;  // of a prompt, that attend together as those of a step do
    static constexpr std::size_t most_gemv_tokens = 8;       // sequences of a step that are multiplied so

    // What lies in the arena after the program's registers.
    enum class Scratch : std::uint8_t {
        k,
        v,
        gate,
        up,
        product,
        head_normed,
        logits,
        top,        // TopPlaces, then what top_k works in
        half,       // input of the products in work
        activated,  // likewise, of an FFN's last one
        matrix,     // for gemm
        attention,
        scores,   // of a router
        slots,    // DeviceSlots
        experts,  // [slot][hidden]
        count_
    };
    struct Sizes;  // widths of the program's ops
    static Sizes sizes_of(const Setup& setup);
    static std::vector<Value> values_of(const Setup& setup);

    // What the host says of the tokens in flight, and where in its copy on the device.
    struct Batch {
        std::size_t n_tokens = 0, n_sequences = 0;
        std::size_t max_tokens = 0, max_pages = 0;                                 // no position is beyond it
        std::size_t positions = 0, sequence = 0, tails = 0, pages = 0, bytes = 0;  // offsets; ids are at 0
        [[nodiscard]] static Batch of(std::size_t n_tokens, std::size_t n_sequences, std::size_t max_tokens);
    };
    // Tokens [begin, begin + n_tokens) of the batch, that pass the ops together.
    struct Chunk {
        std::size_t begin = 0, n_tokens = 0;
        Phase phase = Phase::prefill;
        Rows rows = Rows::none;
        std::span<const Piece> pieces = {};
        const LogitsFn* on_logits = nullptr;  // null: logits stay where they are (in a graph)
        const LayerFn* on_layer = nullptr;    // null or empty: nobody asks
        LikeliestWanted wanted = {};
        const LikeliestFn* on_likeliest = nullptr;
    };
    // Rows that a product reads, in f32; `half`: the same, rounded, or null.
    struct Input {
        const float* values = nullptr;
        std::size_t stride = 0;
        const std::uint16_t* half = nullptr;
        std::size_t half_stride = 0;
    };

    // Offsets of what top_k finds; its totals are at 0.
    struct TopPlaces {
        std::size_t k = 0, odd = 0, index = 0, value = 0, bytes = 0;
        [[nodiscard]] static TopPlaces of(std::size_t count, std::size_t k);
    };
    [[nodiscard]] static std::size_t top_bytes(const kernels::DeviceOps& ops, std::size_t count, std::size_t vocab);

    explicit DeviceExecutor(const Setup& setup);
    Status start();
    [[nodiscard]] std::byte* scratch(Scratch which) const;
    template <class T>
    [[nodiscard]] T* as(Scratch which) const {
        return reinterpret_cast<T*>(scratch(which));
    }
    [[nodiscard]] float* at(model::Register index) const { return registers_[index]; }
    [[nodiscard]] std::size_t width(model::Register index) const { return program_.registers[index].width; }
    [[nodiscard]] std::size_t vocab() const { return std::get<model::Head>(program_.ops.back()).weight.rows; }
    // Rows of halves begin at multiples of 16 bytes.
    [[nodiscard]] static std::size_t half_stride(std::size_t cols) { return round_up(cols, 8); }
    // Of a chunk, what each of its ops may find wrong.
    [[nodiscard]] unsigned long long* op_fault() const;

    // device_steps.cpp
    Status begin_step(std::span<const Piece> pieces, Phase phase, bool hands_out);
    Status run_step(Chunk chunk);
    Status run_block(const Piece& block, Rows rows, const LogitsFn& on_logits, const LayerFn& on_layer);
    Status run_graph(const Chunk& chunk);
    Status run_ops(std::size_t begin, std::size_t end, const Chunk& chunk);
    Status finish();
    Status settle(Status status);  // streams are idle afterwards
    Status fill_rope(std::size_t n_tokens);
    Status check_faults() const;
    Status kv_fault(std::size_t layer) const;
    Status look_at(const model::Op& op, const Chunk& chunk);
    Status hand_out(std::uint32_t layer, const Chunk& chunk);
    Status deliver();
    Status bring_to_host(KvCache& cache, std::size_t layer, std::uint64_t end);
    void arrived(KvCache& cache, std::size_t layer, std::uint64_t end) const;
    Status prefetch(std::size_t layer);
    [[nodiscard]] kernels::DeviceSequences sequences(std::size_t begin, std::size_t n_tokens) const;

    // device_products.cpp
    [[nodiscard]] bool on_matrix_units(const Chunk& chunk, const model::Matrix& weight) const;
    Result<Input> input(model::Register index, const Chunk& chunk, std::span<const model::Matrix* const> weights);
    Status multiply(const kernels::DeviceMatrix& w, const Input& x, std::size_t n_tokens, bool in_halves, float* y,
                    std::size_t y_stride, bool add = false);
    Status multiply(const model::Matrix& weight, const Input& x, const Chunk& chunk, float* y, std::size_t y_stride,
                    bool add = false);
    struct Product {  // y = weight x
        const model::Matrix& weight;
        float* y;
        std::size_t y_stride;
    };
    // Neighbours of one type go together where that is done.
    Status multiply(std::span<const Product> products, const Input& x, const Chunk& chunk);
    Status multiply_add(const model::Matrix& weight, const std::optional<model::Norm>& norm, const Input& x,
                        const Chunk& chunk, model::Register out);
    Status multiply_heads(const model::Matrix& weight, std::size_t n_heads, Input x, std::size_t x_head, float* y,
                          std::size_t y_stride, std::size_t y_head, const Chunk& chunk);
    Status op(const model::Embed& embed, const Chunk& chunk);
    Status op(const model::Normalize& one, const Chunk& chunk);
    Status op(const model::Project& project, const Chunk& chunk);
    Status op(const model::HeadProject& project, const Chunk& chunk);
    Status op(const model::ProjectAdd& project, const Chunk& chunk);
    Status op(const model::FfnAdd& ffn, const Chunk& chunk);
    Status op(const model::MoeAdd& moe, const Chunk& chunk);

    // device_logits.cpp
    [[nodiscard]] TopPlaces top_places(const Chunk& chunk, std::size_t count) const;
    Status bring_logits(std::size_t count, const Chunk& chunk);
    Status give_logits(std::size_t first, std::size_t count, const Chunk& chunk);
    Status op(const model::Head& head, const Chunk& chunk);

    // device_attention.cpp
    Status op(const model::Qkv& qkv, const Chunk& chunk);
    Status op(const model::LatentKv& kv, const Chunk& chunk);
    Status op(const model::LatentQuery& query, const Chunk& chunk);
    Status op(const model::Attention& attention, const Chunk& chunk);
    Status rotate(const float* src, std::size_t src_stride, std::size_t src_head, float* dst, std::size_t dst_stride,
                  std::size_t dst_head, std::size_t n_heads, std::size_t dim, std::size_t rope, const Chunk& chunk);
    Status store(std::size_t layer, kv::PartId part, const float* values, std::size_t stride, std::size_t begin,
                 std::size_t n_tokens);
    Status attend(const model::Attention& attention, const Chunk& chunk, std::size_t begin, std::size_t n_tokens);
    Status enter_layer(std::size_t layer);
    Status leave_layer(std::size_t layer, const Chunk& chunk);
    Status show_queries(const model::Attention& attention, const Chunk& chunk);

    Setup setup_;
    const kernels::DeviceOps& ops_;
    const model::Program& program_;
    std::shared_ptr<const DeviceWeights> weights_;
    std::unique_ptr<DevicePages> pages_;
    Stream stream_, copies_;  // where the ops run; of K and V between there and the host
    QueriesFn on_queries_;

    DeviceBytes arena_;
    std::vector<std::size_t> offsets_;  // in the arena: [register, scratch]
    std::vector<float*> registers_;     // [register][token][width]
    std::size_t first_scratch_ = 0, matrix_bytes_ = 0;
    Segments segments_;
    std::vector<DeviceBytes> carried_;  // [register of segments_.carried][token of the block][width]
    std::size_t ops_for_kv_ = 0;        // those after it only serve logits

    struct RopeTable {
        std::size_t pairs = 0;
        double factor = 1;
        DeviceBytes frequencies;  // f64 [pair]
        DeviceBytes angles;       // cos, then sin: f32 [token][pair]
        std::size_t most_tokens = 0;
    };
    std::vector<RopeTable> ropes_;

    Batch batch_;
    PinnedBytes batch_host_;
    DeviceBytes batch_device_;
    // The smallest bad place of what the ops look at, ~0: none. [layer][K, V], then [op]: a router's scores, and what
    // the last op wrote (Exec::eager).
    std::size_t n_faults_ = 0;
    DeviceBytes faults_;
    PinnedBytes faults_host_;
    PinnedBytes logits_host_;  // [token][vocab]
    PinnedBytes top_host_;     // TopPlaces
    model::Register rounded_register_ = 0;
    bool rounded_ = false;  // Scratch::half has what rounded_register_ has
    std::size_t op_ = 0;    // in work

    std::vector<KvPool::Page> in_flight_;  // pages of all sequences of the step, each once
    std::array<std::int64_t, 2> slot_layer_{-1, -1};
    std::vector<Event> ready_, attended_, handed_;  // [layer]: in its slot; passed by attention; in the pool's memory
    Event put_, computed_;
    struct Handing {
        std::uint32_t layer;
        KvCache* cache;
        std::uint64_t end;
        bool whole;  // else it is not wanted yet
    };
    std::deque<Handing> handing_;
    std::unique_ptr<CodedLayers> coded_;  // null: layers are handed out as they are
    const LayerFn* hand_to_ = nullptr;

    // Of a decode step: by number of sequences, largest position and what is wanted of the logits. A step is run as it
    // is before it is captured, so that nothing is loaded or chosen then.
    using GraphKey = std::tuple<std::size_t, std::size_t, std::uint32_t, double>;
    std::map<GraphKey, Graph> graphs_;  // null: it was run once
    std::unique_ptr<DeviceTails> tails_;
};

}  // namespace hetero::engine
