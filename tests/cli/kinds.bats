#!/usr/bin/env bats
# States whose layers have windows or latents, and states in shards, through every tool that moves them.
load helper
lab=$HETERO_BIN/kv_lab

@test "windows and latents: quantized, sent, piped and verified as what they are" {
  declare -A kinds=([windows]='{"gqa":1,"swa":2}' [latent]='{"mla":2}')
  for kind in windows latent; do
    "$lab" make $kind $kind.h5
    kv-verify $kind.h5 --json >report
    tr -d ' \n' <report | grep -qF "\"layer_kinds\":${kinds[$kind]},\"shard\":null"
    kv-send $kind.h5 -o - -q | kv-send - -o $kind.sent.h5 -q
    cmp $kind.h5 $kind.sent.h5
    for options in "" "--asym --group 32" "--axis channel --group 2 --asym"; do
      # shellcheck disable=SC2086
      kv-quantize $kind.h5 --dtype int8 $options -o - -q | kv-quantize - --dtype f32 -o $kind.back.h5 --force -q
      kv-verify $kind.h5 $kind.back.h5 --epsilon 0.02
      run kv-verify $kind.h5 $kind.back.h5 --epsilon 0
      [ "$status" -eq 1 ]
    done
  done
  run kv-verify windows.h5
  [[ "$output" == *"3 layers (1 gqa, 2 swa)"* ]]
}

@test "places in windows and latents are named by the prompt's own tokens" {
  "$lab" make windows f32.h5
  kv-quantize f32.h5 --dtype f16 -o a.h5 -q
  "$lab" set a.h5 nan.h5 1 v 2 1 7 7E00 # row 2 of a window that starts at token 5
  refuses 3 'layer 1, V, token 7, head 1, dim 7' kv-verify nan.h5
  "$lab" set a.h5 b.h5 1 v 2 1 7 7000
  run kv-verify a.h5 b.h5 --epsilon 1
  [ "$status" -eq 1 ]
  [[ "$output" == *"worst at sequence 0, layer 1, V, token 7, head 1, dim 7"* ]]
  "$lab" make latent f32.h5
  kv-quantize f32.h5 --dtype f16 -o a.h5 --force -q
  "$lab" set a.h5 nan.h5 1 k 8 0 3 7E00
  refuses 3 'layer 1, latent, token 8, dim 3' kv-verify nan.h5
  "$lab" set a.h5 nan.h5 0 v 0 0 3 7C00
  refuses 3 'layer 0, RoPE key: token 0' kv-quantize nan.h5 --dtype int8 -o q.h5
  [ ! -e q.h5 ]
}

@test "states of different kinds are not compared" {
  "$lab" make windows a.h5
  "$lab" make latent b.h5
  refuses 3 'not comparable' kv-verify a.h5 b.h5 --epsilon 1
}

@test "shards are read as the whole by every tool, and refused where one is missing" {
  "$lab" make windows whole.h5
  "$lab" split whole.h5 2 state.h5
  ls state.tp0of2.h5 state.tp1of2.h5
  for name in state.h5 state.tp1of2.h5; do
    kv-verify $name
    kv-verify whole.h5 $name --epsilon 0
    kv-send $name -o sent.h5 --force -q
    cmp sent.h5 whole.h5
    kv-quantize $name --dtype int8 -o q.h5 --force -q
  done
  kv-quantize whole.h5 --dtype int8 -o whole.q.h5 -q
  cmp q.h5 whole.q.h5
  refuses 2 'state.tp1of2.h5' kv-send state.h5 -o state.tp1of2.h5 --force
  # A shard alone goes through a pipe, and says what it is.
  kv-verify - --json <state.tp1of2.h5 >report
  tr -d ' \n' <report | grep -qF '"shard":{"tp_size":2,"tp_rank":1,"head_first":1,"head_count":1}'
  run kv-verify - <state.tp1of2.h5
  [[ "$output" == *"shard 1 of 2: 1 KV heads from head 1 on, of 2"* ]]
  rm state.tp1of2.h5
  refuses 3 'state.tp1of2.h5: is missing' kv-verify state.h5
  refuses 3 'state.tp1of2.h5: is missing' kv-send state.tp0of2.h5 -o x.h5
}

@test "more ranks than heads: replicated heads have to agree" {
  "$lab" make latent whole.h5
  "$lab" split whole.h5 3 state.h5
  kv-verify whole.h5 state.h5 --epsilon 0
  "$lab" make ordinary two.h5
  kv-quantize two.h5 --dtype f16 -o two.f16.h5 -q
  "$lab" split two.f16.h5 4 two.h5.shards
  kv-verify two.f16.h5 two.h5.shards --epsilon 0
}

@test "a model takes a state in shards, and refuses one whose layers keep something else" {
  hetero-prefill -m "$tiny" -p "Hello world" -o whole.h5 -q
  "$lab" split whole.h5 2 state.h5
  hetero-decode -m "$tiny" whole.h5 -n 8 --json -q | json_list token_ids >expected
  hetero-decode -m "$tiny" state.h5 -n 8 --json -q | json_list token_ids >actual
  [ -s expected ]
  cmp expected actual
  kv-verify whole.h5 state.h5 -m "$tiny" --steps 4 --epsilon 0
  refuses 3 'stdin: is shard 1 of 2, with head' hetero-decode -m "$tiny" - -n 8 <state.tp1of2.h5
  "$lab" window whole.h5 swa.h5 2
  kv-verify swa.h5
  refuses 3 'swa.h5 stores other kinds of layers than the model .*: layer 0 .*: the state has swa \(window 2\), the model gqa' \
    hetero-decode -m "$tiny" swa.h5 -n 8
  refuses 3 'swa.h5 stores other kinds of layers' kv-verify swa.h5 swa.h5 -m "$tiny" --steps 4 --epsilon 1
  refuses 3 'swa.h5 stores other kinds of layers' hetero-prefill -m "$tiny" --prefix swa.h5 -p "Hello world again" -o c.h5
}

@test "kinds and shards over MPI" {
  need_mpi
  "$lab" make windows windows.h5
  "$lab" make latent latent.h5
  "$lab" split windows.h5 2 state.h5
  for name in windows.h5 latent.h5 state.h5; do
    mpirun --oversubscribe -n 1 kv-send $name -o mpi:1 -q : -n 1 kv-send mpi:0 -o sent.$name -q </dev/null
  done
  cmp sent.windows.h5 windows.h5
  cmp sent.latent.h5 latent.h5
  cmp sent.state.h5 windows.h5
  # One rank's shard stays a shard: it is written by its own name.
  mpirun --oversubscribe -n 1 sh -c 'kv-send - -o mpi:1 -q <state.tp1of2.h5' : -n 1 kv-send mpi:0 -o sent.tp1of2.h5 -q </dev/null
  cmp sent.tp1of2.h5 state.tp1of2.h5
}

@test "the ranks of a group read a state in shards" {
  need_mpi
  hetero-prefill -m "$tiny" -p "Hello world" -o whole.h5 -q
  "$lab" split whole.h5 4 state.h5
  hetero-decode -m "$tiny" whole.h5 -n 8 --json -q | json_list token_ids >expected
  mpirun --oversubscribe -n 2 hetero-decode -m "$tiny" state.h5 --tp 2 -n 8 --json -q </dev/null | json_list token_ids >actual
  [ -s expected ]
  cmp expected actual
}
