// Makes KV states with chosen values, changes single values, and prints what is stored. All through the library, so
// that checksums are right: what the tests then see is how the tools treat the values, not damage. usage: kv_lab make
// halves|overflow|groups|zeros|ordinary|windows|latent OUT
//        kv_lab set IN OUT LAYER k|v TOKEN HEAD DIM HEX16
//        kv_lab split IN SIZE OUT    (shards of OUT, one file per rank)
//        kv_lab window IN OUT N    (all layers keep the last N tokens only; unquantized states)
//        kv_lab print IN LAYER k|v values|scale
//        kv_lab fault ones|nan|heads|tokens|rope IN OUT    (scales of 1; the first scale of the last layer's V is no
//                                                           number; heads 0 and 1 swapped; each token holds the one
//                                                           before; K without its rotation)
#include <cmath>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "kv/convert.h"
#include "kv/shard_files.h"
#include "kv/shards.h"
#include "kv/stream.h"

using namespace hetero;

namespace {

struct Shape {
    std::uint32_t layers, heads, dim;
    std::uint64_t tokens;
    std::vector<kv::LayerShape> kinds;
};

using ValueAt = float (*)(std::uint32_t layer, bool is_v, std::uint64_t token, std::uint32_t head, std::uint32_t dim);

kv::State make_state(const Shape& shape, ValueAt value_at) {
    kv::State state;
    kv::Identity& identity = state.header.identity;
    identity.model_id = "synthetic";
    identity.arch = "llama";
    identity.n_layers = shape.layers;
    identity.n_heads = identity.n_kv_heads = shape.heads;
    identity.head_dim_k = identity.head_dim_v = shape.dim;
    identity.vocab_size = 512;
    identity.context_length = 4096;
    identity.rope_theta = 10000;
    kv::Scheme scheme;
    scheme.codec = "f32";
    scheme.source_dtype = kernels::DType::f32;
    state.header.k_schemes.assign(shape.layers, scheme);
    state.header.v_schemes = state.header.k_schemes;
    kv::Sequence sequence;
    for (std::uint64_t i = 0; i < shape.tokens; ++i) sequence.tokens.push_back(static_cast<std::int32_t>(i % 512));
    state.header.sequences.push_back(sequence);
    state.header.layer_shapes = shape.kinds;
    auto& layers = state.layers.emplace_back(shape.layers);
    for (std::uint32_t layer = 0; layer < shape.layers; ++layer) {
        for (const kv::PartId id : {kv::PartId::k, kv::PartId::v}) {
            std::vector<float> values;
            for (std::uint64_t token = state.header.first_token(0, layer); token < shape.tokens; ++token) {
                for (std::uint32_t head = 0; head < shape.heads; ++head) {
                    for (std::uint32_t dim = 0; dim < shape.dim; ++dim) {
                        values.push_back(value_at(layer, id == kv::PartId::v, token, head, dim));
                    }
                }
            }
            kv::Part& part = layers[layer].part(id);
            part.scheme = scheme;
            part.values.dtype = kernels::DType::f32;
            part.values.shape = {state.header.stored_tokens(0, layer), shape.heads, shape.dim};
            const auto bytes = std::as_bytes(std::span(values));
            part.values.bytes.assign(bytes.begin(), bytes.end());
        }
    }
    return state;
}

// 5 * i / 100000 for i = 0..100000, then the edges of the format, then zeros.
float half_values(std::uint32_t, bool, std::uint64_t token, std::uint32_t, std::uint32_t dim) {
    const std::uint64_t i = token * 64 + dim;
    static const float edges[] = {65519.0F, 5.9604645e-8F, 2.98e-8F, -0.0F};
    if (i <= 100000) return static_cast<float>(5.0 * static_cast<double>(i) / 100000.0);
    return i - 100001 < 4 ? edges[i - 100001] : 0.0F;
}

float overflow(std::uint32_t, bool is_v, std::uint64_t token, std::uint32_t, std::uint32_t dim) {
    return is_v && token == 1 && dim == 7 ? 65520.0F : 1.0F;
}

float two_heads(std::uint32_t, bool, std::uint64_t, std::uint32_t head, std::uint32_t) {
    return head == 0 ? 1.0F : 1000.0F;
}

float ordinary(std::uint32_t layer, bool is_v, std::uint64_t token, std::uint32_t head, std::uint32_t dim) {
    const double x =
        1.0 + layer * 7.0 + (is_v ? 3.0 : 0.0) + static_cast<double>(token) * 1.7 + head * 0.3 + dim * 0.11;
    return static_cast<float>(3.0 * std::sin(x));
}

// As `ordinary`, but head 1 of layer 0 is all +0, and token 3 all -0.
float zeros(std::uint32_t layer, bool is_v, std::uint64_t token, std::uint32_t head, std::uint32_t dim) {
    if (token == 3) return -0.0F;
    if (layer == 0 && head == 1) return 0.0F;
    return ordinary(layer, is_v, token, head, dim);
}

int report(const Status& status) {
    if (status) return 0;
    std::fprintf(stderr, "kv_lab: %s\n", status.error().message.c_str());
    return 1;
}

Status write(const kv::State& state, const std::string& path) {
    HETERO_TRY(auto sink, kv::create_file(path, io::Overwrite::replace));
    return kv::write_all(state, *sink);
}

Result<kv::State> read(const std::string& path) {
    HETERO_TRY(auto source, kv::open_file(path));
    return kv::read_all(*source);
}

Status make(const std::string& kind, const std::string& out) {
    const kv::LayerShape window{kv::LayerKind::swa, 4}, latent{kv::LayerKind::mla, 0};
    if (kind == "windows") return write(make_state({3, 2, 64, 9, {window, window, {}}}, ordinary), out);
    if (kind == "latent") return write(make_state({2, 1, 64, 9, {latent, latent}}, ordinary), out);
    if (kind == "halves") return write(make_state({1, 1, 64, 1563, {}}, half_values), out);
    if (kind == "overflow") return write(make_state({1, 1, 64, 2, {}}, overflow), out);
    if (kind == "groups") return write(make_state({1, 2, 80, 3, {}}, two_heads), out);
    if (kind == "zeros") return write(make_state({2, 2, 64, 5, {}}, zeros), out);
    if (kind == "ordinary") return write(make_state({2, 2, 64, 5, {}}, ordinary), out);
    return fail(Errc::usage, "unknown kind {}", kind);
}

Status split(const std::string& in, std::uint32_t size, const std::string& out) {
    HETERO_TRY(auto state, read(in));
    const auto whole = std::make_shared<const kv::State>(std::move(state));
    const std::uint32_t heads = whole->header.identity.n_kv_heads;
    for (std::uint32_t rank = 0; rank < size; ++rank) {
        const std::uint32_t first = rank * heads / size, end = ((rank + 1) * heads + size - 1) / size;
        HETERO_TRY(const auto slice, kv::slice_heads(kv::memory_source(whole, in), {size, rank, first, end - first}));
        HETERO_TRY(const auto shard, kv::read_all(*slice));
        HETERO_CHECK(write(shard, kv::shard_path(out, rank, size)));
    }
    return {};
}

Status window(const std::string& in, const std::string& out, std::uint32_t n) {
    HETERO_TRY(auto state, read(in));
    state.header.layer_shapes.assign(state.header.identity.n_layers, {kv::LayerKind::swa, n});
    for (std::size_t s = 0; s < state.layers.size(); ++s) {
        for (std::size_t l = 0; l < state.layers[s].size(); ++l) {
            for (const kv::PartId id : {kv::PartId::k, kv::PartId::v}) {
                kv::Tensor& values = state.layers[s][l].part(id).values;
                const std::size_t row = values.bytes.size() / values.shape[0];
                values.shape[0] = state.header.stored_tokens(s, l);
                values.bytes.erase(values.bytes.begin(),
                                   values.bytes.end() - static_cast<std::ptrdiff_t>(values.shape[0] * row));
            }
        }
    }
    return write(state, out);
}

Status set(char** argv) {
    HETERO_TRY(auto state, read(argv[0]));
    const auto number = [&](int i) { return std::stoul(argv[i]); };
    kv::Tensor& values = state.layers[0].at(number(2)).part(*argv[3] == 'k' ? kv::PartId::k : kv::PartId::v).values;
    const std::size_t at = (number(4) * values.shape.at(1) + number(5)) * values.shape.at(2) + number(6);
    const auto word = static_cast<std::uint16_t>(std::stoul(argv[7], nullptr, 16));
    std::memcpy(values.bytes.data() + at * 2, &word, 2);
    return write(state, argv[1]);
}

// Every part's values as f32 [token][head][dim] through `change`, stored again as they were.
template <class Change>
Status change_values(kv::State& state, Change change) {
    for (std::size_t s = 0; s < state.layers.size(); ++s) {
        for (std::size_t l = 0; l < state.layers[s].size(); ++l) {
            for (const kv::PartId id : {kv::PartId::k, kv::PartId::v}) {
                kv::Part& part = state.layers[s][l].part(id);
                const std::uint64_t n = state.header.stored_tokens(s, l);
                HETERO_TRY(std::vector<float> values, kv::decode_part(state.header, part, n, id));
                change(values, id, state.header.stored_heads(), state.header.identity.head_dim(id));
                HETERO_TRY(part, kv::encode_part(state.header, part.scheme, n, id, values));
            }
        }
    }
    return {};
}

Status fault(const std::string& kind, const std::string& in, const std::string& out) {
    HETERO_TRY(auto state, read(in));
    if (kind == "ones") {
        for (auto& layers : state.layers) {
            for (kv::Layer& layer : layers) {
                for (kv::Tensor* scale : {&layer.k.scale, &layer.v.scale}) {
                    for (std::size_t i = 0; i + 1 < scale->bytes.size(); i += 2) {
                        const std::uint16_t one = 0x3C00;
                        std::memcpy(scale->bytes.data() + i, &one, 2);
                    }
                }
            }
        }
        return write(state, out);
    }
    if (kind == "nan") {
        const std::uint16_t nan = 0x7E00;
        std::memcpy(state.layers.front().back().v.scale.bytes.data(), &nan, 2);
        return write(state, out);
    }
    const double theta = state.header.identity.rope_theta;
    const auto change = [&](std::vector<float>& values, kv::PartId id, std::size_t heads, std::size_t dim) {
        const std::size_t row = heads * dim;
        if (kind == "heads") {
            for (std::size_t at = 0; at < values.size(); at += row)
                for (std::size_t i = 0; i < dim; ++i) std::swap(values[at + i], values[at + dim + i]);
        } else if (kind == "tokens") {
            std::memmove(values.data() + row, values.data(), (values.size() - row) * sizeof(float));
        } else if (kind == "rope" && id == kv::PartId::k) {
            for (std::size_t at = 0; at < values.size(); ++at) {
                const std::size_t i = at % dim, n = dim / 2;
                if (i >= n) continue;
                const double angle =
                    static_cast<double>(at / row) * std::pow(theta, -static_cast<double>(i) / static_cast<double>(n));
                const double x = values[at], y = values[at + n];
                values[at] = static_cast<float>(x * std::cos(angle) + y * std::sin(angle));
                values[at + n] = static_cast<float>(y * std::cos(angle) - x * std::sin(angle));
            }
        }
    };
    HETERO_CHECK(change_values(state, change));
    return write(state, out);
}

Status print(char** argv) {
    HETERO_TRY(const auto state, read(argv[0]));
    const kv::Part& part =
        state.layers[0].at(std::stoul(argv[1])).part(*argv[2] == 'k' ? kv::PartId::k : kv::PartId::v);
    const kv::Tensor& tensor = std::string_view(argv[3]) == "scale" ? part.scale : part.values;
    std::printf("# %s\n", std::string(kernels::dtype_info(tensor.dtype).name).c_str());
    for (std::size_t i = 0; i < tensor.elements(); ++i) {
        const std::byte* at = tensor.bytes.data();
        switch (tensor.dtype) {
            case kernels::DType::i8:
                std::printf("%d\n", static_cast<int>(static_cast<std::int8_t>(at[i])));
                break;
            case kernels::DType::u8:
                std::printf("%u\n", static_cast<unsigned>(at[i]));
                break;
            case kernels::DType::f32: {
                float value;
                std::memcpy(&value, at + i * 4, 4);
                std::printf("%.9g\n", static_cast<double>(value));
                break;
            }
            default: {
                std::uint16_t word;
                std::memcpy(&word, at + i * 2, 2);
                std::printf("%04X\n", static_cast<unsigned>(word));
            }
        }
    }
    return {};
}

}  // namespace

int main(int argc, char** argv) {
    const std::string command = argc > 1 ? argv[1] : "";
    if (command == "make" && argc == 4) return report(make(argv[2], argv[3]));
    if (command == "split" && argc == 5)
        return report(split(argv[2], static_cast<std::uint32_t>(std::stoul(argv[3])), argv[4]));
    if (command == "window" && argc == 5)
        return report(window(argv[2], argv[3], static_cast<std::uint32_t>(std::stoul(argv[4]))));
    if (command == "set" && argc == 10) return report(set(argv + 2));
    if (command == "fault" && argc == 5) return report(fault(argv[2], argv[3], argv[4]));
    if (command == "print" && argc == 6) return report(print(argv + 2));
    std::fputs("usage: see the head of kv_lab.cpp\n", stderr);
    return 2;
}
