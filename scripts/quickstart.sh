#!/usr/bin/env bash
# From a bare Debian 12 to text: installs, builds, gets a small real model, and runs
# prefill | quantize | send | verify | decode on it. Prints the text and the figures.
# usage: scripts/quickstart.sh [PROMPT]
set -euo pipefail
cd "$(dirname "$0")/.."

prompt=${1:-"Explain in two sentences why decoding a large language model depends on memory bandwidth."}

scripts/install-deps.sh --quickstart
nvidia-smi -L >/dev/null 2>&1 && cuda=AUTO || cuda=OFF  # kernels that nothing here could run take minutes to compile
cmake --preset release -DHETERO_TESTS=OFF -DHETERO_CUDA="$cuda" >/dev/null
cmake --build --preset release -- --quiet
model=$(scripts/get-model.sh)

export PATH=$PWD/build/release/bin:$PATH
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
ln -s "$model" smollm2.gguf

run() { printf '\n$ %s\n' "$*" >&2; "$@"; }

run hetero-prefill -m smollm2.gguf --chat -p "$prompt" -o f16.h5
run kv-quantize f16.h5 --dtype int8 -o int8.h5
run kv-send int8.h5 -o received.h5
run kv-verify f16.h5 received.h5 -m smollm2.gguf --steps 32 --epsilon 0.05
run hetero-decode -m smollm2.gguf received.h5 -n 64

printf '\n\n# the same through pipes\n'
# shellcheck disable=SC2016  # the inner shell expands them
run sh -c 'hetero-prefill -q -m smollm2.gguf --chat -p "$1" -o - | kv-quantize -q - --dtype int8 -o - | hetero-decode -q -m smollm2.gguf - -n 64' \
  sh "$prompt"

printf '\n\n# the same through MPI, three ranks\n'
as_root=()
[ "$(id -u)" -eq 0 ] && as_root=(--allow-run-as-root)
run mpirun "${as_root[@]}" --oversubscribe \
  -n 1 hetero-prefill -q -m smollm2.gguf --chat -p "$prompt" -o mpi:1 : \
  -n 1 kv-quantize -q mpi:0 --dtype int8 -o mpi:2 : \
  -n 1 hetero-decode -q -m smollm2.gguf mpi:1 -n 64 </dev/null
echo
