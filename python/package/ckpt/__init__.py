"""Checkpoints on a grid of machines that may disappear at any time.

::

    import ckpt

    ckpt.save("state.pt", job="42")
    with ckpt.checkpoint("42") as directory:
        (directory / "step").write_text("900")
    with ckpt.open("42", "step") as file:
        print(file.read())
    ckpt.restore("out", job="42")

The functions use the grid file that ``CKPT_GRID`` names, otherwise the one that ``ckpt join`` wrote, with one
client per process. A :class:`Client` has the same methods for other grids, keys and limits. A call that fails
raises a :class:`CkptError`, whose ``exit_code`` is the exit status of the program ``ckpt``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, BinaryIO

from ._client import Client, File, Path, Writer, shared_client
from ._errors import (
    AnotherSuccessorError,
    CkptError,
    DamagedError,
    DeadlineError,
    DegradedWarning,
    DeniedError,
    LocalIOError,
    NotFoundError,
    TooFewHostsError,
    UsageError,
)

__all__ = [
    "AnotherSuccessorError",
    "CkptError",
    "Client",
    "DamagedError",
    "DeadlineError",
    "DegradedWarning",
    "DeniedError",
    "File",
    "LocalIOError",
    "NotFoundError",
    "TooFewHostsError",
    "UsageError",
    "Writer",
    "checkpoint",
    "forget",
    "list",
    "open",
    "restore",
    "save",
]


def save(
    source: Path | Iterable[Path] | Mapping[str, Path] | BinaryIO, job: str, **options: Any
) -> dict[str, Any]:
    """See :meth:`Client.save`."""
    return shared_client().save(source, job, **options)


def restore(to: Path, job: str, **options: Any) -> dict[str, Any]:
    """See :meth:`Client.restore`."""
    return shared_client().restore(to, job, **options)


def checkpoint(job: str, **options: Any) -> Any:
    """See :meth:`Client.checkpoint`."""
    return shared_client().checkpoint(job, **options)


def open(job: str, path: str | bytes | None = None, **options: Any) -> Any:
    """See :meth:`Client.open`."""
    return shared_client().open(job, path, **options)


def list(job: str | None = None) -> Any:
    """See :meth:`Client.list`."""
    return shared_client().list(job)


def forget(job: str, **which: Any) -> dict[str, Any]:
    """See :meth:`Client.forget`."""
    return shared_client().forget(job, **which)
