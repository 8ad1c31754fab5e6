// How the values of a block of the KV state lie in memory: widened as they are loaded, rounded as they are stored.
// Included by generic.h.
#pragma once

namespace hetero::kernels::HETERO_ISA {
namespace {

// 2^(e - bits) of a normal x = 1.m * 2^e: half a unit in the last of `bits` places.
HETERO_INLINE float half_unit(float x, int bits) {
    std::uint32_t word = 0;
    std::memcpy(&word, &x, 4);
    word = (word & 0x7F800000U) - (static_cast<std::uint32_t>(bits) << 23);
    std::memcpy(&x, &word, 4);
    return x;
}

// How a type lies in memory. beyond: the smallest magnitude that it rounds to infinity.
struct AsF32 {
    static HETERO_INLINE float rounded_away(float) { return 0; }
    static constexpr std::size_t kBytes = 4;
    static constexpr float kBeyond = __builtin_huge_valf();
    static HETERO_INLINE F32x16 get(const Byte* p) { return load(reinterpret_cast<const float*>(p)); }
    static HETERO_INLINE void put(Byte* p, F32x16 v) { store(reinterpret_cast<float*>(p), v); }
};
struct AsF16 {
    // The most that rounding a magnitude up to `largest` takes away.
    static HETERO_INLINE float rounded_away(float largest) {
        return half_unit(largest < 0x1p-14F ? 0x1p-14F : largest, 11);
    }
    static constexpr std::size_t kBytes = 2;
    static constexpr int kInfinity = 0x7C00;
    static constexpr float kBeyond = 65520;
    static HETERO_INLINE F32x16 get(const Byte* p) { return load_f16(p); }
    static HETERO_INLINE void put(Byte* p, F32x16 v) { store_f16(p, v); }
    static void widen(const std::uint16_t* bits, float* x, std::size_t n) { f16_to_f32(bits, x, n); }
};
struct AsBf16 {
    static HETERO_INLINE float rounded_away(float largest) {
        return half_unit(largest < 0x1p-100F ? 0x1p-100F : largest, 8);
    }
    static constexpr std::size_t kBytes = 2;
    static constexpr int kInfinity = 0x7F80;
    static constexpr float kBeyond = 0x1.FFp127F;
    static HETERO_INLINE F32x16 get(const Byte* p) { return load_bf16(p); }
    static HETERO_INLINE void put(Byte* p, F32x16 v) { store_bf16(p, v); }
    static void widen(const std::uint16_t* bits, float* x, std::size_t n) { bf16_to_f32(bits, x, n); }
};

template <class T>
HETERO_INLINE F32x16 get(const Byte* p, std::size_t n) {  // n < 16, the others are zero
    Byte last[kLanes * T::kBytes] = {};
    std::memcpy(last, p, n * T::kBytes);
    return T::get(last);
}
template <class T>
HETERO_INLINE F32x16 get_some(const Byte* p, std::size_t i, std::size_t n) {  // the lanes from i on that are below n
    if (i + kLanes <= n) return T::get(p + i * T::kBytes);
    return i < n ? get<T>(p + i * T::kBytes, n - i) : zero();
}
template <class T>
HETERO_INLINE void put(Byte* p, F32x16 v, std::size_t n) {
    Byte last[kLanes * T::kBytes];
    T::put(last, v);
    std::memcpy(p, last, n * T::kBytes);
}
template <class T>
HETERO_INLINE const Byte* row_of(const KvValues& x, std::size_t row) {
    return static_cast<const Byte*>(x.data) + row * x.stride * T::kBytes;
}
HETERO_INLINE void raise(float* error, F32x16 worst) {
    const float found = max_lane(worst);
    if (found > *error) *error = found;
}

// Memory is read this far ahead of where it is worked on: the processor's own prefetching reaches half of its rate.
constexpr std::size_t kReadAhead = 2048;
HETERO_INLINE void prefetch(const Byte* p) { __builtin_prefetch(p + kReadAhead); }
// What lies `ahead` bytes further, in steps of a cache line: blocks that are read twice have the next one fetched while
// their codes are made, which takes longer than their extremes.
HETERO_INLINE void prefetch_some(const Byte* p, std::size_t bytes, std::size_t ahead) {
    for (std::size_t i = 0; i < bytes; i += 64) __builtin_prefetch(p + i + ahead);
}

// What is worked on next is fetched while something else is, in the order of memory, a little at a time: asked for more
// than it can give, memory holds up the work as well. Rows of so many bytes.
class RowsAhead {
public:
    HETERO_INLINE RowsAhead() = default;
    HETERO_INLINE RowsAhead(const Byte* first, std::size_t rows, std::size_t stride, std::size_t row_bytes)
        : row_(first), stride_(stride), row_bytes_(row_bytes), rows_(rows) {
        if (stride == row_bytes) row_bytes_ *= rows_, rows_ = 1;
    }
    HETERO_INLINE void fetch(std::size_t lines) {  // as long as there are some
        if (rows_ == 0) return;
        for (std::size_t i = 0; i < lines; ++i) __builtin_prefetch(row_ + at_ + i * kLine);
        at_ += lines * kLine;
        if (at_ < row_bytes_) return;
        at_ = 0;
        row_ += stride_;
        --rows_;
    }

private:
    static constexpr std::size_t kLine = 64;
    const Byte* row_ = nullptr;
    std::size_t stride_ = 0, row_bytes_ = 0, rows_ = 0, at_ = 0;
};

// Bytes on their way past the caches: gathered until they fill lines of memory, which are written as a whole. Those of
// one add() leave with the next, as lines cannot be read at full speed right after they were written in pieces.
class Outgoing {
public:
    static constexpr std::size_t kRoom = 8192;

