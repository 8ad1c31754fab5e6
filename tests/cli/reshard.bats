#!/usr/bin/env bats
# kv-send between sets of shards, and from one representation to another while it moves.
load helper
lab=$HETERO_BIN/kv_lab

setup() {
  cd "$BATS_TEST_TMPDIR" || return 1
  hetero-prefill -m "$tiny" -p "Hello world" -o a.h5 -q # 2 KV heads, 4 query heads
}

@test "files of n shards out of files of m, to and fro, are the same state" {
  kv-send a.h5 --split 2 -o two.h5 -q
  kv-send two.h5 --split 3 -o three.h5 -q
  kv-send three.tp1of3.h5 --split 4 -o four.h5 -q
  kv-send four.h5 --split 2 -o again.h5 -q
  kv-send four.h5 -o whole.h5 -q
  for state in two.h5 three.h5 four.h5 again.h5 whole.h5; do kv-verify a.h5 $state --epsilon 0; done
  [ "$(ls four.*)" = "$(printf 'four.tp%dof4.h5\n' 0 1 2 3)" ]
  # More ranks than heads hold them several times, as the engine's ranks do.
  kv-verify - --json <four.tp1of4.h5 | tr -d ' \n' | grep -qF '"shard":{"tp_size":4,"tp_rank":1,"head_first":0,"head_count":1}'
  kv-verify - --json <three.tp1of3.h5 | tr -d ' \n' | grep -qF '"shard":{"tp_size":3,"tp_rank":1,"head_first":0,"head_count":1}'
  # The logits are in one of them.
  hetero-decode -m "$tiny" a.h5 -n 8 --json -q | json_list token_ids >expected
  hetero-decode -m "$tiny" four.h5 -n 8 --json -q | json_list token_ids >actual
  [ -s expected ]
  cmp expected actual
}

@test "shards of two runs are not put together, though both are of one state" {
  kv-send a.h5 --split 2 -o x.h5 -q
  kv-send a.h5 --split 2 -o y.h5 -q
  mv y.tp1of2.h5 x.tp1of2.h5
  refuses 3 'of different runs' kv-send x.h5 -o z.h5
}

@test "quantized states are cut with their scales, and not where heads share one" {
  for spec in int8:channel:g4:asym had:int4:token:g8 int8:head; do
    kv-quantize a.h5 --k $spec --v $spec -o q.h5 --force -q
    rm -f s.*
    kv-send q.h5 --split 2 -o s.h5 -q
    kv-send s.h5 -o back.h5 --force -q
    kv-quantize q.h5 --dtype f32 -o q32.h5 --force -q
    kv-quantize back.h5 --dtype f32 -o back32.h5 --force -q
    kv-verify q32.h5 back32.h5 --epsilon 0
  done
  kv-quantize a.h5 --dtype int8 --axis tensor -o t.h5 -q
  rm -f s.*
  refuses 3 'layer 0, K: a scale that all heads share' kv-send t.h5 --split 2 -o s.h5
  [ -z "$(ls s.* 2>/dev/null)" ]
  kv-send t.h5 --split 2 --dtype f32 -o s.h5 -q # what they stand for can be
  kv-quantize t.h5 --dtype f32 -o t32.h5 -q
  kv-verify t32.h5 s.h5 --epsilon 0
}

@test "conversion while it moves is what kv-quantize makes, and says what it loses" {
  for type in f32 bf16 int8; do
    kv-send a.h5 --dtype $type -o sent.h5 --force -q --json >report
    kv-quantize a.h5 --dtype $type -o made.h5 --force -q
    kv-verify sent.h5 made.h5 --epsilon 0
    expected=lossy
    [ $type != f32 ] || expected=exact
    grep -q "\"conversion\": \"$expected\"" report
  done
  kv-send a.h5 --dtype f32 --split 2 -o s.h5 -q
  kv-send s.h5 --dtype f16 -o back.h5 -q # through f32 and shards, and nothing is lost
  kv-verify a.h5 back.h5 --epsilon 0
  kv-send a.h5 --dtype int8 -o - -q | kv-verify - made.h5 --epsilon 0
  refuses 2 'already quantized .*--requantize' kv-send made.h5 --dtype int4 -o x.h5
  kv-send made.h5 --dtype int4 --requantize -o x.h5 --json -q | grep -q '"conversion": "requantized"'
}

