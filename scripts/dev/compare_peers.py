"""Times hetero and other engines in turn: in each round every engine once, so that a drift of the machine meets all.

Prints medians with their range, and the median over the rounds of hetero's rate divided by the peer's in that round.
A measurement during which other processes used more than --max-other of the cores is taken again.
"""

import argparse
import json
import os
import random
import re
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

VOCABULARY = range(100, 40000)  # ids that every tokenizer at hand has, none of them special
RETRIES = 4


@dataclass(frozen=True)
class Figure:
    kind: str  # prefill, decode (tokens/s), start (s), memory or anonymous (MiB; resident, without pages of files)
    n_tokens: int  # of the prompt, or of the context that is decoded at

    def __str__(self):
        return {"prefill": f"prefill {self.n_tokens}", "decode": f"decode at {self.n_tokens}",
                "start": "load + 1 token", "memory": f"peak memory, prefill {self.n_tokens}",
                "anonymous": f"peak memory without files, prefill {self.n_tokens}"}[self.kind]

    @property
    def lower_is_better(self):
        return self.kind == "start" or self.is_memory

    @property
    def is_memory(self):
        return self.kind in ("memory", "anonymous")

    @property
    def unit(self):
        return "s" if self.kind == "start" else "MiB" if self.is_memory else "tokens/s"


def random_ids(n):
    return [random.choice(VOCABULARY) for _ in range(n)]


def start(command, threads, **streams):
    """On the first `threads` cores."""
    cores = sorted(os.sched_getaffinity(0))[:threads]
    return subprocess.Popen(command, preexec_fn=lambda: os.sched_setaffinity(0, cores), **streams)


def run(command, threads):
    """Returns stdout and wall seconds."""
    began = time.monotonic()
    process = start(command, threads, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    out, err = process.communicate()
    if process.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))}: exit {process.returncode}\n{err.decode()[-2000:]}")
    return out, time.monotonic() - began


def peak_mib(command, threads):
    with tempfile.NamedTemporaryFile("r") as report:
        run(["/usr/bin/time", "-f", "%M", "-o", report.name, *command], threads)
        return int(report.read().split()[-1]) / 1024


def peak_anonymous_mib(command, threads):
    """The largest of what is seen every millisecond."""
    process, peak = start(command, threads, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                          stderr=subprocess.DEVNULL), 0
    while process.poll() is None:
        fields = re.search(r"RssAnon:\s*(\d+)", Path(f"/proc/{process.pid}/status").read_text())
        peak = max(peak, int(fields[1]) if fields else 0)
        time.sleep(0.001)
    if process.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))}: exit {process.returncode}")
    return peak / 1024


class Hetero:
    def __init__(self, bin_dir, model, label, precise, work):
        self.bin, self.model, self.name, self.work = Path(bin_dir), model, f"hetero {label}", work
        self.options = ["--precise"] if precise else []
        self.states = {}

    def prefill(self, ids, threads):
        path = self.work / "ids"
        path.write_text(" ".join(map(str, ids)))
        return [self.bin / "hetero-prefill", "-m", self.model, "--tokens", f"@{path}", "-t", str(threads), "--json",
                "--force", "-o", self.work / "state.h5", *self.options]

    def measure(self, figure, threads):
        if figure.kind == "prefill":
            return json.loads(run(self.prefill(random_ids(figure.n_tokens), threads), threads)[0])["tokens_per_s"]
        if figure.is_memory:
            peak = peak_mib if figure.kind == "memory" else peak_anonymous_mib
            return peak(self.prefill(random_ids(figure.n_tokens), threads), threads)
        if figure.kind == "start":
            return run([self.bin / "hetero-prefill", "-m", self.model, "-p", "Hello", "-t", str(threads), "--force",
                        "-o", self.work / "state.h5", *self.options], threads)[1]
        if figure.n_tokens not in self.states:
            run(self.prefill(random_ids(max(figure.n_tokens, 1)), threads), threads)
            self.states[figure.n_tokens] = (self.work / "state.h5").rename(
                self.work / f"{self.name.replace(' ', '-')}-{figure.n_tokens}.h5")
        out, _ = run([self.bin / "hetero-decode", "-m", self.model, self.states[figure.n_tokens], "-n", "33",
                      "--ignore-eos", "-t", str(threads), "--json", *self.options], threads)
        return json.loads(out)["sequences"][0]["tokens_per_s"]

    def close(self):
        pass


