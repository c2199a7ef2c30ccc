"""Training programs that `trainers.py` kills and starts again: each one as its users write it.

    trainer_jobs.py NAME JOB STEPS

Trains for so many steps more than its newest checkpoint has, and saves as the job JOB of the grid of CKPT_GRID. Says
in the file EVENTS, a line each: `state STEP DIGEST` before a checkpoint is written, `saved STEP` where the program
knows that it is whole, `resumed STEP DIGEST` for what it goes on from, and `end STEP`.
"""

import hashlib
import os
import sys
import time
from pathlib import Path

# Steps between two checkpoints.
PERIOD = 5

# Seconds of a step, so that a kill comes between two checkpoints or in one.
STEP_S = 0.03


def say(*words):
    with open(os.environ["EVENTS"], "a") as events:
        events.write(" ".join(map(str, words)) + "\n")


def tensors_in(value):
    """All tensors of nested dictionaries and lists, in a fixed order."""
    if hasattr(value, "detach"):
        yield value
    elif isinstance(value, dict):
        for name in sorted(value, key=str):
            yield from tensors_in(value[name])
    elif isinstance(value, (list, tuple)):
        for one in value:
            yield from tensors_in(one)


def digest(*states):
    """A hash of all tensors: of the model, and of what the optimizer knows."""
    import torch

    made = hashlib.sha256()
    for tensor in tensors_in(list(states)):
        flat = tensor.detach().cpu().contiguous().reshape(-1)
        made.update(flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b"")
    return made.hexdigest()[:16]


def device():
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


def network():
    import torch

    torch.manual_seed(1)
    layers = [torch.nn.Linear(256, 512), torch.nn.ReLU(), torch.nn.Linear(512, 256)]
    return torch.nn.Sequential(*layers)


class Training:
    """A loop of PyTorch's own: a network, its optimizer, and the number of the step."""

    def __init__(self):
        import torch

        self.torch = torch
        self.model = network().to(device())
        self.optimizer = torch.optim.Adam(self.model.parameters())
        self.step = 0
        self.go(1)

    def go(self, steps):
        for _ in range(steps):
            self.optimizer.zero_grad()
            output = self.model(self.torch.rand(8, 256, device=device()))
            (output - 1).square().mean().backward()
            self.optimizer.step()
            self.step += 1
            time.sleep(STEP_S)

    def state(self):
        moments = {}
        for number, kept in self.optimizer.state_dict()["state"].items():
            for name, value in kept.items():
                moments[f"optimizer.{number}.{name}"] = value
        return {**self.model.state_dict(), **moments, "step": self.torch.tensor(self.step)}

    def load(self, state):
        self.model.load_state_dict({name: state[name] for name in self.model.state_dict()})
        kept = self.optimizer.state_dict()
        for number in kept["state"]:
            for name in kept["state"][number]:
                kept["state"][number][name] = state[f"optimizer.{number}.{name}"]
        self.optimizer.load_state_dict(kept)
        self.step = int(state["step"])

    def resume(self, state):
        self.load(state)
        say("resumed", self.step, digest(self.state()))

    def run(self, steps, save):
        end = self.step + steps
        while self.step < end:
            self.go(PERIOD - self.step % PERIOD)
            state = self.state()
            say("state", self.step, digest(state))
            save(state)
        say("end", self.step)


def newest_step(job, done):
    """The newest directory `ckpt://JOB/step-N` that has the file `done`, which is written last."""
    import fsspec

    found = fsspec.filesystem("ckpt").glob(f"ckpt://{job}/step-*/{done}")
    steps = [int(path.split("/step-")[1].split("/")[0]) for path in found]
    return max(steps, default=None)


