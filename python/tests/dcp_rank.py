"""One process of a distributed save or load: RANK WORLD PORT ACTION URL."""

import os
import signal
import sys

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

TENSORS = 8
ROWS = 1 << 10


def whole(number):
    """A tensor of 4 MiB that does not compress."""
    generator = torch.Generator().manual_seed(number)
    return torch.rand(ROWS, 1 << 10, generator=generator)


def main():
    rank, world, port, action, url = sys.argv[1:]
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=port, RANK=rank, WORLD_SIZE=world)
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (int(world),))
    saving = action != "load"
    values = [whole(number) if saving else torch.zeros(ROWS, 1 << 10) for number in range(TENSORS)]
    state = {f"t{number}": distribute_tensor(value, mesh, [Shard(0)]) for number, value in enumerate(values)}
    state["step"] = torch.tensor(9 if saving else 0)
    if action == "die" and rank == "1":
        from ckpt import _client

        class Dying:
            """A writer whose process is killed in the middle."""

            def __init__(self, inner):
                self.inner = inner

            def write(self, data):
                self.inner.write(data)
                os.kill(os.getpid(), signal.SIGKILL)

        made = _client.Writer.__init__
        _client.Writer.__init__ = lambda self, inner, *of: made(self, Dying(inner), *of)
    if saving:
        dcp.save(state, checkpoint_id=url)
    else:
        dcp.load(state, checkpoint_id=url)
        assert state["step"].item() == 9
        for number in range(TENSORS):
            mine = distribute_tensor(whole(number), mesh, [Shard(0)]).to_local()
            assert torch.equal(state[f"t{number}"].to_local(), mine), number
    print("done", flush=True)
    dist.destroy_process_group()


main()
