"""Measures the kneeboard command from outside and prints Markdown tables: goal scenarios and scaling curves.

    python3 benches/curves.py --kneeboard target/release/kneeboard [--long] [--only goals requests ...]

Wall clock, CPU time (user and system) and peak resident memory come from wait4, small peaks from GNU time if it is
installed (without it none is below this script's own 17 MB); times are the median, memory the largest of --repeats
runs, of fewer where one takes longer than 2 s. Every run includes the start of the program and
the writing of its results into a temporary folder; where a cost a request, a token or a step is printed, what a run of
one request takes has been taken off. All runs are with --summary-only but where a table says otherwise.
Nothing but Python's standard library is needed. Rows that need ../shared/data are left out where it is not.

Five to eight minutes on 2 cores; with --long some ten minutes more.
"""

import argparse
import math
import os
import re
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from resource import RUSAGE_SELF, getrusage
from statistics import median

ROOT = Path(__file__).resolve().parent.parent
BENCH = "scenarios/bench"
B1 = f"{BENCH}/b1-10k-1replica.yaml"
B2 = f"{BENCH}/b2-100k-4replicas.yaml"
SATURATED = f"{BENCH}/saturated.yaml"
TRACES = ROOT / "../shared/data/workloads/peer-speed"
LONG_S = 2.0
KIB_IN_MB = 1024 / 1e6  # Linux counts memory in KiB
GNU_TIME = "/usr/bin/time"


@dataclass
class Cost:
    """What a command took."""

    wall_s: float
    cpu_s: float
    peak_mb: float
    steps: int  # 0 when the command prints none
    runs: int


class Bench:
    """Runs one binary in scratch folders."""

    def __init__(self, kneeboard: Path, repeats: int):
        self.kneeboard = kneeboard
        self.repeats = repeats
        self.start_s = self.summary(B1, {"workload.synthetic.num_requests": 1}).cpu_s

    def net_s(self, cost: Cost) -> float:
        """CPU time without what a run of one request takes."""
        return max(cost.cpu_s - self.start_s, 1e-6)

    def once(self, arguments: list[str], threads: int | None) -> Cost:
        with tempfile.TemporaryDirectory() as scratch:
            if arguments[0] in ("simulate", "sweep"):
                arguments = [*arguments, "-o", f"{scratch}/out", "--quiet"]
            environment = dict(os.environ)
            if threads:
                environment["RAYON_NUM_THREADS"] = str(threads)
            with open(f"{scratch}/stdout", "w+") as out:
                began = time.perf_counter()
                child = subprocess.Popen([self.kneeboard, *arguments], cwd=ROOT, env=environment, stdout=out)
                _, status, usage = os.wait4(child.pid, 0)
                wall_s = time.perf_counter() - began
                child.returncode = os.waitstatus_to_exitcode(status)
                if child.returncode != 0:
                    sys.exit(f"exit code {child.returncode}: kneeboard {' '.join(arguments)}")
                out.seek(0)
                steps = re.search(r"^Run 0: (\d+) steps ", out.read(), re.MULTILINE)
        peak_mb = usage.ru_maxrss * KIB_IN_MB
        return Cost(wall_s, usage.ru_utime + usage.ru_stime, peak_mb, int(steps[1]) if steps else 0, 1)

    def small_peak_mb(self, arguments: list[str]) -> float | None:
        """Peak memory where wait4 cannot tell it: a child is charged with the memory of this script at its start, but
        not a child of GNU time, if that is there."""
        if not os.access(GNU_TIME, os.X_OK):
            return None
        with tempfile.TemporaryDirectory() as scratch:
            if arguments[0] in ("simulate", "sweep"):
                arguments = [*arguments, "-o", f"{scratch}/out", "--quiet"]
            timed = [GNU_TIME, "-f", "%M", "-o", f"{scratch}/peak", self.kneeboard, *arguments]
            subprocess.run(timed, cwd=ROOT, stdout=subprocess.DEVNULL, check=True)
            return int(Path(f"{scratch}/peak").read_text()) * KIB_IN_MB

    def measure(self, *arguments: str, sets: dict[str, object] | None = None, threads: int | None = None) -> Cost:
        command = list(arguments)
        for path, value in (sets or {}).items():
            command += ["--set", f"{path}={value}"]
        print("kneeboard", *command, file=sys.stderr, flush=True)
        runs = [self.once(command, threads)]
        repeats = self.repeats if runs[0].wall_s < LONG_S else min(self.repeats, 3 if runs[0].wall_s < 10 else 1)
        runs += [self.once(command, threads) for _ in range(repeats - 1)]
        peak_mb = max(r.peak_mb for r in runs)
        if peak_mb < 2 * getrusage(RUSAGE_SELF).ru_maxrss * KIB_IN_MB:
            peak_mb = self.small_peak_mb(command) or peak_mb
        return Cost(
            median(r.wall_s for r in runs),
            median(r.cpu_s for r in runs),
            peak_mb,
            runs[0].steps,
            len(runs),
        )

    def summary(self, scenario: str, sets: dict[str, object] | None = None, threads: int | None = None) -> Cost:
        return self.measure("simulate", scenario, "--summary-only", sets=sets, threads=threads)


