#!/usr/bin/env python3
"""Compares two builds of ckpt, which take turns: the time and CPU of the later one over those of the earlier.

    benches/turns/turns.py --before OLD/ckpt --after target/release/ckpt
        [--sizes 1,16,64] [--image A --next B] [--rounds 5] [--dir DIR]
    benches/turns/turns.py --before OLD/ckpt --after target/release/ckpt --ranks DUMP ...
    benches/turns/turns.py --after target/release/ckpt --image A --next B --slices

Each build has its own grid of five daemons of the same build, and saves with 3+2. In every round both builds
take turns, and which goes first changes. Images of --sizes MiB are made here; A and B are a given image and
its next version. Measured are `list` and, for each image, the first save, the save of the next version (a
tenth changed), its restore to a file, and a full save that replaces both (--full --keep 1). Printed are
medians with the range in brackets, and the ratio of the medians. CPU is that of client and daemons until
0.5 s after the client has ended.

With --ranks: the dumps of one parallel job, saved each as a job of its own (the sum of the saves) and all as
one job.

With --slices: only the save of the next version, in slices of 50 ms: the shares of the cores that client and
daemons use, the share that is idle, and the times of the events in the hosts' logs.
"""

import argparse
import filecmp
import os
import random
import re
import statistics
import subprocess
import sys
import tempfile
import time
from datetime import datetime, timezone
from pathlib import Path

TICKS = os.sysconf("SC_CLK_TCK")
CORES = os.cpu_count()
SLICE_S = 0.05
SETTLE_S = 0.5


def cpu_of(pid):
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / TICKS
    except OSError:
        return 0.0


def idle_of_machine():
    fields = Path("/proc/stat").read_text().split("\n", 1)[0].split()
    return (int(fields[4]) + int(fields[5])) / TICKS


