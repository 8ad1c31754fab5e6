#!/usr/bin/env bats
# A state that one device makes and another goes on from.
load device

# tokens MODEL PREFILL DECODE OPTIONS...: by a pipe from one device to the other, as 1,2,3.
tokens() {
  local model=$1 prefill=$2 decode=$3
  shift 3
  hetero-prefill -m "$model" --tokens "$ids" --device "$prefill" "$@" -o - -q |
    hetero-decode -m "$model" - --device "$decode" "$@" -n 10 --ignore-eos --json -q | json_list token_ids
}

# In f32 the devices differ by the order of sums alone: as golden.device, no token may.
same_tokens() {
  local expected model
  for model in "$@"; do
    expected=$(tokens "$model" cpu cpu --precise --kv-dtype f32)
    [ "$(tr -cd , <<<"$expected" | wc -c)" -eq 9 ]
    for exec in graph eager; do
      for from_to in "cuda:0 cpu" "cpu cuda:0" "cuda:0 cuda:1"; do
        # shellcheck disable=SC2086
        actual=$(tokens "$model" $from_to --precise --kv-dtype f32 --exec $exec)
        [ "$actual" = "$expected" ] || { echo "$model, $from_to, $exec: $actual instead of $expected"; return 1; }
      done
    done
  done
}

@test "a pipe between the CPU and a device, either way: the CPU's tokens (files of weights)" {
  gguf=$HETERO_TESTDATA/golden/tiny/gguf
  same_tokens "$gguf"/llama-f32.gguf "$gguf"/llama-q8_0.gguf "$gguf"/qwen2-q8_0.gguf "$gguf"/qwen3-q4_0.gguf
}

@test "a pipe between the CPU and a device, either way: the CPU's tokens (windows, softcaps, experts, latents)" {
  for model in gemma2 mistral_swa qwen3_moe deepseek_v2; do
    make_model $model
    same_tokens $model
  done
}

@test "in bf16: graphs and single ops, pipes and files, and any device give the same tokens" {
  make_model gemma3_text
  make_model mixtral
  for model in gemma3_text mixtral "$coded"; do
    expected=$(tokens "$model" cuda:0 cuda:0)
    [ "$(tokens "$model" cuda:1 cuda:0 --exec eager)" = "$expected" ]
    hetero-prefill -m "$model" --tokens "$ids" --device cuda -o a.h5 -q --force
    for options in "" "--exec eager" "--batch 1"; do
      # shellcheck disable=SC2086
      actual=$(hetero-decode -m "$model" a.h5 --device cuda:0 -n 10 --ignore-eos $options --json -q | json_list token_ids)
      [ "$actual" = "$expected" ]
    done
    # K and V are as far from f32's as a few roundings to 8 bits, in a row, bring them.
    hetero-prefill -m "$model" --tokens "$ids" --device cpu --precise -o b.h5 -q --force
    kv-verify b.h5 a.h5 --epsilon 1 --json -q >report
    grep -E '^ *"rms": ' report | tr -cd '0-9.e\n-' |
      awk '!($1 > 0 && $1 < 8 / 256) { exit 1 } END { if (NR < 6) exit 1 }'
  done
}

@test "many sequences, a prefix, logits of all positions and sampling on a device" {
  printf '{"id": "%s", "tokens": [%s]}\n' x 5,6,7,8,9,10 y 40,41,42 z 5,6,7,8,99,98,97 >three.jsonl
  for device in cpu cuda:0; do
    hetero-prefill -m "$tiny" --jsonl three.jsonl --precise --kv-dtype f32 --device $device -o $device.h5 -q
    hetero-decode -m "$tiny" $device.h5 --precise --device $device -n 6 --ignore-eos --json -q |
      tr -d ' \n' | grep -oE '"token_ids":\[[0-9,]*\]' >$device.tokens
    hetero-prefill -m "$tiny" --tokens 5,6,7,8 --precise --kv-dtype f32 --device $device -o begin.h5 -q --force
    hetero-prefill -m "$tiny" --tokens "5,6,7,8,$(tr ' ' , <<<"$ids")" --prefix begin.h5 --precise --device $device \
      -o long.$device.h5 -q
    hetero-prefill -m "$tiny" --tokens "$ids" --precise --device $device --logits all --logits-out $device.npy -o all.h5 -q --force
    for sampling in "--temperature 0" "--temperature 0.9 --top-k 20" "--temperature 0.9 --top-p 0.9"; do
      # shellcheck disable=SC2086
      hetero-decode -m "$tiny" long.$device.h5 --precise --device $device -n 12 $sampling --repetition-penalty 1.3 \
        --seed 7 --ignore-eos --json -q | json_list token_ids >>$device.sampled
      echo >>$device.sampled
    done
  done
  [ "$(wc -l <cpu.tokens)" -eq 3 ]
  cmp cpu.tokens cuda:0.tokens
  kv-verify cpu.h5 cuda:0.h5 --epsilon 1e-4
  kv-verify long.cpu.h5 long.cuda:0.h5 --epsilon 1e-4
  [ "$(wc -l <cpu.sampled)" -eq 3 ]
  cmp cpu.sampled cuda:0.sampled
  [ "$(wc -c <cpu.npy)" -eq "$(wc -c <cuda:0.npy)" ]
}

@test "the report and --version name the devices" {
  hetero-prefill --version --json | tr -d ' \n' | grep -qF '"devices":["cpu","cuda:0","cuda:1"]'
  for device in cpu cuda:1; do
    [ "$(hetero-prefill -m "$tiny" --tokens 5,6 --device $device -o a.h5 --force --json -q | json_value device)" = "\"$device\"" ]
    [ "$(hetero-decode -m "$tiny" a.h5 --device $device -n 1 --json -q | json_value device)" = "\"$device\"" ]
  done
}

@test "SmolLM2 on a device, by a pipe: the CPU's tokens" {
  need_smollm2
  [ -z "${HETERO_SANITIZE:-}" ] || skip "emulated, 135 million weights take minutes under sanitizers"
  ids='504 3575 282 4649 314'  # The capital of France is
  expected=$(tokens "$model" cpu cpu --precise)
  [ "$(tr -cd , <<<"$expected" | wc -c)" -eq 9 ]
  [ "$(tokens "$model" cuda:0 cuda:0 --precise)" = "$expected" ]
  [ "$(tokens "$model" cuda:0 cpu --precise)" = "$expected" ]
}