    explicit HETERO_INLINE Outgoing(void* to)
        : foreign_(reinterpret_cast<std::uintptr_t>(to) % kLine),
          begin_(kLine - foreign_),
          to_(static_cast<Byte*>(to) - foreign_) {}
    // Where so many bytes go, up to kRoom; then add() what came. Aligned to a line as long as whole lines come.
    HETERO_INLINE Byte* place(std::size_t bytes) {
        if (end_ + bytes > kLine + kRoom) {
            stream_to(end_);
            Byte rest[kLine];
            std::memcpy(rest, lines_ + begin_, kLine);
            begin_ = kLine - (end_ - begin_);
            std::memcpy(lines_ + begin_, rest, kLine);
            end_ = kLine;
        }
        return lines_ + end_;
    }
    HETERO_INLINE void add(std::size_t bytes) {
        stream_to(end_);
        end_ += bytes;
    }
    HETERO_INLINE void end() {
        stream_to(end_);
        std::memcpy(to_ + foreign_, lines_ + begin_ + foreign_, end_ - begin_ - foreign_);
        stream_end();
    }

private:
    static constexpr std::size_t kLine = 64;

    HETERO_INLINE void stream_to(std::size_t end) {
        if (foreign_ != 0 && begin_ + kLine <= end) {
            std::memcpy(to_ + foreign_, lines_ + begin_ + foreign_, kLine - foreign_);
            foreign_ = 0;
            begin_ += kLine, to_ += kLine;
        }
        for (; begin_ + kLine <= end; begin_ += kLine, to_ += kLine) stream_line(to_, lines_ + begin_);
    }

    alignas(kLine) Byte lines_[kLine + kRoom + kLine];
    std::size_t foreign_;              // the first bytes of the first line, which are not ours
    std::size_t begin_, end_ = kLine;  // what waits, in lines_
    Byte* to_;
};

// Where rows go, up to step() of them at a time: to their places, or past the caches if there are no gaps between them.
class RowsOut {
public:
    HETERO_INLINE RowsOut(void* to, std::size_t row_bytes, bool streaming, std::size_t step = kLanes)
        : to_(static_cast<Byte*>(to)),
          row_bytes_(row_bytes),
          step_(step),
          streaming_(streaming && row_bytes != 0 && row_bytes <= Outgoing::kRoom),
          lines_(to) {
        if (streaming_ && step * row_bytes > Outgoing::kRoom) step_ = Outgoing::kRoom / row_bytes;
    }
    [[nodiscard]] HETERO_INLINE std::size_t step() const { return step_; }
    HETERO_INLINE Byte* place(std::size_t row) {
        return streaming_ ? lines_.place(step_ * row_bytes_) : to_ + row * row_bytes_;
    }
    HETERO_INLINE void add(std::size_t rows) {
        if (streaming_) lines_.add(rows * row_bytes_);
    }
    HETERO_INLINE void end() {
        if (streaming_) lines_.end();
    }

private:
    Byte* to_;
    std::size_t row_bytes_, step_;
    bool streaming_;
    Outgoing lines_;
};

// f<N> for rows of N values where heads usually have that many, so that they need no loop; else f<0>.
template <std::size_t N>
struct Length {
    static constexpr std::size_t value = N;
};
template <class F>
HETERO_INLINE auto with_length(std::size_t n, F f) {
    return n == 64 ? f(Length<64>{}) : n == 128 ? f(Length<128>{}) : f(Length<0>{});
}
template <std::size_t N, class Values>
HETERO_INLINE Values of_length(Values x) {
    if (N != 0) x.n = N;
    return x;
}

// f with the type that a block has, AsF16{} for one.
template <class F>
HETERO_INLINE auto with_type(DType type, F f) {
    return type == DType::f16 ? f(AsF16{}) : type == DType::bf16 ? f(AsBf16{}) : f(AsF32{});
}

}  // namespace
}  // namespace hetero::kernels::HETERO_ISA
