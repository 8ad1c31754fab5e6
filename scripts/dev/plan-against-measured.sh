#!/usr/bin/env bash
# Plans for this machine, then measures what was planned: time to first token and between tokens of one request alone,
# at several lengths of the prompt. Prints both and their difference, from the rates of hw-probe alone, and from stages
# measured at other lengths.
# usage: scripts/dev/plan-against-measured.sh MODEL [LENGTH...]     exit 1 where a stage's error is above 15 %
# Environment: HETERO_BIN (build/release/bin), HETERO_THREADS, HETERO_RUNS (5), HETERO_STEPS (32 tokens decoded).
set -euo pipefail
cd "$(dirname "$0")/../.."
[ $# -ge 1 ] || { sed -n '2,7s/^# //p' "$0"; exit 2; }
model=$1
shift
lengths=("$@")
[ $# -gt 0 ] || lengths=(128 512 2048)
bin=${HETERO_BIN:-build/release/bin}
runs=${HETERO_RUNS:-5} steps=${HETERO_STEPS:-32} chunk=512
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

value() { tr -d ' ,\n' <"$1" | grep -oE "\"$2\":[0-9.e+-]+" | head -n 1 | cut -d: -f2; }
tokens() { seq "$1" | awk '{printf "%s%d", (NR > 1 ? "," : ""), 1000 + ($1 * 7919) % 30000}'; }
best() { sort -g | head -n 1; }  # what else the machine does only adds

# run_once LENGTH: appends milliseconds of prefill and of a step to files
run_once() {
  local n=$1
  tokens "$n" >"$work/ids"
  "$bin/hetero-prefill" -m "$model" --tokens "@$work/ids" --chunk "$chunk" -o "$work/state.h5" --force --json -q >"$work/p.json"
  value "$work/p.json" prefill_ms >>"$work/p.$n"
  "$bin/hetero-decode" -m "$model" "$work/state.h5" -n "$steps" --ignore-eos --json -q >"$work/d.json"
  value "$work/d.json" itl_p50_ms >>"$work/d.$n"
}

# measured LENGTH: the best of all rounds
measured() { echo "$(best <"$work/p.$1") $(best <"$work/d.$1")"; }

# planned LENGTH [OPTION...]: the same from hetero-plan
planned() {
  local n=$1
  shift
  "$bin/hetero-plan" -m "$model" --hw "$work/hw.toml" --prompt "$n" --output "$steps" --rows 1 --json -q "$@" >"$work/plan.json"
  echo "$(value "$work/plan.json" ttft_alone_ms) $(value "$work/plan.json" itl_alone_ms)"
}

"$bin/hw-probe" --toml -q >"$work/hw.toml"
# Stages at lengths between and below those that are asked for: each of these is held out. All lengths in turn, so that a
# machine whose speed drifts is as fast for one as for the other.
stages=(48 256 640 1200 1600)
for ((i = 0; i < runs; ++i)); do
  for n in "${stages[@]}" "${lengths[@]}"; do run_once "$n"; done
done
{
  printf 'stage_profile = 1\nchunk_tokens = %d\n' "$chunk"
  for n in "${stages[@]}"; do
    read -r p d < <(measured "$n")
    awk -v n="$n" -v p="$p" -v d="$d" -v s="$steps" 'BEGIN {
      printf "[[prefill]]\ntokens = %d\nseconds = %.7f\n[[decode]]\ncontext_tokens = %d\nstep_seconds = %.7f\n", n, p / 1e3, n + s / 2, d / 1e3
    }'
  done
} >"$work/stages.toml"

printf '%-7s %-6s %10s %10s %8s %10s %8s\n' tokens stage measured profile error stages error
bad=0
for n in "${lengths[@]}"; do
  read -r p d < <(measured "$n")
  read -r profile_p profile_d < <(planned "$n")
  read -r stages_p stages_d < <(planned "$n" --stages "$work/stages.toml")
  for row in "TTFT $p $profile_p $stages_p" "ITL $d $profile_d $stages_d"; do
    read -r name m a b <<<"$row"
    awk -v n="$n" -v name="$name" -v m="$m" -v a="$a" -v b="$b" 'BEGIN {
      printf "%-7d %-6s %7.2f ms %7.2f ms %6.1f %% %7.2f ms %6.1f %%\n", n, name, m, a, (a / m - 1) * 100, b, (b / m - 1) * 100
      e = b / m - 1; exit((e < 0 ? -e : e) > 0.15 ? 1 : 0)
    }' || bad=1
  done
done
exit $bad
