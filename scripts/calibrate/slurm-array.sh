#!/usr/bin/env bash
# The same as calibrate.sh, divided among the tasks of a Slurm array; a last job merges what they measured.
# usage: scripts/calibrate/slurm-array.sh TASKS MODEL BITS OUT_DIR [TEXT...]
#   OUT_DIR  on a file system that all nodes share; the other arguments are those of calibrate.sh
# Environment: SBATCH (the command, "sbatch" by default) and SBATCH_OPTIONS (more options for both jobs, by words).
set -euo pipefail

# In a job: TASKS COMMAND... Slurm runs a copy of what it was given, which finds nothing beside itself: it is given this
# script, and what is run is named.
if [ "${1:-}" = --run ]; then
  if [ -n "${SLURM_ARRAY_TASK_ID:-}" ]; then  # in the array: one slice of the work
    export HETERO_CALIBRATE_SLICE="$SLURM_ARRAY_TASK_ID/$2"
  fi
  exec "${@:3}"
fi
if [ $# -lt 4 ]; then
  sed -n '2,/^set /s/^# //p' "$0" >&2
  exit 2
fi
root=$(cd "$(dirname "$0")/../.." && pwd)
tasks=$1
shift
if ! [[ $tasks =~ ^[1-9][0-9]*$ ]]; then
  echo "$0: TASKS is '$tasks', not a number from 1 on" >&2
  exit 2
fi
read -r -a options <<<"${SBATCH_OPTIONS:-}"
mkdir -p "$3/work"
log=$3/work/slurm-%A-%a.log
job=("$root/scripts/calibrate/slurm-array.sh" --run "$tasks" "$root/scripts/calibrate/calibrate.sh" "$@")
array=$("${SBATCH:-sbatch}" --parsable "${options[@]}" --job-name hetero-calibrate --array "0-$((tasks - 1))" \
  --output "$log" "${job[@]}")
array=${array%%;*}  # job id; cluster name
"${SBATCH:-sbatch}" --parsable "${options[@]}" --job-name hetero-calibrate-merge --dependency "afterok:$array" \
  --output "$log" "${job[@]}"
