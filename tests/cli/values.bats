#!/usr/bin/env bats
# Numbers: conversion to halves, quantization, comparison with NaN and infinity.
load helper
lab=$HETERO_BIN/kv_lab

@test "float32 to half is IEEE, at every value" {
  "$lab" make halves f32.h5
  kv-quantize f32.h5 --dtype f16 -o f16.h5 --json -q >report
  "$lab" print f16.h5 0 k values | tail -n +2 >halves
  at() { sed -n "$(($1 + 1))p" halves; }
  # 5 * i / 100000
  [ "$(at 4999)" = 3400 ]   # 0.24995
  [ "$(at 9999)" = 3800 ]   # 0.49995
  [ "$(at 19997)" = 3C00 ]  # 0.99985
  [ "$(at 39992)" = 4000 ]  # 1.9996
  [ "$(at 100001)" = 7BFF ] # 65519
  [ "$(at 100002)" = 0001 ] # 5.9604645e-8
  [ "$(at 100003)" = 0000 ] # 2.98e-8
  [ "$(at 100004)" = 8000 ] # -0.0
  # Equally spaced values, rounded to nearest, never decrease.
  head -n 100001 halves | sort -c  # positive numbers, in as many digits each
  # As far from the original as half of the last place, at most.
  max=$(json_value max_abs_error <report)
  awk -v x="$max" 'BEGIN { exit !(x > 0 && x <= 16) }'
  # The same through a pipe.
  kv-quantize - --dtype f16 -o - -q <f32.h5 >piped.h5
  kv-verify f16.h5 piped.h5 --epsilon 0
}

@test "a finite value that would become infinite is refused, with its place" {
  "$lab" make overflow f32.h5
  refuses 3 '65520' kv-quantize f32.h5 --dtype f16 -o f16.h5
  refuses 3 'token 1, head 0, dim 7' kv-quantize f32.h5 --dtype f16 -o f16.h5
  [ ! -e f16.h5 ]
  kv-quantize f32.h5 --dtype bf16 -o bf16.h5 -q
}

@test "groups of zeros come back as zeros, and disturb nobody" {
  "$lab" make zeros zeros.h5
  "$lab" make ordinary ordinary.h5
  for options in "" "--asym" "--group 32" "--axis channel --group 2 --asym"; do
    # shellcheck disable=SC2086
    kv-quantize zeros.h5 --dtype int8 $options -o q.h5 --force -q
    kv-quantize q.h5 --dtype f32 -o back.h5 --force -q
    kv-verify back.h5
    "$lab" print back.h5 0 k values | tail -n +2 >values
    ! grep -qi nan values
    # [token][2 heads][64]: head 1 of layer 0
    [ "$(awk 'int((NR - 1) / 64) % 2 == 1' values | sort -u | tr -d '-')" = 0 ]
  done
  # With a group per token and head, the others are bit for bit as without the zeros.
  kv-quantize zeros.h5 --dtype int8 -o qz.h5 -q
  kv-quantize ordinary.h5 --dtype int8 -o qo.h5 -q
  "$lab" print qz.h5 1 v values | tail -n +2 | awk 'int((NR - 1) / 128) != 3' >z
  "$lab" print qo.h5 1 v values | tail -n +2 | awk 'int((NR - 1) / 128) != 3' >o
  [ "$(wc -l <z)" -eq 512 ]
  cmp z o
}

@test "a group never crosses a head, and the tail has its own scale" {
  "$lab" make groups in.h5
  accepted=0
  for group in 1 32 64 80 128; do
    run --separate-stderr kv-quantize in.h5 --dtype int8 --group $group -o q.h5 --force -q
    if [ "$status" -ne 0 ]; then
      grep -qE 'group' <<<"$stderr"
      continue
    fi
    accepted=$((accepted + 1))
    kv-quantize q.h5 --dtype f32 -o back.h5 --force -q
    "$lab" print back.h5 0 k values | tail -n +2 |
      awk '{ want = int((NR - 1) / 80) % 2 ? 1000 : 1; d = $1 - want; if (d < 0) d = -d; if (d > 0.004 * want) exit 1 }'
  done
  [ "$accepted" -ge 2 ]
  refuses 2 '--group' kv-quantize in.h5 --dtype int8 --group 0 -o q2.h5
  refuses 2 '--group' kv-quantize in.h5 --dtype int8 --group -1 -o q2.h5
}

