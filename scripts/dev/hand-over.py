#!/usr/bin/env python3
"""How long hetero-decode takes from opening a state's file to the first token that it computes itself.

The state should have no logits (hetero-prefill --logits none), so that the first token takes one step of decode. Beside
it, by turns: reading the file's bytes into warm memory, and one step (the median time between tokens). Prints medians
over the rounds and ranges, and how the first compares with twice the reading and one step.
usage: scripts/dev/hand-over.py MODEL STATE.h5 [--threads 1 --threads 2] [--rounds 9] [--bin DIR]
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
import time

root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def read_ms(path, memory):
    begin = time.monotonic()
    with open(path, "rb", buffering=0) as file:
        while file.readinto(memory) > 0:
            pass
    return (time.monotonic() - begin) * 1e3


def decode(options, threads):
    command = [os.path.join(options.bin, "hetero-decode"), "-m", options.model, options.state, "-n", "8", "--json",
               "-q", "-t", threads]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)} ended with {done.returncode}:\n{done.stderr}")
    report = json.loads(done.stdout)
    sequence = report["sequences"][0]
    return report["read_ms"] + sequence["ttft_ms"], sequence["itl_p50_ms"]


def text(name, values):
    return f"{name} {statistics.median(values):.1f} ms ({min(values):.1f} to {max(values):.1f})"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("state")
    parser.add_argument("--threads", action="append", default=[])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--bin", default=os.path.join(root, "build/release/bin"))
    options = parser.parse_args()
    memory = bytearray(256 << 10)
    for threads in options.threads or ["1", "2"]:
        reads, firsts, steps = [], [], []
        for round_ in range(options.rounds + 1):  # the first one warms up
            read = read_ms(options.state, memory)
            first, step = decode(options, threads)
            if round_ > 0:
                reads.append(read)
                firsts.append(first)
                steps.append(step)
        goal = 2 * statistics.median(reads) + statistics.median(steps)
        print(f"{threads} threads: {text('first token', firsts)}; {text('reading', reads)}; {text('a step', steps)}; "
              f"first token / (2 x reading + a step) {statistics.median(firsts) / goal:.2f}")


if __name__ == "__main__":
    main()
