#!/usr/bin/env bash
# The figures of compare-peers.sh on a second model: the shape of Llama 3.2 1B with random weights, made here once (2.5 GB
# in bf16, and as Q4_0 by llama.cpp's tool), hetero and llama.cpp on both files in turn.
#   scripts/dev/second-model.sh [OPTION...]     options of compare-peers.sh; it has made its Python environment before
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
cache=${HETERO_CACHE:-$HOME/.cache/hetero}
model=$cache/random-1b.bf16.gguf

if [ ! -f "$model" ]; then
    "$cache/peers/venv/bin/python" "$here/make-random-model.py" "$("$here/../get-model.sh")" "$model.part"
    mv "$model.part" "$model"
fi
exec "$here/compare-peers.sh" --model "$model" --peers llama "$@" -- --kinds Q4_0 --kinds-of-ours --pairs 3 \
    --figures prefill:512,decode:0
