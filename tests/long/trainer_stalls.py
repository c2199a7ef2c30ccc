"""How long a save holds a training up. Called by `trainers.py`: stall|gpu_stall MIB LOCAL_DIRECTORY."""

import io
import os
import shutil
import statistics
import sys
import time
import warnings
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType

import ckpt

# Files in memory have no fsync, and a checkpoint is replaced.
warnings.simplefilter("ignore")

# Saves that are timed for each way. One more goes before them: it makes connections, buffers and processes.
ROUNDS = 5

TENSORS = 16
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"

# Steps that are timed without a save.
QUIET_STEPS = 20


def synchronize():
    if DEVICE == "cuda":
        torch.cuda.synchronize()


def state_of(mib):
    numbers = (mib << 20) // TENSORS // 4
    return {f"t{number}": torch.rand(numbers, device=DEVICE) for number in range(TENSORS)}


def timed(call):
    synchronize()
    began = time.perf_counter()
    result = call()
    synchronize()
    return time.perf_counter() - began, result


def future_of(saving):
    return getattr(saving, "upload_completion", saving)


def async_save(state, where, kind):
    saving = dcp.async_save(state, checkpoint_id=where, async_checkpointer_type=AsyncCheckpointerType[kind])
    return future_of(saving)


def spread(seconds):
    return f"{statistics.median(seconds):7.3f} s ({min(seconds):.3f} to {max(seconds):.3f})"


class Training:
    """A step of a training beside the save: products of matrices, as long as a small model's step."""

    def __init__(self):
        self.left = torch.rand(2048 if DEVICE == "cuda" else 256, 2048, device=DEVICE)
        self.right = torch.rand(2048, 2048, device=DEVICE)

    def step(self):
        def work():
            product = self.left
            for _ in range(20 if DEVICE == "cuda" else 1):
                product = product @ self.right * 1e-3
            return product

        return timed(work)[0]


def stall(mib, local):
    """`dcp.async_save` to a grid beside a local directory, in turn."""
    state = state_of(mib)
    places = {"local": lambda name: str(local / name), "ckpt": lambda name: f"ckpt://stall/{name}"}
    for kind in ("THREAD", "PROCESS"):
        seconds = {"local": [], "ckpt": []}
        for number in range(ROUNDS + 1):
            for place, url in places.items():
                took, future = timed(lambda: async_save(state, url(f"{kind}-{number}".lower()), kind))
                future.result()
                if number:
                    seconds[place].append(took)
            shutil.rmtree(local, ignore_errors=True)
            ckpt_rm(f"stall/{kind.lower()}-{number}")
        ratio = statistics.median(seconds["ckpt"]) / statistics.median(seconds["local"])
        print(f"dcp.async_save by {kind.lower()}, {mib} MiB on {DEVICE}, stands still: "
              f"local {spread(seconds['local'])}, ckpt {spread(seconds['ckpt'])}, ratio {ratio:.2f}", flush=True)


def ckpt_rm(path):
    import fsspec

    fsspec.filesystem("ckpt").rm(path, recursive=True)


def ways_of(state, local):
    """Name, and what saves the state: returns what knows the end, or None if it is saved."""
    flat = torch.cat([value.reshape(-1) for value in state.values()])

    def torch_local():
        torch.save(state, local / "state.pt")

    def torch_background():
        buffer = io.BytesIO()
        torch.save(state, buffer)
        buffer.seek(0)
        return ckpt.save(buffer, job="buffer", background=True)

    ways = {
        "torch.save to a local file": torch_local,
        "ckpt.save(tensor, background=True)": lambda: ckpt.save(flat, job="flat", background=True),
        "torch.save to memory, ckpt.save(background=True)": torch_background,
        "dcp.save to a local directory": lambda: dcp.save(state, checkpoint_id=str(local / "dcp")) and None,
        "dcp.async_save to a local directory": lambda: async_save(state, str(local / "async"), "THREAD"),
        "dcp.async_save to ckpt://": lambda: async_save(state, "ckpt://gpu/async", "THREAD"),
    }
    try:
        import safetensors.torch
    except ImportError:
        return ways
    ways["safetensors to memory, ckpt.save(background=True)"] = lambda: ckpt.save(
        safetensors.torch.save(state), job="safetensors", background=True
    )
    return ways


def gpu_stall(mib, local):
    state = state_of(mib)
    training = Training()
    for _ in range(QUIET_STEPS):
        training.step()
    print(f"a model of {mib} MiB on {torch.cuda.get_device_name() if DEVICE == 'cuda' else 'the CPU'}, "
          f"PyTorch {torch.__version__}, {ROUNDS} saves each", flush=True)
    beside_torch = None
    for name, save in ways_of(state, local).items():
        local.mkdir(exist_ok=True)
        stalls, ends, during = [], [], []
        quiet = [training.step() for _ in range(QUIET_STEPS)]
        for number in range(ROUNDS + 1):
            began = time.perf_counter()
            took, saving = timed(save)
            steps = []
            while saving is not None and not saving.done():
                steps.append(training.step())
            if saving is not None:
                saving.result()
            if number:
                stalls.append(took)
                ends.append(time.perf_counter() - began)
                during += steps
        slower = statistics.mean(during) / statistics.mean(quiet) if during else 1
        beside_torch = beside_torch or statistics.median(stalls)
        print(f"{name:50} stands still {spread(stalls)}, {statistics.median(stalls) / beside_torch:5.2f} of torch.save; "
              f"saved after {statistics.median(ends):6.2f} s; steps meanwhile {slower:.2f} times as long", flush=True)
        shutil.rmtree(local, ignore_errors=True)


def main():
    which, mib, local = sys.argv[1], int(sys.argv[2]), Path(sys.argv[3])
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=os.environ["PORT"], RANK="0", WORLD_SIZE="1")
    dist.init_process_group("cpu:gloo,cuda:nccl" if DEVICE == "cuda" else "gloo")
    {"stall": stall, "gpu_stall": gpu_stall}[which](mib, local)
    dist.destroy_process_group()


# A process that saves imports this file, too.
if __name__ == "__main__":
    main()
