#include "kv/convert.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <new>
#include <numeric>
#include <utility>

#include "base/clock.h"
#include "base/threads.h"
#include "base/trace.h"
#include "kernels/api/ops.h"
#include "kv/recycled_layers.h"
#include "quant/codec.h"

namespace hetero::kv {
namespace {

using quant::Codec;
using quant::EncodedBytes;
using quant::EncodedRange;
using quant::EncodedSpans;
using quant::float_codec;
using quant::Shape;

constexpr std::uint64_t values_per_task = 64 * 1024;  // f32 in and out of a task stay in a core's cache

// `unknown`: bad_input where the name comes from a state, usage where the caller asked for it.
Result<const Codec*> codec_of(const Scheme& scheme, Errc unknown = Errc::bad_input) {
    const Codec* codec = quant::find_codec(scheme.codec);
    if (codec == nullptr) return fail(unknown, "unknown codec '{}': known are {}", scheme.codec, quant::codec_names());
    return codec;
}

Shape shape_of(const Header& header, std::uint64_t n_tokens, PartId id, std::uint64_t first_token = 0) {
    return {n_tokens, header.stored_heads(), header.identity.head_dim(id), first_token};
}

bool same_storage(const Scheme& a, const Scheme& b) {
    return a.codec == b.codec && a.params == b.params && a.sinks == b.sinks && a.window == b.window;
}

// `wanted` with the source_dtype it has after a conversion from `from`.
Scheme scheme_after(const Scheme& from, Scheme wanted, const Codec& from_codec, const Codec& wanted_codec) {
    if (!wanted_codec.quantized()) {
        wanted.source_dtype = wanted_codec.value_dtype(wanted.params);
    } else {
        wanted.source_dtype = from_codec.quantized() ? from.source_dtype : from_codec.value_dtype(from.params);
    }
    return wanted;
}

// A range of whole groups, long enough to be worth a task: cut where both codecs can be cut.
std::uint64_t tokens_per_task(const Codec& from, const Scheme& from_scheme, const Codec& to, const Scheme& to_scheme,
                              const Shape& shape) {
    const std::uint64_t from_step = from.token_step(from_scheme.params), to_step = to.token_step(to_scheme.params);
    if (from_step == 0 || to_step == 0) return std::max<std::uint64_t>(1, shape.tokens);
    const std::uint64_t step = std::lcm(from_step, to_step);
    const std::uint64_t row = std::max<std::uint64_t>(1, std::uint64_t{shape.heads} * shape.head_dim);
    const std::uint64_t wanted = std::max<std::uint64_t>(1, values_per_task / row);
    return (wanted + step - 1) / step * step;
}

// What is larger than this is not expected to be read from a cache again: its stores go past them.
constexpr std::size_t streaming_bytes = 8U << 20;

struct Worker {
    std::vector<float> values;
    std::vector<std::byte> staged;
    double seconds = 0;  // of decoding and encoding in the current part
    float max_abs_error = 0;
};

// From one codec to another, over f32 only where both are quantized.
Status convert_tokens(const EncodedTokens& from, const Codec& to, const quant::Params& params, const Shape& shape,
                      const EncodedSpans& out, std::vector<float>& values, float& error) {
    if (!from.codec.quantized())
        return to.encode_from(params, shape, from.codec.value_dtype(from.params), from.values, out, &error);
    if (!to.quantized()) {
        return from.codec.decode_to(from.params, shape, from.values, from.scale, from.zero,
                                    {to.value_dtype(params), out.values, out.streaming}, &error);
    }
    values.resize(shape.elements());
    HETERO_CHECK(from.codec.decode(from.params, shape, from.values, from.scale, from.zero, values));
    return to.encode_from(params, shape, DType::f32, std::as_bytes(std::span(values)), out, &error);
}

struct KeptRange {
    std::uint64_t first = 0, n = 0;  // tokens
};

class Converter {
public:
    Converter(int threads, TokenConverter* elsewhere)
        : pool_(threads), elsewhere_(elsewhere), workers_(static_cast<std::size_t>(pool_.size())) {}

