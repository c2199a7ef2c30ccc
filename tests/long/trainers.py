#!/usr/bin/env python3
"""Trainers and array libraries that save to a grid: each is killed with SIGKILL in a save, and goes on from a whole step.

    tests/long/trainers.py [NAME...] [--ckpt PROGRAM] [--stall MIB] [--gpu-stall MIB] [--under DIR]

For each program: a grid of five hosts on this machine; `trainer_jobs.py` trains until it has saved, and is killed when
it begins to save again; it starts anew in an empty directory, as on another machine, and has to go on from a step whose
tensors (model and optimizer) are those of before, bit for bit. The Trainer with `enable_jit_checkpoint` gets SIGTERM
under `ckpt run`, and may lose the step that it is in, no other. With a GPU the tensors are there.

`--stall` measures how long `dcp.async_save` of so many MiB holds the training up, on `ckpt://` and in a local directory.
`--gpu-stall` does so for what saves a model of so many MiB, beside `torch.save` to a local directory (without a GPU: in
memory). Both take the place of the programs, unless some are named.

It uses the Python that runs it and what is installed there: module `ckpt` (or PYTHONPATH), PyTorch, the programs. What
is missing is said, and is not a failure. Ends with 1 if a program fails.
"""

import argparse
import importlib.metadata
import importlib.util
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from lab import PATIENCE_S, Lab, wait_for  # noqa: E402

JOBS = Path(__file__).resolve().parent / "trainer_jobs.py"

# More steps than a program makes before it is killed, and those that it makes after it has gone on.
FOREVER = 1_000_000
MORE = 12

# Name of each program, the packages it needs, and what runs beside it.
PROGRAMS = {
    "transformers": (["transformers", "accelerate"], None),
    "transformers_watch": (["transformers", "accelerate"], "watch"),
    "transformers_jit": (["transformers", "accelerate"], "run"),
    "lightning": (["lightning|pytorch_lightning"], None),
    "dcp": ([], None),
    "dcp_thread": ([], None),
    "dcp_process": ([], None),
    "torchtitan": (["torchtitan"], None),
    "safetensors": (["safetensors"], None),
    "zarr": (["zarr"], None),
    "xarray": (["xarray", "zarr"], None),
    "ray_train": (["ray", "pyarrow"], None),
    "deepspeed": (["deepspeed"], "watch"),
}
NOT_WRITTEN = {"torchtitan's trainer": "it needs a GPU and a tokenizer from a hub; its checkpoint manager is tried"}


def version_of(packages):
    """`NAME VERSION` of packages, of which each is `A` or `A|B`; `None` and what is missing if one is not there."""
    found = []
    for names in packages:
        here = [name for name in names.split("|") if importlib.util.find_spec(name)]
        if not here:
            return None, names.replace("|", " or ")
        found.append(f"{here[0]} {importlib.metadata.version(here[0].replace('_', '-'))}")
    return ", ".join(found), None


def free_port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


class Started:
    """A program that runs in a directory of its own, with all that it starts in a group of processes."""

    def __init__(self, lab, name, job, where, steps, before=()):
        self.where = lab.dir / where
        self.where.mkdir(parents=True, exist_ok=True)
        self.events_file = self.where / "events"
        self.events_file.touch()
        env = lab.env | {
            "EVENTS": str(self.events_file),
            "PORT": str(free_port()),
            "CKPT_STATE_DIR": str(self.where / "memory"),
            "TOKENIZERS_PARALLELISM": "false",
        }
        command = [*before, sys.executable, str(JOBS), name, job, str(steps)]
        self.log = self.where / "log"
        with open(self.log, "wb") as log:
            self.child = subprocess.Popen(
                command, cwd=self.where, env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )

    def events(self, kind):
        lines = [line.split() for line in self.events_file.read_text().splitlines()]
        return [line[1:] for line in lines if line[0] == kind]

    def is_up(self):
        if self.child.poll() is not None:
            raise RuntimeError(f"ended with {self.child.returncode}: {self.tail()}")

    def tail(self):
        return " | ".join(self.log.read_text(errors="replace").splitlines()[-6:])

    def kill(self, sent=signal.SIGKILL):
        try:
            os.killpg(self.child.pid, sent)
        except ProcessLookupError:
            pass
        return self.child.wait(PATIENCE_S)

    def wait(self):
        status = self.child.wait(10 * PATIENCE_S)
        if status:
            raise RuntimeError(f"ended with {status}: {self.tail()}")


def is_saved(lab, started, job):
    """Whether a version of the job is committed; the program itself knows that of files of `ckpt://`."""
    started.is_up()
    if started.events("saved"):
        return True
    return lab.run("show", "--job", job, check=False).returncode in (0, 3)


def in_a_save(lab, started, job):
    """Waits until a checkpoint is saved and the next one has begun."""
    wait_for("a first checkpoint", lambda: is_saved(lab, started, job), 5 * PATIENCE_S)
    known = len(started.events("state"))

    def next_one():
        started.is_up()
        return len(started.events("state")) > known

    wait_for("the next checkpoint", next_one)


