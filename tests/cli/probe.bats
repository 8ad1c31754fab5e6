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
