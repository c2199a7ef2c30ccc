#!/usr/bin/env python3
"""Evicts jobs as they are under `ckpt run`, and checks what `docs/use/run.md` promises of them.

    cargo build -p ckpt --bin ckpt
    tests/long/jobs_as_they_are.py [--count 300] [--seed 1] [--at-a-time 4] [--minutes 30] [--programs target/debug]

Each eviction has a seed of its own and is repeated by --seed and --count 1. A job counts, and keeps its count in its
state directory in one of the ways of JOBS; it is evicted in one of the ways of BLOWS, on ext4 or whatever --dir is on,
or on tmpfs. Then its state is restored, and compared with the last count. For each eviction:

- the state is never torn: it is a count that the job had. A state that is not known to be whole has the mark;
- no work is lost without a line that names the cause, and no more than since the last line that says that work is not
  saved, or, where there is none, than since a look at the files (GAP counts);
- `ckpt run` is gone by the grace and the time to kill, with 75 or 76, and no process of the job is left.

The exit status is 1 if one of them is not so.
"""

import argparse
import json
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

from lab import Daemon, Lab, Machine, is_alive, wait_for, who_runs

STEP_S = 0.1
# Counts that may lie between a look at the files and the eviction: looks are a second apart, on a busy machine three.
GAP = 40
GRACE_S = 15
KILL_S = 20

JOB = r"""
import mmap, os, signal, subprocess, sys, time
kind, state, step = sys.argv[1], sys.argv[2], float(sys.argv[3])
os.makedirs(state, exist_ok=True)
path = os.path.join(state, "n")
n = int(open(path, "rb").read().split()[0]) if os.path.exists(path) else 0
def replace(n):
    with open(path + ".new", "w") as new:
        new.write(f"{n} " + "x" * 1000 + f" {n}")
    os.rename(path + ".new", path)
def place(n):
    with open(path, "w") as there:
        there.write(f"{n} ")
        there.flush()
        time.sleep(0.02)
        there.write("x" * 1000 + f" {n}")
def leave(*_):
    replace(n)
    sys.exit(0)
if kind == "handler":
    signal.signal(signal.SIGTERM, leave)
if kind == "ignores":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
if kind == "forks":
    subprocess.Popen(["sh", "-c", "trap '' HUP; while :; do sleep 1; done"])
if kind == "log":
    log = open(os.path.join(state, "log"), "a")
if kind == "maps":
    # A cache that is mapped; --exclude leaves it out.
    with open(os.path.join(state, "cache"), "wb") as cache:
        cache.truncate(4096)
    cache = open(os.path.join(state, "cache"), "r+b")
    memory = mmap.mmap(cache.fileno(), 4096)
while True:
    n += 1
    if kind == "handler":
        pass
    elif kind == "place":
        if n % 30 == 0:
            place(n)
    else:
        replace(n)
    if kind == "log":
        log.write("line\n"), log.flush()
    if kind == "maps":
        memory[n % 4096] = 1
    with open(state + ".count", "w") as count:
        count.write(f"{n} ")
    time.sleep(step)
"""

# Kind of job: its options.
JOBS = {
    "handler": [],
    "none": [],
    "ignores": [],
    "forks": [],
    "log": [],
    "place": [],
    "fast": [],
    "maps": ["--exclude", "cache"],
    "container": [],
}
BLOWS = ["TERM", "TERM+HUP", "twice", "restore", "save", "suspended"]


def count(machine):
    try:
        return int((machine.dir / "st.count").read_text().split()[0])
    except (OSError, IndexError, ValueError):
        return 0


def read_state(path):
    """The count in a restored state, or None if it is torn."""
    words = path.read_bytes().split()
    whole = len(words) == 3 and words[0] == words[2] and len(words[1]) == 1000
    return int(words[0]) if whole else None


def blow(here, kind, daemon):
    """Evicts the job, and returns when that began."""
    run = here.supervisor
    if kind == "suspended":
        daemon.says(withheld={"why": "paused", "for_s": 600})
        wait_for("the suspension", lambda: here.entries("suspended") or run.poll() is not None, 60)
        time.sleep(0.3)
    if kind == "save":
        wait_for("a save", lambda: here.entries("saving") or run.poll() is not None, 60)
    at = time.monotonic()
    run.send_signal(signal.SIGTERM)
    if kind == "TERM+HUP":
        run.send_signal(signal.SIGHUP)
    if kind == "twice":
        time.sleep(0.2)
        run.send_signal(signal.SIGTERM)
    return at


def restored(lab, here, job):
    """What is in the grid: the count, or None, whether it is torn, and whether it is marked."""
    back = here.dir / "back"
    shutil.rmtree(back, ignore_errors=True)
    got = lab.run("restore", "--job", job, "-o", back, check=False, env=here.env)
    if got.returncode != 0:
        return None, False, False
    shown = lab.run("--json", "list", "--job", job, check=False, env=here.env)
    marked = any(one.get("marked") for one in json.loads(shown.stdout).get("checkpoints", []))
    path = back / "n"
    if not path.exists():
        return 0, False, marked
    found = read_state(path)
    return found, found is None, marked


