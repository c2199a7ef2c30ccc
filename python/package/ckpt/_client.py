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
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, BinaryIO, Literal, TypedDict, Union, overload

from . import _ckpt
from ._background import Key, Pending, Task, drop_waiting, give_up_all, run_at_once, settle, submit, wait_for
from ._errors import DegradedWarning, UsageError
from ._memory import free_kept, give_back, memory_of, staged

if TYPE_CHECKING:
    from typing_extensions import Buffer, Unpack

    from .reports import (
        ForgetReport,
        Health,
        HostsReport,
        ListedCheckpoint,
        ListReport,
        RestoreReport,
        SaveReport,
        ShowReport,
        VerifyReport,
        SkippedVersion,
    )

Path = Union[str, "os.PathLike[str]"]

#: What can be saved: paths, a file object, or bytes in memory.
Source = Union[Path, Iterable[Path], Mapping[str, Path], BinaryIO, "Buffer"]


class SaveKeywords(TypedDict, total=False):
    """The options of a save, see :meth:`Client.save`."""

    labels: Mapping[str, str] | None
    keep: int | None
    redundancy: str | tuple[int, int] | None
    after: int | str | None
    deadline: float | None
    ttl: float | None
    full: bool
    allow_empty: bool


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


def _passed_over(job: str, skipped: Iterable[SkippedVersion]) -> list[str]:
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
        grid = default_grid() if grid is None else grid
        key = key or os.environ.get("CKPT_KEY_FILE") or None
        certificate = certificate or os.environ.get("CKPT_CERT_FILE") or None
        self._place = tuple(os.path.abspath(file) if file else "" for file in (grid, key, certificate))
        self._pendings: set[Pending] = set()
        self._inner = _ckpt.Client(
            grid,
            key=key,
            certificate=certificate,
            memory=memory,
            cpus=cpus,
            rate=rate,
        )

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Waits for saves in the background, closes the connections, and records what was learned of hosts.

        Frees the memory that the process keeps for copies of what is saved in the background.
        """
        wait_for(list(self._pendings))
        free_kept()
        self._inner.close()

    def identity_ends(self) -> int:
        """The time at which the key expires, in Unix seconds."""
        return self._inner.identity_ends()

    def show(self, job: str, version: int | None = None) -> ShowReport:
        """Describes a version, by default the newest: its files, sizes and hosts. Returns a *ShowReport*."""
        report: ShowReport = json.loads(self._inner.show(job, version))
        return report

    def verify(
        self, job: str | None = None, *, version: int | None = None, all_blocks: bool = False
    ) -> VerifyReport:
        """Checks that hosts have the shards of a version, a job or all jobs; with ``all_blocks``, reads every block.

        Returns a *VerifyReport*: what is damaged is in it, and raises nothing.
        """
        report: VerifyReport = json.loads(self._inner.verify(job, version, all_blocks))
        return report

    def hosts(self) -> HostsReport:
        """Asks the hosts how they are. Returns a *HostsReport*."""
        report: HostsReport = json.loads(self._inner.hosts())
        return report

    def health(self, *, prove: bool = False) -> Health:
        """Describes the state of the jobs that this key saved, of the hosts, keys and registries, as ``ckpt health``.

        With ``prove``, hosts prove that they have a part of each shard of the newest versions. Returns a *Health*:
        what needs attention is in it, the worst first, and raises nothing.
        """
        report: Health = json.loads(self._inner.health(prove))
        return report

    @overload
    def save(
        self,
        source: Source,
        job: str,
        *,
        background: Literal[False] = False,
        **options: Unpack[SaveKeywords],
    ) -> SaveReport: ...

    @overload
    def save(
        self,
        source: Source,
        job: str,
        *,
        background: Literal[True],
        **options: Unpack[SaveKeywords],
    ) -> Pending: ...

    def save(
        self,
        source: Source,
        job: str,
        *,
        background: bool = False,
        **options: Unpack[SaveKeywords],
    ) -> SaveReport | Pending:
        """Saves files, directories or bytes as the next version of a job.

        ``source`` is a path, several paths, a mapping of names to the paths that are stored under them, an
        object with ``read``, or bytes in memory: ``bytes``, a contiguous array, a tensor. ``keep`` is the
        number of versions to keep, this one included (default 2).
        ``redundancy`` is data and parity shards, such as ``"3+2"``. With ``after``, the save is committed
        only as the single successor of a version: its number, the id of a checkpoint, or ``"none"``.
        ``deadline`` and ``ttl`` are in seconds; an infinite ``ttl`` ends the lease. Returns a *SaveReport*
        (:mod:`ckpt.reports`).

        An empty list of paths, such as that of a pattern without a match, and an object that returns no byte
        raise :class:`UsageError` unless ``allow_empty``: the empty version would take the place of an
        earlier one. A file of 0 bytes that is named is saved.

        With ``background``, returns a :class:`Pending` at once, or as soon as bytes in memory are copied: the
        caller may change them then. Files must stay as they are until it is done. Of each job one save runs at
        a time and one waits; a newer one takes the place of the one that waits, whose result then is
        :class:`ReplacedError`. A file object can't be saved in this way, but see :meth:`Writer.finish`.
        """
        given = save_options(**options)
        if hasattr(source, "read") and not isinstance(source, io.BytesIO):
            if background:
                raise UsageError(
                    f"cannot save job {job} in the background: it would read a file object that the program "
                    "may close; pass its path, or write to a writer and finish(background=True)"
                )
            reader: Any = source
            return self._save_parts(iter(lambda: reader.read(COPY_BYTES), b""), job, given)
        view = memory_of(source)
        if view is not None:
            if background:
                return self._stage(view, job, given)
            return self._save_parts(_parts(view), job, given)
        paths = _paths(source)
        if not (paths or given["allow_empty"]):
            raise UsageError(
                f"cannot save job {job}: no file or directory was named; did a pattern match nothing? "
                "(allow_empty=True saves an empty version)"
            )
        if background:
            return self._save_paths(_absolute(paths), job, given, _nothing)
        settle(self._key(job))
        return _saved(self._inner.save(job, paths, given, _ckpt.Canceller()))

    def _key(self, job: str) -> Key:
        return (*self._place, job)

    def _save_parts(
        self, parts: Iterable[Any], job: str, options: _ckpt.SaveOptions
    ) -> SaveReport:
        settle(self._key(job))
        writer = self._inner.writer(job, options)
        try:
            for part in parts:
                if not part:
                    break
                writer.write(bytes(part))
        except BaseException:
            writer.abort()
            raise
        return _saved(writer.finish())

    def _stage(self, view: memoryview, job: str, options: _ckpt.SaveOptions) -> Pending:
        """Copies bytes, and saves the copy in the background."""
        self._inner.check(job, options)
        if not (view.nbytes or options["allow_empty"]):
            raise UsageError(
                f"cannot save job {job}: there is no byte (allow_empty=True saves an empty version)"
            )
        # Its memory is used for this one.
        drop_waiting(self._key(job))
        stage = staged(view)

        def save(canceller: _ckpt.Canceller) -> str:
            return self._inner.save_open(job, stage.descriptor, stage.length, options, canceller)

        return self._begin(save, job, lambda: give_back(stage))

    def _save_paths(
        self,
        paths: list[tuple[Path, str | None]],
        job: str,
        options: _ckpt.SaveOptions,
        release: Callable[[], None],
    ) -> Pending:
        """Saves files in the background."""
        self._inner.check(job, options)

        def save(canceller: _ckpt.Canceller) -> str:
            return self._inner.save(job, paths, options, canceller)

        return self._begin(save, job, release)

    def _begin(
        self, save: Callable[[_ckpt.Canceller], str], job: str, release: Callable[[], None]
    ) -> Pending:
        canceller = _ckpt.Canceller()
        pending = self._remember(Pending(job, canceller.cancel))
        submit(self._key(job), Task(pending, lambda: _saved(save(canceller)), release))
        return pending

    def _remember(self, pending: Pending) -> Pending:
        self._pendings.add(pending)
        pending.add_done_callback(self._pendings.discard)
        return pending

    def writer(self, job: str, **options: Unpack[SaveKeywords]) -> Writer:
        """Opens a file for writing, which becomes the next version of a job when it is closed.

        Takes the options of :meth:`save`. A file to which nothing was written is saved with ``allow_empty``
        only.
        """
        given = save_options(**options)
        settle(self._key(job))
        return Writer(self._inner.writer(job, given), self, job)

    def checkpoint(
        self,
        job: str,
        *,
        dir: Path | None = None,
        background: bool = False,
        **options: Unpack[SaveKeywords],
    ) -> Checkpoint:
        """Creates an empty directory, and saves its content at the end of the ``with`` block.

        If the block raises, nothing is saved. The directory is removed in any case. Takes the options of
        :meth:`save`, and ``dir``, the directory in which it is created. With ``background``, the block ends at
        once, and ``pending`` of the returned :class:`Checkpoint` is the :class:`Pending`.
        """
        return Checkpoint(self, job, dir, background, save_options(**options))

    def restore(
        self,
        to: Path,
        job: str,
        *,
        version: int | None = None,
        labels: Mapping[str, str] | None = None,
        existing: Literal["stay", "replace", "clear"] = "stay",
        path: str | Iterable[str] = (),
    ) -> RestoreReport:
        """Restores a checkpoint into the directory ``to``, whether it exists or not.

        With ``path``, only what this pattern (``"*.pt"``, ``"logs/**"``) or one of several matches.
        Afterwards, a file that :meth:`open` knows as ``name`` is at ``to/name``; a stream, which has no name, is
        at the name of the job. Restores ``version``, by default the newest version that can be restored.
        ``existing`` says what becomes of names in ``to``:

        - ``"stay"``: if the checkpoint has one of them, nothing is restored, and the call fails;
        - ``"replace"``: those that the checkpoint has are replaced, each as a whole and in one step, one after the
          other; other names stay;
        - ``"clear"``: afterwards ``to`` has what the checkpoint has, and nothing else. It changes in one step,
          into another directory of its name.

        Returns a *RestoreReport*.
        """
        pairs = list((labels or {}).items())
        paths = [os.fsencode(one) for one in ([path] if isinstance(path, str) else path)]
        restored = self._inner.restore(job, version, (to, existing), pairs, paths)
        report: RestoreReport = json.loads(restored)
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

    def list(self, job: str | None = None) -> list[ListedCheckpoint]:
        """Lists the checkpoints of a job, or of all jobs, each as a *ListedCheckpoint*.

        A warning names the hosts that do not answer; checkpoints that only they hold are missing in the list.
        """
        report = self.list_report(job)
        if report["silent"]:
            names = ", ".join(sorted(note["host"] for note in report["silent"]))
            _warn([f"the list may be incomplete: no answer from {names}"])
        return report["checkpoints"]

    def list_report(self, job: str | None = None) -> ListReport:
        """Like :meth:`list`, but returns the whole *ListReport*, and does not warn."""
        report: ListReport = json.loads(self._inner.list(job))
        return report

    def forget(
        self, job: str, *, version: int | None = None, keep: int | None = None, all: bool = False
    ) -> ForgetReport:
        """Removes one version of a job, all but the newest ``keep``, or ``all``.

        Returns a *ForgetReport*.
        """
        if (version is not None) + (keep is not None) + bool(all) != 1:
            raise UsageError("forget: use exactly one of version=V, keep=N and all=True")
        report: ForgetReport = json.loads(self._inner.forget(job, version, keep))
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


def _absolute(paths: list[tuple[Path, str | None]]) -> list[tuple[Path, str | None]]:
    """Paths that stay right when the program goes to another directory."""
    return [(os.path.join(os.getcwd(), path), name) for path, name in paths]


def _parts(view: memoryview) -> Iterator[memoryview]:
    return (view[at : at + COPY_BYTES] for at in range(0, len(view), COPY_BYTES))


def _nothing() -> None:
    pass


def _saved(text: str) -> SaveReport:
    report: SaveReport = json.loads(text)
    _warn(report["warnings"])
    return report


class Checkpoint:
    """A directory whose content is saved at the end of the ``with`` block, see :meth:`Client.checkpoint`."""

    #: The *SaveReport*, after the block.
    report: SaveReport | None = None
    #: The save in the background, after the block.
    pending: Pending | None = None

    def __init__(
        self,
        client: Client,
        job: str,
        dir: Path | None,
        background: bool,
        options: _ckpt.SaveOptions,
    ) -> None:
        self._client = client
        self._job = job
        self._dir = dir
        self._background = background
        self._options = options

    def __enter__(self) -> pathlib.Path:
        self._made = pathlib.Path(tempfile.mkdtemp(prefix="ckpt-", dir=self._dir)).absolute()
        return self._made

    def __exit__(self, kind: Any, *_: object) -> None:
        if kind is None and self._background:
            self._begin()
            return
        try:
            if kind is None:
                self._save()
        finally:
            self._remove()

    def _entries(self) -> list[tuple[Path, str | None]]:
        entries = sorted(self._made.iterdir())
        if not (entries or self._options["allow_empty"]):
            raise UsageError(f"nothing to save for job {self._job}: the directory is empty")
        return [(entry, None) for entry in entries]

    def _save(self) -> None:
        entries = self._entries()
        client = self._client
        settle(client._key(self._job))
        saved = client._inner.save(self._job, entries, self._options, _ckpt.Canceller())
        self.report = _saved(saved)

    def _begin(self) -> None:
        try:
            entries = self._entries()
            save = self._client._save_paths
            self.pending = save(entries, self._job, self._options, self._remove)
        except BaseException:
            self._remove()
            raise

    def _remove(self) -> None:
        shutil.rmtree(self._made, ignore_errors=True)


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
        self.skipped: list[SkippedVersion] = json.loads(image.skipped())

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
    report: SaveReport | None = None

    def __init__(self, inner: _ckpt.Writer, client: Client, job: str) -> None:
        super().__init__()
        self._inner: _ckpt.Writer | None = inner
        self._client = client
        self._job = job
        self._at = 0

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def write(self, data: Any) -> int:
        if self._inner is None:
            raise ValueError("I/O operation on closed file.")
        view = memoryview(data).cast("B")
        # In parts: while bytes are copied, no other thread of Python runs.
        for part in _parts(view):
            self._inner.write(bytes(part))
        self._at += len(view)
        return len(view)

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

    @overload
    def finish(self, *, background: Literal[False] = False) -> SaveReport: ...

    @overload
    def finish(self, *, background: Literal[True]) -> Pending: ...

    def finish(self, *, background: bool = False) -> SaveReport | Pending:
        """Closes the file, and returns the *SaveReport*; with ``background`` a :class:`Pending`, at once.

        The file's save has begun already, so it waits for no other one; later ones of the job wait for it.
        """
        if self._inner is None:
            raise ValueError("I/O operation on closed file.")
        if not background:
            self.close()
            assert self.report is not None
            return self.report
        inner, self._inner = self._inner, None
        pending = self._client._remember(Pending(self._job, inner.cancel))
        task = Task(pending, lambda: _saved(inner.finish()), _nothing)
        run_at_once(self._client._key(self._job), task)
        super().close()
        return pending

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
    # Python has waited for saves in the background, unless its user did not want that.
    give_up_all()
    with _lock:
        clients = list(_clients.values())
        _clients.clear()
    for _, client in clients:
        client.close()


os.register_at_fork(after_in_child=_after_fork)
atexit.register(_at_exit)
