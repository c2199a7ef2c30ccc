"""Trainers: what a training program adds in one line.

::

    from ckpt.integrations import SaveCallback, newest_directory

    trainer = Trainer(..., callbacks=[SaveCallback("run3")])
    trainer.train(resume_from_checkpoint=newest_directory("run3", "out"))

Needs ``transformers`` for :class:`SaveCallback`. Lightning and ``torch.distributed.checkpoint`` need no more than a
path that begins with ``ckpt://``.
"""

from __future__ import annotations

import os
import pathlib
from typing import TYPE_CHECKING, Any

from ._background import Pending
from ._client import Client, Path, SaveKeywords, shared_client
from ._errors import NotFoundError

if TYPE_CHECKING:
    from typing_extensions import Unpack

    _Callback = object
else:
    try:
        from transformers import TrainerCallback as _Callback
    except ImportError:
        _Callback = object


class SaveCallback(_Callback):
    """Saves each checkpoint that the Trainer of Transformers writes as the next version of ``job``.

    The training goes on meanwhile, until the next checkpoint is written: one save runs at a time. With
    ``save_total_limit=1`` the Trainer removes a directory as soon as the next one is there, so that the training
    waits for each save. A save that fails is a :class:`ckpt.DegradedWarning`, and the training goes on.

    Takes the options of :meth:`ckpt.Client.save`; the label ``step`` is the Trainer's step. Of several processes only
    the first one of the job saves, so all have to write into one directory.
    """

    def __init__(self, job: str, *, client: Client | None = None, **options: Unpack[SaveKeywords]) -> None:
        self._job = job
        self._client = client
        self._options = options
        self._pending: Pending | None = None

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Begins to save the directory that the Trainer has just written."""
        if not state.is_world_process_zero:
            return
        self._wait()
        options: SaveKeywords = {**self._options}
        options["labels"] = {"step": str(state.global_step), **(options.get("labels") or {})}
        directory = pathlib.Path(args.output_dir) / f"checkpoint-{state.global_step}"
        client = self._client or shared_client()
        self._pending = client.save(directory, self._job, background=True, **options)
        if args.save_total_limit == 1:
            self._wait()

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Waits for the last save."""
        self._wait()

    def _wait(self) -> None:
        pending, self._pending = self._pending, None
        if pending is not None:
            # Its failure was a warning.
            pending.exception()


def newest_directory(job: str, to: Path, *, client: Client | None = None) -> str | None:
    """Restores the newest version of a job into the directory ``to``, and returns the directory that it brought.

    That is what :class:`SaveCallback` or ``ckpt watch`` saved, such as ``to/checkpoint-500``. One of that name that is
    there is replaced. Returns ``None`` if the job has no version, as at the beginning of its first run.
    """
    client = client or shared_client()
    try:
        report = client.restore(to, job, existing="replace")
    except NotFoundError:
        return None
    files = client._inner.open(job, report["version"]).files()
    first = min((os.fsdecode(path) for path, _, _ in files), default="")
    return os.path.join(to, pathlib.PurePath(first).parts[0]) if first else None
