#!/usr/bin/env python3
"""Saves and restores that are killed: what the next one sends, and whether everything is right after very many kills.

    tests/long/resumed_saves.py measure CKPT [--mib 1024] [--mbit 100] [--percent 90] [--restic]
    tests/long/resumed_saves.py kills CKPT [--kills 500] [--mib 96] [--seed 1]

`measure` saves a random file over a link of so many Mbit/s, kills a save of it when so much has arrived at the hosts,
and saves again; kills a restore when so much has been sent, and restores again; and restores over a file of which a
tenth is another one: bytes on the link and seconds of each, and their share of a whole save or restore. With
`--restic`, restic does the same beside it, over the same link to `rclone serve restic` (Debian's packages restic and
rclone). It needs root: it shapes the loopback device of a network namespace of its own (`unshare`, `ip`, `tc`).

`kills` kills saves and restores with SIGKILL at random moments; between them the image changes at random. Each save
that ends has to give the image back, bit for bit, and in the end hosts have nothing but what versions need, and for an
hour the rows of saves that were killed in their last step, when the journal is gone and the version is not committed.
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


def timed(run):
    """What `run()` returns, its seconds, and the bytes on the link."""
    before, began = sent_bytes(), time.monotonic()
    done = run()
    return done, time.monotonic() - began, sent_bytes() - before


def report(what, figures, whole=None):
    _, took, sent = figures
    line = f"{what:44} {took:7.1f} s {sent / MIB:8.1f} MiB sent"
    if whole is not None:
        line += f", {100 * took / whole[1]:5.1f}% of the time, {100 * sent / whole[2]:5.1f}% of the bytes"
    print(line, flush=True)


def kill_when(child, is_time):
    until = time.monotonic() + PATIENCE_S
    while not is_time():
        assert child.poll() is None and time.monotonic() < until, "not killed in time"
        time.sleep(0.02)
    child.kill()
    child.wait()


def kill_after(child, sent):
    goal = sent_bytes() + sent
    kill_when(child, lambda: sent_bytes() >= goal)


def change_a_tenth(path, size):
    with open(path, "r+b") as file:
        for part in range(10):
            file.seek(part * size // 10 + 12345)
            file.write(os.urandom(size // 100))


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
    print(f"{wanted.mib} MiB of random bytes at {rate}, killed at {wanted.percent}%")
    with Lab(wanted.ckpt) as lab:
        image = lab.dir / "image"
        image.write_bytes(os.urandom(wanted.mib * MIB))
        measure_ckpt(lab, image, wanted)
        if wanted.restic:
            measure_restic(lab, image, wanted)


def measure_ckpt(lab, image, wanted):
    def save(job):
        return json.loads(lab.run("--json", "save", "--job", job, image).stdout)

    whole = timed(lambda: save("whole"))
    report("ckpt: whole save", whole)
    lab.run("forget", "--job", "whole", "--all")
    goal = whole[0]["shard_bytes"] * wanted.percent // 100
    kill_when(start(lab, "save", "--job", "42", image), lambda: received(lab) >= goal)
    report("ckpt: save after one that was killed", timed(lambda: save("42")), whole)

    out = lab.dir / "out"

    def restore():
        lab.run("restore", "--job", "42", "--force", "-o", out)
        assert out.read_bytes() == image.read_bytes(), "another image"

    whole = timed(restore)
    report("ckpt: whole restore", whole)
    out.unlink()
    kill_after(start(lab, "restore", "--job", "42", "-o", out), whole[2] * wanted.percent // 100)
    report("ckpt: restore after one that was killed", timed(restore), whole)
    change_a_tenth(out, image.stat().st_size)
    report("ckpt: restore where a tenth differs", timed(restore), whole)


def measure_restic(lab, image, wanted):
    store = lab.dir / "restic"
    store.mkdir()
    address = "127.0.0.1:8765"
    serve = ["rclone", "serve", "restic", "--addr", address, str(store)]
    server = subprocess.Popen(serve, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    env = lab.env | {
        "RESTIC_PASSWORD": "x",
        "RESTIC_REPOSITORY": f"rest:http://{address}/",
        "RESTIC_CACHE_DIR": str(lab.dir / "cache"),
    }
    out = lab.dir / "from-restic"

    def restic(*args):
        return subprocess.run(["restic", *map(str, args)], check=True, env=env, capture_output=True)

    def start_restic(*args):
        quiet = subprocess.DEVNULL
        return subprocess.Popen(["restic", *map(str, args)], env=env, stdout=quiet, stderr=quiet)

    def restore():
        restic("restore", "latest", "--target", out)

    try:
        time.sleep(1)
        restic("init")
        whole = timed(lambda: restic("backup", image))
        report("restic: whole save", whole)
        restored = timed(restore)
        report("restic: whole restore", restored)
        kill_after(start_restic("restore", "latest", "--target", out), restored[2] * wanted.percent // 100)
        report("restic: restore after one that was killed", timed(restore), restored)
        change_a_tenth(next(path for path in out.rglob("image")), image.stat().st_size)
        report("restic: restore where a tenth differs", timed(restore), restored)
        # A repository holds all that it ever got: a new image stands for the first save.
        image.write_bytes(os.urandom(image.stat().st_size))
        kill_after(start_restic("backup", image), whole[2] * wanted.percent // 100)
        restic("unlock", "--remove-all")
        report("restic: save after one that was killed", timed(lambda: restic("backup", image)), whole)
    finally:
        server.kill()
        server.wait()


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
            kind = rng.random()
            if kind < 0.5:
                # A save of what is there already would end before it is killed.
                image = change(rng, image) if kind < 0.2 else bytearray(rng.randbytes(wanted.mib * MIB))
                path.write_bytes(image)
            what = "restore" if saved is not None and rng.random() < 0.3 else "save"
            slow = ["--bandwidth", f"{rng.choice([20, 60, 120])}MiB"]
            if what == "save":
                child = start(lab, *slow, "save", "--job", "42", path)
            else:
                if rng.random() < 0.5:
                    out.unlink(missing_ok=True)
                child = start(lab, *slow, "restore", "--job", "42", "--force", "-o", out)
            time.sleep(rng.random() * 2.0)
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
        kept = received(lab)
        assert not list(lab.dir.rglob("*.journal")), "a journal stays"
        assert not list(lab.dir.rglob("*.remnant")), "a remnant's manifest stays"
        lab.run("forget", "--job", "42", "--all")
        left = [shard for data in data_dirs(lab) for shard in (data / "shards").rglob("*.shard")]
        assert not left, left
    print(f"{done} kills, {saves} saves between them, {used} of which used what was left; every image was right; "
          f"{kept / MIB:.0f} MiB of rows of saves killed in their last step go after an hour")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    ways = parser.add_subparsers(required=True)
    one = ways.add_parser("measure")
    one.set_defaults(run=measure)
    one.add_argument("ckpt")
    one.add_argument("--mib", type=int, default=1024)
    one.add_argument("--mbit", type=int, default=100)
    one.add_argument("--percent", type=int, default=90)
    one.add_argument("--restic", action="store_true")
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
