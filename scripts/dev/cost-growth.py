#!/usr/bin/env python3
"""Shows how hetero's time grows with the length: prefill fitted to a n + b n^2, decode to a + b context.

The slope of decode divides the KV bytes of a token: the rate at which attention reads. Needs numpy.
"""

import argparse
import json
import random
import statistics
import subprocess
import tempfile
from pathlib import Path

import numpy


def fit(columns, values):
    """Least squares of relative errors; coefficients, and the largest relative miss."""
    matrix, values = numpy.array(columns, dtype=float).T, numpy.array(values)
    coefficients = numpy.linalg.lstsq(matrix / values[:, None], numpy.ones(len(values)), rcond=None)[0]
    return coefficients, max(abs(matrix @ coefficients / values - 1))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--bin", type=Path, default=Path("build/release/bin"))
    parser.add_argument("--lengths", default="512,1024,2048,4096,8000")
    parser.add_argument("--threads", default="1")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=33, help="decoded tokens at each length")
    parser.add_argument("--kv-dtype", default="f16")
    options = parser.parse_args()

    lengths = [int(text) for text in options.lengths.split(",")]
    common = ["-m", options.model, "-t", options.threads, "--json", "--kv-dtype", options.kv_dtype]
    prefill_s, decode_s, kv_bytes = [], [], 0
    with tempfile.TemporaryDirectory(dir="/dev/shm") as work:
        state, ids = Path(work) / "state.h5", Path(work) / "ids"
        for length in lengths:
            ids.write_text(" ".join(str(random.randrange(100, 40000)) for _ in range(length)))
            times, itls = [], []
            for _ in range(options.rounds):
                out = json.loads(subprocess.run([options.bin / "hetero-prefill", *common, "--tokens", f"@{ids}",
                                                 "--force", "-o", state], check=True, stdout=subprocess.PIPE,
                                                stderr=subprocess.DEVNULL).stdout)
                times.append(out["prefill_ms"] / 1e3)
                kv_bytes = out["kv_bytes"] / length
                out = json.loads(subprocess.run([options.bin / "hetero-decode", *common, state, "-n",
                                                 str(options.steps), "--ignore-eos"], check=True,
                                                stdout=subprocess.PIPE, stderr=subprocess.DEVNULL).stdout)
                itls.append(out["sequences"][0]["itl_p50_ms"] / 1e3)
            prefill_s.append(statistics.median(times))
            decode_s.append(statistics.median(itls))
            print(f"{length:6} tokens: prefill {prefill_s[-1]:8.3f} s {length / prefill_s[-1]:8.1f} tokens/s   "
                  f"decode {decode_s[-1] * 1e3:7.2f} ms {1 / decode_s[-1]:7.1f} tokens/s", flush=True)

    n = numpy.array(lengths, dtype=float)
    (linear, square), miss = fit([n, n * n], prefill_s)
    print(f"prefill: {linear * 1e6:.1f} us n + {square * 1e9:.2f} ns n^2, every time within {miss:.1%} of that")
    context = n + options.steps / 2
    (constant, slope), miss = fit([n**0, context], decode_s)
    print(f"decode: {constant * 1e3:.2f} ms + {slope * 1e9:.1f} ns a token of context, within {miss:.1%}; "
          f"{kv_bytes:.0f} bytes of KV a token: {kv_bytes / slope / 1e9:.1f} GB/s")


main()
