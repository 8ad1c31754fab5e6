// Parts between codecs, and parts as plain numbers.
#pragma once
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "base/threads.h"
#include "kv/stream.h"
#include "quant/codec.h"

namespace hetero::kv {

// f32 [token][kv_head][head_dim] of a part: of the tokens and heads that are stored. `first_token` is that of the first
// row, for messages.
Result<std::vector<float>> decode_part(const Header& header, const Part& part, std::uint64_t n_tokens, PartId id,
                                       std::uint64_t first_token = 0);
// A part with `scheme` from f32 values.
Result<Part> encode_part(const Header& header, const Scheme& scheme, std::uint64_t n_tokens, PartId id,
                         const std::vector<float>& values, std::uint64_t first_token = 0);

// Tokens as a codec stores them.
struct EncodedTokens {
    const quant::Codec& codec;
    const quant::Params& params;
    std::span<const std::byte> values, scale, zero;
};

// Converts tokens elsewhere than on this process's CPUs. Used by one thread.
class TokenConverter {
public:
    virtual ~TokenConverter() = default;
    [[nodiscard]] virtual std::string name() const = 0;  // "cuda:0"
    // Whether it goes from one codec to the other, of heads of head_dim.
    [[nodiscard]] virtual bool takes(const Scheme& from, const Scheme& to, std::uint32_t head_dim) const = 0;
    // To the bytes of `to`; raises `error` to the largest |decoded output - decoded input|. False: there is no room for
    // a group, or something is damaged or has no code; `out` is unspecified then, and the codec is asked here, which
    // says what is wrong. `pool` copies for it.
    virtual Result<bool> convert(const EncodedTokens& from, const quant::Codec& to, const quant::Params& params,
                                 const quant::Shape& shape, const quant::EncodedSpans& out, ThreadPool& pool,
                                 float& error) = 0;
};

// True where going from one scheme to the other loses nothing, whatever the values: the same scheme, or a float that
// holds all that the codec decodes to.
[[nodiscard]] bool conversion_is_exact(const Scheme& from, const Scheme& to);

// The part of n_tokens, of which first_token is the first, with another scheme, as convert_state() converts it; raises
// `error` to the largest |decoded output - decoded input|.
Result<Part> convert_part(const Header& header, const Part& from, const Scheme& scheme, std::uint64_t n_tokens,
                          PartId id, std::uint64_t first_token, int threads, float& error);

// How the parts of a state were converted.
struct PartCounts {
    std::uint64_t kept = 0;         // passed on bit for bit
    std::uint64_t exact = 0;        // to what holds every value of before
    std::uint64_t lossy = 0;        // rounded once
    std::uint64_t requantized = 0;  // from quantized to quantized: the errors of both add up
    using Count = std::uint64_t PartCounts::*;
    [[nodiscard]] const char* text() const noexcept {  // of the worst: "exact", "lossy" or "requantized"
        return requantized != 0 ? "requantized" : lossy != 0 ? "lossy" : "exact";
    }
};

struct ConvertReport {
    std::uint64_t bytes_in = 0, bytes_out = 0;  // payload: values, scales, zeros
    double bits_per_value = 0;                  // of the output, scales and zeros counted; 0 where there are no values
    double seconds = 0;        // of decoding, encoding and measuring the error: the busiest thread's, over all parts
    double max_abs_error = 0;  // |decoded output - decoded input|
    PartCounts parts;
    std::uint64_t elsewhere = 0;  // of these parts, by a TokenConverter
    [[nodiscard]] bool exact() const noexcept { return parts.lossy + parts.requantized == 0; }
};

// The most that convert_state holds at once with these schemes: a layer as it was read, the same as converted, and the
// scratch of the threads. With Handing::shared, what the sink has not written yet comes on top.
struct ConvertMemory {
    std::uint64_t bytes = 0;
    std::size_t sequence = 0, layer = 0;  // which needs them
};
[[nodiscard]] ConvertMemory convert_memory(const Header& header, std::span<const Scheme> k, std::span<const Scheme> v,
                                           int threads);

// How the sink gets a layer: to keep while it is written (Sink::write_shared), or to write before the next one is read.
enum class Handing : std::uint8_t { shared, written };

// Streams `in` to `out` with the given schemes, one for each layer; their source_dtype is filled in from the input. A
// part whose scheme stays the same is passed on bit for bit. Quantized to another quantized scheme is refused unless
// `requantize`. Errors name sequence, layer, part, and the codec's place. Adds `entry` to the provenance; the writer
// chooses the chunk length anew. The bytes do not depend on `threads`; 0: default_thread_count(). They do not depend on
// `elsewhere` either, which converts what it takes; null: all is done here.
Result<ConvertReport> convert_state(Source& in, Sink& out, std::span<const Scheme> k, std::span<const Scheme> v,
                                    bool requantize, const ProvenanceEntry& entry, int threads,
                                    Handing handing = Handing::shared, TokenConverter* elsewhere = nullptr);
// The same schemes in every layer.
Result<ConvertReport> convert_state(Source& in, Sink& out, const Scheme& k, const Scheme& v, bool requantize,
                                    const ProvenanceEntry& entry, int threads);

}  // namespace hetero::kv
