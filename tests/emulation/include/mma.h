// Products of small matrices by a warp (the C++ interface of nvcuda::wmma, CUDA C++ Programming Guide, "Warp Matrix
// Functions"). Which elements a lane holds is nobody's business, there or here.
#pragma once
#include <type_traits>

#include "cuda_bf16.h"
#include "cuda_fp16.h"
#include "cuda_runtime.h"

namespace nvcuda::wmma {

struct matrix_a;
struct matrix_b;
struct accumulator;
struct row_major;
struct col_major;
enum layout_t : int { mem_row_major, mem_col_major };

inline float wide(__half x) { return __half2float(x); }
inline float wide(__nv_bfloat16 x) { return __bfloat162float(x); }
inline int wide(signed char x) { return x; }

// Rows and columns: m x k of a, k x n of b, m x n of an accumulator. By rows, element e of lane l is l * num_elements
// + e.
template <class Use, int m, int n, int k, class T, class Layout = void>
struct fragment {
    static constexpr int rows = std::is_same_v<Use, matrix_b> ? k : m, cols = std::is_same_v<Use, matrix_a> ? k : n;
    static constexpr int num_elements = rows * cols / 32;
    using element_type = T;
    T x[num_elements];
};

template <class Use, int m, int n, int k, class T, class Layout, class V>
void fill_fragment(fragment<Use, m, n, k, T, Layout>& f, V value) {
    for (T& x : f.x) x = static_cast<T>(value);
}

inline void check_matrix(const void* at, unsigned ldm, std::size_t size) {
    if (reinterpret_cast<std::uintptr_t>(at) % 32 != 0)
        hetero::emulation::refuse("a matrix is not aligned to 32 bytes");
    if (ldm * size % 16 != 0) hetero::emulation::refuse("the rows of a matrix are not a multiple of 16 bytes apart");
}

template <class Use, int m, int n, int k, class T, class Layout>
void load_by(fragment<Use, m, n, k, T, Layout>& f, const T* at, unsigned ldm, bool by_rows) {
    check_matrix(at, ldm, sizeof(T));
    const unsigned lane = hetero::emulation::lane_number();
    for (unsigned e = 0; e < f.num_elements; ++e) {
        const unsigned i = lane * f.num_elements + e, row = i / f.cols, col = i % f.cols;
        f.x[e] = by_rows ? at[row * ldm + col] : at[col * ldm + row];
    }
}
template <class Use, int m, int n, int k, class T, class Layout>
void load_matrix_sync(fragment<Use, m, n, k, T, Layout>& f, const T* at, unsigned ldm) {
    load_by(f, at, ldm, std::is_same_v<Layout, row_major>);
}
template <int m, int n, int k, class T>
void load_matrix_sync(fragment<accumulator, m, n, k, T>& f, const T* at, unsigned ldm, layout_t layout) {
    load_by(f, at, ldm, layout == mem_row_major);
}
template <int m, int n, int k, class T>
void store_matrix_sync(T* at, const fragment<accumulator, m, n, k, T>& f, unsigned ldm, layout_t layout) {
    check_matrix(at, ldm, sizeof(T));
    const unsigned lane = hetero::emulation::lane_number();
    for (unsigned e = 0; e < f.num_elements; ++e) {
        const unsigned i = lane * f.num_elements + e, row = i / f.cols, col = i % f.cols;
        at[layout == mem_row_major ? row * ldm + col : col * ldm + row] = f.x[e];
    }
}

template <class D, class A, class B>
struct Operands {
    D* d;
    const A* a;
    const B* b;
    const D* c;
};

// d = a b + c, sums in the accumulator's type, by all lanes at once.
template <int m, int n, int k, class T, class Acc, class La, class Lb>
void mma_sync(fragment<accumulator, m, n, k, Acc>& d, const fragment<matrix_a, m, n, k, T, La>& a,
              const fragment<matrix_b, m, n, k, T, Lb>& b, const fragment<accumulator, m, n, k, Acc>& c) {
    using Item = Operands<fragment<accumulator, m, n, k, Acc>, fragment<matrix_a, m, n, k, T, La>,
                          fragment<matrix_b, m, n, k, T, Lb>>;
    Item item{&d, &a, &b, &c};
    hetero::emulation::warp_operation(0xFFFFFFFFU, &item, [](void* const* items, unsigned) {
        Acc left[m][k], right[k][n], sum[m][n];
        for (int lane = 0; lane < 32; ++lane) {
            const auto& one = *static_cast<const Item*>(items[lane]);
            for (int e = 0; e < m * k / 32; ++e)
                (&left[0][0])[lane * (m * k / 32) + e] = static_cast<Acc>(wide(one.a->x[e]));
            for (int e = 0; e < k * n / 32; ++e)
                (&right[0][0])[lane * (k * n / 32) + e] = static_cast<Acc>(wide(one.b->x[e]));
            for (int e = 0; e < m * n / 32; ++e) (&sum[0][0])[lane * (m * n / 32) + e] = one.c->x[e];
        }
        for (int i = 0; i < m; ++i)
            for (int j = 0; j < k; ++j)
                for (int l = 0; l < n; ++l) sum[i][l] += left[i][j] * right[j][l];
        for (int lane = 0; lane < 32; ++lane)
            for (int e = 0; e < m * n / 32; ++e)
                static_cast<const Item*>(items[lane])->d->x[e] = (&sum[0][0])[lane * (m * n / 32) + e];
    });
}

}  // namespace nvcuda::wmma
