#include "engine/linear.h"

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <initializer_list>
#include <iterator>
#include <map>
#include <mutex>
#include <new>
#include <span>
#include <tuple>
#include <vector>

#include "base/hash.h"
#include "base/log.h"

namespace hetero::engine {
namespace {

using kernels::packed_rows;

struct PackedRows {
    const model::Matrix* matrix;
    Range rows;  // that this rank multiplies by
};

// The matrices that are packed, those that one loop multiplies by together.
template <class Visit>
void for_each_group(const model::Program& program, const Share& share, const Visit& visit) {
    const auto offer = [&visit](std::initializer_list<PackedRows> matrices) {
        std::vector<PackedRows> packed;
        std::copy_if(matrices.begin(), matrices.end(), std::back_inserter(packed),
                     [](const PackedRows& one) { return is_packed(*one.matrix); });
        if (!packed.empty()) visit(std::span<const PackedRows>(packed));
    };
    const auto offer_rows = [&](const model::Matrix& matrix) { offer({{&matrix, share.rows(matrix.rows)}}); };
    for (const model::Op& any : program.ops) {
        if (const auto* qkv = std::get_if<model::Qkv>(&any)) {
            const model::KvLayout& layout = program.kv[qkv->layer];
            const Range kv_heads = share.kv_heads(qkv->n_heads, layout.n_kv_heads);
            offer({{&qkv->q, share.heads(qkv->n_heads).times(layout.head_dim_k)},
                   {&qkv->k, kv_heads.times(layout.head_dim_k)},
                   {&qkv->v, kv_heads.times(layout.head_dim_v)}});
        } else if (const auto* project = std::get_if<model::Project>(&any)) {
            const std::size_t rows = project->weight.rows, heads = project->n_heads;
            offer({{&project->weight, heads == 0 ? share.rows(rows) : share.heads(heads).times(rows / heads)}});
        } else if (const auto* add = std::get_if<model::ProjectAdd>(&any)) {
            offer_rows(add->weight);
        } else if (const auto* ffn = std::get_if<model::FfnAdd>(&any)) {
            offer_rows(ffn->gate);
            offer_rows(ffn->up);
            offer_rows(ffn->down);
        } else if (const auto* moe = std::get_if<model::MoeAdd>(&any)) {
            for (const model::Expert& expert : moe->experts) {
                offer_rows(expert.gate);
                offer_rows(expert.up);
                offer_rows(expert.down);
            }
        } else if (const auto* head = std::get_if<model::Head>(&any)) {
            offer_rows(head->weight);
        }
    }
}

template <class Visit>
void for_each_matrix(const model::Program& program, const Share& share, const Visit& visit) {
    for_each_group(program, share, [&visit](std::span<const PackedRows> group) {
        for (const auto& [matrix, rows] : group) visit(*matrix, rows);
    });
}

// In groups of packed_rows, which a rank packs whole.
Range groups_of(Range rows) { return {rows.begin / packed_rows, (rows.end + packed_rows - 1) / packed_rows}; }

std::size_t group_bytes_of(const model::Matrix& matrix) {
    return kernels::packed_bytes(kernels::packing_of(matrix.dtype), packed_rows, matrix.cols);
}

std::size_t bytes_of(const model::Matrix& matrix, Range rows) {
    return (groups_of(rows).size() * group_bytes_of(matrix) + 63) / 64 * 64;
}

const std::byte* row_of(const model::Matrix& matrix, std::size_t row) {
    if (matrix.group_rows == 0) return matrix.data + row * matrix.row_bytes;
    return matrix.data + row / matrix.group_rows * matrix.group_bytes + row % matrix.group_rows * matrix.row_bytes;
}

// One group of rows to `packed`.
void pack_group(const model::Matrix& matrix, std::size_t group, std::byte* packed) {
    const std::size_t first = group * packed_rows, rows = std::min<std::size_t>(packed_rows, matrix.rows - first);
    const std::byte* source = row_of(matrix, first);
    std::vector<std::byte> together;
    if (matrix.group_rows != 0) {
        const std::size_t row_bytes = kernels::dtype_bytes(matrix.dtype, matrix.cols);
        together.resize(rows * row_bytes);
        for (std::size_t r = 0; r < rows; ++r) {
            std::memcpy(together.data() + r * row_bytes, row_of(matrix, first + r), row_bytes);
        }
        source = together.data();
    }
    const std::size_t row_bytes = together.empty() ? matrix.row_bytes : together.size() / rows;
    kernels::pack(matrix.dtype, source, row_bytes, rows, matrix.cols, 0, 1, packed);
}

}  // namespace

std::uint64_t PackedWeights::bytes_needed(const model::Program& program, const Share& share) {
    std::uint64_t bytes = 0;
    for_each_matrix(program, share, [&](const model::Matrix& matrix, Range rows) { bytes += bytes_of(matrix, rows); });
    return bytes;
}

namespace {

// Which files these are: the digest of weights samples them, so that two may share it.
std::string files_of(const std::string& path) {
    namespace fs = std::filesystem;
    std::error_code error;
    std::vector<fs::path> files = {path};
    if (fs::is_directory(path, error)) {
        files.clear();
        for (fs::directory_iterator at(path, error), end; !error && at != end; at.increment(error))
            if (at->path().extension() == ".safetensors") files.push_back(at->path());
        std::sort(files.begin(), files.end());
    }
    std::string text;
    for (const fs::path& file : files) {
        const auto size = fs::file_size(file, error);
        const auto written = fs::last_write_time(file, error).time_since_epoch().count();
        text += fmt::format("{} {} {}\n", files.size() > 1 ? file.filename().string() : "", size, written);
    }
    return text;
}

// What a file of packed weights is bound to: these weights, packed so.
std::string key_of(const model::Model& model, const Share& share) {
    std::string key = fmt::format("hetero-packed 1\nweights {}\n{}rank {} of {}\n", to_hex(model.weights_digest),
                                  files_of(model.path), share.rank(), share.size());
    for_each_matrix(model.program, share, [&](const model::Matrix& matrix, Range rows) {
        key += fmt::format("{} {} {}x{} {}+{}\n", matrix.name,
                           kernels::packing_info(kernels::packing_of(matrix.dtype)).name, matrix.rows, matrix.cols,
                           groups_of(rows).begin, bytes_of(matrix, rows));
    });
    return key;
}

}  // namespace

PackedWeights::PackedWeights(const model::Model& model, ThreadPool& pool, const Share& share, const WarmFolder& warm)
    : source_(model.weights), bytes_(bytes_needed(model.program, share)) {
    std::string key, path;
    if (!warm.path.empty() && bytes_ != 0) {
        key = key_of(model, share);
        path = fmt::format("{}/{}.packed", warm.path, to_hex(sha256(key)).substr(0, 32));
        if (std::error_code error; std::filesystem::exists(path, error)) {
            auto kept = io::KeptBytes::open(path, key, bytes_, pool);
            if (kept) {
                file_.emplace(std::move(*kept));
            } else {
                log::warn("packed weights are not used: {}", kept.error().message);
            }
        }
    }
    if (!file_) pack(model, pool, share);
    const std::byte* at = file_ ? file_->bytes().data() : memory_.get();
    if (!file_ && warm.make && !path.empty()) {
        const Status written = io::KeptBytes::write(path, key, {at, bytes_}, pool);
        if (!written) log::warn("packed weights are not kept: {}", written.error().message);
        warm_ = written.has_value();
    }
    warm_ = warm_ || file_;
    for_each_matrix(model.program, share, [&](const model::Matrix& matrix, Range rows) {
        matrices_[&matrix] = {kernels::packing_of(matrix.dtype), at, groups_of(rows).begin * packed_rows};
        at += bytes_of(matrix, rows);
    });
}

// A page of memory lies on the NUMA node of the thread that writes it first: here of one that will multiply by it,
// since a loop over these rows is divided among the nodes as this one is.
void PackedWeights::touch_first(const model::Program& program, ThreadPool& pool, const Share& share) {
    constexpr std::size_t page = 4096;
    std::byte* at = memory_.get();
    for_each_group(program, share, [&](std::span<const PackedRows> group) {
        std::size_t bytes = 0;
        for (const auto& [matrix, rows] : group) bytes += bytes_of(*matrix, rows);
        pool.parallel_for((bytes + page - 1) / page, [&](std::size_t task, int) { at[task * page] = std::byte{0}; });
        at += bytes;
    });
}

void PackedWeights::pack(const model::Model& model, ThreadPool& pool, const Share& share) {
    memory_ = take_bytes(bytes_);
    if (memory_ == nullptr) throw std::bad_alloc();
    if (pool.nodes() > 1) touch_first(model.program, pool, share);
    struct Task {
        const model::Matrix* matrix;
        Range groups;
        std::byte* packed;
    };
    constexpr std::size_t groups_per_task = 32;
    std::vector<Task> tasks;
    std::byte* at = memory_.get();
    for_each_matrix(model.program, share, [&](const model::Matrix& matrix, Range rows) {
        const Range groups = groups_of(rows);
        for (std::size_t group = groups.begin; group < groups.end; group += groups_per_task) {
            tasks.push_back({&matrix,
                             {group, std::min(group + groups_per_task, groups.end)},
                             at + (group - groups.begin) * group_bytes_of(matrix)});
        }
        at += bytes_of(matrix, rows);
    });
    const auto forget_groups = [&](const model::Matrix& matrix, Range groups) {
        if (groups.size() != 0) forget(matrix, groups.begin * packed_rows, groups.end * packed_rows);
    };
    pool.parallel_for(tasks.size(), [&](std::size_t index, int) {
        const auto& [matrix, groups, packed] = tasks[index];
        for (std::size_t group = groups.begin; group < groups.end; ++group) {
            pack_group(*matrix, group, packed + (group - groups.begin) * group_bytes_of(*matrix));
        }
        forget_groups(*matrix, groups);
    });
    for_each_matrix(model.program, share, [&](const model::Matrix& matrix, Range rows) {
        forget_groups(matrix, groups_of(rows));  // pages between tasks
    });
}

namespace {

using Key = std::tuple<const model::Model*, std::size_t, std::size_t>;  // model, rank, ranks

struct Kept {
    std::mutex mutex;
    std::map<Key, std::weak_ptr<const PackedWeights>> weights;
};

Kept& all_kept() {
    static Kept kept;
    return kept;
}

Key place_of(const model::Model& model, const Share& share) { return {&model, share.rank(), share.size()}; }

}  // namespace

bool PackedWeights::kept(const model::Model& model, const Share& share) {
    Kept& all = all_kept();
    const std::lock_guard lock(all.mutex);
    const auto found = all.weights.find(place_of(model, share));
    return found != all.weights.end() && !found->second.expired();
}

std::shared_ptr<const PackedWeights> PackedWeights::of(const std::shared_ptr<const model::Model>& model,
                                                       ThreadPool& pool, const Share& share, const WarmFolder& warm) {
    Kept& all = all_kept();
    const Key key = place_of(*model, share);
    const std::lock_guard lock(all.mutex);
    std::erase_if(all.weights, [](const auto& entry) { return entry.second.expired(); });
    if (const auto found = all.weights.find(key); found != all.weights.end()) {
        if (auto weights = found->second.lock()) return weights;
    }
    struct Both {  // the weights' keys are the model's matrices
        std::shared_ptr<const model::Model> model;
        PackedWeights weights;
    };
    const std::shared_ptr<const Both> both(new Both{model, PackedWeights(*model, pool, share, warm)});
    std::shared_ptr<const PackedWeights> weights(both, &both->weights);
    all.weights[key] = weights;
    return weights;
}

void PackedWeights::forget(const model::Matrix& matrix, std::size_t begin, std::size_t end) const {
    const std::byte* first = row_of(matrix, begin);
    const std::byte* last = row_of(matrix, std::min<std::size_t>(end, matrix.rows) - 1);
    io::TensorView rows;
    rows.bytes = {first, static_cast<std::size_t>(last - first) + matrix.row_bytes};
    source_->forget(rows);
}

const PackedMatrix* PackedWeights::find(const model::Matrix& matrix) const noexcept {
    const auto found = matrices_.find(&matrix);
    return found == matrices_.end() ? nullptr : &found->second;
}

}  // namespace hetero::engine
