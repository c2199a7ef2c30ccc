#!/usr/bin/env python3
"""Seconds from SIGTERM until a job of `ckpt run --on` computes on the next machine, with a host that stands by.

A grid of five daemons: each host, with what runs of the job there, has a line of --mbit Mbit/s, each way. With
--shared all run in a network namespace whose loopback carries so many: everything shares that line.
The job is that of useful_time.py: --size bytes in memory, of which --rate bytes a second change in blocks of 64 KiB
anywhere (half of each block compresses away), written every --period seconds. `ckpt run` on its host, with --grace 30s,
gets SIGTERM 40 to 90 s after the first save there has come to a host that stands by (--without: after that save), once
that host has the newest version. The time ends when the job has read its state on the next host. At most four moves: a
host that the job has left is not taken again for three minutes.

Needs root, ip and tc, and eight times --size in --dir, which should be in memory (/dev/shm).

  standby.py --ckpt target/release/ckpt --moves 5
"""

import argparse
import os
import random
import signal
import statistics
import subprocess
import sys
import time

from lab import Lab, again_on_a_line, entries, wait_for
from moves import LAUNCHER
from useful_time import JOB, last

TARGET_S = 15


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ckpt", required=True)
    parser.add_argument("--moves", type=int, default=5)
    parser.add_argument("--size", type=int, default=1 << 30)
    parser.add_argument("--rate", type=float, default=5e6, help="bytes of the state that change in a second")
    parser.add_argument("--period", type=float, default=3.0)
    parser.add_argument("--mbit", type=int, default=100)
    parser.add_argument("--shared", action="store_true", help="one line for all hosts")
    parser.add_argument("--without", action="store_true", help="no host stands by")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--dir", default="/dev/shm")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if not args.inside:
        return again_on_a_line(args.mbit if args.shared else None)
    rng = random.Random(args.seed)
    with Lab(args.ckpt, under=args.dir, lines=None if args.shared else args.mbit) as lab:
        work, launcher, script, counts = (lab.dir / name for name in ("work", "launcher", "job.py", "counts"))
        work.mkdir()
        script.write_text(JOB)
        counts.touch()
        text = LAUNCHER.format(dir=lab.dir)
        if not args.shared:
            text = text.replace("exec sh", f"exec ip netns exec {lab.space('$host')} sh")
        launcher.write_text(text)
        launcher.chmod(0o755)
        options = ["--batch", "--job", "moved", "--retry", "30m", "--grace", "30s", "--history", "none"]
        options += ["--exclude", "**/state.next"]
        options += [] if args.without else ["--standby"]
        job = [sys.executable, script, "state", args.size, args.rate, args.period, counts]
        front = subprocess.Popen(
            [lab.ckpt, "run", "--on", f"{launcher} {{host}} --", "--program", lab.ckpt, *options, "--", *map(str, job)],
            env=lab.env, cwd=work, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )
        journal = lab.dir / "memory" / "away" / "run" / "moved" / "journal.jsonl"

        def home(number):
            runs = entries(journal, "runs_there")
            if len(runs) < number:
                return None
            host = runs[number - 1]["host"]
            return lab.dir / f"home-{host}" / "there" / host / "run" / "moved"

        def newest(place):
            saved = entries(place / "journal.jsonl", "saved")
            return saved[-1]["version"] if saved else None

        def is_ready(place):
            version = newest(place)
            if version is None or args.without:
                return version
            ready = entries(journal, "stands_by")
            return version if ready and ready[-1]["is_complete"] and ready[-1]["version"] >= version else None

        times = []
        try:
            for move in range(args.moves):
                place = wait_for("the job", lambda: home(move + 1), 900)
                wait_for("the job is saved", lambda: is_ready(place), 900)
                time.sleep(rng.uniform(40, 90))
                wait_for("the job is ready to move", lambda: is_ready(place), 900)
                at = time.time()
                os.kill(int((place / "lock").read_text()), signal.SIGTERM)
                wait_for("the job computes again", lambda: last(counts, "began")[1] > at, 900)
                times.append(last(counts, "began")[1] - at)
                left = entries(place / "journal.jsonl", "ended")[-1]["at_ms"] / 1000 - at
                print(f"move {move + 1}: {times[-1]:.1f} s, of which {left:.1f} s until it had left", flush=True)
        finally:
            front.send_signal(signal.SIGTERM)
            front.wait(300)
    print(f"{len(times)} moves: median {statistics.median(times):.1f} s, largest {max(times):.1f} s")
    return 0 if max(times) <= TARGET_S else 1


if __name__ == "__main__":
    sys.exit(main())
