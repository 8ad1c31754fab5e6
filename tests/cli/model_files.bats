#!/usr/bin/env bats
# Damaged model files: refused before any compute, with a reason that names the file.
load helper

# no_prefill PATTERN MODEL: refused, and nothing at the output.
no_prefill() {
  refuses 3 "$1" hetero-prefill -m "$2" --tokens 5,6,7 -o a.h5
  [ ! -e a.h5 ]
  no_temporaries
}

@test "a GGUF file that ends too early" {
  size=$(stat -c %s "$tiny")
  for cut in 0 3 20 1000 $((size / 2)) $((size - 1)); do
    head -c "$cut" "$tiny" >cut.gguf
    no_prefill 'cut.gguf' cut.gguf
  done
  grep -qE 'tensor|bytes' <<<"$stderr"
  no_prefill 'missing.gguf' missing.gguf
}

@test "the real model, cut off" {
  need_smollm2
  for cut in 60000000 20 3 0 98362431; do
    head -c "$cut" "$model" >cut.gguf
    no_prefill 'cut.gguf' cut.gguf
  done
  # The last tensor ends at the end of the file.
  grep -q 'output_norm.weight' <<<"$stderr"
}

@test "a safetensors header length that lies" {
  cp -r "$HETERO_TESTDATA/golden/tiny/llama/bf16" folder
  chmod -R u+w folder
  hetero-prefill -m folder --tokens 5,6,7 -o whole.h5 -q
  for bytes in '\x00\x00\x00\x00\x00\x00\x00\x80{}' '\xfc\xff\xff\xff\xff\xff\xff\xff{}' \
    '\x64\x00\x00\x00\x00\x00\x00\x00{}' '\x00\x00\x00\x00\x00\x00\x00\x00'; do
    printf "$bytes" >folder/model.safetensors
    no_prefill 'model.safetensors' folder
  done
}

@test "a shard that is not there, and one without its tensor" {
  cp -r "$HETERO_TESTDATA/golden/tiny/llama/f32" folder
  chmod -R u+w folder
  hetero-prefill -m folder --tokens 5,6,7 -o whole.h5 -q
  mv folder/model-00002-of-00003.safetensors gone
  no_prefill 'model-00002-of-00003.safetensors' folder
  mv gone folder/model-00002-of-00003.safetensors
  sed -i '0,/"model-00001-of-00003.safetensors"/s//"model-00003-of-00003.safetensors"/' folder/model.safetensors.index.json
  no_prefill 'model-00003-of-00003.safetensors' folder
}

@test "the same model from a folder and from a GGUF file" {
  hetero-prefill -m "$tiny" --tokens 5,6,7,8 --kv-dtype f32 -o gguf.h5 -q
  hetero-prefill -m "$HETERO_TESTDATA/golden/tiny/llama/f32" --tokens 5,6,7,8 --kv-dtype f32 -o folder.h5 -q
  # RoPE pairs are ordered differently in the two files; stored keys are not.
  run --separate-stderr kv-verify gguf.h5 folder.h5 --epsilon 1e-4 --json
  awk -v x="$(json_value max_abs <<<"$output")" 'BEGIN { exit !(x < 1e-4) }'
}
