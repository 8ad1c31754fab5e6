#!/usr/bin/env bats
# Devices that are not there, too small, or fail.
load device

@test "names of devices: what is none, and what is not here" {
  hetero-prefill -m "$tiny" --tokens 5,6 --device cpu -o a.h5 -q
  for tool in "hetero-prefill -m $tiny --tokens 5,6 -o b.h5" "hetero-decode -m $tiny a.h5" \
    "kv-quantize a.h5 --dtype int8 -o b.h5" "kv-verify a.h5 a.h5 -m $tiny --epsilon 1"; do
    for name in "" cuda: cuda:-1 cuda:1x cuda:99999999999 gpu CUDA:0 cpu:0; do
      # shellcheck disable=SC2086
      refuses 2 "^[a-z-]*: --device: '$name' is no device: cpu, cuda or cuda:NUMBER\$" $tool --device "$name"
    done
    # shellcheck disable=SC2086
    refuses 4 '^[a-z-]*: --device: cuda:9: there are cuda:0 to cuda:1$' $tool --device cuda:9
    # shellcheck disable=SC2086
    HETERO_EMULATION=devices=1 refuses 4 '^[a-z-]*: --device: cuda:1: there is cuda:0 only$' $tool --device cuda:1
    # shellcheck disable=SC2086
    HETERO_EMULATION=devices=0 refuses 4 '^[a-z-]*: --device: cuda: there is no CUDA device$' $tool --device cuda
  done
  refuses 2 'kv-calibrate: --device cuda:0: plans are measured on the CPU' \
    kv-calibrate -m "$tiny" --text "$HETERO_TESTDATA/README.md" --bits 8 -o plan.toml --device cuda:0
  [ ! -e b.h5 ]
}

# auto EXPECTED COMMAND...: what "auto" comes to, said once.
auto() {
  local expected=$1
  shift
  run --separate-stderr "$@" --device auto
  [ "$status" -eq 0 ]
  [ "$(grep -c 'device: ' <<<"$stderr")" -eq 1 ] || { echo "$stderr"; return 1; }
  grep -qE "device: $expected" <<<"$stderr"
}

@test "auto takes the first device, else the CPU, and says which" {
  auto 'cuda:0$' hetero-prefill -m "$tiny" --tokens 5,6 -o a.h5
  auto 'cuda:0$' hetero-decode -m "$tiny" a.h5 -n 2
  auto 'cuda:0$' kv-quantize a.h5 --dtype int8 -o q.h5
  auto 'cuda:0$' kv-verify a.h5 q.h5 -m "$tiny" --steps 2 --epsilon 1
  export HETERO_EMULATION=devices=0
  auto 'CPU \([a-z0-9_]*\); cuda: there is no CUDA device$' hetero-prefill -m "$tiny" --tokens 5,6 -o a.h5 --force
  auto 'CPU \([a-z0-9_]*\); cuda: there is no CUDA device$' kv-quantize a.h5 --dtype int8 -o q.h5 --force
  # A device that cannot hold the work is as good as none, also where nobody has asked for it.
  export HETERO_EMULATION=total_bytes=1000000
  lacks='CPU \([a-z0-9_]*\); cuda:0: a session of [0-9]* tokens needs [0-9]* bytes .*, but 1000000 are free; '
  auto "$lacks" hetero-prefill -m "$tiny" --tokens 5,6 -o a.h5 --force
  auto "$lacks" hetero-decode -m "$tiny" a.h5 -n 2
  auto "$lacks" kv-verify a.h5 q.h5 -m "$tiny" --steps 2 --epsilon 1
  run --separate-stderr kv-verify a.h5 q.h5 -m "$tiny" --steps 2 --epsilon 1
  [ "$status" -eq 0 ]
  grep -qE "device: $lacks" <<<"$stderr"
}

@test "what a session needs is known before it runs, and --device-memory holds" {
  pattern='^hetero-prefill: cuda:0: a session of 34 tokens needs [0-9]* bytes of device memory (.* of weights, .* of KV cache, .* to work in), but 1000000 are allowed; ask for fewer tokens'
  run --separate-stderr hetero-prefill -m "$coded" --tokens "$ids" --device cuda:0 --device-memory 1000000 -o a.h5
  [ "$status" -eq 4 ]
  grep -q "$pattern" <<<"$stderr"
  [ ! -e a.h5 ]
  no_temporaries
  need=$(sed 's/.* needs \([0-9]*\) bytes.*/\1/' <<<"$stderr")
  refuses 4 'are allowed' hetero-prefill -m "$coded" --tokens "$ids" --device cuda:0 --device-memory $((need - 1)) -o a.h5
  hetero-prefill -m "$coded" --tokens "$ids" --device cuda:0 --device-memory "$need" -o a.h5 -q
  # No more than that is taken: the device has no more.
  HETERO_EMULATION=total_bytes=$need hetero-prefill -m "$coded" --tokens "$ids" --device cuda:0 -o b.h5 -q
  cmp a.h5 b.h5
  refuses 4 '^hetero-decode: cuda:0: a session of .* but 1000000 are allowed' \
    hetero-decode -m "$coded" a.h5 --device cuda:0 --device-memory 1000000
}

