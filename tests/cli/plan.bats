#!/usr/bin/env bats
# hetero-plan: verdicts, plans that the other tools read, and refusals.
load helper

# A machine that reaches what it says. machine NAME GFLOP GB/S
machine() {
  cat <<END
profile_schema = 2
[host]
hostname = "$1"
[cpu]
model = "test"
threads_default = 8
[memory]
memory_usable_bytes = 64000000000
[[memory_bandwidth.rates]]
threads = 8
read_gb_per_s = $3
[[compute.rates]]
dtype = "f32"
weights = "f32"
path = "fast"
threads = 8
executable = true
bytes_per_weight = 4.0
gemm_gflop_per_s = $2
gemv_gb_per_s = $3
[[attention.rates]]
kv_dtype = "f16"
head_dim = 64
threads = 8
executable = true
prefill_gflop_per_s = $2
decode_gb_per_s = $3
END
}

@test "a plan of one machine: status 0, a verdict, and numbers" {
  machine a 1000 100 >a.toml
  run --separate-stderr hetero-plan -m "$tiny" --hw a.toml --prompt 100 --output 10 --json
  [ "$status" -eq 0 ]
  [ "$(json_value verdict <<<"$output")" = '"COLOCATE"' ]
  ! grep -qiE ': (nan|-?inf)' <<<"$output"
  for key in tool version schema reasons plans capacity_per_s binding usd_per_million_tokens energy_j_per_token_unknown; do
    grep -q "\"$key\":" <<<"$output"
  done
  run --separate-stderr hetero-plan -m "$tiny" --hw a.toml --prompt 100 --output 10 --explain
  [ "$status" -eq 0 ]
  grep -q '^COLOCATE' <<<"$output"
  [ "$(grep -cE '^[1-9]  (kept|NOT)' <<<"$output")" -eq 9 ]
}

# fleet NAME...: machines of 1000 GFLOP/s and 100 GB/s, links between all of 1 GB/s
fleet() {
  echo 'profile_schema = 2'
  for name in "$@"; do
    printf '[[machines]]\nname = "%s"\n' "$name"
    machine "$name" 1000 100 | sed '1d; s/^\[\[\(.*\)\]\]/[[machines.\1]]/; t; s/^\[\(.*\)\]/[machines.\1]/'
  done
  for from in "$@"; do
    for to in "$@"; do
      [ "$from" = "$to" ] || printf '[[links]]\nfrom = "%s"\nto = "%s"\nlatency_us = 5.0\ngb_per_s = 1.0\n' "$from" "$to"
    done
  done
}

@test "a fleet: machines alike are one kind, and a split is on the pair of hosts with the fast link" {
  fleet n0 n1 n2 | awk '/^from/ {from = $3} /^to/ {to = $3} /^gb_per_s/ && from == "\"n2\"" && to == "\"n1\"" {$3 = "40.0"} {print}' >fleet.toml
  run --separate-stderr hetero-plan -m "$tiny" --hw fleet.toml --prompt 400 --output 20 --rows 100 --json
  [ "$status" -eq 0 ]
  grep -q '3 machines alike' <<<"$stderr"
  tr -d ' \n' <<<"$output" | grep -q '"gb_per_s":40.0,"source":"n2ton1"'
  tr -d ' \n' <<<"$output" | grep -q '"hosts":\["n2"\]'
  # Four kinds can be compared, nine cannot.
  i=0
  while read -r line; do
    if [[ $line = gemm_gflop_per_s* ]]; then i=$((i + 1)); line="gemm_gflop_per_s = $((1000 * i * i))"; fi
    echo "$line"
  done < <(fleet a b c d e f g h i) >nine.toml
  refuses 2 'of 9 kinds; at most 8' hetero-plan -m "$tiny" --hw nine.toml --prompt 400 --output 20
  run --separate-stderr hetero-plan -m "$tiny" --hw nine.toml --prompt 400 --output 20 --price-of a:1
  [ "$status" -eq 2 ]
}

@test "side by side: the plan has every kind of machines" {
  machine dense 3000 90 >dense.toml
  machine wide 2800 120 >wide.toml
  run --separate-stderr hetero-plan -m "$tiny" --hw dense.toml --hw-decode wide.toml --prompt 400 --output 20 --rate 100 --ttft 1s \
    --rows 1000 --json
  grep -q '"kind": "side-by-side"' <<<"$output"
  cat >side.toml <<END
deployment_plan = 1
tool = "hetero-plan"
verdict = "COLOCATE"
reasons = []
model = "m"
[workload]
prompt_tokens = 1
cached_tokens = 0
output_tokens = 1
rate_per_s = 1.0
[prefill]
machine = "dense"
machines = 1
instances = 1
tp = 1
dtype = "f32"
sharing = "chunked"
[[more]]
machine = "wide"
machines = 1
instances = 1
tp = 1
dtype = "f32"
role = "both"
[kv]
wire = "int8:token"
resident = "f16"
first_token = "prefill"
state_bytes = 1.0
link_ms = 1.0
[predicted]
ttft_p50_ms = 1.0
ttft_p99_ms = 1.0
itl_p50_ms = 1.0
itl_p99_ms = 1.0
attainment = 1.0
END
  hetero-prefill -m "$tiny" --tokens 1,2,3,4,5 -o state.h5 -q
  kv-quantize state.h5 --plan side.toml -o quantized.h5 -q
  sed -i 's/^role = "both"/role = "all"/' side.toml
  refuses 3 'must be prefill, decode or both' kv-quantize state.h5 --plan side.toml -o again.h5
}

