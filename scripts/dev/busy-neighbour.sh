#!/bin/bash
# Decode and prefill beside neighbours that burn cores: prints tokens/s alone, with a spinning process on each single
# core, and with one on all of them, and the share of the run alone. A core's share is what may be lost: of T threads on
# T cores (T - 0.5) / T beside one neighbour, a half where all cores have one. Runs alternate, so that other load of the
# machine meets all of them; medians of ROUNDS.
#   scripts/dev/busy-neighbour.sh MODEL [THREADS [ROUNDS]]; BIN has the tools (build/release/bin)
set -euo pipefail
model=${1:?usage: busy-neighbour.sh MODEL [THREADS [ROUNDS]]}
threads=${2:-$(nproc)} rounds=${3:-5} bin=${BIN:-build/release/bin}
work=$(mktemp -d)
spinners=()
end_spinners() {
    for pid in "${spinners[@]}"; do
        kill "$pid" || continue
        wait "$pid" || true
    done 2>/dev/null
    spinners=()
}
trap 'end_spinners; rm -rf "$work"' EXIT

mapfile -t cores < <(taskset -cp $$ | sed 's/.*: //' | tr , '\n' |
    while IFS=- read -r first last; do seq "$first" "${last:-$first}"; done | head -n "$threads")
tokens=$(seq -s, 100 611)
number() { python3 -c "import json, sys; r = json.load(sys.stdin); print(r$1)"; }
prefill() { "$bin/hetero-prefill" -m "$model" --tokens "$tokens" -t "$threads" --json -q --force -o "$work/$1.h5"; }
prefill state > /dev/null

conditions=(alone "${cores[@]}")
if ((${#cores[@]} > 1)); then conditions+=(all); fi
for ((round = 0; round < rounds; ++round)); do
    for condition in "${conditions[@]}"; do
        case $condition in
            alone) busy=() ;;
            all) busy=("${cores[@]}") ;;
            *) busy=("$condition") ;;
        esac
        for core in "${busy[@]}"; do
            taskset -c "$core" bash -c 'while :; do :; done' &
            spinners+=($!)
        done
        "$bin/hetero-decode" -m "$model" "$work/state.h5" -n 100 --ignore-eos -t "$threads" --json -q |
            number '["sequences"][0]["tokens_per_s"]' >> "$work/decode-$condition"
        prefill other | number '["tokens_per_s"]' >> "$work/prefill-$condition"
        end_spinners
    done
done

median() { sort -g "$1" | awk '{v[NR] = $1} END {print v[int((NR + 1) / 2)]}'; }
printf '%-12s %10s %7s %12s %7s\n' "busy core" "decode t/s" share "prefill t/s" share
for condition in "${conditions[@]}"; do
    decode=$(median "$work/decode-$condition") prefill=$(median "$work/prefill-$condition")
    if [ "$condition" = alone ]; then decode_alone=$decode prefill_alone=$prefill; fi
    awk -v c="$condition" -v d="$decode" -v p="$prefill" -v da="$decode_alone" -v pa="$prefill_alone" \
        'BEGIN {printf "%-12s %10.1f %6.0f%% %12.0f %6.0f%%\n", c, d, 100 * d / da, p, 100 * p / pa}'
done
