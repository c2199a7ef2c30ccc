"""Seconds of file systems of fsspec: a local DIRECTORY, a server of S3 if there is one, and a grid.

    fs_seconds.py DIRECTORY PID [S3_URL]

1,000 files of 10 KB in one call, the same overwritten, read and listed, and one file of 256 MiB. Each figure stands with
its ratio to the local directory. Then the daemon PID of the grid is killed, and the grid measured again, once the client
has noticed, with the ratio to the grid before. S3 is asked with the key `ckpt` and the secret `ckpt-secret` for the bucket
`ckpt`.
"""

import os
import random
import signal
import sys
import time
import warnings

import fsspec

FILES = 1000
SMALL = 10_000
LARGE = 256 << 20


def timed(call):
    began = time.monotonic()
    call()
    return time.monotonic() - began


def seconds_of(fs, root):
    """Seconds of each call."""
    noise = random.Random(1)
    large = b"".join(noise.randbytes(1 << 20) for _ in range(LARGE >> 20))
    small = {f"{root}/small/{number}": noise.randbytes(SMALL) for number in range(FILES)}
    again = {name: noise.randbytes(SMALL) for name in small}
    fs.makedirs(f"{root}/small", exist_ok=True)
    found = {"1,000 files written": timed(lambda: fs.pipe(small))}
    found["overwritten"] = timed(lambda: fs.pipe(again))
    fs.invalidate_cache()
    read = {}
    found["read"] = timed(lambda: read.update(fs.cat(list(again))))
    assert {name.rsplit("/")[-1]: data for name, data in read.items()} == {
        name.rsplit("/")[-1]: data for name, data in again.items()
    }
    fs.invalidate_cache()
    found["listed"] = timed(lambda: fs.ls(f"{root}/small", detail=True))
    found["removed"] = timed(lambda: fs.rm(list(again)))
    found["256 MiB written"] = timed(lambda: fs.pipe_file(f"{root}/large", large))
    found["256 MiB read"] = timed(lambda: fs.cat_file(f"{root}/large") == large or sys.exit("wrong bytes"))
    return found


def main():
    local = seconds_of(fsspec.filesystem("file"), sys.argv[1])
    others = {}
    if len(sys.argv) > 3:
        s3 = fsspec.filesystem("s3", key="ckpt", secret="ckpt-secret", endpoint_url=sys.argv[3])
        s3.makedirs("ckpt", exist_ok=True)
        others["S3"] = seconds_of(s3, "ckpt/seconds")
    else:
        print("!!! NOT TRIED HERE: S3, no server is named !!!", flush=True)
    grid = fsspec.filesystem("ckpt")
    others["ckpt"] = seconds_of(grid, "seconds")
    for what, usual in local.items():
        row = [f"{what:20} local {usual:7.2f} s"]
        row += [f"{name} {times[what]:7.2f} s ({times[what] / usual:6.1f}x)" for name, times in others.items()]
        print("   ".join(row), flush=True)
    os.kill(int(sys.argv[2]), signal.SIGKILL)
    # The first look waits for the host, in vain.
    warnings.simplefilter("ignore")
    grid.exists("seconds/none")
    for what, seconds in seconds_of(grid, "dead").items():
        print(f"{what:20} with a dead host {seconds:7.2f} s ({seconds / others['ckpt'][what]:4.2f}x)", flush=True)


main()