def dcp(job, steps, how="wait"):
    import torch.distributed as dist
    import torch.distributed.checkpoint as dcp

    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=os.environ["PORT"], RANK="0", WORLD_SIZE="1")
    dist.init_process_group("gloo")
    training = Training()
    newest = newest_step(job, ".metadata")
    if newest is not None:
        state = {name: training.torch.zeros_like(value) for name, value in training.state().items()}
        dcp.load(state, checkpoint_id=f"ckpt://{job}/step-{newest}")
        training.resume(state)
    last = []

    def save(state):
        url, step = f"ckpt://{job}/step-{training.step}", training.step
        if how == "wait":
            dcp.save(state, checkpoint_id=url)
            say("saved", step)
            return
        from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType

        for before in last:
            before.result()
        kind = AsyncCheckpointerType[how.upper()]
        saving = dcp.async_save(state, checkpoint_id=url, async_checkpointer_type=kind)
        saving = getattr(saving, "upload_completion", saving)
        saving.add_done_callback(lambda done: done.exception() or say("saved", step))
        last[:] = [saving]

    training.run(steps, save)
    for saving in last:
        saving.result()
    dist.destroy_process_group()


def dcp_thread(job, steps):
    dcp(job, steps, "thread")


def dcp_process(job, steps):
    dcp(job, steps, "process")


def torchtitan(job, steps):
    """torchtitan's checkpoint manager, as its trainer uses it. The trainer itself needs a GPU and is not run."""
    import torch.distributed as dist
    from torchtitan.components.checkpointer.dcp import CheckpointManager

    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=os.environ["PORT"], RANK="0", WORLD_SIZE="1")
    dist.init_process_group("gloo")
    training = Training()

    class Moments:
        """What the optimizer and the loop know; the manager saves the model by itself."""

        def state_dict(self):
            of_model = training.model.state_dict()
            return {name: value for name, value in training.state().items() if name not in of_model}

        def load_state_dict(self, state):
            training.load({**training.model.state_dict(), **state})

    class Nothing:
        def state_dict(self):
            return {}

        def load_state_dict(self, state):
            pass

    settings = CheckpointManager.Config(
        enable=True, folder=f"ckpt://{job}", interval=PERIOD, keep_latest_k=2, async_mode="async"
    )
    manager = CheckpointManager(
        settings,
        dataloader=Nothing(),
        model_parts=[training.model],
        optimizers=Moments(),
        lr_schedulers=Nothing(),
        states={},
        sd_adapter=None,
        base_folder="outputs",
    )
    if manager.load():
        # The model is loaded after the rest.
        say("resumed", training.step, digest(training.state()))

    def save(state):
        manager.save(training.step)
        saving, step = manager.save_future, training.step
        saving.add_done_callback(lambda done: done.exception() or say("saved", step))

    training.run(steps, save)
    manager.maybe_wait_for_saving()
    manager.close()
    dist.destroy_process_group()


def safetensors(job, steps):
    import safetensors.torch

    import ckpt

    training = Training()
    try:
        with ckpt.open(job) as file:
            training.resume(safetensors.torch.load(file.read()))
    except ckpt.NotFoundError:
        pass

    def save(state):
        # In the background: the bytes are copied when the call returns.
        ckpt.save(safetensors.torch.save(state), job=job, background=True, labels={"step": str(training.step)})

    training.run(steps, save)


def zarr(job, steps):
    import fsspec
    import zarr

    training = Training()
    newest = newest_step(job, "whole")
    if newest is not None:
        group = zarr.open_group(f"ckpt://{job}/step-{newest}", mode="r")
        # A name with a dot is one name; a scalar has no dimension.
        state = {name: training.torch.tensor(group[name][...]) for name in group.array_keys()}
        training.resume(state)

    def save(state):
        url = f"ckpt://{job}/step-{training.step}"
        group = zarr.open_group(url, mode="w")
        for name, value in state.items():
            group.create_array(name, data=value.detach().cpu().numpy())
        # Last of all, so that half of a group is none.
        fsspec.filesystem("ckpt").pipe_file(f"{url}/whole", b"1")
        say("saved", training.step)

    training.run(steps, save)


