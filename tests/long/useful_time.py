#!/usr/bin/env python3
"""The share of useful time of a job that is killed without notice every few minutes, in a network namespace.

A grid of five daemons runs in a namespace whose loopback is shaped. The job keeps --size bytes in memory, changes
--changes of them a minute in blocks of 64 KiB anywhere (half of each block compresses away), and replaces its state
file every few seconds from a fork of itself, so that it never stands still to write. The job, its children and
`ckpt run` get SIGKILL at random moments, --mean seconds apart on average (exponential), and are started again at
once: with the files that are there, or, with --elsewhere, on a machine that has none of them.

The job counts the seconds in which it computes, and its state has the count. The useful time is the count in the end;
what a kill costs is the time from the restored count to the count at the kill, and the time until the job computes
again. The first save, of the whole state, comes before the clock begins.

Needs root, ip and tc, and four times --size in --dir, which should be in memory (/dev/shm).

  useful_time.py --ckpt target/release/ckpt --minutes 120
"""

import argparse
import os
import random
import signal
import sys
import time

from lab import Lab, Machine, again_on_a_line, wait_for

JOB = r"""
import os, random, sys, time
path, size, rate, period, block = sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), float(sys.argv[4]), 65536
half = int(block / 2.07)
fresh = lambda: os.urandom(half) + bytes(block - half)
count = size // block
if os.path.exists(path):
    with open(path, "rb") as f:
        state = bytearray(f.read())
    computed = float(bytes(state[:32]))
else:
    state = bytearray().join(fresh() for _ in range(count))
    computed = 0.0
counts = open(sys.argv[5], "a")
def write():
    state[:32] = b"%032.6f" % computed
    child = os.fork()
    if child:
        return child
    with open(path + ".next", "wb") as f:
        f.write(state)
    os.rename(path + ".next", path)
    os._exit(0)
writer = write()
wrote = last = time.monotonic()
debt = 0.0
print("began", computed, time.time(), file=counts, flush=True)
while True:
    time.sleep(0.05)
    now = time.monotonic()
    # A gap of a second is a stop, in which nothing is computed.
    computed += now - last if now - last < 1.0 else 0.0
    debt += min(now - last, 1.0) * rate / block
    last = now
    while debt >= 1:
        debt -= 1
        at = random.randrange(1, count) * block
        state[at:at + block] = fresh()
    if writer and os.waitpid(writer, os.WNOHANG)[0]:
        writer = 0
    if not writer and now - wrote >= period:
        writer = write()
        wrote = now
        print("at", computed, time.time(), file=counts, flush=True)
"""


def processes_of(machine):
    """The processes whose command line or environment names the machine's directory."""
    found = []
    for entry in os.listdir("/proc"):
        if not entry.isdigit() or int(entry) == os.getpid():
            continue
        try:
            with open(f"/proc/{entry}/cmdline", "rb") as line:
                words = line.read()
        except OSError:
            continue
        if os.fsencode(machine.dir) in words:
            found.append(int(entry))
    return found


def kill(machine):
    """Ends `ckpt run`, the job and its writer, none of which can do anything about it."""
    for pid in {machine.supervisor.pid, *processes_of(machine)}:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
    machine.supervisor.wait()
    wait_for("the processes end", lambda: not processes_of(machine), 10)


def last(path, word):
    """Count and time of the last line that begins with this word."""
    lines = [line.split() for line in path.read_text().splitlines() if line.startswith(word + " ")]
    return (float(lines[-1][1]), float(lines[-1][2])) if lines else None


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ckpt", required=True)
    parser.add_argument("--minutes", type=float, default=120)
    parser.add_argument("--mean", type=float, default=600, help="seconds between kills, on average")
    parser.add_argument("--size", type=int, default=1 << 30)
    parser.add_argument("--changes", type=float, default=0.1, help="share of the state that changes in a minute")
    parser.add_argument("--mbit", type=int, default=100)
    parser.add_argument("--period", type=float, default=3.0)
    parser.add_argument("--spend", default="40%")
    parser.add_argument("--elsewhere", action="store_true")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--dir", default="/dev/shm")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if not args.inside:
        return again_on_a_line(args.mbit)
    rng = random.Random(args.seed)
    with Lab(args.ckpt, under=args.dir) as lab:
        script = lab.dir / "job.py"
        script.write_text(JOB)
        number = 0
        machine = Machine(lab, "machine-0")
        log = lab.dir / "counts"
        log.touch()
        options = ["--batch", "--files", "STATE", "--grace", "30s", "--mtbf", f"{args.mean:.0f}s", "--spend", args.spend]

        def start():
            chosen = [str(machine.state) if word == "STATE" else word for word in options]
            rate = args.size * args.changes / 60
            command = [sys.executable, script, machine.state, args.size, rate, args.period, log]
            machine.start("useful", chosen, command)

        start()
        wait_for("a save of the whole state", lambda: machine.entries("saved"), 900)
        first, _ = last(log, "at")
        began = time.time()
        end = began + 60 * args.minutes
        costs = []
        while time.time() < end:
            pause = min(rng.expovariate(1 / args.mean), end - time.time())
            time.sleep(max(pause, 0.0))
            if time.time() >= end:
                break
            kill(machine)
            killed = time.time()
            count, when = last(log, "at")
            reached = count + (killed - when)
            if args.elsewhere:
                number += 1
                machine.remove()
                machine = Machine(lab, f"machine-{number}")
            start()
            wait_for("the job computes again", lambda: last(log, "began")[1] > killed, 900)
            count, when = last(log, "began")
            costs.append((reached - count, when - killed))
            done = time.time() - began
            print(f"{done:6.0f} s: kill {len(costs)}: {reached - count:.1f} s of work lost, "
                  f"{when - killed:.1f} s until it computes again", flush=True)
        count, when = last(log, "at")
        kill(machine)
    share = (count - first) / (when - began)
    lost = sum(cost[0] for cost in costs)
    away = sum(cost[1] for cost in costs)
    print(f"{len(costs)} kills in {(when - began) / 60:.0f} minutes: useful {share:.4f} of the time; "
          f"lost {lost:.0f} s of work, {away:.0f} s away")
    return 0 if share >= 0.97 else 1


if __name__ == "__main__":
    sys.exit(main())
