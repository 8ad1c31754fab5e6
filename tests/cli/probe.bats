#!/usr/bin/env bats
# hw-probe: works on any machine, and says what it does not know.
load helper

@test "without a GPU driver: status 0, and the reason" {
  run --separate-stderr hw-probe --describe --json
  [ "$status" -eq 0 ]
  for key in tool version schema; do grep -q "\"$key\":" <<<"$output"; done
  ! grep -qiE ': (nan|-?inf)' <<<"$output"
  if [ ! -e /dev/nvidiactl ]; then grep -qE '_unknown": ".+' <<<"$output"; fi
}

@test "the number of threads follows the affinity mask" {
  whole=$(nproc)
  run --separate-stderr taskset -c "$(taskset -cp $$ | sed 's/.*: //; s/[,-].*//')" hw-probe --describe --json
  [ "$status" -eq 0 ]
  [ "$(grep -o '"cpus_allowed": [0-9]*' <<<"$output" | head -n 1)" = '"cpus_allowed": 1' ]
  online=$(grep -o '"cpus_online": [0-9]*' <<<"$output" | head -n 1 | grep -o '[0-9]*')
  [ "$online" -ge "$whole" ]
}

@test "what was not measured is null with a reason: stages without a model, those of GPUs" {
  run --separate-stderr hw-probe --describe --json
  [ "$status" -eq 0 ]
  grep -q '"stages": null,' <<<"$output"
  grep -q '"stages_unknown": "no model was given (--model)"' <<<"$output"
}

@test "JSON, TOML and text" {
  run --separate-stderr hw-probe --quick --toml
  [ "$status" -eq 0 ]
  grep -qE '^\[' <<<"$output"
  run --separate-stderr hw-probe --quick
  [ "$status" -eq 0 ]
  [ "${#lines[@]}" -gt 5 ]
  refuses 2 'exclude' hw-probe --json --toml
}

@test "--quick measures, and --describe does not" {
  run --separate-stderr hw-probe --quick --json
  [ "$status" -eq 0 ]
  grep -qE '"gemm_gflop_per_s": [0-9.]+' <<<"$output"
  grep -qE '"triad_gb_per_s": [0-9.]+' <<<"$output"
  run --separate-stderr hw-probe --describe --json
  [ "$status" -eq 0 ]
  ! grep -q gemm_gflop_per_s <<<"$output"
  grep -q 'measuring was turned off' <<<"$output"
  refuses 2 'exclude' hw-probe --quick --describe
}

@test "-o: the profile in a file, as the name asks; never over one that is there" {
  run --separate-stderr hw-probe --describe -o node.toml
  [ "$status" -eq 0 ]
  grep -q '^profile_schema = 2' node.toml
  [ -n "$output" ]
  hw-probe --describe -o node.json -q
  head -c 1 node.json | grep -q '{'
  refuses 3 'exists already' hw-probe --describe -o node.toml
  hw-probe --describe -o node.toml --force -q
  refuses 2 'neither --model nor --output' hw-probe check -o other.toml
}

@test "--model: what a model takes, for plans of these very weights" {
  refuses 2 'runs no --model' hw-probe --describe --model "$tiny"
  refuses 3 'absent' hw-probe --quick --model absent.gguf
  run --separate-stderr hw-probe --quick --model "$tiny" -o node.toml
  [ "$status" -eq 0 ]
  [ "$(grep -c '^\[\[stages\]\]' node.toml)" -eq 1 ]
  [ "$(grep -c '^\[\[stages.prefill\]\]' node.toml)" -ge 2 ]
  grep -q '^sequences = 4' node.toml
  run --separate-stderr hetero-plan -m "$tiny" --hw node.toml --prompt 64 --output 16
  [ "$status" -eq 0 ]
  grep -q 'rough' <<<"$output"
  [ "$(grep -c 'measures this model itself' <<<"$output")" -eq 0 ]
  sed 's/^weights_digest = "./&0/' node.toml >other.toml
  run --separate-stderr hetero-plan -m "$tiny" --hw other.toml --prompt 64 --output 16
  [ "$status" -eq 0 ]
  grep -q 'measures this model itself' <<<"$output"
}

@test "--links: one profile of the job, each direction of each pair of ranks" {
  need_mpi
  run --separate-stderr mpirun --oversubscribe -n 3 hw-probe --links --describe --json </dev/null
  [ "$status" -eq 0 ]
  [ "$(grep -c '"profile_schema": 2' <<<"$output")" -eq 1 ]
  [ "$(grep -c '"from_rank":' <<<"$output")" -eq 6 ]
  [ "$(grep -cE '"latency_us": [0-9.]+' <<<"$output")" -eq 6 ]
  [ "$(grep -cE '"both_ways_gb_per_s": [0-9.]+' <<<"$output")" -eq 6 ]
  refuses 2 'started by mpirun' hw-probe --links --describe
}

