"""Failures as exceptions, one class for each exit status of the program."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .reports import Failure, HostNote, SuccessorNote


class CkptError(Exception):
    """A call failed. Nothing was committed, and the target of a restore is unchanged.

    ``exit_code`` is the exit status that the program ``ckpt`` has for the same failure. The other
    attributes are the fields of *Failure* in :mod:`ckpt.reports`.
    """

    exit_code: int = 1
    status: str = "failed"
    message: str = ""
    hosts: list[HostNote] = []
    state: str | None = None
    next: str | None = None
    successor: SuccessorNote | None = None

    def __str__(self) -> str:
        return self.message or super().__str__()


class UsageError(CkptError, ValueError):
    """An argument, the grid file or a key file is wrong (2)."""

    exit_code = 2


class NotFoundError(CkptError, FileNotFoundError):
    """There is no such job, version, checkpoint or file (4)."""

    exit_code = 4


class TooFewHostsError(CkptError, ConnectionError):
    """Not enough hosts can be reached; nothing was stored. Try again later (5)."""

    exit_code = 5


class DeniedError(CkptError, PermissionError):
    """The identity, key or role does not permit the call (6)."""

    exit_code = 6


class DamagedError(CkptError, OSError):
    """The checkpoint is damaged beyond repair: too few of its shards are intact (7)."""

    exit_code = 7


class LocalIOError(CkptError, OSError):
    """Reading or writing on this machine failed (8)."""

    exit_code = 8


class DeadlineError(CkptError, TimeoutError):
    """There were enough hosts, but the call did not finish within the deadline (9)."""

    exit_code = 9


class AnotherSuccessorError(CkptError):
    """Another version follows the one that ``after`` names, or may follow it (10)."""

    exit_code = 10


class ReplacedError(CkptError):
    """A save in the background did not begin, because a newer one of its job took its place."""

    status = "replaced"


class DegradedWarning(UserWarning):
    """The call is done, but with less than it promises, like exit status 3 of the program."""


_CLASSES = {
    kind.exit_code: kind
    for kind in (
        UsageError,
        NotFoundError,
        TooFewHostsError,
        DeniedError,
        DamagedError,
        LocalIOError,
        DeadlineError,
        AnotherSuccessorError,
    )
}


def exception(exit_code: int, fields: str) -> CkptError:
    """The exception for a failure: its exit status, and its fields as JSON."""
    failure: Failure = json.loads(fields)
    message = failure["message"]
    if failure.get("state"):
        message += f"; {failure['state']}"
    if failure.get("next"):
        message += f" (next: {failure['next']})"
    made = _CLASSES.get(exit_code, CkptError)(message)
    made.exit_code = exit_code
    for name in ("status", "hosts", "state", "next", "successor"):
        setattr(made, name, failure.get(name))
    made.message = message
    return made
