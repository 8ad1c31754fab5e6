#!/usr/bin/env bash
# Installs what is missing, builds, and runs all tests: optimised, and under AddressSanitizer and UBSan.
# usage: scripts/test.sh [release|dev]...      default: both
set -euo pipefail
cd "$(dirname "$0")/.."

presets=("$@")
[ ${#presets[@]} -gt 0 ] || presets=(dev release)

scripts/install-deps.sh --tests --quickstart
scripts/get-model.sh >/dev/null || echo "test.sh: the real model could not be had; tests that need it are skipped" >&2

# Where no GPU will run them, kernels are compiled for one kind, and once: sanitizers do not look into them.
gpu=yes
nvidia-smi -L >/dev/null 2>&1 || gpu=no

status=0
for preset in "${presets[@]}"; do
  printf '\n== %s ==\n' "$preset"
  cuda=(-DHETERO_CUDA=AUTO)  # quickstart.sh may have left them out
  if [ $gpu = no ]; then
    cuda+=(-DCMAKE_CUDA_ARCHITECTURES=90)
    [ "$preset" = release ] || cuda=(-DHETERO_CUDA=OFF)
  fi
  cmake --preset "$preset" --no-warn-unused-cli -DHETERO_TESTS=ON "${cuda[@]}" >/dev/null  # quickstart.sh leaves them out of the same folder
  cmake --build --preset "$preset" -- --quiet
  ctest --preset "$preset" --no-tests=error -j "$(nproc)" || status=1
done
exit $status
