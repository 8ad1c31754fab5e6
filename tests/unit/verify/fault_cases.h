// Faults made from a real state, and what the diagnosis must say of each. The state is that of the model under test.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>

#include "kernels/api/ops.h"
#include "quant/rotation.h"
#include "support.h"
#include "verify/diagnose.h"

namespace hetero::test::faults {

inline constexpr std::size_t n_tokens = 96;

struct Subject {
    kv::State state, other_prompt;  // of n_tokens tokens
};
inline const Subject*& subject() {
    static const Subject* current = nullptr;
    return current;
}
inline const kv::State& real_state() { return subject()->state; }

inline verify::Diagnosis diagnosed(const kv::State& a, const kv::State& b, std::vector<verify::LayerRope> ropes = {}) {
    if (ropes.empty()) ropes = verify::ropes_of(a.header.identity);
    verify::Diagnoser diagnoser(a.header, b.header, std::move(ropes));
    const auto x = kv::memory_source(std::make_shared<const kv::State>(a), "a");
    const auto y = kv::memory_source(std::make_shared<const kv::State>(b), "b");
    must(kv::compare_states(*x, *y, false, [&](const kv::ComparedLayer& layer) { return diagnoser.look(layer); }));
    return diagnoser.diagnosis();
}

// Exactly this fault, and nothing else, in every part that is wrong.
inline void check_fault(const verify::Diagnosis& diagnosis, std::string_view name, std::string_view detail = "",
                        std::size_t parts = 0) {
    CAPTURE(name);
    std::string all;
    for (const verify::Fault& fault : diagnosis.faults) {
        all += fmt::format("{} ({}) x{} {} -> {}; ", fault.name, fault.detail, fault.places.size(),
                           fault.places[0].before, fault.places[0].after);
    }
    CAPTURE(all);
    CHECK(diagnosis.unexplained.empty());
    REQUIRE(diagnosis.faults.size() == 1);
    const verify::Fault& fault = diagnosis.faults.front();
    CHECK(fault.name == name);
    CHECK(fault.detail.find(detail) != std::string::npos);
    if (parts != 0) CHECK(fault.places.size() == parts);
    for (const verify::FaultPlace& place : fault.places) CHECK(place.after < place.before / 2);
}

// The state with the numbers of its K, its V or both changed, stored as `dtype`.
using Change = std::function<std::vector<float>(const std::vector<float>& values, std::uint32_t dim)>;
inline kv::State with_values(const kv::State& state, bool k, bool v, const Change& change, DType dtype = DType::f16) {
    kv::State out = state;
    out.header.k_schemes.assign(state.header.k_schemes.size(), engine::scheme_of(dtype, kv::PartId::k));
    out.header.v_schemes = out.header.k_schemes;
    for (std::size_t l = 0; l < out.layers[0].size(); ++l) {
        for (const kv::PartId id : {kv::PartId::k, kv::PartId::v}) {
            auto values = must(kv::decode_part(state.header, state.layers[0][l].part(id), n_tokens, id));
            if (id == kv::PartId::k ? k : v) values = change(values, state.header.identity.head_dim(id));
            out.layers[0][l].part(id) =
                must(kv::encode_part(out.header, out.header.scheme(l, id), n_tokens, id, values));
        }
    }
    return out;
}

// The state in these codecs, its stored arrays changed.
inline kv::State with_arrays(const std::string& k, const std::string& v,
                             const std::function<void(kv::Layer& layer)>& change) {
    kv::State out = encoded(real_state(), k, v);
    for (kv::Layer& layer : out.layers[0]) change(layer);
    return out;
}

inline std::size_t heads() { return real_state().header.identity.n_kv_heads; }

// Rotates by the angles of `position`, pairs (i, i + n) or (2i, 2i + 1).
inline void rotate(float* head, std::size_t dim, double position, double theta, bool interleaved) {
    const std::size_t n = dim / 2;
    for (std::size_t i = 0; i < n; ++i) {
        const double angle = position * std::pow(theta, -static_cast<double>(i) / static_cast<double>(n));
        const std::size_t first = interleaved ? 2 * i : i, second = interleaved ? 2 * i + 1 : i + n;
        const double x = head[first], y = head[second];
        head[first] = static_cast<float>(x * std::cos(angle) - y * std::sin(angle));
        head[second] = static_cast<float>(x * std::sin(angle) + y * std::cos(angle));
    }
}

// For every head: body(head's values, dim, position).
inline Change each_head(const std::function<void(float* head, std::size_t dim, double position)>& body) {
    return [body](const std::vector<float>& values, std::uint32_t dim) {
        std::vector<float> out = values;
        for (std::size_t row = 0; row < out.size() / dim; ++row) {
            body(out.data() + row * dim, dim, static_cast<double>(row / heads()));
        }
        return out;
    };
}

inline void interleave(float* head, std::size_t dim) {
    const std::vector<float> before(head, head + dim);
    for (std::size_t i = 0; i < dim / 2; ++i) {
        head[2 * i] = before[i];
        head[2 * i + 1] = before[i + dim / 2];
    }
}

inline double theta() { return real_state().header.identity.rope_theta; }

// [d0][d1][d2] of a tensor: along d0 by one, the first repeated.
inline void shift(kv::Tensor& tensor) {
    const std::size_t row = tensor.bytes.size() / tensor.shape[0];
    std::memmove(tensor.bytes.data() + row, tensor.bytes.data(), tensor.bytes.size() - row);
}

inline void fill_with_ones(kv::Tensor& tensor) {
    REQUIRE(tensor.dtype == DType::f16);
    for (std::size_t i = 0; i < tensor.elements(); ++i) {
        const std::uint16_t one = 0x3C00;
        std::memcpy(tensor.bytes.data() + 2 * i, &one, 2);
    }
}

// healthy states of low precision have no fault
inline void healthy_states() {
    for (const std::string codec : {"int8:token", "int8:channel:g32:asym", "had:int8:token", "int4:token",
                                    "int4:token:asym", "int4:channel:g32:asym", "had:int4:token:g16:asym", "int3:token",
                                    "int2:token:g16", "fp8_e4m3fn", "fp8_e5m2", "compat:lmdeploy4", "bf16", "f16"}) {
        CAPTURE(codec);
        const kv::State low = encoded(real_state(), codec, codec);
        const verify::Diagnosis diagnosis = diagnosed(real_state(), low);
        CHECK(diagnosis.faults.empty());
        CHECK(diagnosis.unexplained.empty());
        // The same numbers as f16, of which nobody knows where they come from.
        const kv::State back = with_values(low, false, false, {});
        const verify::Diagnosis unknown = diagnosed(real_state(), back);
        for (const verify::Fault& fault : unknown.faults) CHECK(fault.name == "");
    }
    CHECK(diagnosed(real_state(), real_state()).unexplained.empty());
    CHECK(diagnosed(real_state(), real_state()).faults.empty());
    // Another prompt is not a fault of the path.
    const verify::Diagnosis other = diagnosed(real_state(), subject()->other_prompt);
    for (const verify::Fault& fault : other.faults) CHECK(fault.name == "");
    CHECK(!other.unexplained.empty());
}

// scales ignored
inline void scales_ignored() {
    const std::size_t parts = 2 * real_state().layers[0].size();
    for (const std::string codec :
         {"int8:token", "int8:channel:g32:asym", "had:int8:token", "int4:token", "int8:head"}) {
        CAPTURE(codec);
        check_fault(diagnosed(real_state(), with_arrays(codec, codec,
                                                        [](kv::Layer& layer) {
                                                            fill_with_ones(layer.k.scale);
                                                            fill_with_ones(layer.v.scale);
                                                        })),
                    "scales ignored", "", codec == "int4:token" ? 0 : parts);  // 4-bit scales near 1 do little
    }
    // Codes that went on as values.
    kv::State codes = with_arrays("int8:token", "int8:token", [](kv::Layer& layer) {
        fill_with_ones(layer.k.scale);
        fill_with_ones(layer.v.scale);
    });
    check_fault(diagnosed(real_state(), with_values(codes, false, false, {})), "scales ignored", "codes", parts);
}

// scales shifted by one group
inline void scales_shifted() {
    for (const std::string codec : {"int8:token", "int8:channel:g16", "int4:channel:g16:asym"}) {
        CAPTURE(codec);
        check_fault(diagnosed(real_state(), with_arrays(codec, codec,
                                                        [](kv::Layer& layer) {
                                                            shift(layer.k.scale);
                                                            if (!layer.k.zero.empty()) shift(layer.k.zero);
                                                        })),
                    "scales shifted by one group");
    }
}

// scales of K and V swapped or merged
inline void scales_of_the_other_part() {
    const std::size_t layers = real_state().layers[0].size();
    for (const std::string codec : {"int8:token", "int8:channel:g32:asym", "int4:token:asym"}) {
        CAPTURE(codec);
        check_fault(diagnosed(real_state(), with_arrays(codec, codec,
                                                        [](kv::Layer& layer) {
                                                            std::swap(layer.k.scale, layer.v.scale);
                                                            std::swap(layer.k.zero, layer.v.zero);
                                                        })),
                    "K and V scales swapped", "", 2 * layers);
    }
    check_fault(diagnosed(real_state(), with_arrays("int8:token", "int8:token",
                                                    [](kv::Layer& layer) { layer.v.scale = layer.k.scale; })),
                "K and V scales merged", "", layers);
}

// wrong zero points
inline void zero_points() {
    const auto changed = [](const std::string& codec,
                            const std::function<void(kv::Tensor & zero, const kv::Tensor& scale)>& change) {
        return diagnosed(real_state(), with_arrays(codec, codec, [&](kv::Layer& layer) {
                             for (kv::Part* part : {&layer.k, &layer.v}) change(part->zero, part->scale);
                         }));
    };
    for (const std::string codec : {"int8:channel:g32:asym", "int4:token:asym", "had:int4:token:g16:asym"}) {
        CAPTURE(codec);
        check_fault(changed(codec,
                            [](kv::Tensor& zero, const kv::Tensor&) {
                                for (std::size_t i = 1; i < zero.bytes.size(); i += 2) zero.bytes[i] ^= std::byte{0x80};
                            }),
                    "zero point with the wrong sign");
        check_fault(
            changed(codec, [](kv::Tensor& zero,
                              const kv::Tensor&) { std::fill(zero.bytes.begin(), zero.bytes.end(), std::byte{}); }),
            "wrong zero point");
    }
    // Whole-number zero points -z / s in place of z.
    check_fault(changed("int8:channel:g32:asym:f32",
                        [](kv::Tensor& zero, const kv::Tensor& scale) {
                            for (std::size_t i = 0; i < zero.elements(); ++i) {
                                float z = 0, s = 0;
                                std::memcpy(&z, zero.bytes.data() + 4 * i, 4);
                                std::memcpy(&s, scale.bytes.data() + 4 * i, 4);
                                z = s == 0 ? 0 : -z / s;
                                std::memcpy(zero.bytes.data() + 4 * i, &z, 4);
                            }
                        }),
                "zero point taken for an integer code");
}

// codes read with the wrong sign, or with their nibbles swapped
inline void codes() {
    const auto changed = [](const std::string& codec, std::byte mask, bool swap) {
        return diagnosed(real_state(), with_arrays(codec, codec, [&](kv::Layer& layer) {
                             for (kv::Part* part : {&layer.k, &layer.v}) {
                                 for (std::byte& code : part->values.bytes) {
                                     code ^= mask;
                                     if (swap) code = code << 4 | code >> 4;
                                 }
                             }
                         }));
    };
    for (const std::string codec : {"int8:token", "int8:channel:g32:asym"}) {
        check_fault(changed(codec, std::byte{0x80}, false), "signed codes read as unsigned, or the reverse");
    }
    for (const std::string codec : {"int4:token", "int4:channel:g32:asym", "had:int4:token:asym"}) {
        CAPTURE(codec);
        check_fault(changed(codec, std::byte{}, true), "nibbles swapped");
    }
    check_fault(changed("int4:token:asym", std::byte{0x88}, false), "signed codes read as unsigned, or the reverse");
}

// 16-bit words taken for another type
inline void words() {
    const auto reread = [](auto narrow, auto widen) -> Change {
        return [=](const std::vector<float>& values, std::uint32_t) {
            std::vector<std::uint16_t> words(values.size());
            std::vector<float> out(values.size());
            narrow(values.data(), words.data(), words.size());
            widen(words.data(), out.data(), out.size());
            return out;
        };
    };
    const kernels::Ops& ops = kernels::ops();
    check_fault(diagnosed(real_state(),
                          with_values(real_state(), true, true, reread(ops.f32_to_f16, ops.bf16_to_f32), DType::f32)),
                "f16 read as bf16");
    check_fault(diagnosed(real_state(), with_values(real_state(), true, true, reread(ops.f32_to_bf16, ops.f16_to_f32))),
                "bf16 read as f16");
    kv::State swapped = encoded(real_state(), "bf16", "bf16");  // f16's would have infinities
    for (kv::Layer& layer : swapped.layers[0]) {
        for (std::size_t i = 0; i < layer.v.values.bytes.size(); i += 2)
            std::swap(layer.v.values.bytes[i], layer.v.values.bytes[i + 1]);
    }
    const auto diagnosis = diagnosed(real_state(), swapped);
    if (!diagnosis.faults.empty()) check_fault(diagnosis, "bytes of 16-bit words swapped");
}

// heads, tokens and parts at the wrong place
inline void places() {
    const Change swap_heads = [](const std::vector<float>& values, std::uint32_t dim) {
        std::vector<float> out = values;
        for (std::size_t row = 0; row < out.size(); row += heads() * dim) {
            std::swap_ranges(out.begin() + static_cast<std::ptrdiff_t>(row),
                             out.begin() + static_cast<std::ptrdiff_t>(row + dim),
                             out.begin() + static_cast<std::ptrdiff_t>(row + (heads() - 1) * dim));
        }
        return out;
    };
    const std::string pair = fmt::format("0 and {}", heads() - 1);
    check_fault(diagnosed(real_state(), with_values(real_state(), true, true, swap_heads)), "heads swapped", pair);
    check_fault(diagnosed(real_state(), encoded(with_values(real_state(), true, false, swap_heads), "int4", "int4")),
                "heads swapped", pair, real_state().layers[0].size());
    for (const bool later : {true, false}) {
        const Change move = [later](const std::vector<float>& values, std::uint32_t dim) {
            std::vector<float> out = values;
            const auto row = static_cast<std::ptrdiff_t>(heads() * dim);
            if (later) {
                std::copy(values.begin(), values.end() - row, out.begin() + row);
            } else {
                std::copy(values.begin() + row, values.end(), out.begin());
            }
            return out;
        };
        check_fault(diagnosed(real_state(), with_values(real_state(), true, true, move)), "tokens shifted",
                    later ? "the one before" : "the one after");
        check_fault(diagnosed(real_state(), encoded(with_values(real_state(), true, true, move), "int4", "int4")),
                    "tokens shifted");
    }
    kv::State swapped = real_state();
    for (kv::Layer& layer : swapped.layers[0]) std::swap(layer.k.values, layer.v.values);
    check_fault(diagnosed(real_state(), swapped), "K and V swapped");
}

// transposed layouts
inline void layouts() {
    const std::array<std::array<std::size_t, 3>, 3> orders{{{1, 0, 2}, {0, 2, 1}, {1, 2, 0}}};
    const char* names[] = {"[head][token][dim]", "[token][dim][head]", "[head][dim][token]"};
    for (std::size_t which = 0; which < orders.size(); ++which) {
        CAPTURE(which);
        const auto order = orders[which];
        const Change transpose = [order](const std::vector<float>& values, std::uint32_t dim) {
            const std::size_t size[3] = {n_tokens, heads(), dim};
            std::vector<float> out(values.size());
            std::size_t at[3];
            for (at[0] = 0; at[0] < size[0]; ++at[0])
                for (at[1] = 0; at[1] < size[1]; ++at[1])
                    for (at[2] = 0; at[2] < size[2]; ++at[2]) {
                        const std::size_t place =
                            (at[order[0]] * size[order[1]] + at[order[1]]) * size[order[2]] + at[order[2]];
                        out[place] = values[(at[0] * size[1] + at[1]) * size[2] + at[2]];
                    }
            return out;
        };
        check_fault(diagnosed(real_state(), with_values(real_state(), true, true, transpose)), "layout transposed",
                    std::string(names[which]) + " read as [token][head][dim]");
        check_fault(diagnosed(real_state(), encoded(with_values(real_state(), true, true, transpose), "int8", "int4")),
                    "layout transposed");
    }
    // Codes moved, scales not: heads of packed codes.
    check_fault(diagnosed(real_state(),
                          with_arrays("int4:token", "int8:token",
                                      [](kv::Layer& layer) {
                                          for (kv::Part* part : {&layer.k, &layer.v}) {
                                              const std::size_t row = part->values.bytes.size() / n_tokens / heads();
                                              const auto before = part->values.bytes;
                                              for (std::size_t t = 0; t < n_tokens; ++t)
                                                  for (std::size_t h = 0; h < heads(); ++h)
                                                      std::memcpy(part->values.bytes.data() + (h * n_tokens + t) * row,
                                                                  before.data() + (t * heads() + h) * row, row);
                                          }
                                      })),
                "layout transposed", "codes of");
}

// rotary embedding done otherwise
inline void rope() {
    const std::size_t layers = real_state().layers[0].size();
    struct RopeFault {
        const char* name;
        std::string detail;
        std::function<void(float*, std::size_t, double)> change;
    };
    const double base = theta();
    const std::vector<RopeFault> cases{
        {"RoPE not applied", "", [&](float* x, std::size_t dim, double p) { rotate(x, dim, -p, base, false); }},
        {"RoPE applied twice", "", [&](float* x, std::size_t dim, double p) { rotate(x, dim, p, base, false); }},
        {"RoPE applied backwards", "",
         [&](float* x, std::size_t dim, double p) { rotate(x, dim, -2 * p, base, false); }},
        {"RoPE positions shifted", "the one after",
         [&](float* x, std::size_t dim, double) { rotate(x, dim, 1, base, false); }},
        {"RoPE positions shifted", "the one before",
         [&](float* x, std::size_t dim, double) { rotate(x, dim, -1, base, false); }},
        {"RoPE with another base", "5e+05",
         [&](float* x, std::size_t dim, double p) {
             rotate(x, dim, -p, base, false);
             rotate(x, dim, p, 500000, false);
         }},
        {"RoPE with another base", "2e+03",
         [&](float* x, std::size_t dim, double p) {
             rotate(x, dim, -p, base, false);
             rotate(x, dim, p, 2000, false);
         }},
        {"wrong RoPE convention: interleaved pairs against half-split ones", "the other pairs",
         [&](float* x, std::size_t dim, double p) {
             rotate(x, dim, -p, base, false);
             rotate(x, dim, p, base, true);
         }},
        {"wrong RoPE convention: interleaved pairs against half-split ones", "rotated as half-split",
         [&](float* x, std::size_t dim, double p) {
             rotate(x, dim, -p, base, false);
             interleave(x, dim);
             rotate(x, dim, p, base, false);
         }},
        {"wrong RoPE convention: interleaved pairs against half-split ones", "in interleaved order",
         [&](float* x, std::size_t dim, double) { interleave(x, dim); }},
    };
    for (const RopeFault& one : cases) {
        CAPTURE(one.detail);
        const kv::State wrong = with_values(real_state(), true, false, each_head(one.change));
        check_fault(diagnosed(real_state(), wrong), one.name, one.detail, layers);
        check_fault(diagnosed(real_state(), encoded(wrong, "int8:channel:g32:asym", "int8")), one.name, "", layers);
    }
}

// a rotation that was not undone
inline void rotation() {
    const Change rotated = [](const std::vector<float>& values, std::uint32_t dim) {
        std::vector<float> out(values.size());
        quant::rotate(values, out, dim);
        return out;
    };
    check_fault(diagnosed(real_state(), with_values(real_state(), false, true, rotated)),
                "Hadamard rotation not undone", "", real_state().layers[0].size());
}

}  // namespace hetero::test::faults
