// How a device's executor is made: what it needs, and where everything lies.
#include "engine/device/device_executor.h"

#include <algorithm>
#include <limits>
#include <new>

#include "engine/aligned.h"
#include "model/rope.h"

namespace hetero::engine {
namespace {

// Of the device's memory what is taken without being asked for: the workspace of products, and the code of kernels that
// are loaded when they are first used.
constexpr std::uint64_t spare_bytes = std::uint64_t{128} << 20;
constexpr std::size_t most_matrix_bytes = std::size_t{256} << 20;  // of weights that are expanded at once

}  // namespace

struct DeviceExecutor::Sizes : Widths {
    std::size_t cols = 0;                                                   // widest, elements per token
    std::size_t experts = 0, top_k = 0, expert_ffn = 0, expert_hidden = 0;  // of the widest mixture
    std::size_t matrix = 0, attention = 0;                                  // bytes
};

DeviceExecutor::Sizes DeviceExecutor::sizes_of(const Setup& setup) {
    const model::Program& program = setup.model->program;
    const kernels::DeviceOps& ops = *setup.device.ops;
    const std::size_t chunk = setup.chunk_tokens;
    Sizes sizes{widths_of(program)};
    const auto widen = [](std::size_t& size, std::size_t to) { size = std::max(size, to); };
    const auto multiplied = [&](const model::Matrix& matrix) {
        if (matrix.rows == 0) return;
        widen(sizes.cols, round_up(matrix.cols, 8));
        if (setup.precision == Precision::precise) return;
        const kernels::DeviceMatrix shape{matrix.dtype, nullptr, matrix.rows, matrix.cols, 0, nullptr, nullptr};
        const std::size_t least = ops.gemm_scratch_bytes(shape, kernels::DeviceInput::bf16, chunk);
        const std::size_t whole = device_aligned(matrix.rows * round_up(matrix.cols, 8) * 2);
        widen(sizes.matrix, least == 0 ? 0 : std::max(least, std::min(whole, most_matrix_bytes)));
    };
    for (const model::Op& any : program.ops) {
        if (const auto* qkv = std::get_if<model::Qkv>(&any)) {
            for (const model::Matrix* matrix : {&qkv->q, &qkv->k, &qkv->v}) multiplied(*matrix);
        } else if (const auto* norm = std::get_if<model::Normalize>(&any)) {
            widen(sizes.cols, round_up(program.registers[norm->in].width, 8));
        } else if (const auto* query = std::get_if<model::LatentQuery>(&any)) {
            widen(sizes.cols, round_up(program.registers[query->in].width, 8));
            multiplied(query->k_absorb);
        } else if (const auto* attention = std::get_if<model::Attention>(&any)) {
            const model::KvLayout& layout = program.kv[attention->layer];
            kernels::DeviceAttention shape;
            shape.k = DevicePages::shape_of(*setup.kv, attention->layer, kv::PartId::k);
            shape.v = DevicePages::shape_of(*setup.kv, attention->layer, kv::PartId::v);
            shape.n_heads = attention->n_heads;
            shape.query_dim = layout.query_dim();
            shape.output_dim = layout.output_dim();
            shape.window = attention->window;
            const std::size_t together = std::max<std::size_t>(setup.sequences, precise_query_tokens);
            widen(sizes.attention, ops.attention_scratch_bytes(shape, chunk, setup.capacity, false));
            widen(sizes.attention, ops.attention_scratch_bytes(shape, together, setup.capacity, true));
        } else if (const auto* plain = std::get_if<model::Project>(&any)) {
            multiplied(plain->weight);
        } else if (const auto* heads = std::get_if<model::HeadProject>(&any)) {
            widen(sizes.cols, round_up(program.registers[heads->in].width, 8));
            multiplied(heads->weight);
        } else if (const auto* project = std::get_if<model::ProjectAdd>(&any)) {
            multiplied(project->weight);
        } else if (const auto* ffn = std::get_if<model::FfnAdd>(&any)) {
            for (const model::Matrix* matrix : {&ffn->gate, &ffn->up, &ffn->down}) multiplied(*matrix);
        } else if (const auto* moe = std::get_if<model::MoeAdd>(&any)) {
            widen(sizes.experts, moe->experts.size());
            widen(sizes.top_k, moe->rule.top_k);
            widen(sizes.expert_ffn, moe->experts.front().up.rows);
            widen(sizes.expert_hidden, moe->experts.front().down.rows);
            widen(sizes.cols, round_up(moe->router.cols, 8));
        } else if (const auto* head = std::get_if<model::Head>(&any)) {
            multiplied(head->weight);
        }
    }
    return sizes;
}

std::vector<Value> DeviceExecutor::values_of(const Setup& setup) {
    using enum Scratch;
    const model::Program& program = setup.model->program;
    const Sizes sizes = sizes_of(setup);
    const std::size_t chunk = setup.chunk_tokens, n_slots = chunk * sizes.top_k;
    std::vector<Value> values(program.registers.size() + static_cast<std::size_t>(count_));
    const std::vector<std::vector<Range>> lives = lives_of(program);
    for (std::size_t i = 0; i < lives.size(); ++i) {
        values[i] = {device_aligned(chunk * program.registers[i].width * sizeof(float)), lives[i]};
    }
    const auto put = [&](Scratch which, std::size_t bytes) -> Value& {
        Value& value = values[program.registers.size() + static_cast<std::size_t>(which)];
        value.bytes = device_aligned(bytes);
        return value;
    };
    const std::size_t head_tokens = std::min(chunk, head_block_tokens);
    put(k, chunk * sizes.k * sizeof(float)).lives = lives_of_k(program);
    put(v, chunk * sizes.v * sizeof(float));
    put(gate, std::max(chunk * sizes.ffn, n_slots * sizes.expert_ffn) * sizeof(float));
    put(up, std::max(chunk * sizes.ffn, n_slots * sizes.expert_ffn) * sizeof(float));
    put(product, chunk * sizes.product * sizeof(float));
    put(head_normed, head_tokens * sizes.hidden * sizeof(float));
    put(logits, head_tokens * sizes.vocab * sizeof(float));
    put(top, top_bytes(*setup.device.ops, head_tokens, sizes.vocab));
    put(activated, std::max(chunk * round_up(sizes.ffn, 8), n_slots * round_up(sizes.expert_ffn, 8)) * 2);
    put(matrix, sizes.matrix);
    put(attention, sizes.attention);
    put(scores, chunk * sizes.experts * sizeof(float));
    put(Scratch::slots, (4 * n_slots + sizes.experts + 1) * sizeof(std::int32_t));
    put(experts, n_slots * sizes.expert_hidden * sizeof(float));
    // What a norm rounds for the products after it.
    put(half, chunk * sizes.cols * 2).lives.push_back({0, program.ops.size()});
    for (std::size_t i = 0; i < program.ops.size(); ++i) {
        const auto in_op = [&](std::initializer_list<Scratch> used) {
            for (const Scratch which : used)
                values[program.registers.size() + static_cast<std::size_t>(which)].lives.push_back({i, i + 1});
        };
        const model::Op& op = program.ops[i];
        if (std::holds_alternative<model::Qkv>(op)) in_op({v, matrix});
        if (std::holds_alternative<model::Attention>(op)) in_op({Scratch::attention});
        if (std::holds_alternative<model::Project>(op) || std::holds_alternative<model::LatentQuery>(op) ||
            std::holds_alternative<model::HeadProject>(op))
            in_op({matrix});
        if (std::holds_alternative<model::ProjectAdd>(op)) in_op({product, matrix});
        if (std::holds_alternative<model::FfnAdd>(op)) in_op({gate, up, product, activated, matrix});
        if (std::holds_alternative<model::MoeAdd>(op)) in_op({gate, up, activated, scores, Scratch::slots, experts});
        if (std::holds_alternative<model::Head>(op)) in_op({head_normed, logits, top, matrix});
    }
    return values;
}

DeviceExecutor::Batch DeviceExecutor::Batch::of(std::size_t n_tokens, std::size_t n_sequences, std::size_t max_tokens) {
    Batch batch{n_tokens, n_sequences, max_tokens, KvPool::pages_for(max_tokens)};
    std::size_t end = 0;
    const auto place = [&end](std::size_t bytes) {
        const std::size_t begin = end;
        end = round_up(end + bytes, 64);
        return begin;
    };
    place(n_tokens * sizeof(std::int32_t));  // ids
    batch.positions = place(n_tokens * sizeof(std::int32_t));
    batch.sequence = place(n_tokens * sizeof(std::int32_t));
    batch.tails = place(n_sequences * sizeof(std::uint16_t*));
    batch.pages = place(n_sequences * batch.max_pages * sizeof(std::uint32_t));
    batch.bytes = end;
    return batch;
}

namespace {

// Tokens whose places in a step are told to the device at once.
std::size_t most_in_flight(const DeviceExecutor::Setup& setup) {
    return std::max({setup.chunk_tokens, setup.block_tokens, setup.sequences});
}

}  // namespace

DeviceExecutor::Memory DeviceExecutor::bytes_needed(const Setup& setup) {
    const model::Program& program = setup.model->program;
    Memory memory;
    if (!DeviceWeights::kept(*setup.model, setup.device)) memory.weights = DeviceWeights::bytes_needed(program);
    const DevicePages::Bytes pages = DevicePages::bytes_needed(*setup.kv, setup.tiers);
    memory.kv = pages.pages + pages.slots + setup.sequences * setup.kv->tail_size() * sizeof(std::uint16_t);
    memory.work = arrange(values_of(setup), setup.exec).bytes + spare_bytes +
                  setup.block_tokens * bytes_per_block_token(program) +
                  Batch::of(most_in_flight(setup), setup.sequences, setup.capacity).bytes;
    if (!setup.hand_out.empty()) memory.work += CodedLayers::bytes_needed(setup.coding());
    for (const model::RopeConfig& rope : program.ropes)
        memory.work += rope.rotary_dim * (sizeof(double) + most_in_flight(setup) * sizeof(float));
    return memory;
}

DeviceExecutor::DeviceExecutor(const Setup& setup)
    : setup_(setup), ops_(*setup.device.ops), program_(setup.model->program) {}

DeviceExecutor::~DeviceExecutor() {
    if (setup_.kv != nullptr) setup_.kv->copy_by({});
    for (const Stream* stream : {&stream_, &copies_})
        if (*stream != nullptr) (void)ops_.synchronize(stream->get());
}

Result<std::unique_ptr<Runner>> DeviceExecutor::create(const Setup& setup) {
    const model::Program& program = setup.model->program;
    HETERO_CHECK(setup.tiers.check(program.kv.size()));
    for (const model::Op& any : program.ops) {
        const auto* moe = std::get_if<model::MoeAdd>(&any);
        if (moe == nullptr) continue;
        for (const model::Expert& expert : moe->experts)
            for (const auto which : {&model::Expert::gate, &model::Expert::up, &model::Expert::down}) {
                const model::Matrix &one = expert.*which, &first = moe->experts.front().*which;
                if (one.dtype == first.dtype && one.rows == first.rows && one.cols == first.cols && one.bias.empty() &&
                    one.row_scale.size() == first.row_scale.size())
                    continue;
                return fail(Errc::usage,
                            "{}: {}: the experts of a mixture must be of one type and shape, without biases",
                            device_name(setup.device), one.name);
            }
    }
    kernels::DeviceInfo info;
    HETERO_CHECK(check(setup.device.ops->device_info(setup.device.index, info)));
    const std::uint64_t limit = setup.device.memory_bytes;
    const std::uint64_t available = limit != 0 ? std::min<std::uint64_t>(limit, info.free_bytes) : info.free_bytes;
    const Memory needed = bytes_needed(setup);
    if (needed.total() > available) {
        return fail(
            Errc::resource,
            "{}: a session of {}{} tokens needs {} bytes of device memory ({} of weights, {} of KV cache, {} to "
            "work in), but {} {}; ask for fewer tokens, a smaller chunk, or, where a tool has it, for K and V in the "
            "host's memory (--kv-tier host)",
            device_name(setup.device), setup.sequences == 1 ? "" : fmt::format("{} sequences of ", setup.sequences),
            setup.capacity, needed.total(), needed.weights, needed.kv, needed.work, available,
            available == limit ? "are allowed" : "are free");
    }
    try {
        std::unique_ptr<DeviceExecutor> made(new DeviceExecutor(setup));
        HETERO_CHECK(made->start());
        return std::unique_ptr<Runner>(std::move(made));
    } catch (const std::bad_alloc&) {
        return fail(Errc::resource, "out of memory for a session on {}", device_name(setup.device));
    }
}

Status DeviceExecutor::start() {
    const int device = setup_.device.index;
    const std::size_t most_tokens = most_in_flight(setup_), n_layers = program_.kv.size();
    HETERO_TRY(stream_, make_stream(ops_, device));
    HETERO_TRY(copies_, make_stream(ops_, device));
    HETERO_TRY(put_, make_event(ops_, device));
    HETERO_TRY(computed_, make_event(ops_, device));
    for (std::vector<Event>* events : {&ready_, &attended_, &handed_}) {
        while (events->size() < n_layers) {
            HETERO_TRY(Event event, make_event(ops_, device));
            events->push_back(std::move(event));
        }
    }
    HETERO_TRY(weights_, DeviceWeights::of(setup_.model, setup_.device, *setup_.pool, setup_.on_weights));
    HETERO_TRY(pages_, DevicePages::create(setup_.device, *setup_.kv, setup_.tiers));
    setup_.kv->copy_by([this](KvPool::Page from, KvPool::Page to) { return pages_->copy(stream_.get(), from, to); });

    const std::vector<Value> values = values_of(setup_);
    const Arena arena = arrange(values, setup_.exec);
    HETERO_TRY(arena_, take_device(ops_, device, std::max<std::size_t>(arena.bytes, 1)));
    offsets_ = arena.offsets;
    first_scratch_ = program_.registers.size();
    for (std::size_t i = 0; i < first_scratch_; ++i)
        registers_.push_back(reinterpret_cast<float*>(arena_.get() + offsets_[i]));
    matrix_bytes_ = values[first_scratch_ + static_cast<std::size_t>(Scratch::matrix)].bytes;
    ops_for_kv_ = ops_for_kv(program_);
    if (setup_.block_tokens != 0) {
        segments_ = segments_of(program_);
        for (const model::Register index : segments_.carried) {
            HETERO_TRY(DeviceBytes memory,
                       take_device(ops_, device, std::size_t{setup_.block_tokens} * width(index) * sizeof(float)));
            carried_.push_back(std::move(memory));
        }
    }
    for (const model::RopeConfig& rope : program_.ropes) {
        const std::vector<double> frequencies = model::inverse_frequencies(rope);
        RopeTable table{frequencies.size(), rope.attention_factor, {}, {}, most_tokens};
        const std::size_t bytes = frequencies.size() * sizeof(double);
        HETERO_TRY(table.frequencies, take_device(ops_, device, std::max<std::size_t>(bytes, 1)));
        HETERO_TRY(table.angles, take_device(ops_, device, 2 * most_tokens * table.pairs * sizeof(float) + 1));
        HETERO_CHECK(check(ops_.copy(stream_.get(), table.frequencies.get(), frequencies.data(), bytes)));
        HETERO_CHECK(check(ops_.synchronize(stream_.get())));
        ropes_.push_back(std::move(table));
    }
    const std::size_t batch_bytes = Batch::of(most_tokens, setup_.sequences, setup_.capacity).bytes;
    HETERO_TRY(batch_host_, take_pinned(ops_, device, batch_bytes));
    HETERO_TRY(batch_device_, take_device(ops_, device, batch_bytes));
    n_faults_ = 2 * n_layers + program_.ops.size();
    HETERO_TRY(faults_, take_device(ops_, device, n_faults_ * sizeof(unsigned long long)));
    HETERO_TRY(faults_host_, take_pinned(ops_, device, n_faults_ * sizeof(unsigned long long)));
    const std::size_t logits = values[first_scratch_ + static_cast<std::size_t>(Scratch::logits)].bytes;
    HETERO_TRY(logits_host_, take_pinned(ops_, device, std::max<std::size_t>(logits, 1)));
    const std::size_t top = TopPlaces::of(head_block_tokens, LikeliestWanted::most).bytes;
    HETERO_TRY(top_host_, take_pinned(ops_, device, top));
    in_flight_.reserve(setup_.kv->pages());
    HETERO_TRY(tails_, DeviceTails::create(setup_.device, *setup_.kv, setup_.sequences));
    if (!setup_.hand_out.empty()) {
        HETERO_TRY(coded_, CodedLayers::create(setup_.coding()));
    }
    return {};
}

std::byte* DeviceExecutor::scratch(Scratch which) const {
    return arena_.get() + offsets_[first_scratch_ + static_cast<std::size_t>(which)];
}

}  // namespace hetero::engine
