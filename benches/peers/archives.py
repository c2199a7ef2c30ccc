#!/usr/bin/env python3
"""Makes two archives for the race: A.tar, and B.tar, in which some of the files were edited.

    benches/peers/archives.py DIR [--megabytes 400] [--edited 0.01]

Files have 200 bytes to a few megabytes (log-normal). Three in five are text; the others are numbers or random
bytes. Of ten edited files, four grew, three shrank, two were changed in place and one was removed, which
moves the bytes after them in the archive. The same arguments make the same bytes.
"""

import argparse
import io
import math
import random
import struct
import tarfile
from pathlib import Path


def words(rng):
    letters = "etaoinshrdlucmfwypvbgkqjxz"
    weights = [1 / (n + 1) for n in range(len(letters))]
    return ["".join(rng.choices(letters, weights, k=rng.randint(2, 9))) for _ in range(4000)]


def content(rng, vocabulary, size):
    kind = rng.random()
    if kind < 0.6:
        text = " ".join(rng.choices(vocabulary, k=size // 5 + 1))
        return text.encode()[:size]
    if kind < 0.8:
        start, step = rng.randrange(1 << 20), rng.randrange(1, 9)
        numbers = (start + n * step + rng.randrange(3) for n in range(size // 4 + 1))
        return b"".join(struct.pack("<I", n & 0xFFFFFFFF) for n in numbers)[:size]
    return rng.randbytes(size)


def edit(rng, data):
    """The file's next version; None if it is removed."""
    at, size = rng.randint(0, len(data)), rng.randint(1, 5000)
    kind = rng.random()
    if kind < 0.4:
        return data[:at] + rng.randbytes(size) + data[at:]
    if kind < 0.7:
        return data[:at] + data[at + size :]
    if kind < 0.9:
        return data[:at] + rng.randbytes(min(size, len(data) - at)) + data[at + size :]
    return None


def add(archive, name, data):
    entry = tarfile.TarInfo(name)
    entry.size, entry.mtime = len(data), 1_700_000_000
    archive.addfile(entry, io.BytesIO(data))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("dir", type=Path)
    parser.add_argument("--megabytes", type=int, default=400)
    parser.add_argument("--edited", type=float, default=0.01)
    options = parser.parse_args()
    options.dir.mkdir(parents=True, exist_ok=True)
    rng = random.Random(7)
    vocabulary = words(rng)
    left, number, edited = options.megabytes << 20, 0, 0
    with tarfile.open(options.dir / "A.tar", "w") as first, tarfile.open(options.dir / "B.tar", "w") as second:
        while left > 0:
            size = min(left, int(200 + math.exp(rng.gauss(8, 1.8))))
            name, data = f"tree/{number % 97:02}/file-{number:06}", content(rng, vocabulary, size)
            left, number = left - size, number + 1
            add(first, name, data)
            if rng.random() < options.edited:
                edited += 1
                data = edit(rng, data)
            if data is not None:
                add(second, name, data)
    print(f"{number} files, {edited} edited")


main()
