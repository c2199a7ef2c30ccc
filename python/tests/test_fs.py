"""What is special about the file system `ckpt://`, on a grid of five hosts."""

import pickle
import random
import signal
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

fsspec = pytest.importorskip("fsspec")

import ckpt  # noqa: E402


@pytest.fixture
def fs(grid):
    return fsspec.filesystem("ckpt", grid=grid.file)


def noise(size, seed=1):
    return random.Random(seed).randbytes(size)


def test_a_url_is_all_that_a_library_needs(grid):
    with fsspec.open("ckpt://url/a/b.txt", "wt") as file:
        file.write("text\n")
    with fsspec.open("ckpt://url/a/b.txt", "rt") as file:
        assert file.read() == "text\n"
    made, path = fsspec.url_to_fs("ckpt://url/a")
    assert made.ls(path, detail=False) == ["url/a/b.txt"]
    assert made.isdir("ckpt://url") and not made.exists("ckpt://url/c")
    again = pickle.loads(pickle.dumps(made))
    assert again.cat_file("url/a/b.txt") == b"text\n"


def test_a_file_may_be_empty(fs):
    fs.pipe_file("none/file", b"")
    assert fs.cat_file("none/file") == b""
    fs.rm("none", recursive=True)


def code_of(fs, path):
    return fs.client.show(fs.info(path)["job"])["redundancy"]


def test_small_files_are_three_copies_and_others_are_coded(grid, fs):
    fs.pipe({f"small/{size}": noise(size) for size in (0, 10_000, 64 << 10, (64 << 10) + 1)})
    with fs.open("small/by parts", "wb", block_size=1) as file:
        for _ in range(100):
            file.write(noise(1000))
    fs.mv("small/10000", "small/renamed")
    assert {path.split("/")[1]: code_of(fs, path) for path in fs.find("small")} == {
        "0": "1+2",
        "renamed": "1+2",
        "65536": "1+2",
        "65537": "3+2",
        "by parts": "3+2",
    }
    other = fsspec.filesystem("ckpt", grid=grid.file, redundancy="2+1", skip_instance_cache=True)
    other.pipe_file("small/asked", b"few")
    assert code_of(other, "small/asked") == "2+1"
    fs.rm("small", recursive=True)


def test_a_renamed_file_is_the_same_checkpoint(fs):
    data = noise(5 << 20)
    fs.pipe_file("mv/tmp/model", data)
    before = fs.info("mv/tmp/model")
    fs.rename("ckpt://mv/tmp/model", "ckpt://mv/model")
    after = fs.info("mv/model")
    assert after["checkpoint"] == before["checkpoint"] and after["size"] == len(data)
    assert not fs.exists("mv/tmp/model") and not fs.exists("mv/tmp")
    fs.rename("mv/model", "mv/again")
    assert fs.info("mv/again")["checkpoint"] == before["checkpoint"]
    assert fs.cat_file("mv/again", 1 << 20, (1 << 20) + 5) == data[1 << 20 :][:5]
    # What it replaces is removed, and so are its names when it is removed.
    fs.pipe_file("mv/other", b"old")
    fs.mv("mv/again", "mv/other")
    assert fs.find("mv") == ["mv/other"] and fs.cat_file("mv/other") == data
    fs.rm("mv", recursive=True)
    assert [one for one in ckpt.list() if one["job"].startswith("mv/")] == []


def test_a_directory_is_renamed_and_paths_that_can_t_be_are_refused(fs):
    for name in ("a", "b/c"):
        fs.pipe_file(f"dir/tmp/{name}", name.encode())
    fs.mv("dir/tmp", "dir/step-1", recursive=True)
    assert fs.find("dir") == ["dir/step-1/a", "dir/step-1/b/c"]
    with pytest.raises(FileNotFoundError):
        fs.mv("dir/tmp", "dir/step-2", recursive=True)
    with pytest.raises(IsADirectoryError):
        fs.mv("dir/step-1", "dir/step-2")
    with pytest.raises(IsADirectoryError):
        fs.open("dir/step-1", "wb")
    with pytest.raises(FileNotFoundError):
        fs.rm("dir/none")
    with pytest.raises(ckpt.UsageError):
        fs.pipe_file("dir/../x", b"")
    fs.rm("dir", recursive=True)


def test_a_file_appears_when_it_is_closed_and_not_on_an_exception(fs):
    fs.pipe_file("close/file", b"old")
    with fs.open("close/file", "wb") as file:
        file.write(noise(9 << 20))
        assert fs.cat_file("close/file") == b"old"
    assert fs.info("close/file")["size"] == 9 << 20
    with pytest.raises(KeyError), fs.open("close/file", "wb") as file:
        file.write(noise(9 << 20))
        raise KeyError("no")
    assert fs.info("close/file")["size"] == 9 << 20
    file = fs.open("close/new", "wb")
    file.write(b"x")
    with pytest.warns(ResourceWarning):
        del file
    assert fs.find("close") == ["close/file"]
    with pytest.raises(NotImplementedError):
        fs.open("close/file", "r+b")
    with pytest.raises(FileExistsError):
        fs.open("close/file", "xb")
    first, second = fs.open("close/x", "xb"), fs.open("close/x", "xb")
    first.write(b"first")
    first.close()
    second.write(b"second")
    with pytest.raises(FileExistsError):
        second.close()
    assert fs.cat_file("close/x") == b"first"


