// The rates of the GPU's kernels beside its roofs.
//   bench_cuda [DEVICE]        default: 0
// Roofs: of memory, a copy on the device (bytes read and written); of products, the fastest of some large bf16
// products. Medians of eleven runs, each long enough to be timed by the device's own events.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "kernels/api/device.h"

using namespace hetero::kernels;

namespace {

const DeviceOps* gpu = nullptr;
DeviceStream stream = nullptr;
int device = 0;

void must(const DeviceFault& fault) {
    if (!fault) return;
    std::fprintf(stderr, "bench_cuda: %s\n", fault.message().c_str());
    std::exit(1);
}

// Device memory with bytes that are small numbers in every type; kept to the end.
template <class T = std::uint8_t>
T* take(std::size_t n, std::uint8_t byte = 0x11) {
    void* memory = nullptr;
    must(gpu->allocate(device, n * sizeof(T), &memory));
    must(gpu->fill(stream, memory, byte, n * sizeof(T)));
    return static_cast<T*>(memory);
}
void give_back(void* memory) { must(gpu->free(device, memory)); }

// Median milliseconds of a call.
template <class Call>
double time_of(const Call& call) {
    DeviceEvent begin = nullptr, end = nullptr;
    must(gpu->create_event(device, DeviceEventUse::time, &begin));
    must(gpu->create_event(device, DeviceEventUse::time, &end));
    constexpr float long_enough = 5;
    std::size_t repeat = 1;
    std::vector<double> runs;
    while (runs.size() < 11) {
        must(gpu->record(begin, stream));
        for (std::size_t i = 0; i < repeat; ++i) must(call());
        must(gpu->record(end, stream));
        must(gpu->synchronize_event(end));
        float ms = 0;
        must(gpu->elapsed_ms(begin, end, &ms));
        if (ms < long_enough && repeat < 10000) {
            repeat *= 2;
            runs.clear();
        } else {
            runs.push_back(static_cast<double>(ms) / static_cast<double>(repeat));
        }
    }
    must(gpu->destroy_event(begin));
    must(gpu->destroy_event(end));
    std::nth_element(runs.begin(), runs.begin() + 5, runs.end());
    return runs[5];
}

void print(const std::string& name, double rate, const char* unit, double roof) {
    std::printf("%-52s %10.1f %-8s %5.1f %%\n", name.c_str(), rate, unit, 100 * rate / roof);
}

double memory_roof() {
    const std::size_t bytes = std::size_t{1} << 30;
    auto* from = take(bytes);
    auto* to = take(bytes);
    const double ms = time_of([&] { return gpu->copy(stream, to, from, bytes); });
    give_back(from);
    give_back(to);
    return 2 * static_cast<double>(bytes) / ms / 1e6;
}

double host_copy(bool to_device) {
    const std::size_t bytes = std::size_t{256} << 20;
    void* host = nullptr;
    must(gpu->allocate_host(device, bytes, &host));
    auto* memory = take(bytes);
    const double ms = time_of(
        [&] { return to_device ? gpu->copy(stream, memory, host, bytes) : gpu->copy(stream, host, memory, bytes); });
    give_back(memory);
    must(gpu->free_host(device, host));
    return static_cast<double>(bytes) / ms / 1e6;
}

// TFLOP/s of `tokens` times a matrix.
double product(DType type, DeviceInput input, std::size_t rows, std::size_t cols, std::size_t tokens) {
    const std::size_t row_bytes = dtype_bytes(type, cols), size = input == DeviceInput::i8 ? 1 : 2;
    DeviceMatrix w{type, take(rows * row_bytes), rows, cols, row_bytes, nullptr, nullptr};
    auto* scale = take<float>(tokens);
    if (input == DeviceInput::i8) w.row_scale = take<float>(rows);
    const DeviceRows x{input, take(tokens * cols * size), cols, scale};
    auto* y = take<float>(tokens * rows);
    const std::size_t bytes = std::max(gpu->gemm_scratch_bytes(w, input, tokens), 2 * rows * cols);
    auto* scratch = take(bytes);
    const double ms = time_of([&] { return gpu->gemm(stream, w, x, tokens, y, rows, false, scratch, bytes); });
    for (const void* one : {w.data, x.data, static_cast<const void*>(w.row_scale)}) give_back(const_cast<void*>(one));
    for (void* one : {static_cast<void*>(scale), static_cast<void*>(y), static_cast<void*>(scratch)}) give_back(one);
    return 2e-9 * static_cast<double>(rows) * static_cast<double>(cols) * static_cast<double>(tokens) / ms;
}

// GB/s of weights read, by gemv, or from bf16 inputs by gemm. Enough matrices that they are not in the L2 cache.
double few(DType type, std::size_t rows, std::size_t cols, std::size_t tokens, bool by_gemv, std::size_t l2_bytes) {
    const std::size_t row_bytes = dtype_bytes(type, cols), bytes = rows * row_bytes, copies = 1 + 4 * l2_bytes / bytes;
    auto* weights = take(bytes * copies);
    auto* x = take<float>(tokens * cols);
    auto* y = take<float>(tokens * rows);
    const std::size_t scratch_bytes = 2 * rows * (cols + 8);
    auto* scratch = take(scratch_bytes);
    std::size_t turn = 0;
    const double ms = time_of([&] {
        const DeviceMatrix w{type, weights + turn++ % copies * bytes, rows, cols, row_bytes, nullptr, nullptr};
        if (by_gemv) return gpu->gemv(stream, w, x, cols, tokens, y, rows, false);
        return gpu->gemm(stream, w, {DeviceInput::bf16, x, cols, nullptr}, tokens, y, rows, false, scratch,
                         scratch_bytes);
    });
    give_back(weights);
    give_back(x);
    give_back(y);
    give_back(scratch);
    return static_cast<double>(bytes) / ms / 1e6;
}

double norms(std::size_t tokens, std::size_t n) {
    auto* x = take<float>(tokens * n);
    auto* w = take<float>(n);
    auto* y = take<std::uint16_t>(tokens * n);
    const double ms = time_of([&] {
        return gpu->norm(stream, {DeviceNorm::Kind::rms, w, nullptr, 1e-5F}, {x, n, n}, tokens, 1, n, false,
                         {nullptr, 0, y, n, DType::bf16});
    });
    give_back(x);
    give_back(w);
    give_back(y);
    return static_cast<double>(tokens * n * 6) / ms / 1e6;
}

// GB/s of logits read.
double likeliest(std::size_t tokens, std::size_t vocab, std::size_t k) {
    auto* logits = take<float>(tokens * vocab);
    std::vector<float> row(vocab);
    for (std::size_t i = 0; i < vocab; ++i) row[i] = static_cast<float>(i * 2654435761U % 65536U) / 4096;
    for (std::size_t i = 0; i < tokens; ++i) must(gpu->copy(stream, logits + i * vocab, row.data(), vocab * 4));
    must(gpu->synchronize(stream));
    auto* index = take<std::int32_t>(tokens * k);
    auto* value = take<float>(tokens * k);
    auto* total = take<double>(tokens);
    auto* odd = take<std::uint32_t>(tokens);
    auto* scratch = take(gpu->top_k_scratch_bytes(tokens, vocab, k));
    const double ms = time_of([&] {
        return gpu->top_k(stream, logits, vocab, tokens, vocab, k, k == 1 ? 0 : 1.25, {index, value, total, odd},
                          scratch);
    });
    for (void* one : {static_cast<void*>(logits), static_cast<void*>(index), static_cast<void*>(value),
                      static_cast<void*>(total), static_cast<void*>(odd), static_cast<void*>(scratch)})
        give_back(one);
    return static_cast<double>(tokens * vocab * 4) / ms / 1e6;
}

constexpr std::size_t kv_heads = 8, group = 4, heads = kv_heads * group, dim = 128;  // of the attention measured here

std::size_t row_bytes_of(KvCodes codes) {
    return codes == KvCodes::floats ? 2 * dim : is_paired(codes) ? dim / 2 : dim;
}

// Milliseconds of attention for the last `tokens` of each of `sequences` with `context` tokens: of one by the kernel
// for decode, else by that for prefill. Pages in order.
double attend(KvCodes codes, std::size_t sequences, std::size_t context, std::size_t tokens) {
    const std::size_t page_tokens = kKvPageTokens, n_tokens = sequences * tokens;
    DeviceKv part;
    part.n_heads = kv_heads;
    part.head_dim = dim;
    part.codes = codes;
    part.token_stride = dim;
    const bool quantized = codes != KvCodes::floats;
    const std::size_t row_bytes = row_bytes_of(codes);
    part.scale_offset = page_tokens * row_bytes;
    part.group = quantized ? dim : 0;
    part.head_bytes = part.scale_offset + (quantized ? 2 * page_tokens : 0);
    const std::size_t pages = (context + page_tokens - 1) / page_tokens;
    part.page_bytes = 2 * kv_heads * part.head_bytes;
    part.memory = reinterpret_cast<std::byte*>(take(sequences * pages * part.page_bytes));
    std::vector<std::uint32_t> table(sequences * pages);
    std::vector<std::int32_t> sequence(n_tokens), position(n_tokens);
    for (std::size_t i = 0; i < table.size(); ++i) table[i] = static_cast<std::uint32_t>(i);
    for (std::size_t i = 0; i < n_tokens; ++i) {
        sequence[i] = static_cast<std::int32_t>(i / tokens);
        position[i] = static_cast<std::int32_t>(context - tokens + i % tokens);
    }
    auto* d_table = take<std::uint32_t>(table.size());
    auto* d_sequence = take<std::int32_t>(n_tokens);
    auto* d_position = take<std::int32_t>(n_tokens);
    must(gpu->copy(stream, d_table, table.data(), table.size() * 4));
    must(gpu->copy(stream, d_sequence, sequence.data(), n_tokens * 4));
    must(gpu->copy(stream, d_position, position.data(), n_tokens * 4));
    must(gpu->synchronize(stream));
    const DeviceSequences where{d_table, pages, nullptr, d_sequence, d_position, n_tokens};
    auto* q = take<float>(n_tokens * heads * dim);
    auto* out = take<float>(n_tokens * heads * dim);
    DeviceAttention attention;
    attention.q = {q, heads * dim, dim};
    attention.out = {out, heads * dim, dim};
    attention.k = attention.v = part;
    attention.v.offset = kv_heads * part.head_bytes;
    attention.n_heads = heads;
    attention.query_dim = attention.output_dim = dim;
    attention.scale = 0.088F;
    const bool decode = tokens == 1;
    auto* scratch = take(gpu->attention_scratch_bytes(attention, n_tokens, context, decode) + 1);
    const double ms = time_of([&] {
        return (decode ? gpu->attention_decode : gpu->attention_prefill)(stream, attention, where, context, scratch);
    });
    for (void* one :
         {static_cast<void*>(part.memory), static_cast<void*>(d_table), static_cast<void*>(d_sequence),
          static_cast<void*>(d_position), static_cast<void*>(q), static_cast<void*>(out), static_cast<void*>(scratch)})
        give_back(one);
    return ms;
}

// GB/s of K and V read by a step of decode.
double step(KvCodes codes, std::size_t sequences, std::size_t context) {
    const std::size_t token_bytes = row_bytes_of(codes) + (codes == KvCodes::floats ? 0 : 2);
    return static_cast<double>(sequences * context * 2 * kv_heads * token_bytes) /
           attend(codes, sequences, context, 1) / 1e6;
}
// TFLOP/s of a whole prompt, keys in sight alone.
double prompt(KvCodes codes, std::size_t tokens) {
    return 2e-9 * static_cast<double>(heads * dim * tokens * (tokens + 1)) / attend(codes, 1, tokens, tokens);
}

// GB/s of values read and codes written, and the other way round.
double code_state(const DeviceCodec& codec, bool back) {
    const std::size_t tokens = 65536, values = tokens * kv_heads * dim,
                      groups = values / (codec.group != 0 ? codec.group : codec.group_tokens);
    const std::size_t row_bytes =
        codec.mean_width != 0 ? dim * static_cast<std::size_t>(codec.mean_width) / 8 : row_bytes_of(codec.codes);
    auto* x = take<std::uint16_t>(values, 0x3C);
    auto* codes = take(2 * values);
    auto* scale = take<std::uint16_t>(groups);
    auto* zero = take<std::uint16_t>(groups);
    auto* place = take<unsigned long long>(1, 0xFF);
    std::uint16_t* zeros = codec.codes == KvCodes::u8 || codec.codes == KvCodes::u4 ? zero : nullptr;
    const double ms = time_of([&] {
        return back ? gpu->kv_dequantize(stream, codec, {codes, scale, zeros}, tokens, kv_heads, dim, DType::f16, x,
                                         place)
                    : gpu->kv_quantize(stream, codec, DType::f16, x, tokens, kv_heads, dim, {codes, scale, zeros},
                                       place);
    });
    for (void* one : {static_cast<void*>(x), static_cast<void*>(codes), static_cast<void*>(scale),
                      static_cast<void*>(zero), static_cast<void*>(place)})
        give_back(one);
    const std::size_t bytes = 2 * values + tokens * kv_heads * row_bytes + groups * (zeros != nullptr ? 4 : 2);
    return static_cast<double>(bytes) / ms / 1e6;
}

}  // namespace

