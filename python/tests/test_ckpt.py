"""The functions of the package, on a grid of five hosts."""

import contextlib
import io
import os
import pathlib
import pickle
import random
import signal
import socket
import subprocess
import sys
import threading
import time

import pytest

import ckpt
import ckpt.reports
from conftest import PROGRAM, program


def noise(size, seed=1):
    return random.Random(seed).randbytes(size)


def test_a_directory_is_saved_at_the_end_of_the_block_and_not_on_an_exception(grid, tmp_path):
    with ckpt.checkpoint("block", labels={"step": "1"}) as directory:
        (directory / "state").write_bytes(b"one")
        (directory / "sub").mkdir()
        (directory / "sub" / "more").write_bytes(b"two")
    assert not directory.exists()
    with pytest.raises(KeyError), ckpt.checkpoint("block") as directory:
        (directory / "state").write_bytes(b"torn")
        raise KeyError("no")
    assert not directory.exists()
    with pytest.raises(ckpt.UsageError), ckpt.checkpoint("block"):
        pass
    listed = ckpt.list("block")
    assert [(one["version"], one["labels"]) for one in listed] == [(1, {"step": "1"})]
    report = ckpt.restore(tmp_path / "out", job="block")
    assert report["version"] == 1
    assert (tmp_path / "out" / "sub" / "more").read_bytes() == b"two"
    with ckpt.open("block", "sub/more") as file:
        assert file.read() == b"two"


def test_paths_names_and_file_objects_are_saved(grid, tmp_path):
    (tmp_path / "a").write_bytes(b"a")
    assert ckpt.save(tmp_path / "a", job="paths")["version"] == 1
    ckpt.save({"out/b": tmp_path / "a"}, job="paths", redundancy="2+1")
    with ckpt.open("paths", "out/b") as file:
        assert file.read() == b"a"
    with ckpt.open("paths", version=1) as file:
        assert file.read() == b"a"
    report = ckpt.save(io.BytesIO(noise(3 << 20)), job="paths", keep=1)
    assert report["version"] == 3 and sorted(report["removed"]) == [1, 2]
    with ckpt.open("paths") as file:
        assert file.read() == noise(3 << 20)


def test_reports_have_the_fields_of_their_types(grid, tmp_path):
    (tmp_path / "a").write_bytes(noise(1000))
    with ckpt.Client() as client:
        found = {
            "SaveReport": client.save(tmp_path / "a", "typed"),
            "RestoreReport": client.restore(tmp_path / "out", "typed"),
            "ListReport": client.list_report("typed"),
            "ListedCheckpoint": client.list("typed")[0],
            "ForgetReport": client.forget("typed", all=True),
        }
    for name, report in found.items():
        assert set(report) == set(getattr(ckpt.reports, name).__annotations__), name


def test_nothing_is_saved_only_if_that_is_meant(grid, tmp_path):
    (tmp_path / "a").write_bytes(b"work")
    ckpt.save(tmp_path / "a", job="emptied")
    for source in ([], {}, iter(()), tmp_path.glob("*.pt"), io.BytesIO()):
        with pytest.raises(ckpt.UsageError, match="allow_empty=True") as failed:
            ckpt.save(source, job="emptied")
        assert failed.value.exit_code == 2
    with pytest.raises(ckpt.UsageError), ckpt.Client() as client, client.writer("emptied"):
        pass
    assert [one["version"] for one in ckpt.list("emptied")] == [1]
    for source in ([], io.BytesIO()):
        ckpt.save(source, job="emptied", keep=9, allow_empty=True)
    with ckpt.checkpoint("emptied", keep=9, allow_empty=True):
        pass
    # A file that is named may be empty.
    (tmp_path / "a").write_bytes(b"")
    ckpt.save(tmp_path / "a", job="emptied", keep=9)
    assert len(ckpt.list("emptied")) == 5