@test "options that make no sense, and outputs that are there" {
  refuses 2 'cannot divide the model.s 4 attention heads' kv-send a.h5 --split 5 -o x.h5
  refuses 2 '--split: - cannot be divided' kv-send a.h5 --split 2 -o -
  refuses 2 '--dtype is of what is stored' kv-send a.h5 --dtype int8 -o mpi:1
  refuses 2 "unknown codec 'int9'" kv-send a.h5 --dtype int9 -o x.h5
  refuses 2 '--requantize goes with --dtype' kv-send a.h5 --requantize -o x.h5
  refuses 3 'a.h5: is there, and would be read instead' kv-send a.h5 --split 2 -o a.h5
  kv-send a.h5 --split 2 -o s.h5 -q
  refuses 3 's.tp0of2.h5: exists already' kv-send a.h5 --split 2 -o s.h5
  refuses 2 'is the input' kv-send s.h5 --split 2 -o s.h5 --force
  kv-send a.h5 --split 2 -o s.h5 --force -q
}

@test "a dry run names steps, links, heads, bytes and who converts, and moves nothing" {
  kv-send a.h5 --split 2 -o two.h5 -q
  kv-send two.h5 --split 3 --dtype int8 -o x.h5 --dry-run --json -q | tr -d ' \n' >plan
  grep -qF '"steps":["convert","redistribute"],"converts":"sender"' plan
  grep -qF '{"from":"two.tp0of2.h5","to":"x.tp0of3.h5","head_first":0,"head_count":1,"tokens":8,"bytes":864}' plan
  grep -qF '{"from":"two.tp1of2.h5","to":"x.tp2of3.h5","head_first":1,"head_count":1,"tokens":8,"bytes":864}' plan
  grep -qF '{"name":"x.tp1of3.h5","head_first":0,"head_count":1}' plan
  run kv-send a.h5 --tp 3 -o mpi:3-4 --dry-run # as ranks, without mpirun
  [ "$status" -eq 0 ]
  [[ "$output" == *"mpi:4 will hold head 1 of 2"* ]]
  grep -qE '^rank 0 +mpi:3 +0 +8 +1.5 KiB' <<<"$output"
  grep -qE '^rank 2 +mpi:4 +1 +8 +1.5 KiB' <<<"$output"
  [ -z "$(ls x.* 2>/dev/null)" ]
  # What a link would carry is what the transfer carries.
  kv-quantize a.h5 --dtype int8 -o q.h5 -q
  run kv-send q.h5 --wire-dtype f32 -o mpi:1 --dry-run
  [[ "$output" == *"let the receiver convert it"* ]]
  refuses 2 'cannot divide' kv-send a.h5 --tp 5 -o mpi:5 --dry-run
  kv-quantize a.h5 --dtype int8 --axis tensor -o t.h5 -q
  refuses 3 'a scale that all heads share' kv-send t.h5 --split 2 -o x.h5 --dry-run
  refuses 2 'name the shards' kv-send a.h5 --split 2 --dry-run
}

@test "the layouts of other engines: safetensors in blocks, heads first, interleaved, and back" {
  for layout in "" "--layout hnd --block 16" "--block 4 --rope interleaved" "--layout hnd --rope interleaved --rotary-dims 8"; do
    # shellcheck disable=SC2086
    kv-send a.h5 $layout -o pages.safetensors --force -q
    kv-send pages.safetensors -o back.h5 --force -q
    cmp a.h5 back.h5
  done
  refuses 2 'read it with kv-send pages.safetensors' kv-quantize pages.safetensors --dtype int8 -o q.h5
  refuses 2 'then kv-send STATE.h5' kv-quantize a.h5 --dtype int8 -o q.safetensors
  [ ! -e q.safetensors ]
  kv-send a.h5 --split 2 --layout hnd -o s.safetensors -q
  kv-send s.tp1of2.safetensors -o s.tp1of2.h5 -q
  kv-send s.tp0of2.safetensors -o s.tp0of2.h5 -q
  kv-verify a.h5 s.h5 --epsilon 0
  kv-quantize a.h5 --dtype int8 -o q.h5 -q
  refuses 3 'layer 0, K: int8 has no other layout' kv-send q.h5 -o x.safetensors
  kv-send q.h5 --dtype f16 -o x.safetensors -q
  refuses 2 'cannot be rotated in pairs' kv-send a.h5 --rope interleaved --rotary-dims 7 -o y.safetensors
  refuses 2 'states have one layout' kv-send a.h5 --layout hnd -o y.h5
  refuses 2 'goes with --rope interleaved' kv-send a.h5 --rotary-dims 8 -o y.safetensors
  refuses 3 "no tensor 'state'" kv-send "$HETERO_TESTDATA"/golden/tiny/llama/bf16/model.safetensors -o y.h5
  [ ! -e y.safetensors ]
}