@test "what was asked for is what is stored" {
  hetero-prefill -m "$tiny" -p 'It was the best of times, it was the worst of times, it was the age of wisdom' -o a.h5 -q
  kv-quantize a.h5 --dtype int8 --group 16 -o q.h5 --json -q >report
  "$lab" print q.h5 0 k values >values
  [ "$(head -n 1 values)" = '# i8' ]
  [ "$(tail -n +2 values | sort -u | wc -l)" -gt 50 ]
  ! "$lab" print q.h5 0 k scale | tail -n +2 | grep -qE '^0000$'
  in=$(json_value bytes_in <report) out=$(json_value bytes_out <report)
  awk -v i="$in" -v o="$out" 'BEGIN { exit !(o > 0.5 * i && o <= 0.5626 * i) }'
  refuses 2 'int9.*int8' kv-quantize a.h5 --dtype int9 -o x.h5
  refuses 2 'group' kv-quantize a.h5 --dtype f32 --group 32 -o x.h5
  refuses 2 'sym' kv-quantize a.h5 --dtype int8 --sym --asym -o x.h5
  refuses 2 'already quantized' kv-quantize q.h5 --dtype int8 --group 8 -o x.h5
}

@test "NaN never passes, infinity on one side neither" {
  hetero-prefill -m "$tiny" --tokens 5,6,7 -o a.h5 -q
  kv-verify a.h5 a.h5 --epsilon 0.01
  run kv-verify a.h5 a.h5 --epsilon 0.01 --json
  [ "$(json_value max_abs <<<"$output")" = 0.0 ]
  "$lab" set a.h5 nan.h5 1 v 2 1 3 7E00
  "$lab" set a.h5 inf.h5 1 v 2 1 3 7C00
  for pair in "a.h5 nan.h5" "nan.h5 a.h5" "nan.h5 nan.h5" "a.h5 inf.h5" "inf.h5 a.h5"; do
    # shellcheck disable=SC2086
    run --separate-stderr kv-verify $pair --epsilon 0.01
    [ "$status" -eq 3 ]
    grep -qE 'layer 1, V, token 2, head 1, dim 3' <<<"$stderr"
    [ "${lines[-1]}" = FAIL ]
  done
  kv-verify nan.h5 nan.h5 --epsilon 0.01 --allow-equal-nan
  kv-verify inf.h5 inf.h5 --epsilon 0.01
  # Nothing can be decoded from NaN: the values are what is reported.
  run --separate-stderr kv-verify a.h5 nan.h5 -m "$tiny" --steps 2 --epsilon 0.01 --json
  [ "$status" -eq 3 ]
  [ "$(json_value metric <<<"$output")" = '"elem"' ]
  # A state with NaN is not whole either.
  refuses 3 'nan.*layer 1, V, token 2, head 1, dim 3' kv-verify nan.h5
}

@test "odd bounds are usage errors" {
  for epsilon in nan inf -1 '' 0,01 1e-2x -inf 0x1p-3 ' '; do
    refuses 2 'epsilon' kv-verify a b --epsilon "$epsilon"
    refuses 2 'epsilon' kv-verify a b --eps "$epsilon"
  done
  refuses 2 'epsilon' kv-verify a b
}

@test "over epsilon is status 1, with the report" {
  hetero-prefill -m "$tiny" -p 'The quick brown fox' -o a.h5 -q
  kv-quantize a.h5 --dtype int8 -o q.h5 -q
  run --separate-stderr kv-verify a.h5 q.h5 --epsilon 1e-9 --json
  [ "$status" -eq 1 ]
  grep -q '"pass": false' <<<"$output"
  grep -q 'over epsilon' <<<"$stderr"
  max=$(json_value max_abs <<<"$output")
  kv-verify a.h5 q.h5 --epsilon "$max"
  # Just below the largest difference it fails again.
  below=$(awk -v x="$max" 'BEGIN { printf "%.9g", x * 0.999 }')
  run kv-verify a.h5 q.h5 --epsilon "$below"
  [ "$status" -eq 1 ]
}

