#!/usr/bin/env bats
# States that are quantized where they are made, or on their way to another rank.
load helper

setup() {
  cd "$BATS_TEST_TMPDIR" || return 1
  for text in a b c; do
    awk -v seed="$(printf '%d' "'$text")" \
      'BEGIN { for (i = 0; i < 70; ++i) printf "%d ", (i * i * 13 + i * 5 + seed) % 512 }' >$text.ids
  done
}

# A plan of the tiny model that has passed its gate.
plan() {
  kv-calibrate -m "$tiny" --text @a.ids --text @b.ids --held-out @c.ids --prompt-tokens 50 --steps 20 --search-steps 10 \
    --k-options wf4,int8:channel:g32:asym --v-options had:int4,int8 --bits 8 --epsilon 0.9 -o plan.toml -q >/dev/null
  grep -q '^passed = true' plan.toml
}

# jobs FIRST : SECOND, as ranks 0 and 1
job() {
  mpirun --oversubscribe "$@" </dev/null
}

@test "hetero-prefill --plan stores what kv-quantize --plan makes of its state" {
  plan
  hetero-prefill -m "$tiny" --tokens @a.ids -o plain.h5 -q
  kv-quantize plain.h5 --plan plan.toml -o quantized.h5 --json -q >quantized
  hetero-prefill -m "$tiny" --tokens @a.ids --plan plan.toml -o direct.h5 --json -q >direct
  kv-verify quantized.h5 direct.h5 --epsilon 0 -q >/dev/null
  for key in plan same_weights codec k v sinks scheme bits_per_value max_abs_error; do
    [ -n "$(json_value $key <direct)" ]
    [ "$(json_value $key <direct)" = "$(json_value $key <quantized)" ] || { echo "$key"; return 1; }
  done
  [ "$(json_value kv_bytes <direct)" = "$(json_value bytes_out <quantized)" ]
  # a dry run knows its size, a pipe carries it, several sequences too
  hetero-prefill -m "$tiny" --tokens @a.ids --plan plan.toml --dry-run --json -q >dry
  [ "$(json_value kv_bytes <dry)" = "$(json_value bytes_out <quantized)" ]
  hetero-prefill -m "$tiny" --tokens @a.ids --plan plan.toml -o - -q | kv-verify direct.h5 - --epsilon 0 -q >/dev/null
  printf '{"id": "%s", "tokens": [%s]}\n' x "$(sed 's/ $//; s/ /,/g' a.ids)" y "$(sed 's/ $//; s/ /,/g' b.ids)" >two.jsonl
  hetero-prefill -m "$tiny" --jsonl two.jsonl --plan plan.toml -o two.h5 -q
  hetero-prefill -m "$tiny" --jsonl two.jsonl -o - -q | kv-quantize - --plan plan.toml -o - -q |
    kv-verify two.h5 - --epsilon 0 -q >/dev/null
  hetero-decode -m "$tiny" direct.h5 -n 4 --ignore-eos -q >/dev/null
}

