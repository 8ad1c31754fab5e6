# Shared by the .bats files of this folder: the tools with emulated devices come first.
# shellcheck shell=bash
# shellcheck disable=SC2034  # used by the .bats files
load ../helper
: "${HETERO_EMULATED_BIN:?directory of the tools with emulated devices}"
PATH=$HETERO_EMULATED_BIN:$PATH
coded=$HETERO_TESTDATA/golden/tiny/gguf/llama-q8_0.gguf
ids='5 17 300 41 9 220 77 3 450 12 18 99 401 33 250 6 7 8 61 62 63 64 65 66 67 68 69 70 71 72 73 74 75 76'
