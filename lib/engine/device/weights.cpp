#include "engine/device/weights.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <mutex>
#include <new>
#include <tuple>

#include "engine/aligned.h"

namespace hetero::engine {
namespace {

constexpr std::size_t row_alignment = 16;
constexpr std::size_t staging_bytes = std::size_t{32} << 20;  // of each of two page-locked buffers

std::size_t row_bytes_of(const model::Matrix& matrix) {
    return round_up(kernels::dtype_bytes(matrix.dtype, matrix.cols), row_alignment);
}

const std::byte* row_of(const model::Matrix& matrix, std::size_t row) {
    if (matrix.group_rows == 0) return matrix.data + row * matrix.row_bytes;
    return matrix.data + row / matrix.group_rows * matrix.group_bytes + row % matrix.group_rows * matrix.row_bytes;
}

// What lies on the device: rows of bytes of the host's, each at a multiple of `stride`.
struct Item {
    const model::Matrix* matrix = nullptr;  // null: values
    const std::vector<float>* values = nullptr;
    std::size_t offset = 0, rows = 0, row_bytes = 0, stride = 0;
};

// Gives every matrix and vector of a program its place.
class Layout {
public:
    explicit Layout(const model::Program& program) {
        for (const model::Op& any : program.ops) std::visit([this](const auto& op) { add(op); }, any);
    }
    std::vector<Item> items;
    std::unordered_map<const void*, std::size_t> offsets;
    std::size_t bytes = 0;

private:
    void add(const std::vector<float>& values) {
        if (values.empty()) return;
        const std::size_t size = values.size() * sizeof(float);
        place(&values, {nullptr, &values, 0, 1, size, size});
    }
    void add(const model::Matrix& matrix) {
        if (matrix.rows == 0) return;
        add(matrix.bias);
        add(matrix.row_scale);
        // Embedding and head are often one matrix.
        const auto same = std::tuple(matrix.data, matrix.rows, matrix.cols, matrix.group_rows, matrix.group_bytes);
        if (const auto found = placed_.find(same); found != placed_.end()) {
            offsets.emplace(&matrix, found->second);
            return;
        }
        const std::size_t stride = row_bytes_of(matrix);
        place(&matrix, {&matrix, nullptr, 0, matrix.rows, kernels::dtype_bytes(matrix.dtype, matrix.cols), stride});
        placed_.emplace(same, offsets.at(&matrix));
    }
    void add(const model::Norm& norm) {
        add(norm.weight.values);
        add(norm.bias.values);
    }
    void add(const std::optional<model::Norm>& norm) {
        if (norm) add(*norm);
    }
    void add(const model::Embed& op) { add(op.table); }
    void add(const model::Normalize& op) { add(op.norm); }
    void add(const model::Qkv& op) {
        add(op.q);
        add(op.k);
        add(op.v);
        add(op.q_norm);
        add(op.k_norm);
    }
    void add(const model::LatentKv& op) { add(op.norm); }
    void add(const model::LatentQuery& op) { add(op.k_absorb); }
    void add(const model::Attention& /*op*/) {}
    void add(const model::Project& op) { add(op.weight); }
    void add(const model::HeadProject& op) { add(op.weight); }
    void add(const model::ProjectAdd& op) {
        add(op.weight);
        add(op.norm);
    }
    void add(const model::FfnAdd& op) {
        add(op.gate);
        add(op.up);
        add(op.down);
        add(op.norm);
    }
    void add(const model::MoeAdd& op) {
        add(op.router);
        add(op.selection_bias.values);
        for (const auto which : {&model::Expert::gate, &model::Expert::up, &model::Expert::down})
            for (const model::Expert& expert : op.experts) {  // equal steps: they have equal sizes
                const model::Matrix& matrix = expert.*which;
                const std::size_t row = kernels::dtype_bytes(matrix.dtype, matrix.cols);
                place(&matrix, {&matrix, nullptr, 0, matrix.rows, row, row_bytes_of(matrix)});
            }
        for (const auto which : {&model::Expert::gate, &model::Expert::up, &model::Expert::down}) {
            for (const model::Expert& expert : op.experts) {  // adjacent
                const std::vector<float>& scale = (expert.*which).row_scale;
                const std::size_t size = scale.size() * sizeof(float);
                if (size != 0) place(&scale, {nullptr, &scale, 0, 1, size, size}, sizeof(float));
            }
            bytes = device_aligned(bytes);
        }
    }
    void add(const model::Head& op) {
        add(op.norm);
        add(op.weight);
    }

