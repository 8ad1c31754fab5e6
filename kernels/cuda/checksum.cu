// CRC-32C of device memory. A CRC is linear: that of the whole is the sum, over pieces, of a piece's CRC times x to the
// power of the bits behind it, modulo the polynomial. Bits are reflected: the highest bit of a word is x^0.
// W. Peterson, D. Brown, Cyclic codes for error detection (1961); the polynomial is Castagnoli's (RFC 3720, B.4).
#include "kernels/cuda/launch.h"

namespace hetero::kernels::HETERO_DEVICE_BACKEND {
namespace {

constexpr int threads = 256;
constexpr std::size_t segment_bytes = 256;  // of a thread
constexpr std::uint32_t polynomial = 0x82F63B78U, one = 0x80000000U;

__host__ __device__ constexpr std::uint32_t times_x(std::uint32_t a) {
    return (a & 1U) != 0 ? (a >> 1U) ^ polynomial : a >> 1U;
}
__host__ __device__ constexpr std::uint32_t product(std::uint32_t a, std::uint32_t b) {
    std::uint32_t sum = 0;
    for (std::uint32_t bit = one; bit != 0; bit >>= 1U, b = times_x(b))
        if ((a & bit) != 0) sum ^= b;
    return sum;
}

constexpr int n_powers = 48;
struct Tables {
    std::uint32_t of_byte[256];      // what a byte adds
    std::uint32_t powers[n_powers];  // x^(8 * 2^i)
};
constexpr Tables make_tables() {
    Tables tables{};
    for (std::uint32_t byte = 0; byte < 256; ++byte) {
        std::uint32_t crc = byte;
        for (int bit = 0; bit < 8; ++bit) crc = times_x(crc);
        tables.of_byte[byte] = crc;
    }
    std::uint32_t power = one >> 8U;
    for (std::uint32_t& at : tables.powers) {
        at = power;
        power = product(power, power);
    }
    return tables;
}

// a * x^(8 * bytes)
__device__ std::uint32_t moved(std::uint32_t a, std::size_t bytes, const std::uint32_t* powers) {
    for (int i = 0; bytes != 0; ++i, bytes >>= 1U)
        if ((bytes & 1U) != 0) a = product(powers[i], a);
    return a;
}

// A thread has a segment; the first one adds what a CRC begins and ends with. *crc is 0 before.
__global__ void __launch_bounds__(threads)
    crc32c_segments(Tables tables, const std::uint8_t* data, std::size_t bytes, std::uint32_t* crc) {
    __shared__ Tables shared;
    for (int i = static_cast<int>(threadIdx.x); i < 256; i += threads) shared.of_byte[i] = tables.of_byte[i];
    for (int i = static_cast<int>(threadIdx.x); i < n_powers; i += threads) shared.powers[i] = tables.powers[i];
    __syncthreads();
    const std::size_t segment = std::size_t{blockIdx.x} * threads + threadIdx.x, begin = segment * segment_bytes;
    if (begin >= bytes && segment != 0) return;
    const std::size_t end = begin + segment_bytes < bytes ? begin + segment_bytes : bytes;
    std::uint32_t own = 0;
    for (std::size_t i = begin; i < end; ++i) own = (own >> 8U) ^ shared.of_byte[(own ^ data[i]) & 0xFFU];
    own = moved(own, bytes - end, shared.powers);
    if (segment == 0) own ^= moved(0xFFFFFFFFU, bytes, shared.powers) ^ 0xFFFFFFFFU;
    atomicXor(crc, own);
}

DeviceFault crc32c(DeviceStream stream, const void* data, std::size_t bytes, std::uint32_t* crc) {
    static constexpr Tables tables = make_tables();
    const int device = of(stream).device;
    if (DeviceFault fault = use_device(device)) return fault;
    if (DeviceFault fault =
            fault_of(cudaMemsetAsync(crc, 0, sizeof *crc, of(stream).stream), device, "cudaMemsetAsync"))
        return fault;
    const std::size_t segments = (bytes + segment_bytes - 1) / segment_bytes;
    const Grid grid{dim3(blocks_for(segments == 0 ? 1 : segments, threads)), dim3(threads)};
    return launch(stream, "crc32c", grid, {{"bytes", bytes}}, crc32c_segments, tables,
                  static_cast<const std::uint8_t*>(data), bytes, crc);
}

}  // namespace

void fill_checksum(DeviceOps& ops) { ops.crc32c = crc32c; }

}  // namespace hetero::kernels::HETERO_DEVICE_BACKEND
