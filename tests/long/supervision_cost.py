#!/usr/bin/env python3
"""Measures what supervision costs a job that only computes, when no checkpoint is due.

    cargo build --release -p ckpt --bin ckpt
    tests/long/supervision_cost.py [--pairs 40] [--seconds 20] [--cpu 1] [--minutes 40]
        [--programs target/release]

Needs an otherwise idle machine with two cores, taskset and a C compiler; takes pairs x 2 x seconds (27
minutes), and begins no pair after --minutes. In each pair a program that does a fixed amount of work runs
alone and under `ckpt run`, in an order that changes from pair to pair. Job and supervisor are pinned to the
same CPU, so that the supervisor's CPU time is taken from the job. Other load on the machine counts as its
owner's, for whom the job gives way; then the wall times mean nothing.

The script prints the ratios of the wall times and of the job's CPU times, as means over pairs with intervals
of 95%; the supervisor's CPU time as a share of a core; and its greatest resident memory. The supervisor's
keeper is in neither of the last two. The exit status is 1 if a target is missed.
"""

import argparse
import math
import os
import random
import statistics
import subprocess
import sys
import time
from pathlib import Path

from lab import TICKS, Lab, Machine, stat

PROGRAM = """
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <time.h>
int main(int argc, char **argv) {
    unsigned long long rounds = strtoull(argv[1], 0, 10), value = 1;
    struct timespec from, to;
    clock_gettime(CLOCK_MONOTONIC, &from);
    for (unsigned long long i = 0; i < rounds; i++)
        value = value * 6364136223846793005ULL + i;
    clock_gettime(CLOCK_MONOTONIC, &to);
    struct rusage use;
    getrusage(RUSAGE_SELF, &use);
    FILE *out = fopen(argv[2], "w");
    fprintf(out, "%f %f %llu\\n", to.tv_sec - from.tv_sec + (to.tv_nsec - from.tv_nsec) / 1e9,
            use.ru_utime.tv_sec + use.ru_stime.tv_sec + (use.ru_utime.tv_usec + use.ru_stime.tv_usec) / 1e6, value);
    return fclose(out);
}
"""


def pinned(cpu, command):
    return ["taskset", "-c", str(cpu), *map(str, command)]


def times(path):
    wall, used, _ = path.read_text().split()
    return float(wall), float(used)


def peak_kib(pid):
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("VmHWM")), 0)


def supervised(lab, cpu, program, rounds, number):
    here = Machine(lab, f"m{number}")
    out = here.dir / "out"
    args = [lab.ckpt, "--json", "run", "--job", f"cost.{number}", "--files", here.dir / "none", "--"]
    args = pinned(cpu, [*args, program, rounds, out])
    began = time.monotonic()
    with open(here.dir / "err", "wb") as err:
        running = subprocess.Popen(args, env=here.env, cwd=here.dir, stdin=subprocess.DEVNULL, stderr=err, stdout=err)
    peak, at_start, last = 0, None, None
    while running.poll() is None:
        time.sleep(0.25)
        found, now = stat_own(running.pid), time.monotonic()
        if found is None:
            continue
        peak = max(peak, peak_kib(running.pid))
        # The cost of the start and the end is left out.
        if now - began > 1.5:
            at_start = at_start or (now, found)
            last = (now, found)
    if running.returncode != 0:
        raise RuntimeError((here.dir / "err").read_text())
    if not last or last[0] - at_start[0] < 1:
        raise RuntimeError("too short to see what the supervisor uses: more --seconds")
    share = (last[1] - at_start[1]) / TICKS / (last[0] - at_start[0])
    return *times(out), share, peak


def stat_own(pid):
    """The CPU ticks of a process without those of its children; None if it has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else int(fields[11]) + int(fields[12])


def interval(values):
    """The mean, and the ends of its interval of 95% by bootstrap with 10,000 resamplings."""
    draw = random.Random(1)
    means = sorted(statistics.fmean(draw.choices(values, k=len(values))) for _ in range(10_000))
    return statistics.fmean(values), means[249], means[9749]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=40)
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--minutes", type=float, default=40)
    parser.add_argument("--cpu", type=int, default=1)
    parser.add_argument("--programs", type=Path, default="target/release")
    args = parser.parse_args()
    with Lab(args.programs / "ckpt") as lab:
        program, out = lab.dir / "work", lab.dir / "out"
        (lab.dir / "work.c").write_text(PROGRAM)
        subprocess.run(["cc", "-O1", "-o", program, lab.dir / "work.c"], check=True)

        def alone(rounds):
            subprocess.run(pinned(args.cpu, [program, rounds, out]), check=True)
            return times(out)

        rounds = 10**8
        rounds = math.ceil(rounds * args.seconds / alone(rounds)[0])
        walls, cpus, shares, peaks = [], [], [], []
        until = time.monotonic() + 60 * args.minutes
        for pair in range(args.pairs):
            if time.monotonic() > until:
                break
            if pair % 2:
                plain = alone(rounds)
            wall, used, share, peak = supervised(lab, args.cpu, program, rounds, pair)
            if not pair % 2:
                plain = alone(rounds)
            walls.append(100 * (wall / plain[0] - 1))
            cpus.append(100 * (used / plain[1] - 1))
            shares.append(100 * share)
            peaks.append(peak)
    wall = interval(walls)
    print(f"{len(walls)} pairs of {args.seconds:g} s on CPU {args.cpu}")
    print("wall time: %+.3f%% (%+.3f%% to %+.3f%%)" % wall)
    print("CPU time of the job: %+.3f%% (%+.3f%% to %+.3f%%)" % interval(cpus))
    print(f"supervisor: {statistics.fmean(shares):.3f}% of a core; {max(peaks) / 1024:.1f} MiB resident at most")
    sys.exit(0 if wall[2] <= 1 and statistics.fmean(shares) <= 0.2 and max(peaks) <= 20 << 10 else 1)


if __name__ == "__main__":
    main()