@test "where prefixes are kept is planned and priced" {
  machine a 1000 100 >a.toml
  { cat a.toml; printf '[disk]\nfree_bytes = 1000000000000\nread_gb_per_s = 5.0\n'; } >disk.toml
  run --separate-stderr hetero-plan -m "$tiny" --hw disk.toml --prompt 400 --output 20 --prefix-hit 0.5 --explain -o plan.toml
  [ "$status" -eq 0 ]
  grep -q 'prefixes on the device' <<<"$output"
  grep -qE '^8  kept .*device 0 ms, file .* ms, computing takes' <<<"$output"
  grep -q '^tier = "device"' plan.toml
  run --separate-stderr hetero-plan -m "$tiny" --hw disk.toml --prompt 400 --output 20 --prefix-hit 0.5 --prefixes 100000000 --json
  [ "$status" -eq 0 ]
  ! grep -q '"tier": "device",$' <(grep -A1 '"tiering": {' <<<"$output")
}

@test "the same command gives the same answer" {
  machine a 1000 100 >a.toml
  hetero-plan -m "$tiny" --hw a.toml --machines 2 --link 1 --prompt 100 --output 10 --ttft 1ms --itl 1ms --json >one
  hetero-plan -m "$tiny" --hw a.toml --machines 2 --link 1 --prompt 100 --output 10 --ttft 1ms --itl 1ms --json >two
  cmp one two
}

@test "what cannot be is refused with status 1 and a reason" {
  machine a 1000 100 | sed 's/64000000000/100000/' >small.toml
  run --separate-stderr hetero-plan -m "$tiny" --hw small.toml --prompt 100 --output 10 --json
  [ "$status" -eq 1 ]
  [ "$(json_value verdict <<<"$output")" = '"REFUSE"' ]
  grep -q 'are missing' <<<"$output"
  machine a 1000 100 | sed 's/dtype = "f32"/dtype = "bf16"/' >other.toml
  run --separate-stderr hetero-plan -m "$tiny" --hw other.toml --prompt 100 --output 10 --json
  [ "$status" -eq 1 ]
  grep -q 'no rate for f32 weights' <<<"$output"
}

@test "a plan for an unlike pair, and what reads it" {
  machine dense 100000 20 >dense.toml
  machine wide 3000 900 >wide.toml
  sed 's/"max_position_embeddings": 512/"max_position_embeddings": 8192/' \
    "$HETERO_TESTDATA/golden/tiny/llama/bf16/config.json" >config.json
  run --separate-stderr hetero-plan -m config.json --dtype f32 --hw dense.toml --hw-decode wide.toml --link 100 --prompt 4000 --output 400 \
    --kv-dtype int8 -o plan.toml --emit slurm --emit-file job.sh --json
  [ "$status" -eq 0 ]
  [ "$(json_value verdict <<<"$output")" = '"SPLIT"' ] || [ "$(json_value verdict <<<"$output")" = '"SPLIT-UNVERIFIED"' ]
  grep -q '^\[decode\]' plan.toml
  bash -n job.sh
  grep -q '^#SBATCH hetjob' job.sh
  [ "$(grep -cE '^#SBATCH --time=[0-9]+-[0-9]{2}:[0-9]{2}:00$' job.sh)" -eq 2 ]
  grep -q -- '--first-token prefill' job.sh
  if command -v shellcheck >/dev/null; then shellcheck job.sh; fi
  [ "$(grep -c '^#SBATCH --exclusive' job.sh)" -eq 2 ]  # a task has one core otherwise
  grep -q -- '--bind-to none --host "$p" ' job.sh
  hetero-prefill -m "$tiny" --tokens 1,2,3,4,5 -o state.h5 -q
  sed -i 's/^wire = .*/wire = "int8:token"/' plan.toml
  run --separate-stderr kv-quantize state.h5 --plan plan.toml -o quantized.h5 --json
  [ "$status" -eq 0 ]
  [ "$(json_value codec <<<"$output")" = '"int8"' ]
  sed -i 's/^wire/wrie/' plan.toml
  refuses 3 "'wrie' is no key" kv-quantize state.h5 --plan plan.toml -o again.h5
}

