#!/usr/bin/env python3
"""Measures what a call of HTCondor's plug-in takes, against a plain `ckpt save` of the same files.

    cargo build --release -p ckpt --bin ckpt
    tests/long/plugin_cost.py [--pairs 31] [--mebibytes 64] [--programs target/release]

Needs an otherwise idle machine with two cores; takes about a minute. The files hold random bytes and are in
the page cache. In each pair the plug-in uploads the files, as a starter of HTCondor 23.9 calls it, and
`ckpt save` saves the directory that holds them. Which is first changes from pair to pair. Each has a job of
its own, so that both store all bytes.

The script prints, for 1, 100 and 10,000 files, the medians of both times, and the mean of their differences
with an interval of 95%. The exit status is 1 if a mean difference exceeds 0.1 s.
"""

import argparse
import math
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

from lab import Lab

FILES = [1, 100, 10_000]
TARGET_S = 0.1

# Bytes of the outfile that the starter writes before the call.
OUTFILE_BYTES = 19_264


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=31)
    parser.add_argument("--mebibytes", type=int, default=64)
    parser.add_argument("--programs", type=Path, default=Path("target/release"))
    return parser.parse_args()


def timed(args, env, cwd, executable=None):
    began = time.monotonic()
    done = subprocess.run(args, executable=executable, env=env, cwd=cwd, capture_output=True, timeout=600)
    if done.returncode != 0:
        raise RuntimeError(f"{args}: {done.returncode}: {done.stderr.decode()}")
    return time.monotonic() - began


def plugin(lab, sandbox, names, number):
    """One upload by the plug-in, in seconds. What the starter prepares is not counted."""
    job = f"alice/localhost#{number}.0#1795362462"
    ad = f'CheckpointDestination = "ckpt://grid/alice"\nClusterId = {number}\nEnvironment = ""\nIwd = "{sandbox}"\n'
    (sandbox / ".job.ad").write_text(ad)
    items = (
        f'[ Url = "ckpt://grid/{job}/0000/{name}"; LocalFileName = "{sandbox}/{name}" ]' for name in names
    )
    (sandbox / ".in").write_text("".join(items))
    (sandbox / ".out").write_bytes(bytes(OUTFILE_BYTES))
    env = lab.env | {"_CONDOR_JOB_AD": str(sandbox / ".job.ad"), "HOME": "/root"}
    args = ["/usr/libexec/condor/ckpt_plugin", "-infile", ".in", "-outfile", ".out", "-upload"]
    args = [arg if not arg.startswith(".") else str(sandbox / arg) for arg in args]
    seconds = timed(args, env, sandbox, lab.ckpt)
    answers = (sandbox / ".out").read_text(errors="replace")
    if answers.count("TransferSuccess = true") != len(names):
        raise RuntimeError(f"the plug-in reports failures: {answers[:400]}")
    return seconds


def plain(lab, sandbox, number):
    """One save of the directory, in seconds."""
    return timed([lab.ckpt, "save", "--job", f"plain-{number}", "files"], lab.env, sandbox)


def sandbox_of(lab, files, total):
    sandbox = lab.dir / f"sandbox-{files}"
    (sandbox / "files").mkdir(parents=True)
    names = [f"files/{index:05}" for index in range(files)]
    for name in names:
        (sandbox / name).write_bytes(os.urandom(total // files))
    return sandbox, names


def main():
    args = arguments()
    missed = False
    number = 0
    with Lab(args.programs / "ckpt") as lab:
        for files in FILES:
            sandbox, names = sandbox_of(lab, files, args.mebibytes << 20)
            times = {"plugin": [], "plain": []}
            for pair in range(args.pairs):
                number += 1
                order = ["plugin", "plain"] if pair % 2 == 0 else ["plain", "plugin"]
                for which in order:
                    if which == "plugin":
                        times[which].append(plugin(lab, sandbox, names, number))
                    else:
                        times[which].append(plain(lab, sandbox, number))
            more = [one - other for one, other in zip(times["plugin"], times["plain"])]
            mean = statistics.fmean(more)
            # Student's t for 8 differences and more is at most 2.31.
            width = 2.31 * statistics.stdev(more) / math.sqrt(len(more))
            medians = {which: statistics.median(seconds) for which, seconds in times.items()}
            print(
                f"{files} files: plug-in {medians['plugin']:.2f} s, plain save {medians['plain']:.2f} s, "
                f"difference {mean:+.3f} s ({mean - width:+.3f} to {mean + width:+.3f})",
                flush=True,
            )
            missed |= mean > TARGET_S
    sys.exit(missed)


if __name__ == "__main__":
    main()