class Llama:
    """llama.cpp, by its own llama-bench."""

    def __init__(self, cache, model, label):
        self.bin, self.model, self.name = Path(cache) / "llama" / "bin", model, f"llama.cpp {label}"

    def bench(self, n_prompt, n_decode, depth, threads):
        return [self.bin / "llama-bench", "-m", self.model, "-p", str(n_prompt), "-n", str(n_decode), "-d", str(depth),
                "-t", str(threads), "-fa", "1", "-ngl", "0", "-r", "1", "-o", "json"]

    def complete(self, threads):
        return [self.bin / "llama-completion", "-m", self.model, "-p", "Hello", "-n", "1", "-t", str(threads),
                "-no-cnv", "--no-warmup", "-c", "512", "-ngl", "0"]

    def measure(self, figure, threads):
        if figure.kind == "start":
            return run(self.complete(threads), threads)[1]
        command = self.bench(0, 32, figure.n_tokens, threads) if figure.kind == "decode" else \
            self.bench(figure.n_tokens, 0, 0, threads)
        if figure.is_memory:
            return peak_mib(command, threads) if figure.kind == "memory" else peak_anonymous_mib(command, threads)
        return json.loads(run(command, threads)[0])[0]["avg_ts"]

    def close(self):
        pass


class Worker:
    """A peer that is a Python library: one process a number of threads, as loading takes seconds."""

    def __init__(self, name, script, model):
        self.name, self.script, self.model, self.processes = name, script, model, {}
        self.log = tempfile.TemporaryFile("w+")

    def measure(self, figure, threads):
        if figure.kind not in ("prefill", "decode"):
            return None
        if threads not in self.processes:
            self.processes[threads] = start([sys.executable, self.script, self.model, str(threads)], threads,
                                            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.log, text=True,
                                            env={**os.environ, "OMP_NUM_THREADS": str(threads)})
        process = self.processes[threads]

        def seconds(n_prompt, n_new):
            process.stdin.write(json.dumps([random_ids(n_prompt), n_new]) + "\n")
            process.stdin.flush()
            for line in process.stdout:
                if line.startswith("seconds "):
                    return float(line.split()[1])
            self.log.seek(0)
            sys.exit(f"{self.name}: its process ended\n{self.log.read()[-2000:]}")

        n_prompt = max(figure.n_tokens, 1)
        first = seconds(n_prompt, 1)
        if figure.kind == "prefill":
            return n_prompt / first
        return 32 / (seconds(n_prompt, 33) - first)

    def close(self):
        for process in self.processes.values():
            process.stdin.close()
            process.wait()


def busy_seconds():
    """CPU seconds of the whole machine, and of this process, its children and its workers."""
    fields = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]
    tick = os.sysconf("SC_CLK_TCK")
    total = (sum(map(int, fields)) - int(fields[3]) - int(fields[4])) / tick
    times = os.times()
    own = times.user + times.system + times.children_user + times.children_system
    for task in Path("/proc").glob("[0-9]*/stat"):
        try:
            stat = task.read_text().rsplit(")", 1)[1].split()
        except OSError:
            continue
        if int(stat[1]) == os.getpid():
            own += (int(stat[11]) + int(stat[12])) / tick
    return total, own


def measure_quietly(engine, figure, threads, max_other):
    """The figure, and the share of the cores that others used meanwhile."""
    for _ in range(RETRIES):
        began, (total, own) = time.monotonic(), busy_seconds()
        value = engine.measure(figure, threads)
        total, own = (after - before for after, before in zip(busy_seconds(), (total, own)))
        other = max(0, total - own) / (time.monotonic() - began) / os.cpu_count()
        if other <= max_other:
            break
    return value, other


def requantized(cache, model, kind):
    """The model in another type, made by llama.cpp's tool: for speed only, its quality means nothing."""
    path = Path(cache) / f"{Path(model).stem}.{kind}.gguf"
    if not path.exists():
        temporary = path.with_suffix(".part")
        run([Path(cache) / "llama" / "bin" / "llama-quantize", "--allow-requantize", "--pure", model, temporary, kind], 2)
        temporary.rename(path)
    return path


