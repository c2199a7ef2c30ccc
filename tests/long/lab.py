"""What the long measurements share: a grid on this machine, jobs under `ckpt run`, a daemon that is played."""

import json
import os
import shutil
import socket
import subprocess
import tempfile
import threading
import time
from pathlib import Path

TICKS = os.sysconf("SC_CLK_TCK")

# How long anything is waited for.
PATIENCE_S = 120


class Lab:
    """A grid of five daemons in a directory of its own; all of it goes at the end."""

    def __init__(self, ckpt, hosts=5, under=None):
        self.ckpt = str(Path(ckpt).resolve())
        self.dir = Path(tempfile.mkdtemp(prefix="ckpt-long-", dir=under))
        self.env = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("CKPT_", "SLURM_", "_CONDOR_"))
        }
        self.env |= {"CKPT_STATE_DIR": str(self.dir / "memory"), "HOME": str(self.dir)}
        self.grid = self.dir / "grid"
        self.run("grid", "up", "--dir", self.grid, "--hosts", hosts)
        self.env["CKPT_GRID"] = str(self.grid / "grid.toml")

    def run(self, *args, check=True, env=None, **kwargs):
        args = [self.ckpt, *map(str, args)]
        done = subprocess.run(args, env=env or self.env, capture_output=True, timeout=600, **kwargs)
        if check and done.returncode != 0:
            raise RuntimeError(f"{args}: {done.returncode}: {done.stderr.decode()}")
        return done

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.run("grid", "down", "--dir", self.grid, check=False)
        shutil.rmtree(self.dir, ignore_errors=True)


class Machine:
    """A machine that runs jobs: a directory for their files, and a memory of its own."""

    def __init__(self, lab, name):
        self.lab = lab
        self.dir = lab.dir / name
        self.dir.mkdir(parents=True)
        self.state = self.dir / "state"
        self.env = lab.env | {
            "CKPT_STATE_DIR": str(self.dir / "memory"),
            "CKPT_GUEST_SOCKET": str(self.dir / "guests.sock"),
        }
        self.supervisor = None

    def start(self, job, options, command):
        args = [self.lab.ckpt, "--json", "run", "--job", job, *options, "--", *map(str, command)]
        self.err = self.dir / "err"
        with open(self.err, "wb") as err:
            self.supervisor = subprocess.Popen(
                args, env=self.env, cwd=self.dir, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=err
            )
        self.job = job
        return self.supervisor

    def end(self, patience=PATIENCE_S):
        """The exit status, and the report."""
        code = self.supervisor.wait(patience)
        lines = self.err.read_text(errors="replace").splitlines()
        reports = [line for line in lines if line.startswith("{")]
        if not reports:
            raise RuntimeError(f"{self.dir}: status {code}, no report: {lines[-5:]}")
        return code, json.loads(reports[-1])

    def entries(self, event):
        path = self.dir / "memory" / "run" / self.job / "journal.jsonl"
        if not path.exists():
            return []
        found = []
        for line in path.read_text().splitlines():
            try:
                entry = json.loads(line)
            except ValueError:
                continue
            if entry.get("event") == event:
                found.append(entry)
        return found

    def remove(self):
        shutil.rmtree(self.dir, ignore_errors=True)


def wait_for(what, is_so, patience=PATIENCE_S):
    end = time.monotonic() + patience
    while True:
        found = is_so()
        if found:
            return found
        if time.monotonic() > end:
            raise TimeoutError(f"waited for: {what}")
        time.sleep(0.05)


class Daemon:
    """The daemon of a machine, played: it says what it is asked to, each second."""

    def __init__(self, path):
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.bind(str(path))
        self.socket.listen()
        self.lock = threading.Lock()
        self.stopped = threading.Event()
        self.saying = {}
        threading.Thread(target=self.serve, daemon=True).start()

    def says(self, **what):
        with self.lock:
            self.saying = what

    def serve(self):
        try:
            guest = self.socket.accept()[0]
            while not self.stopped.is_set():
                report = {
                    "at": int(time.time()),
                    "state": "idle",
                    "load": 0,
                    "contended_load": 0,
                    "thresholds": [0.2, 0.6],
                    "free_memory_bytes": 1 << 30,
                    "withheld": None,
                    "leaving": None,
                }
                with self.lock:
                    report |= self.saying
                guest.sendall(json.dumps({"report": report}).encode() + b"\n")
                self.stopped.wait(0.5)
        except OSError:
            # The guest has gone.
            pass

    def close(self):
        self.stopped.set()
        self.socket.close()


def stat(pid):
    """State, and CPU ticks with those of children that were waited for; None when it is gone."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    fields = text.rsplit(")", 1)[1].split()
    return fields[0], sum(map(int, fields[11:15]))


def is_alive(pid):
    found = stat(pid)
    return found is not None and found[0] not in "ZX"


def who_runs(path):
    """Process ids of all that have this path in their command line."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                if str(path).encode() in (entry / "cmdline").read_bytes():
                    found.append(int(entry.name))
            except OSError:
                pass
    return found