    // `part` becomes `from` with another scheme, in the memory that it has. Tasks are token ranges; of several errors
    // the first range's is returned.
    Status convert(const Header& header, const Part& from, Part& part, const Scheme& scheme, std::uint64_t n_tokens,
                   PartId id, std::uint64_t first_token) {
        HETERO_TRY(const Codec* in, codec_of(from.scheme));
        HETERO_TRY(const Codec* out, codec_of(scheme, Errc::usage));
        if ((from.scheme.keeps_rows() && out->quantized()) || (scheme.keeps_rows() && in->quantized())) {
            return convert_whole(header, from, part, scheme, n_tokens, id, first_token);
        }
        HETERO_CHECK(reshape_part(part, header, scheme, n_tokens, id));
        // A float keeps no tokens apart: its arrays have the kept ones around those that are converted.
        const KeptRows rows = kept_rows(from.scheme.keeps_rows() ? from.scheme : scheme, n_tokens);
        const std::uint64_t in_first = from.scheme.keeps_rows() ? 0 : rows.sinks,
                            out_first = scheme.keeps_rows() ? 0 : rows.sinks;
        const Shape shape = shape_of(header, rows.middle, id, first_token + rows.sinks);
        Shape in_shape = shape;
        in_shape.tokens = from.scheme.keeps_rows() ? rows.middle : n_tokens;
        HETERO_CHECK(in->check(from.scheme.params, shape.head_dim));
        const EncodedBytes size = in->bytes(from.scheme.params, in_shape);
        if (size.values != from.values.bytes.size() || size.scale != from.scale.bytes.size() ||
            size.zero != from.zero.bytes.size()) {
            return fail(Errc::bad_input, "the data's size does not fit {} tokens of codec {}", n_tokens, in->name());
        }
        HETERO_CHECK(copy_kept(header, from, part, rows, n_tokens, id, first_token));
        if (elsewhere_ != nullptr && elsewhere_->takes(from.scheme, scheme, shape.head_dim)) {
            const auto start = std::chrono::steady_clock::now();
            const EncodedTokens source = tokens_of(*in, from, shape, in_first);
            HETERO_TRY(const bool converted,
                       elsewhere_->convert(source, *out, scheme.params, shape, spans_of(*out, part, shape, out_first),
                                           pool_, workers_.front().max_abs_error));
            seconds_ += seconds_since(start);
            if (converted) {
                ++parts_elsewhere_;
                return {};
            }
        }
        const std::uint64_t step = tokens_per_task(*in, from.scheme, *out, scheme, shape);
        const std::size_t tasks = rows.middle / step + (rows.middle % step != 0 ? 1 : 0);
        std::vector<Status> done(tasks);
        for (Worker& worker : workers_) worker.seconds = 0;
        pool_.parallel_for(tasks, [&](std::size_t task, int worker) {
            const std::uint64_t row = task * step;
            Shape range = shape;
            range.first_token += row;
            range.tokens = std::min(step, rows.middle - row);
            done[task] = convert_range(*in, from, in_first + row, *out, part, out_first + row, range,
                                       workers_[static_cast<std::size_t>(worker)]);
        });
        for (const Status& status : done) HETERO_CHECK(status);
        double busiest = 0;
        for (const Worker& worker : workers_) busiest = std::max(busiest, worker.seconds);
        seconds_ += busiest;
        return {};
    }

    [[nodiscard]] double seconds() const { return seconds_; }
    [[nodiscard]] std::uint64_t parts_elsewhere() const { return parts_elsewhere_; }

