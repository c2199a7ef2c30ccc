"""Checkpoints on a grid of machines that may disappear at any time.

::

    import ckpt

    ckpt.save("state.pt", job="42")
    with ckpt.checkpoint("42") as directory:
        (directory / "step").write_text("900")
    with ckpt.open("42", "step") as file:
        print(file.read())
    pending = ckpt.save(weights, job="43", background=True)
    ckpt.restore("out", job="42", existing="replace")

The functions use the grid file that ``CKPT_GRID`` names, otherwise the one that ``ckpt join`` wrote, with one
client per process. A :class:`Client` has the same methods for other grids, keys and limits. A call that fails
raises a :class:`CkptError`, whose ``exit_code`` is the exit status of the program ``ckpt``. The types of the
dictionaries that calls return are in :mod:`ckpt.reports`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Literal, overload

from ._background import Pending
from ._ckpt import __version__
from ._client import (
    BUFFER_BYTES,
    Checkpoint,
    Client,
    File,
    Path,
    SaveKeywords,
    Source,
    Writer,
    shared_client,
)
from ._errors import (
    AnotherSuccessorError,
    CkptError,
    DamagedError,
    DeadlineError,
    DegradedWarning,
    DeniedError,
    LocalIOError,
    NotFoundError,
    ReplacedError,
    TooFewHostsError,
    UsageError,
)
from ._notify import notify

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from .reports import (
        ForgetReport,
        Health,
        HostsReport,
        RestoreReport,
        SaveReport,
        ShowReport,
        VerifyReport,
    )

__all__ = [
    "AnotherSuccessorError",
    "Checkpoint",
    "CkptError",
    "Client",
    "DamagedError",
    "DeadlineError",
    "DegradedWarning",
    "DeniedError",
    "File",
    "LocalIOError",
    "NotFoundError",
    "Pending",
    "ReplacedError",
    "TooFewHostsError",
    "UsageError",
    "Writer",
    "__version__",
    "checkpoint",
    "forget",
    "health",
    "hosts",
    "list",
    "notify",
    "open",
    "restore",
    "save",
    "show",
    "verify",
]


@overload
def save(
    source: Source,
    job: str,
    *,
    background: Literal[False] = False,
    **options: Unpack[SaveKeywords],
) -> SaveReport: ...


@overload
def save(
    source: Source, job: str, *, background: Literal[True], **options: Unpack[SaveKeywords]
) -> Pending: ...


def save(source: Source, job: str, **options: Any) -> Any:
    """See :meth:`Client.save`."""
    return shared_client().save(source, job, **options)


def restore(
    to: Path,
    job: str,
    *,
    version: int | None = None,
    labels: Mapping[str, str] | None = None,
    existing: Literal["stay", "replace", "clear"] = "stay",
    path: str | Iterable[str] = (),
) -> RestoreReport:
    """See :meth:`Client.restore`."""
    client = shared_client()
    return client.restore(to, job, version=version, labels=labels, existing=existing, path=path)


def show(job: str, version: int | None = None) -> ShowReport:
    """See :meth:`Client.show`."""
    return shared_client().show(job, version)


def verify(
    job: str | None = None, *, version: int | None = None, all_blocks: bool = False
) -> VerifyReport:
    """See :meth:`Client.verify`."""
    return shared_client().verify(job, version=version, all_blocks=all_blocks)


def hosts() -> HostsReport:
    """See :meth:`Client.hosts`."""
    return shared_client().hosts()


def health(*, prove: bool = False) -> Health:
    """See :meth:`Client.health`."""
    return shared_client().health(prove=prove)


def checkpoint(
    job: str,
    *,
    dir: Path | None = None,
    background: bool = False,
    **options: Unpack[SaveKeywords],
) -> Checkpoint:
    """See :meth:`Client.checkpoint`."""
    return shared_client().checkpoint(job, dir=dir, background=background, **options)


def open(
    job: str,
    path: str | bytes | None = None,
    *,
    version: int | None = None,
    buffering: int = BUFFER_BYTES,
) -> Any:
    """See :meth:`Client.open`."""
    return shared_client().open(job, path, version=version, buffering=buffering)


def list(job: str | None = None) -> Any:
    """See :meth:`Client.list`."""
    return shared_client().list(job)


def forget(
    job: str, *, version: int | None = None, keep: int | None = None, all: bool = False
) -> ForgetReport:
    """See :meth:`Client.forget`."""
    return shared_client().forget(job, version=version, keep=keep, all=all)