class Build:
    """One build of the program and its grid."""

    def __init__(self, name, program, dir):
        self.name, self.program, self.dir = name, Path(program).resolve(), dir / name
        self.dir.mkdir()
        self.env = dict(os.environ, CKPT_STATE_DIR=str(self.dir / "state"), CKPT_GRID=str(self.dir / "grid/grid.toml"))
        up = dict(self.env, RUST_LOG="info,ckpt_store=debug")
        grid = self.dir / "grid"
        subprocess.run([self.program, "grid", "up", "--dir", grid, "--hosts", "5"], env=up, check=True, stdout=subprocess.DEVNULL)
        self.pids = [int((host / "lock").read_text()) for host in sorted((grid / "hosts").iterdir())]

    def stop(self):
        subprocess.run([self.program, "grid", "down", "--dir", self.dir / "grid"], env=self.env, stdout=subprocess.DEVNULL)

    def daemons(self):
        return sum(map(cpu_of, self.pids))

    def run(self, *args, watch=None):
        """Runs a command; returns its wall time, and the CPU seconds of the command and the daemons."""
        os.sync()
        before, begun = self.daemons(), time.monotonic()
        child = subprocess.Popen([self.program, *args], env=self.env, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        if watch:
            watch(child)
        _, status, usage = os.wait4(child.pid, 0)
        seconds = time.monotonic() - begun
        child.returncode = status
        if status:
            sys.exit(f"{self.program} {' '.join(map(str, args))}: status {status}")
        time.sleep(SETTLE_S)
        return seconds, usage.ru_utime + usage.ru_stime + self.daemons() - before


def make_image(path, mib, changed_from=None):
    """Writes an image (a third each noise, like text, zeros), or `changed_from` with a tenth changed."""
    rng = random.Random(mib)
    if changed_from:
        data = bytearray(Path(changed_from).read_bytes())
        for _ in range(max(1, len(data) // 10 >> 16)):
            at = rng.randrange(max(1, len(data) - 65_536))
            data[at:at + 65_536] = rng.randbytes(min(65_536, len(data) - at))
    else:
        data = bytearray()
        words = [rng.randbytes(7).hex().encode() for _ in range(500)]
        while len(data) < mib << 20:
            data += rng.randbytes(1 << 18)
            data += b" ".join(rng.choices(words, k=1 << 14))[:1 << 18]
            data += bytes(1 << 18)
        del data[mib << 20:]
    path.write_bytes(data)
    return path


def measure(build, name, image, next_image, first_round):
    job, out = f"{name}", build.dir / "out"
    yield "save", build.run("save", "--job", job, image)
    yield "save of the next version", build.run("save", "--job", job, next_image)
    yield "restore", build.run("restore", "--job", job, "-o", out)
    if first_round and not filecmp.cmp(out, next_image, shallow=False):
        sys.exit(f"{build.name}: what was restored differs")
    out.unlink()
    yield "full save that replaces both", build.run("save", "--full", "--keep", "1", "--job", job, image)
    subprocess.run([build.program, "forget", "--job", job, "--all"], env=build.env, stdout=subprocess.DEVNULL, check=True)
    time.sleep(SETTLE_S)


def in_turn(args, dir):
    builds = [Build("before", args.before, dir), Build("after", args.after, dir)]
    images = {}
    for size in filter(None, args.sizes.split(",")):
        image = make_image(dir / f"{size}.img", int(size))
        images[f"{size} MiB"] = (image, make_image(dir / f"{size}.next", int(size), image))
    if args.image:
        images[f"{Path(args.image).name}"] = (args.image, args.next or args.image)
    small = make_image(dir / "listed.img", 1)
    for build in builds:
        build.run("save", "--job", "listed", small)
    found = {}
    try:
        for number in range(args.rounds):
            for build in builds if number % 2 == 0 else builds[::-1]:
                enter = lambda what, cost: found.setdefault(what, {}).setdefault(build.name, []).append(cost)
                for _ in range(3):
                    enter("`list`", build.run("list"))
                for name, (image, next_image) in images.items():
                    for what, cost in measure(build, name.replace(" ", ""), image, next_image, number == 0):
                        enter(f"{name}: {what}", cost)
            print(f"round {number + 1} of {args.rounds}", file=sys.stderr)
    finally:
        for build in builds:
            build.stop()
    show(found)
    for name in images:
        for build in builds:
            times = {what: statistics.median(s for s, _ in found[f"{name}: {what}"][build.name]) for what in ("save", "save of the next version")}
            print(f"{name}, {build.name}: the next version takes {times['save of the next version'] / times['save']:.2f} of the first save")


def ranks_in_turn(args, dir):
    builds = [Build("before", args.before, dir), Build("after", args.after, dir)]
    found = {}
    try:
        for number in range(args.rounds):
            for build in builds if number % 2 == 0 else builds[::-1]:
                enter = lambda what, cost: found.setdefault(what, {}).setdefault(build.name, []).append(cost)
                costs = [build.run("save", "--job", f"rank{at}", dump) for at, dump in enumerate(args.ranks)]
                enter("each rank a job", tuple(map(sum, zip(*costs))))
                enter("all ranks one job", build.run("save", "--job", "all", *args.ranks))
                for job in ["all"] + [f"rank{at}" for at in range(len(args.ranks))]:
                    subprocess.run([build.program, "forget", "--job", job, "--all"], env=build.env, stdout=subprocess.DEVNULL, check=True)
                time.sleep(SETTLE_S)
    finally:
        for build in builds:
            build.stop()
    show(found)


def show(found):
    print("| | before, s | after, s | ratio | before, CPU s | after, CPU s | ratio |\n|---|---|---|---|---|---|---|")
    for what, costs in found.items():
        cells = []
        for of in (0, 1):
            values = [[cost[of] for cost in costs[name]] for name in ("before", "after")]
            medians = [statistics.median(each) for each in values]
            cells += [f"{middle:.3f} ({min(each):.3f}-{max(each):.3f})" for middle, each in zip(medians, values)]
            cells.append(f"{medians[1] / medians[0]:.2f}" if medians[0] else "-")
        print(f"| {what} | {' | '.join(cells)} |")


def said(build, begun):
    """By kind of line in the hosts' logs, its times in milliseconds after `begun` (Unix seconds)."""
    kinds = {}
    for log in (build.dir / "grid/hosts").glob("*/log"):
        for line in log.read_text(errors="replace").splitlines():
            found = re.match(r"(\S+Z)\s+\w+ \S+: (connected|stored|committed|deleted by its owner|notice heard|disconnected)", line)
            if found:
                at = datetime.fromisoformat(found[1].rstrip("Z")).replace(tzinfo=timezone.utc).timestamp() - begun
                if at > 0:
                    kinds.setdefault(found[2], []).append(at * 1000)
    return kinds


def slices(args, dir):
    build = Build("after", args.after, dir)
    sums, ends, kinds = [], [], {}

    def watch(child):
        begun = time.monotonic()
        last = (0.0, build.daemons(), idle_of_machine())
        while True:
            wake = begun + (len(rows) + 1) * SLICE_S
            time.sleep(max(0.0, wake - time.monotonic()))
            gone = "Z" in (Path(f"/proc/{child.pid}/stat").read_text().rsplit(")", 1)[1].split()[0])
            now = (cpu_of(child.pid), build.daemons(), idle_of_machine())
            rows.append(tuple((a - b) / (SLICE_S * CORES) for a, b in zip(now, last)))
            last = now
            if gone:
                return

    try:
        for _ in range(args.rounds):
            build.run("save", "--job", "slices", args.image)
            rows, begun = [], time.time()
            ends.append(build.run("save", "--job", "slices", args.next or args.image, watch=watch)[0])
            for at, row in enumerate(rows):
                if at == len(sums):
                    sums.append([])
                sums[at].append(row)
            for kind, times in said(build, begun).items():
                kinds.setdefault(kind, []).extend(times)
            subprocess.run([build.program, "forget", "--job", "slices", "--all"], env=build.env, stdout=subprocess.DEVNULL, check=True)
            time.sleep(SETTLE_S)
    finally:
        build.stop()
    print(f"{args.rounds} saves of the next version, median {statistics.median(ends):.2f} s\n")
    print("| ms | client | daemons | idle | rounds |\n|---|---|---|---|---|")
    for at, rows in enumerate(sums):
        shares = [statistics.mean(row[part] for row in rows) for part in range(3)]
        print(f"| {at * 50} | {' | '.join(f'{max(0.0, share):.2f}' for share in shares)} | {len(rows)} |")
    print()
    for kind, times in sorted(kinds.items(), key=lambda each: statistics.median(each[1])):
        print(f"{kind}: median {statistics.median(times):.0f} ms ({min(times):.0f} to {max(times):.0f})")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--before")
    parser.add_argument("--after", required=True)
    parser.add_argument("--sizes", default="1,16,64", help="MiB, empty for none")
    parser.add_argument("--image")
    parser.add_argument("--next")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--ranks", nargs="+")
    parser.add_argument("--slices", action="store_true")
    parser.add_argument("--dir", help="where grids and images lie, on the disk to be measured")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="ckpt-turns-", dir=args.dir) as dir:
        if args.slices:
            if not args.image:
                parser.error("--slices needs --image")
            slices(args, Path(dir))
        else:
            if not args.before:
                parser.error("--before is missing")
            (ranks_in_turn if args.ranks else in_turn)(args, Path(dir))


if __name__ == "__main__":
    main()
