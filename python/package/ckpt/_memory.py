"""Bytes in the memory of a program, and the memory that keeps a copy of them while they are saved."""

from __future__ import annotations

import io
import os
import sys
import threading
from typing import Any

from ._errors import UsageError

#: Bytes that are copied at once. Signals are handled in between.
COPY_BYTES = 64 << 20

#: Most copies that are kept for the next save. Fresh memory is slower to write than what is there already.
KEPT_MAX = 2


def memory_of(source: Any) -> memoryview | None:
    """The bytes of an object that is in memory, such as ``bytes``, an array or a tensor; else ``None``."""
    if isinstance(source, io.BytesIO):
        rest = source.getbuffer()[source.tell() :]
        return rest
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(source, torch.Tensor):
        flat = source.detach().cpu().contiguous().reshape(-1)
        source = flat.view(torch.uint8).numpy()
    try:
        view = memoryview(source)
    except TypeError:
        return None
    if view.nbytes == 0:
        return memoryview(b"")
    if not view.c_contiguous:
        raise UsageError("the array is not contiguous in memory: pass a contiguous copy of it")
    try:
        return view.cast("B")
    except TypeError:
        raise UsageError(f"elements of the form {view.format!r}: pass its bytes") from None


class Stage:
    """A copy of bytes, in a file that is in memory only: it is written and read while other threads run."""

    def __init__(self) -> None:
        self.descriptor = os.memfd_create("ckpt-stage")
        #: Number of bytes of the copy.
        self.length = 0
        #: Number of bytes for which there is memory.
        self.room = 0

    def fill(self, view: memoryview) -> None:
        """Copies the bytes."""
        at = 0
        self.room = max(self.room, len(view))
        while at < len(view):
            at += os.pwrite(self.descriptor, view[at : at + COPY_BYTES], at)
        self.length = len(view)

    def close(self) -> None:
        """Frees the memory."""
        os.close(self.descriptor)


_lock = threading.Lock()
_kept: list[Stage] = []


def staged(view: memoryview) -> Stage:
    """Copies bytes to memory that was used before, if there is some."""
    with _lock:
        enough = [stage for stage in _kept if stage.room >= len(view)]
        taken = min(enough, key=_room) if enough else max(_kept, key=_room, default=None)
        if taken is not None:
            _kept.remove(taken)
    stage = taken or Stage()
    try:
        stage.fill(view)
    except BaseException:
        stage.close()
        raise
    return stage


def give_back(stage: Stage) -> None:
    """Keeps memory for the next save, not much more than this one needed."""
    if stage.room > 2 * stage.length:
        os.ftruncate(stage.descriptor, stage.length)
        stage.room = stage.length
    with _lock:
        if len(_kept) < KEPT_MAX:
            _kept.append(stage)
            return
    stage.close()


def free_kept() -> None:
    """Frees the memory that is kept for the next save."""
    with _lock:
        kept = _kept[:]
        _kept.clear()
    for stage in kept:
        stage.close()


def _room(stage: Stage) -> int:
    return stage.room


def _after_fork() -> None:
    # The parent goes on to use the memory of these files.
    global _lock
    _lock = threading.Lock()
    free_kept()


os.register_at_fork(after_in_child=_after_fork)