def test_an_open_file_is_as_any_other_and_costs_only_what_is_read(grid):
    data = noise(24 << 20)
    ckpt.save(io.BytesIO(data), job="seek")
    with ckpt.open("seek", buffering=0) as file:
        assert file.seekable() and file.readable() and file.size == len(data)
        assert file.seek(-5, io.SEEK_END) == len(data) - 5
        assert file.read() == data[-5:] and file.read(1) == b""
        assert file.seek(10 << 20) and file.read(70) == data[10 << 20 : (10 << 20) + 70]
        assert file.read_at(1 << 40, 5) == b""
        fetched, _ = file.cost()
        assert fetched < 4 << 20
        with pytest.raises(ValueError):
            file.seek(-1)
    with pytest.raises(ValueError):
        file.read(1)
    with ckpt.open("seek") as file:
        file.seek(7)
        assert file.read(3) == data[7:10] and file.tell() == 10


def test_failures_carry_the_exit_status_of_the_program(grid, tmp_path):
    status, report = program("restore", "--job", "nothing", "-o", str(tmp_path / "out"))
    with pytest.raises(ckpt.NotFoundError) as raised:
        ckpt.restore(tmp_path / "out", job="nothing")
    assert raised.value.exit_code == status == report["exit_code"] == 4
    assert raised.value.status == report["error"]["status"]
    assert isinstance(raised.value, FileNotFoundError)
    assert str(raised.value).startswith(report["error"]["message"])
    with pytest.raises(ckpt.LocalIOError) as raised:
        ckpt.save(tmp_path / "missing", job="x")
    assert raised.value.exit_code == 8
    with pytest.raises(ckpt.UsageError):
        ckpt.save(tmp_path, job="not a job")
    with pytest.raises(ckpt.UsageError):
        ckpt.save(tmp_path, job="x", redundancy="3")
    with pytest.raises(ckpt.UsageError):
        ckpt.forget("x")
    with pytest.raises(ckpt.UsageError):
        ckpt.Client(tmp_path / "no-grid.toml")
    copy = pickle.loads(pickle.dumps(raised.value))
    assert isinstance(copy, ckpt.LocalIOError) and copy.exit_code == 8 and str(copy) == str(raised.value)


def test_one_successor(grid):
    first = ckpt.save(io.BytesIO(b"1"), job="after", after="none")
    ckpt.save(io.BytesIO(b"2"), job="after", after=first["version"])
    with pytest.raises(ckpt.AnotherSuccessorError) as raised:
        ckpt.save(io.BytesIO(b"3"), job="after", after=first["checkpoint"])
    assert raised.value.exit_code == 10 and raised.value.successor["version"] == 2


def test_forgetting(grid):
    for _ in range(3):
        ckpt.save(io.BytesIO(b"x"), job="forget", keep=9)
    assert ckpt.forget("forget", version=1)["removed"] == [1]
    assert ckpt.forget("forget", keep=1)["removed"] == [2]
    assert ckpt.forget("forget", all=True)["removed"] == [3]
    assert ckpt.list("forget") == []


def test_a_file_that_fails_or_is_not_closed_is_not_saved(grid):
    client = ckpt.Client()
    with pytest.raises(KeyError), client.writer("writer") as file:
        file.write(noise(2 << 20))
        raise KeyError("no")
    file = client.writer("writer")
    file.write(b"half")
    with pytest.warns(ResourceWarning):
        del file

    class Broken:
        def read(self, size):
            raise OSError("broken")

    with pytest.raises(OSError, match="broken"):
        client.save(Broken(), "writer")
    assert client.list("writer") == []
    with client.writer("writer") as file:
        for _ in range(9):
            file.write(memoryview(noise(1 << 20)))
    assert file.report["image_bytes"] == 9 << 20
    client.close()


def test_other_threads_run_while_a_call_waits(grid):
    counted = [0]
    done = threading.Event()

    def count():
        while not done.is_set():
            counted[0] += 1
            time.sleep(0.001)

    thread = threading.Thread(target=count)
    thread.start()
    before = counted[0]
    ckpt.save(io.BytesIO(noise(32 << 20)), job="threads")
    during = counted[0] - before
    done.set()
    thread.join()
    assert during > 20


