#!/usr/bin/env bats
# The main job over files and pipes, and the ways in which a state can be continued.
load helper

prompt="The quick brown fox jumps over the lazy dog."

@test "files and pipes give the same text" {
  hetero-prefill -m "$tiny" -p "$prompt" -o a.h5 -q
  kv-quantize a.h5 -o q.h5 --dtype int8 -q
  hetero-decode -m "$tiny" q.h5 -n 32 --ignore-eos -q >files
  set -o pipefail
  hetero-prefill -m "$tiny" -p "$prompt" -o - -q | kv-quantize - --dtype int8 -o - -q |
    hetero-decode -m "$tiny" - -n 32 --ignore-eos -q >pipe
  [ -s files ]
  cmp files pipe
  # What went through a pipe is the file, bit for bit.
  hetero-prefill -m "$tiny" -p "$prompt" -o - -q >piped.h5
  kv-verify a.h5 piped.h5 --epsilon 0
  no_temporaries
}

@test "a pipe below and above --max-memory gives the same" {
  hetero-prefill -m "$tiny" -p "$prompt" -o a.h5 -q
  hetero-decode -m "$tiny" - -n 16 --ignore-eos -q <a.h5 >memory
  hetero-decode -m "$tiny" - -n 16 --ignore-eos -q --max-memory 1Ki <a.h5 >spooled
  cmp memory spooled
}

@test "a failed upstream never looks like a short state" {
  run bash -c "set -o pipefail
    hetero-prefill -m '$tiny' -p '' -o - 2>err1 | hetero-decode -m '$tiny' - -n 4 2>err2"
  [ "$status" -ne 0 ]
  [ -z "$output" ]
  grep -q 'prompt is empty' err1
  [ "$(wc -l <err2)" -eq 1 ]
}

@test "reports name what checks rely on" {
  hetero-prefill -m "$tiny" -p "$prompt" -o a.h5 --json >prefill
  for key in tool version schema n_tokens prefill_ms tokens_per_s kv_bytes; do grep -q "\"$key\":" prefill; done
  kv-quantize a.h5 -o q.h5 --dtype int8 --json >quantize
  for key in codec bits_per_value bytes_in bytes_out gb_per_s; do grep -q "\"$key\":" quantize; done
  kv-send q.h5 -o s.h5 --json >send
  for key in bytes seconds gb_per_s; do grep -q "\"$key\":" send; done
  hetero-decode -m "$tiny" q.h5 -n 4 --ignore-eos --json >decode
  for key in sequences id token_ids text finish_reason ttft_ms itl_ms itl_p50_ms itl_p99_ms; do
    grep -q "\"$key\":" decode
  done
  [ "$(json_list itl_ms <decode | tr ',' '\n' | grep -c .)" -eq 3 ]
  kv-verify a.h5 q.h5 -m "$tiny" --steps 8 --epsilon 1 --json >verify
  for key in pass max_abs_dp p99_abs_dp kl_mean kl_max max_abs_dlogit top1 steps worst; do grep -q "\"$key\":" verify; done
  ! grep -qiE 'nan|inf' prefill quantize send decode verify
  # The same document, whether printed or written.
  kv-verify a.h5 q.h5 --epsilon 1 --json --report report.json >printed
  cmp report.json printed
}

@test "a sent state is the same bits" {
  hetero-prefill -m "$tiny" -p "$prompt" -o a.h5 -q
  kv-send a.h5 -o b.h5 -q
  kv-verify a.h5 b.h5 --epsilon 0 --json >verify
  [ "$(json_value max_abs <verify)" = 0.0 ]
  hetero-decode -m "$tiny" a.h5 -n 16 --ignore-eos -q >from_a
  hetero-decode -m "$tiny" b.h5 -n 16 --ignore-eos -q >from_b
  cmp from_a from_b
}

@test "a run in two parts gives the tokens of one long run" {
  hetero-prefill -m "$tiny" -p "$prompt" -o a.h5 -q
  for how in "" "--temperature 0.9 --top-p 0.95 --seed 7"; do
    # shellcheck disable=SC2086
    long=$(hetero-decode -m "$tiny" a.h5 -n 24 --ignore-eos $how --json -q | json_list token_ids)
    # shellcheck disable=SC2086
    first=$(hetero-decode -m "$tiny" a.h5 -n 10 --ignore-eos $how --json -q -o b.h5 --force | json_list token_ids)
    # shellcheck disable=SC2086
    second=$(hetero-decode -m "$tiny" b.h5 -n 14 --ignore-eos $how --json -q | json_list token_ids)
    [ "$long" = "$first,$second" ]
  done
}