deployment() {  # PREFILL-DTYPE RATE: a plan for the fleet of testdata
  cat <<TOML
deployment_plan = 1
tool = "hetero-plan"
verdict = "SPLIT"
reasons = ["a test"]
model = "m"
[workload]
prompt_tokens = 512
cached_tokens = 0
output_tokens = 128
rate_per_s = $2
[prefill]
machine = "l40s"
machines = 1
instances = 8
tp = 1
dtype = "$1"
[decode]
machine = "h200"
machines = 1
instances = 1
tp = 8
dtype = "bf16"
[kv]
wire = "f16"
resident = "f16"
first_token = "prefill"
state_bytes = 5e9
link_ms = 300.0
[predicted]
ttft_p50_ms = 1.0
ttft_p99_ms = 1.0
itl_p50_ms = 1.0
itl_p99_ms = 1.0
attainment = 1.0
TOML
}

@test "check: each point ok, warn or fail, with a remedy; status 1 where one fails" {
  fleet=$HETERO_TESTDATA/hw/mixed-fleet.toml
  run --separate-stderr hw-probe check --hw "$fleet" --machine h200
  [ "$status" -eq 0 ]
  grep -qE '^warn +time' <<<"$output"
  deployment fp8_e4m3fn 2 >fits.toml
  run --separate-stderr hw-probe check --for fits.toml --hw "$fleet" --json
  [ "$status" -eq 0 ]
  grep -q '"failed": 0' <<<"$output"
  [ "$(grep -c '"check": "link"' <<<"$output")" -eq 2 ]
  deployment fp8_e4m3fn 6 >busy.toml  # 30 GB/s over 25
  run --separate-stderr hw-probe check --for busy.toml --hw "$fleet" --machine l40s
  [ "$status" -eq 1 ]
  grep -qE '^fail +link +l40s to h200: 25 GB/s, KV asks for 30$' <<<"$output"
  grep -q 'send fewer bits' <<<"$output"
  run --separate-stderr hw-probe check --for fits.toml --machine l40s --json  # this machine in its place
  [ "$status" -eq 1 ]
  grep -q 'no executable path: fp8_e4m3fn' <<<"$output"
}

@test "check: every host of a stage and every further kind of machine, each by its own part" {
  fleet=$HETERO_TESTDATA/hw/mixed-fleet.toml
  deployment fp8_e4m3fn 2 | sed 's/^machine = "l40s"/machine = "a kind"\nhosts = ["l40s", "cpu"]/' >hosts.toml
  run --separate-stderr hw-probe check --for hosts.toml --hw "$fleet"
  [ "$status" -eq 0 ]
  [ "$(grep -E '^[a-z0-9]+:$' <<<"$output" | tr -d '\n')" = l40s:cpu:h200: ]
  [ "$(grep -cE '^ok +precision +runs: fp8_e4m3fn weights$' <<<"$output")" -eq 1 ]
  [ "$(grep -cE '^warn +precision +not measured: fp8_e4m3fn weights$' <<<"$output")" -eq 1 ]
  grep -qE '^warn +link +cpu to h200: 25 GB/s, KV asks for 10' <<<"$output"
  refuses 2 'the plan is for l40s and cpu and h200' hw-probe check --for hosts.toml --hw "$fleet" --machine 'a kind'
  { deployment bf16 2 | sed '/^\[kv\]/,$d'
    printf '[[more]]\nmachine = "cpu"\nmachines = 1\ninstances = 1\ntp = 1\ndtype = "int4"\nweight_bytes = 9e12\nrole = "prefill"\n'
    deployment bf16 2 | sed -n '/^\[kv\]/,$p'; } >more.toml
  run --separate-stderr hw-probe check --for more.toml --hw "$fleet" --machine cpu
  [ "$status" -eq 1 ]
  grep -qE '^ok +precision +runs: int4 weights' <<<"$output"
  grep -qE '^warn +link +cpu to h200: 25 GB/s' <<<"$output"
  grep -qE '^fail +memory .*weights take 8.2 TiB' <<<"$output"
}

@test "check refuses what does not fit together" {
  deployment bf16 1 >plan.toml
  refuses 2 'say with --machine' hw-probe check --for plan.toml
  refuses 2 'the plan is for l40s and h200' hw-probe check --for plan.toml --machine cpu
  refuses 2 'belong to' hw-probe --for plan.toml
  refuses 2 "the only command is 'check'" hw-probe chek
  echo 'profile_schema = 2' >hw.toml
  echo 'memroy = 1' >>hw.toml
  refuses 3 "hw.toml: memroy: .* nearest one is 'memory'" hw-probe check --hw hw.toml
  refuses 3 'absent.toml' hw-probe check --hw absent.toml
}
