#!/usr/bin/env bash
# Compiles the kernels for 64-bit Arm and runs their tests, under qemu where this machine is another.
# Debian packages: g++-aarch64-linux-gnu qemu-user-static doctest-dev
# usage: scripts/dev/check-arm64.sh [TEST-OPTION]...    e.g. --test-case='*packed*'
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
build=$root/build/arm64
compiler=$(command -v aarch64-linux-gnu-g++) || {
    echo "check-arm64.sh: no aarch64-linux-gnu-g++ here" >&2
    exit 2
}
mkdir -p "$build/include"
ln -sfn /usr/include/doctest "$build/include/doctest"

flags=(-std=c++20 -O2 -Wall -Wextra -Wpedantic -Wshadow -Wold-style-cast -Werror -ffp-contract=off
    -DHETERO_KERNELS_ARM "-I$root" "-I$root/lib" "-I$root/tests" "-isystem$build/include")
sources=("$root"/kernels/*.cpp "$root"/kernels/ref/*.cpp "$root"/kernels/cpu/{neon,neon_dot,detect_arm,f16_table,scratch}.cpp
    "$root"/tests/conformance/kernels/*.cpp "$root"/tests/unit/kernels/dtype_test.cpp
    "$root"/tests/support/main.cpp)
objects=()
for source in "${sources[@]}"; do
    object=$build/$(echo "${source#"$root"/}" | tr / -).o
    objects+=("$object")
    extra=()
    case $source in
    *neon_dot.cpp) extra=(-O3 -march=armv8.2-a+dotprod) ;;
    *neon.cpp) extra=(-O3) ;;
    */tests/*) extra=(-Wno-stringop-overflow -Wno-array-bounds) ;; # GCC 12 sees sizes below 0 where there are none
    esac
    if [ ! "$object" -nt "$source" ] || [ -n "$(find "$root/kernels" -newer "$object" -name '*.h' -print -quit)" ]; then
        echo "compiling ${source#"$root"/}"
        "$compiler" "${flags[@]}" "${extra[@]}" -c "$source" -o "$object"
    fi
done
"$compiler" -static "${objects[@]}" -o "$build/test_kernels"
runner=()
[ "$(uname -m)" = aarch64 ] || runner=(qemu-aarch64-static)
for backend in neon neon_dot; do
    echo "HETERO_BACKEND=$backend"
    HETERO_BACKEND=$backend "${runner[@]}" "$build/test_kernels" "$@"
done
