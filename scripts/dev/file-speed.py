#!/usr/bin/env python3
"""What moving a KV state from file to file takes, beside `cp` and an fsync of the copy, by turns.

Each round times, after an output that is not there yet: cp + fsync, kv-send, and kv-quantize to each --dtype. Every
output is on the disk before the clock stops; the input is in the page cache. Prints medians over the rounds, the
range, and the median over the rounds of each time divided by that of cp.
usage: scripts/dev/file-speed.py STATE.h5 [--rounds 9] [--folder DIR] [--dtype int8 --dtype hk8] [--threads N]
"""
import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time

here = os.path.dirname(os.path.abspath(__file__))
root = os.path.dirname(os.path.dirname(here))


def run(command):
    done = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, timeout=300)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)} ended with {done.returncode}:\n{done.stderr}")


def copy(source, target):
    run(["cp", source, target])
    descriptor = os.open(target, os.O_RDONLY)
    os.fsync(descriptor)
    os.close(descriptor)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("state")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--folder", help="where the outputs go; beside the state unless given")
    parser.add_argument("--dtype", action="append", default=[], help="of kv-quantize; may be repeated")
    parser.add_argument("--threads", default="0")
    parser.add_argument("--bin", default=os.path.join(root, "build/release/bin"))
    options = parser.parse_args()

    folder = tempfile.TemporaryDirectory(prefix="hetero-files-", dir=options.folder or os.path.dirname(
        os.path.abspath(options.state)))
    target = os.path.join(folder.name, "out.h5")
    tool = lambda name, *more: lambda: run([os.path.join(options.bin, name), options.state, "-o", target, "-q", "-t",
                                            options.threads, *more])
    subjects = {"cp + fsync": lambda: copy(options.state, target), "kv-send": tool("kv-send")}
    for dtype in options.dtype:
        subjects[f"kv-quantize {dtype}"] = tool("kv-quantize", "--preset" if dtype.startswith("hk") else "--dtype",
                                                dtype)

    times = {name: [] for name in subjects}
    sizes = {}
    for round_ in range(options.rounds + 1):  # the first one warms up
        for name, subject in subjects.items():
            os.sync()
            start = time.monotonic()
            subject()
            if round_ > 0:
                times[name].append(time.monotonic() - start)
            sizes[name] = os.path.getsize(target)
            os.remove(target)

    reference = times["cp + fsync"]
    for name, own in times.items():
        ratios = [a / b for a, b in zip(own, reference)]
        middle = statistics.median(own)
        print(f"{name:18} {sizes[name] / 1e6:8.1f} MB {middle * 1e3:8.1f} ms ({min(own) * 1e3:.1f} to "
              f"{max(own) * 1e3:.1f}), {sizes[name] / middle / 1e9:5.2f} GB/s; time / cp {statistics.median(ratios):.2f} "
              f"({min(ratios):.2f} to {max(ratios):.2f})")


if __name__ == "__main__":
    main()
