#!/usr/bin/env bash
# Runs hetero beside other engines on the same model, prompts and threads, in turn, and prints the ratios.
# The peers come from PyPI (llama.cpp as the sources of llama-cpp-python, built here, some ten minutes the first time)
# into $HETERO_CACHE/peers. Options after -- go to compare_peers.py: see `compare-peers.sh -- --help`.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$here/../.." && pwd)

llama_version=0.3.36
packages=(openvino-genai==2026.4.1 ctranslate2==4.8.5 numpy gguf)
cache=${HETERO_CACHE:-$HOME/.cache/hetero}/peers
bin=$root/build/release/bin
model=
peers=llama,openvino

no_amx='-mno-amx-tile -mno-amx-int8 -mno-amx-bf16'

build_llama() { # [CMAKE-OPTION]...
    cmake -S "$cache/llama_cpp_python-$llama_version/vendor/llama.cpp" -B "$cache/llama" -G Ninja \
        -DCMAKE_BUILD_TYPE=Release -DGGML_NATIVE=ON -DBUILD_SHARED_LIBS=OFF -DLLAMA_CURL=OFF -DLLAMA_BUILD_TESTS=OFF \
        -DLLAMA_BUILD_EXAMPLES=OFF "$@" >"$cache/llama-configure.log"
    ninja -C "$cache/llama" llama-bench llama-quantize llama-completion >"$cache/llama-build.log"
}

usage() {
    cat <<END
Usage: compare-peers.sh [--bin DIR] [--model FILE] [--peers LIST] [-- OPTION...]
  --bin DIR     hetero's tools [build/release/bin]
  --model FILE  a GGUF file [SmolLM2-135M-Instruct, fetched by get-model.sh]
  --peers LIST  of llama, openvino, transformers, ctranslate2 [$peers]
END
}
while [ $# -gt 0 ]; do
    case $1 in
    --bin) bin=$2 && shift 2 ;;
    --model) model=$2 && shift 2 ;;
    --peers) peers=$2 && shift 2 ;;
    --) shift && break ;;
    -h | --help) usage && exit 0 ;;
    *) usage >&2 && exit 2 ;;
    esac
done

mkdir -p "$cache"
if [ -z "$model" ]; then model=$("$root/scripts/get-model.sh"); fi
if [ ! -x "$cache/venv/bin/python" ]; then python3 -m venv "$cache/venv"; fi
case ,$peers, in *,transformers,* | *,ctranslate2,*) packages+=(torch==2.15.0 transformers==5.24.0 accelerate) ;; esac
"$cache/venv/bin/pip" install --quiet --disable-pip-version-check "${packages[@]}"

if [[ ,$peers, == *,llama,* ]] && [ ! -x "$cache/llama/bin/llama-completion" ]; then
    "$cache/venv/bin/pip" download --quiet --no-deps --no-binary :all: --dest "$cache" "llama-cpp-python==$llama_version"
    tar -C "$cache" -xf "$cache/llama_cpp_python-$llama_version.tar.gz"
    build_llama
    # With AMX, this version crashes in its own tile kernels on some machines: then it is built without.
    if ! "$cache/llama/bin/llama-bench" -m "$model" -p 32 -n 0 -r 1 >/dev/null 2>&1; then
        echo "compare-peers.sh: llama.cpp crashes here as built for this CPU; building it without AMX" >&2
        build_llama -DCMAKE_C_FLAGS="$no_amx" -DCMAKE_CXX_FLAGS="$no_amx"
    fi
fi

exec "$cache/venv/bin/python" "$here/compare_peers.py" --bin "$bin" --model "$model" --peers "$peers" \
    --cache "$cache" "$@"
