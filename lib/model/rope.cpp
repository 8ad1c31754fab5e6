#include "model/rope.h"

#include <algorithm>
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

// The pair, not whole, that rotates `rotations` times within the original context.
double yarn_pair(const RopeConfig& rope, double rotations) {
    return rope.rotary_dim * std::log(rope.original_context / (rotations * 2 * std::numbers::pi)) /
           (2 * std::log(rope.theta));
}

double yarn_frequency(const RopeConfig& rope, double frequency, std::size_t pair) {
    double low = yarn_pair(rope, rope.beta_fast), high = yarn_pair(rope, rope.beta_slow);
    if (rope.whole_dims) {
        low = std::floor(low);
        high = std::ceil(high);
    }
    low = std::max(low, 0.0);
    high = std::min(high, rope.rotary_dim - 1.0);
    if (low == high) high += 0.001;
    const double stretched = std::clamp((static_cast<double>(pair) - low) / (high - low), 0.0, 1.0);
    return frequency / rope.factor * stretched + frequency * (1 - stretched);
}

}  // namespace

double yarn_growth(double factor, double scale) { return factor <= 1 ? 1 : 0.1 * scale * std::log(factor) + 1; }

std::vector<double> inverse_frequencies(const RopeConfig& rope) {
    std::vector<double> frequencies(rope.rotary_dim / 2);
    for (std::size_t i = 0; i < frequencies.size(); ++i) {
        double frequency = std::pow(rope.theta, -2.0 * static_cast<double>(i) / rope.rotary_dim);
        if (rope.scaling == RopeScalingKind::linear) frequency /= rope.factor;
        if (rope.scaling == RopeScalingKind::llama3) frequency = llama3_frequency(rope, frequency);
        if (rope.scaling == RopeScalingKind::yarn) frequency = yarn_frequency(rope, frequency, i);
        if (!rope.frequency_divisors.empty()) frequency /= static_cast<double>(rope.frequency_divisors[i]);
        frequencies[i] = frequency;
    }
    return frequencies;
}

std::vector<float> llama3_divisors(const RopeConfig& rope) {
    RopeConfig plain = rope;
    plain.scaling = RopeScalingKind::none;
    const std::vector<double> from = inverse_frequencies(plain), to = inverse_frequencies(rope);
    std::vector<float> divisors(from.size());
    for (std::size_t i = 0; i < divisors.size(); ++i) divisors[i] = static_cast<float>(from[i] / to[i]);
    return divisors;
}

void recognise_llama3(RopeConfig& rope) {
    constexpr double tolerance = 1e-5;  // other converters compute in f32
    if (rope.scaling != RopeScalingKind::none || rope.frequency_divisors.empty()) return;
    RopeConfig candidate = rope;
    candidate.frequency_divisors.clear();
    candidate.scaling = RopeScalingKind::llama3;
    candidate.factor = rope.frequency_divisors.back();
    candidate.low_freq_factor = 1;
    candidate.high_freq_factor = 4;
    if (candidate.original_context == 0) candidate.original_context = 8192;
    const std::vector<float> divisors = llama3_divisors(candidate);
    for (std::size_t i = 0; i < divisors.size(); ++i) {
        if (!(std::fabs(rope.frequency_divisors[i] / divisors[i] - 1) <= tolerance)) return;
    }
    rope = candidate;
}

}  // namespace hetero::model
