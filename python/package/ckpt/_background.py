"""Saves in the background: of each job one at a time, and one that waits for it."""

from __future__ import annotations

import os
import threading
import warnings
from collections import deque
from collections.abc import Callable
from concurrent.futures import CancelledError, Future, wait
from typing import TYPE_CHECKING, NamedTuple

from ._errors import CkptError, DegradedWarning, ReplacedError

if TYPE_CHECKING:
    from .reports import SaveReport

#: Most saves that run at once. A client keeps connections for as many.
RUNNING_MAX = 4

#: Most jobs with a save that waits. One more is not begun before another one starts.
WAITING_MAX = 256

#: Grid, key, certificate and job: what has one line.
Key = tuple[str, ...]


def _of_another_process() -> RuntimeError:
    return RuntimeError("this save was started before a fork: only the parent process knows its end")


class Pending(Future["SaveReport"]):
    """A save in the background. Its result is a *SaveReport* (:mod:`ckpt.reports`).

    It is a ``concurrent.futures.Future``, so ``asyncio.wrap_future`` takes it, too. Python does not exit before
    it is done. A failure that nobody asks for is said by a :class:`DegradedWarning`.
    """

    def __init__(self, job: str, stop: Callable[[], None]) -> None:
        super().__init__()
        #: The job that is saved.
        self.job = job
        self._stop = stop
        self._process = os.getpid()
        self._is_given_up = False
        _open.add(self)
        self.add_done_callback(_open.discard)

    def result(self, timeout: float | None = None) -> SaveReport:
        """Waits for the end of the save, at most ``timeout`` seconds, and returns its report.

        Raises what the save failed with, :class:`ReplacedError` if a newer save of the job took its place
        before it began, ``concurrent.futures.CancelledError`` after :meth:`cancel`, and
        ``concurrent.futures.TimeoutError`` if it is not done in time; it then goes on.
        """
        self._is_of_here()
        return super().result(timeout)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Like :meth:`result`, but returns what the save failed with, or ``None``."""
        self._is_of_here()
        return super().exception(timeout)

    def cancel(self) -> bool:
        """Gives the save up. Returns whether it was not done yet.

        One that waits does not begin. One that runs commits nothing, unless it is committing in this very moment:
        then it has a result all the same.
        """
        self._is_of_here()
        if super().cancel():
            _withdraw(self)
            return True
        if self.done():
            return False
        self._is_given_up = True
        self._stop()
        return True

    def _is_of_here(self) -> None:
        if self._process != os.getpid() and not self.done():
            raise _of_another_process()

    def _end(self, work: Callable[[], SaveReport]) -> None:
        """Has the outcome of ``work``."""
        try:
            report = work()
        except CkptError as failure:
            if self._is_given_up:
                self.set_exception(CancelledError())
                return
            self.set_exception(failure)
            _warn_of(self.job, failure)
        except BaseException as failure:
            self.set_exception(failure)
            _warn_of(self.job, failure)
        else:
            self.set_result(report)


def _warn_of(job: str, failure: BaseException) -> None:
    if isinstance(failure, ReplacedError):
        return
    try:
        text = f"job {job}: a save in the background failed: {failure}"
        warnings.warn(text, DegradedWarning, stacklevel=4)
    except Warning:
        # Warnings are errors here; the failure is in the result.
        pass


class Task(NamedTuple):
    """A save that has not begun, and what becomes of it."""

    pending: Pending
    work: Callable[[], SaveReport]
    #: Gives back what the save holds: memory, a directory. Called once, whatever becomes of it.
    release: Callable[[], None]


class _Line:
    """The saves of one job."""

    def __init__(self) -> None:
        self.running = 0
        self.waiting: Task | None = None


#: Saves that are not done.
_open: set[Pending] = set()

# Guards what follows; notified when a save has begun or ended.
_changed = threading.Condition()
_lines: dict[Key, _Line] = {}
#: Lines that may have a save that can begin. Some have none any more.
_ready: deque[Key] = deque()
_workers = 0


def submit(key: Key, task: Task) -> None:
    """Puts a save in its line, in place of the one that waits there."""
    global _workers
    with _changed:
        while _waiting() >= WAITING_MAX:
            _changed.wait()
        line = _lines.setdefault(key, _Line())
        replaced, line.waiting = line.waiting, task
        if not line.running:
            _ready.append(key)
        # The others may be busy. Who finds nothing to do ends.
        is_hired = not line.running and _workers < RUNNING_MAX
        _workers += is_hired
    if replaced is not None:
        _drop(replaced)
    if is_hired:
        _start(_work)


def give_up_all() -> None:
    """Gives up what is not done, so that Python can exit although its user did not want to wait."""
    for pending in list(_open):
        pending.cancel()


def wait_for(pendings: list[Pending]) -> None:
    """Waits until saves are done, but not for those that a parent process had begun."""
    wait([pending for pending in pendings if pending._process == os.getpid()])


def run_at_once(key: Key, task: Task) -> None:
    """Ends a save that has begun already, in a thread of its own. Others of its job wait for it."""
    with _changed:
        _lines.setdefault(key, _Line()).running += 1
    _start(lambda: _run(key, task))


def drop_waiting(key: Key) -> None:
    """Drops the save that waits in a line, since a newer one is made; the newer one may have its memory."""
    with _changed:
        line = _lines.get(key)
        if line is None:
            return
        dropped, line.waiting = line.waiting, None
        _forget_idle(key, line)
    if dropped is not None:
        _drop(dropped)


def settle(key: Key) -> None:
    """Before a save in the foreground: drops the one that waits, and waits for the one that runs.

    Otherwise the older one would be the newest version in the end.
    """
    drop_waiting(key)
    with _changed:
        while key in _lines and _lines[key].running:
            _changed.wait()


def _drop(task: Task) -> None:
    """Ends a save that never began, because a newer one takes its place."""
    task.release()
    if task.pending.set_running_or_notify_cancel():
        version = "a newer save of the job took the place of this one before it began"
        task.pending.set_exception(ReplacedError(f"cannot save job {task.pending.job}: {version}"))


def _withdraw(pending: Pending) -> None:
    """Takes a save that is cancelled out of its line."""
    with _changed:
        for key, line in _lines.items():
            if line.waiting is not None and line.waiting.pending is pending:
                task, line.waiting = line.waiting, None
                _forget_idle(key, line)
                break
        else:
            return
    task.release()
    pending.set_running_or_notify_cancel()


def _waiting() -> int:
    return sum(line.waiting is not None for line in _lines.values())


def _forget_idle(key: Key, line: _Line) -> None:
    if not line.running and line.waiting is None:
        del _lines[key]
        _changed.notify_all()


def _start(work: Callable[[], None]) -> None:
    # Not a daemon: Python waits for it at its exit.
    thread = threading.Thread(target=work, name="ckpt-save")
    try:
        thread.start()
    except RuntimeError:
        # Python is exiting, and starts no threads any more.
        work()


def _work() -> None:
    global _workers
    while True:
        with _changed:
            taken = _next()
            if taken is None:
                _workers -= 1
                return
        _run(*taken)


def _next() -> tuple[Key, Task] | None:
    while _ready:
        key = _ready.popleft()
        line = _lines.get(key)
        if line is not None and not line.running and line.waiting is not None:
            task, line.waiting = line.waiting, None
            line.running += 1
            _changed.notify_all()
            return key, task
    return None


def _run(key: Key, task: Task) -> None:
    def work() -> SaveReport:
        try:
            return task.work()
        finally:
            # Before the result is there, so that who sees it finds the place free: a callback may save again.
            task.release()
            _leave(key)

    if task.pending.set_running_or_notify_cancel():
        task.pending._end(work)
    else:
        task.release()
        _leave(key)


def _leave(key: Key) -> None:
    with _changed:
        line = _lines.get(key)
        if line is None:
            return
        line.running -= 1
        if line.waiting is not None:
            _ready.append(key)
        _forget_idle(key, line)
        _changed.notify_all()


def _after_fork() -> None:
    # The threads are in the parent, and so are the saves.
    global _changed, _workers
    _changed = threading.Condition()
    _workers = 0
    _lines.clear()
    _ready.clear()
    _open.clear()


os.register_at_fork(after_in_child=_after_fork)