@test "K and V in any place give the same tokens" {
  hetero-prefill -m "$coded" --tokens "$ids" --device cuda:0 -o a.h5 -q
  hetero-decode -m "$coded" a.h5 --device cuda:0 -n 10 --ignore-eos --json -q | json_list token_ids >expected
  [ -s expected ]
  for tier in host file 0=host v=file 1.k=host,2=file; do
    for exec in graph eager; do
      hetero-prefill -m "$coded" --tokens "$ids" --chunk 16 --device cuda:0 --kv-tier $tier --exec $exec -o b.h5 -q --force
      kv-verify a.h5 b.h5 --epsilon 0
      hetero-decode -m "$coded" b.h5 --device cuda:0 --kv-tier $tier --exec $exec -n 10 --ignore-eos --json -q |
        json_list token_ids >actual
      cmp expected actual
    done
  done
  for resident in int8 int8-channel fp8_e4m3fn; do
    for tier in device host; do
      hetero-decode -m "$coded" a.h5 --device cuda:0 --kv-dtype $resident --kv-tier $tier -n 10 --ignore-eos --json -q |
        json_list token_ids >$tier.tokens
    done
    [ -s host.tokens ]
    cmp device.tokens host.tokens
  done
  refuses 2 'there is no layer 9 whose K and V could stay elsewhere: the model has 3' \
    hetero-decode -m "$coded" a.h5 --device cuda:0 --kv-tier 9=host
}

@test "a fault names kernel, device and shapes, and leaves nothing half done" {
  hetero-prefill -m "$coded" --tokens "$ids" --device cuda:0 -o a.h5 -q
  for exec in graph eager; do
    HETERO_EMULATION=fail_kernel=attention_tiles refuses 4 \
      '^hetero-prefill: cuda:0: attention_tiles: unspecified launch failure \(719\) \[tokens 34, heads 4, kv_heads 2, query_dim 16, output_dim 16, grid 1x4x1, block 128x1x1, shared bytes [0-9]*\]$' \
      hetero-prefill -m "$coded" --tokens "$ids" --device cuda:0 --exec $exec -o b.h5
    # In the first step, and in the one that is recorded as a graph.
    for after in 0 2 4; do
      HETERO_EMULATION=fail_kernel=attention_spans,fail_after=$after run --separate-stderr \
        hetero-decode -m "$coded" a.h5 --device cuda:1 --exec $exec -n 8 --ignore-eos -o b.h5
      [ "$status" -eq 4 ]
      grep -qE '^hetero-decode: cuda:1: attention_spans: unspecified launch failure \(719\) \[tokens 1, heads 4, ' <<<"$stderr"
    done
  done
  HETERO_EMULATION=fail_kernel=kv_quantize_tokens,fail_after=3 refuses 4 \
    '^kv-quantize: a.h5: sequence 0, layer [0-2], [KV]: cuda:0: kv_quantize_tokens: unspecified launch failure \(719\) \[tokens 34, heads 2, head_dim 16, ' \
    kv-quantize a.h5 --dtype int8 --device cuda:0 -o b.h5
  [ ! -e b.h5 ]
  no_temporaries
}

@test "ranks that compute together do so on CPUs, and say so" {
  need_mpi
  run --separate-stderr mpirun --oversubscribe -n 2 hetero-prefill --tp 2 -m "$tiny" --tokens 5,6 --device cuda:0 -o a.h5 </dev/null
  [ "$status" -eq 2 ]
  grep -q '^hetero-prefill: cuda:0: ranks that compute together (--tp) do so on CPUs: give --device cpu, or leave out --tp' <<<"$stderr"
  [ ! -e a.h5 ]
  run --separate-stderr mpirun --oversubscribe -n 2 hetero-prefill --tp 2 -m "$tiny" --tokens 5,6 --device auto -o a.h5 </dev/null
  [ "$status" -eq 0 ]
  grep -qE 'device: CPU \([a-z0-9_]*\); ranks compute together on CPUs$' <<<"$stderr"
  ! grep -q 'device: cuda' <<<"$stderr"
}
