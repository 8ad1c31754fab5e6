#!/usr/bin/env bash
# Plans for this machine, then measures what was planned: time to first token and between tokens of one request alone,
# at several lengths of the prompt. Prints both and their difference: planned from a profile that has run the model
# (hw-probe --model), at other lengths than these, and from the rates of its kernels alone.
# usage: scripts/dev/plan-against-measured.sh MODEL [LENGTH...]     exit 1 where the former's error is above 15 %
# Environment: HETERO_BIN (build/release/bin), HETERO_RUNS (5), HETERO_STEPS (32 tokens decoded).
set -euo pipefail
cd "$(dirname "$0")/../.."
[ $# -ge 1 ] || { sed -n '2,6s/^# //p' "$0"; exit 2; }
model=$1
shift
lengths=("$@")
[ $# -gt 0 ] || lengths=(128 512 2048)
bin=${HETERO_BIN:-build/release/bin}
runs=${HETERO_RUNS:-5} steps=${HETERO_STEPS:-32}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

value() { tr -d ' ,\n' <"$1" | grep -oE "\"$2\":[0-9.e+-]+" | head -n 1 | cut -d: -f2; }
tokens() { seq "$1" | awk '{printf "%s%d", (NR > 1 ? "," : ""), 1000 + ($1 * 7919) % 30000}'; }
best() { sort -g | head -n 1; }  # what else the machine does only adds

# run_once LENGTH: appends milliseconds of prefill and of a step to files
run_once() {
  local n=$1
  tokens "$n" >"$work/ids"
  "$bin/hetero-prefill" -m "$model" --tokens "@$work/ids" -o "$work/state.h5" --force --json -q >"$work/p.json"
  value "$work/p.json" prefill_ms >>"$work/p.$n"
  "$bin/hetero-decode" -m "$model" "$work/state.h5" -n "$steps" --ignore-eos --json -q >"$work/d.json"
  value "$work/d.json" itl_p50_ms >>"$work/d.$n"
}

# planned PROFILE LENGTH: the same from hetero-plan
planned() {
  "$bin/hetero-plan" -m "$model" --hw "$1" --prompt "$2" --output "$steps" --rows 1 --json -q >"$work/plan.json"
  echo "$(value "$work/plan.json" ttft_alone_ms) $(value "$work/plan.json" itl_alone_ms)"
}

"$bin/hw-probe" --model "$model" -o "$work/hw.toml" -q >"$work/page"
sed '/^\[\[stages/,$d' "$work/hw.toml" >"$work/kernels.toml"  # the last section
for ((i = 0; i < runs; ++i)); do
  for n in "${lengths[@]}"; do run_once "$n"; done
done

printf '%-7s %-6s %10s %10s %8s %10s %8s\n' tokens stage measured planned error kernels error
bad=0
for n in "${lengths[@]}"; do
  p=$(best <"$work/p.$n") d=$(best <"$work/d.$n")
  read -r model_p model_d < <(planned "$work/hw.toml" "$n")
  read -r kernels_p kernels_d < <(planned "$work/kernels.toml" "$n")
  for row in "TTFT $p $model_p $kernels_p" "ITL $d $model_d $kernels_d"; do
    read -r name m a b <<<"$row"
    awk -v n="$n" -v name="$name" -v m="$m" -v a="$a" -v b="$b" 'BEGIN {
      printf "%-7d %-6s %7.2f ms %7.2f ms %6.1f %% %7.2f ms %6.1f %%\n", n, name, m, a, (a / m - 1) * 100, b, (b / m - 1) * 100
      e = a / m - 1; exit((e < 0 ? -e : e) > 0.15 ? 1 : 0)
    }' || bad=1
  done
done
exit $bad
