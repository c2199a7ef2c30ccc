#!/usr/bin/env python3
"""Measures how well run times of a real program are forecast: LAMMPS with three parameters, under `ckpt run`.

    cargo build --release -p ckpt --bin ckpt
    tests/long/runtimes.py [--runs 100] [--seed 1] [--programs target/release] [--history FILE]

Needs LAMMPS (Debian: lammps) and one core; takes some five minutes on an idle machine. The forecasts are of
processor time, so other work on the machine makes the measurement longer, but hardly changes its result.

Each run melts a Lennard-Jones crystal of 4 x cells^3 atoms for a number of steps, with a cutoff of forces.
These three numbers are drawn from wide ranges, uniformly in their logarithms, and given on the command line.
No run is left out. The script prints, for the runs with a forecast, the error of the forecast, and the share
of runs whose time is within the interval (90% should be); both also for only the second half of the runs.
"""

import argparse
import json
import math
import random
import statistics
from pathlib import Path

from lab import Lab, Machine

INPUT = """
units lj
atom_style atomic
lattice fcc 0.8442
region box block 0 ${cells} 0 ${cells} 0 ${cells}
create_box 1 box
create_atoms 1 box
mass 1 1.0
velocity all create 3.0 87287
pair_style lj/cut ${cutoff}
pair_coeff 1 1 1.0 1.0 ${cutoff}
neighbor 0.3 bin
neigh_modify every 20 delay 0 check no
fix 1 all nve
run ${steps}
"""

RANGES = {"cells": (5, 14), "steps": (50, 800), "cutoff": (2.0, 3.5)}

OPTIONS = ["--batch", "--files", "state", "--after-success", "forget", "--history"]


def drawn(random_of):
    """Draws the numbers of one run, uniformly in their logarithms."""
    of = {name: math.exp(random_of.uniform(math.log(low), math.log(high))) for name, (low, high) in RANGES.items()}
    return [f"{of['cells']:.0f}", f"{of['steps']:.0f}", f"{of['cutoff']:.2f}"]


def job(numbers):
    words = ["lmp", "-in", "melt.in", "-log", "none", "-screen", "none"]
    for name, number in zip(RANGES, numbers):
        words += ["-var", name, number]
    return words


def off(errors):
    return f"off by {statistics.mean(errors):.1%} in the mean, {statistics.median(errors):.1%} in the median, {max(errors):.1%} at most"


def summed_up(what, runs):
    """Prints how well runs were forecast. The first run has no forecast, the first two have no interval."""
    foreseen = [run for run in runs if run["error"] is not None]
    bounded = [run for run in runs if run["low_seconds"] is not None]
    held = [run for run in bounded if run["low_seconds"] <= run["cpu_seconds"] <= run["high_seconds"]]
    print(f"{what}: {len(foreseen)} of {len(runs)} runs foreseen; {len(held)} of {len(bounded)} in the interval")
    print(f"  forecast: {off([run['error'] for run in foreseen])}")
    print(f"  1-NN:     {off([run['nearest_error'] for run in foreseen])}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--programs", type=Path, default="target/release")
    parser.add_argument("--history", type=Path, help="a new file, which is kept")
    args = parser.parse_args()
    random_of = random.Random(args.seed)
    with Lab(args.programs / "ckpt") as lab:
        history = args.history.resolve() if args.history else lab.dir / "runs.jsonl"
        here = Machine(lab, "here")
        (here.dir / "melt.in").write_text(INPUT)
        here.state.mkdir()
        for number in range(args.runs):
            here.start(f"run-{number}", [*OPTIONS, history], job(drawn(random_of)))
            code, report = here.end()
            if code != 0:
                raise RuntimeError(f"run {number} ended with {code}: {report}")
        found = json.loads(lab.run("--json", "runs", "--history", history, "--last", args.runs).stdout)
    runs = sorted(found["runs"], key=lambda run: int(run["job"].removeprefix("run-")))
    seconds = [run["cpu_seconds"] for run in runs]
    print(f"{len(runs)} runs of {min(seconds):.1f} to {max(seconds):.1f} s of a processor of speed 1")
    summed_up("all", runs)
    summed_up("second half", runs[len(runs) // 2 :])


if __name__ == "__main__":
    main()
