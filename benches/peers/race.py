#!/usr/bin/env python3
"""A race between ckpt and other programs that people use for backups, on one machine, in one run.

    benches/peers/race.py --image A --next B [--random C] [--rounds 3] [--only ckpt,borg]

A is an image, B its next version, and C is incompressible. Each program saves A, then B, then C, and restores
B; programs with hosts restore B again with two of five hosts dead. In every round the programs take turns.
Printed are medians and ratios to ckpt: seconds, CPU seconds of clients and servers, peak memory of the client
and of the largest server, bytes over the loopback device and on disk. Programs that are not installed are
reported as missing: restic, borg, rsync, glusterfs-server from Debian, tahoe-lafs from PyPI (tahoe on the
PATH).

A restore is measured until its file is synced, which ckpt does by itself. Before a restore, clients drop what
they keep in memory of the save: GlusterFS is unmounted and mounted again, outside of the measured time.

GlusterFS needs root and FUSE. Servers listen on loopback, those of GlusterFS in a network namespace. A round
takes about five minutes.
"""

import argparse
import filecmp
import os
import re
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

TICKS = os.sysconf("SC_CLK_TCK")


def loopback_bytes(pid="self"):
    """Bytes that were received over the loopback device in the network namespace of a process."""
    for line in Path(f"/proc/{pid}/net/dev").read_text().splitlines():
        if line.strip().startswith("lo:"):
            return int(line.split()[1])
    return 0


def cpu_of(pid):
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / TICKS
    except OSError:
        return 0.0