    [[nodiscard]] float max_abs_error() const {
        float largest = 0;
        for (const Worker& worker : workers_) largest = std::max(largest, worker.max_abs_error);
        return largest;
    }

private:
    // Sinks and tail between the scheme that keeps them and a float, which has them among its values.
    Status copy_kept(const Header& header, const Part& from, Part& to, const KeptRows& rows, std::uint64_t n_tokens,
                     PartId id, std::uint64_t first_token) {
        const bool keeping = to.scheme.keeps_rows();
        const Scheme& plain = keeping ? from.scheme : to.scheme;
        const DType kept_type = (keeping ? to.scheme : from.scheme).source_dtype;
        const Codec &kept_codec = float_codec(kept_type), &plain_codec = float_codec(plain.source_dtype);
        const std::array<std::pair<Tensor Part::*, KeptRange>, 2> both = {
            {{&Part::sink, {0, rows.sinks}}, {&Part::tail, {n_tokens - rows.tail, rows.tail}}}};
        for (const auto& [array, range] : both) {
            if (range.n == 0) continue;
            const Shape shape = shape_of(header, range.n, id, first_token + range.first);
            const quant::EncodedRange at =
                encoded_range(plain_codec, {}, shape_of(header, n_tokens, id), range.first, range.n);
            Worker& worker = workers_.front();
            const EncodedTokens source =
                keeping ? EncodedTokens{plain_codec, plain.params, at.values(std::span(from.values.bytes)), {}, {}}
                        : EncodedTokens{kept_codec, plain.params, (from.*array).bytes, {}, {}};
            const EncodedSpans out = keeping ? EncodedSpans{(to.*array).bytes, {}, {}}
                                             : EncodedSpans{at.values(std::span(to.values.bytes)), {}, {}};
            HETERO_CHECK(convert_tokens(source, keeping ? kept_codec : plain_codec, {}, shape, out, worker.values,
                                        worker.max_abs_error));
        }
        return {};
    }

    // Between quantized schemes groups do not begin at the same tokens where tokens are kept.
    Status convert_whole(const Header& header, const Part& from, Part& part, const Scheme& scheme,
                         std::uint64_t n_tokens, PartId id, std::uint64_t first_token) {
        const auto start = std::chrono::steady_clock::now();
        HETERO_TRY(const std::vector<float> values, decode_part(header, from, n_tokens, id, first_token));
        HETERO_TRY(part, encode_part(header, scheme, n_tokens, id, values, first_token));
        seconds_ += seconds_since(start);
        HETERO_TRY(const std::vector<float> back, decode_part(header, part, n_tokens, id, first_token));
        kernels::ops().max_difference({DType::f32, values.data(), 1, values.size(), values.size()}, back.data(),
                                      &workers_.front().max_abs_error);
        return {};
    }

    // The tokens of `range` in the arrays of a part, where the first of them is `row`.
    static EncodedTokens tokens_of(const Codec& codec, const Part& part, const Shape& range, std::uint64_t row) {
        const EncodedRange at = encoded_range(codec, part.scheme.params, range, row, range.tokens);
        return {codec, part.scheme.params, at.values(std::span(part.values.bytes)),
                at.scale(std::span(part.scale.bytes)), at.zero(std::span(part.zero.bytes))};
    }
    static EncodedSpans spans_of(const Codec& codec, Part& part, const Shape& range, std::uint64_t row) {
        const EncodedRange at = encoded_range(codec, part.scheme.params, range, row, range.tokens);
        return {at.values(std::span(part.values.bytes)), at.scale(std::span(part.scale.bytes)),
                at.zero(std::span(part.zero.bytes))};
    }

    // `from_row` and `to_row`: of the range's first token in the arrays of each.
    static Status convert_range(const Codec& in, const Part& from, std::uint64_t from_row, const Codec& out, Part& to,
                                std::uint64_t to_row, const Shape& range, Worker& worker) try {
        const auto start = std::chrono::steady_clock::now();
        const EncodedTokens source = tokens_of(in, from, range, from_row);
        EncodedSpans spans = spans_of(out, to, range, to_row);
        const std::span<std::byte> values = spans.values;
        spans.streaming = to.values.bytes.size() >= streaming_bytes;
        const bool direct = in.quantized() && !out.quantized() ? in.streams_values(from.scheme.params)
                                                               : out.streams_codes(to.scheme.params);
        if (spans.streaming && !direct) {
            worker.staged.resize(values.size());
            spans.values = worker.staged;
            spans.streaming = false;
        }
        HETERO_CHECK(convert_tokens(source, out, to.scheme.params, range, spans, worker.values, worker.max_abs_error));
        if (spans.values.data() != values.data())
            kernels::ops().copy_streaming(values.data(), spans.values.data(), values.size());
        worker.seconds += seconds_since(start);
        return {};
    } catch (const std::bad_alloc&) {
        return fail(Errc::resource, "out of memory: scratch for {} values", range.elements());
    }

