#!/usr/bin/env bats
# Layers that leave a device while later ones are computed: by MPI, from its memory or over the host.
load device

setup() {
  cd "$BATS_TEST_TMPDIR" || return 1
  need_mpi
}

# streams PATH LAYERS OPTIONS...: to kv-send, which stores what it gets in got.h5.
streams() {
  local path=$1 layers=$2
  shift 2
  rm -f got.h5 report.json
  mpirun --oversubscribe -n 1 hetero-prefill -m "$coded" --tokens "$ids" --chunk 16 --device cuda:0 "$@" -o mpi:1 -q \
    --report report.json : -n 1 kv-send mpi:0 -o got.h5 -q </dev/null
  grep -qF "\"path\": \"$path\"" report.json
  [ "$(json_value layers_from_device <report.json)" = "$layers" ] || { cat report.json; return 1; }
}
same() { kv-verify "$1" got.h5 --epsilon 0 >/dev/null; }

@test "layers as they are: from the device where MPI reads it, else staged, and with --staged" {
  hetero-prefill -m "$coded" --tokens "$ids" --chunk 16 --device cuda:0 -o file.h5 -q
  hetero-prefill -m "$coded" --tokens "$ids" --chunk 16 --device cuda:0 -o - -q | cmp - file.h5
  streams staged 0
  same file.h5
  export HETERO_EMULATION=mpi_reads=1
  streams device 3
  same file.h5
  streams staged 0 --staged
  same file.h5
  # What waits to be computed is computed as late as it may be.
  export HETERO_EMULATION=mpi_reads=1,late=1
  streams device 3
  same file.h5
}

@test "layers in codes are coded on the device, as kv-quantize does" {
  hetero-prefill -m "$coded" --tokens "$ids" --chunk 16 --device cuda:0 -o file.h5 -q
  kv-quantize file.h5 --dtype int8 --device cpu -o int8.h5 -q
  kv-quantize file.h5 --dtype int8 --axis channel --group 16 --asym --device cpu -o channel.h5 -q
  for reads in 0 1; do
    export HETERO_EMULATION=mpi_reads=$reads
    path=$([ $reads = 1 ] && echo device || echo staged)
    streams "$path" $((3 * reads)) --wire-dtype int8
    [ "$(json_value parts_on_device <report.json)" = 6 ]
    same int8.h5
    streams "$path" $((3 * reads)) --wire-dtype int8 --kv-tier host
    same int8.h5
    streams "$path" $((3 * reads)) --wire-dtype int8:channel:g16:asym
    [ "$(json_value parts_on_device <report.json)" = 6 ]
    same channel.h5
  done
}

@test "a plan is followed to a file, a pipe and MPI" {
  for seed in 1 77 300; do
    awk -v seed=$seed 'BEGIN { for (i = 0; i < 40; ++i) printf "%d ", (i * i * 13 + i * 5 + seed) % 512 }' >$seed.ids
  done
  kv-calibrate -m "$coded" --text @1.ids --text @77.ids --held-out @300.ids --prompt-tokens 30 --steps 8 --search-steps 4 \
    --k-options int4:channel:g16:asym,int8:channel:g16:asym --v-options had:int4,int8,f16 --bits 8 -o plan.toml -q >/dev/null
  hetero-prefill -m "$coded" --tokens "$ids" --chunk 16 --device cuda:0 -o plain.h5 -q
  kv-quantize plain.h5 --plan plan.toml --device cpu -o file.h5 -q
  hetero-prefill -m "$coded" --tokens "$ids" --chunk 16 --device cuda:0 --plan plan.toml -o direct.h5 -q
  kv-verify file.h5 direct.h5 --epsilon 0
  hetero-prefill -m "$coded" --tokens "$ids" --chunk 16 --device cuda:0 --plan plan.toml -o - -q | cmp - direct.h5
  streams staged 0 --plan plan.toml
  [ "$(json_value parts_on_device <report.json)" -gt 0 ]
  same file.h5
  HETERO_EMULATION=mpi_reads=1 streams device 3 --plan plan.toml
  same file.h5
}

@test "decode on the other rank's device goes on with the same tokens" {
  hetero-prefill -m "$coded" --tokens "$ids" --device cuda:0 -o - -q |
    hetero-decode -m "$coded" - --device cuda:0 -n 10 --ignore-eos --json -q | json_list token_ids >expected
  for reads in 0 1; do
    HETERO_EMULATION=mpi_reads=$reads mpirun --oversubscribe -n 1 hetero-prefill -m "$coded" --tokens "$ids" --device cuda:0 \
      -o mpi:1 -q : -n 1 hetero-decode -m "$coded" mpi:0 --device cuda:1 -n 10 --ignore-eos --json -q </dev/null |
      json_list token_ids >actual
    [ -s expected ]
    cmp expected actual
  done
}

@test "a device that fails in the middle ends both sides with its words, and leaves no file" {
  run --separate-stderr env HETERO_EMULATION=fail_kernel=finish_qkv,fail_after=1 mpirun --oversubscribe \
    -n 1 hetero-prefill -m "$coded" --tokens "$ids" --device cuda:0 -o mpi:1 -q : -n 1 kv-send mpi:0 -o got.h5 -q </dev/null
  [ "$status" -eq 4 ]
  grep -qE '^hetero-prefill: cuda:0: finish_qkv: unspecified launch failure \(719\) \[tokens 34, heads 4, ' <<<"$stderr"
  grep -qE '^kv-send: rank 0 gave up: cuda:0: finish_qkv: ' <<<"$stderr"
  [ ! -e got.h5 ]
  no_temporaries
}