@test "drift: nothing between a state and itself, something after quantization" {
  hetero-prefill -m "$tiny" -p 'The quick brown fox' -o a.h5 -q
  kv-quantize a.h5 --dtype int8 -o q.h5 -q
  kv-verify a.h5 a.h5 -m "$tiny" --steps 16 --epsilon 0 --json >same
  [ "$(json_value max_abs_dp <same)" = 0.0 ]
  [ "$(json_value top1 <same)" = 1.0 ]
  kv-verify a.h5 q.h5 -m "$tiny" --steps 16 --epsilon 0.5 --json >differs
  awk -v x="$(json_value max_abs_dp <differs)" 'BEGIN { exit !(x > 0 && x < 0.5) }'
  [ "$(json_value steps <differs)" = 16 ]
  [ "$(json_value floor <differs)" = null ]
  run --separate-stderr kv-verify a.h5 q.h5 -m "$tiny" --steps 16 --epsilon 1e-12
  [ "$status" -eq 1 ]
  # The noise of fp16 is measured, and a bound below it is refused.
  kv-verify a.h5 q.h5 -m "$tiny" --steps 16 --epsilon 0.5 --floor auto --json >floor
  awk -v x="$(json_value floor <floor)" 'BEGIN { exit !(x > 0 && x < 0.1) }'
  run --separate-stderr kv-verify a.h5 q.h5 -m "$tiny" --steps 16 --epsilon 1e-12 --floor auto
  [ "$status" -eq 3 ]
  grep -q 'noise floor' <<<"$stderr"
  # Another text than the greedy continuation.
  head -c 400 "$HETERO_TESTDATA/text/austen_30k.txt" >text
  kv-verify a.h5 q.h5 -m "$tiny" --steps 16 --text text --epsilon 0.5 --json >forced
  [ "$(json_value max_abs_dp <forced)" != "$(json_value max_abs_dp <differs)" ]
}

@test "states that do not belong together are listed, compared, and fail" {
  hetero-prefill -m "$tiny" --tokens 5,6,7,8 -o a.h5 -q
  hetero-prefill -m "$tiny" --tokens 5,6,7,9 -o b.h5 -q
  run --separate-stderr kv-verify a.h5 b.h5 --epsilon 1000 --json
  [ "$status" -eq 1 ]
  grep -q '"field": "tokens\[3\]"' <<<"$output"
  run --separate-stderr kv-verify a.h5 b.h5 --epsilon 1000 -m "$tiny" --json
  [ "$status" -eq 1 ]
  [ "$(json_value metric <<<"$output")" = '"elem"' ]
  hetero-prefill -m "$tiny" --tokens 5,6,7 -o c.h5 -q
  run --separate-stderr kv-verify a.h5 c.h5 --epsilon 1000
  [ "$status" -eq 3 ]
  hetero-prefill -m "$HETERO_TESTDATA/golden/tiny/gguf/llama3_rope-f16.gguf" --tokens 5,6,7,8 -o d.h5 -q
  refuses 3 'rope' hetero-decode -m "$tiny" d.h5 -n 2
}

@test "a damaged state is refused by every reader" {
  hetero-prefill -m "$tiny" --tokens 5,6,7,8 -o a.h5 -q
  size=$(stat -c %s a.h5)
  for cut in 0 1 100 $((size / 2)) $((size - 1)); do
    head -c "$cut" a.h5 >cut.h5
    refuses 3 'cut.h5' kv-verify cut.h5
    refuses 3 'cut.h5' kv-send cut.h5 -o x.h5
    refuses 3 'cut.h5' kv-quantize cut.h5 --dtype int8 -o x.h5
    refuses 3 'cut.h5' hetero-decode -m "$tiny" cut.h5 -n 2
    run --separate-stderr kv-send - -o x.h5 <cut.h5
    [ "$status" -ge 3 ]
  done
  [ ! -e x.h5 ]
  no_temporaries
}

@test "names in a state cannot command the terminal" {
  echo '{"id": "\u001b[31mred\u0007", "tokens": [5, 6, 7]}' >red.jsonl
  hetero-prefill -m "$tiny" --jsonl red.jsonl -o red.h5 -q
  kv-quantize red.h5 --dtype int8 -o q.h5 -q
  run --separate-stderr kv-verify -v red.h5 q.h5 --epsilon 1
  [ "$status" -eq 0 ]
  grep -q 'red' <<<"$output"
  ! grep -qE $'\e|\a' <<<"$output$stderr"
}

@test "an empty name of a state is a usage error, not a check that passes" {
  hetero-prefill -m "$tiny" --tokens 5,6,7,8 -o a.h5 -q
  refuses 2 'A is empty' kv-verify ''
  refuses 2 'B is empty' kv-verify a.h5 '' --epsilon 1
  refuses 2 'two states' kv-verify a.h5 --epsilon 1
  refuses 2 'empty' kv-send '' -o x.h5
  refuses 2 'empty' kv-quantize '' -o x.h5 --dtype int8
  refuses 2 'empty' hetero-decode -m "$tiny" ''
  refuses 2 'empty' hetero-decode -m '' a.h5
}

@test "after -- a name may begin with a dash" {
  hetero-prefill -m "$tiny" --tokens 5,6,7,8 -o ./-a.h5 -q
  kv-verify -- -a.h5
  refuses 2 'unknown option -b' kv-verify -b -- -a.h5
}
