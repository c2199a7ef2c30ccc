#!/usr/bin/env python3
"""Pairs of incarnations of one job: both continue from one version, and at most one may save after it.

    cargo build --release -p ckpt -p tests --bin ckpt --bin hash-job
    tests/long/incarnations.py [--pairs 100] [--minutes 20] [--seed 1] [--at-a-time 4] [--programs target/release]

Needs 2 cores and 4 GiB of memory; takes some 15 minutes on two cores, and begins no pair after --minutes. Each
pair has a seed of its own.

A job is run, evicted, and started twice from what it saved, on two machines. While both run, one supervisor
and its job may be stopped (SIGSTOP) for a while, like a machine that sleeps, and some hosts of the grid may
be stopped for both, like cut links. All pairs share five hosts, so cut links also affect the others. Then
the incarnation that is left is ended by SIGTERM. The journals show which incarnation saved after the common
version.

The script prints the number of pairs, how many had two successors of one version (none may), and how the
losers ended. The exit status is 1 if two were committed, or a loser ended with a status other than 77.
"""

import argparse
import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

from evictions import began, in_turn
from lab import Lab, Machine, wait_for

OPTIONS = ["--batch", "--mtbf", "2s", "--grace", "20s", "--deadline", "8s"]


class Hosts:
    """Stops hosts, at most two at a time, because checkpoints have two parity shards."""

    def __init__(self, lab):
        pids = [int((path / "lock").read_text()) for path in (lab.grid / "hosts").iterdir()]
        self.free, self.lock = pids, threading.Lock()
        self.count = len(pids)

    def cut(self, count, seconds):
        with self.lock:
            count = max(0, min(count, len(self.free) - (self.count - 2)))
            cut, self.free = self.free[:count], self.free[count:]
        for pid in cut:
            os.kill(pid, signal.SIGSTOP)
        time.sleep(seconds)
        for pid in cut:
            os.kill(pid, signal.SIGCONT)
        with self.lock:
            self.free += cut


def family(pid):
    """A process and all its descendants."""
    found, ahead = [], [pid]
    while ahead:
        one = ahead.pop()
        found.append(one)
        for task in Path(f"/proc/{one}/task").glob("*/children"):
            try:
                ahead += map(int, task.read_text().split())
            except OSError:
                pass
    return found


def send(pids, number):
    for pid in pids:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            pass


def run_pair(lab, hosts, hash_job, seed):
    draw = random.Random(seed)
    job = f"twice.{seed}"
    machines = [Machine(lab, f"{name}{seed}") for name in ("one", "two", "before")]
    one, two, before = machines
    words = ["every=100", "notify", "term", f"bytes={draw.randint(1000, 4_000_000)}"]
    try:
        before.start(job, ["--batch", "--files", str(before.state), "--grace", "60s"], [hash_job, before.state, *words])
        wait_for("the job", lambda: began(before))
        time.sleep(0.5)
        before.supervisor.send_signal(signal.SIGTERM)
        code, report = before.end()
        if code != 75:
            raise RuntimeError(f"the common version was not saved: {code}")
        common = report["version"]
        for machine in (one, two):
            machine.start(job, ["--files", str(machine.state), *OPTIONS], [hash_job, machine.state, *words])
            time.sleep(draw.uniform(0, 2))
        time.sleep(draw.uniform(0, 3))
        slept = draw.random() < 0.7
        if draw.random() < 0.6:
            threading.Thread(target=hosts.cut, args=(draw.randint(1, 2), draw.uniform(1, 8))).start()
        if slept:
            asleep = family(draw.choice([one, two]).supervisor.pid)
            # The supervisor is stopped first, because it would continue a stopped job.
            send(asleep, signal.SIGSTOP)
            time.sleep(draw.uniform(1, 8))
            send(reversed(asleep), signal.SIGCONT)
        wait_for(
            "an end of one of them",
            lambda: one.supervisor.poll() is not None or two.supervisor.poll() is not None,
        )
        ended = [machine for machine in (one, two) if machine.supervisor.poll() is not None]
        statuses = [machine.end()[0] for machine in ended]
        for machine in (one, two):
            if machine not in ended:
                machine.supervisor.send_signal(signal.SIGTERM)
                statuses.append(machine.end()[0])
        successors = [machine for machine in (one, two) if saved_after(machine, common)]
        return {"seed": seed, "statuses": statuses, "successors": len(successors), "slept": slept}
    finally:
        for machine in machines:
            if machine.supervisor and machine.supervisor.poll() is None:
                send(family(machine.supervisor.pid), signal.SIGCONT)
                machine.supervisor.kill()
            machine.remove()
        lab.run("forget", "--job", job, "--all", check=False)


def saved_after(machine, common):
    """Whether the machine's journal has a save of a successor of the common version."""
    return any(entry["version"] > common for entry in machine.entries("saved"))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=100)
    parser.add_argument("--minutes", type=float, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--at-a-time", type=int, default=4)
    parser.add_argument("--programs", type=Path, default="target/release")
    args = parser.parse_args()
    hash_job = str((args.programs / "hash-job").resolve())
    until = time.monotonic() + 60 * args.minutes
    with Lab(args.programs / "ckpt") as lab:
        hosts = Hosts(lab)
        seeds = range(args.seed, args.seed + args.pairs)
        results, failures = in_turn(args.at_a_time, until, seeds, lambda seed: run_pair(lab, hosts, hash_job, seed))
    twice = [one for one in results if one["successors"] > 1]
    odd = [one for one in results if one["statuses"][0] != 77]
    for one in twice + odd:
        print(one)
    statuses = [tuple(one["statuses"]) for one in results]
    print(f"pairs: {len(results)}; of them with one that slept: {sum(one['slept'] for one in results)}")
    print(f"that could not be looked at: {len(failures)}")
    print(f"two successors of one version: {len(twice)}")
    print(f"statuses, the first to end first: { {each: statuses.count(each) for each in sorted(set(statuses))} }")
    sys.exit(1 if twice or odd or failures else 0)


if __name__ == "__main__":
    main()
