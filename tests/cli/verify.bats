#!/usr/bin/env bats
# kv-verify in depth: every bound, every exit status, the reports, and the names of faults.

load helper

lab=$HETERO_BIN/kv_lab

states() {
  head -c 600 "$HETERO_TESTDATA/text/austen_30k.txt" >prompt
  hetero-prefill -m "$tiny" -f prompt -o a.h5 -q
  kv-quantize a.h5 --dtype int8 -o q.h5 -q
  kv-quantize a.h5 --k int4:channel:g64:asym --v int4:token:asym --sinks 4 -o low.h5 -q
}

# value REPORT KEY: the first number with this key.
value() { json_value "$2" <"$1"; }

@test "every bound passes above its figure, and fails below it with the line that failed" {
  states
  kv-verify a.h5 low.h5 -m "$tiny" --steps 24 --epsilon 1 --kl 1 --kl-max 1 --top1 0 --logit 100 --perplexity 9 \
    --attention 9 --elem 9 --rms 9 --json >report
  [ "$(grep -c '"option":' report)" -eq 10 ]
  ! grep -q '"pass": false' report
  # What the report says is the bound that just passes; nine tenths of it does not.
  for pair in kl:kl_mean kl-max:kl_max logit:max_abs_dlogit attention:attention_max_relative_l2 elem:max_abs; do
    x=$(value report "${pair#*:}")
    kv-verify a.h5 low.h5 -m "$tiny" --steps 24 "--${pair%:*}" "$x" >text
    [ "$(tail -n 1 text)" = PASS ]
    run --separate-stderr kv-verify a.h5 low.h5 -m "$tiny" --steps 24 "--${pair%:*}" "$(awk -v x="$x" 'BEGIN { print x * 0.9 }')"
    [ "$status" -eq 1 ]
    [[ ${lines[0]} == "failed     ${pair%:*}: "* ]]
    [[ $stderr == *"over ${pair%:*}: "*"allowed are"* ]]
    [ "${lines[-1]}" = FAIL ]
  done
  run --separate-stderr kv-verify a.h5 low.h5 --rms 1e-9
  [ "$status" -eq 1 ]
  [[ $stderr == *'over rms: '*'worst at sequence 0, layer '* ]]
  run --separate-stderr kv-verify a.h5 low.h5 -m "$tiny" --steps 24 --perplexity 0
  [ "$status" -eq 1 ]
}

@test "top-1 is a lower bound, as a fraction or in percent" {
  states
  for bound in 1 100% 0.5 50%; do kv-verify a.h5 a.h5 -m "$tiny" --steps 8 --top1 $bound; done
  kv-verify a.h5 low.h5 -m "$tiny" --steps 64 --top1 0 --json >report
  top1=$(value report top1)
  if awk -v x="$top1" 'BEGIN { exit !(x < 1) }'; then
    run --separate-stderr kv-verify a.h5 low.h5 -m "$tiny" --steps 64 --top1 100%
    [ "$status" -eq 1 ]
    [[ $stderr == *'under top1: '*'required are 1; first at sequence 0, step '* ]]
  fi
  for bound in 1.1 101% -1 x 5%% ''; do refuses 2 'top1' kv-verify a.h5 a.h5 -m "$tiny" --top1 "$bound"; done
}

@test "bounds of decoding need a model, and some bound must be given" {
  states
  for bound in kl kl-max top1 logit perplexity attention; do
    refuses 2 'need a model' kv-verify a.h5 q.h5 "--$bound" 1
    refuses 2 "$bound" kv-verify a.h5 q.h5 -m "$tiny" "--$bound" nan
    refuses 2 'two states' kv-verify a.h5 "--$bound" 1
  done
  for option in --elem --rms --csv --junit; do refuses 2 'two states' kv-verify a.h5 $option 1; done
  refuses 2 'no bound' kv-verify a.h5 q.h5 -m "$tiny"
  kv-verify a.h5 q.h5 --elem 10
}

@test "the control stands beside every figure, and what it does not pass is refused with both numbers" {
  states
  kv-verify a.h5 q.h5 -m "$tiny" --steps 24 --epsilon 1 --json >without
  [ "$(value without control)" = null ]
  kv-verify a.h5 q.h5 -m "$tiny" --steps 24 --epsilon 1 --floor auto --json >report
  [ "$(grep -c '"kl_mean":' report)" -eq 2 ]
  kv-verify a.h5 q.h5 -m "$tiny" --steps 24 --epsilon 1 --floor auto >text
  grep -qE '^E_p max +[0-9.e-]+ +[0-9.e-]+$' text
  ! grep -q unknown text
  for bound in kl kl-max logit attention; do
    run --separate-stderr kv-verify a.h5 q.h5 -m "$tiny" --steps 24 "--$bound" 1e-15 --floor auto --junit "$bound.xml"
    [ "$status" -eq 3 ]
    [[ $stderr == *"$bound 1e-15 is below the noise floor "* ]]
    grep -q 'errors="1"' "$bound.xml"
  done
  refuses_floor() {
    run --separate-stderr kv-verify a.h5 q.h5 -m "$tiny" --steps 24 --epsilon 0.001 --floor 0.5
    [ "$status" -eq 3 ]
    [[ $stderr == *'epsilon 0.001 is below the noise floor 0.5'* ]]
  }
  refuses_floor
  # Nothing is computed between stored values: equal ones may be asked for.
  kv-verify a.h5 a.h5 -m "$tiny" --steps 4 --elem 0 --floor auto
}

