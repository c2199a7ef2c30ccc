"""What a job says to the `ckpt run` that supervises it."""

from __future__ import annotations

import os
import socket


def notify(
    *,
    saved: bool = False,
    progress: float | None = None,
    step: int | None = None,
    busy: bool | None = None,
) -> bool:
    """Says to ``ckpt run`` how far this job is. Returns whether ``ckpt run`` supervises it; otherwise does nothing.

    ``saved``: the state in the files is whole, and stays so until the next one is written. ``progress``: the share of
    the work that is done. ``busy``: the job can't be interrupted for a checkpoint, or can be again.
    """
    given = {
        "SAVED": 1 if saved else None,
        "PROGRESS": progress,
        "STEP": step,
        "BUSY": None if busy is None else int(busy),
    }
    lines = [f"{name}={value}" for name, value in given.items() if value is not None]
    address = os.environ.get("CKPT_NOTIFY")
    if not address:
        return False
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as made:
        try:
            made.sendto("\n".join(lines).encode(), address)
        except (FileNotFoundError, ConnectionRefusedError):
            # It has ended.
            return False
    return True