def child_of_fork(work):
    """Runs `work` in a forked child. Returns what it returned, as text."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(writing, str(work()).encode())
        except BaseException as cause:
            os.write(writing, repr(cause).encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as answer:
        text = answer.read()
    os.waitpid(child, 0)
    return text


def test_a_forked_child_connects_again_and_may_not_use_what_was_open(grid):
    ckpt.save(io.BytesIO(b"of the parent"), job="fork")
    own = ckpt.Client()
    file = ckpt.open("fork")

    def of_functions():
        with ckpt.open("fork") as again:
            return again.read()

    assert child_of_fork(of_functions) == str(b"of the parent")
    assert "before a fork" in child_of_fork(lambda: own.list("fork"))
    assert "before a fork" in child_of_fork(lambda: file.read())
    # The parent goes on.
    assert file.read() == b"of the parent"
    own.close()


WRITES_WITHOUT_END = """
import sys, ckpt
class Endless:
    def read(self, size):
        if not hasattr(self, "is_read"):
            self.is_read = True
            print("writing", flush=True)
        return b"x" * size
try:
    ckpt.save(Endless(), job="signals")
except KeyboardInterrupt:
    print("interrupted", flush=True)
    sys.exit(130)
"""

# A shell that starts the tests in the background lets them ignore Ctrl-C, and they pass that on.
CTRL_C_ENDS_IT = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"


@contextlib.contextmanager
def started(source):
    child = subprocess.Popen(
        [sys.executable, "-c", f"{CTRL_C_ENDS_IT}\n{source}"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert child.stdout.readline() == "writing\n"
        yield child
    finally:
        child.kill()
        child.wait()


@pytest.mark.parametrize("number, status", [(signal.SIGINT, 130), (signal.SIGKILL, -9)])
def test_a_signal_ends_a_save_that_then_is_not_there(grid, number, status):
    with started(WRITES_WITHOUT_END) as child:
        time.sleep(0.5)
        child.send_signal(number)
        out, _ = child.communicate(timeout=30)
    assert child.returncode == status
    assert out == ("interrupted\n" if number == signal.SIGINT else "")
    assert ckpt.list("signals") == []
    # The next save finds no trace of it.
    assert ckpt.save(io.BytesIO(b"x"), job="signals")["version"] >= 1
    ckpt.forget("signals", all=True)


def test_ctrl_c_ends_a_save_of_files(grid, tmp_path):
    (tmp_path / "big").write_bytes(noise(64 << 20))
    source = f"""
import sys, ckpt
print("writing", flush=True)
try:
    while True:
        ckpt.save({str(tmp_path / "big")!r}, job="files", full=True)
except KeyboardInterrupt:
    sys.exit(130)
