// What others measure of the same machine, to hold hw-probe against: a triad by STREAM's rules (J. D. McCalpin,
// https://www.cs.virginia.edu/stream/ref.html: doubles, best of ten after a first one, 24 bytes an element), and
// oneDNN's products of the probe's shape, where oneDNN is installed.
//   bench_machine [THREADS]
#include <algorithm>
#include <barrier>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <memory>
#include <thread>
#include <vector>
#ifdef HETERO_BENCH_DNNL
#include <omp.h>

#include <dnnl.hpp>
#endif

namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point begin) { return std::chrono::duration<double>(Clock::now() - begin).count(); }

constexpr std::size_t elements = 32U << 20;  // 256 MiB an array

double triad_gb_per_s(int threads) {
    const auto array = [] { return std::unique_ptr<double[]>(new double[elements]); };  // not touched yet
    const auto a = array(), b = array(), c = array();
    std::barrier together(threads);
    double best = std::numeric_limits<double>::infinity();
    const auto run = [&](int thread) {
        const std::size_t part = elements / static_cast<std::size_t>(threads);
        const std::size_t begin = part * static_cast<std::size_t>(thread), end = begin + part;
        double* __restrict x = a.get(), * __restrict y = b.get(), * __restrict z = c.get();
        for (std::size_t i = begin; i < end; ++i) x[i] = 1, y[i] = 2, z[i] = 0;
        for (int round = 0; round < 11; ++round) {
            together.arrive_and_wait();
            const auto start = Clock::now();
            for (std::size_t i = begin; i < end; ++i) x[i] = y[i] + 3.0 * z[i];
            together.arrive_and_wait();
            if (thread == 0 && round > 0) best = std::min(best, seconds_since(start));
        }
    };
    std::vector<std::thread> others;
    for (int thread = 1; thread < threads; ++thread) others.emplace_back(run, thread);
    run(0);
    for (std::thread& other : others) other.join();
    return 24e-9 * static_cast<double>(elements) / best;
}

#ifdef HETERO_BENCH_DNNL
// y [tokens][rows] = x [tokens][cols] * w [cols][rows]. Layout of the weights: `any`, what oneDNN chooses, which it is
// given ready made; or `ba`, [rows][cols], as a model's file has them.
double product_gflop_per_s(dnnl::memory::data_type type, int tokens, int threads,
                           dnnl::memory::format_tag layout = dnnl::memory::format_tag::any) {
    using dnnl::memory;
    constexpr memory::dim rows = 1024, cols = 2048;
    omp_set_num_threads(threads);
    const dnnl::engine engine(dnnl::engine::kind::cpu, 0);
    dnnl::stream stream(engine);
    const auto desc = [](memory::dim m, memory::dim n, memory::data_type t, memory::format_tag tag) {
        return memory::desc({m, n}, t, tag);
    };
    const bool bytes = type == memory::data_type::s8;
    const auto in = bytes ? memory::data_type::u8 : type;
    const auto out = bytes ? memory::data_type::s32 : memory::data_type::f32;
    const dnnl::matmul::desc wanted(desc(tokens, cols, in, memory::format_tag::ab), desc(cols, rows, type, layout),
                                    desc(tokens, rows, out, memory::format_tag::ab));
    const dnnl::matmul::primitive_desc primitive(wanted, engine);
    const memory x(primitive.src_desc(), engine), w(primitive.weights_desc(), engine), y(primitive.dst_desc(), engine);
    std::memset(x.get_data_handle(), 0, primitive.src_desc().get_size());
    std::memset(w.get_data_handle(), 0, primitive.weights_desc().get_size());
    const dnnl::matmul product(primitive);
    double best = std::numeric_limits<double>::infinity();
    for (const auto begin = Clock::now(); seconds_since(begin) < 0.3;) {
        const auto start = Clock::now();
        product.execute(stream, {{DNNL_ARG_SRC, x}, {DNNL_ARG_WEIGHTS, w}, {DNNL_ARG_DST, y}});
        stream.wait();
        best = std::min(best, seconds_since(start));
    }
    return 2e-9 * rows * cols * tokens / best;
}
#endif

}  // namespace

int main(int argc, char** argv) {
    const int all = argc > 1 ? std::atoi(argv[1]) : static_cast<int>(std::thread::hardware_concurrency());
    for (const int threads : {1, all}) {
        std::printf("triad %d %.4g\n", threads, triad_gb_per_s(threads));
#ifdef HETERO_BENCH_DNNL
        using Type = dnnl::memory::data_type;
        std::printf("f32 %d %.4g\n", threads, product_gflop_per_s(Type::f32, 128, threads));
        std::printf("f32_rows %d %.4g\n", threads,
                    product_gflop_per_s(Type::f32, 128, threads, dnnl::memory::format_tag::ba));
        std::printf("bf16 %d %.4g\n", threads, product_gflop_per_s(Type::bf16, 512, threads));
        std::printf("int8 %d %.4g\n", threads, product_gflop_per_s(Type::s8, 512, threads));
#endif
        if (all <= 1) break;
    }
    return 0;
}