def xarray(job, steps):
    import fsspec
    import xarray

    training = Training()
    newest = newest_step(job, "whole")
    if newest is not None:
        with xarray.open_zarr(f"ckpt://{job}/step-{newest}") as found:
            training.resume({name: training.torch.tensor(found[name].values) for name in found.data_vars})

    def save(state):
        url = f"ckpt://{job}/step-{training.step}"
        arrays = {name: value.detach().cpu().numpy() for name, value in state.items()}
        named = {
            name: ([f"{name}.{axis}" for axis in range(value.ndim)], value) for name, value in arrays.items()
        }
        xarray.Dataset(named).to_zarr(url, mode="w")
        fsspec.filesystem("ckpt").pipe_file(f"{url}/whole", b"1")
        say("saved", training.step)

    training.run(steps, save)


def hf_trainer(steps, out, newest, **settings):
    """The Trainer of Transformers, with a model of its own: nothing is loaded from a hub."""
    import torch
    from transformers import Trainer, TrainerCallback, TrainingArguments

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = network()

        def forward(self, x, labels):
            output = self.inner(x)
            return {"loss": (output - labels).square().mean(), "logits": output}

    class Events(TrainerCallback):
        """Says what is saved before it is saved, and from what the training goes on."""

        def hash(self, given):
            optimizer = given["optimizer"]
            optimizer = getattr(optimizer, "optimizer", optimizer)
            return digest(given["model"].state_dict(), optimizer.state_dict()["state"])

        def on_train_begin(self, args, state, control, **given):
            if state.global_step:
                say("resumed", state.global_step, self.hash(given))

        def on_step_end(self, args, state, control, **given):
            time.sleep(STEP_S)
            # Each one: a checkpoint at SIGTERM may be that of any step.
            say("state", state.global_step, self.hash(given))

        def on_train_end(self, args, state, control, **given):
            say("end", state.global_step)

    data = [{"x": torch.rand(256), "labels": torch.ones(256)} for _ in range(64)]
    begun = int(newest.rsplit("-", 1)[1]) if newest else 0
    callbacks = [Events(), *settings.pop("callbacks", [])]
    wanted = {
        "max_steps": begun + steps,
        "save_steps": PERIOD,
        "save_total_limit": 3,
        "per_device_train_batch_size": 4,
        "report_to": [],
        "disable_tqdm": True,
        "lr_scheduler_type": "constant",
        "logging_strategy": "no",
    }
    arguments = TrainingArguments(output_dir=str(out), **{**wanted, **settings})
    trainer = Trainer(model=Model(), args=arguments, train_dataset=data, callbacks=callbacks)
    trainer.train(resume_from_checkpoint=newest)


def transformers(job, steps):
    from ckpt.integrations import SaveCallback, newest_directory

    hf_trainer(steps, "out", newest_directory(job, "out"), callbacks=[SaveCallback(job)])


def transformers_watch(job, steps):
    """Beside `ckpt watch`: the program knows nothing of the grid. `ckpt restore` has been run."""
    from transformers.trainer_utils import get_last_checkpoint

    Path("out").mkdir(exist_ok=True)
    hf_trainer(steps, "out", get_last_checkpoint("out"))


def transformers_jit(job, steps):
    """Under `ckpt run`: at SIGTERM the Trainer writes a checkpoint and ends."""
    from transformers.trainer_utils import get_last_checkpoint

    Path("out").mkdir(exist_ok=True)
    newest = get_last_checkpoint("out")
    hf_trainer(steps, "out", newest, enable_jit_checkpoint=True, save_strategy="no")