@test "a state without logits continues alike" {
  hetero-prefill -m "$tiny" -p "$prompt" -o with.h5 -q
  hetero-prefill -m "$tiny" -p "$prompt" -o without.h5 --logits none -q
  [ "$(hetero-decode -m "$tiny" with.h5 -n 16 --ignore-eos --json -q | json_list token_ids)" = \
    "$(hetero-decode -m "$tiny" without.h5 -n 16 --ignore-eos --json -q | json_list token_ids)" ]
}

@test "chunk size and number of threads do not change the tokens" {
  hetero-prefill -m "$tiny" -p "$prompt" -o a.h5 -q -t 1
  expected=$(hetero-decode -m "$tiny" a.h5 -n 16 --ignore-eos --json -q -t 1 | json_list token_ids)
  hetero-prefill -m "$tiny" -p "$prompt" -o b.h5 -q -t 2
  kv-verify a.h5 b.h5 --epsilon 0
  hetero-prefill -m "$tiny" -p "$prompt" -o c.h5 -q --chunk 3
  [ "$(hetero-decode -m "$tiny" b.h5 -n 16 --ignore-eos --json -q -t 2 | json_list token_ids)" = "$expected" ]
  [ "$(hetero-decode -m "$tiny" c.h5 -n 16 --ignore-eos --json -q | json_list token_ids)" = "$expected" ]
}

@test "--prefix computes only what is new, and gives the same state" {
  hetero-prefill -m "$tiny" --tokens 5,6,7,8,9 -o short.h5 -q
  hetero-prefill -m "$tiny" --tokens 5,6,7,8,9,10,11,12 -o long.h5 -q
  hetero-prefill -m "$tiny" --tokens 5,6,7,8,9,10,11,12 --prefix short.h5 -o extended.h5 --json >report
  [ "$(json_value n_computed <report)" = 3 ]
  kv-verify long.h5 extended.h5 --epsilon 0.01
  expected=$(hetero-decode -m "$tiny" long.h5 -n 16 --ignore-eos --json -q | json_list token_ids)
  [ "$(hetero-decode -m "$tiny" extended.h5 -n 16 --ignore-eos --json -q | json_list token_ids)" = "$expected" ]
  # The other way round: the state is the longer one.
  expected=$(hetero-decode -m "$tiny" short.h5 -n 16 --ignore-eos --json -q | json_list token_ids)
  hetero-prefill -m "$tiny" --tokens 5,6,7,8,9 --prefix long.h5 -o cut.h5 -q
  [ "$(hetero-decode -m "$tiny" cut.h5 -n 16 --ignore-eos --json -q | json_list token_ids)" = "$expected" ]
  refuses 3 'position 4' hetero-prefill -m "$tiny" --tokens 5,6,7,8,1,10 --prefix short.h5 -o bad.h5
  [ ! -e bad.h5 ]
}

@test "a prompt given to decode must be the state's" {
  hetero-prefill -m "$tiny" --tokens 5,6,7,8,9 -o short.h5 -q
  hetero-prefill -m "$tiny" --tokens 5,6,7,8,9,10,11,12 -o long.h5 -q
  from_short=$(hetero-decode -m "$tiny" short.h5 -n 16 --ignore-eos --json -q | json_list token_ids)
  from_long=$(hetero-decode -m "$tiny" long.h5 -n 16 --ignore-eos --json -q | json_list token_ids)
  [ "$from_short" != "$from_long" ]
  [ "$(hetero-decode -m "$tiny" short.h5 --tokens 5,6,7,8,9 -n 16 --ignore-eos --json -q | json_list token_ids)" = "$from_short" ]
  [ "$(hetero-decode -m "$tiny" long.h5 --tokens 5,6,7,8,9 -n 16 --ignore-eos --json -q | json_list token_ids)" = "$from_short" ]
  [ "$(hetero-decode -m "$tiny" short.h5 --tokens 5,6,7,8,9,10,11,12 -n 16 --ignore-eos --json -q | json_list token_ids)" = "$from_long" ]
  refuses 3 'position 2' hetero-decode -m "$tiny" short.h5 --tokens 5,6,1 -n 4
}

