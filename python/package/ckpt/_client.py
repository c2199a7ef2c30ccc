"""Clients of a grid, and files of checkpoints."""

from __future__ import annotations

import atexit
import io
import json
import math
import os
import pathlib
import shutil
import tempfile
import threading
import time
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, BinaryIO, Union

from . import _ckpt
from ._errors import DegradedWarning, UsageError

Path = Union[str, "os.PathLike[str]"]

#: Bytes that a file of a checkpoint reads at once for small reads.
BUFFER_BYTES = 128 << 10

#: Bytes that are read at once from a file object that is saved.
COPY_BYTES = 1 << 20


def default_grid() -> str:
    """The grid file that ``CKPT_GRID`` names, otherwise the one that ``ckpt join`` wrote."""
    named = os.environ.get("CKPT_GRID")
    if named:
        return named
    config = os.environ.get("XDG_CONFIG_HOME", "")
    if not os.path.isabs(config):
        config = os.path.expanduser("~/.config")
    usual = os.path.join(config, "ckpt", "grid.toml")
    if os.path.exists(usual):
        return usual
    raise UsageError("no grid file: set CKPT_GRID=FILE, or pass grid=FILE")


def _warn(what: Iterable[str]) -> None:
    for text in what:
        warnings.warn(text, DegradedWarning, stacklevel=4)


def _passed_over(job: str, skipped: list[dict[str, Any]]) -> list[str]:
    return [f"job {job}: version {one['version']} can't be read: {one['reason']}" for one in skipped]