"""
    with started(source) as child:
        time.sleep(1.5)
        child.send_signal(signal.SIGINT)
        child.communicate(timeout=30)
    assert child.returncode == 130


class Alarm(Exception):
    pass


def test_a_signal_handler_ends_a_call_that_waits_for_hosts(grid):
    def raising(*_):
        raise Alarm

    before = signal.signal(signal.SIGALRM, raising)
    pids = grid.pids()
    client = ckpt.Client()
    client.list()
    try:
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        began = time.monotonic()
        signal.setitimer(signal.ITIMER_REAL, 0.3)
        with pytest.raises(Alarm):
            client.list()
        assert time.monotonic() - began < 1.5
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)
        signal.signal(signal.SIGALRM, before)
    assert isinstance(client.list(), list)
    client.close()


def test_a_list_without_all_hosts_is_said_to_be_incomplete(grid):
    ckpt.save(io.BytesIO(b"x"), job="silent")
    with ckpt.Client() as client:
        grid.kill_one()
        try:
            with pytest.warns(ckpt.DegradedWarning, match="no answer from h"):
                assert len(client.list("silent")) == 1
        finally:
            grid.up()


def test_health_names_what_needs_attention(grid):
    ckpt.save(io.BytesIO(b"x"), job="health")
    well = ckpt.health(prove=True)
    assert "health" in [one["job"] for one in well["jobs"]]
    assert well["hosts"]["up"]["value"] == 5 and well["keys"]
    with ckpt.Client() as client:
        grid.kill_one()
        try:
            ill = client.health()
        finally:
            grid.up()
    assert ill["hosts"]["up"]["value"] == 4
    assert {one["what"] for one in ill["attention"]} - {one["what"] for one in well["attention"]}
    ckpt.forget("health", all=True)


def test_the_type_stubs_name_what_is_there():
    from ckpt import _ckpt

    stub = (pathlib.Path(ckpt.__file__).parent / "_ckpt.pyi").read_text()
    for kind in (_ckpt.Canceller, _ckpt.Client, _ckpt.Image, _ckpt.Writer):
        assert f"class {kind.__name__}" in stub
        part = stub.split(f"class {kind.__name__}")[1].split("\nclass ")[0]
        there = {name for name in vars(kind) if not name.startswith("_")}
        said = {line.split("def ")[1].split("(")[0] for line in part.splitlines() if "def " in line}
        assert there == said - {"__init__"}
    for name in ckpt.__all__:
        assert getattr(ckpt, name).__doc__


def test_the_version_is_that_of_the_program():
    said = subprocess.run([PROGRAM, "--version"], capture_output=True, text=True, check=True).stdout
    assert said.split()[1] == ckpt.__version__


def test_a_wrong_option_is_said_by_name(grid):
    with pytest.raises(TypeError, match="kep"):
        ckpt.save(b"x", job="wrong", kep=3)
    with pytest.raises(TypeError, match="forc"):
        ckpt.restore("out", job="wrong", forc=True)


def test_a_save_that_is_given_up_does_not_disturb_another_thread(grid):
    client = ckpt.Client()
    stop = threading.Event()

    def give_up():
        while not stop.is_set():
            file = client.writer("given-up")
            file.write(noise(2 << 20))
            file.abort()

    thread = threading.Thread(target=give_up)
    thread.start()
    try:
        for number in range(8):
            report = client.save(io.BytesIO(noise(4 << 20, number)), "undisturbed")
            assert report["replaced"] == [] and len(client.list("undisturbed")) > 0
    finally:
        stop.set()
        thread.join()
    client.close()


def tree(directory):
    """What is in a directory: paths and bytes of all files."""
    files = (path for path in directory.rglob("*") if not path.is_dir())
    return {str(path.relative_to(directory)): path.read_bytes() for path in files}


def test_a_restore_puts_the_content_into_the_directory_also_the_second_time(grid, tmp_path):
    out = tmp_path / "out"
    big, fetched = tmp_path.with_suffix(".big"), []
    big.write_bytes(noise(8 << 20))
    for step in (b"1", b"2", b"3"):
        with ckpt.checkpoint("again") as directory:
            (directory / "step").write_bytes(step)
            (directory / "weights").mkdir()
            (directory / "weights" / step.decode()).write_bytes(noise(9999))
        report = ckpt.restore(out, job="again", existing="replace")
        assert report["target"] == str(out)
        # The tree of before is replaced as a whole.
        assert tree(out) == {"step": step, "weights/" + step.decode(): noise(9999)}
        (out / "own").write_bytes(b"stays")
        ckpt.restore(out, job="again", existing="replace")
        assert (out / "own").read_bytes() == b"stays"
        (out / "own").unlink()
    assert sorted(os.listdir(tmp_path)) == ["out"]
    # What is there already is not fetched.
    ckpt.save({"step": tmp_path / "out" / "step", "big": big}, job="again")
    for existing in ("replace", "replace", "clear"):
        report = ckpt.restore(out, job="again", existing=existing)
        fetched.append((report["fetched_bytes"], report["at_hand_bytes"]))
    assert fetched[0][0] > 8 << 20 > fetched[1][0] and fetched[1][1] > 7 << 20 and fetched[2][1] > 7 << 20


def test_names_that_exist_stay_unless_the_caller_says_otherwise(grid, tmp_path):
    with ckpt.checkpoint("names") as directory:
        (directory / "only").write_bytes(b"new")
    out = tmp_path / "out"
    assert ckpt.restore(out, job="names")["version"] == 1
    assert tree(out) == {"only": b"new"}
    (out / "only").write_bytes(b"mine")
    with pytest.raises(ckpt.LocalIOError, match="only.*exists"):
        ckpt.restore(out, job="names")
    assert tree(out) == {"only": b"mine"} and os.listdir(out) == ["only"]
    (out / "only").unlink()
    (out / "other").write_bytes(b"mine")
    ckpt.restore(out, job="names", existing="stay")
    assert tree(out) == {"only": b"new", "other": b"mine"}
    out.chmod(0o755)
    (tmp_path / "link").symlink_to("out")
    ckpt.restore(tmp_path / "link", job="names", existing="clear")
    assert tree(out) == {"only": b"new"} and out.stat().st_mode & 0o777 == 0o755
    assert sorted(os.listdir(tmp_path)) == ["link", "out"]
    # A file takes the place of a directory, and the other way round.
    (out / "only").unlink()
    (out / "only" / "deep").mkdir(parents=True)
    ckpt.restore(out, job="names", existing="replace")
    assert tree(out) == {"only": b"new"} and os.listdir(out) == ["only"]
    with pytest.raises(ckpt.UsageError):
        ckpt.restore(out / "only", job="names", existing="replace")
    with pytest.raises(ckpt.UsageError, match="clear"):
        ckpt.restore(out, job="names", existing="merge")
    with pytest.raises(ckpt.NotFoundError):
        ckpt.restore(out, job="names", version=7, existing="clear")
    assert tree(out) == {"only": b"new"} and sorted(os.listdir(tmp_path)) == ["link", "out"]


def test_a_restored_file_is_where_open_knows_it(grid, tmp_path, monkeypatch):
    (tmp_path / "run" / "sub").mkdir(parents=True)
    (tmp_path / "run" / "sub" / "a").write_bytes(b"a")
    ckpt.save(tmp_path / "run", job="roots/one")
    ckpt.save(b"stream", job="roots/stream")
    ckpt.save([], job="roots/none", allow_empty=True)
    ckpt.restore(tmp_path / "one", job="roots/one")
    assert tree(tmp_path / "one") == {"run/sub/a": b"a"}
    # A program that starts again in its directory.
    monkeypatch.chdir(tmp_path)
    ckpt.restore(".", job="roots/one", existing="replace")
    assert tree(tmp_path / "run") == {"sub/a": b"a"}
    ckpt.restore("stream/", job="roots/stream")
    assert list(tree(tmp_path / "stream").values()) == [b"stream"]
    ckpt.restore("none", job="roots/none")
    assert os.listdir(tmp_path / "none") == []


def test_a_job_is_shown_verified_and_restored_in_part(grid, tmp_path):
    with ckpt.checkpoint("parts") as directory:
        (directory / "model.pt").write_bytes(b"weights")
        (directory / "logs").mkdir()
        (directory / "logs" / "a").write_text("log")
    shown = ckpt.show("parts")
    assert shown["version"] == 1 and "model.pt" in [file["path"] for file in shown["files"]]
    assert ckpt.verify("parts")["checkpoints"][0]["version"] == 1
    assert ckpt.verify("parts", version=1, all_blocks=True)["checkpoints"]
    assert len(ckpt.hosts()["hosts"]) == 5
    ckpt.restore(tmp_path / "part", job="parts", path="*.pt")
    assert [one.name for one in (tmp_path / "part").iterdir()] == ["model.pt"]
    ckpt.restore(tmp_path / "both", job="parts", path=["*.pt", "logs/**"])
    assert (tmp_path / "both" / "logs" / "a").read_text() == "log"
    for wrong, raised in [("none", ckpt.NotFoundError), ("[", ckpt.UsageError)]:
        with pytest.raises(raised):
            ckpt.restore(tmp_path / "none", job="parts", path=wrong)
    with pytest.raises(ckpt.NotFoundError):
        ckpt.show("parts", 2)


def test_what_a_job_reports_is_sent_to_ckpt_run(tmp_path, monkeypatch):
    monkeypatch.delenv("CKPT_NOTIFY", raising=False)
    assert not ckpt.notify(step=1)
    monkeypatch.setenv("CKPT_NOTIFY", str(tmp_path / "socket"))
    assert not ckpt.notify(step=1)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind(str(tmp_path / "socket"))
        assert ckpt.notify(saved=True, progress=0.25, step=12, busy=False)
        assert receiver.recv(4096) == b"SAVED=1\nPROGRESS=0.25\nSTEP=12\nBUSY=0"
