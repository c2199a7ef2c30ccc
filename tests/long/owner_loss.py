#!/usr/bin/env python3
"""Measures what the machine's owner loses beside a job under `ckpt run`, and how soon the job is suspended.

    cargo build --release -p ckpt --bin ckpt
    tests/long/owner_loss.py [--seconds 10] [--rounds 1] [--programs target/release]

Needs root (for another control group), an otherwise idle machine and a C compiler; takes 3 places x 3 loads x
2 x (seconds + 3) x rounds, and a minute: some 5 minutes.

The owner is simulated as by `ckpt-store calibrate`, by a program on each core. It works for 20 ms, and rests
for as long as makes 10%, 40% or 80% of a core when it runs alone; beside the job the rest stays as long. The
job keeps all cores busy. The owner's programs are in the session of `ckpt run`, in another session, or in
another control group.

The script prints the share of its work that the owner loses, and the time from when the owner takes all cores
until the job uses no more CPU. The exit status is 1 if the owner loses more than 5% in any case, or the job
runs on for more than 2 s.
"""

import argparse
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

from lab import Lab, Machine, stat, wait_for

OWNER = """
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
static double now(void) {
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    return at.tv_sec + at.tv_nsec / 1e9;
}
int main(int argc, char **argv) {
    double load = atof(argv[1]), lasting = atof(argv[2]);
    long units = atol(argv[3]), done = 0;
    double rest = 0.02 * (1 / load - 1), began = now();
    struct timespec pause = {(time_t)rest, (long)((rest - (time_t)rest) * 1e9)};
    volatile unsigned long long value = 1;
    while (now() - began < lasting) {
        for (long unit = 0; unit < units; unit++, done++)
            for (int i = 0; i < 20000; i++)
                value = value * 6364136223846793005ULL + i;
        if (rest > 0)
            nanosleep(&pause, 0);
    }
    printf("%ld\\n", done);
    return 0;
}
"""

LOADS = [0.1, 0.4, 0.8]
PLACES = ["same session", "other session", "other group"]
GROUP = Path("/sys/fs/cgroup/cpu/ckpt-owner")
SETTLE_S = 3


class Owner:
    def __init__(self, program, place, load, seconds, units):
        self.running = []
        for cpu in range(os.cpu_count()):
            command = ["taskset", "-c", str(cpu), str(program), str(load), str(seconds), str(units)]

            def begin():
                if place == "other group":
                    (GROUP / "cgroup.procs").write_text(str(os.getpid()))

            self.running.append(
                subprocess.Popen(
                    command, stdout=subprocess.PIPE, text=True, preexec_fn=begin, start_new_session=place == "other session"
                )
            )

    def done(self):
        return sum(int(one.communicate()[0]) for one in self.running)

    def kill(self):
        for one in self.running:
            one.kill()
            one.wait()


def units_of(program):
    """The number of units of work that take 20 ms."""
    began = time.monotonic()
    subprocess.run([program, "1", "0.0001", "2000"], check=True, stdout=subprocess.PIPE)
    return max(1, round(2000 * 0.02 / (time.monotonic() - began)))


class Job:
    """A job that keeps all cores busy."""

    def __init__(self, lab, name):
        self.here = Machine(lab, name)
        busy = "for i in $(seq $(nproc)); do (while :; do :; done) & done; wait"
        options = ["--files", str(self.here.dir / "none"), "--suspend", "never"]
        self.here.start(name, options, ["sh", "-c", busy])
        self.first = wait_for("the job", lambda: self.here.entries("started"))[0]["pid"]
        wait_for("its processes", lambda: len(self.pids()) > os.cpu_count())
        time.sleep(SETTLE_S)

    def pids(self):
        found, ahead = [], [self.first]
        while ahead:
            pid = ahead.pop()
            found.append(pid)
            try:
                ahead += map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())
            except OSError:
                pass
        return found

    def ticks(self):
        return sum(found[1] for found in map(stat, self.pids()) if found)

    def end(self):
        self.here.supervisor.kill()
        self.here.supervisor.wait()
        wait_for("the job's end", lambda: stat(self.first) is None)


def loss(lab, program, place, load, seconds, units, name):
    alone = Owner(program, place, load, seconds, units).done()
    job = Job(lab, name)
    # Only the time after the supervisor has seen the load counts.
    before = Owner(program, place, load, SETTLE_S, units)
    before.done()
    beside = Owner(program, place, load, seconds, units).done()
    states = [entry["state"] for entry in job.here.entries("state")]
    job.end()
    return 1 - beside / alone, states[-1] if states else "normal"


def time_to_stop(lab, program, place, units, name):
    """Seconds from when the owner takes all cores until the job's CPU time stops growing."""
    job = Job(lab, name)
    owner, began = Owner(program, place, 1, 20, units), time.monotonic()
    last, stood = job.ticks(), began
    while time.monotonic() - began < 8:
        time.sleep(0.05)
        now = job.ticks()
        if now != last:
            last, stood = now, time.monotonic()
    owner.kill()
    job.end()
    return stood - began


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--programs", type=Path, default="target/release")
    args = parser.parse_args()
    if not (GROUP.parent / "cpu.shares").exists() or os.geteuid() != 0:
        sys.exit("needs root, and the controller cpu of version 1 at /sys/fs/cgroup/cpu")
    GROUP.mkdir(exist_ok=True)
    well = True
    try:
        with Lab(args.programs / "ckpt") as lab:
            program = lab.dir / "owner"
            (lab.dir / "owner.c").write_text(OWNER)
            subprocess.run(["cc", "-O1", "-o", program, lab.dir / "owner.c"], check=True)
            units = units_of(program)
            for place in PLACES:
                for load in LOADS:
                    name = f"{place}.{load}".replace(" ", "-")
                    found = [
                        loss(lab, program, place, load, args.seconds, units, f"{name}.{i}") for i in range(args.rounds)
                    ]
                    lost = statistics.median(one[0] for one in found)
                    well &= lost <= 0.05
                    print(f"{place}, load {load:.0%}: lost {100 * lost:.1f}% (job {found[-1][1]})", flush=True)
                took = time_to_stop(lab, program, place, units, f"{place}.stop".replace(" ", "-"))
                well &= took <= 2.0
                print(f"{place}: stopped {took:.2f} s after the owner took all cores", flush=True)
    finally:
        GROUP.rmdir()
    sys.exit(0 if well else 1)


if __name__ == "__main__":
    main()
