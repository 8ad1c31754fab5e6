#include "engine/linear.h"

#ifdef __linux__
#include <sys/mman.h>
#endif

#include <algorithm>
#include <cstring>
#include <map>
#include <mutex>
#include <new>

namespace hetero::engine {
namespace {

using kernels::DType;
using kernels::packed_rows;

constexpr std::size_t huge_page = std::size_t{2} << 20;

// Plain f32 matrices (routers, what a loader computed) are small, and not rounded.
bool is_packed(const model::Matrix& matrix) { return matrix.rows != 0 && matrix.dtype != DType::f32; }

template <class Visit>
void for_each_matrix(const model::Program& program, const Visit& visit) {
    const auto offer = [&visit](const model::Matrix& matrix) {
        if (is_packed(matrix)) visit(matrix);
    };
    for (const model::Op& any : program.ops) {
        if (const auto* qkv = std::get_if<model::Qkv>(&any)) {
            offer(qkv->q);
            offer(qkv->k);
            offer(qkv->v);
        } else if (const auto* project = std::get_if<model::Project>(&any)) {
            offer(project->weight);
        } else if (const auto* add = std::get_if<model::ProjectAdd>(&any)) {
            offer(add->weight);
        } else if (const auto* ffn = std::get_if<model::FfnAdd>(&any)) {
            offer(ffn->gate);
            offer(ffn->up);
            offer(ffn->down);
        } else if (const auto* moe = std::get_if<model::MoeAdd>(&any)) {
            for (const model::Expert& expert : moe->experts) {
                offer(expert.gate);
                offer(expert.up);
                offer(expert.down);
            }
        } else if (const auto* head = std::get_if<model::Head>(&any)) {
            offer(head->weight);
        }
    }
}

std::size_t bytes_of(const model::Matrix& matrix) {
    const std::size_t bytes = kernels::packed_bytes(kernels::packing_of(matrix.dtype), matrix.rows, matrix.cols);
    return (bytes + 63) / 64 * 64;
}

const std::byte* row_of(const model::Matrix& matrix, std::size_t row) {
    if (matrix.group_rows == 0) return matrix.data + row * matrix.row_bytes;
    return matrix.data + row / matrix.group_rows * matrix.group_bytes + row % matrix.group_rows * matrix.row_bytes;
}

void pack_group(const model::Matrix& matrix, std::size_t group, std::byte* packed) {
    if (matrix.group_rows == 0) {
        kernels::pack(matrix.dtype, matrix.data, matrix.row_bytes, matrix.rows, matrix.cols, group, group + 1, packed);
        return;
    }
    const std::size_t first = group * packed_rows, rows = std::min<std::size_t>(packed_rows, matrix.rows - first);
    const std::size_t row_bytes = kernels::dtype_bytes(matrix.dtype, matrix.cols);
    std::vector<std::byte> together(rows * row_bytes);
    for (std::size_t r = 0; r < rows; ++r) {
        std::memcpy(together.data() + r * row_bytes, row_of(matrix, first + r), row_bytes);
    }
    const std::size_t group_bytes = kernels::packed_bytes(kernels::packing_of(matrix.dtype), packed_rows, matrix.cols);
    kernels::pack(matrix.dtype, together.data(), row_bytes, rows, matrix.cols, 0, 1, packed + group * group_bytes);
}

}  // namespace

std::uint64_t PackedWeights::bytes_needed(const model::Program& program) {
    std::uint64_t bytes = 0;
    for_each_matrix(program, [&](const model::Matrix& matrix) { bytes += bytes_of(matrix); });
    return bytes;
}

PackedWeights::PackedWeights(const model::Program& program, ThreadPool& pool) {
    const std::size_t bytes = (bytes_needed(program) / huge_page + 1) * huge_page;
    memory_.reset(static_cast<std::byte*>(std::aligned_alloc(huge_page, bytes)));
    if (memory_ == nullptr) throw std::bad_alloc();
#ifdef __linux__
    (void)madvise(memory_.get(), bytes, MADV_HUGEPAGE);  // a hint: fewer page walks while weights stream by
#endif
    struct Task {
        const model::Matrix* matrix;
        std::size_t first_group;
        std::byte* packed;
    };
    constexpr std::size_t groups_per_task = 32;
    std::vector<Task> tasks;
    std::byte* at = memory_.get();
    for_each_matrix(program, [&](const model::Matrix& matrix) {
        matrices_[&matrix] = {kernels::packing_of(matrix.dtype), at};
        const std::size_t groups = (matrix.rows + packed_rows - 1) / packed_rows;
        for (std::size_t group = 0; group < groups; group += groups_per_task) tasks.push_back({&matrix, group, at});
        at += bytes_of(matrix);
    });
    pool.parallel_for(tasks.size(), [&](std::size_t index, int) {
        const Task& task = tasks[index];
        const std::size_t groups = (task.matrix->rows + packed_rows - 1) / packed_rows;
        const std::size_t end = std::min(task.first_group + groups_per_task, groups);
        for (std::size_t group = task.first_group; group < end; ++group) pack_group(*task.matrix, group, task.packed);
    });
}

std::shared_ptr<const PackedWeights> PackedWeights::of(const std::shared_ptr<const model::Model>& model,
                                                       ThreadPool& pool) {
    static std::mutex mutex;
    static std::map<const model::Model*, std::weak_ptr<const PackedWeights>> kept;
    const std::lock_guard lock(mutex);
    std::erase_if(kept, [](const auto& entry) { return entry.second.expired(); });
    if (const auto found = kept.find(model.get()); found != kept.end()) {
        if (auto weights = found->second.lock()) return weights;
    }
    struct Both {  // the weights' keys are the model's matrices
        std::shared_ptr<const model::Model> model;
        PackedWeights weights;
    };
    const std::shared_ptr<const Both> both(new Both{model, PackedWeights(model->program, pool)});
    std::shared_ptr<const PackedWeights> weights(both, &both->weights);
    kept[model.get()] = weights;
    return weights;
}

const PackedMatrix* PackedWeights::find(const model::Matrix& matrix) const noexcept {
    const auto found = matrices_.find(&matrix);
    return found == matrices_.end() ? nullptr : &found->second;
}

}  // namespace hetero::engine
