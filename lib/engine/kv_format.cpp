#include "engine/kv_format.h"

#include "engine/aligned.h"

namespace hetero::engine {
namespace {

using kernels::KvCodes;
using quant::Axis;

constexpr std::size_t page_tokens = kernels::kKvPageTokens;

Result<KvCodecs> parse(std::string_view k, std::string_view v) {
    HETERO_TRY(quant::Spec k_spec, quant::parse_spec(k));
    HETERO_TRY(quant::Spec v_spec, quant::parse_spec(v));
    return KvCodecs{std::move(k_spec), std::move(v_spec)};
}

}  // namespace

Result<KvCodecs> resident_codecs(std::string_view name) {
    if (name == "int8" || name == "fp8_e4m3fn") return parse(name, name);
    if (name == "int4") return parse("had:int4:token:g32:asym", "had:int4:token:g32:asym");
    if (name == "int8-channel") return parse("int8:channel:g32:asym", "had:int8:token");
    if (name == "int4-channel") return parse("int4:channel:g32:asym", "had:int4:token:g32:asym");
    return fail(
        Errc::usage,
        "'{}' is not a KV type; there are f16, bf16, f32, int8, int4, fp8_e4m3fn, int8-channel and int4-channel", name);
}

std::string resident_name(const kv::Scheme& k, const kv::Scheme& v) {
    for (const char* name : {"int8", "int4", "fp8_e4m3fn", "int8-channel", "int4-channel"}) {
        const auto codecs = resident_codecs(name);
        if (codecs && codecs->k == quant::Spec{k.codec, k.params} && codecs->v == quant::Spec{v.codec, v.params})
            return name;
    }
    return k.codec;
}

kv::Scheme scheme_of(const KvStorage& storage, kv::PartId part) {
    kv::Scheme scheme;
    scheme.source_dtype = storage.dtype;
    scheme.codec = kernels::dtype_info(storage.dtype).name;
    if (storage.codecs) {
        const quant::Spec& spec = part == kv::PartId::k ? storage.codecs->k : storage.codecs->v;
        scheme.codec = spec.codec;
        scheme.params = spec.params;
    }
    return scheme;
}

std::optional<KvCodes> codes_of(std::string_view codec, const quant::Params& params) noexcept {
    if (codec == "fp8_e4m3fn") return KvCodes::e4m3fn;
    if (codec == "int4") return params.symmetric ? KvCodes::i4 : KvCodes::u4;
    if (codec == "int8") return params.symmetric ? KvCodes::i8 : KvCodes::u8;
    return std::nullopt;
}

Result<PartFormat> part_format(const quant::Spec& spec, kv::PartId part, std::uint32_t head_dim) {
    const quant::Params& params = spec.params;
    const auto refuse = [&](std::string_view why) {
        return fail(Errc::usage, "{}: '{}' cannot stay in memory: {}", kv::part_name(part), quant::to_text(spec), why);
    };
    PartFormat format;
    format.codec = quant::find_codec(spec.codec);
    format.params = params;
    format.head_dim = head_dim;
    const std::optional<KvCodes> codes = codes_of(spec.codec, params);
    if (!codes) return refuse("int8, int4 and fp8_e4m3fn can");
    format.codes = *codes;
    HETERO_CHECK(format.codec->check(params, head_dim));
    if (params.scale_dtype != kernels::DType::f16) return refuse("its scales must be f16");
    format.row_bytes = kernels::is_paired(*codes) ? (head_dim + 1) / 2 : head_dim;
    std::size_t scales = 0;
    if (params.axis == Axis::token) {
        format.group = params.group == 0 ? head_dim : params.group;
        if (head_dim % format.group != 0) return refuse("its groups must divide a head");
        scales = head_dim / format.group * page_tokens;
    } else if (params.axis == Axis::channel && part == kv::PartId::k) {
        format.group_tokens = params.group;
        if (page_tokens % params.group != 0) return refuse("its groups must divide a page of 64 tokens");
        scales = page_tokens / params.group * head_dim;
    } else {
        return refuse("scales are per token, or of K per channel");
    }
    const auto aligned = [](std::size_t bytes) { return round_up(bytes, 64); };
    format.scale_offset = aligned(page_tokens * format.row_bytes);
    format.tile_bytes = format.scale_offset + aligned(2 * scales);
    if (!params.symmetric) {
        format.zero_offset = format.tile_bytes;
        format.tile_bytes += aligned(2 * scales);
    }
    return format;
}

}  // namespace hetero::engine