def table(title: str, note: str, heads: list[str], rows: list[list[str]]) -> None:
    """A Markdown table; the first column is text, the others are figures."""
    print(f"\n### {title}\n\n{note}\n" if note else f"\n### {title}\n")
    print("|", " | ".join(heads), "|")
    print("|", " | ".join(["---"] + ["---:"] * (len(heads) - 1)), "|")
    for row in rows:
        print("|", " | ".join(row), "|")
    sys.stdout.flush()


def costs(cost: Cost) -> list[str]:
    digits = 3 if cost.wall_s < 10 else 1
    return [f"{cost.wall_s:.{digits}f}", f"{cost.cpu_s:.{digits}f}", f"{cost.peak_mb:.0f}"]


def rate(count: float, seconds: float) -> str:
    """Three digits, with a thousands separator."""
    value = count / seconds
    return f"{round(value, 2 - math.floor(math.log10(value))):,.0f}"


COSTS = ["wall s", "CPU s", "peak MB"]


def goals(bench: Bench, long: bool) -> None:
    requests = "workload.synthetic.num_requests"
    kilo = {requests: 1000}
    cases = [
        ("`--help`", 0, ["--help"], {}),
        ("`simulate`, 1,000 requests of b1, all files", 1_000, ["simulate", B1], kilo),
        ("b1, all files", 10_000, ["simulate", B1], {}),
        ("b1", 10_000, ["simulate", B1, "--summary-only"], {}),
        ("b2, all files", 100_000, ["simulate", B2], {}),
        ("b2", 100_000, ["simulate", B2, "--summary-only"], {}),
        ("W1", 1_000, ["simulate", f"{BENCH}/w1.yaml", "--summary-only"], {}),
        ("W2, all files", 10_000, ["simulate", f"{BENCH}/w2.yaml"], {}),
        ("W2", 10_000, ["simulate", f"{BENCH}/w2.yaml", "--summary-only"], {}),
        ("saturated", 100_000, ["simulate", SATURATED, "--summary-only"], {}),
        ("saturated-prefix", 100_000, ["simulate", f"{BENCH}/saturated-prefix.yaml", "--summary-only"], {}),
    ]
    rows = []
    for name, count, command, sets in cases:
        if name.startswith("W") and not TRACES.exists():
            print(f"SKIPPED {name}: no {TRACES}", file=sys.stderr)
            continue
        cost = bench.measure(*command, sets=sets)
        per = [rate(count, cost.cpu_s), rate(cost.steps, cost.cpu_s)] if cost.steps else ["", ""]
        rows.append([name, f"{cost.steps:,}" if cost.steps else "", *costs(cost), *per])
    heads = ["scenario", "steps", *COSTS, "requests a CPU s", "steps a CPU s"]
    table("Scenarios", "", heads, rows)


