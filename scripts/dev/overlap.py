#!/usr/bin/env python3
"""How much of a transfer the prefill hides: a prompt is prefilled alone, then streamed to a decoder, by turns.

The link is as slow as makes the transfer take --share of the prefill: by --max-rate, or with --shaped by a real link
between two network namespaces (shaped-link.sh, as root). Prints medians over the pairs, and the range.
usage: scripts/dev/overlap.py [--model FILE] [--tokens 2048] [--threads 1] [--pairs 7] [--wire int8] [--shaped]
"""
import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile

here = os.path.dirname(os.path.abspath(__file__))
root = os.path.dirname(os.path.dirname(here))


def run(command):
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=120)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command[:4])} ... ended with {done.returncode}:\n{done.stderr}")


def spans(path, category):
    with open(path) as file:
        events = json.load(file)["traceEvents"]
    return [event for event in events if event["ph"] == "X" and event["cat"] == category]


def read(path):
    with open(path) as file:
        return json.load(file)


def show(what, values, unit, digits=1):
    print(f"{what:44} {statistics.median(values):10.{digits}f} {unit}   "
          f"({min(values):.{digits}f} to {max(values):.{digits}f})")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=os.path.expanduser("~/.cache/hetero/SmolLM2-135M-Instruct.Q4_1.gguf"))
    parser.add_argument("--bin", default=os.path.join(root, "build/release/bin"))
    parser.add_argument("--tokens", type=int, default=2048)
    parser.add_argument("--threads", type=int, default=1, help="of the prefill; the rest is the decoder's")
    parser.add_argument("--pairs", type=int, default=7)
    parser.add_argument("--share", type=float, default=0.8, help="of the prefill that the transfer takes")
    parser.add_argument("--wire", help="--wire-dtype of the transfer")
    parser.add_argument("--shaped", action="store_true", help="a link between network namespaces instead of --max-rate")
    options = parser.parse_args()

    folder = tempfile.TemporaryDirectory(prefix="hetero-overlap-")
    work = folder.name
    path = lambda name: os.path.join(work, name)
    chosen = random.Random(1)
    with open(path("tokens"), "w") as file:
        file.write(",".join(str(chosen.randrange(300, 49000)) for _ in range(options.tokens)))
    tool = lambda name: os.path.join(options.bin, name)
    prefill = [tool("hetero-prefill"), "-m", options.model, "--tokens", "@" + path("tokens"), "--threads",
               str(options.threads), "--force", "-q"]

    def alone():
        run(prefill + ["-o", path("alone.h5"), "--report", path("alone.json")])
        return read(path("alone.json"))

    wire = ["--wire-dtype", options.wire] if options.wire else []

    def streamed(rate):
        sender = prefill + ["-o", "mpi:1", "--report", path("p.json"), "--trace", path("p.trace")] + wire
        # The decoder stands for another machine: it keeps to one core.
        reader = ["taskset", "-c", str(max(os.sched_getaffinity(0))), tool("hetero-decode"), "mpi:0", "-m", options.model, "--threads", "1", "-n", "2", "--force", "-q",
                  "--report", path("d.json"), "--trace", path("d.trace")]
        if options.shaped:
            run([os.path.join(here, "shaped-link.sh"), str(int(rate * 8)), *sender, "--", *reader])
        else:
            run(["mpirun", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "-n", "1", *sender,
                 "--max-rate", str(int(rate)), ":", "-n", "1", *reader])
        report = read(path("p.json"))
        begin = spans(path("p.trace"), "prompts")[0]["ts"]
        first = spans(path("d.trace"), "decode")[0]
        report["ttft_ms"] = (first["ts"] + first["dur"] - begin) / 1e3
        return report

    def send_alone(rate):
        sender = [tool("kv-send"), path("alone.h5"), "-o", "mpi:1", "--force", "-q", "--report", path("s.json")] + wire
        reader = [tool("kv-send"), "mpi:0", "-o", path("arrived.h5"), "--force", "-q"]
        run([os.path.join(here, "shaped-link.sh"), str(int(rate * 8)), *sender, "--", *reader])
        return read(path("s.json"))["seconds"]

    first = [alone() for _ in range(5)]
    wire_bytes = first[0]["kv_bytes"]
    if options.wire:
        wire_bytes = streamed(1e12 if not options.shaped else 1e9)["kv_bytes"]
    alone_ms = statistics.median(one["prefill_ms"] for one in first)
    wanted_s = options.share * alone_ms / 1e3
    rate = wire_bytes / wanted_s
    if options.shaped:  # what it carries is less than its rate
        rate *= statistics.median(send_alone(rate) for _ in range(3)) / wanted_s
    print(f"{options.tokens} tokens, {options.threads} thread(s): {wire_bytes} bytes over "
          f"{'a shaped link' if options.shaped else 'a limit'} of {rate / 1e6:.1f} MB/s")
    pairs = [(alone(), streamed(rate)) for _ in range(options.pairs)]
    show("prefill alone", [a["prefill_ms"] for a, _ in pairs], "ms")
    show("prefill, streaming", [s["prefill_ms"] for _, s in pairs], "ms")
    show("ratio of the two, pair by pair", [s["prefill_ms"] / a["prefill_ms"] for a, s in pairs], "", 3)
    show("transfer", [s["transfer"]["ms"] for _, s in pairs], "ms")
    show("share of the prefill", [s["transfer"]["ms"] / s["prefill_ms"] for _, s in pairs], "", 3)
    show("of it visible", [s["transfer"]["visible_ms"] for _, s in pairs], "ms")
    show("overlap", [s["transfer"]["overlap"] for _, s in pairs], "", 3)
    show("TTFT at the decoder", [s["ttft_ms"] for _, s in pairs], "ms")
    show("TTFT / prefill alone, pair by pair", [s["ttft_ms"] / a["prefill_ms"] for a, s in pairs], "", 3)
    show("TTFT / prefill, of the same run", [s["ttft_ms"] / s["prefill_ms"] for _, s in pairs], "", 3)


main()