@test "several prompts in one state" {
  cat >prompts.jsonl <<'END'
{"id": "one", "prompt": "Hello there"}
{"id": 20, "tokens": [5, 6, 7]}
{"messages": [{"role": "user", "content": "Hi"}]}
END
  hetero-prefill -m "$tiny" --jsonl prompts.jsonl -o all.h5 --json >report
  [ "$(grep -c '"id":' report)" -eq 3 ]
  kv-verify all.h5
  hetero-prefill -m "$tiny" --tokens 5,6,7 -o single.h5 -q
  [ "$(hetero-decode -m "$tiny" all.h5 --sequence 20 -n 12 --ignore-eos --json -q | json_list token_ids)" = \
    "$(hetero-decode -m "$tiny" single.h5 -n 12 --ignore-eos --json -q | json_list token_ids)" ]
  hetero-decode -m "$tiny" all.h5 -n 4 --ignore-eos --json -q >decoded
  [ "$(grep -c '"finish_reason":' decoded)" -eq 3 ]
  refuses 2 'choose one with --sequence' hetero-decode -m "$tiny" all.h5 -n 4
  refuses 3 "no sequence 'four'" hetero-decode -m "$tiny" all.h5 -n 4 --sequence four
}

@test "a JSON lines file with mistakes is refused, with the line" {
  echo '{"prompt": "a"}
{"prompt": "b", "token": 1}' >keys.jsonl
  refuses 3 "line 2.*unknown key 'token'" hetero-prefill -m "$tiny" --jsonl keys.jsonl -o x.h5
  echo '{"prompt": "a", "tokens": [1]}' >two.jsonl
  refuses 3 'line 1' hetero-prefill -m "$tiny" --jsonl two.jsonl -o x.h5
  printf '{"id": "x", "prompt": "a"}\n{"id": "x", "prompt": "b"}\n' >twice.jsonl
  refuses 3 "line 2.*'x'" hetero-prefill -m "$tiny" --jsonl twice.jsonl -o x.h5
  printf '{"prompt": "a"\n' >broken.jsonl
  refuses 3 'line 1' hetero-prefill -m "$tiny" --jsonl broken.jsonl -o x.h5
  printf '{"tokens": [1, -1]}\n' >negative.jsonl
  refuses 3 'line 1' hetero-prefill -m "$tiny" --jsonl negative.jsonl -o x.h5
  : >empty.jsonl
  refuses 3 'no prompt' hetero-prefill -m "$tiny" --jsonl empty.jsonl -o x.h5
  [ ! -e x.h5 ]
}

@test "stop text ends the output before it, and the context is never exceeded" {
  hetero-prefill -m "$tiny" -p "$prompt" -o a.h5 -q
  text=$(hetero-decode -m "$tiny" a.h5 -n 16 --ignore-eos --json -q | json_value text)
  [ -n "$text" ]
  # The context holds 512 tokens.
  seq -s, 3 506 >ids
  hetero-prefill -m "$tiny" --tokens @ids -o full.h5 -q
  hetero-decode -m "$tiny" full.h5 -n 100 --ignore-eos --json -q >decoded
  grep -q '"finish_reason": "context full"' decoded
  n=$(json_list token_ids <decoded | tr ',' '\n' | grep -c .)
  [ "$n" -ge 8 ] && [ "$n" -le 9 ]
}

@test "prompts at the edge of the context" {
  yes 7 | head -n 512 | paste -sd, >fits
  yes 7 | head -n 513 | paste -sd, >exceeds
  hetero-prefill -m "$tiny" --tokens @fits -o fits.h5 -q
  refuses 3 '513.*512' hetero-prefill -m "$tiny" --tokens @exceeds -o exceeds.h5
  [ ! -e exceeds.h5 ]
  hetero-prefill -m "$tiny" --tokens @exceeds -o cut.h5 --truncate start --json >report
  [ "$(json_value n_tokens <report)" = 512 ]
}

@test "logits of all positions as a NumPy file" {
  hetero-prefill -m "$tiny" --tokens 5,6,7 -o a.h5 --logits all --logits-out l.npy -q
  head -c 6 l.npy | od -An -tx1 | grep -q '93 4e 55 4d 50 59'
  head -c 128 l.npy | grep -aq "'shape': (3, 512)"
  [ "$(stat -c %s l.npy)" -eq $((128 + 3 * 512 * 4)) ]
  refuses 2 'logits' hetero-prefill -m "$tiny" --tokens 5 -o b.h5 --logits all
}