def slope(points: list[tuple[float, float]]) -> float:
    """Of a straight line through the logarithms, least squares."""
    logs = [(math.log(x), math.log(y)) for x, y in points]
    mean_x = sum(x for x, _ in logs) / len(logs)
    mean_y = sum(y for _, y in logs) / len(logs)
    return sum((x - mean_x) * (y - mean_y) for x, y in logs) / sum((x - mean_x) ** 2 for x, _ in logs)


def requests(bench: Bench, long: bool) -> None:
    rows, points = [], []
    for exponent in range(3, 9 if long else 8):
        count = 10**exponent
        cost = bench.summary(B1, {"workload.synthetic.num_requests": count})
        net = bench.net_s(cost)
        points.append((count, net))
        local = f"{slope(points[-2:]):.3f}" if len(points) > 1 else ""
        rows.append([f"{count:,}", f"{cost.steps:,}", *costs(cost), f"{1e6 * net / count:.2f}", local, str(cost.runs)])
    note = (
        f"The law of b1 (Poisson, 8 a second, 1,024 and 128 tokens) on one replica. Slope of all: "
        f"{slope(points):.3f}; of those from 10,000 on: {slope(points[1:]):.3f}."
    )
    heads = ["requests", "steps", *COSTS, "CPU µs a request", "slope from the row above", "runs"]
    table("Requests", note, heads, rows)


def groups(bench: Bench, long: bool) -> None:
    count, rows = 200_000, []
    for number in (1, 3, 10, 30, 100, 300, 1000):
        sets = {
            "workload.synthetic.num_requests": count,
            "cluster.pools": f"[{{role: unified, groups: {number}}}]",
            "load.arrival.rate": 8 * number,
        }
        cost = bench.summary(B1, sets)
        rows.append([str(number), f"{cost.steps:,}", *costs(cost), f"{1e6 * bench.net_s(cost) / count:.2f}"])
    note = f"{count:,} requests of b1 in all, 8 a second on each replica, round-robin."
    table("Replicas", note, ["replicas", "steps", *COSTS, "CPU µs a request"], rows)


def context(bench: Bench, long: bool) -> None:
    count, seats, output, rows = 20_000, 64, 256, []
    for kilo in (1, 2, 4, 8, 16, 32, 64, 128):
        sets = {
            "workload.synthetic": f"{{num_requests: {count}, lengths: {{fixed: {{input: {1024 * kilo}, output: {output}}}}}}}",
            "system.engine.max_model_len": 1024 * kilo + output,
            "system.engine.max_num_seqs": seats,
            "system.engine.num_gpu_blocks": seats * (1024 * kilo + output) // 16 + seats + 1,
        }
        cost = bench.summary(SATURATED, sets)
        each = [f"{1e6 * bench.net_s(cost) / count:.1f}", f"{1e9 * bench.net_s(cost) / cost.steps:.0f}"]
        rows.append([f"{kilo}k", f"{cost.steps:,}", *costs(cost), *each])
    note = f"{count:,} requests offline, {seats} seats, {output} output tokens each; prompts in chunks of at most 8,192."
    table("Context", note, ["input tokens", "steps", *COSTS, "CPU µs a request", "CPU ns a step"], rows)


def batch(bench: Bench, long: bool) -> None:
    output, rows = 1000, []
    for seats in (1, 4, 16, 64, 256, 1024):
        count = 160 * seats
        sets = {
            "workload.synthetic": f"{{num_requests: {count}, lengths: {{fixed: {{input: 256, output: {output}}}}}}}",
            "system.engine.max_num_seqs": seats,
            "system.engine.num_gpu_blocks": seats * 80 + 1,
        }
        cost = bench.summary(SATURATED, sets)
        each = [f"{1e9 * bench.net_s(cost) / cost.steps:.0f}", f"{1e9 * bench.net_s(cost) / (count * output):.2f}"]
        rows.append([str(seats), f"{cost.steps:,}", *costs(cost), *each])
    note = f"160 requests a seat offline, 256 input and {output:,} output tokens each."
    table("Batch", note, ["seats", "steps", *COSTS, "CPU ns a step", "CPU ns an output token"], rows)


