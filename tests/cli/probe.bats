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
