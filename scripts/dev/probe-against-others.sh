#!/bin/bash
# Holds hw-probe's rates against others' on the same machine: a triad by STREAM's rules, oneDNN's products, and NumPy's
# where PYTHON has it. Prints both and the ratio. Both run by turns, the best of ROUNDS counts, as in each of them.
# oneDNN gets f32 weights twice: in rows, as files have them and the engine multiplies them, and laid out for its kernels
# beforehand, which is not timed.
#   scripts/dev/probe-against-others.sh [ROUNDS]; BIN has hw-probe and bench_machine (-DHETERO_BENCH=ON)
set -euo pipefail
rounds=${1:-3} bin=${BIN:-build/release/bin} python=${PYTHON:-python3}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
threads=$(nproc)
for ((round = 0; round < rounds; ++round)); do
    "$bin/hw-probe" --json -t "$threads" >"$work/ours.$round.json"
    "$bin/bench_machine" "$threads" >"$work/others.$round.txt"
    for t in 1 "$threads"; do
        OPENBLAS_NUM_THREADS=$t OMP_NUM_THREADS=$t "$python" - "$t" >>"$work/others.$round.txt" <<'PYTHON' || true
import sys, time
try:
    import numpy as np
except ImportError:
    sys.exit()
x, w, y = (np.ones(s, "f4") for s in ((128, 2048), (2048, 1024), (128, 1024)))
best = float("inf")
for _ in range(200):
    start = time.perf_counter()
    np.matmul(x, w, out=y)
    best = min(best, time.perf_counter() - start)
print("numpy", sys.argv[1], 2e-9 * 128 * 2048 * 1024 / best)
PYTHON
    done
done
"$python" - "$work" "$rounds" <<'PYTHON'
import json, sys
work, rounds = sys.argv[1], int(sys.argv[2])
ours, others = {}, {}
def keep(table, key, value):
    table[key] = max(table.get(key, 0), value)
for i in range(rounds):
    profile = json.load(open(f"{work}/ours.{i}.json"))
    for rate in profile["memory_bandwidth"]["rates"]:
        keep(ours, ("triad", rate["threads"]), rate["triad_gb_per_s"])
    for rate in profile["compute"]["rates"]:
        if rate["executable"]:
            keep(ours, (rate["weights"], rate["path"], rate["threads"]), rate["gemm_gflop_per_s"])
    for line in open(f"{work}/others.{i}.txt"):
        name, threads, value = line.split()
        keep(others, (name, int(threads)), float(value))
print(f"{'what':34} {'threads':>7} {'hw-probe':>9} {'other':>9} {'ratio':>6}")
for what, key, other in (("triad, GB/s, beside STREAM's", ("triad",), "triad"),
                         ("f32 GEMM, GFLOP/s, beside oneDNN", ("f32", "precise"), "f32_rows"),
                         ("f32 GEMM, its weights laid out", ("f32", "precise"), "f32"),
                         ("f32 GEMM, beside NumPy", ("f32", "precise"), "numpy"),
                         ("f16 GEMM, beside oneDNN bf16", ("f16", "fast"), "bf16"),
                         ("int8 GEMM, beside oneDNN bf16", ("q8_0", "fast"), "bf16"),
                         ("int4 GEMM, beside oneDNN bf16", ("q4_1", "fast"), "bf16")):
    for threads in sorted({t for name, t in others if name == other}):
        a, b = ours.get((*key, threads)), others[(other, threads)]
        if a:
            print(f"{what:34} {threads:7} {a:9.4g} {b:9.4g} {a / b:6.2f}")
PYTHON