class Client:
    """A client of one grid with one key. Threads may share it.

    ``grid`` is the grid file, by default the one that ``CKPT_GRID`` names, otherwise the one that ``ckpt
    join`` wrote. ``key`` and ``certificate`` are files, by default those that ``CKPT_KEY_FILE`` and
    ``CKPT_CERT_FILE`` name, otherwise those that the grid file names. ``memory`` (bytes), ``cpus`` and
    ``rate`` (bytes per second) limit what calls use of this machine; the default is 256 MiB, all processors
    and no limit of the rate.

    A child process can't use a client of its parent after a fork. The functions of the module ``ckpt``
    connect again in the child.
    """

    def __init__(
        self,
        grid: Path | None = None,
        *,
        key: Path | None = None,
        certificate: Path | None = None,
        memory: int | None = None,
        cpus: int | None = None,
        rate: int | None = None,
    ) -> None:
        self._inner = _ckpt.Client(
            default_grid() if grid is None else grid,
            key=key or os.environ.get("CKPT_KEY_FILE") or None,
            certificate=certificate or os.environ.get("CKPT_CERT_FILE") or None,
            memory=memory,
            cpus=cpus,
            rate=rate,
        )

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes the connections, and records what was learned of hosts."""
        self._inner.close()

    def identity_ends(self) -> int:
        """The time at which the key expires, in Unix seconds."""
        return self._inner.identity_ends()

    def save(
        self,
        source: Path | Iterable[Path] | Mapping[str, Path] | BinaryIO,
        job: str,
        *,
        labels: Mapping[str, str] | None = None,
        keep: int | None = None,
        redundancy: str | tuple[int, int] | None = None,
        after: int | str | None = None,
        deadline: float | None = None,
        ttl: float | None = None,
        full: bool = False,
        allow_empty: bool = False,
    ) -> dict[str, Any]:
        """Saves files, directories or the bytes of a file object as the next version of a job.

        ``source`` is a path, several paths, a mapping of names to the paths that are stored under them, or
        an object with ``read``. ``keep`` is the number of versions to keep, this one included (default 2).
        ``redundancy`` is data and parity shards, such as ``"3+2"``. With ``after``, the save is committed
        only as the single successor of a version: its number, the id of a checkpoint, or ``"none"``.
        ``deadline`` and ``ttl`` are in seconds; an infinite ``ttl`` ends the lease. Returns a *SaveReport*
        (``docs/json.md``).

        An empty list of paths, such as that of a pattern without a match, and an object that returns no byte
        raise :class:`UsageError` unless ``allow_empty``: the empty version would take the place of an
        earlier one. A file of 0 bytes that is named is saved.
        """
        options = save_options(
            labels=labels,
            keep=keep,
            redundancy=redundancy,
            after=after,
            deadline=deadline,
            ttl=ttl,
            full=full,
            allow_empty=allow_empty,
        )
        if hasattr(source, "read"):
            return self._save_stream(source, job, options)  # type: ignore[arg-type]
        paths = _paths(source)
        if not (paths or allow_empty):
            raise UsageError(
                f"cannot save job {job}: no file or directory was named; did a pattern match nothing? "
                "(allow_empty=True saves an empty version)"
            )
        return _saved(self._inner.save(job, paths, options))  # type: ignore[arg-type]

    def _save_stream(
        self, source: BinaryIO, job: str, options: _ckpt.SaveOptions
    ) -> dict[str, Any]:
        writer = self._inner.writer(job, options)
        try:
            while part := source.read(COPY_BYTES):
                writer.write(bytes(part))
        except BaseException:
            writer.abort()
            raise
        return _saved(writer.finish())

    def writer(self, job: str, **options: Any) -> Writer:
        """Opens a file for writing, which becomes the next version of a job when it is closed.

        Takes the options of :meth:`save`. A file to which nothing was written is saved with ``allow_empty``
        only.
        """
        return Writer(self._inner.writer(job, save_options(**options)))

    @contextmanager
    def checkpoint(self, job: str, **options: Any) -> Iterator[pathlib.Path]:
        """Creates an empty directory, and saves its content at the end of the ``with`` block.

        If the block raises, nothing is saved. The directory is removed in any case. Takes the options of
        :meth:`save`, and ``dir``, the directory in which it is created.
        """
        made = tempfile.mkdtemp(prefix="ckpt-", dir=options.pop("dir", None))
        try:
            directory = pathlib.Path(made)
            yield directory
            entries = sorted(directory.iterdir())
            if not (entries or options.get("allow_empty")):
                raise UsageError(f"nothing to save for job {job}: the directory is empty")
            self.save(entries, job, **options)
        finally:
            shutil.rmtree(made, ignore_errors=True)

    def restore(
        self,
        to: Path,
        job: str,
        *,
        version: int | None = None,
        labels: Mapping[str, str] | None = None,
        force: bool = False,
    ) -> dict[str, Any]:
        """Restores a checkpoint to a path: into an existing directory, or under a new name.

        Restores ``version``, by default the newest version that can be restored. ``force`` replaces files
        and trees with the same names. Returns a *RestoreReport*.
        """
        pairs = list((labels or {}).items())
        report = json.loads(self._inner.restore(job, version, to, pairs, force))
        _warn(_passed_over(job, report["skipped"]))
        _warn(report["warnings"])
        return report

    def open(
        self,
        job: str,
        path: str | bytes | None = None,
        *,
        version: int | None = None,
        buffering: int = BUFFER_BYTES,
    ) -> Any:
        """Opens a file of a checkpoint for reading, and fetches only the parts that are read.

        ``path`` may be omitted if the checkpoint has only one file or is a stream. With ``buffering=0``, the
        result is a :class:`File`, otherwise an ``io.BufferedReader`` over one.
        """
        file = File(self._inner.open(job, version), path)
        _warn(_passed_over(job, file.skipped))
        return file if buffering == 0 else io.BufferedReader(file, buffering)

    def list(self, job: str | None = None) -> list[dict[str, Any]]:
        """Lists the checkpoints of a job, or of all jobs, each as a *ListedCheckpoint*.

        A warning names the hosts that do not answer; checkpoints that only they hold are missing in the list.
        """
        report = self.list_report(job)
        if report["silent"]:
            names = ", ".join(sorted(note["host"] for note in report["silent"]))
            _warn([f"the list may be incomplete: no answer from {names}"])
        return report["checkpoints"]

    def list_report(self, job: str | None = None) -> dict[str, Any]:
        """Like :meth:`list`, but returns the whole *ListReport*, and does not warn."""
        report: dict[str, Any] = json.loads(self._inner.list(job))
        return report

    def forget(
        self, job: str, *, version: int | None = None, keep: int | None = None, all: bool = False
    ) -> dict[str, Any]:
        """Removes one version of a job, all but the newest ``keep``, or ``all``.

        Returns a *ForgetReport*.
        """
        if (version is not None) + (keep is not None) + bool(all) != 1:
            raise UsageError("forget: use exactly one of version=V, keep=N and all=True")
        report = json.loads(self._inner.forget(job, version, keep))
        if report["unheard"]:
            names = ", ".join(sorted(note["host"] for note in report["unheard"]))
            _warn([f"job {job}: {names} were not informed that versions are removed"])
        return report


def save_options(
    *,
    labels: Mapping[str, str] | None = None,
    keep: int | None = None,
    redundancy: str | tuple[int, int] | None = None,
    after: int | str | None = None,
    deadline: float | None = None,
    ttl: float | None = None,
    full: bool = False,
    allow_empty: bool = False,
) -> _ckpt.SaveOptions:
    """The options of a save as the compiled part takes them."""
    if isinstance(redundancy, str):
        data, plus, parity = redundancy.partition("+")
        if not (plus and data.isdigit() and parity.isdigit()):
            raise UsageError(f"redundancy {redundancy!r} does not have the form '3+2'")
        redundancy = (int(data), int(parity))
    if ttl is not None and math.isnan(ttl):
        raise UsageError("ttl is not a number of seconds")
    return {
        "labels": list((labels or {}).items()),
        "keep": keep,
        "redundancy": redundancy,
        "after": None if after is None else str(after),
        "deadline": deadline,
        "ttl": ttl,
        "full": full,
        "allow_empty": allow_empty,
    }


def _paths(source: Any) -> list[tuple[Path, str | None]]:
    if isinstance(source, (str, os.PathLike)):
        return [(source, None)]
    if isinstance(source, Mapping):
        return [(path, name) for name, path in source.items()]
    return [(path, None) for path in source]


def _saved(text: str) -> dict[str, Any]:
    report: dict[str, Any] = json.loads(text)
    _warn(report["warnings"])
    return report


class File(io.RawIOBase):
    """A file of a checkpoint, open for reading. Threads may share it if they use :meth:`read_at`."""

    def __init__(self, image: _ckpt.Image, path: str | bytes | None = None) -> None:
        super().__init__()
        self._image = image
        self._number = image.file(None if path is None else os.fsencode(path))
        self._size = image.size(self._number)
        self._at = 0
        #: The version of the open checkpoint.
        self.version: int = image.version()
        #: Newer versions that can't be read: each a *SkippedVersion*.
        self.skipped: list[dict[str, Any]] = json.loads(image.skipped())

    @property
    def size(self) -> int:
        """Length in bytes."""
        return self._size

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        self._is_open()
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._is_open()
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}.get(whence)
        if start is None:
            raise ValueError(f"whence is {whence}, not 0, 1 or 2")
        if start + offset < 0:
            raise ValueError(f"position {start + offset} lies before the file")
        self._at = start + offset
        return self._at

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer).cast("B")
        read = self.read_at(self._at, len(view))
        view[: len(read)] = read
        self._at += len(read)
        return len(read)

    def readall(self) -> bytes:
        read = self.read_at(self._at, max(self._size - self._at, 0))
        self._at += len(read)
        return read

    def read_at(self, offset: int, length: int) -> bytes:
        """Reads at most ``length`` bytes from ``offset`` on, without moving the position."""
        self._is_open()
        return self._image.read_at(self._number, offset, length)

    def cost(self) -> tuple[int, int]:
        """Number of bytes that hosts have sent for the open checkpoint, and number of their rows."""
        return self._image.cost()

    def _is_open(self) -> None:
        if self.closed:
            raise ValueError("I/O operation on closed file.")


class Writer(io.RawIOBase):
    """A file that is saved while it is written, and committed when it is closed.

    Nothing is committed after an exception in a ``with`` block, after :meth:`abort`, or if the file is never
    closed.
    """

    #: The *SaveReport*, once the file is closed.
    report: dict[str, Any] | None = None

    def __init__(self, inner: _ckpt.Writer) -> None:
        super().__init__()
        self._inner: _ckpt.Writer | None = inner
        self._at = 0

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def write(self, data: Any) -> int:
        if self._inner is None:
            raise ValueError("I/O operation on closed file.")
        part = bytes(data)
        self._inner.write(part)
        self._at += len(part)
        return len(part)

    def abort(self) -> None:
        """Ends the save without committing anything."""
        inner, self._inner = self._inner, None
        if inner is not None:
            inner.abort()
        super().close()

    def close(self) -> None:
        """Commits the file as a new version."""
        inner, self._inner = self._inner, None
        try:
            if inner is not None:
                self.report = _saved(inner.finish())
        finally:
            super().close()

    def __exit__(self, kind: Any, *_: object) -> None:
        if kind is None:
            self.close()
        else:
            self.abort()

    def __del__(self) -> None:
        # Whoever forgets to close a file may have written half of it.
        if getattr(self, "_inner", None) is not None:
            self._inner = None
            warnings.warn("a file was not closed, so nothing was saved", ResourceWarning, stacklevel=2)


#: Age at which a shared client is replaced by one that looks for hosts anew, seconds.
CLIENT_AGE_MAX = 600.0

_lock = threading.Lock()
_clients: dict[tuple[Any, ...], tuple[float, Client]] = {}


def shared_client(grid: Path | None = None, **settings: Any) -> Client:
    """The client that all callers of this process share who have the same settings."""
    grid = os.fspath(default_grid() if grid is None else grid)
    environment = (os.environ.get("CKPT_KEY_FILE"), os.environ.get("CKPT_CERT_FILE"))
    key = (grid, environment, *sorted((name, str(value)) for name, value in settings.items()))
    with _lock:
        since, client = _clients.get(key, (0.0, None))
        if client is None or time.monotonic() - since > CLIENT_AGE_MAX:
            # Calls that are under way go on with the old one.
            client = Client(grid, **settings)
            _clients[key] = (time.monotonic(), client)
        return client


def _after_fork() -> None:
    # The threads of the clients are in the parent. The child connects again when it needs to.
    global _lock
    _lock = threading.Lock()
    _clients.clear()


def _at_exit() -> None:
    with _lock:
        clients = list(_clients.values())
        _clients.clear()
    for _, client in clients:
        client.close()


os.register_at_fork(after_in_child=_after_fork)
atexit.register(_at_exit)
