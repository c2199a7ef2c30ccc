"""A grid of five hosts on this machine, by the program that CKPT_PROGRAM names, else `ckpt` of the PATH."""

import json
import os
import select
import shutil
import signal
import subprocess

import pytest

PROGRAM = os.environ.get("CKPT_PROGRAM") or shutil.which("ckpt")


def program(*args, **options):
    """Runs the program with `--json`. Returns exit status and report."""
    done = subprocess.run([PROGRAM, "--json", *args], capture_output=True, timeout=120, **options)
    return done.returncode, json.loads(done.stdout)


class Grid:
    def __init__(self, directory):
        self.directory = directory
        self.file = str(directory / "grid" / "grid.toml")

    def up(self):
        status, report = program("grid", "up", "--dir", str(self.directory / "grid"), "--hosts", "5")
        assert status == 0, report
        return report

    def pids(self):
        """Process ids of the hosts."""
        status, report = program("grid", "status", "--dir", str(self.directory / "grid"))
        assert status == 0, report
        return [host["pid"] for host in report["hosts"]]

    def kill_one(self):
        """Kills the first host's daemon, and waits until its sockets and locks are free."""
        process = os.pidfd_open(self.pids()[0])
        try:
            signal.pidfd_send_signal(process, signal.SIGKILL)
            ended, _, _ = select.select([process], [], [], 60)
            assert ended
        finally:
            os.close(process)

    def down(self):
        program("grid", "down", "--dir", str(self.directory / "grid"))


@pytest.fixture(scope="session")
def grid(tmp_path_factory):
    made = Grid(tmp_path_factory.mktemp("ckpt"))
    made.up()
    before = {name: os.environ.get(name) for name in ("CKPT_GRID", "CKPT_STATE_DIR")}
    os.environ["CKPT_GRID"] = made.file
    os.environ["CKPT_STATE_DIR"] = str(made.directory / "state")
    yield made
    made.down()
    for name, value in before.items():
        if value is None:
            del os.environ[name]
        else:
            os.environ[name] = value
