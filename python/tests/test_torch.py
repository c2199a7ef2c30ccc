"""PyTorch: `torch.save`, and distributed checkpoints by 1 and 4 processes. Needs torch."""

import pathlib
import socket
import subprocess
import sys
import time

import pytest

torch = pytest.importorskip("torch")
fsspec = pytest.importorskip("fsspec")

import torch.distributed.checkpoint as dcp  # noqa: E402

import ckpt  # noqa: E402
from ckpt.fs import CkptFileSystem  # noqa: E402

RANK = pathlib.Path(__file__).parent / "dcp_rank.py"


def free_port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def processes(world, action, url):
    """Runs the processes of a job. When one is killed, ends the others as a launcher does."""
    port = str(free_port())
    made = [
        subprocess.Popen([sys.executable, RANK, str(rank), str(world), port, action, url])
        for rank in range(world)
    ]
    deadline = time.monotonic() + 240
    while any(one.poll() is None for one in made) and time.monotonic() < deadline:
        if any(one.poll() for one in made):
            break
        time.sleep(0.1)
    for one in made:
        one.kill()
    return [one.wait() for one in made]


@pytest.mark.parametrize("saved_by, loaded_by", [(1, 1), (4, 4), (4, 1)])
def test_distributed_save_and_load(grid, saved_by, loaded_by):
    url = f"ckpt://dcp/{saved_by}-{loaded_by}/step-9"
    assert processes(saved_by, "save", url) == [0] * saved_by
    assert processes(loaded_by, "load", url) == [0] * loaded_by


def test_a_save_whose_process_is_killed_leaves_the_one_before(grid):
    assert processes(4, "save", "ckpt://killed/step-8") == [0] * 4
    before = fsspec.filesystem("ckpt").find("ckpt://killed")
    assert processes(4, "die", "ckpt://killed/step-9")[1] == -9
    # Files of other processes may be there. Without `.metadata` they are no checkpoint.
    after = fsspec.filesystem("ckpt").find("ckpt://killed")
    assert "killed/step-9/.metadata" not in after and set(before) <= set(after)
    assert processes(4, "load", "ckpt://killed/step-8") == [0] * 4
    assert processes(4, "load", "ckpt://killed/step-9") != [0] * 4
    assert processes(4, "save", "ckpt://killed/step-9") == [0] * 4
    assert processes(4, "load", "ckpt://killed/step-9") == [0] * 4


class Counting(CkptFileSystem):
    """Counts the bytes that hosts send."""

    fetched = 0

    def _open(self, path, mode="rb", **kwargs):
        file = super()._open(path, mode=mode, **kwargs)
        if mode == "rb":
            close = file.close

            def counted():
                if file._source is not None:
                    Counting.fetched += file.cost()[0]
                close()

            file.close = counted
        return file


@pytest.fixture
def counting(grid):
    fsspec.register_implementation("ckpt", Counting, clobber=True)
    yield Counting
    fsspec.register_implementation("ckpt", CkptFileSystem, clobber=True)


def test_a_quarter_of_the_tensors_costs_at_most_30_percent_of_the_bytes(counting):
    tensors = 16
    state = {f"t{number}": torch.rand(4 << 20) for number in range(tensors)}
    dcp.save(state, checkpoint_id="ckpt://quarter/step-1")
    everything = {name: torch.zeros_like(value) for name, value in state.items()}
    counting.fetched, began = 0, time.monotonic()
    dcp.load(everything, checkpoint_id="ckpt://quarter/step-1")
    all_bytes, all_seconds = counting.fetched, time.monotonic() - began
    assert all(torch.equal(everything[name], state[name]) for name in state)
    for chosen in [(4, 5, 6, 7), (1, 5, 9, 13)]:
        part = {f"t{number}": torch.zeros(4 << 20) for number in chosen}
        counting.fetched, began = 0, time.monotonic()
        dcp.load(part, checkpoint_id="ckpt://quarter/step-1")
        seconds = time.monotonic() - began
        assert all(torch.equal(part[name], state[name]) for name in part)
        print(
            f"\ntensors {chosen} of 16 with 16 MiB each: {counting.fetched} of {all_bytes} bytes"
            f" ({counting.fetched / all_bytes:.1%}), {seconds:.2f} s of {all_seconds:.2f} s"
        )
        assert counting.fetched <= 0.30 * all_bytes


def test_torch_save(grid):
    value = {"weights": torch.arange(1000), "step": 3}
    with fsspec.open("ckpt://torch/model.pt", "wb") as file:
        torch.save(value, file)
    with fsspec.open("ckpt://torch/model.pt", "rb") as file:
        again = torch.load(file)
    assert torch.equal(again["weights"], value["weights"]) and again["step"] == 3


def test_a_tensor_may_change_as_soon_as_the_call_returns(grid):
    weights = torch.rand(1000, 300).to(torch.bfloat16)
    before = weights.t().reshape(-1).clone()
    pending = ckpt.save(weights.t(), job="tensor", background=True)
    weights.zero_()
    pending.result(60)
    with ckpt.open("tensor") as file:
        back = torch.frombuffer(bytearray(file.read()), dtype=torch.bfloat16)
    assert torch.equal(back, before)