    void place(const void* key, Item item, std::size_t granule = device_alignment) {
        item.offset = bytes;
        bytes += round_up(item.rows * item.stride, granule);
        offsets.emplace(key, item.offset);
        items.push_back(item);
    }
    std::map<std::tuple<const std::byte*, std::uint64_t, std::uint64_t, std::uint64_t, std::size_t>, std::size_t>
        placed_;
};

// One buffer of the ring.
struct Staging {
    PinnedBytes memory;
    Event copied;
};

struct Kept {
    std::mutex mutex;
    std::map<std::tuple<const model::Model*, const kernels::DeviceOps*, int>, std::weak_ptr<const DeviceWeights>> all;
};
Kept& kept_weights() {
    static Kept kept;
    return kept;
}

}  // namespace

std::uint64_t DeviceWeights::bytes_needed(const model::Program& program) { return Layout(program).bytes; }

bool DeviceWeights::kept(const model::Model& model, const Device& device) {
    Kept& kept = kept_weights();
    const std::lock_guard lock(kept.mutex);
    const auto found = kept.all.find({&model, device.ops, device.index});
    return found != kept.all.end() && !found->second.expired();
}

Result<std::shared_ptr<const DeviceWeights>> DeviceWeights::of(const std::shared_ptr<const model::Model>& model,
                                                               const Device& device, ThreadPool& pool,
                                                               const WeightsProgressFn& on_progress) {
    Kept& kept = kept_weights();
    const std::lock_guard lock(kept.mutex);
    auto& slot = kept.all[{model.get(), device.ops, device.index}];
    if (auto weights = slot.lock()) return weights;
    std::shared_ptr<DeviceWeights> weights(new DeviceWeights);
    weights->model_ = model;
    HETERO_CHECK(weights->upload(*model, device, pool, on_progress));
    slot = weights;
    return std::shared_ptr<const DeviceWeights>(std::move(weights));
}

Status DeviceWeights::upload(const model::Model& model, const Device& device, ThreadPool& pool,
                             const WeightsProgressFn& on_progress) {
    const kernels::DeviceOps& ops = *device.ops;
    Layout layout(model.program);
    offsets_ = std::move(layout.offsets);
    bytes_ = layout.bytes;
    HETERO_TRY(memory_, take_device(ops, device.index, std::max<std::size_t>(bytes_, 1)));
    HETERO_TRY(const Stream stream, make_stream(ops, device.index));
    std::size_t widest = 0;
    for (const Item& item : layout.items) widest = std::max(widest, item.stride);
    const std::size_t size = std::max(std::min<std::size_t>(staging_bytes, bytes_), widest);
    std::array<Staging, 2> ring;
    for (Staging& staging : ring) {
        HETERO_TRY(staging.memory, take_pinned(ops, device.index, size));
        HETERO_TRY(staging.copied, make_event(ops, device.index));
        HETERO_CHECK(check(ops.record(staging.copied.get(), stream.get())));
    }
    std::size_t turn = 0;
    for (const Item& item : layout.items) {
        const std::size_t at_once = std::max<std::size_t>(size / item.stride, 1);
        for (std::size_t row = 0; row < item.rows; row += at_once) {
            const std::size_t count = std::min(at_once, item.rows - row);
            Staging& staging = ring[turn++ % ring.size()];
            HETERO_CHECK(check(ops.synchronize_event(staging.copied.get())));
            constexpr std::size_t task_bytes = std::size_t{1} << 20;
            const std::size_t task_rows = std::max<std::size_t>(task_bytes / item.stride, 1);
            pool.parallel_for((count + task_rows - 1) / task_rows, [&](std::size_t task, int) {
                const std::size_t begin = task * task_rows, end = std::min(begin + task_rows, count);
                for (std::size_t r = begin; r < end; ++r) {
                    std::byte* to = staging.memory.get() + r * item.stride;
                    const auto* from = item.matrix != nullptr ? row_of(*item.matrix, row + r)
                                                              : reinterpret_cast<const std::byte*>(item.values->data());
                    std::memcpy(to, from, item.row_bytes);
                    std::memset(to + item.row_bytes, 0, item.stride - item.row_bytes);
                }
            });
            HETERO_CHECK(check(ops.copy(stream.get(), memory_.get() + item.offset + row * item.stride,
                                        staging.memory.get(), count * item.stride)));
            HETERO_CHECK(check(ops.record(staging.copied.get(), stream.get())));
            if (on_progress) on_progress(item.offset + (row + count) * item.stride, bytes_);
        }
        if (item.matrix != nullptr && item.matrix->group_rows == 0 && model.weights != nullptr) {
            io::TensorView rows;  // their pages are not needed any more
            rows.bytes = {item.matrix->data, item.matrix->rows * item.matrix->row_bytes};
            model.weights->forget(rows);
        }
    }
    HETERO_CHECK(check(ops.synchronize(stream.get())));
    if (on_progress) on_progress(bytes_, bytes_);
    return {};
}

const float* DeviceWeights::vector(const std::vector<float>& values) const {
    if (values.empty()) return nullptr;
    return reinterpret_cast<const float*>(memory_.get() + offsets_.at(&values));
}

kernels::DeviceMatrix DeviceWeights::matrix(const model::Matrix& matrix) const {
    if (matrix.rows == 0) return {};
    return {matrix.dtype,         memory_.get() + offsets_.at(&matrix),
            matrix.rows,          matrix.cols,
            row_bytes_of(matrix), vector(matrix.row_scale),
            vector(matrix.bias)};
}

kernels::DeviceExperts DeviceWeights::experts(const model::MoeAdd& moe, model::Matrix model::Expert::*which) const {
    const model::Matrix& first = moe.experts.front().*which;
    return {{first.dtype, memory_.get() + offsets_.at(&first), first.rows, first.cols, row_bytes_of(first),
             vector(first.row_scale), nullptr},
            moe.experts.size(),
            device_aligned(first.rows * row_bytes_of(first))};
}

kernels::DeviceNorm DeviceWeights::norm(const model::Norm& norm) const {
    const auto kind =
        norm.kind == model::Norm::Kind::rms ? kernels::DeviceNorm::Kind::rms : kernels::DeviceNorm::Kind::layer;
    return {kind, vector(norm.weight.values), vector(norm.bias.values), norm.eps};
}

}  // namespace hetero::engine
