// The list of backends, and the choice among them. Internal to kernels and its tests; users take ops() from api/ops.h.
#pragma once
#include "kernels/api/ops.h"

namespace hetero::kernels {

struct BackendChoice {
    const Ops* ops;     // never null
    const char* error;  // null, or why `wanted` was not followed; valid for the life of the thread
};

// What ops() and backend_error() would give if HETERO_BACKEND were `wanted`; null or empty asks for the best.
[[nodiscard]] BackendChoice choose_backend(const char* wanted) noexcept;

}  // namespace hetero::kernels