@test "hetero-prefill refuses a plan that does not fit, before it computes" {
  plan
  refuses 2 '--kv-dtype keeps codes' hetero-prefill -m "$tiny" -p a --plan plan.toml --kv-dtype int8 -o x.h5
  refuses 2 'several plans' hetero-prefill -m "$tiny" -p a --plan plan.toml --plan plan.toml -o x.h5
  refuses 2 'exclude each other' hetero-prefill -m "$tiny" -p a --plan plan.toml --wire-dtype int8 -o mpi:1
  refuses 2 'is of what goes to mpi:RANK' hetero-prefill -m "$tiny" -p a --wire-dtype int8 -o x.h5
  refuses 2 'is of what goes to mpi:RANK' kv-send x.h5 --wire-dtype auto -o y.h5
  refuses 2 "--wire-dtype: .*unknown codec 'int9'" hetero-prefill -m "$tiny" -p a --wire-dtype int9 -o mpi:1
  refuses 3 'nosuch.toml: cannot open plan' hetero-prefill -m none.gguf -p a --plan nosuch.toml -o x.h5
  refuses 3 'plan is of another model' \
    hetero-prefill -m "$HETERO_TESTDATA/golden/tiny/gguf/qwen2-q8_0.gguf" -p a --plan plan.toml -o x.h5
  hetero-prefill -m "$tiny" --tokens 1,2,3 -o - -q | kv-quantize - --dtype int8 -o q.h5 -q
  refuses 2 'prefix is quantized already' hetero-prefill -m "$tiny" --tokens 1,2,3,4 --prefix q.h5 --plan plan.toml -o x.h5
  hetero-prefill -m "$tiny" --tokens 1,2,3 -o p.h5 -q
  refuses 2 'kv-quantize --plan stores' kv-send p.h5 --plan plan.toml -o x.h5
  # what a dry run would send, and by which plan
  kv-send p.h5 --plan plan.toml -o mpi:1 --dry-run --json -q >dry
  [ "$(json_value plan <dry)" = '"plan.toml"' ]
  grep -q '"transfer": {' dry
  [ ! -e x.h5 ]
  # a setting gives way to the command line, and does not blame a file
  HETERO_WIRE_DTYPE=int8 hetero-prefill -m "$tiny" --tokens 1,2,3 -o s.h5 -q
  kv-verify p.h5 s.h5 --epsilon 0 -q >/dev/null
}

@test "--wire-dtype quantizes on the way to another rank" {
  need_mpi
  hetero-prefill -m "$tiny" --tokens @a.ids -o plain.h5 -q
  kv-quantize plain.h5 --preset hk4 -o hk4.h5 -q
  kv-quantize plain.h5 --dtype int8 -o int8.h5 -q
  job -n 1 kv-send plain.h5 --wire-dtype hk4 -o mpi:1 --report sent.json -q : -n 1 kv-send mpi:0 -o got.h5 -q
  kv-verify hk4.h5 got.h5 --epsilon 0 -q >/dev/null
  [ "$(json_value bytes <sent.json)" -lt "$(hetero-prefill -m "$tiny" --tokens @a.ids --dry-run --json -q | json_value kv_bytes)" ]
  job -n 1 hetero-prefill -m "$tiny" --tokens @a.ids --wire-dtype int8 -o mpi:1 -q : -n 1 kv-send mpi:0 -o got8.h5 -q
  kv-verify int8.h5 got8.h5 --epsilon 0 -q >/dev/null
  # what is quantized already is not quantized again
  run --separate-stderr job -n 1 kv-send int8.h5 --wire-dtype int4 -o mpi:1 : -n 1 kv-send mpi:0 -o x.h5
  [ "$status" -ne 0 ]
  [[ $stderr == *'already quantized (int8)'* ]]
  [ ! -e x.h5 ]
}