int main(int argc, char** argv) {
    device = argc > 1 ? std::atoi(argv[1]) : 0;
    const char* why_not = nullptr;
    gpu = cuda_ops(&why_not);
    if (gpu == nullptr) {
        std::printf("nothing to measure: %s\n", why_not);
        return 77;
    }
    DeviceInfo info;
    must(gpu->device_info(device, info));
    must(gpu->create_stream(device, &stream));
    std::printf("%s, compute capability %d.%d, driver %d, runtime %d\n\n", info.name.c_str(), info.major, info.minor,
                info.driver_version, info.runtime_version);

    const double memory = memory_roof();
    std::printf("%-52s %10.1f GB/s", "roof: copy on the device", memory);
    if (info.bus_bytes_per_s != 0)
        std::printf("  (%.0f by its clock and width)", static_cast<double>(info.bus_bytes_per_s) / 1e9);
    std::printf("\n");
    for (const bool to : {true, false})
        print(to ? "copy from page-locked memory" : "copy to page-locked memory", host_copy(to), "GB/s", memory);

    double products = 0;
    for (const std::size_t n : {4096, 8192})
        products = std::max(products, product(DType::bf16, DeviceInput::bf16, n, n, n));
    std::printf("%-52s %10.1f TFLOP/s\n", "roof: bf16 products of 4096 or 8192", products);
    struct Shape {
        std::size_t rows, cols;
    };
    for (const auto& [rows, cols] : {Shape{6144, 4096}, {4096, 4096}, {28672, 4096}, {4096, 14336}})
        for (const std::size_t tokens : {512, 4096}) {
            const std::string shape =
                std::to_string(rows) + " x " + std::to_string(cols) + ", " + std::to_string(tokens) + " tokens";
            print("gemm bf16, " + shape, product(DType::bf16, DeviceInput::bf16, rows, cols, tokens), "TFLOP/s",
                  products);
            print("gemm q4_k, " + shape, product(DType::q4_k, DeviceInput::bf16, rows, cols, tokens), "TFLOP/s",
                  products);
            print("gemm i8, " + shape, product(DType::i8, DeviceInput::i8, rows, cols, tokens), "TFLOP/s", products);
        }
    for (const DType type : {DType::f32, DType::f16, DType::bf16, DType::i8, DType::q8_0, DType::q4_0, DType::q4_1,
                             DType::q5_0, DType::q4_k, DType::q5_k, DType::q6_k})
        for (const std::size_t tokens : {1, 4, 8})
            print(
                "gemv " + std::string(dtype_info(type).name) + ", 28672 x 4096, " + std::to_string(tokens) + " tokens",
                few(type, 28672, 4096, tokens, true, info.l2_bytes), "GB/s", memory);
    for (const DType type : {DType::f16, DType::i8, DType::q8_0, DType::q4_0, DType::q4_k, DType::q6_k})
        for (const auto& [rows, cols] : {Shape{28672, 4096}, {4096, 4096}})
            for (const std::size_t tokens : {16, 32, 64})
                print("gemm " + std::string(dtype_info(type).name) + " decoded, " + std::to_string(rows) + " x " +
                          std::to_string(cols) + ", " + std::to_string(tokens) + " tokens",
                      few(type, rows, cols, tokens, false, info.l2_bytes), "GB/s", memory);
    print("rms norm to bf16, 4096 x 4096", norms(4096, 4096), "GB/s", memory);
    for (const std::size_t tokens : {1, 32})
        for (const std::size_t k : {1, 40, 256})
            print("the likeliest " + std::to_string(k) + " of 128256, " + std::to_string(tokens) + " rows",
                  likeliest(tokens, 128256, k), "GB/s", memory);
    struct Codes {
        const char* name;
        KvCodes codes;
    };
    for (const auto& [name, codes] :
         {Codes{"f16", KvCodes::floats}, {"int8", KvCodes::i8}, {"int4", KvCodes::i4}, {"fp8", KvCodes::e4m3fn}}) {
        print(std::string("attention over ") + name + ", 1 sequence of 32768", step(codes, 1, 32768), "GB/s", memory);
        print(std::string("attention over ") + name + ", 32 sequences of 4096", step(codes, 32, 4096), "GB/s", memory);
        print(std::string("attention over ") + name + ", a prompt of 4096", prompt(codes, 4096), "TFLOP/s", products);
    }
    struct Codec {
        const char* name;
        DeviceCodec codec;
    };
    for (const auto& [name, codec] : {Codec{"int8", {KvCodes::i8, dim, 0, false}},
                                      {"had:int8", {KvCodes::i8, dim, 0, true}},
                                      {"had:int4:token:g32:asym", {KvCodes::u4, 32, 0, true}},
                                      {"fp8_e4m3fn", {KvCodes::e4m3fn, dim, 0, false}},
                                      {"wf8:channel:g64:asym", {KvCodes::u8, 0, 64, false, 8}}}) {
        print(std::string("f16 to ") + name, code_state(codec, false), "GB/s", memory);
        print(std::string(name) + " to f16", code_state(codec, true), "GB/s", memory);
    }
    must(gpu->destroy_stream(stream));
}
