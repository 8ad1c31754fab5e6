// Prints the backend that HETERO_BACKEND led to, and on a second line the error if there is one.
#include <cstdio>

#include "kernels/api/ops.h"

int main() {
    std::puts(hetero::kernels::ops().name);
    if (const char* error = hetero::kernels::backend_error()) std::puts(error);
}
