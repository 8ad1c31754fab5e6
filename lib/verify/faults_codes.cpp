// Bits taken for something else than they are.
#include <cmath>
#include <utility>

#include "kernels/api/ops.h"
#include "quant/codec.h"
#include "quant/rotation.h"
#include "verify/faults.h"

namespace hetero::verify {
namespace {

// Bits of a code where codes lie side by side in bytes of their own array; 0 where they do not.
int code_bits(const Case& part) {
    const kv::Part& stored = part.part();
    if (stored.scale.empty() || stored.values.shape.size() != 3) return 0;
    const std::uint64_t row = stored.values.shape[2] * kernels::dtype_bytes(stored.values.dtype, 1);
    return row == part.dim ? 8 : 2 * row == part.dim ? 4 : 0;
}

template <class Change>
void change_codes(const Case& part, const Repair& repair, Change change) {
    kv::Part changed = part.part();
    for (std::byte& code : changed.values.bytes) code = change(code);
    repair(part.decode(changed), "");
}

using Narrow = void (*)(const float*, std::uint16_t*, std::size_t);
using Widen = void (*)(const std::uint16_t*, float*, std::size_t);

// Values that are not finite afterwards say nothing.
void reread(const Case& part, const Repair& repair, Narrow narrow, Widen widen) {
    std::vector<std::uint16_t> words(part.b.size());
    std::vector<float> values(part.b.size());
    narrow(part.b.data(), words.data(), words.size());
    widen(words.data(), values.data(), values.size());
    for (float& value : values) {
        if (!std::isfinite(value)) value = unknown;
    }
    repair(values, "");
}

bool is_float(const Case& part) {
    const quant::Codec* codec = quant::find_codec(part.part().scheme.codec);
    return codec != nullptr && !codec->quantized();
}

}  // namespace

void undo_nibbles_swapped(const Case& part, const Repair& repair) {
    if (code_bits(part) != 4) return;
    change_codes(part, repair, [](std::byte code) { return code << 4 | code >> 4; });
}

void undo_code_sign(const Case& part, const Repair& repair) {
    const int bits = code_bits(part);
    if (bits == 0) return;
    const std::byte sign = bits == 8 ? std::byte{0x80} : std::byte{0x88};
    change_codes(part, repair, [sign](std::byte code) { return code ^ sign; });
}

void undo_f16_as_bf16(const Case& part, const Repair& repair) {
    if (!is_float(part)) return;
    reread(part, repair, kernels::ops().f32_to_bf16, kernels::ops().f16_to_f32);
}

void undo_bf16_as_f16(const Case& part, const Repair& repair) {
    if (!is_float(part)) return;
    reread(part, repair, kernels::ops().f32_to_f16, kernels::ops().bf16_to_f32);
}

void undo_byte_order(const Case& part, const Repair& repair) {
    const kernels::DType dtype = part.part().values.dtype;
    if (dtype != kernels::DType::f16 && dtype != kernels::DType::bf16) return;
    kv::Part changed = part.part();
    auto& bytes = changed.values.bytes;
    for (std::size_t i = 0; i + 1 < bytes.size(); i += 2) std::swap(bytes[i], bytes[i + 1]);
    repair(part.decode(changed), "");
}

void undo_rotation_left(const Case& part, const Repair& repair) {
    if (quant::rotation_size(part.dim) < 2) return;
    std::vector<float> values(part.b.size());
    quant::rotate(part.b, values, part.dim);
    repair(values, "");
}

}  // namespace hetero::verify
