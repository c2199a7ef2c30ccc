#!/usr/bin/env python3
"""Saves many versions of an image with two builds of ckpt, which take turns: what each stores, and what a restore takes.

    benches/turns/versions.py --before OLD/ckpt --after target/release/ckpt [--mib 256] [--versions 100]
        [--changes 2,5,10,append] [--block 65536] [--dir DIR]

Each build has its own grid of six daemons and saves with --keep 1. A number is the share of blocks, anywhere, that
are new in each version, in percent; with `append`, each version is longer by 2% of the first. Printed for each build,
as shares of the first version: the mean and the largest of what a later version stored, what all checkpoints hold at
the end, and the bytes and seconds of a restore of the last version. Beside them are those of the same image saved whole:
both are restored in turn, and the middle of the seconds counts.
"""

import argparse
import filecmp
import json
import os
import random
import statistics
import subprocess
import tempfile
import time
from pathlib import Path


class Build:
    """One build of the program and its grid."""

    def __init__(self, program, folder):
        self.program, self.folder = Path(program).resolve(), folder
        folder.mkdir()
        self.env = dict(os.environ, HOME=str(folder), CKPT_GRID=str(folder / "grid/grid.toml"))
        self.run("grid", "up", "--dir", folder / "grid", "--hosts", "6")

    def run(self, *args):
        done = subprocess.run([self.program, *args], cwd=self.folder, env=self.env, capture_output=True)
        if done.returncode not in (0, 3):
            raise SystemExit(f"{args}: {done.stderr.decode()}")
        return done.stdout

    def json(self, *args):
        return json.loads(self.run("--json", *args))

    def save(self, image):
        began = time.monotonic()
        saved = self.json("save", "--job", "1", "--keep", "1", image)
        return saved["stored_bytes"], time.monotonic() - began

    def restores(self, image):
        """Bytes fetched, and the middle of the seconds, of the last version and of the same image saved whole."""
        self.run("save", "--job", "2", "--full", image)
        out = self.folder / "out"
        fetched, took = {}, {"1": [], "2": []}
        for _ in range(9):
            for job, seconds in took.items():
                out.unlink(missing_ok=True)
                began = time.monotonic()
                fetched[job] = self.json("restore", "--job", job, "-o", out)["fetched_bytes"]
                seconds.append(time.monotonic() - began)
                assert filecmp.cmp(out, image, shallow=False)
        return fetched, {job: statistics.median(seconds) for job, seconds in took.items()}

    def held(self):
        return sum(one["stored_bytes"] for one in self.json("list", "--job", "1")["checkpoints"])

    def down(self):
        self.run("grid", "down", "--dir", self.folder / "grid")


def change(image, how, first, block, rng):
    with open(image, "r+b") as file:
        if how == "append":
            file.seek(0, os.SEEK_END)
            file.write(rng.randbytes(first // 50))
            return
        blocks = first // block
        for at in rng.sample(range(blocks), max(1, round(blocks * float(how) / 100))):
            file.seek(at * block)
            file.write(rng.randbytes(block))


def one(how, args, folder):
    rng = random.Random(how)
    image = folder / "image"
    first = args.mib << 20
    with open(image, "wb") as file:
        file.writelines(rng.randbytes(1 << 20) for _ in range(args.mib))
    builds = {name: Build(getattr(args, name), folder / name) for name in ("before", "after") if getattr(args, name)}
    stored = {name: [] for name in builds}
    took = {name: [] for name in builds}
    for version in range(args.versions):
        if version:
            change(image, how, first, args.block, rng)
        for name in sorted(builds, reverse=version % 2 == 0):
            bytes_stored, seconds = builds[name].save(image)
            stored[name].append(bytes_stored)
            took[name].append(seconds)
    for name, build in builds.items():
        fetched, seconds = build.restores(image)
        later = stored[name][1:]
        print(
            f"{how:>6} {name:>6}: stores {sum(later) / len(later) / first:.3f}, at most {max(later) / first:.3f}; "
            f"holds {build.held() / first:.2f}; restore fetches {fetched['1'] / first:.2f} ({fetched['2'] / first:.2f}) "
            f"in {seconds['1']:.2f} s ({seconds['2']:.2f}); later saves {sum(took[name][1:]) / len(later):.2f} s",
            flush=True,
        )
        build.down()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--before", type=Path)
    parser.add_argument("--after", type=Path, required=True)
    parser.add_argument("--mib", type=int, default=256)
    parser.add_argument("--versions", type=int, default=100)
    parser.add_argument("--changes", default="2,5,10,append")
    parser.add_argument("--block", type=int, default=64 << 10)
    parser.add_argument("--dir", type=Path)
    args = parser.parse_args()
    for how in args.changes.split(","):
        with tempfile.TemporaryDirectory(dir=args.dir) as folder:
            one(how, args, Path(folder))


main()
