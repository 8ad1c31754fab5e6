// The weights of a model in the form that its products run on, and how exact these products are.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>

#include "base/threads.h"
#include "engine/aligned.h"
#include "engine/share.h"
#include "io/kept_bytes.h"
#include "kernels/api/packed.h"
#include "model/model.h"

namespace hetero::engine {

enum class Precision : std::uint8_t {
    precise,  // weights and activations as they are, products in f32
    fast,     // weights packed (kernels/api/packed.h), activations rounded to 8 bits; f32 weights as in `precise`
};

// Whether Precision::fast packs it: plain f32 matrices (routers, what a loader computed) are small, and not rounded.
[[nodiscard]] inline bool is_packed(const model::Matrix& matrix) {
    return matrix.rows != 0 && matrix.dtype != kernels::DType::f32;
}

struct PackedMatrix {
    kernels::Packing packing = kernels::Packing::u8;
    const std::byte* data = nullptr;  // as kernels::pack() makes it, of rows from first_row on
    std::size_t first_row = 0;        // a multiple of kernels::packed_rows
};

// A folder that keeps packed weights from one run to the next, in files bound to weights_digest, packing and rows.
struct WarmFolder {
    std::string path;   // empty: none
    bool make = false;  // packed weights that it lacks are written to it; else it is only read
};

// Packed copies of the matrices that a program multiplies by, of the rows that one rank computes. Immutable, so
// sessions of one model share them.
class PackedWeights {
public:
    // The weights of `model`: those that another session keeps, or a file of `warm`, or packed now by the threads of
    // `pool`; the pages of the model's own files are given back meanwhile. What cannot be read from or written to
    // `warm` is said in the log alone. Throws std::bad_alloc.
    static std::shared_ptr<const PackedWeights> of(const std::shared_ptr<const model::Model>& model, ThreadPool& pool,
                                                   const Share& share = Share(0, 1), const WarmFolder& warm = {});
    [[nodiscard]] static std::uint64_t bytes_needed(const model::Program& program, const Share& share = Share(0, 1));

    // Whether a session keeps them, so that another one takes no memory for them.
    [[nodiscard]] static bool kept(const model::Model& model, const Share& share);

    // Whether a file has them: they were read from it, or written to it.
    [[nodiscard]] bool warm() const noexcept { return warm_; }
    [[nodiscard]] std::size_t bytes() const noexcept { return bytes_; }

    // The pages of the model's file that hold the rows [begin, end) are given back; they are read again when needed.
    void forget(const model::Matrix& matrix, std::size_t begin, std::size_t end) const;

    // Null for a matrix that is not packed.
    [[nodiscard]] const PackedMatrix* find(const model::Matrix& matrix) const noexcept;

private:
    PackedWeights(const model::Model& model, ThreadPool& pool, const Share& share, const WarmFolder& warm);
    void pack(const model::Model& model, ThreadPool& pool, const Share& share);
    void touch_first(const model::Program& program, ThreadPool& pool, const Share& share);

    std::shared_ptr<const io::TensorSource> source_;
    Bytes memory_;  // null: they lie in file_
    std::optional<io::KeptBytes> file_;
    std::size_t bytes_ = 0;
    bool warm_ = false;
    std::unordered_map<const model::Matrix*, PackedMatrix> matrices_;
};

}  // namespace hetero::engine
