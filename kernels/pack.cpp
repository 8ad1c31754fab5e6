// Weights of every type to the layouts of api/packed.h.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "kernels/api/packed.h"
#include "kernels/ref/ref.h"

namespace hetero::kernels {
namespace {

using Byte = std::uint8_t;

constexpr std::array<PackingInfo, static_cast<std::size_t>(Packing::count_)> kInfo = {{
    {"u4", 4, 8, false, 256, 288},
    {"u4_min", 4, 0, true, 256, 320},
    {"u5", 5, 16, false, 320, 352},
    {"u5_min", 5, 0, true, 320, 384},
    {"u8", 8, 128, false, 512, 544},
    {"u8_min", 8, 0, true, 512, 576},
}};

// One row of a block: codes as Packing counts them, and f16 bits.
struct RowBlock {
    Byte code[packed_cols];
    std::uint16_t scale, min;
};

Byte nibble(const Byte* qs, std::size_t c) { return static_cast<Byte>(c < 16 ? qs[c] & 0xf : qs[c - 16] >> 4); }

// 32 values to 8 bits and a scale. The codes are taken with the scale as stored, so its rounding costs nothing.
void round_to_8_bits(const float* x, RowBlock& out) {
    float largest = 0;
    bool finite = true;
    for (std::size_t c = 0; c < packed_cols; ++c) {
        finite = finite && std::isfinite(x[c]);
        largest = std::max(largest, std::fabs(x[c]));
    }
    out.scale = finite ? ref::f32_to_f16(largest / 127) : std::uint16_t{0x7e00};
    const float scale = ref::f16_to_f32(out.scale);
    const bool usable = finite && scale > 0 && std::isfinite(scale);
    for (std::size_t c = 0; c < packed_cols; ++c) {
        const float q = usable ? std::clamp(std::nearbyint(x[c] / scale), -127.0F, 127.0F) : 0.0F;
        out.code[c] = static_cast<Byte>(128 + static_cast<int>(q));
    }
}

// 6-bit scale and min of group i of q4_k and q5_k, times d and dmin.
void k4_scales(const Byte* block, std::size_t i, RowBlock& out) {
    const Byte* s = block + 4;
    const int scale = i < 4 ? s[i] & 63 : (s[i + 4] & 0xf) | (s[i - 4] >> 6) << 4;
    const int min = i < 4 ? s[i + 4] & 63 : (s[i + 4] >> 4) | (s[i] >> 6) << 4;
    out.scale = ref::f32_to_f16(ref::f16_to_f32(load<std::uint16_t>(block)) * static_cast<float>(scale));
    out.min = ref::f32_to_f16(-(ref::f16_to_f32(load<std::uint16_t>(block + 2)) * static_cast<float>(min)));
}

// Block b of the row at w, `cols` columns of it there.
void read_block(DType type, const Byte* w, std::size_t b, std::size_t cols, RowBlock& out) {
    const DTypeInfo& info = dtype_info(type);
    out.min = 0;
    switch (type) {
        case DType::q4_0:
        case DType::q4_1: {
            const std::size_t header = type == DType::q4_0 ? 2 : 4;
            const Byte* block = w + b * info.block_bytes;
            out.scale = load<std::uint16_t>(block);
            if (type == DType::q4_1) out.min = load<std::uint16_t>(block + 2);
            for (std::size_t c = 0; c < packed_cols; ++c) out.code[c] = nibble(block + header, c);
            return;
        }
        case DType::q5_0:
        case DType::q5_1: {
            const std::size_t header = type == DType::q5_0 ? 2 : 4;
            const Byte* block = w + b * info.block_bytes;
            out.scale = load<std::uint16_t>(block);
            if (type == DType::q5_1) out.min = load<std::uint16_t>(block + 2);
            const auto high = load<std::uint32_t>(block + header);
            for (std::size_t c = 0; c < packed_cols; ++c)
                out.code[c] = static_cast<Byte>(nibble(block + header + 4, c) | ((high >> c) & 1) << 4);
            return;
        }
        case DType::q8_0: {
            const Byte* block = w + b * info.block_bytes;
            out.scale = load<std::uint16_t>(block);
            for (std::size_t c = 0; c < packed_cols; ++c) out.code[c] = block[2 + c] ^ 0x80;
            return;
        }
        case DType::iq4_nl: {
            const Byte* block = w + b * info.block_bytes;
            Byte plain[18];  // the same codes with a scale of 1 decode to the table's integers
            std::memcpy(plain, block, sizeof plain);
            const std::uint16_t one = 0x3c00;
            std::memcpy(plain, &one, sizeof one);
            float values[packed_cols];
            ref::dequantize(type, plain, values, packed_cols);
            out.scale = load<std::uint16_t>(block);
            for (std::size_t c = 0; c < packed_cols; ++c)
                out.code[c] = static_cast<Byte>(128 + static_cast<int>(values[c]));
            return;
        }
        case DType::q4_k:
        case DType::q5_k: {
            const Byte* block = w + b / 8 * info.block_bytes;
            const std::size_t group = b % 8;
            k4_scales(block, group, out);
            const Byte* qs = block + (type == DType::q4_k ? 16 : 48) + 32 * (group / 2);
            for (std::size_t c = 0; c < packed_cols; ++c) {
                out.code[c] = static_cast<Byte>(group % 2 ? qs[c] >> 4 : qs[c] & 0xf);
                if (type == DType::q5_k)
                    out.code[c] = static_cast<Byte>(out.code[c] | ((block[16 + c] >> group) & 1) << 4);
            }
            return;
        }
        default: {
            float values[256] = {};
            if (info.block_elems == 1) {
                const std::size_t first = b * packed_cols, n = std::min(packed_cols, cols - first);
                ref::dequantize(type, w + dtype_bytes(type, first), values, n);
                return round_to_8_bits(values, out);
            }
            ref::dequantize(type, w + b / 8 * info.block_bytes, values, 256);
            return round_to_8_bits(values + b % 8 * packed_cols, out);
        }
    }
}

void write_block(const PackingInfo& info, const RowBlock& in, std::size_t r, Byte* block) {
    if (info.bits == 8) {
        for (std::size_t j = 0; j < 8; ++j) std::memcpy(block + 64 * j + 4 * r, in.code + 4 * j, 4);
    } else {
        for (std::size_t p = 0; p < 4; ++p)
            for (std::size_t i = 0; i < 4; ++i)
                block[64 * p + 4 * r + i] =
                    static_cast<Byte>((in.code[4 * p + i] & 0xf) | (in.code[16 + 4 * p + i] & 0xf) << 4);
    }
    if (info.bits == 5) {
        for (std::size_t c = 0; c < packed_cols; ++c) {
            const std::size_t bit = 4 * r + c % 4;  // of word c / 4
            Byte& byte = block[256 + 8 * (c / 4) + bit / 8];
            byte = static_cast<Byte>(byte | (in.code[c] >> 4) << bit % 8);
        }
    }
    std::memcpy(block + info.code_bytes + 2 * r, &in.scale, 2);
    if (info.has_min) std::memcpy(block + info.code_bytes + 32 + 2 * r, &in.min, 2);
}

// Formats whose bytes are already in order within a row: a transpose of 32-bit words.
template <std::size_t Words, std::size_t Header, std::uint32_t Flip>
void transpose_block(const Byte* w, std::size_t row_bytes, Byte* block) {
    for (std::size_t r = 0; r < packed_rows; ++r) {
        const Byte* src = w + r * row_bytes;
        for (std::size_t j = 0; j < Words; ++j) {
            const std::uint32_t word = load<std::uint32_t>(src + Header + 4 * j) ^ Flip;
            std::memcpy(block + 64 * j + 4 * r, &word, 4);
        }
        std::memcpy(block + 64 * Words + 2 * r, src, 2);
        if constexpr (Header == 4) std::memcpy(block + 64 * Words + 32 + 2 * r, src + 2, 2);
    }
}

void pack_group(DType type, const Byte* w, std::size_t row_bytes, std::size_t rows, std::size_t cols, Byte* out) {
    const PackingInfo& info = packing_info(packing_of(type));
    const std::size_t blocks = (cols + packed_cols - 1) / packed_cols, step = dtype_info(type).block_bytes;
    for (std::size_t b = 0; b < blocks; ++b, out += info.block_bytes) {
        if (rows == packed_rows && type == DType::q4_0) {
            transpose_block<4, 2, 0>(w + b * step, row_bytes, out);
        } else if (rows == packed_rows && type == DType::q4_1) {
            transpose_block<4, 4, 0>(w + b * step, row_bytes, out);
        } else if (rows == packed_rows && type == DType::q8_0) {
            transpose_block<8, 2, 0x80808080>(w + b * step, row_bytes, out);
        } else {
            std::memset(out, 0, info.block_bytes);
            RowBlock row{};
            for (std::size_t r = 0; r < rows; ++r) {
                read_block(type, w + r * row_bytes, b, cols, row);
                write_block(info, row, r, out);
            }
        }
    }
}

}  // namespace

const PackingInfo& packing_info(Packing packing) noexcept { return kInfo[static_cast<std::size_t>(packing)]; }

Packing packing_of(DType type) noexcept {
    switch (type) {
        case DType::q4_0:
            return Packing::u4;
        case DType::q4_1:
        case DType::q4_k:
            return Packing::u4_min;
        case DType::q5_0:
            return Packing::u5;
        case DType::q5_1:
        case DType::q5_k:
            return Packing::u5_min;
        default:
            return Packing::u8;
    }
}

std::size_t packed_bytes(Packing packing, std::size_t rows, std::size_t cols) noexcept {
    const std::size_t groups = (rows + packed_rows - 1) / packed_rows, blocks = (cols + packed_cols - 1) / packed_cols;
    return groups * blocks * packing_info(packing).block_bytes;
}

void pack(DType type, const void* w, std::size_t row_bytes, std::size_t rows, std::size_t cols, std::size_t group_begin,
          std::size_t group_end, void* packed) noexcept {
    const std::size_t group_bytes = packed_bytes(packing_of(type), packed_rows, cols);
    for (std::size_t group = group_begin; group < group_end; ++group) {
        const std::size_t row = group * packed_rows;
        pack_group(type, static_cast<const Byte*>(w) + row * row_bytes, row_bytes, std::min(packed_rows, rows - row),
                   cols, static_cast<Byte*>(packed) + group * group_bytes);
    }
}

}  // namespace hetero::kernels
