#!/usr/bin/env bats
# kv-quantize on a device.
load device

# converts PARTS IN OPTIONS...: so many parts on the device, the CPU's bytes and figures.
converts() {
  local parts=$1 state=$2
  shift 2
  kv-quantize "$state" "$@" --device cpu -o cpu.h5 --json -q --force >cpu.json
  kv-quantize "$state" "$@" --device cuda:0 -o device.h5 --json --force >device.json 2>note
  cmp cpu.h5 device.h5
  [ "$(json_value parts_on_device <device.json)" = "$parts" ] || { cat device.json; return 1; }
  for key in bits_per_value bytes_out max_abs_error conversion; do
    [ "$(json_value $key <cpu.json)" = "$(json_value $key <device.json)" ]
  done
}

setup_file() {
  load device
  cd "$BATS_FILE_TMPDIR"
  hetero-prefill -m "$coded" --tokens "$ids" --device cpu -o f16.h5 -q
  hetero-prefill -m "$coded" --tokens "$ids" --device cpu --kv-dtype f32 -o f32.h5 -q
  hetero-prefill -m "$coded" --tokens "$ids" --device cpu --kv-dtype bf16 -o bf16.h5 -q
}

@test "codecs that a device has: the CPU's file, and back again" {
  for options in "--dtype int8 --asym" "--dtype int4 --group 8" "--dtype int8 --axis channel --group 16" \
    "--dtype int4 --axis channel --group 4 --asym" "--dtype fp8_e4m3fn" "--k int8:channel:g16:asym --v had:int4:token:asym" \
    "--dtype int8 --sinks 4 --window 8" "--preset int8-strict" "--preset int4-accurate" "--k wf3:channel:g7:asym --v int8"; do
    # shellcheck disable=SC2086
    converts 6 "$BATS_FILE_TMPDIR/f16.h5" $options
    grep -q ', on cuda:0$' note
    cp cpu.h5 coded.h5
    converts 6 coded.h5 --dtype f16
  done
  for state in f32 bf16; do
    converts 6 "$BATS_FILE_TMPDIR/$state.h5" --dtype int8
    cp cpu.h5 coded.h5
    converts 6 coded.h5 --dtype $state
  done
}

@test "codecs that it lacks the CPU takes, and both reports say so" {
  state=$BATS_FILE_TMPDIR/f16.h5
  for options in "--dtype fp8_e5m2" "--dtype int6" "--dtype bf16" "--dtype int8 --scale-dtype f32"; do
    # shellcheck disable=SC2086
    converts 0 "$state" $options
    grep -q ', 0 of 6 parts on cuda:0, the others on the CPU$' note
  done
  converts 3 "$state" --k int8 --v int3
  grep -q ', 3 of 6 parts on cuda:0, the others on the CPU$' note
}

@test "through pipes, by sequences, and what cannot be converted in the CPU's words" {
  printf '{"id": "%s", "tokens": [%s]}\n' x 5,6,7,8,9,10 y 40,41,42 >two.jsonl
  hetero-prefill -m "$tiny" --jsonl two.jsonl --device cpu -o two.h5 -q
  converts 12 two.h5 --dtype int8
  kv-quantize - --dtype int8 --device cuda:1 -o - -q <two.h5 | kv-verify cpu.h5 - --epsilon 0
  "$HETERO_BIN/kv_lab" set two.h5 nan.h5 1 v 2 1 7 7E00
  for device in cpu cuda:0; do
    run --separate-stderr kv-quantize nan.h5 --dtype int8 --device $device -o q.h5
    [ "$status" -eq 3 ]
    echo "$stderr" >said.$device
    [ ! -e q.h5 ]
  done
  cmp said.cpu said.cuda:0
  grep -q 'sequence x, layer 1, V: token 2, head 1, dim 7: value nan' said.cpu
}

@test "a device without room for it is refused, and replaced only where it was not named" {
  export HETERO_EMULATION=total_bytes=1000
  state=$BATS_FILE_TMPDIR/f16.h5
  refuses 4 'cuda:0: converting a state needs at least 131072 bytes of device memory, 1000 are free' \
    kv-quantize "$state" --dtype int8 --device cuda:0 -o q.h5
  [ ! -e q.h5 ]
  run --separate-stderr kv-quantize "$state" --dtype int8 --device auto -o q.h5
  [ "$status" -eq 0 ]
  grep -qE 'device: CPU \(.*\); cuda:0: converting .* 1000 are free' <<<"$stderr"
  ! grep -qE 'device: cuda' <<<"$stderr"
}