@test "a configuration is enough for a model" {
  machine a 1000 100 | sed 's/dtype = "f32"/dtype = "bf16"/' >a.toml
  cp "$HETERO_TESTDATA/golden/tiny/llama/bf16/config.json" .
  run --separate-stderr hetero-plan -m config.json --hw a.toml --prompt 100 --output 10 --json
  [ "$status" -eq 0 ]
}

@test "a trace is work" {
  machine a 1000 100 >a.toml
  for i in 1 2 3 4; do
    echo "{\"timestamp\": ${i}000, \"input_length\": 100, \"output_length\": 5, \"hash_ids\": [$i]}"
  done >trace.jsonl
  run --separate-stderr hetero-plan -m "$tiny" --hw a.toml --trace trace.jsonl --json
  [ "$status" -eq 0 ]
  [ "$(json_value trace_requests <<<"$output")" = 4 ]
  refuses 3 "the nearest one is 'input_length'" hetero-plan -m "$tiny" --hw a.toml --trace <(sed 's/input_length/input_lenght/' trace.jsonl)
}

@test "what makes no sense is a usage error" {
  machine a 1000 100 >a.toml
  refuses 2 'no model' hetero-plan --hw a.toml --prompt 1 --output 1
  refuses 2 'no machines' hetero-plan -m "$tiny" --prompt 1 --output 1
  refuses 2 'no work' hetero-plan -m "$tiny" --hw a.toml
  refuses 2 'not above 0' hetero-plan -m "$tiny" --hw a.toml --prompt 1 --output 1 --rate 0
  for rate in 1e-300 1e300; do
    refuses 2 'is not within' hetero-plan -m "$tiny" --hw a.toml --prompt 1 --output 1 --rate $rate
  done
  refuses 2 'emit-file' hetero-plan -m "$tiny" --hw a.toml --prompt 9 --output 1 --emit slurm --json
  refuses 2 'emit-file' hetero-plan -m "$tiny" --hw a.toml --prompt 9 --output 1 --emit slurm --explain
  : >there.sh
  refuses 3 'exists already' hetero-plan -m "$tiny" --hw a.toml --prompt 9 --output 1 -o new.toml --emit slurm \
    --emit-file there.sh
  [ ! -e new.toml ]
  refuses 3 "nearest one is 'hostname'" hetero-plan -m "$tiny" --hw <(sed 's/hostname/hostnam/' a.toml) --prompt 1 --output 1
  refuses 3 'profile' hetero-plan -m "$tiny" --hw /nonexistent.toml --prompt 1 --output 1
}

@test "requests that the model cannot hold are refused, and so are moments without distance" {
  machine a 1000 100 >a.toml
  refuses 3 "the model's context of 512" hetero-plan -m "$tiny" --hw a.toml --prompt 500 --output 13
  hetero-plan -m "$tiny" --hw a.toml --prompt 500 --output 12 -q
  request() { echo "{\"timestamp\": $1, \"input_length\": $2, \"output_length\": 5}"; }
  { request 0 100; request 1 1000; request 2 508; } >trace.jsonl
  refuses 3 "2 of 3 requests do not fit" hetero-plan -m "$tiny" --hw a.toml --trace trace.jsonl
  { request 0 100; request 1e-320 100; } >trace.jsonl
  run --separate-stderr hetero-plan -m "$tiny" --hw a.toml --trace trace.jsonl --json
  [ "$status" -eq 0 ]
  ! grep -qiE '\binf\b' <<<"$output"
}

@test "names out of a profile cannot steer a terminal" {
  machine 'a\u001b[2J\nb' 1000 100 >a.toml
  run --separate-stderr hetero-plan -m "$tiny" --hw a.toml --prompt 100 --output 10
  [ "$status" -eq 0 ]
  grep -qF 'a?[2J?b' <<<"$output"
  ! grep -q $'\x1b' <<<"$output"
}

@test "a plot needs gnuplot and says so" {
  machine a 1000 100 >a.toml
  refuses 4 'gnuplot' env PATH=/nonexistent "$HETERO_BIN/hetero-plan" -m "$tiny" --hw a.toml --prompt 100 --output 10 --plot out.svg
  [ ! -e out.svg ]
  refuses 4 'gnuplot' env PATH=/nonexistent "$HETERO_BIN/hetero-plan" -m "$tiny" --hw a.toml --prompt 100 --output 10 \
    --plot out.svg -o plan.toml --emit slurm --emit-file job.sh
  [ ! -e plan.toml ] && [ ! -e job.sh ]
  command -v gnuplot >/dev/null || skip "gnuplot is not installed"
  run --separate-stderr hetero-plan -m "$tiny" --hw a.toml --prompt 100 --output 10 --plot out.svg
  [ "$status" -eq 0 ]
  grep -q '</svg>' out.svg
}