def evict(lab, seed, place):
    draw = random.Random(seed)
    kind = draw.choice(list(JOBS))
    how = draw.choice(BLOWS)
    root = draw.choice(place)
    if how == "save" and kind == "handler":
        how = "TERM"
    here = Machine(lab, f"m{seed}")
    if root is not None:
        # The job's directory is on another file system.
        there = Path(root) / f"ckpt-{lab.dir.name}-m{seed}"
        there.mkdir()
        (here.dir / "st").symlink_to(there)
    job = f"as-they-are-{seed}"
    options = [*JOBS[kind], "--files", str(here.dir / "st"), "--grace", f"{GRACE_S}s", "--progress", "json"]
    daemon = None
    if how == "suspended":
        daemon = Daemon(here.dir / "guests.sock")
        options += ["--suspend", "never", "--suspend-cpu-usage", "100"]
    else:
        options.append("--batch")
    if draw.random() < 0.5 or how == "save":
        options += ["--mtbf", "4s"]
    step = 0.05 if kind == "fast" else STEP_S
    command = [sys.executable, "-c", JOB, kind, here.dir / "st", step]
    if kind == "container":
        command = ["unshare", "-m", *command]
    try:
        if how == "restore":
            # Another eviction while the state of the first is restored.
            (here.dir / "old").mkdir()
            (here.dir / "old" / "n").write_text("7 " + "x" * 1000 + " 7")
            with open(here.dir / "old" / "big", "wb") as big:
                big.write(random.Random(seed).randbytes(20 << 20))
            lab.run("save", "--job", job, here.dir / "old", env=here.env)
        here.start(job, options, command)
        if how == "restore":
            time.sleep(draw.uniform(0.02, 0.3))
        else:
            wait_for("the job", lambda: count(here) > 0 or here.supervisor.poll() is not None, 60)
            time.sleep(draw.uniform(1, 6))
        at = blow(here, how, daemon)
        code = here.supervisor.wait(120)
        took = time.monotonic() - at
        last = count(here)
        found, torn, marked = restored(lab, here, job)
        lines = here.err.read_text(errors="replace")
        faults = []
        # The signal came before the program had set up anything.
        unborn = code == -signal.SIGTERM and not lines
        if code not in (75, 76) and not unborn:
            faults.append(f"status {code}")
        if torn and not marked:
            faults.append("a torn state without a mark")
        if took > GRACE_S + KILL_S:
            faults.append(f"gone after {took:.1f} s")
        if who_runs(here.dir / "st"):
            faults.append("the job is still there")
        kept = 7 if how == "restore" and last == 0 else (found or 0)
        lost = max(0, last - kept)
        explained = '"event":"no_checkpoint"' in lines or '"obstacle":"' in lines or "--files" in lines
        # A job that writes its state each 30 counts can't lose less.
        least = GAP + (30 if kind == "place" else 0)
        if not torn and lost > least and not explained:
            faults.append(f"{lost} of {last} counts are lost without a line")
        if code == 75 and not torn and lost > least and last > 0 and found:
            faults.append(f"75, and {lost} of {last} counts are lost")
        where = "tmpfs" if root else "disk"
        print(f"seed {seed}: {kind}, {how}, {where}: status {code} in {took:.1f} s, {kept} of {last} kept", flush=True)
        if faults:
            print(f"FAULT seed {seed}: {'; '.join(faults)}\n{lines[-3000:]}", flush=True)
        return kind, how, not faults, lost
    finally:
        if daemon:
            daemon.close()
        if here.supervisor and here.supervisor.poll() is None:
            here.supervisor.kill()
        if root is not None:
            shutil.rmtree(Path(root) / f"ckpt-{lab.dir.name}-m{seed}", ignore_errors=True)
        shutil.rmtree(here.dir, ignore_errors=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--at-a-time", type=int, default=4)
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--programs", default="target/debug")
    args = parser.parse_args()
    can_unshare = subprocess.run(["unshare", "-m", "true"], capture_output=True).returncode == 0
    if not can_unshare:
        print("NOT TRIED HERE: a job in a mount namespace")
        del JOBS["container"]
    place = [None, "/dev/shm"] if Path("/dev/shm").is_dir() else [None]
    seeds = iter(range(args.seed, args.seed + args.count))
    end = time.monotonic() + 60 * args.minutes
    lock = threading.Lock()
    done = []
    with Lab(str(Path(args.programs).resolve() / "ckpt")) as lab:

        def work():
            while time.monotonic() < end:
                with lock:
                    seed = next(seeds, None)
                if seed is None:
                    return
                try:
                    result = evict(lab, seed, place)
                except Exception as cause:
                    result = ("?", "?", False, 0)
                    print(f"FAULT seed {seed}: {cause!r}", flush=True)
                with lock:
                    done.append(result)

        threads = [threading.Thread(target=work) for _ in range(args.at_a_time)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    bad = [one for one in done if not one[2]]
    print(f"{len(done)} evictions, {len(bad)} faults")
    for kind in sorted({one[0] for one in done}):
        of_kind = [one for one in done if one[0] == kind]
        most = max(one[3] for one in of_kind)
        print(f"  {kind}: {len(of_kind)}, at most {most} counts lost")
    sys.exit(1 if bad or not done else 0)


if __name__ == "__main__":
    main()
