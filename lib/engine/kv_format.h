// How K and V stay in memory: as floats, or as codes of some of the codecs of hetero-quant(7), the very codes that a
// state quantized so would hold. What is quantized are the values rounded to f16.
#pragma once
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/result.h"
#include "kernels/api/ops.h"
#include "kv/state.h"
#include "quant/spec.h"

namespace hetero::engine {

// int8, int4 or fp8_e4m3fn with f16 scales: per token, in groups that divide a head, rotated or not; K also per
// channel, in groups of tokens that divide a page.
struct KvCodecs {
    quant::Spec k, v;
    friend bool operator==(const KvCodecs&, const KvCodecs&) = default;
};
// "int8", "fp8_e4m3fn": per token and head. "int4": rotated, groups of 32. "int8-channel", "int4-channel": K by channel
// over 32 tokens, V rotated, int8 per token or int4 in groups of 32. usage: another name.
[[nodiscard]] Result<KvCodecs> resident_codecs(std::string_view name);

// The other way round: the name that resident_codecs() takes, or a float's. Of other pairs: that of K.
[[nodiscard]] std::string resident_name(const kv::Scheme& k, const kv::Scheme& v);

struct KvStorage {
    kernels::DType dtype = kernels::DType::f16;      // of floats
    std::optional<KvCodecs> codecs;                  // instead of them
    KvStorage(kernels::DType type) : dtype(type) {}  // NOLINT(google-explicit-constructor)
    KvStorage(kernels::DType type, std::optional<KvCodecs> codes) : dtype(type), codecs(std::move(codes)) {}
};

// As states name it.
[[nodiscard]] kv::Scheme scheme_of(const KvStorage& storage, kv::PartId part);

// A tile of one head: codes [64][row_bytes], then scales, then zeros, as kernels::KvView has them.
struct PartFormat {
    const quant::Codec* codec = nullptr;
    quant::Params params;
    kernels::KvCodes codes = kernels::KvCodes::floats;
    std::size_t head_dim = 0, row_bytes = 0;
    std::size_t group = 0, group_tokens = 0;                        // as in KvView
    std::size_t scale_offset = 0, zero_offset = 0, tile_bytes = 0;  // from the tile's begin; zero_offset 0: none
    [[nodiscard]] std::size_t groups() const noexcept { return group == 0 ? 0 : head_dim / group; }
};
// What codes of int8, int4 or fp8_e4m3fn are; nothing: of another codec.
[[nodiscard]] std::optional<kernels::KvCodes> codes_of(std::string_view codec, const quant::Params& params) noexcept;
// usage: what cannot stay in memory so.
[[nodiscard]] Result<PartFormat> part_format(const quant::Spec& spec, kv::PartId part, std::uint32_t head_dim);

}  // namespace hetero::engine
