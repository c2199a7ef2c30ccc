#!/usr/bin/env python3
"""Evicts real jobs under `ckpt run`, and under the script packaging/ckpt-job.sh, and measures what is lost.

    cargo build --release -p ckpt -p tests --bin ckpt --bin hash-job
    tests/long/evictions.py [--count 300] [--script 24] [--minutes 30] [--seed 1] [--at-a-time 4]
        [--programs target/release] [--dir DIR]

Needs 2 cores, 4 GiB of memory and 20 GiB in DIR (/tmp); takes some 20 minutes on two cores, and begins no
eviction after --minutes. Each eviction has a seed of its own and can be repeated by --seed and --count 1.

A job hashes its way (one step in 10 ms) and keeps 1 to 256 MiB of state, all of which changes. The job is
evicted 3 to 10 s after its start, with a grace of 10 to 60 s: by load, by short memory or by a drain of its
machine, all of which a substitute for the machine's daemon reports; by SIGTERM; or by the notice of a cloud
(SIGUSR1). Then the job is started on another machine from what is in the grid, and checks its own state. Work
is counted in steps: steps that the next start has to repeat are lost. The jobs of the script write their state
at SIGTERM, because the script can ask in no other way; the same jobs also run under `ckpt run`.

The script prints: the share of jobs that left with a final checkpoint, among those whose forecast was at most
0.7 of the grace; how many jobs left too late; how many exited with 75 without the state that the job had; and
the work lost for each eviction. The latter is printed for `ckpt run`, for the script, and for a loop that
restores and saves every 600 s and handles no signal (it loses all work, as no job here gets that old). The
exit status is 1 if a target is missed.
"""

import argparse
import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

from lab import Daemon, Lab, Machine, is_alive, wait_for, who_runs

KINDS = ["load", "memory", "SIGTERM", "drain", "notice"]

# Time that the supervisor needs beyond the grace to end processes, and to notice states once a second.
KILL_S = 5
LOOK_S = 3

# How long a suspended job stays before it leaves (`--suspend`).
PATIENCE_S = 2

STEP_S = 0.01


def head(path):
    """The number of steps in a state file."""
    with open(path, "rb") as file:
        return int(file.read(64).split(b" ", 1)[0])


def began(machine):
    path = Path(f"{machine.state}.began")
    return [int(line) for line in path.read_text().split()] if path.exists() else []


def done(machine):
    """The number of steps that the job has done."""
    path = Path(f"{machine.state}.count")
    return int.from_bytes(path.read_bytes()[:8], "little") if path.exists() else 0


def words(draw):
    size = int(2 ** draw.uniform(20, 28))
    how = draw.choice(["write=replace", "write=place"])
    options, more = draw.choice(
        [
            (["--ask", "signal:USR2"], ["usr2", "every=0"]),
            (["--ask", "signal:USR2"], ["usr2", "every=200", "notify"]),
            (["--ask", "none"], ["term", "every=300"]),
        ]
    )
    return size, options, [*more, f"bytes={size}", how, "count"]


def words_for_script(draw):
    """Like words, for a job that writes its state at SIGTERM: the script can ask no other."""
    size, _, more = words(draw)
    return size, ["--ask", "none"], ["term", "every=300", *more[-3:]]


def evict(lab, hash_job, seed, as_in_script=False):
    draw = random.Random(seed)
    if as_in_script:
        job, kind = f"paired.{seed}", "SIGTERM"
        size, options, more = words_for_script(draw)
    else:
        job, kind = f"evicted.{seed}", draw.choice(KINDS)
        size, options, more = words(draw)
    grace = draw.randint(10, 60)
    here, there = Machine(lab, f"here{seed}"), Machine(lab, f"there{seed}")
    daemon = None
    try:
        options = ["--files", str(here.state), "--grace", f"{grace}s", *options]
        if kind in ("SIGTERM", "notice"):
            options.append("--batch")
        else:
            daemon = Daemon(here.dir / "guests.sock")
            # The machine's real load counts only for jobs to be evicted by load: no load is above 100%.
            options += ["--suspend", f"{PATIENCE_S}s", "--suspend-cpu-usage", "100"]
        here.start(job, options, [hash_job, here.state, *more])
        wait_for("the job", lambda: began(here) or here.supervisor.poll() is not None)
        time.sleep(draw.uniform(3, 10))
        at = time.monotonic()
        if kind == "SIGTERM":
            here.supervisor.send_signal(signal.SIGTERM)
        elif kind == "notice":
            here.supervisor.send_signal(signal.SIGUSR1)
        elif kind == "load":
            daemon.says(withheld={"why": "paused", "for_s": 600})
        elif kind == "memory":
            daemon.says(state="no_memory")
        else:
            daemon.says(leaving={"how": "drain", "within_s": grace})
        code, report = here.end()
        took = time.monotonic() - at
        left = [pid for pid in who_runs(here.state) if is_alive(pid)]
        worked, state = done(here), head(here.state) if here.state.exists() else None
        last = report.get("last") or {}
        result = {
            "seed": seed,
            "kind": kind,
            "bytes": size,
            "grace": grace,
            "code": code,
            "took": took,
            "left": left,
            "worked": worked,
            "forecast": last.get("expected_seconds"),
            "version": report.get("version"),
            "why": report.get("why"),
        }
        there.start(
            job,
            ["--files", str(there.state), "--batch", "--after-success", "forget"],
            [hash_job, there.state, f"end={(state or 0) + 3}"],
        )
        again, report = there.end()
        if again != 0:
            raise RuntimeError(f"the next one ended with {again}: {there.err.read_text()}")
        result["began"] = (began(there) or [0])[0]
        result["wrong"] = code == 75 and result["began"] != state
        result["late"] = took > grace + KILL_S + LOOK_S + (PATIENCE_S if kind == "load" else 0)
        return result
    finally:
        if daemon:
            daemon.close()
        for machine in (here, there):
            if machine.supervisor and machine.supervisor.poll() is None:
                machine.supervisor.kill()
            machine.remove()
        lab.run("forget", "--job", job, "--all", check=False)