@test "intervals are the same from run to run, and of the seed" {
  states
  for run in 1:1 2:1 3:2; do
    kv-verify a.h5 low.h5 -m "$tiny" --steps 64 --epsilon 99 --seed "${run#*:}" --json | tr -d ' \n' |
      sed 's/.*"kl_mean_interval":\(\[[^]]*\]\).*/\1/' >"interval.${run%:*}"
  done
  cmp interval.1 interval.2
  ! cmp -s interval.1 interval.3
  kv-verify a.h5 low.h5 -m "$tiny" --steps 64 --epsilon 99 | grep -qE '^KL mean, nats +[0-9.e-]+ +[0-9.e-]+ \.\. [0-9.e-]+'
}

@test "the worst steps are shown with their texts, and the certificate with both sides" {
  states
  kv-verify a.h5 low.h5 -m "$tiny" --steps 24 --epsilon 1 >text
  grep -qE '^worst      sequence 0, step [0-9]+ \(position [0-9]+\), after ".*": ".*" [0-9.e-]+ -> [0-9.e-]+; first choice ".*" -> ".*"$' text
  grep -qE '^diverges   ' text
  grep -qE '^certified  yes: max KL [0-9.e-]+, 2 epsilon\^2 = 2$' text
  run kv-verify a.h5 low.h5 -m "$tiny" --steps 24 --epsilon 1e-6
  grep -qE '^certified  no: ' <<<"$output"
}

@test "the table: a line for every part, head, layer and step" {
  states
  kv-verify a.h5 low.h5 -m "$tiny" --steps 24 --epsilon 1 --csv table.csv
  layers=$(kv-verify a.h5 --json | sed -n 's/.*"gqa": \([0-9]*\).*/\1/p')
  [ "$(grep -c '^part,' table.csv)" -eq $((2 * layers)) ]
  [ "$(grep -c '^step,' table.csv)" -eq 24 ]
  [ "$(grep -c '^head,' table.csv)" -gt 0 ]
  [ "$(grep -c '^attention,' table.csv)" -gt "$layers" ]
  columns=$(head -n 1 table.csv | tr ',' '\n' | grep -c .)
  # Without the last column, whose texts may hold commas.
  awk -F, -v n="$columns" 'NF < n { bad = 1 } END { exit bad }' table.csv
  grep '^part,' table.csv | awk -F, -v n="$columns" 'NF != n { bad = 1 } END { exit bad }'
  max=$(grep '^step,' table.csv | cut -d, -f15 | sort -g | tail -n 1)
  awk -v a="$max" -v b="$(kv-verify a.h5 low.h5 -m "$tiny" --steps 24 --epsilon 1 --json | json_value max_abs_dp)" \
    'BEGIN { d = a - b; exit !(d < 1e-8 && d > -1e-8) }'
  # Not written over, unless told; nor onto the input.
  refuses 3 'table.csv' kv-verify a.h5 low.h5 --elem 9 --csv table.csv
  kv-verify a.h5 low.h5 --elem 9 --csv table.csv --force
  refuses 2 'is the input' kv-verify a.h5 low.h5 --elem 9 --csv a.h5 --force
  refuses 2 'two outputs' kv-verify a.h5 low.h5 --elem 9 --csv same --junit same
  refuses 4 'nowhere' kv-verify a.h5 low.h5 --elem 9 --csv nowhere/table.csv
}

@test "JUnit XML: a case for each check, failures in words, and a name that XML cannot hold" {
  echo '{"id": "<&\"\u001b>", "tokens": [5, 6, 7, 8, 9]}' >odd.jsonl
  hetero-prefill -m "$tiny" --jsonl odd.jsonl -o odd.h5 -q
  kv-quantize odd.h5 --dtype int4 -o low.h5 -q
  run --separate-stderr kv-verify odd.h5 low.h5 --elem 1e-6 --rms 9 --junit report.xml
  [ "$status" -eq 1 ]
  grep -q '<testsuite name="kv-verify" tests="4" failures="1" errors="0" skipped="0">' report.xml
  [ "$(grep -c '<testcase ' report.xml)" -eq 4 ]
  grep -q '<failure message="max |d| is .*; worst at sequence &lt;&amp;&quot;?&gt;, layer' report.xml
  ! grep -q $'\e' report.xml
  if command -v xmllint >/dev/null; then xmllint --noout report.xml; fi
  if command -v python3 >/dev/null; then python3 -c 'import sys, xml.dom.minidom; xml.dom.minidom.parse(sys.argv[1])' report.xml; fi
}

