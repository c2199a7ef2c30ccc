#!/usr/bin/env python3
"""Evicts a real program ten times under `ckpt run`: LAMMPS with its restart files.

    cargo build --release -p ckpt --bin ckpt
    tests/long/lammps_evicted.py [--evictions 10] [--segments 40] [--steps 100] [--cells 10] [--seed 1]
        [--programs target/release] [--criu CRIU]

Needs LAMMPS (Debian: lammps) and one core; takes some five minutes. With --criu also root and CRIU 4.

The job is a melting Lennard-Jones crystal of 4 x cells^3 atoms, computed in segments of --steps steps. Each
segment reads the restart file of the segment before, and writes its own, which is renamed into place. The job
runs once undisturbed to its end. Then it runs under `ckpt run`: each start has a directory of its own, like
another machine, continues from what is in the grid, and is evicted by SIGTERM after a random time. In the end
the atoms of both runs (positions and velocities, with all digits) have to be the same to the byte. The exit
status is 1 if they are not.

With --criu the job is one process that writes nothing before its end, and CRIU saves its image (`--via
criu`). All starts are in the same directory, because an image names its files by their paths.
"""

import argparse
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

from lab import Lab, Machine, wait_for

BEGIN = """
units lj
atom_style atomic
lattice fcc 0.8442
region box block 0 {cells} 0 {cells} 0 {cells}
create_box 1 box
create_atoms 1 box
mass 1 1.0
velocity all create 3.0 87287
"""

RUN = """
pair_style lj/cut 2.5
pair_coeff 1 1 1.0 1.0 2.5
neighbor 0.3 bin
neigh_modify every 20 delay 0 check no
fix 1 all nve
run {steps}
write_restart {to}
"""

# The state is one directory entry: the restart file, whose header holds the step.
JOB = """
cd "$(dirname "$0")" || exit 9
at=0
[ -e state ] && at=$(cat state/segment)
while [ "$at" -lt {segments} ]; do
    if [ "$at" = 0 ]; then input=first.in; else input=next.in; fi
    rm -rf new && mkdir new
    lmp -in $input -log none -screen none || exit 8
    at=$((at + 1))
    echo $at >new/segment
    rm -rf old; [ -e state ] && mv state old
    mv new state
    echo $at >>segments
    [ -n "$CKPT_NOTIFY" ] && "$CKPT" notify SAVED=1 STEP=$at
done
lmp -in dump.in -log none -screen none
"""


WHOLE = """
write_dump all custom atoms id x y z vx vy vz modify sort id format float %.17g
"""


def prepare(directory, args):
    whole = RUN.format(steps=args.steps * args.segments, to="restart") + WHOLE
    (directory / "whole.in").write_text(BEGIN.format(cells=args.cells) + whole)
    (directory / "first.in").write_text(BEGIN.format(cells=args.cells) + RUN.format(steps=args.steps, to="new/restart"))
    (directory / "next.in").write_text(
        "read_restart state/restart\n" + RUN.format(steps=args.steps, to="new/restart")
    )
    (directory / "dump.in").write_text(
        "read_restart state/restart\npair_style lj/cut 2.5\npair_coeff 1 1 1.0 1.0 2.5\n"
        "write_dump all custom atoms id x y z vx vy vz modify sort id format float %.17g\n"
    )
    (directory / "job.sh").write_text(JOB.format(segments=args.segments))


def command(here, args):
    """The options of `ckpt run`, and the command of the job."""
    if not args.criu:
        return ["--files", str(here.state)], ["sh", here.dir / "job.sh"]
    options = ["--via", "criu"]
    # An image records open files with their sizes, so the job must not have the growing standard error.
    return options, ["sh", "-c", "exec lmp -in whole.in -log none -screen none 2>/dev/null"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--evictions", type=int, default=10)
    parser.add_argument("--segments", type=int, default=40)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--cells", type=int, default=10)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--programs", type=Path, default="target/release")
    parser.add_argument("--criu", type=Path)
    args = parser.parse_args()
    if not shutil.which("lmp"):
        sys.exit("needs LAMMPS: apt-get install lammps")
    draw = random.Random(args.seed)
    # These keep MPI to one process: without the daemon that it would start, and without sockets, which CRIU
    # 4.1 can't dump under Linux 6.16 and later.
    alone = {"OMP_NUM_THREADS": "1", "OMPI_MCA_ess_singleton_isolated": "1", "OMPI_MCA_btl": "self"}
    with Lab(args.programs / "ckpt") as lab:
        lab.env |= alone | {"CKPT": lab.ckpt}
        if args.criu:
            lab.env["CRIU"] = str(args.criu.resolve())
        plain = lab.dir / "plain"
        plain.mkdir()
        prepare(plain, args)
        began = time.monotonic()
        if args.criu:
            words = ["lmp", "-in", "whole.in", "-log", "none", "-screen", "none"]
        else:
            words = ["sh", "job.sh"]
        subprocess.run(words, check=True, cwd=plain, env=os.environ | alone)
        took = time.monotonic() - began
        expected = (plain / "atoms").read_bytes()
        evicted, code, segments = 0, None, 0
        while code != 0:
            if evicted == 0 or not args.criu:
                here = Machine(lab, f"m{evicted}")
                prepare(here.dir, args)
            options, words = command(here, args)
            here.start("lammps", ["--batch", "--grace", "30s", *options], words)
            if evicted < args.evictions:
                starts = evicted + 1 if args.criu else 1
                wait_for("the job", lambda: len(here.entries("started")) >= starts)
                time.sleep(draw.uniform(0.3, 1.5) * took / (args.evictions + 1))
                here.supervisor.send_signal(signal.SIGTERM)
            code, report = here.end(1200)
            done = here.dir / "segments"
            done = done.read_text().split() if done.exists() else []
            segments += len(done)
            went = f", segments {done[:1]} to {done[-1:]}" if done else ""
            print(f"start {evicted + 1}: from version {report.get('began_from')}{went}: {code}", flush=True)
            if code not in (0, 75, 76) or (code == 0 and evicted < args.evictions):
                sys.exit(f"{code} after {evicted} evictions: {here.err.read_text()}")
            evicted += code != 0
            last = here
        same = (last.dir / "atoms").read_bytes() == expected
    how = "images by CRIU" if args.criu else f"{segments} segments done for {args.segments}"
    print(f"{evicted} evictions; {how}; undisturbed {took:.0f} s")
    print("the same result, to the byte" if same else "ANOTHER RESULT")
    sys.exit(0 if same else 1)


if __name__ == "__main__":
    main()