@test "perplexity of a text" {
  head -c 3000 "$HETERO_TESTDATA/text/austen_30k.txt" >text
  hetero-prefill -m "$tiny" --score text --json >report
  tokens=$(json_value n_tokens <report) ppl=$(json_value perplexity <report) nll=$(json_value nll_mean <report)
  awk -v p="$ppl" -v n="$nll" 'BEGIN { d = p / exp(n) - 1; exit !(d < 1e-9 && d > -1e-9 && n > 0) }'
  # The context of 512 is the window. With BOS before each window every token is scored; without, the first is not.
  [ "$(json_value scored <report)" -eq "$tokens" ]
  hetero-prefill -m "$tiny" --score text --bos off --json >off
  [ "$(json_value scored <off)" -eq $((tokens - (tokens + 511) / 512)) ]
  # What the model itself would write is likelier than what it would not.
  hetero-prefill -m "$tiny" --tokens 1,5,6,7 -o a.h5 -q
  hetero-decode -m "$tiny" a.h5 -n 200 --ignore-eos -q >own
  hetero-prefill -m "$tiny" --score own --json >likely
  awk -v own="$(json_value perplexity <likely)" -v other="$ppl" 'BEGIN { exit !(own < other) }'
}

@test "outputs: not overwritten without --force, not the input, not on a terminal's stdout with JSON" {
  hetero-prefill -m "$tiny" -p a -o a.h5 -q
  cp a.h5 before.h5
  refuses 3 'a.h5' hetero-prefill -m missing.gguf -p b -o a.h5
  cmp a.h5 before.h5
  hetero-prefill -m "$tiny" -p b -o a.h5 --force -q
  ! cmp -s a.h5 before.h5
  cp a.h5 before.h5
  run kv-quantize a.h5 -o a.h5 --dtype int8 --force
  [ "$status" -ne 0 ]
  cmp a.h5 before.h5
  refuses 2 'stdout' hetero-prefill -m "$tiny" -p b -o - --json
  refuses 3 '/dev/null' hetero-prefill -m "$tiny" -p b -o /dev/null --force
  [ "$(stat -c %a a.h5)" = 600 ]
}

@test "--dry-run computes and writes nothing" {
  hetero-prefill -m "$tiny" -p "$prompt" -o a.h5 --dry-run --json >report
  grep -q '"dry_run": true' report
  [ ! -e a.h5 ]
  predicted=$(json_value kv_bytes <report)
  [ "$(hetero-prefill -m "$tiny" -p "$prompt" -o a.h5 --json | json_value kv_bytes)" = "$predicted" ]
}

@test "a longer prompt and no token leave a state that goes on like a fresh one" {
  hetero-prefill -m "$tiny" --tokens 5,6,7 -o a.h5 -q
  hetero-decode -m "$tiny" a.h5 -n 1 --ignore-eos -o p1.h5 -q >/dev/null
  fed=$(hetero-decode -m "$tiny" a.h5 -n 1 --ignore-eos --json -q | json_list token_ids)
  other=$((fed == 9 ? 10 : 9))
  hetero-decode -m "$tiny" p1.h5 -n 0 --tokens 5,6,7,$other,11 -o p2.h5 -q
  hetero-prefill -m "$tiny" --tokens 5,6,7,$other,11 -o fresh.h5 -q
  [ "$(hetero-decode -m "$tiny" p2.h5 -n 8 --ignore-eos --json -q | json_list token_ids)" = \
    "$(hetero-decode -m "$tiny" fresh.h5 -n 8 --ignore-eos --json -q | json_list token_ids)" ]
  # Without a prompt the token that was chosen stays.
  hetero-decode -m "$tiny" p1.h5 -n 0 -o p3.h5 -q
  [ "$(hetero-decode -m "$tiny" p3.h5 -n 8 --ignore-eos --json -q | json_list token_ids)" = \
    "$(hetero-decode -m "$tiny" p1.h5 -n 8 --ignore-eos --json -q | json_list token_ids)" ]
}

