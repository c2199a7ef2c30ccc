#!/usr/bin/env python3
"""Makes dumps of the processes of one parallel job: DIR/rank-0.img to rank-7.img.

    benches/ranks/make.py DIR [RANKS]

Besides interpreter and libraries, each process has a table that is the same in all (48 MiB of doubles, as if
read from the same input), a mesh of which one row in thirty-two is different (32 MiB), a field of its own (48
MiB of smooth doubles), and random numbers of its own (16 MiB). Needs numpy and gdb (gcore).
"""

import subprocess
import sys
from pathlib import Path

MIB = 1 << 20


def rank(number):
    import numpy as np

    table = np.random.default_rng(1).random(48 * MIB // 8)
    mesh = np.sort(np.random.default_rng(2).integers(0, 5_000_000, (32, MIB // 8)), axis=1)
    mesh[number % 32] += number
    x = np.arange(48 * MIB // 8)
    field = 300 + 10 * np.sin(x * 7e-4 + number) + 1e-9 * np.random.default_rng(3 + number).standard_normal(x.size)
    noise = np.random.default_rng(100 + number).random(16 * MIB // 8)
    print("ready", flush=True)
    sys.stdin.readline()
    return table, mesh, field, noise


def main():
    target = Path(sys.argv[1])
    target.mkdir(parents=True, exist_ok=True)
    for number in range(int(sys.argv[2]) if len(sys.argv) > 2 else 8):
        process = subprocess.Popen([sys.executable, __file__, "--rank", str(number)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        process.stdout.readline()
        made = target / f"core.{process.pid}"
        subprocess.run(["gcore", "-o", target / "core", str(process.pid)], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        made.rename(target / f"rank-{number}.img")
        process.communicate(b"\n")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--rank"]:
        rank(int(sys.argv[2]))
    else:
        main()