def evict_from_script(lab, script, hash_job, seed):
    """Like evict, for a job in the script, which is evicted by SIGTERM only."""
    draw = random.Random(seed)
    _, _, more = words_for_script(draw)
    job, here, there = f"script.{seed}", Machine(lab, f"s{seed}"), Machine(lab, f"t{seed}")
    env = here.env | {"PATH": f"{Path(lab.ckpt).parent}:{os.environ['PATH']}"}
    try:
        command = ["sh", str(script), job, str(here.state), hash_job, str(here.state), *more]
        with open(here.dir / "err", "wb") as err:
            running = subprocess.Popen(command, env=env, stdin=subprocess.DEVNULL, stdout=err, stderr=err)
        wait_for("the job", lambda: began(here))
        time.sleep(draw.uniform(3, 10))
        running.send_signal(signal.SIGTERM)
        running.wait(180)
        worked = done(here)
        lab.run("restore", "--job", job, "--if-exists", "-o", there.state)
        return {"worked": worked, "began": head(there.state) if there.state.exists() else 0}
    finally:
        for machine in (here, there):
            machine.remove()
        lab.run("forget", "--job", job, "--all", check=False)


def in_turn(at_a_time, until, seeds, one):
    """Calls one(seed) for all seeds, some at a time; returns the results, and the seeds that failed."""
    results, failures, lock = [], [], threading.Lock()
    seeds = iter(seeds)

    def work():
        while time.monotonic() < until:
            with lock:
                seed = next(seeds, None)
            if seed is None:
                return
            try:
                result = one(seed)
            except Exception as cause:
                with lock:
                    failures.append((seed, cause))
                print(f"seed {seed}: {cause}", file=sys.stderr, flush=True)
                continue
            with lock:
                results.append(result)
                if len(results) % 10 == 0:
                    print(f"{len(results)} done", file=sys.stderr, flush=True)

    threads = [threading.Thread(target=work) for _ in range(at_a_time)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results, failures


def mean_lost(results):
    return STEP_S * sum(one["worked"] - one["began"] for one in results) / max(1, len(results))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--script", type=int, default=24)
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--at-a-time", type=int, default=4)
    parser.add_argument("--programs", type=Path, default="target/release")
    parser.add_argument("--dir", type=Path)
    args = parser.parse_args()
    hash_job = str((args.programs / "hash-job").resolve())
    script = Path(__file__).resolve().parents[2] / "packaging/ckpt-job.sh"
    until = time.monotonic() + 60 * args.minutes
    seeds = range(args.seed, args.seed + args.count)
    with Lab(args.programs / "ckpt", under=args.dir) as lab:
        scripted, script_failures = in_turn(
            args.at_a_time,
            until,
            range(args.seed, args.seed + args.script),
            lambda seed: evict_from_script(lab, script, hash_job, seed),
        )
        paired, paired_failures = in_turn(
            args.at_a_time,
            until,
            range(args.seed, args.seed + args.script),
            lambda seed: evict(lab, hash_job, seed, as_in_script=True),
        )
        results, failures = in_turn(args.at_a_time, until, seeds, lambda seed: evict(lab, hash_job, seed))
    can = [one for one in results if one["forecast"] is not None and one["forecast"] <= 0.7 * one["grace"]]
    saved = [one for one in can if one["code"] == 75]
    wrong = [one for one in results if one["wrong"]]
    late = [one for one in results if one["late"] or one["left"]]
    for one in results:
        if one in wrong or one in late or (one in can and one not in saved):
            print(one)
    print(f"evictions: {len(results)}", {kind: sum(one["kind"] == kind for one in results) for kind in KINDS})
    print(f"that could not be looked at: {len(failures) + len(script_failures) + len(paired_failures)}")
    print(f"statuses: { {code: sum(one['code'] == code for one in results) for code in {o['code'] for o in results}} }")
    print(f"forecast <= 0.7 grace: {len(can)}; with a final checkpoint: {len(saved)} ({100 * len(saved) / max(1, len(can)):.1f}%)")
    print(f"gone too late, or something left: {len(late)}")
    print(f"75 without the state that the job had: {len(wrong)}")
    loop = STEP_S * sum(one["worked"] for one in results) / max(1, len(results))
    run = mean_lost(results)
    print(f"work lost for each eviction: ckpt run {run:.2f} s; the loop {loop:.2f} s; ratio {run / max(loop, 1e-9):.3f}")
    print(f"the script, {len(scripted)} evictions by SIGTERM: {mean_lost(scripted):.2f} s")
    print(f"ckpt run, the same {len(paired)} jobs evicted by SIGTERM: {mean_lost(paired):.2f} s")
    # Fewer are no evidence.
    enough = len(can) >= 20
    well = enough and not wrong and not late and not failures and not script_failures and not paired_failures and len(saved) >= 0.95 * len(can) and run <= loop / 5
    sys.exit(0 if well else 1)


if __name__ == "__main__":
    main()