def watcher(lab, job, started):
    out = started.where / "out"
    out.mkdir(exist_ok=True)
    command = [lab.ckpt, "watch", "--job", job, str(out)]
    with open(started.where / "watch.log", "wb") as log:
        return subprocess.Popen(command, env=lab.env, stdout=log, stderr=log)


def killed_and_resumed(lab, name, beside):
    """Returns the step from which the program went on, and the one before which it was killed."""
    job = f"job-{name}"
    if beside == "run":
        return evicted_and_resumed(lab, name, job)
    first = Started(lab, name, job, f"{name}-1", FOREVER)
    watch = watcher(lab, job, first) if beside == "watch" else None
    try:
        in_a_save(lab, first, job)
    finally:
        first.kill()
        if watch:
            watch.kill()
            watch.wait()
    before = {tuple(pair) for pair in first.events("state")}
    if watch:
        out = lab.dir / f"{name}-2" / "out"
        out.mkdir(parents=True)
        lab.run("restore", "--job", job, "-o", out)
    second = Started(lab, name, job, f"{name}-2", MORE)
    second.wait()
    resumed = second.events("resumed")
    if not resumed:
        raise RuntimeError(f"began anew: {second.tail()}")
    if tuple(resumed[0]) not in before:
        raise RuntimeError(f"went on from {resumed[0]}, which is no step that was saved")
    step, last = int(resumed[0][0]), max(int(pair[0]) for pair in before)
    end = int(second.events("end")[0][0])
    if end < step + MORE:
        raise RuntimeError(f"ended at step {end}, not {step + MORE}")
    return step, last


def evicted_and_resumed(lab, name, job):
    """The same under `ckpt run`, with SIGTERM. The Trainer writes its checkpoint before it ends the step that it is in."""
    run = [lab.ckpt, "run", "--batch", "--job", job, "--files", "out", "--"]
    first = Started(lab, name, job, f"{name}-1", FOREVER, before=run)
    wait_for("ten steps", lambda: first.is_up() or len(first.events("state")) >= 10, 5 * PATIENCE_S)
    os.kill(first.child.pid, signal.SIGTERM)
    status = first.child.wait(PATIENCE_S)
    if status != 75:
        raise RuntimeError(f"ckpt run ended with {status}, not 75: {first.tail()}")
    second = Started(lab, name, job, f"{name}-2", MORE, before=run)
    second.wait()
    resumed, last = second.events("resumed"), first.events("state")[-2:]
    if len(resumed) != 1 or resumed[0] not in last:
        raise RuntimeError(f"went on from {resumed}, but the last steps were {last}")
    return int(resumed[0][0]), int(last[-1][0])


def try_programs(names, ckpt, under):
    failed, skipped = [], []
    for name in names:
        packages, beside = PROGRAMS[name]
        versions, lacking = version_of(["torch", *packages])
        if lacking:
            skipped.append(f"{name}: {lacking} is not installed")
            continue
        began = time.monotonic()
        try:
            with Lab(ckpt, under=under) as lab:
                step, last = killed_and_resumed(lab, name, beside)
            print(f"ok      {name:20} went on from step {step}, killed after {last}; "
                  f"{time.monotonic() - began:.0f} s; {versions}", flush=True)
        except Exception as failure:
            failed.append(name)
            print(f"FAILED  {name:20} {failure}; {versions}", flush=True)
    for what in skipped + [f"{name}: {why}" for name, why in NOT_WRITTEN.items()]:
        print(f"!!! NOT TRIED HERE: {what} !!!", flush=True)
    return failed


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(PROGRAMS))
    parser.add_argument("--ckpt", default=shutil.which("ckpt"), help="the program (default: ckpt of the PATH)")
    parser.add_argument("--under", help="directory for the grid's disks and the programs' files")
    parser.add_argument("--stall", type=int, metavar="MIB")
    parser.add_argument("--gpu-stall", type=int, metavar="MIB")
    given = parser.parse_args()
    unknown = set(given.names) - set(PROGRAMS)
    if unknown or not given.ckpt:
        parser.error(f"unknown: {', '.join(unknown)}" if unknown else "no program: use --ckpt")
    given.ckpt = str(Path(given.ckpt).resolve())
    # What the jobs start: `ckpt`, and tools beside Python.
    programs = [str(Path(given.ckpt).parent), str(Path(sys.executable).parent), os.environ["PATH"]]
    os.environ["PATH"] = os.pathsep.join(programs)
    failed = []
    measures = [("stall", given.stall), ("gpu_stall", given.gpu_stall)]
    if given.names or not any(mib for _, mib in measures):
        failed += try_programs(given.names or PROGRAMS, given.ckpt, given.under)
    for name, mib in measures:
        if mib:
            with Lab(given.ckpt, under=given.under) as lab:
                command = [sys.executable, str(JOBS.with_name("trainer_stalls.py")), name, str(mib), str(lab.dir / "local")]
                env = lab.env | {"PORT": str(free_port())}
                if subprocess.run(command, env=env).returncode:
                    failed.append(name)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