@test "several sequences are continued in a file, their texts not mixed; one token has no ITL" {
  printf '{"id": "a", "tokens": [5, 6]}\n{"id": "b", "tokens": [7, 8, 9]}\n' >two.jsonl
  hetero-prefill -m "$tiny" --jsonl two.jsonl -o two.h5 -q
  run --separate-stderr hetero-decode -m "$tiny" two.h5 -n 4 --ignore-eos -o on.h5
  [ "$status" -eq 0 ]
  [ -z "$output" ]
  kv-verify on.h5
  for id in a b; do
    long=$(hetero-decode -m "$tiny" two.h5 --sequence $id -n 10 --ignore-eos --json -q | json_list token_ids)
    first=$(hetero-decode -m "$tiny" two.h5 --sequence $id -n 4 --ignore-eos --json -q -o one.h5 --force | json_list token_ids)
    second=$(hetero-decode -m "$tiny" on.h5 --sequence $id -n 6 --ignore-eos --json -q | json_list token_ids)
    [ "$long" = "$first,$second" ]
    kv-verify one.h5 on.h5 --sequence $id --epsilon 0
  done
  run --separate-stderr hetero-decode -m "$tiny" on.h5 --sequence a -n 1 --ignore-eos
  grep -q 'ITL p50 -, p99 -' <<<"$stderr"
  # Every tool can take one of several.
  kv-send two.h5 --sequence b -o b.h5 -q
  kv-quantize two.h5 --sequence b --dtype f32 -o b32.h5 --json -q >report
  hetero-prefill -m "$tiny" --tokens 7,8,9 -o single.h5 --json -q | grep '"kv_bytes"' >single
  [ "$(json_value bytes_in <report)" = "$(json_value kv_bytes <single)" ]
  kv-verify two.h5 b.h5 --sequence b --epsilon 0
  refuses 3 "no sequence 'c'" kv-send two.h5 --sequence c -o c.h5
  # What is left out is checked all the same.
  size=$(stat -c %s two.h5)
  head -c $((size - 1)) two.h5 >cut.h5
  refuses 3 'cut.h5' kv-send cut.h5 --sequence a -o c.h5
  [ ! -e c.h5 ]
}

@test "a JSON lines file: bad ids and deep nesting are found with their line, before any work" {
  printf '{"id": "a", "tokens": [5]}\n{"id": "", "tokens": [5]}\n' >empty.jsonl
  refuses 3 'line 2.*empty id' hetero-prefill -m "$tiny" --jsonl empty.jsonl -o x.h5
  { printf '{"tokens": ['; head -c 1000000 /dev/zero | tr '\0' '['; head -c 1000000 /dev/zero | tr '\0' ']'; echo ']}'; } >deep.jsonl
  refuses 3 'line 1' hetero-prefill -m "$tiny" --jsonl deep.jsonl -o x.h5
  printf '{"tokens": [[[1]]]}\n' >nested.jsonl
  refuses 3 'line 1.*no token id' hetero-prefill -m "$tiny" --jsonl nested.jsonl -o x.h5
}

@test "waiting for an upstream is no transfer" {
  hetero-prefill -m "$tiny" --tokens 5,6,7 -o a.h5 -q
  { sleep 3; cat a.h5; } | kv-send - -o b.h5 --json -q >report
  awk -v s="$(json_value seconds <report)" 'BEGIN { exit !(s > 0 && s < 3) }'
  { sleep 3; cat a.h5; } | hetero-decode -m "$tiny" - -n 1 --json -q >report
  awk -v ms="$(json_value read_ms <report)" 'BEGIN { exit !(ms > 0 && ms < 3000) }'
}

@test "kv-send --dry-run prints what would be sent, and refuses what would be refused" {
  hetero-prefill -m "$tiny" --tokens 5,6,7 -o a.h5 -q
  kv-send a.h5 --dry-run --json -q >report
  kv-send a.h5 -o b.h5 --json -q >sent
  [ "$(json_value bytes <report)" = "$(json_value bytes <sent)" ]
  awk '/"[kv]_bytes":/ { gsub(",", ""); sum += $2 } END { print sum }' report >sum
  [ "$(cat sum)" = "$(json_value bytes <sent)" ]
  kv-send a.h5 --dry-run -o mpi:1 --max-rate 1M -q | grep -q 'f16'
  kv-send a.h5 --dry-run -o c.h5 -q >/dev/null
  [ ! -e c.h5 ]
  refuses 3 'b.h5' kv-send a.h5 --dry-run -o b.h5
  [ -z "$(kv-send a.h5 --dry-run -o - -q)" ]
}