def lightning(job, steps):
    import torch

    try:
        import lightning.pytorch as pl
    except ImportError:
        import pytorch_lightning as pl
    import fsspec

    class Module(pl.LightningModule):
        def __init__(self):
            super().__init__()
            self.inner = network()

        def training_step(self, batch, _):
            time.sleep(STEP_S)
            return (self.inner(batch) - 1).square().mean()

        def configure_optimizers(self):
            return torch.optim.Adam(self.parameters())

    class Events(pl.Callback):
        def hash(self, trainer, module):
            return digest(module.state_dict(), trainer.optimizers[0].state_dict()["state"])

        def on_train_start(self, trainer, module):
            if trainer.global_step:
                say("resumed", trainer.global_step, self.hash(trainer, module))

        def on_save_checkpoint(self, trainer, module, checkpoint):
            say("state", trainer.global_step, self.hash(trainer, module))

    fs = fsspec.filesystem("ckpt")
    found = [path for path in fs.glob(f"ckpt://{job}/*.ckpt") if "step=" in path]
    newest = max(found, key=lambda path: int(path.split("step=")[1].split(".")[0]), default=None)
    begun = int(newest.split("step=")[1].split(".")[0]) if newest else 0

    class Saving(pl.callbacks.ModelCheckpoint):
        def _save_checkpoint(self, trainer, path):
            super()._save_checkpoint(trainer, path)
            say("saved", trainer.global_step)

    saving = Saving(dirpath=f"ckpt://{job}", filename="{step}", every_n_train_steps=PERIOD, save_top_k=-1)
    trainer = pl.Trainer(
        max_steps=begun + steps,
        max_epochs=-1,
        accelerator="auto",
        devices=1,
        callbacks=[saving, Events()],
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir="lightning",
    )
    batches = torch.utils.data.DataLoader([torch.rand(256) for _ in range(256)], batch_size=8)
    trainer.fit(Module(), batches, ckpt_path=f"ckpt://{newest}" if newest else None)
    say("end", trainer.global_step)


def ray_train(job, steps):
    import pyarrow.fs
    import ray
    from fsspec import filesystem
    from ray.train import Checkpoint, RunConfig, ScalingConfig, get_checkpoint, report
    from ray.train.torch import TorchTrainer

    def loop(settings):
        import tempfile

        import torch

        training = Training()
        newest = get_checkpoint()
        if newest:
            with newest.as_directory() as directory:
                training.resume(torch.load(Path(directory) / "state.pt"))

        def save(state):
            with tempfile.TemporaryDirectory() as made:
                torch.save(state, Path(made) / "state.pt")
                report({"step": training.step}, checkpoint=Checkpoint.from_directory(made))
            say("saved", training.step)

        training.run(settings["steps"], save)

    # Its workers import this file, too.
    environment = {"PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])}
    ray.init(num_cpus=2, include_dashboard=False, runtime_env={"env_vars": environment}, log_to_driver=False)
    storage = pyarrow.fs.PyFileSystem(pyarrow.fs.FSSpecHandler(filesystem("ckpt")))
    run = RunConfig(name="run", storage_path=job, storage_filesystem=storage)
    scaling = ScalingConfig(num_workers=1, use_gpu=device() == "cuda")
    TorchTrainer(loop, train_loop_config={"steps": steps}, scaling_config=scaling, run_config=run).fit()


def deepspeed(job, steps):
    """Beside `ckpt watch`, which knows the file `latest`."""
    import torch

    import deepspeed

    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=os.environ["PORT"], RANK="0", WORLD_SIZE="1")
    os.environ["LOCAL_RANK"] = "0"
    model = network()
    optimizer = torch.optim.Adam(model.parameters())
    settings = {"train_batch_size": 8, "zero_optimization": {"stage": 0}}
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=settings)

    def hash():
        return digest(engine.module.state_dict(), optimizer.state_dict()["state"])

    step = 0
    found = [int(one.name.split("-")[1]) for one in Path("out").glob("step-*")]
    if found:
        step = max(found)
        engine.load_checkpoint("out", tag=f"step-{step}")
        say("resumed", step, hash())
    end = step + steps
    while step < end:
        loss = (engine(torch.rand(8, 256, device=engine.device)) - 1).square().mean()
        engine.backward(loss)
        engine.step()
        step += 1
        time.sleep(STEP_S)
        if step % PERIOD == 0:
            say("state", step, hash())
            engine.save_checkpoint("out", tag=f"step-{step}")
    say("end", step)


if __name__ == "__main__":
    globals()[sys.argv[1]](sys.argv[2], int(sys.argv[3]))
