#!/usr/bin/env python3
"""Dumps a real program twice: LAMMPS (Debian: lammps, gdb), a melting Lennard-Jones crystal.

    benches/turns/lammps.py DIR [--cells 60] [--seconds 20]

Writes DIR/lammps1.img and DIR/lammps2.img, two dumps by gcore with --seconds of computing between them, on
one core. There are 4 atoms for each of cells^3 cells; with 30 cells a dump has 134 MB.
"""

import argparse
import os
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

INPUT = """
units lj
atom_style atomic
lattice fcc 0.8442
region box block 0 {cells} 0 {cells} 0 {cells}
create_box 1 box
create_atoms 1 box
mass 1 1.0
velocity all create 3.0 87287
pair_style lj/cut 2.5
pair_coeff 1 1 1.0 1.0 2.5
neighbor 0.3 bin
neigh_modify every 20 delay 0 check no
fix 1 all nve
thermo 10
thermo_modify flush yes
run 1000000
"""


def dump(pid, path):
    subprocess.run(["gcore", "-a", "-o", path, str(pid)], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    os.rename(f"{path}.{pid}", path)


@contextmanager
def running(folder, cells):
    """The process of a melt, once its memory has its full size. It is killed in the end."""
    script, log = folder / "in.melt", folder / "lammps.log"
    script.write_text(INPUT.format(cells=cells))
    log.unlink(missing_ok=True)
    # These keep MPI to one process, without the daemon that it would start.
    env = dict(os.environ, OMP_NUM_THREADS="1", OMPI_MCA_ess_singleton_isolated="1")
    program = subprocess.Popen(["lmp", "-in", script, "-log", log], stdout=subprocess.DEVNULL, env=env)
    try:
        end = time.monotonic() + 300
        # Once the log has the first row of the run's table, memory has its full size.
        while not (log.exists() and "Step" in log.read_text()):
            if program.poll() is not None or time.monotonic() > end:
                sys.exit(f"lmp does not run: {log}")
            time.sleep(0.2)
        yield program
    finally:
        program.kill()
        program.wait()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dir", type=Path)
    parser.add_argument("--cells", type=int, default=60)
    parser.add_argument("--seconds", type=float, default=20)
    args = parser.parse_args()
    args.dir.mkdir(exist_ok=True)
    with running(args.dir, args.cells) as program:
        for name in ("lammps1.img", "lammps2.img"):
            time.sleep(args.seconds)
            path = args.dir / name
            dump(program.pid, path)
            print(path, os.path.getsize(path), "bytes", flush=True)


if __name__ == "__main__":
    main()
