#!/usr/bin/env python3
"""Successive versions of real programs, saved by ckpt, restic and borg in turn.

    benches/peers/versions.py --ckpt target/release/ckpt [--versions 20] [--only lammps,training,tuning] [--dir DIR]

Three jobs make the versions, on one core: `lammps` is a process that melts a crystal, dumped by gcore every second;
`training` a model that PyTorch trains with Adam, saved with its optimizer every few steps; `tuning` the same where
three quarters of the layers are frozen. ckpt saves to six daemons of this machine, any two of which may be lost, with
--keep 1. restic and borg keep one copy in a directory, and drop and compact all but the last version. Printed for each,
as shares of the image: what the first and, on average, a later version adds, before ckpt's coding; what is on disks at
the end, with it; and the seconds of a later save, with dropping the one before. At the end each restores the last
version, which is compared.

Needs restic and borg, LAMMPS and gdb (Debian: borgbackup lammps gdb), and PyTorch in the Python that runs this.
"""

import argparse
import filecmp
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "turns"))
import lammps  # noqa: E402

TRAINING = """
import os, sys, torch
image, frozen = sys.argv[1], float(sys.argv[2])
torch.set_num_threads(1)
torch.manual_seed(1)
layers = [torch.nn.Linear(1024, 1024) for _ in range(8)]
for layer in layers[:int(len(layers) * frozen)]:
    layer.requires_grad_(False)
model = torch.nn.Sequential(*[part for layer in layers for part in (layer, torch.nn.ReLU())])
optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=1e-4)
for _ in sys.stdin:
    for _ in range(5):
        batch = torch.randn(32, 1024)
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(batch), batch).backward()
        optimizer.step()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, image)
    print(flush=True)
"""

QUIET = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}


def on_disk(folder):
    """Bytes that the files of a folder take."""
    return sum(entry.stat().st_blocks * 512 for entry in folder.rglob("*") if entry.is_file())


class Ckpt:
    def __init__(self, program, folder):
        self.program, self.folder = program, folder
        self.env = dict(os.environ, HOME=str(folder), CKPT_GRID=str(folder / "grid/grid.toml"))
        self.json("grid", "up", "--dir", folder / "grid", "--hosts", "6")
        self.empty = on_disk(folder / "grid")

    def json(self, *args):
        done = subprocess.run([self.program, "--json", *args], cwd=self.folder, env=self.env, capture_output=True)
        if done.returncode not in (0, 3):
            raise SystemExit(f"ckpt {args}: {done.stderr.decode()}")
        return json.loads(done.stdout)

    def save(self, image):
        return self.json("save", "--job", "1", "--keep", "1", image)["stored_bytes"]

    def restore(self, out):
        self.json("restore", "--job", "1", "-o", out)

    def held(self):
        return on_disk(self.folder / "grid") - self.empty

    def close(self):
        self.json("grid", "down", "--dir", self.folder / "grid")


class Restic:
    def __init__(self, _, folder):
        self.folder = folder
        self.env = dict(os.environ, HOME=str(folder), RESTIC_PASSWORD="p", RESTIC_REPOSITORY=str(folder / "repository"))
        self.run("init")

    def run(self, *args):
        subprocess.run(["restic", *args], env=self.env, check=True, **QUIET)

    def save(self, image):
        before = self.held()
        self.run("backup", image)
        added = self.held() - before
        self.run("forget", "--keep-last", "1", "--prune")
        return added

    def restore(self, out):
        self.run("restore", "latest", "--target", self.folder / "out")
        shutil.move(next(path for path in (self.folder / "out").rglob("*") if path.is_file()), out)

    def held(self):
        return on_disk(self.folder / "repository")

    def close(self):
        pass


class Borg:
    def __init__(self, _, folder):
        self.folder = folder
        self.env = dict(os.environ, HOME=str(folder), BORG_PASSPHRASE="p", BORG_REPO=str(folder / "repository"))
        self.run("init", "--encryption", "repokey-blake2")
        self.count = 0

    def run(self, *args, cwd=None):
        subprocess.run(["borg", *args], env=self.env, check=True, cwd=cwd, **QUIET)

    def save(self, image):
        self.count += 1
        before = self.held()
        self.run("create", f"::{self.count}", image.name, cwd=image.parent)
        added = self.held() - before
        self.run("prune", "--keep-last", "1")
        self.run("compact")
        return added

    def restore(self, out):
        (self.folder / "out").mkdir()
        self.run("extract", f"::{self.count}", cwd=self.folder / "out")
        shutil.move(next((self.folder / "out").iterdir()), out)

    def held(self):
        return on_disk(self.folder / "repository")

    def close(self):
        pass


def lammps_versions(folder, image):
    """Makes a version of the image each time that it is asked for the next."""
    with lammps.running(folder, cells=30) as program:
        while True:
            program.send_signal(signal.SIGCONT)
            time.sleep(1)
            lammps.dump(program.pid, image)
            # It stands still while the others work.
            program.send_signal(signal.SIGSTOP)
            yield


def training_versions(image, frozen):
    program = subprocess.Popen(
        [sys.executable, "-c", TRAINING, image, str(frozen)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        while True:
            print(file=program.stdin, flush=True)
            if not program.stdout.readline():
                raise SystemExit("PyTorch does not train")
            yield
    finally:
        program.kill()
        program.wait()


def race(name, args, folder):
    image = folder / "image"
    made = {
        "lammps": lambda: lammps_versions(folder, image),
        "training": lambda: training_versions(image, 0.0),
        "tuning": lambda: training_versions(image, 0.75),
    }
    savers, added, seconds = {}, {}, {}
    for kind in (Ckpt, Restic, Borg):
        home = folder / kind.__name__.lower()
        home.mkdir()
        savers[home.name] = kind(args.ckpt.resolve(), home)
        added[home.name], seconds[home.name] = [], []
    try:
        versions = made[name]()
        for version in range(args.versions):
            next(versions)
            order = list(savers)
            for who in order[version % 3 :] + order[: version % 3]:
                began = time.monotonic()
                added[who].append(savers[who].save(image))
                seconds[who].append(time.monotonic() - began)
        versions.close()
        whole = image.stat().st_size
        for who, saver in savers.items():
            out = folder / f"{who}.out"
            saver.restore(out)
            if not filecmp.cmp(out, image, shallow=False):
                raise SystemExit(f"{who} restored wrong bytes")
            later = range(1, args.versions)
            print(
                f"{name:9} {whole >> 20:4} MiB  {who:7} first {added[who][0] / whole:.3f}, later "
                f"{sum(added[who][i] for i in later) / len(later) / whole:.3f}, on disks {saver.held() / whole:.2f}, "
                f"{sum(seconds[who][i] for i in later) / len(later):.2f} s",
                flush=True,
            )
    finally:
        for saver in savers.values():
            saver.close()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ckpt", type=Path, required=True)
    parser.add_argument("--versions", type=int, default=20)
    parser.add_argument("--only", default="lammps,training,tuning")
    parser.add_argument("--dir", type=Path)
    args = parser.parse_args()
    for name in args.only.split(","):
        with tempfile.TemporaryDirectory(dir=args.dir) as folder:
            race(name, args, Path(folder))


main()
