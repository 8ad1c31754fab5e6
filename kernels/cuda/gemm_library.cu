#include "kernels/cuda/gemm_library.h"

// The emulator has no such library; nor has a toolkit that was installed without it.
#if !defined(HETERO_EMULATED) && __has_include(<cublasLt.h>)
#include <cublasLt.h>
#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <map>
#include <memory>
#include <new>
#include <string>

namespace hetero::kernels::HETERO_DEVICE_BACKEND {
namespace {

struct Functions {
    decltype(&cublasLtCreate) create;
    decltype(&cublasLtDestroy) destroy;
    decltype(&cublasLtMatmul) multiply;
    decltype(&cublasLtMatmulAlgoGetHeuristic) choose;
    decltype(&cublasLtMatmulDescCreate) create_product;
    decltype(&cublasLtMatmulDescDestroy) destroy_product;
    decltype(&cublasLtMatmulDescSetAttribute) set_product;
    decltype(&cublasLtMatrixLayoutCreate) create_layout;
    decltype(&cublasLtMatrixLayoutDestroy) destroy_layout;
    decltype(&cublasLtMatmulPreferenceCreate) create_preference;
    decltype(&cublasLtMatmulPreferenceDestroy) destroy_preference;
    decltype(&cublasLtMatmulPreferenceSetAttribute) set_preference;
};

template <class F>
bool find(void* handle, const char* name, F& function) {
    function = reinterpret_cast<F>(dlsym(handle, name));
    return function != nullptr;
}

// Null where there is none of the version that the headers are of.
const Functions* functions() {
    static const Functions* const found = []() -> const Functions* {
        static Functions f;
        const std::string name = "libcublasLt.so." + std::to_string(CUBLAS_VER_MAJOR);
        void* handle = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
        if (handle == nullptr) return nullptr;
        const bool all = find(handle, "cublasLtCreate", f.create) && find(handle, "cublasLtDestroy", f.destroy) &&
                         find(handle, "cublasLtMatmul", f.multiply) &&
                         find(handle, "cublasLtMatmulAlgoGetHeuristic", f.choose) &&
                         find(handle, "cublasLtMatmulDescCreate", f.create_product) &&
                         find(handle, "cublasLtMatmulDescDestroy", f.destroy_product) &&
                         find(handle, "cublasLtMatmulDescSetAttribute", f.set_product) &&
                         find(handle, "cublasLtMatrixLayoutCreate", f.create_layout) &&
                         find(handle, "cublasLtMatrixLayoutDestroy", f.destroy_layout) &&
                         find(handle, "cublasLtMatmulPreferenceCreate", f.create_preference) &&
                         find(handle, "cublasLtMatmulPreferenceDestroy", f.destroy_preference) &&
                         find(handle, "cublasLtMatmulPreferenceSetAttribute", f.set_preference);
        return all ? &f : nullptr;
    }();
    return found;
}

// Type, rows, cols, tokens, strides of w, x and y, alignment of all, added to?
using Question = std::array<std::size_t, 9>;

}  // namespace

// A product of one shape as the library has it: y^T [rows][tokens] = w [cols][rows]^T x [cols][tokens], all by columns.
struct Product {
    explicit Product(const Functions& library) : f(library) {}
    ~Product() {
        if (y != nullptr) (void)f.destroy_layout(y);
        if (x != nullptr) (void)f.destroy_layout(x);
        if (w != nullptr) (void)f.destroy_layout(w);
        if (product != nullptr) (void)f.destroy_product(product);
    }
    Product(const Product&) = delete;
    Product& operator=(const Product&) = delete;

