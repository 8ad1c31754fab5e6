#!/usr/bin/env bash
# From a model and texts to a plan of precision, a table and a plot.
# usage: scripts/calibrate/calibrate.sh MODEL BITS OUT_DIR [TEXT...]
#   BITS     most bits per value that the plan may take, say 5.1
#   OUT_DIR  gets plan.toml, table.md, table.csv, curve.svg, and work/, from which a run that was stopped goes on
#   TEXT     files of text, or @FILE of token ids: the first two thirds are calibrated on, the rest is held out.
#            Without any: the id lists of testdata/calibration, which are for models with SmolLM2's tokenizer.
# Environment: HETERO_BIN (directory of the tools), HETERO_CALIBRATE_FORMATS (formats beside the plan in the table),
# HETERO_CALIBRATE_SLICE (I/N: measure only that part, see slurm-array.sh), and what kv-calibrate takes as settings (HETERO_STEPS, ...).
set -euo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)

if [ $# -lt 3 ]; then
  sed -n '2,/^set /s/^# //p' "$0" >&2
  exit 2
fi
model=$1 bits=$2 out=$3
shift 3
bin=${HETERO_BIN:-$root/build/release/bin}
lists=$root/testdata/calibration
usual=int8-accurate,int8-fast,int6-accurate,int4-accurate,int4-small,compat:q8_0,compat:q4_0
formats=${HETERO_CALIBRATE_FORMATS:-$usual}

texts=() held_out=()
if [ $# -eq 0 ]; then
  for name in novel manual code data; do texts+=(--text "@$lists/tune-$name.ids"); done
  for name in novel legal manual code; do held_out+=(--held-out "@$lists/$name.ids"); done
else
  count=$(((2 * $# + 2) / 3))
  for ((i = 1; i <= $#; ++i)); do
    if ((i <= count)); then texts+=(--text "${!i}"); else held_out+=(--held-out "${!i}"); fi
  done
fi

mkdir -p "$out"
if [ -n "${HETERO_CALIBRATE_SLICE:-}" ]; then  # one part of the work, for a last run without this
  exec "$bin/kv-calibrate" -m "$model" "${texts[@]}" "${held_out[@]}" --bits "$bits" --formats "$formats" \
    --resume "$out/work" --slice "$HETERO_CALIBRATE_SLICE"
fi
"$bin/kv-calibrate" -m "$model" "${texts[@]}" "${held_out[@]}" --bits "$bits" \
  --formats "$formats" \
  --resume "$out/work" --force -o "$out/plan.toml" --csv "$out/table.csv" --svg "$out/curve.svg" >"$out/table.md"
cat "$out/table.md"
echo "plan: $out/plan.toml" >&2
