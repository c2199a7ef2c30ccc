#!/usr/bin/env python3
"""Saves that are killed: what the next save sends, and whether everything is right after very many kills.

    tests/long/resumed_saves.py measure CKPT [--mib 1024] [--mbit 100] [--percent 90]
    tests/long/resumed_saves.py kills CKPT [--kills 500] [--mib 96] [--seed 1]

`measure` saves a random file over a link of so many Mbit/s, kills a save of it when so much has arrived at the hosts,
and saves again: bytes on the link and seconds of the whole save and of the last one. It needs root: it shapes the
loopback device of a network namespace of its own (`unshare`, `ip`, `tc`).

`kills` kills saves and restores with SIGKILL at random moments; between them the image changes at random. Each save
that ends has to give the image back, bit for bit, and in the end hosts have nothing but what versions need.
"""

import argparse
import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from lab import Lab  # noqa: E402

MIB = 1 << 20

# Longest wait for a state, seconds.
PATIENCE_S = 900


def sent_bytes():
    # Not from /sys, which shows the devices of the namespace in which it was mounted.
    shown = subprocess.run(["ip", "-j", "-s", "link", "show", "lo"], check=True, capture_output=True)
    return json.loads(shown.stdout)[0]["stats64"]["tx"]["bytes"]


def data_dirs(lab):
    return [path.parent for path in lab.grid.rglob("incoming")]


def received(lab):
    """Bytes of shards that hosts are receiving, or keep of killed saves."""
    total = 0
    for data in data_dirs(lab):
        for path in (data / "incoming").iterdir():
            try:
                total += path.stat().st_size
            except FileNotFoundError:
                pass
    return total


def timed_save(lab, job, image):
    before, began = sent_bytes(), time.monotonic()
    done = lab.run("--json", "save", "--job", job, image)
    took = time.monotonic() - began
    return json.loads(done.stdout), took, sent_bytes() - before


def start(lab, *args):
    args = [lab.ckpt, *map(str, args)]
    quiet = subprocess.DEVNULL
    return subprocess.Popen(args, env=lab.env, stdout=quiet, stderr=quiet)


def measure(wanted):
    if os.environ.get("CKPT_LONG_SHAPED") != "yes":
        env = os.environ | {"CKPT_LONG_SHAPED": "yes"}
        os.execvpe("unshare", ["unshare", "-n", sys.executable, *sys.argv], env)
    rate = f"{wanted.mbit}mbit"
    for line in (
        "ip link set lo mtu 1500 up",
        f"tc qdisc add dev lo root tbf rate {rate} burst 256kb latency 50ms",
    ):
        subprocess.run(line.split(), check=True)
    with Lab(wanted.ckpt) as lab:
        image = lab.dir / "image"
        image.write_bytes(os.urandom(wanted.mib * MIB))
        whole, whole_s, whole_sent = timed_save(lab, "whole", image)
        lab.run("forget", "--job", "whole", "--all")
        goal = whole["shard_bytes"] * wanted.percent // 100
        killed = start(lab, "save", "--job", "42", image)
        until = time.monotonic() + PATIENCE_S
        while received(lab) < goal:
            assert killed.poll() is None and time.monotonic() < until, "not killed in time"
            time.sleep(0.02)
        killed.kill()
        killed.wait()
        resumed, resumed_s, resumed_sent = timed_save(lab, "42", image)
        out = lab.dir / "out"
        lab.run("restore", "--job", "42", "-o", out)
        assert out.read_bytes() == image.read_bytes(), "another image"
    print(f"{wanted.mib} MiB at {rate}, killed at {wanted.percent}%")
    print(f"whole:   {whole_s:7.1f} s, {whole_sent / MIB:8.1f} MiB sent")
    print(f"resumed: {resumed_s:7.1f} s, {resumed_sent / MIB:8.1f} MiB sent, "
          f"{(resumed['resumed_bytes'] or 0) / MIB:.1f} MiB of the image were there")
    print(f"{100 * resumed_s / whole_s:.1f}% of the time, {100 * resumed_sent / whole_sent:.1f}% of the bytes")


def change(rng, image):
    """Changes some of the image: replaces, puts in or takes out bytes."""
    for _ in range(rng.randrange(3)):
        at = rng.randrange(len(image))
        some = rng.randrange(1, 2 * MIB)
        kind = rng.randrange(3)
        if kind == 0:
            image[at : at + some] = rng.randbytes(some)
        elif kind == 1:
            image[at:at] = rng.randbytes(some)
        elif len(image) > 70 * MIB:
            del image[at : at + some]
    return image


def kills(wanted):
    rng = random.Random(wanted.seed)
    with Lab(wanted.ckpt) as lab:
        path, out = lab.dir / "image", lab.dir / "out"
        image = bytearray(rng.randbytes(wanted.mib * MIB))
        path.write_bytes(image)
        saved, used, done, saves = None, 0, 0, 0
        while done < wanted.kills:
            if rng.random() < 0.4:
                image = change(rng, image)
                path.write_bytes(image)
            what = "restore" if saved is not None and rng.random() < 0.3 else "save"
            slow = ["--bandwidth", f"{rng.choice([20, 60, 200])}MiB"]
            if what == "save":
                child = start(lab, *slow, "save", "--job", "42", path)
            else:
                child = start(lab, *slow, "restore", "--job", "42", "--force", "-o", out)
            time.sleep(rng.random() * 3.0)
            if child.poll() is None:
                child.kill()
                done += 1
            child.wait()
            # A save that was killed may have been committed.
            if rng.random() < 0.15:
                report = json.loads(lab.run("--json", "save", "--job", "42", path).stdout)
                saves += 1
                used += bool(report["resumed_bytes"])
                lab.run("restore", "--job", "42", "--force", "-o", out)
                assert out.read_bytes() == image, f"another image after {done} kills"
                saved = report["version"]
                print(f"{done} kills: version {saved}, resumed {report['resumed_bytes']}", flush=True)
        report = json.loads(lab.run("--json", "save", "--job", "42", "--keep", "1", path).stdout)
        lab.run("restore", "--job", "42", "--force", "-o", out)
        assert out.read_bytes() == image, "another image in the end"
        lab.run("verify", "--job", "42", "--read-data")
        assert received(lab) == 0, "hosts keep rows"
        assert not list(lab.dir.rglob("*.journal")), "a journal stays"
        assert not list(lab.dir.rglob("*.remnant")), "a remnant's manifest stays"
        lab.run("forget", "--job", "42", "--all")
        left = [shard for data in data_dirs(lab) for shard in (data / "shards").rglob("*.shard")]
        assert not left, left
    print(f"{done} kills, {saves} saves between them, {used} of which used what was left; every image was right")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    ways = parser.add_subparsers(required=True)
    one = ways.add_parser("measure")
    one.set_defaults(run=measure)
    one.add_argument("ckpt")
    one.add_argument("--mib", type=int, default=1024)
    one.add_argument("--mbit", type=int, default=100)
    one.add_argument("--percent", type=int, default=90)
    many = ways.add_parser("kills")
    many.set_defaults(run=kills)
    many.add_argument("ckpt")
    many.add_argument("--kills", type=int, default=500)
    many.add_argument("--mib", type=int, default=96)
    many.add_argument("--seed", type=int, default=1)
    wanted = parser.parse_args()
    wanted.run(wanted)


if __name__ == "__main__":
    main()