def output(bench: Bench, long: bool) -> None:
    count, seats, rows = 200_000, 256, []
    for tokens in (10, 30, 100, 300, 1000, 3000, 10_000):
        sets = {
            "workload.synthetic": f"{{num_requests: {count}, lengths: {{fixed: {{input: 256, output: {tokens}}}}}}}",
            "system.engine.max_model_len": 256 + tokens,
            "system.engine.num_gpu_blocks": seats * ((256 + tokens) // 16 + 2) + 1,
        }
        cost = bench.summary(SATURATED, sets)
        each = [f"{1e6 * bench.net_s(cost) / count:.2f}", f"{1e9 * bench.net_s(cost) / (count * tokens):.2f}"]
        rows.append([f"{tokens:,}", f"{cost.steps:,}", *costs(cost), *each])
    note = f"{count:,} requests offline, {seats} seats, 256 input tokens each."
    table("Output tokens", note, ["output tokens", "steps", *COSTS, "CPU µs a request", "CPU ns an output token"], rows)


def threads(bench: Bench, long: bool) -> None:
    replicas = {
        "workload.synthetic.num_requests": 1_000_000,
        "cluster.pools": "[{role: unified, groups: 32}]",
        "load.arrival.rate": 256,
    }
    capacity = {"sweep.axes": "{system.engine.max_num_seqs: [8, 32, 128, 256], system.engine.num_gpu_blocks: [2001, 7001]}"}
    cases = [
        ("1,000,000 requests on 32 replicas", ["simulate", B1, "--summary-only"], replicas),
        ("capacity of 8 configurations", ["sweep", f"{BENCH}/capacity-1000.yaml"], capacity),
    ]
    rows = []
    for name, command, sets in cases:
        for number in (1, 2):
            rows.append([name, str(number), *costs(bench.measure(*command, sets=sets, threads=number))])
    table("Threads", "", ["job", "threads", *COSTS], rows)


def studies(bench: Bench, long: bool) -> None:
    """Only with --long."""
    if not long:
        return
    cases = [
        ("capacity-1000", ["sweep", f"{BENCH}/capacity-1000.yaml"], True),
        ("sweep-w1, 12,000 runs", ["sweep", f"{BENCH}/sweep-w1.yaml"], TRACES.exists()),
        ("week, 44 million requests", ["simulate", "scenarios/week.yaml", "--summary-only"], TRACES.exists()),
    ]
    rows = [[name, *costs(bench.measure(*command))] for name, command, is_there in cases if is_there]
    table("Long ones", "Once each, on all cores.", ["job", *COSTS], rows)


TABLES = [goals, requests, groups, context, batch, output, threads, studies]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kneeboard", type=Path, default=ROOT / "target/release/kneeboard", help="a release build")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--only", nargs="+", choices=[t.__name__ for t in TABLES], help="these tables")
    parser.add_argument("--long", action="store_true", help="also 10^8 requests, the week and the large sweeps")
    options = parser.parse_args()
    bench = Bench(options.kneeboard.resolve(), options.repeats)
    began, load = time.monotonic(), os.getloadavg()[0]
    print(f"A run of one request takes {1e3 * bench.start_s:.1f} ms of CPU time.")
    for one in TABLES:
        if not options.only or one.__name__ in options.only:
            one(bench, options.long)
    cores = os.cpu_count()
    print(
        f"\n{cores} cores; load of the machine when this began {load:.1f}, at its end {os.getloadavg()[0]:.1f}; "
        f"{(time.monotonic() - began) / 60:.1f} minutes in all."
    )


if __name__ == "__main__":
    main()
