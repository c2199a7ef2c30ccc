#!/usr/bin/env python3
"""Real pairs of incarnations of one job: both go on from one version; at most one may save after it.

    cargo build --release -p ckpt -p tests --bin ckpt --bin hash-job
    tests/long/incarnations.py [--pairs 100] [--minutes 20] [--seed 1] [--at-a-time 4] [--programs target/release]

Needs 2 cores and 4 GiB of memory; takes some 15 minutes on two cores, and begins no pair after --minutes. Each
pair has a seed of its own.

A job is run, evicted, and started twice from what it saved, on two machines. While both run, one supervisor
with all of its job is stopped (SIGSTOP) and goes on later, as a machine that sleeps, or some hosts of the
grid are stopped for both, as cut links, or both. All jobs share five hosts, so that links are cut for the
other pairs, too. Then whoever is left is told to leave. From the journals: who saved after the common
version. Printed: pairs; how many had two successors of one version (has to be none); how the losers ended.
Exit status 1 when two were committed, or a loser ended with anything but 77.
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
    """Stops hosts, never more at a time than can be missed."""

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
    """A process and all below it."""
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
            # The supervisor first: it would let its job go on.
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
    """Whether it says that it saved a successor of the common version."""
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
