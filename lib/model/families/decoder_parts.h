// What build_decoder() is made of. Of decoder*.cpp only.
#pragma once
#include <string>
#include <string_view>

#include "model/families/shared.h"

namespace hetero::model {

// Takes the tensors of one layer, or of the whole model, by their names in the family.
class Taker {
public:
    Taker(const Config& config, WeightReader& weights, const Decoder& decoder)
        : config_(config), weights_(weights), names_(decoder.names), offset_(decoder.norm_offset) {}
    void enter(std::uint32_t layer) { prefix_ = fmt::format(fmt::runtime(names_.layer), layer); }

    [[nodiscard]] bool has(std::string_view name) const { return weights_.has(prefix_ + std::string(name)); }
    Result<Norm> norm(std::string_view name, std::uint32_t size) const {
        Norm norm;
        norm.eps = config_.norm_eps;
        HETERO_TRY(norm.weight, weights_.vector(prefix_ + std::string(name), size));
        if (offset_ != 0) {
            for (float& weight : norm.weight.values) weight += offset_;
        }
        return norm;
    }
    Result<std::optional<Norm>> norm_if(std::string_view name, std::uint32_t size) const {
        if (name.empty()) return std::nullopt;
        HETERO_TRY(Norm one, norm(name, size));
        return std::optional<Norm>(std::move(one));
    }
    Result<Matrix> matrix(std::string_view name, std::uint64_t rows, std::uint64_t cols,
                          std::string_view bias = {}) const {
        const std::string full = prefix_ + std::string(name);
        if (bias.empty()) return weights_.matrix(full, rows, cols);
        return weights_.matrix(full, prefix_ + std::string(bias), rows, cols);
    }

    Result<Matrix> stacked(std::string_view name, std::uint64_t count, std::uint64_t rows, std::uint64_t cols) const {
        return weights_.stacked(prefix_ + std::string(name), count, rows, cols);
    }
    Result<Vector> vector(std::string_view name, std::uint64_t size) const {
        return weights_.vector(prefix_ + std::string(name), size);
    }

private:
    const Config& config_;
    WeightReader& weights_;
    const DecoderNames& names_;
    float offset_;
    std::string prefix_;
};

// Registers of multi-head latent attention, shared by all layers.
struct LatentRegisters {
    Register q_compressed = 0, q = 0, kv = 0, absorbed = 0, latents = 0;
};
LatentRegisters add_latent_registers(const Config& config, Program& program);
// Appends the ops between the norm before attention, which writes `in`, and the projection that reads `attended`.
Status add_latent_attention(const Config& config, const LatentNames& names, const Taker& take,
                            const LatentRegisters& registers, std::uint32_t layer, Register in, Register attended,
                            Program& program);

// Appends the mixture of experts and, where there is one, the FFN of the shared experts: both read `in` and add to
// `out`.
Status add_experts(const Config& config, const ExpertNames& names, const Taker& take, Register in, Register out,
                   Program& program);

}  // namespace hetero::model