@test "faults are named in words" {
  states
  "$lab" fault ones q.h5 ones.h5
  "$lab" fault heads a.h5 heads.h5
  "$lab" fault tokens a.h5 tokens.h5
  "$lab" fault rope a.h5 rope.h5
  named() {
    local file=$1 name=$2
    run --separate-stderr kv-verify a.h5 "$file" --epsilon 0.001 --json
    [ "$status" -eq 1 ]
    [[ $stderr == *"; likely: $name"* ]]
    grep -q "\"name\": \"${name%% (*}\"" <<<"$output"
    run kv-verify a.h5 "$file" --epsilon 0.001
    grep -q "^likely     $name: undone, the error falls from " <<<"$output"
  }
  named ones.h5 'scales ignored (all are 1)'
  named heads.h5 'heads swapped (0 and 1)'
  named tokens.h5 'tokens shifted (by one: each token holds that of the one before)'
  named rope.h5 'RoPE not applied'
  run kv-verify a.h5 rope.h5 -m "$tiny" --steps 4 --epsilon 0.001
  grep -q '^likely     RoPE not applied: ' <<<"$output"
  # Low precision is no fault.
  run kv-verify a.h5 low.h5 --epsilon 1e-6
  [ "$status" -eq 1 ]
  ! grep -qE '^(likely|unknown) ' <<<"$output"
  # Scales that were never set are seen in a state alone.
  run --separate-stderr kv-verify ones.h5
  [ "$status" -eq 1 ]
  [[ $stderr == *'all '*' scales are 1'* ]]
  kv-quantize a.h5 --dtype compat:vllm_fp8 -o vllm.h5 -q  # 1 by definition
  kv-verify vllm.h5
}

@test "a scale that is no number is refused, with its place" {
  states
  "$lab" fault nan q.h5 nan.h5
  place='nan.h5: sequence 0[:,] layer [0-9]+, V: .*scale (nan|or zero is not finite)'
  refuses 3 "$place" kv-verify nan.h5
  refuses 3 "$place" hetero-decode -m "$tiny" nan.h5 -n 1
  refuses 3 "$place" hetero-decode -m "$tiny" nan.h5 -n 1 --kv-dtype int8
  refuses 3 "$place" kv-quantize nan.h5 --dtype f16 -o x.h5
}

@test "a state alone is described by its codecs in full" {
  states
  kv-verify low.h5 | grep -qF 'K int4:channel:g64:asym, 4 sinks, V int4:token:asym, 4 sinks,'
  [ "$(kv-verify q.h5 --json | json_value codec_k)" = '"int8:token"' ]
}

@test "--kv-dtype measures the codes that a decode keeps, and the reports say so" {
  states
  kv-verify a.h5 a.h5 -m "$tiny" --steps 24 --epsilon 1 --json >plain
  [ "$(value plain max_abs_dp)" = 0.0 ]
  [ "$(value plain kv_dtype)" = '"auto"' ]
  kv-verify a.h5 a.h5 -m "$tiny" --steps 24 --kv-dtype int8 --epsilon 1 --json --junit int8.xml >int8
  kv-verify a.h5 a.h5 -m "$tiny" --steps 24 --kv-dtype fp8_e4m3fn --epsilon 1 --json >fp8
  [ "$(value fp8 kv_dtype)" = '"fp8_e4m3fn"' ]
  # what is stored is equal, what is decoded is not: e4m3 less than int8
  [ "$(value int8 max_abs)" = 0.0 ]
  for key in max_abs_dp kl_mean attention_max_relative_l2; do
    awk -v a="$(value int8 $key)" -v b="$(value fp8 $key)" 'BEGIN { exit !(a > 0 && b > 2 * a) }'
  done
  grep -q 'name="epsilon: .* (--kv-dtype int8)"' int8.xml
  kv-verify a.h5 a.h5 -m "$tiny" --steps 24 --kv-dtype int8 --epsilon 1 | grep -q '^resident   B is decoded with its K and V kept as int8'
  refuses 2 'probabilities need a model' kv-verify a.h5 a.h5 --kv-dtype int8 --epsilon 1
  refuses 2 'comparing needs two states' kv-verify a.h5 --kv-dtype int8
}
