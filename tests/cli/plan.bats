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
