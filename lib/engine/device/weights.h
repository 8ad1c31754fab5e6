// A model's weights in the memory of a device, in the types that their file has: matrices with their rows adjacent,
// each at a multiple of 16 bytes, and vectors. The matrices of a mixture's experts lie one after the other.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <unordered_map>
#include <vector>

#include "base/result.h"
#include "base/threads.h"
#include "engine/device/device.h"
#include "engine/device/handles.h"
#include "model/model.h"

namespace hetero::engine {

class DeviceWeights {
public:
    // Those of `model` that another session keeps on the device, or copied there now: `pool` reads them into
    // page-locked buffers, one of which is copied while the next is filled. `on_progress` may be empty. Errors:
    // resource.
    static Result<std::shared_ptr<const DeviceWeights>> of(const std::shared_ptr<const model::Model>& model,
                                                           const Device& device, ThreadPool& pool,
                                                           const WeightsProgressFn& on_progress = {});
    [[nodiscard]] static std::uint64_t bytes_needed(const model::Program& program);
    // Whether a session keeps them there, so that another one takes no memory for them.
    [[nodiscard]] static bool kept(const model::Model& model, const Device& device);

    [[nodiscard]] std::uint64_t bytes() const noexcept { return bytes_; }

    // Of the program that they were made of; a matrix without rows is an empty one.
    [[nodiscard]] kernels::DeviceMatrix matrix(const model::Matrix& matrix) const;
    // One matrix of each expert.
    [[nodiscard]] kernels::DeviceExperts experts(const model::MoeAdd& moe, model::Matrix model::Expert::*which) const;
    [[nodiscard]] kernels::DeviceNorm norm(const model::Norm& norm) const;
    [[nodiscard]] const float* vector(const std::vector<float>& values) const;  // null where it is empty

private:
    DeviceWeights() = default;
    Status upload(const model::Model& model, const Device& device, ThreadPool& pool,
                  const WeightsProgressFn& on_progress);

    std::shared_ptr<const model::Model> model_;  // what the addresses below belong to
    std::uint64_t bytes_ = 0;
    DeviceBytes memory_;
    std::unordered_map<const void*, std::size_t> offsets_;  // by matrix or vector
};

}  // namespace hetero::engine