@test "kv-send --bench measures a link beside plain MPI, and judges only what is steady" {
  need_mpi
  mpirun --oversubscribe -n 1 kv-send --bench mpi:1 --bench-size 64Ki --json -q : \
    -n 1 kv-send --bench mpi:0 --bench-size 64Ki -q </dev/null >report
  for key in gb_per_s raw_gb_per_s latency_us_p50 latency_us_p99 seconds; do
    awk -v x="$(json_value $key <report)" 'BEGIN { exit !(x > 0) }'
  done
  [ "$(json_value message_bytes <report)" = 65536 ]
  [ "$(json_value rounds <report)" = 15 ]
  [ "$(json_value chunk_bytes <report)" = 1048576 ]
  [ "$(json_value window_bytes <report)" -ge $((8 << 20)) ]
  settled=$(json_value settled <report)
  ratio=$(json_value ratio <report)
  [ "$settled" = true ] && [ "$ratio" != null ] || { [ "$settled" = false ] && [ "$ratio" = null ]; }
  refuses 2 "multiple of 2048" kv-send --bench mpi:1 --bench-size 1000
  refuses 2 'needs two processes started by mpirun' kv-send --bench mpi:1
  refuses 2 'only mpi:RANK has a link' kv-send --bench a.h5
  refuses 2 'takes no state' kv-send a.h5 --bench mpi:1
  refuses 2 '--dry-run is of a state' kv-send --bench mpi:1 --dry-run
  refuses 2 '--wire-dtype is of a state' kv-send --bench mpi:1 --wire-dtype int8
  refuses 2 '--bench-size goes with --bench' kv-send a.h5 -o b.h5 --bench-size 64Ki
  refuses 2 'is for mpi: and mpi-port: endpoints' kv-send a.h5 -o b.h5 --fault drop=0.1
  refuses 2 'no room beside signs of life; at least 512' kv-send mpi:1 -o b.h5 --max-rate 100
}

@test "what a report cannot know is null, not left out" {
  hetero-prefill -m "$tiny" --tokens 5,6,7 -o a.h5 -q
  hetero-prefill -m "$tiny" --tokens 5,6,7 --dry-run --json -q >report
  [ "$(json_value n_tokens <report)" = 3 ]
  kv-send a.h5 -o b.h5 --json -q >report
  for key in raw_gb_per_s ratio latency_us_p50 latency_us_p99; do [ "$(json_value $key <report)" = null ]; done
  kv-verify a.h5 b.h5 --epsilon 0 --json >report
  for key in max_abs_dp p99_abs_dp kl_mean kl_max max_abs_dlogit top1 steps; do
    [ "$(json_value $key <report)" = null ]
  done
  [ "$(json_value same_weights <report)" = true ]
  hetero-decode -m "$tiny" a.h5 -n 1 --json -q | grep -q '"same_weights": true'
  hetero-prefill -m "$tiny" --tokens 5,6,7,8 --prefix a.h5 -o c.h5 --json -q | grep -q '"same_weights": true'
}

@test "--dry-run of the others checks and reports, and writes nothing" {
  hetero-prefill -m "$tiny" --tokens 5,6,7 -o a.h5 -q
  kv-send a.h5 -o b.h5 --dry-run --json -q >report
  grep -q '"dry_run": true' report
  [ "$(json_value seconds <report)" = null ]
  kv-quantize a.h5 --dtype int8 --dry-run --json -q >predicted
  kv-quantize a.h5 --dtype int8 -o q.h5 --json -q >real
  for key in bytes_out bits_per_value max_abs_error; do
    [ "$(json_value $key <predicted)" = "$(json_value $key <real)" ]
  done
  hetero-decode -m "$tiny" a.h5 --dry-run -o c.h5 --json -q >report
  [ "$(json_value n_prompt_tokens <report)" = 3 ]
  [ ! -e b.h5 ] && [ ! -e c.h5 ]
  refuses 3 'position 1' hetero-decode -m "$tiny" a.h5 --tokens 5,9 --dry-run
  refuses 2 'dry-run' kv-send mpi:1 -o d.h5 --dry-run
  head -c $(($(stat -c %s a.h5) - 1)) a.h5 >cut.h5
  refuses 3 'cut.h5' hetero-decode -m "$tiny" cut.h5 --dry-run
  refuses 3 'cut.h5' kv-send cut.h5 --dry-run
}
