#!/usr/bin/env python3
"""Measures how soon a job that has to leave its machine runs on another one.

    cargo build --release -p ckpt -p tests --bin ckpt --bin hash-job
    tests/long/moves.py [--moves 20] [--mebibytes 64] [--programs target/release] [--dir DIR]

Needs 2 cores and 2 GiB in DIR (/tmp); takes some 4 minutes. The machines are directories of one machine, so
that the time has no network in it.

The job has a state of random bytes, which it writes when it is asked (SIGUSR2). It runs under `ckpt run`, gets
SIGTERM after 3 s, and is started on the next machine as soon as `ckpt run` has ended, as by a batch system
that loses no time. The other row is `ckpt run --on`, which starts the job on the next host itself; there a
file of random bytes that does not change lies beside the job's small state.

The script prints, for both, the time from SIGTERM until the job has begun on the next machine: the median, and
the largest. The exit status is 1 if the largest of either exceeds 4 s, the target.
"""

import argparse
import os
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path

from lab import Lab, Machine, wait_for

TARGET_S = 4
WORK_S = 3


def starts(state):
    """How many times the job has begun: the file travels with the job's working directory."""
    path = Path(f"{state}.began")
    return len(path.read_text().split()) if path.exists() else 0


def wait_until_it_began(state):
    end = time.monotonic() + 60
    while not starts(state):
        if time.monotonic() > end:
            raise TimeoutError(f"{state}: the job has not begun")
        time.sleep(0.005)


def requeued(lab, hash_job, moves, size):
    """Seconds of moves by a batch system: `ckpt run` ends with 75, and is started elsewhere at once."""
    job, times, machine = "requeued", [], None
    for move in range(moves + 1):
        before, machine = machine, Machine(lab, f"machine{move}")
        machine.start(
            job,
            ["--files", str(machine.state), "--ask", "signal:USR2", "--batch", "--grace", "60s"],
            [hash_job, machine.state, f"bytes={size}", "every=0", "usr2"],
        )
        wait_until_it_began(machine.state)
        if before:
            times.append(time.monotonic() - at)
            before.remove()
        time.sleep(WORK_S)
        at = time.monotonic()
        machine.supervisor.send_signal(signal.SIGTERM)
        code, report = machine.end()
        if code != 75:
            raise RuntimeError(f"status {code}: {report}")
    machine.remove()
    return times


LAUNCHER = """#!/bin/sh
host=$1; shift; [ "$1" = -- ] && shift
export CKPT_STATE_DIR="{dir}/home-$host" CKPT_GUEST_SOCKET="{dir}/none"
unset CKPT_GRID CKPT_KEY_FILE
cd / && exec sh -c "$*"
"""


def on_hosts(lab, hash_job, moves, size):
    """Seconds of moves by `ckpt run --on`."""
    job, times = "on-hosts", []
    work, launcher = lab.dir / "work", lab.dir / "launcher"
    work.mkdir()
    (work / "ballast").write_bytes(os.urandom(size))
    launcher.write_text(LAUNCHER.format(dir=lab.dir))
    launcher.chmod(0o755)
    front = subprocess.Popen(
        [lab.ckpt, "run", "--on", f"{launcher} {{host}} --", "--program", lab.ckpt, "--batch", "--job", job]
        + ["--retry", "2s", "--grace", "60s", "--history", "none", "--", hash_job, "state", "term", "every=5"],
        env=lab.env,
        cwd=work,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )

    def homes():
        return [host / "run" / job for host in lab.dir.glob("home-*/there/*")]

    def home_of_start(number):
        return next((home for home in homes() if starts(home / "work" / "state") == number), None)

    try:
        home = wait_for("the job", lambda: home_of_start(1))
        for move in range(moves):
            time.sleep(WORK_S)
            at = time.monotonic()
            os.kill(int((home / "lock").read_text()), signal.SIGTERM)
            while not (home := home_of_start(move + 2)):
                if time.monotonic() > at + 60:
                    raise TimeoutError("the job has not begun elsewhere")
                time.sleep(0.005)
            times.append(time.monotonic() - at)
    finally:
        front.send_signal(signal.SIGTERM)
        front.wait(120)
    return times


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--moves", type=int, default=20)
    parser.add_argument("--mebibytes", type=int, default=64)
    parser.add_argument("--programs", type=Path, default="target/release")
    parser.add_argument("--dir", type=Path)
    args = parser.parse_args()
    hash_job, size = str((args.programs / "hash-job").resolve()), args.mebibytes << 20
    largest = 0
    for name, measure in [("ckpt run, started again at once", requeued), ("ckpt run --on", on_hosts)]:
        with Lab(args.programs / "ckpt", under=args.dir) as lab:
            times = measure(lab, hash_job, args.moves, size)
        print(f"{name}: {len(times)} moves, median {statistics.median(times):.2f} s, largest {max(times):.2f} s")
        largest = max([largest, *times])
    sys.exit(0 if largest <= TARGET_S else 1)


if __name__ == "__main__":
    main()
