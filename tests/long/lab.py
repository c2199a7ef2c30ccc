"""Shared by the long measurements: a grid on this machine, jobs under `ckpt run`, a substitute daemon."""

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

TICKS = os.sysconf("SC_CLK_TCK")

# Longest wait for any state, in seconds.
PATIENCE_S = 120


class Lab:
    """A grid of daemons (five by default) in a directory of its own, which is removed at the end.

    With `lines`, each host has a network namespace and a line of so many Mbit/s each way. This process has to be in a
    namespace of its own (again_on_a_line), which has a bridge then, and is not limited.
    """

    def __init__(self, ckpt, hosts=5, under=None, lines=None):
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
        self.daemons = []
        if lines:
            self.run("grid", "down", "--dir", self.grid)
            ip("link add br0 type bridge")
            ip("address add 10.77.0.254/24 dev br0")
            ip("link set br0 up")
            (self.dir / "ckpt-store").symlink_to(self.ckpt)
            for number in range(1, hosts + 1):
                self.add_line(number, lines)
            for number in range(1, hosts + 1):
                self.start_on_line(number)

    def space(self, host):
        """The network namespace of a host."""
        return f"ckpt-long-{os.getpid()}-{host}"

    def add_line(self, number, mbit):
        """Makes the namespace of a host, and lists the host with its address there."""
        host, port = f"h{number:02}", f"p{number}"
        space, data = self.space(host), self.grid / "hosts" / host
        ip(f"netns add {space}")
        ip(f"link add {port} type veth peer name eth0 netns {space}")
        ip(f"link set {port} master br0 up")
        for line in ["link set lo up", f"address add 10.77.0.{number}/24 dev eth0", "link set eth0 up"]:
            ip(f"-netns {space} {line}")
        shape = f"root tbf rate {mbit}mbit burst 128kb latency 100ms"
        for place, device in [([], port), (["ip", "netns", "exec", space], "eth0")]:
            subprocess.run([*place, "tc", "qdisc", "add", "dev", device, *shape.split()], check=True)
        key = (self.grid / "grid.toml").read_text().split(f'name = "{host}"')[1].split('id = "')[1].split('"')[0]
        sign = ["--offline", "--role", "donor", "--pubkey", key, "--name", host, "--addr", f"10.77.0.{number}:7000"]
        self.run("grid", "sign", "--dir", self.grid, *sign, "-o", data / "identity.crt")

    def start_on_line(self, number):
        host = f"h{number:02}"
        data = self.grid / "hosts" / host
        ready = data / "ready"
        serve = ["--grid", self.grid / "grid.toml", "--data", data, "--listen", f"10.77.0.{number}:7000"]
        serve += ["--ready-file", ready, "--normal-priority", "--no-stand-back", "--quota", "100%"]
        args = ["ip", "netns", "exec", self.space(host), self.dir / "ckpt-store", "serve", *serve]
        quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        self.daemons.append(subprocess.Popen([*map(str, args)], env=self.env, **quiet))
        wait_for("the daemon is ready", ready.exists)

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
        for number, daemon in enumerate(self.daemons, 1):
            daemon.terminate()
            daemon.wait()
            ip(f"netns delete {self.space(f'h{number:02}')}")
        shutil.rmtree(self.dir, ignore_errors=True)


class Machine:
    """A machine that runs a job: a directory for the job's files and for the state of `ckpt`."""

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
        """Waits until the supervisor ends; returns its exit status and its report."""
        code = self.supervisor.wait(patience)
        lines = self.err.read_text(errors="replace").splitlines()
        reports = [line for line in lines if line.startswith("{")]
        if not reports:
            raise RuntimeError(f"{self.dir}: status {code}, no report: {lines[-5:]}")
        return code, json.loads(reports[-1])

    def entries(self, event):
        return entries(self.dir / "memory" / "run" / self.job / "journal.jsonl", event)

    def remove(self):
        shutil.rmtree(self.dir, ignore_errors=True)


def entries(path, event):
    """The entries of this kind in a journal; none if there is no journal."""
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


def ip(line):
    subprocess.run(["ip", *line.split()], check=True)


def again_on_a_line(mbit=None):
    """Runs this program again, with --inside, in a network namespace whose loopback carries this many Mbit/s.

    Needs root, ip and tc. Returns the exit status.
    """
    space = f"ckpt-long-{os.getpid()}"
    inside = ["ip", "netns", "exec", space]
    shape = ["tc", "qdisc", "add", "dev", "lo", "root", "tbf", "rate", f"{mbit}mbit", "burst", "128kb", "latency", "100ms"]
    subprocess.run(["ip", "netns", "add", space], check=True)
    try:
        subprocess.run([*inside, "ip", "link", "set", "lo", "up"], check=True)
        if mbit:
            subprocess.run([*inside, *shape], check=True)
        return subprocess.run([*inside, sys.executable, *sys.argv, "--inside"]).returncode
    finally:
        subprocess.run(["ip", "netns", "delete", space])


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
    """A substitute for the machine's daemon: every half second, reports what it was given by says()."""

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
            # The guest has closed the connection.
            pass

    def close(self):
        self.stopped.set()
        self.socket.close()


def stat(pid):
    """The state and the CPU ticks of a process, with children that it waited for; None if it is gone."""
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
    """Ids of the processes that have this path in their command line, without this one."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                if str(path).encode() in (entry / "cmdline").read_bytes():
                    found.append(int(entry.name))
            except OSError:
                pass
    return found