def test_a_file_is_appended_to_by_writing_it_again(fs):
    for part in (b"first", noise(5 << 20), b"last"):
        with fs.open("append/file", "ab") as file:
            before = file.tell()
            file.write(part)
            assert file.tell() == before + len(part)
    assert fs.cat_file("append/file") == b"first" + noise(5 << 20) + b"last"
    with pytest.raises(KeyError), fs.open("append/file", "ab") as file:
        raise KeyError("no")
    assert fs.info("append/file")["size"] == (5 << 20) + 9
    assert fs.info("append/file")["mtime"] == fs.modified("append/file").timestamp()


def test_many_files_are_written_read_renamed_and_removed_by_one_call(fs):
    many = {f"many/{n % 3}/{n}": bytes([n]) * n for n in range(60)}
    fs.pipe({**many, "many/again": b"old"})
    fs.pipe({"ckpt://many/again": b"new", "many/more": b""})
    many.update({"many/again": b"new", "many/more": b""})
    assert fs.cat("many", recursive=True) == many
    assert fs.cat(["many/again", "many/more"]) == {"many/again": b"new", "many/more": b""}
    with pytest.raises(IsADirectoryError):
        fs.pipe({"many/0": b"", "many/new": b""})
    assert not fs.exists("many/new")
    fs.mv("many", "moved", recursive=True)
    assert fs.cat("moved", recursive=True) == {f"moved{name[4:]}": data for name, data in many.items()}
    fs.rm("moved", recursive=True)
    assert [one for one in ckpt.list() if one["job"].startswith(("many/", "moved/"))] == []


def test_a_dead_host_is_waited_for_once(grid, tmp_path):
    fs = fsspec.filesystem("ckpt", grid=grid.file, skip_instance_cache=True)
    fs.pipe_file("dead/file", b"here")
    grid.kill_one()
    try:
        # The first looks may wait until the host counts as silent.
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            began = time.monotonic()
            assert fs.ls("dead", detail=False) == ["dead/file"]
            if time.monotonic() - began < 0.5:
                break
        began = time.monotonic()
        for _ in range(10):
            assert fs.exists("dead/file") and fs.cat_file("dead/file") == b"here"
        assert time.monotonic() - began < 5
        with pytest.warns(ckpt.DegradedWarning):
            ckpt.list("none")
    finally:
        grid.up()
    # A host that is back is asked again.
    wait_until_all_answer(fs)
    fs.rm("dead", recursive=True)


def wait_until_all_answer(fs):
    deadline = time.monotonic() + 120
    while fs.client.list_report()["silent"] and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not fs.client.list_report()["silent"]


def test_a_host_that_comes_back_at_another_address_is_found(grid):
    fs = fsspec.filesystem("ckpt", grid=grid.file, skip_instance_cache=True)
    fs.pipe_file("moved/file", b"here")
    address = grid.up()["hosts"][0]["addr"]
    grid.kill_one()
    host, port = address.rsplit(":", 1)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as other:
        other.bind((host, int(port)))
        assert grid.up()["hosts"][0]["addr"] != address
        wait_until_all_answer(fs)
    fs.rm("moved", recursive=True)


def test_a_transaction_is_committed_at_its_end_and_nothing_of_it_if_it_raises(fs):
    with fs.transaction:
        for name in "ab":
            with fs.open(f"trans/{name}", "wb") as file:
                file.write(name.encode())
        assert not fs.exists("trans/a")
    assert fs.cat("trans/*") == {"trans/a": b"a", "trans/b": b"b"}
    with pytest.raises(KeyError), fs.transaction:
        with fs.open("trans/c", "wb") as file:
            file.write(b"c")
        raise KeyError("no")
    assert not fs.exists("trans/c")


def test_threads_may_write_at_once(fs):
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda n: fs.pipe_file(f"threads/{n}", bytes([n])), range(16)))
    assert len(fs.find("threads")) == 16
    assert all(fs.cat_file(f"threads/{n}") == bytes([n]) for n in range(16))


DIES = """
import os, signal, fsspec
file = fsspec.filesystem("ckpt").open("dies/file", "wb")
file.write(b"x" * (32 << 20))
file.write(b"y" * (32 << 20))
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_process_that_is_killed_leaves_the_file_as_it_was(fs):
    fs.pipe_file("dies/file", b"old")
    died = subprocess.run([sys.executable, "-c", DIES], timeout=60)
    assert died.returncode == -signal.SIGKILL
    assert fs.find("dies") == ["dies/file"] and fs.cat_file("dies/file") == b"old"


def test_only_what_is_read_is_fetched(fs):
    data = noise(24 << 20)
    fs.pipe_file("part/file", data)
    with fs.open("part/file") as file:
        file.seek(7 << 20)
        assert file.read(1000) == data[7 << 20 :][:1000]
        assert file.cost()[0] < 3 << 20


def test_numpy(grid):
    numpy = pytest.importorskip("numpy")
    weights = numpy.arange(12.0).reshape(3, 4)
    with fsspec.open("ckpt://numpy/weights.npy", "wb") as file:
        numpy.save(file, weights)
    with fsspec.open("ckpt://numpy/weights.npy") as file:
        assert (numpy.load(file) == weights).all()
    with fsspec.open("ckpt://numpy/all.npz", "wb") as file:
        numpy.savez(file, weights=weights)
    with fsspec.open("ckpt://numpy/all.npz") as file:
        assert (numpy.load(file)["weights"] == weights).all()


def test_pandas(grid):
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"step": [1, 2], "loss": [0.5, 0.25]})
    frame.to_csv("ckpt://pandas/loss.csv", index=False)
    assert pandas.read_csv("ckpt://pandas/loss.csv").equals(frame)
    frame.to_pickle("ckpt://pandas/loss.pkl")
    assert pandas.read_pickle("ckpt://pandas/loss.pkl").equals(frame)
