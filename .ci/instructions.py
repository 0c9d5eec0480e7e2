"""Counts the instructions of small runs of the bench scenarios and compares them with .ci/instructions.csv.

    python3 .ci/instructions.py [--kneeboard target/release/kneeboard] [--only NAME ...] [--write]

A count does not depend on what else the machine does, so that a few per cent show where wall clock would need tens.
It does depend on the compiler and the C library: after a change of either, or of the code, `--write` puts today's
counts into the table; say in the commit why they changed. Steps are part of the table, so that a change of what is
simulated cannot pass for a change of speed. Everything runs on one thread under valgrind's callgrind. `--markdown`
prints the table of docs/PERFORMANCE.md.

Fails (exit code 1) when a count is above its limit or steps differ. Without valgrind: a line that says so and exit
code 0, or 1 if KNEEBOARD_REQUIRE_VALGRIND is set. Rows that need ../shared/data are skipped where it is not, unless
KNEEBOARD_REQUIRE_SHARED is set.
"""

import argparse
import csv
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TABLE = ROOT / ".ci" / "instructions.csv"
COLUMNS = ["name", "needs", "steps", "instructions", "allowed_excess_percent", "command"]


class Failed(Exception):
    """A run that says nothing to compare."""


def count(kneeboard: Path, command: str) -> tuple[str, int]:
    """Steps that a run prints ("" if it prints none) and its instructions."""
    with tempfile.TemporaryDirectory() as scratch:
        arguments = shlex.split(command)
        if arguments[0] in ("simulate", "sweep"):
            arguments += ["-o", f"{scratch}/out"]
        done = subprocess.run(
            ["valgrind", "--tool=callgrind", f"--callgrind-out-file={scratch}/callgrind", kneeboard, *arguments],
            cwd=ROOT,
            env={**os.environ, "RAYON_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
        )
    collected = re.search(r"Collected : (\d+)", done.stderr)
    if done.returncode != 0 or not collected:
        raise Failed(f"exit code {done.returncode}\n{done.stderr}")
    steps = re.search(r"^Run 0: (\d+) steps ", done.stdout, re.MULTILINE)
    return (steps[1] if steps else ""), int(collected[1])


def judge(row: dict[str, str], steps: str, instructions: int) -> str | None:
    """What is wrong, if anything; prints the row."""
    expected, excess = int(row["instructions"]), float(row["allowed_excess_percent"])
    change = 100 * (instructions / expected - 1)
    each = f", {instructions / int(steps):,.0f} a step" if steps else ""
    print(f"{row['name']}: {instructions:,} instructions{each}; {change:+.1f} % against {expected:,}", flush=True)
    if steps != row["steps"]:
        return f"{row['name']}: {steps or 'no'} steps, expected {row['steps'] or 'none'}"
    if change > excess:
        return f"{row['name']}: {change:.1f} % more instructions, allowed are {excess:g} %"
    return None


def missing(row: dict[str, str]) -> bool:
    """Whether the row needs a file that is not there and may be absent."""
    if not row["needs"] or (ROOT / row["needs"]).exists():
        return False
    if os.environ.get("KNEEBOARD_REQUIRE_SHARED"):
        raise Failed(f"{row['name']}: {row['needs']} is missing")
    print(f"SKIPPED {row['name']}: no {row['needs']}")
    return True


def as_markdown(rows: list[dict[str, str]]) -> str:
    """The table of docs/PERFORMANCE.md."""
    lines = ["| run | steps | instructions | a step | command |", "| --- | ---: | ---: | ---: | --- |"]
    for row in rows:
        instructions, steps = int(row["instructions"]), int(row["steps"] or 0)
        each = [f"{steps:,}", f"{instructions:,}", f"{instructions / steps:,.0f}"] if steps else ["", f"{instructions:,}", ""]
        lines.append(f"| {row['name']} | {' | '.join(each)} | `{row['command']}` |")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kneeboard", type=Path, default=ROOT / "target/release/kneeboard", help="a release build")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="rows of the table")
    parser.add_argument("--write", action="store_true", help="put the counts into the table instead of comparing")
    parser.add_argument("--markdown", action="store_true", help="print the table as it is, and run nothing")
    options = parser.parse_args()
    with TABLE.open(newline="") as file:
        rows = list(csv.DictReader(file))
    if options.markdown:
        print(as_markdown(rows))
        return 0
    if shutil.which("valgrind") is None:
        required = bool(os.environ.get("KNEEBOARD_REQUIRE_VALGRIND"))
        print("FAILED" if required else "SKIPPED", "instruction counts: valgrind is not installed")
        return int(required)
    kneeboard = options.kneeboard.resolve()
    wanted = [row for row in rows if (not options.only or row["name"] in options.only) and not missing(row)]
    problems = []
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        runs = [pool.submit(count, kneeboard, row["command"]) for row in wanted]
        for row, run in zip(wanted, runs):
            steps, instructions = run.result()
            if options.write:
                row |= {"steps": steps, "instructions": str(instructions)}
                print(f"{row['name']}: {steps or 'no'} steps, {instructions:,} instructions", flush=True)
            elif problem := judge(row, steps, instructions):
                problems.append(problem)
    if options.write:
        with TABLE.open("w", newline="") as file:
            writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)
    if problems:
        print("FAILED", *problems, sep="\n  ")
        print("If that is meant: python3 .ci/instructions.py --write, and say in the commit why.")
    return int(bool(problems))


if __name__ == "__main__":
    try:
        sys.exit(main())
    except Failed as failed:
        sys.exit(f"FAILED {failed}")