def peak_of(pid):
    try:
        found = re.search(r"VmHWM:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())
        return int(found.group(1)) << 10 if found else 0
    except OSError:
        return 0


def disk_bytes(*dirs):
    return sum(
        file.stat().st_blocks * 512
        for top in dirs
        for file in Path(top).rglob("*")
        if file.is_file() and not file.is_symlink()
    )


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def wait_for_port(port, seconds=60):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            return
        except OSError:
            time.sleep(0.1)
    raise RuntimeError(f"nothing listens on port {port}")


class Peer:
    """A program that saves and restores one file. Its directory `dir` is removed after each round."""

    name = "?"
    needs = ()
    hosts = False

    def __init__(self, dir):
        self.dir = Path(dir)
        self.servers = []
        self.env = dict(os.environ)

    @classmethod
    def missing(cls):
        return [program for program in cls.needs if shutil.which(program) is None]

    def spawn(self, *args, **more):
        log = open(self.dir / f"server-{len(self.servers)}.log", "wb")
        child = subprocess.Popen(args, stdout=log, stderr=log, stdin=subprocess.DEVNULL, env=self.env, **more)
        self.servers.append(child)
        return child

    def run(self, *args, **more):
        """Runs a client; returns its CPU seconds and its peak memory in bytes."""
        log = open(self.dir / "client.log", "ab")
        child = subprocess.Popen(args, stdout=more.pop("stdout", log), stderr=log, stdin=subprocess.DEVNULL, env=self.env, **more)
        _, status, usage = os.wait4(child.pid, 0)
        if status:
            raise RuntimeError(f"{' '.join(map(str, args))}: {(self.dir / 'client.log').read_text()[-800:]}")
        return usage.ru_utime + usage.ru_stime, usage.ru_maxrss << 10

    def pids(self):
        return [server.pid for server in self.servers]

    def start(self):
        pass

    def forget(self):
        """Drops what the client keeps in memory of earlier transfers."""

    def wire_bytes(self):
        return loopback_bytes()

    def storage(self):
        return [self.dir]

    def kill_two(self):
        for server in self.servers[:2]:
            server.kill()
            server.wait()

    def stop(self):
        for server in self.servers:
            server.kill()
            server.wait()


class Ckpt(Peer):
    name = "ckpt 3+2"
    hosts = True
    program = "target/release/ckpt"

    def start(self):
        self.env["CKPT_GRID"] = str(self.dir / "grid/grid.toml")
        self.env["CKPT_STATE_DIR"] = str(self.dir / "state")
        self.run(self.program, "grid", "up", "--dir", self.dir / "grid", "--hosts", "5")
        self.locks = sorted(self.dir.glob("grid/hosts/*/lock"))

    def pids(self):
        return [int(lock.read_text()) for lock in self.locks]

    def storage(self):
        return [self.dir / "grid/hosts"]

    def save(self, image):
        return self.run(self.program, "save", "--job", "race", "--keep", "9", image)

    def restore(self, out):
        return self.run(self.program, "restore", "--job", "race", "--version", "2", "--force", "-o", out)

    def kill_two(self):
        for pid in self.pids()[:2]:
            os.kill(pid, signal.SIGKILL)

    def stop(self):
        self.run(self.program, "grid", "down", "--dir", self.dir / "grid")


class Restic(Peer):
    name = "restic, local disk"
    needs = ("restic",)

    def start(self):
        self.env |= {"RESTIC_PASSWORD": "race", "RESTIC_REPOSITORY": str(self.dir / "repository"), "RESTIC_CACHE_DIR": str(self.dir / "cache")}
        self.run("restic", "init")
        self.snapshots = []

    def storage(self):
        return [self.dir / "repository"]

    def save(self, image):
        used = self.run("restic", "backup", "--stdin", "--stdin-filename", "image", stdin_from=image)
        return used

    def run(self, *args, stdin_from=None, **more):
        if stdin_from is None:
            return super().run(*args, **more)
        return super().run("sh", "-c", 'exec "$@" < "$0"', stdin_from, *args, **more)

    def restore(self, out):
        with open(out, "wb") as file:
            return self.run("restic", "dump", self.second(), "/image", stdout=file)

    def second(self):
        listed = subprocess.run(["restic", "snapshots", "--json"], env=self.env, capture_output=True, check=True).stdout
        import json

        return sorted(json.loads(listed), key=lambda one: one["time"])[1]["id"]


class Borg(Peer):
    name = "borg, local disk"
    needs = ("borg",)

    def start(self):
        self.env |= {"BORG_PASSPHRASE": "race", "BORG_BASE_DIR": str(self.dir), "BORG_REPO": str(self.dir / "repository")}
        self.run("borg", "init", "--encryption", "repokey-blake2")
        self.count = 0

    def storage(self):
        return [self.dir / "repository"]

    def save(self, image):
        self.count += 1
        with open(image, "rb") as file:
            return self.run_from(file, "borg", "create", f"::{self.count}", "-")

    def run_from(self, file, *args):
        log = open(self.dir / "client.log", "ab")
        child = subprocess.Popen(args, stdout=log, stderr=log, stdin=file, env=self.env)
        _, status, usage = os.wait4(child.pid, 0)
        if status:
            raise RuntimeError(f"{args}: {(self.dir / 'client.log').read_text()[-800:]}")
        return usage.ru_utime + usage.ru_stime, usage.ru_maxrss << 10

    def restore(self, out):
        with open(out, "wb") as file:
            return self.run("borg", "extract", "--stdout", "::2", "stdin", stdout=file)


class Rsync(Peer):
    name = "rsync to a daemon"
    needs = ("rsync",)

    def start(self):
        self.port = free_port()
        (self.dir / "store").mkdir()
        config = self.dir / "rsyncd.conf"
        config.write_text(f"address=127.0.0.1\nport={self.port}\nuse chroot=no\n[store]\npath={self.dir}/store\nread only=no\nuid={os.getuid()}\ngid={os.getgid()}\n")
        self.spawn("rsync", "--daemon", "--no-detach", f"--config={config}")
        wait_for_port(self.port)
        self.first = True

    def storage(self):
        return [self.dir / "store"]

    def save(self, image):
        target = "random" if "random" in str(image) else "image"
        return self.run("rsync", "--no-whole-file", "--ignore-times", image, f"rsync://127.0.0.1:{self.port}/store/{target}")

    def restore(self, out):
        return self.run("rsync", f"rsync://127.0.0.1:{self.port}/store/image", out)


class Tahoe(Peer):
    name = "Tahoe-LAFS 3 of 5"
    needs = ("tahoe",)
    hosts = True

    def start(self):
        introducer = self.dir / "introducer"
        port = free_port()
        self.run("tahoe", "create-introducer", f"--location=tcp:127.0.0.1:{port}", f"--port=tcp:{port}:interface=127.0.0.1", introducer)
        keep = self.servers
        self.spawn("tahoe", "run", "--allow-stdin-close", introducer)
        furl = introducer / "private/introducer.furl"
        end = time.monotonic() + 60
        while not furl.exists() and time.monotonic() < end:
            time.sleep(0.1)
        nodes = []
        for number in range(5):
            node, port = self.dir / f"node{number}", free_port()
            self.run(
                "tahoe", "create-node", f"--introducer={furl.read_text().strip()}", f"--nickname=n{number}",
                f"--location=tcp:127.0.0.1:{port}", f"--port=tcp:{port}:interface=127.0.0.1", "--webport=none",
                "--shares-needed=3", "--shares-happy=5", "--shares-total=5", node,
            )
            nodes.append(self.spawn("tahoe", "run", "--allow-stdin-close", node))
        self.client = self.dir / "client"
        web = free_port()
        self.run(
            "tahoe", "create-client", f"--introducer={furl.read_text().strip()}", "--nickname=c", f"--webport=tcp:{web}:interface=127.0.0.1",
            "--shares-needed=3", "--shares-happy=3", "--shares-total=5", self.client,
        )
        self.spawn("tahoe", "run", "--allow-stdin-close", self.client)
        wait_for_port(web)
        self.nodes, self.caps = nodes, []
        end = time.monotonic() + 90
        probe = self.dir / "probe"
        probe.write_bytes(os.urandom(1000))
        # Saves can begin once the client has found all five nodes.
        while time.monotonic() < end:
            try:
                self.put(probe)
                if len(list(self.dir.glob("node*/storage/shares/*/*"))) >= 5:
                    break
            except RuntimeError:
                pass
            time.sleep(1)

    def storage(self):
        return [self.dir / f"node{number}" for number in range(5)]

    def put(self, image):
        cap = self.dir / "cap"
        with open(cap, "wb") as file:
            used = self.run("tahoe", "--node-directory", self.client, "put", image, stdout=file)
        return used, cap.read_text().strip()

    def save(self, image):
        used, cap = self.put(image)
        self.caps.append(cap)
        return used

    def restore(self, out):
        return self.run("tahoe", "--node-directory", self.client, "get", self.caps[1], out)

    def kill_two(self):
        for node in self.nodes[:2]:
            node.kill()
            node.wait()


class Gluster(Peer):
    """GlusterFS in a network namespace, as it refuses loopback addresses. A save is a copy to its volume."""

    name = "GlusterFS disperse 3+2"
    needs = ("glusterd", "gluster", "glusterfs", "ip", "nsenter")
    hosts = True
    address = "10.78.0.1"

    def start(self):
        self.space = f"ckpt-race-{os.getpid()}"
        inside = ("ip", "netns", "exec", self.space)
        self.run("ip", "netns", "add", self.space)
        self.run(*inside, "ip", "link", "set", "lo", "up")
        self.run(*inside, "ip", "address", "add", f"{self.address}/32", "dev", "lo")
        state = self.dir / "state"
        state.mkdir()
        volume = self.dir / "glusterd.vol"
        volume.write_text(
            f"volume management\n type mgmt/glusterd\n option working-directory {state}\n option run-directory {state}\n"
            f" option transport-type socket\n option transport.socket.bind-address {self.address}\n"
            f" option transport.socket.listen-port 24007\n option glusterd-sockfile {state}/sock\nend-volume\n"
        )
        self.spawn(*inside, "glusterd", "-N", "-f", volume, "-p", state / "pid", "-l", state / "log")
        gluster = (*inside, "gluster", "--mode=script", f"--glusterd-sock={state}/sock")
        end = time.monotonic() + 60
        while time.monotonic() < end:
            try:
                self.run(*gluster, "volume", "list")
                break
            except RuntimeError:
                time.sleep(0.5)
        bricks = [self.dir / f"brick{number}" for number in range(5)]
        self.run(*gluster, "volume", "create", "race", "disperse", "5", "redundancy", "2", *(f"{self.address}:{brick}" for brick in bricks), "force")
        self.run(*gluster, "volume", "start", "race")
        self.inside, self.mount = inside, self.dir / "mount"
        self.mount.mkdir()
        self.attach()
        self.bricks = self.find("glusterfsd")

    def attach(self):
        """Mounts the volume in a mount namespace of the client."""
        self.client = self.spawn(
            *self.inside, "glusterfs", "--no-daemon", "--volfile-server", self.address, "--volfile-id", "race",
            "-l", self.dir / "client-log", self.mount,
        )
        self.enter = ("nsenter", "-t", str(self.client.pid), "-m", "-n", "--")
        end = time.monotonic() + 60
        while time.monotonic() < end:
            try:
                self.run(*self.enter, "mountpoint", "-q", self.mount)
                break
            except RuntimeError:
                time.sleep(0.5)
        self.run(*self.enter, "mountpoint", self.mount)

    def forget(self):
        self.run(*self.enter, "umount", self.mount)
        self.client.wait(timeout=60)
        self.servers.remove(self.client)
        self.attach()

    def wire_bytes(self):
        return loopback_bytes(self.servers[0].pid)

    def find(self, name):
        found = []
        for stat in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                command = stat.read_bytes().decode(errors="replace")
            except OSError:
                continue
            if str(self.dir) in command and Path(command.split("\0")[0]).name == name:
                found.append(int(stat.parent.name))
        return found

    def pids(self):
        return super().pids() + self.bricks

    def storage(self):
        return [self.dir / f"brick{number}" for number in range(5)]

    def save(self, image):
        target = "random" if "random" in str(image) else "image"
        return self.run(*self.enter, "dd", f"if={image}", f"of={self.mount}/{target}", "bs=1M", "conv=fsync")

    def restore(self, out):
        return self.run(*self.enter, "cp", self.mount / "image", out)

    def kill_two(self):
        for pid in self.bricks[:2]:
            os.kill(pid, signal.SIGKILL)

    def stop(self):
        super().stop()
        for pid in self.find("glusterfsd") + self.find("glusterfs") + self.find("glusterd"):
            os.kill(pid, signal.SIGKILL)
        subprocess.run(["ip", "netns", "delete", self.space], check=False)


PEERS = [Ckpt, Restic, Borg, Rsync, Tahoe, Gluster]
COLUMNS = ["save", "next version", "random", "restore", "restore, 2 of 5 dead"]


def measure(peer, what, work):
    before = {pid: cpu_of(pid) for pid in peer.pids()}
    wire, disk = peer.wire_bytes(), disk_bytes(*peer.storage())
    begun = time.monotonic()
    cpu, memory = work()
    seconds = time.monotonic() - begun
    servers = sum(cpu_of(pid) - cpu for pid, cpu in before.items() if cpu_of(pid))
    return {
        "seconds": seconds,
        "cpu": cpu + servers,
        "client MiB": memory / 2**20,
        "server MiB": max([peak_of(pid) for pid in peer.pids()], default=0) / 2**20,
        "wire MiB": (peer.wire_bytes() - wire) / 2**20,
        "disk MiB": (disk_bytes(*peer.storage()) - disk) / 2**20,
    }


def restored(peer, what, image, out):
    """Measures a restore to `out` with its sync to the disk, and compares the file with `image`."""

    def restore():
        used = peer.restore(out)
        with open(out, "rb") as file:
            os.fsync(file.fileno())
        return used

    peer.forget()
    figures = measure(peer, what, restore)
    if not filecmp.cmp(out, image, shallow=False):
        raise RuntimeError("the restored image differs")
    out.unlink()
    return figures


def race(peer, images, out):
    found = {}
    try:
        peer.start()
        for what, image in zip(COLUMNS, images):
            if image:
                found[what] = measure(peer, what, lambda image=image: peer.save(image))
        found["restore"] = restored(peer, "restore", images[1], out)
        if peer.hosts:
            peer.kill_two()
            found[COLUMNS[4]] = restored(peer, COLUMNS[4], images[1], out)
    finally:
        peer.stop()
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--image", required=True, type=Path)
    parser.add_argument("--next", required=True, type=Path)
    parser.add_argument("--random", type=Path)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", default="")
    parser.add_argument("--ckpt", default=Ckpt.program, help="the program, built with --release")
    args = parser.parse_args()
    Ckpt.program = str(Path(args.ckpt).resolve())
    chosen = [peer for peer in PEERS if not args.only or peer.__name__.lower() in args.only.lower().split(",")]
    for peer in chosen:
        if peer.missing():
            print(f"MISSING: {peer.name}: {', '.join(peer.missing())} not installed")
    chosen = [peer for peer in chosen if not peer.missing()]
    images = [args.image.resolve(), args.next.resolve(), args.random and args.random.resolve()]
    results = {}
    for number in range(args.rounds):
        for kind in chosen:
            with tempfile.TemporaryDirectory(prefix="ckpt-race-") as dir:
                try:
                    found = race(kind(dir), images, Path(dir) / "restored")
                except RuntimeError as cause:
                    print(f"FAILED: {kind.name}: {cause}", file=sys.stderr)
                    for log in sorted(Path(dir).glob("server-*.log")):
                        print(f"{log.name}: {log.read_text()[-500:]}", file=sys.stderr)
                    continue
            for what, figures in found.items():
                for figure, value in figures.items():
                    results.setdefault((what, figure, kind.name), []).append(value)
            print(f"round {number + 1}: {kind.name} done", file=sys.stderr)
    report(results, [kind.name for kind in chosen])


def report(results, names):
    for what in COLUMNS:
        if not any(key[0] == what for key in results):
            continue
        print(f"\n{what}\n| | s | to ckpt | CPU s | to ckpt | client MiB | server MiB | wire MiB | disk MiB |\n|---|---|---|---|---|---|---|---|---|")
        median = lambda figure, name: statistics.median(results.get((what, figure, name), [float("nan")]))
        for name in names:
            if (what, "seconds", name) not in results:
                continue
            cells = [name, f"{median('seconds', name):.2f}", f"{median('seconds', name) / median('seconds', Ckpt.name):.2f}"]
            cells += [f"{median('cpu', name):.2f}", f"{median('cpu', name) / median('cpu', Ckpt.name):.2f}"]
            cells += [f"{median(figure, name):.0f}" for figure in ("client MiB", "server MiB", "wire MiB", "disk MiB")]
            print("| " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
