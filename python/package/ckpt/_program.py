"""The program of the package under its second name."""

from __future__ import annotations

import os
import sys
import sysconfig
from typing import NoReturn


def store() -> NoReturn:
    """Runs the daemon: the program ``ckpt`` of this installation under the name ``ckpt-store``."""
    beside = os.path.join(os.path.dirname(os.path.abspath(sys.argv[0])), "ckpt")
    program = beside if os.path.exists(beside) else os.path.join(sysconfig.get_path("scripts"), "ckpt")
    os.execv(program, ["ckpt-store", *sys.argv[1:]])
