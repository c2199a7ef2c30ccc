"""Seconds of a distributed save and load of 1 GiB by one process: on a grid, and in a local DIRECTORY."""

import sys
import time
import warnings

import torch
import torch.distributed.checkpoint as dcp

warnings.simplefilter("ignore")
TENSORS = 64


def timed(what, call):
    began = time.monotonic()
    call()
    seconds = time.monotonic() - began
    print(f"{what:24} {seconds:6.2f} s  {1024 / seconds:7.1f} MiB/s", flush=True)


def main():
    state = {f"t{number}": torch.rand(4 << 20) for number in range(TENSORS)}
    for where in (sys.argv[1], "ckpt://seconds/step-1"):
        name = "ckpt" if where.startswith("ckpt") else "local directory"
        timed(f"{name}: save", lambda: dcp.save(state, checkpoint_id=where))
        again = {key: torch.zeros_like(value) for key, value in state.items()}
        timed(f"{name}: load", lambda: dcp.load(again, checkpoint_id=where))
        assert all(torch.equal(again[key], state[key]) for key in state)
        quarter = {f"t{number}": torch.zeros(4 << 20) for number in range(TENSORS // 4)}
        timed(f"{name}: a quarter", lambda: dcp.load(quarter, checkpoint_id=where))


main()