def engines_of(options, work):
    here = Path(__file__).parent
    engines = [Hetero(options.bin, options.model, "as it is", False, work)]
    if options.precise:
        engines.append(Hetero(options.bin, options.model, "--precise", True, work))
    for peer in options.peers.split(","):
        if peer == "llama":
            engines.append(Llama(options.cache, options.model, "as it is"))
            for kind in filter(None, options.kinds.split(",")):
                path = requantized(options.cache, options.model, kind)
                engines.append(Llama(options.cache, path, kind))
                if options.kinds_of_ours:
                    engines.append(Hetero(options.bin, path, kind, False, work))
        else:
            engines.append(Worker(peer, here / f"peer_{peer}.py", options.model))
    return engines


def show(values, digits):
    return f"{statistics.median(values):.{digits}f} [{min(values):.{digits}f}..{max(values):.{digits}f}]"


def report(figure, threads, engines, values, others):
    print(f"\n{figure}, {threads} thread{'s' if threads > 1 else ''} "
          f"({figure.unit}; "
          f"others used at most {max(others):.0%} of the cores)")
    of_file = {engine.name.removeprefix("hetero "): engine for engine in engines if isinstance(engine, Hetero)}
    for engine in engines:
        theirs = values[engine]
        if theirs[0] is None:
            continue
        digits = 3 if figure.kind == "start" else 1
        line = f"  {engine.name:24} {show(theirs, digits):>30}"
        ours = of_file.get(engine.name.removeprefix("llama.cpp "), engines[0])  # on the same file, where there is one
        if not isinstance(engine, Hetero):
            ratios = [b / a if figure.lower_is_better else a / b for a, b in zip(values[ours], theirs)]
            line += f"   {ours.name}: {show(ratios, 2)} x"
        print(line, flush=True)


def main():
    parser = argparse.ArgumentParser(prog="compare-peers.sh --", description=__doc__)
    for name in ("bin", "model", "peers", "cache"):
        parser.add_argument(f"--{name}", required=True, help=argparse.SUPPRESS)
    parser.add_argument("--pairs", type=int, default=5, help="rounds [5]")
    parser.add_argument("--threads", default="1,2", help="[1,2]")
    parser.add_argument("--figures", help="[%(default)s]",
                        default="prefill:512,prefill:2048,decode:0,decode:2048,start:0,memory:2048,anonymous:2048")
    parser.add_argument("--kinds", default="Q4_0,BF16", help="further types of the model for llama.cpp [Q4_0,BF16]")
    parser.add_argument("--kinds-of-ours", action="store_true", help="run hetero on those files, too")
    parser.add_argument("--precise", action="store_true", help="run hetero with --precise, too")
    parser.add_argument("--max-other", type=float, default=0.05, help="share of the cores [0.05]")
    parser.add_argument("--json", help="write all values to this file")
    options = parser.parse_args()

    figures = [Figure(kind, int(n)) for kind, n in (text.split(":") for text in options.figures.split(","))]
    everything = []
    with tempfile.TemporaryDirectory(dir="/dev/shm") as work:
        engines = engines_of(options, Path(work))
        cpu = next(line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name"))
        print(f"{cpu.split(':')[1].strip()}, {len(os.sched_getaffinity(0))} cores; {Path(options.model).name}; "
              f"{options.pairs} rounds; median [least..most]")
        for threads in map(int, options.threads.split(",")):
            for figure in figures:
                values, others = {engine: [] for engine in engines}, []
                for engine in engines:  # caches, lazy set-up
                    engine.measure(figure, threads)
                for _ in range(options.pairs):
                    for engine in engines:
                        value, other = measure_quietly(engine, figure, threads, options.max_other)
                        values[engine].append(value)
                        others.append(other)
                report(figure, threads, engines, values, others)
                everything.append({"figure": str(figure), "threads": threads, "max_other": max(others),
                                   "values": {engine.name: values[engine] for engine in engines}})
        for engine in engines:
            engine.close()
    if options.json:
        Path(options.json).write_text(json.dumps(everything, indent=1) + "\n")


if __name__ == "__main__":
    main()