@test "--wire-dtype auto measures the link, and takes certified plans only" {
  need_mpi
  plan
  sed 's/^passed = true/passed = false/' plan.toml >failed.toml
  sed '/^\[gate\]/,/^$/d' plan.toml >ungated.toml
  sed 's/^weights_digest = "../weights_digest = "00/' plan.toml >other.toml
  kv-calibrate -m "$HETERO_TESTDATA/golden/tiny/gguf/qwen2-q8_0.gguf" --text @a.ids --held-out @b.ids --prompt-tokens 50 \
    --steps 20 --search-steps 5 --k-options int8 --v-options int8 --bits 12 --epsilon 0.9 -o foreign.toml -q >/dev/null
  hetero-prefill -m "$tiny" --tokens @a.ids -o plain.h5 -q
  job -n 1 kv-send plain.h5 --wire-dtype auto --plan failed.toml --plan ungated.toml --plan other.toml --plan foreign.toml \
    -o mpi:1 --report sent.json -v : -n 1 kv-send mpi:0 -o got.h5 -q 2>said
  kv-verify plain.h5 got.h5 --epsilon 0 -q >/dev/null
  grep -q '"choice": "f16"' sent.json
  grep -q 'no plan is certified' sent.json
  grep -q 'failed.toml is no candidate: it did not pass its gate' said
  grep -q 'ungated.toml is no candidate: it holds no gate' said
  grep -q 'other.toml is no candidate: it was calibrated with other weights' said
  grep -q 'foreign.toml is no candidate: .*plan is of another model' said
  # With one that holds: the reason and the choice agree with what was measured.
  job -n 1 hetero-prefill -m "$tiny" --tokens @a.ids --wire-dtype auto --plan plan.toml -o mpi:1 --report auto.json -v : \
    -n 1 kv-send mpi:0 -o auto.h5 -q 2>said
  grep -q 'the link to mpi:1: [0-9.]* GB/s' said
  grep -q 'plan.toml: .*faster below [0-9.]* GB/s' said
  awk -v link="$(json_value link_gb_per_s <auto.json)" -v even="$(json_value break_even_gb_per_s <auto.json)" \
    -v choice="$(json_value choice <auto.json)" \
    'BEGIN { exit !(link > 0 && even > 0 && (choice == "\"plan.toml\"") == (link < even)) }'
  kv-quantize plain.h5 --plan plan.toml -o quantized.h5 -q
  case $(json_value choice <auto.json) in
    '"f16"') kv-verify plain.h5 auto.h5 --epsilon 0 -q >/dev/null ;;
    *) kv-verify quantized.h5 auto.h5 --epsilon 0 -q >/dev/null ;;
  esac
  for key in latency_us encode_ms decode_ms total_ms; do grep -q "\"$key\": [0-9]" auto.json; done
  # Over a slow link the smaller form wins.
  job -n 1 kv-send plain.h5 --wire-dtype auto --plan plan.toml --max-rate 1M -o mpi:1 --report slow.json -q : \
    -n 1 kv-send mpi:0 -o slow.h5 -q
  [ "$(json_value choice <slow.json)" = '"plan.toml"' ]
  awk -v link="$(json_value link_gb_per_s <slow.json)" 'BEGIN { exit !(link <= 0.001) }'
  kv-verify quantized.h5 slow.h5 --epsilon 0 -q >/dev/null
  # A state of codes goes as it is.
  job -n 1 kv-send quantized.h5 --wire-dtype auto --plan plan.toml -o mpi:1 --report codes.json -q : -n 1 kv-send mpi:0 -o codes.h5 -q
  grep -q 'it is quantized already' codes.json
  kv-verify quantized.h5 codes.h5 --epsilon 0 -q >/dev/null
}

@test "kv-send goes on where a transfer broke off, and starts anew when it is asked to" {
  need_mpi
  hetero-prefill -m "$tiny" --tokens @a.ids -o a.h5 -q
  kv-send a.h5 -o whole.h5 -q
  chunks=$(kv-send a.h5 -o mpi:1 --dry-run --json -q | sed -n 's/^ *"chunks": \([0-9]*\).*/\1/p' | sort -n | tail -n 1)
  broken() {
    job -n 1 kv-send a.h5 -o mpi:1 -q --fault stall=$((chunks * 3 / 4 + 2)) : \
      -n 1 sh -c '"$@"; echo $? >status' sh kv-send mpi:0 -o b.h5 -q --timeout 4s || true
    [ "$(cat status)" = 5 ] && [ ! -e b.h5 ] && ls .b.h5.*.part .b.h5.*.journal
  }
  broken
  job -n 1 kv-send a.h5 -o mpi:1 -q --report sender : -n 1 kv-send mpi:0 -o b.h5 -q --report receiver
  cmp whole.h5 b.h5
  for report in sender receiver; do
    [ "$(json_value resumed_bytes <$report)" -gt 0 ]
    [ $(($(json_value resumed_bytes <$report) + $(json_value sent_bytes <$report))) = "$(json_value bytes <$report)" ]
  done
  rm b.h5
  [ -z "$(ls -A | grep '^\.b')" ]
  broken
  job -n 1 kv-send a.h5 -o mpi:1 -q : -n 1 kv-send mpi:0 -o b.h5 -q --resume off --report anew
  cmp whole.h5 b.h5
  [ "$(json_value resumed_bytes <anew)" = 0 ]
  [ -z "$(ls -A | grep '^\.b')" ]
  run -2 kv-send a.h5 -o c.h5 --resume auto
  [[ $output == *"--resume is for a whole state that goes from another process into a file as it is"* ]]
}
