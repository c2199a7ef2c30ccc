#!/usr/bin/env python3
"""Evictions of a job of 1 GiB that changes all the time, on a line of 100 Mbit/s, in a network namespace.

A grid of five daemons runs in a namespace whose loopback is shaped. The job keeps its state in memory, changes blocks
of 64 KiB anywhere (--changes bytes a second; half of each block compresses away) and replaces its state file every few
seconds. After a random time `ckpt run` gets SIGTERM, and 30 s later all that is left gets SIGKILL. Then it is started
again, with the files that are there.

Needs root, ip and tc, and 4 GiB in --dir, which should be in memory (/dev/shm).
Prints a line for each eviction, and the figures of all of them.

  saved_ahead.py --ckpt target/release/ckpt --count 20
"""

import argparse
import json
import random
import signal
import subprocess
import sys
import time

from lab import Lab, Machine, again_on_a_line, wait_for

JOB = r"""
import os, random, signal, sys, time
path, size, rate, period, block = sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), float(sys.argv[4]), 65536
half = int(block / 2.07)
fresh = lambda: os.urandom(half) + bytes(block - half)
count = size // block
if os.path.exists(path):
    with open(path, "rb") as f:
        state = bytearray(f.read())
else:
    state = bytearray().join(fresh() for _ in range(count))
leaves = False
def leave(*_):
    global leaves
    leaves = True
signal.signal(signal.SIGTERM, leave)
def write():
    with open(path + ".next", "wb") as f:
        f.write(state)
    os.rename(path + ".next", path)
write()
wrote = last = time.monotonic()
debt = 0.0
while not leaves:
    time.sleep(0.05)
    now = time.monotonic()
    debt += min(now - last, 1.0) * rate / block
    last = now
    while debt >= 1:
        debt -= 1
        at = random.randrange(count) * block
        state[at:at + block] = fresh()
    if now - wrote >= period:
        write()
        wrote = time.monotonic()
write()
"""


def regular_seconds(machine, job, first):
    """Seconds of the regular saves from this one on: what the last ones take is not bounded."""
    path = machine.dir / "memory/run" / job / "journal.jsonl"
    is_final, number, seconds = False, 0, 0.0
    for entry in map(json.loads, path.read_text().splitlines()):
        if entry["event"] == "saving":
            is_final = entry["is_final"]
        elif entry["event"] == "saved":
            if number >= first and not is_final:
                seconds += entry["seconds"]
            number += 1
    return seconds


def evict(machine, after_s):
    """Sends SIGTERM, and SIGKILL 30 s later. Returns what came of it."""
    time.sleep(after_s)
    jobs = json.loads(machine.lab.run("--json", "jobs", env=machine.env).stdout)["jobs"]
    seen = jobs[0] if jobs else {}
    began = time.monotonic()
    machine.supervisor.send_signal(signal.SIGTERM)
    try:
        status = machine.supervisor.wait(30)
    except subprocess.TimeoutExpired:
        machine.supervisor.kill()
        machine.supervisor.wait()
        status = "killed"
    took = time.monotonic() - began
    report = {}
    for line in reversed(machine.err.read_text().splitlines()):
        if line.startswith("{") and "exit_code" in line:
            report = json.loads(line)
            break
    leaving = machine.entries("leaving")[-1]
    return {
        "status": status,
        "seconds": round(took, 1),
        "expected_s": round(leaving["expected_s"], 1),
        "at_risk_s": round(seen.get("at_risk_seconds", 0.0), 1),
        "promised_s": seen.get("promised_seconds"),
        "lost_s": report.get("lost_seconds"),
        "last": report.get("last"),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ckpt", required=True)
    parser.add_argument("--count", type=int, default=20)
    parser.add_argument("--size", type=int, default=1 << 30)
    parser.add_argument("--changes", type=float, default=5e6)
    parser.add_argument("--mbit", type=int, default=100)
    parser.add_argument("--period", type=float, default=5.0)
    parser.add_argument("--seconds", type=float, nargs=2, default=(40.0, 90.0))
    parser.add_argument("--spend", default="40%")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--dir", default="/dev/shm")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if not args.inside:
        return again_on_a_line(args.mbit)
    rng = random.Random(args.seed)
    found = []
    with Lab(args.ckpt, under=args.dir) as lab:
        machine = Machine(lab, "machine")
        script = machine.dir / "job.py"
        script.write_text(JOB)
        command = [sys.executable, script, machine.state, args.size, args.changes, args.period]
        options = ["--batch", "--files", str(machine.state), "--grace", "30s", "--mtbf", "10h", "--spend", args.spend]
        for number in range(args.count):
            saved = len(machine.entries("saved")) if machine.supervisor else 0
            machine.start("ahead", options, command)
            # The first version stores all there is.
            wait_for("a save", lambda: len(machine.entries("saved")) > saved, 400)
            busy = time.monotonic()
            fate = evict(machine, rng.uniform(*args.seconds))
            fate["line"] = round(regular_seconds(machine, "ahead", saved + 1) / (time.monotonic() - busy), 2)
            found.append(fate)
            print(number, json.dumps(fate), flush=True)
    committed = [fate for fate in found if fate["status"] == 75]
    times = sorted(fate["last"]["took_seconds"] for fate in committed if fate.get("last"))
    if times:
        middle = times[len(times) // 2]
        print(f"{len(committed)} of {len(found)} committed; last save: median {middle:.1f} s, {times[-1]:.1f} s at most")
    return 0 if len(committed) == len(found) else 1


if __name__ == "__main__":
    sys.exit(main())
