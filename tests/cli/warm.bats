#!/usr/bin/env bats
# --warm, --cache, --precise and --exec: the same options in every run of a model.

load helper

setup() {
  cd "$BATS_TEST_TMPDIR" || return 1
  packed=$HETERO_TESTDATA/golden/tiny/gguf/llama-q8_0.gguf
  head -c 400 "$HETERO_TESTDATA/text/austen_30k.txt" >text
}

# kept DIR: how many files of packed weights are in it.
kept() { find "$1/packed" -name '*.packed' 2>/dev/null | wc -l; }

@test "each of the runs that computes keeps the packed weights, and maps those that are there" {
  hetero-prefill -m "$packed" --tokens 1,5,6,7 -o a.h5 -q
  hetero-prefill -m "$packed" --warm --cache alone -q
  hetero-prefill -m "$packed" --tokens 1,5,6,7 -o b.h5 --warm --cache prefill -q
  hetero-decode -m "$packed" a.h5 -n 2 --warm --cache decode -q >/dev/null
  hetero-prefill -m "$packed" --score text --warm --cache score -q >scored
  for dir in alone prefill decode score; do
    [ "$(kept $dir)" -eq 1 ]
    cmp alone/packed/*.packed $dir/packed/*.packed
  done
  hetero-prefill -m "$packed" --tokens 1,5,6,7 -o c.h5 --cache alone --json >report
  grep -q '"warm": true' report
  hetero-prefill -m "$packed" --score text --cache alone -q | cmp - scored
  printf damaged >alone/packed/"$(basename alone/packed/*.packed)"
  for run in "--tokens 5 -o d.h5" "--score text"; do
    # shellcheck disable=SC2086
    hetero-prefill -m "$packed" $run --cache alone >/dev/null 2>err
    grep -q 'packed weights are not used' err
  done
}

@test "--warm has nothing to keep with --precise" {
  hetero-prefill -m "$packed" --tokens 1,5,6,7 -o a.h5 -q
  refuses 2 '--precise has none' hetero-prefill -m "$packed" --warm --precise
  refuses 2 '--precise has none' hetero-prefill -m "$packed" --warm --precise --tokens 5 -o b.h5
  refuses 2 '--precise has none' hetero-prefill -m "$packed" --warm --precise --score text
  refuses 2 '--precise has none' hetero-decode -m "$packed" a.h5 --warm --precise
  # As a setting it is dropped.
  export HETERO_WARM=true
  hetero-prefill -m "$packed" --precise --tokens 5 -o c.h5 --cache none -q
  hetero-decode -m "$packed" a.h5 --precise -n 1 --cache none -q >/dev/null
  refuses 2 'no prompt' hetero-prefill -m "$packed" --precise --cache none
  [ "$(kept none)" -eq 0 ]
}

@test "--exec eager gives the bits of graph in all of them" {
  for exec in graph eager; do
    hetero-prefill -m "$packed" --tokens 1,5,6,7 -o $exec.h5 --exec $exec -q
    hetero-decode -m "$packed" $exec.h5 -n 4 --ignore-eos --exec $exec -q >$exec.text
    hetero-prefill -m "$packed" --score text --exec $exec -q >$exec.score
  done
  kv-verify graph.h5 eager.h5 --epsilon 0 -q >/dev/null
  cmp graph.text eager.text
  cmp graph.score eager.score
}

@test "a model file that was written to since is packed anew" {
  cp "$packed" m.gguf
  hetero-prefill -m m.gguf --warm --cache c -q
  hetero-prefill -m m.gguf --warm --cache c -q
  [ "$(kept c)" -eq 1 ]
  touch -d '2001-02-03' m.gguf
  hetero-prefill -m m.gguf --warm --cache c -q
  [ "$(kept c)" -eq 2 ]
}

@test "what writes no state takes no representation of one" {
  refuses 2 '--plan' hetero-prefill -m "$packed" --score text --plan missing.toml
  refuses 2 '--wire-dtype' hetero-prefill -m "$packed" --warm --wire-dtype int8
}

@test "a model with nothing to pack is warm as it is" {
  run --separate-stderr hetero-prefill -m "$HETERO_TESTDATA/golden/tiny/llama/f32" --warm --cache none
  [ "$status" -eq 0 ]
  [[ $stderr == *'nothing is packed'* ]]
  [ ! -e none ]
}
