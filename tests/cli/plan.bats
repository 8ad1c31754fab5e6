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
  run --separate-stderr hetero-plan -m "$tiny" --hw a.toml --machines 2 --link 10 --prompt 100 --output 10 --ttft 1s --itl 1s
  [ "$status" -eq 0 ]
  grep -qE '^  kind .* left .* left .* link, MB link, ms USD/Mtok +J/token +bound by' <<<"$output"
  [ "$(grep -E '^[* ] split' <<<"$output" | awk '{print NF > "/dev/null"; print ($4 > 0 && $7 > 0 && $10 > 0)}' | sort -u)" = 1 ]
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
  i=0
  while read -r line; do
    if [[ $line = gemm_gflop_per_s* ]]; then i=$((i + 1)); line="gemm_gflop_per_s = $((1000 * i * i))"; fi
    echo "$line"
  done < <(fleet a b c d e f g h i) >nine.toml
  refuses 2 'of 9 kinds; at most 8' hetero-plan -m "$tiny" --hw nine.toml --prompt 400 --output 20
  refuses 2 'expected NAME=USD' hetero-plan -m "$tiny" --hw fleet.toml --prompt 400 --output 20 --price-of n0:1
  run --separate-stderr hetero-plan -m "$tiny" --hw fleet.toml --prompt 400 --output 20 --price-of n1=3.5 --json
  [ "$status" -eq 0 ]
  grep -qE '"usd_per_hour": (3.5|7.0|10.5),' <<<"$output"
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

@test "recorded machines stand in for real ones" {
  config() { # HIDDEN FFN LAYERS HEADS KV-HEADS
    printf '{"model_type":"llama","hidden_size":%d,"intermediate_size":%d,"num_hidden_layers":%d,"num_attention_heads":%d,"num_key_value_heads":%d,"head_dim":128,"vocab_size":128256,"max_position_embeddings":131072,"rms_norm_eps":1e-5,"rope_theta":500000.0,"hidden_act":"silu","tie_word_embeddings":false,"torch_dtype":"bfloat16"}' "$@"
  }
  config 4096 14336 32 32 8 >8b.json
  config 8192 28672 80 64 8 >70b.json
  hw=$HETERO_TESTDATA/hw
  verdict() { # VERDICT ARGUMENT...
    local wanted=$1
    shift
    run --separate-stderr hetero-plan "$@" --json
    [ "$(json_value verdict <<<"$output")" = "\"$wanted\"" ] || { echo "$* gave $(json_value verdict <<<"$output"), not $wanted" >&2; return 1; }
  }
  verdict COLOCATE -m 8b.json --dtype int4 --hw "$hw/laptop-cpu.toml" --prompt 512 --output 128
  verdict REFUSE -m 70b.json --hw "$hw/laptop-cpu.toml" --prompt 512 --output 128
  verdict COLOCATE -m 8b.json --dtype bf16 --hw "$hw/two-socket-server.toml" --prompt 1024 --output 128 --ttft 5s --itl 200ms --rate 0.1
  verdict COLOCATE -m 8b.json --dtype bf16 --hw "$hw/h200-node.toml" --prompt 2048 --output 256 --ttft 2s --itl 50ms --rate 1
  verdict SPLIT-UNVERIFIED -m 8b.json --dtype bf16 --hw "$hw/mixed-fleet.toml" --prompt 16384 --output 512 --ttft 5s --itl 8ms --rate 2
  [ "$(grep -c 'specified' <<<"$output")" -gt 0 ]
}

@test "several instances are an array of jobs that share the prompts" {
  machine a 10 1 >a.toml
  run --separate-stderr hetero-plan -m "$tiny" --hw a.toml --prompt 5 --output 4 --json
  rate=$(json_value capacity_per_s <<<"$output")
  hetero-plan -m "$tiny" --hw a.toml --machines 3 --prompt 5 --output 4 --rate "$(awk "BEGIN {print 2.5 * $rate}")" \
    --emit slurm --emit-file job.sh -o plan.toml -q
  grep -q '^instances = 3' plan.toml
  grep -q '^#SBATCH --array=0-2$' job.sh
  bash -n job.sh
  for i in 1 2 3 4 5; do echo "{\"id\": \"p$i\", \"tokens\": [1, 2, $i]}"; done >prompts.jsonl
  for part in 0 1 2; do
    SLURM_JOB_ID=7$part SLURM_ARRAY_TASK_ID=$part PROMPTS=prompts.jsonl bash job.sh
  done
  [ "$(cat results.7?.json | grep -oE '"p[1-5]"' | sort | tr -d '\n')" = '"p1""p2""p3""p4""p5"' ]
  [ "$(grep -oE '"p[1-5]"' results.71.json | tr -d '\n')" = '"p1""p4"' ]
  # As many tokens as were planned, the first of them from prefill.
  grep -q '^first_token = "prefill"' plan.toml
  [ "$(grep -c '"ttft_ms"' first-tokens.71.json)" -eq 2 ]
  grep -q -- ' -n 3 --json' job.sh
}

@test "only forms with a certificate are planned where one is given" {
  machine a 1000 100 >a.toml
  plan() { hetero-plan -m "$tiny" --hw a.toml --machines 2 --link 0.001 --prompt 100 --output 10 --kv-dtype int8 --kv-dtype fp8_e4m3fn --rows 100 "$@"; }
  run --separate-stderr plan --json
  [ "$status" -eq 0 ]
  grep -q '"kv_wire": "fp8_e4m3fn' <<<"$output"
  grep -q '"kv_certified": false' <<<"$output"
  hetero-prefill -m "$tiny" --tokens "$(seq -s, 1 40)" -o a.h5 -q
  kv-quantize a.h5 --dtype int8 -o b.h5 -q
  kv-verify a.h5 b.h5 -m "$tiny" --steps 8 --epsilon 0.5 --report pass.json -q
  run --separate-stderr plan --certificate pass.json --json
  [ "$status" -eq 0 ]
  grep -q '"kv_wire": "int8:token"' <<<"$output"
  [ "$(grep -c '"kv_certified": false' <<<"$output")" -eq 0 ]
  grep -q 'fp8_e4m3fn.* is not what pass.json certifies: left out' <<<"$stderr"
  kv-verify a.h5 b.h5 --epsilon 10 --report elements.json -q
  refuses 3 'predictions were not compared' plan --certificate elements.json
  run kv-verify a.h5 b.h5 -m "$tiny" --steps 8 --epsilon 1e-9 --report fails.json -q
  refuses 3 'did not pass a bound' plan --certificate fails.json
  sed 's/"arch_digest": "./&0/' pass.json >other.json
  refuses 3 'is of another model: arch_digest' plan --certificate other.json
  echo '{"tool": "kv-send"}' >none.json
  refuses 3 'no report of kv-verify' plan --certificate none.json
  refuses 3 'a precision plan lacks' plan --certificate a.toml
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