    ThreadPool pool_;
    TokenConverter* elsewhere_;
    std::vector<Worker> workers_;
    double seconds_ = 0;
    std::uint64_t parts_elsewhere_ = 0;
};

std::uint64_t stored_bytes(const Part& part) {
    std::uint64_t bytes = 0;
    for (const auto array : part_arrays) bytes += (part.*array).bytes.size();
    return bytes;
}

// Which kind of conversion this is.
Result<PartCounts::Count> count_of(const Scheme& from, const Scheme& to) {
    if (same_storage(from, to)) return &PartCounts::kept;
    if (conversion_is_exact(from, to)) return &PartCounts::exact;
    HETERO_TRY(const Codec* in, codec_of(from));
    HETERO_TRY(const Codec* out, codec_of(to, Errc::usage));
    return in->quantized() && out->quantized() ? &PartCounts::requantized : &PartCounts::lossy;
}

// The output's header, or why the conversion is refused.
Result<Header> converted_header(const Header& in, std::span<const Scheme> k, std::span<const Scheme> v, bool requantize,
                                const ProvenanceEntry& entry) {
    Header header = in;
    header.tokens_per_chunk = 0;
    header.provenance.push_back(entry);
    for (PartId id : {PartId::k, PartId::v}) {
        const std::span<const Scheme> all = id == PartId::k ? k : v;
        std::vector<Scheme>& schemes = header.schemes(id);
        if (all.size() != schemes.size()) {
            return fail(Errc::usage, "schemes for {} layers, the state has {}", all.size(), schemes.size());
        }
        for (std::size_t layer = 0; layer < schemes.size(); ++layer) {
            const Scheme& wanted = all[layer];
            HETERO_TRY(const Codec* to, codec_of(wanted, Errc::usage));
            HETERO_CHECK(to->check(wanted.params, shape_of(in, 0, id).head_dim));
            if (same_storage(schemes[layer], wanted)) continue;
            HETERO_TRY(const Codec* from, codec_of(schemes[layer]));
            if (from->quantized() && to->quantized() && !requantize && !conversion_is_exact(schemes[layer], wanted)) {
                return fail(
                    Errc::usage,
                    "layer {}, {}: already quantized ({}); quantizing again adds error to error: start from the "
                    "unquantized state, or allow it (--requantize)",
                    layer, in.part_name(layer, id), from->name());
            }
            schemes[layer] = scheme_after(schemes[layer], wanted, *from, *to);
        }
    }
    return header;
}

}  // namespace

Result<std::vector<float>> decode_part(const Header& header, const Part& part, std::uint64_t n_tokens, PartId id,
                                       std::uint64_t first_token) {
    HETERO_TRY(const Codec* codec, codec_of(part.scheme));
    const KeptRows rows = kept_rows(part.scheme, n_tokens);
    const Shape sinks = shape_of(header, rows.sinks, id, first_token),
                middle = shape_of(header, rows.middle, id, first_token + rows.sinks),
                tail = shape_of(header, rows.tail, id, first_token + rows.sinks + rows.middle);
    if (part.values.bytes.size() != codec->bytes(part.scheme.params, middle).values) {  // before memory is taken
        return fail(Errc::bad_input, "{} bytes of values do not fit {} tokens of codec {}", part.values.bytes.size(),
                    rows.middle, codec->name());
    }
    std::vector<float> values;
    try {
        values.resize(sinks.elements() + middle.elements() + tail.elements());
    } catch (const std::bad_alloc&) {
        return fail(Errc::resource, "out of memory: {} values of a part", middle.elements());
    }
    const std::span<float> all(values);
    const Codec& kept = float_codec(part.scheme.source_dtype);
    HETERO_CHECK(kept.decode({}, sinks, part.sink.bytes, {}, {}, all.first(sinks.elements())));
    HETERO_CHECK(codec->decode(part.scheme.params, middle, part.values.bytes, part.scale.bytes, part.zero.bytes,
                               all.subspan(sinks.elements(), middle.elements())));
    HETERO_CHECK(kept.decode({}, tail, part.tail.bytes, {}, {}, all.last(tail.elements())));
    return values;
}

Result<Part> encode_part(const Header& header, const Scheme& scheme, std::uint64_t n_tokens, PartId id,
                         const std::vector<float>& values, std::uint64_t first_token) {
    HETERO_TRY(const Codec* codec, codec_of(scheme, Errc::usage));
    HETERO_TRY(Part part, allocate_part(header, scheme, n_tokens, id));
    const KeptRows rows = kept_rows(scheme, n_tokens);
    const Shape sinks = shape_of(header, rows.sinks, id, first_token),
                middle = shape_of(header, rows.middle, id, first_token + rows.sinks),
                tail = shape_of(header, rows.tail, id, first_token + rows.sinks + rows.middle);
    if (values.size() != sinks.elements() + middle.elements() + tail.elements()) {
        return fail(Errc::bad_input, "{} values for {} tokens of {} heads of {}", values.size(), n_tokens, middle.heads,
                    middle.head_dim);
    }
    const std::span<const float> all(values);
    const Codec& kept = float_codec(scheme.source_dtype);
    HETERO_CHECK(kept.encode_into({}, sinks, all.first(sinks.elements()), {part.sink.bytes, {}, {}}));
    HETERO_CHECK(codec->encode_into(scheme.params, middle, all.subspan(sinks.elements(), middle.elements()),
                                    {part.values.bytes, part.scale.bytes, part.zero.bytes}));
    HETERO_CHECK(kept.encode_into({}, tail, all.last(tail.elements()), {part.tail.bytes, {}, {}}));
    return part;
}

ConvertMemory convert_memory(const Header& header, std::span<const Scheme> k, std::span<const Scheme> v, int threads) {
    // A task's values as f32, what they become, and blocks of the codecs.
    constexpr std::uint64_t scratch = values_per_task * (4 + 4) + (1U << 18);
    const auto workers = static_cast<std::uint64_t>(threads > 0 ? threads : default_thread_count());
    ConvertMemory most;
    for (std::size_t s = 0; s < header.sequences.size(); ++s) {
        for (std::size_t layer = 0; layer < header.k_schemes.size(); ++layer) {
            const std::uint64_t tokens = header.stored_tokens(s, layer);
            std::uint64_t held = 0, whole_part = 0;
            for (const PartId id : {PartId::k, PartId::v}) {
                const Scheme &from = header.scheme(layer, id), &to = (id == PartId::k ? k : v)[layer];
                held += part_bytes(header, from, tokens, id);
                if (same_storage(from, to)) continue;
                held += part_bytes(header, to, tokens, id);
                // Some are converted all at once, over f32 and back (Converter::convert).
                const Codec *in = quant::find_codec(from.codec), *out = quant::find_codec(to.codec);
                const bool whole = in != nullptr && out != nullptr &&
                                   ((from.keeps_rows() && out->quantized()) || (to.keeps_rows() && in->quantized()));
                if (whole) whole_part = std::max(whole_part, 8 * shape_of(header, tokens, id).elements());
            }
            const std::uint64_t bytes = held + whole_part;
            if (bytes > most.bytes) most = {bytes, s, layer};
        }
    }
    most.bytes += workers * scratch;
    return most;
}

bool conversion_is_exact(const Scheme& from, const Scheme& to) {
    if (same_storage(from, to) || to.codec == "f32") return true;  // every codec decodes to binary32
    if (from.keeps_rows() && kernels::dtype_info(from.source_dtype).name != to.codec) return false;
    // vLLM's has no scale but 1, and f16 and bf16 hold all that e4m3 does. Codes of int2 are -1, 0 and 1.
    if (from.codec == "compat:vllm_fp8") return to.codec == "f16" || to.codec == "bf16";
    return from.codec == "int2" && from.params.symmetric && from.params.scale_dtype == DType::f16 &&
           !from.params.hadamard && to.codec == "f16";
}

Result<Part> convert_part(const Header& header, const Part& from, const Scheme& scheme, std::uint64_t n_tokens,
                          PartId id, std::uint64_t first_token, int threads, float& error) {
    Converter converter(threads, nullptr);
    Part part;
    HETERO_CHECK(converter.convert(header, from, part, scheme, n_tokens, id, first_token));
    error = std::max(error, converter.max_abs_error());
    return part;
}

Result<ConvertReport> convert_state(Source& in, Sink& out, const Scheme& k, const Scheme& v, bool requantize,
                                    const ProvenanceEntry& entry, int threads) {
    const std::size_t n_layers = in.header().k_schemes.size();
    return convert_state(in, out, std::vector(n_layers, k), std::vector(n_layers, v), requantize, entry, threads);
}

Result<ConvertReport> convert_state(Source& in, Sink& out, std::span<const Scheme> k, std::span<const Scheme> v,
                                    bool requantize, const ProvenanceEntry& entry, int threads, Handing handing,
                                    TokenConverter* elsewhere) {
    const Header& from = in.header();
    HETERO_TRY(const Header header, converted_header(from, k, v, requantize, entry));
    HETERO_CHECK(out.begin(header));
    ConvertReport report;
    Converter converter(threads, elsewhere);
    Layer input;
    RecycledLayers outputs;
    std::uint64_t values = 0;
    auto run = [&]() -> Status {
        for (std::size_t s = 0; s < from.sequences.size(); ++s) {
            for (std::size_t layer = 0; layer < header.k_schemes.size(); ++layer) {
                HETERO_CHECK(in.read_into(input));
                const std::shared_ptr<Layer> output = outputs.take();
                const auto begin = std::chrono::steady_clock::now();
                for (PartId id : {PartId::k, PartId::v}) {
                    Part &from_part = input.part(id), &part = output->part(id);
                    report.bytes_in += stored_bytes(from_part);
                    values += from.stored_tokens(s, layer) * from.stored_heads() * from.identity.head_dim(id);
                    const Scheme& scheme = header.scheme(layer, id);
                    HETERO_TRY(const PartCounts::Count count, count_of(from_part.scheme, scheme));
                    ++(report.parts.*count);
                    if (same_storage(from_part.scheme, scheme)) {
                        std::swap(part, from_part);
                    } else {
                        const Status converted =
                            converter.convert(from, from_part, part, scheme, from.stored_tokens(s, layer), id,
                                              from.first_token(s, layer));
                        if (!converted) {
                            return fail_with(converted.error(),
                                             fmt::format("{}: sequence {}, layer {}, {}", in.name(),
                                                         from.sequences[s].id, layer, from.part_name(layer, id)));
                        }
                    }
                    report.bytes_out += stored_bytes(part);
                }
                if (trace::on())
                    trace::add("convert", fmt::format("layer {}", layer), begin, std::chrono::steady_clock::now());
                HETERO_CHECK(handing == Handing::shared ? out.write_shared(output) : out.write_layer(*output));
            }
        }
        HETERO_CHECK(in.finish());
        if (header.late_logits) HETERO_CHECK(out.complete(in.header()));
        return out.commit();
    };
    if (Status status = run(); !status) {
        out.abort(status.error());
        return tl::unexpected<Error>(status.error());
    }
    report.seconds = converter.seconds();
    report.max_abs_error = converter.max_abs_error();
    report.elsewhere = converter.parts_elsewhere();
    if (values != 0) report.bits_per_value = 8.0 * static_cast<double>(report.bytes_out) / static_cast<double>(values);
    return report;
}

}  // namespace hetero::kv