    const Functions& f;
    cublasLtMatmulDesc_t product = nullptr;
    cublasLtMatrixLayout_t w = nullptr, x = nullptr, y = nullptr;
    cublasLtMatmulAlgo_t algorithm{};
    bool found = false;
};

struct MatrixLibrary {
    const Functions* f = nullptr;
    cublasLtHandle_t handle = nullptr;
    void* workspace = nullptr;
    std::size_t workspace_bytes = 0;
    bool asked_for_workspace = false;
    std::map<Question, std::unique_ptr<Product>> products;
};

namespace {

struct Types {
    cudaDataType_t input, output;
    cublasComputeType_t compute;
    cudaDataType_t scale;
};

Types types_of(DeviceInput type) {
    switch (type) {
        case DeviceInput::f16:
            return {CUDA_R_16F, CUDA_R_32F, CUBLAS_COMPUTE_32F, CUDA_R_32F};
        case DeviceInput::i8:
            return {CUDA_R_8I, CUDA_R_32I, CUBLAS_COMPUTE_32I, CUDA_R_32I};
        case DeviceInput::e4m3fn:
            return {CUDA_R_8F_E4M3, CUDA_R_32F, CUBLAS_COMPUTE_32F, CUDA_R_32F};
        default:
            return {CUDA_R_16BF, CUDA_R_32F, CUBLAS_COMPUTE_32F, CUDA_R_32F};
    }
}

std::size_t alignment_of(const void* memory, std::size_t stride_bytes) {
    const std::size_t bits = reinterpret_cast<std::uintptr_t>(memory) | stride_bytes | 256;
    return bits & (~bits + 1);
}

// The library's own choice for the shape; `found` stays false where it has none.
void prepare(const MatrixLibrary& library, const Question& question, const Types& types, Product& made) {
    const Functions& f = *library.f;
    const auto [type, rows, cols, tokens, w_stride, x_stride, y_stride, alignment, add] = question;
    const auto signed_of = [](std::size_t n) { return static_cast<std::int64_t>(n); };
    const cublasOperation_t transposed = CUBLAS_OP_T;
    bool ok = f.create_product(&made.product, types.compute, types.scale) == CUBLAS_STATUS_SUCCESS &&
              f.set_product(made.product, CUBLASLT_MATMUL_DESC_TRANSA, &transposed, sizeof transposed) ==
                  CUBLAS_STATUS_SUCCESS &&
              f.create_layout(&made.w, types.input, cols, rows, signed_of(w_stride)) == CUBLAS_STATUS_SUCCESS &&
              f.create_layout(&made.x, types.input, cols, tokens, signed_of(x_stride)) == CUBLAS_STATUS_SUCCESS &&
              f.create_layout(&made.y, types.output, rows, tokens, signed_of(y_stride)) == CUBLAS_STATUS_SUCCESS;
    cublasLtMatmulPreference_t preference = nullptr;
    if (!ok || f.create_preference(&preference) != CUBLAS_STATUS_SUCCESS) return;
    const auto bytes = static_cast<std::uint32_t>(alignment);
    for (const auto attribute :
         {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
          CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES})
        ok = ok && f.set_preference(preference, attribute, &bytes, sizeof bytes) == CUBLAS_STATUS_SUCCESS;
    ok = ok && f.set_preference(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &library.workspace_bytes,
                                sizeof library.workspace_bytes) == CUBLAS_STATUS_SUCCESS;
    cublasLtMatmulHeuristicResult_t result{};
    int n = 0;
    made.found = ok &&
                 f.choose(library.handle, made.product, made.w, made.x, made.y, made.y, preference, 1, &result, &n) ==
                     CUBLAS_STATUS_SUCCESS &&
                 n == 1;
    made.algorithm = result.algo;
    (void)f.destroy_preference(preference);
}

// Memory for products that divide their sums; without it there are the others. Taken by the first product, as many
// streams have none; not while the stream is captured, when no memory can be taken.
void take_workspace(MatrixLibrary& library, cudaStream_t stream) {
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusActive;
    if (library.asked_for_workspace || cudaStreamIsCapturing(stream, &status) != cudaSuccess ||
        status != cudaStreamCaptureStatusNone)
        return;
    library.asked_for_workspace = true;
    constexpr std::size_t wanted = std::size_t{32} << 20;
    if (cudaMalloc(&library.workspace, wanted) == cudaSuccess) {
        library.workspace_bytes = wanted;
    } else {
        library.workspace = nullptr;
        (void)cudaGetLastError();
    }
}

__global__ void add_bias(float* y, std::size_t stride, std::size_t rows, const float* bias) {
    const std::size_t row = std::size_t{blockIdx.y} * blockDim.x + threadIdx.x;
    if (row < rows) y[blockIdx.x * stride + row] += bias[row];
}

}  // namespace

MatrixLibrary* open_library(int device) {
    const Functions* f = functions();
    if (f == nullptr) return nullptr;
    std::unique_ptr<MatrixLibrary> made(new (std::nothrow) MatrixLibrary);
    if (made == nullptr) return nullptr;
    made->f = f;
    if (use_device(device) || f->create(&made->handle) != CUBLAS_STATUS_SUCCESS) return nullptr;
    return made.release();
}

void close_library(MatrixLibrary* library) {
    if (library == nullptr) return;
    library->products.clear();
    (void)library->f->destroy(library->handle);
    (void)cudaFree(library->workspace);
    delete library;
}

DeviceFault multiply_by_library(DeviceStream stream, DeviceInput type, const DeviceMatrix& w, std::size_t w_stride,
                                const DeviceRows& x, std::size_t n_tokens, const Result& out, bool& done) {
    done = false;
    const bool bytes = type == DeviceInput::i8 || type == DeviceInput::e4m3fn;
    const std::size_t size = bytes ? 1 : 2, granule = bytes ? 16 : 1;
    if (w.cols % granule != 0 || w.rows % granule != 0 || w_stride % granule != 0 || x.stride % granule != 0) return {};
    if (type == DeviceInput::e4m3fn && of(stream).capability < 89) return {};
    if (DeviceFault fault = use_device(of(stream).device)) return fault;
    MatrixLibrary& library = *of(stream).library;
    const Types types = types_of(type);
    const std::size_t alignment =
        std::min({alignment_of(w.data, w_stride * size), alignment_of(x.data, x.stride * size),
                  alignment_of(out.y, out.stride * sizeof(float))});
    const Question question = {static_cast<std::size_t>(type),
                               w.rows,
                               w.cols,
                               n_tokens,
                               w_stride,
                               x.stride,
                               out.stride,
                               alignment,
                               out.add ? 1U : 0U};
    std::unique_ptr<Product>& product = library.products[question];
    if (product == nullptr) {
        take_workspace(library, of(stream).stream);
        product = std::make_unique<Product>(*library.f);
        prepare(library, question, types, *product);
    }
    if (!product->found) return {};
    const float one = 1, zero = 0;
    const std::int32_t integer_one = 1, integer_zero = 0;
    const bool integers = type == DeviceInput::i8;
    const void* alpha = integers ? static_cast<const void*>(&integer_one) : &one;
    const void* beta =
        integers ? static_cast<const void*>(out.add ? &integer_one : &integer_zero) : (out.add ? &one : &zero);
    const cublasStatus_t status = library.f->multiply(
        library.handle, product->product, alpha, w.data, product->w, x.data, product->x, beta, out.y, product->y, out.y,
        product->y, &product->algorithm, library.workspace, library.workspace_bytes, of(stream).stream);
    const Shapes shapes = {{"rows", w.rows}, {"cols", w.cols}, {"tokens", n_tokens}};
    if (status == CUBLAS_STATUS_NOT_SUPPORTED || status == CUBLAS_STATUS_ARCH_MISMATCH) {  // nothing was started
        product->found = false;
        return {};
    }
    if (status != CUBLAS_STATUS_SUCCESS) {
        DeviceFault fault = unsupported(stream, "cublasLtMatmul", "the library refused the product", shapes);
        fault.kind = DeviceFault::Kind::failed;
        fault.code = static_cast<int>(status);
        return fault;
    }
    done = true;
    if (out.bias == nullptr) return {};
    constexpr unsigned threads = 256;
    return launch(stream, "add_bias", {{blocks_for(n_tokens, 1), blocks_for(w.rows, threads), 1}, {threads, 1, 1}},
                  shapes, add_bias, out.y, out.stride, w.rows, out.bias);
}

}  // namespace hetero::kernels::HETERO_DEVICE_BACKEND

#else

namespace hetero::kernels::HETERO_DEVICE_BACKEND {

MatrixLibrary* open_library(int) { return nullptr; }
void close_library(MatrixLibrary*) {}
DeviceFault multiply_by_library(DeviceStream, DeviceInput, const DeviceMatrix&, std::size_t, const DeviceRows&,
                                std::size_t, const Result&, bool&) {
    return {};
}

}  // namespace hetero::kernels::HETERO_DEVICE_BACKEND

#endif
