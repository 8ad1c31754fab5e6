#include "model/rope.h"

#include <cmath>
#include <numbers>

namespace hetero::model {
namespace {

double llama3_frequency(const RopeConfig& rope, double frequency) {
    const double wavelength = 2 * std::numbers::pi / frequency;
    const double context = rope.original_context;
    if (wavelength < context / rope.high_freq_factor) return frequency;
    if (wavelength > context / rope.low_freq_factor) return frequency / rope.factor;
    const double blend = (context / wavelength - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor);
    return (1 - blend) * frequency / rope.factor + blend * frequency;
}

}  // namespace

std::vector<double> inverse_frequencies(const RopeConfig& rope) {
    std::vector<double> frequencies(rope.rotary_dim / 2);
    for (std::size_t i = 0; i < frequencies.size(); ++i) {
        double frequency = std::pow(rope.theta, -2.0 * static_cast<double>(i) / rope.rotary_dim);
        if (rope.scaling == RopeScalingKind::linear) frequency /= rope.factor;
        if (rope.scaling == RopeScalingKind::llama3) frequency = llama3_frequency(rope, frequency);
        if (!rope.frequency_divisors.empty()) frequency /= static_cast<double>(rope.frequency_divisors[i]);
        frequencies[i] = frequency;
    }
    return frequencies;
}

}  // namespace hetero::model
