"""``ckpt://`` for fsspec: a grid as a file system.

A file is a checkpoint, and becomes visible when it is closed. Directories exist only as parts of the paths of
files, as in object stores. A rename saves only a new name and moves no data. ``_names`` describes how files
get their names.

The file system is for checkpoints: hundreds of files, not millions. Each listing asks all hosts for all of
the owner's checkpoints.
"""

from __future__ import annotations

import random
import time
import warnings
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timezone
from typing import Any, TypeVar

from fsspec.spec import AbstractBufferedFile, AbstractFileSystem
from fsspec.utils import stringify_path

from ._client import Client, File, save_options, shared_client
from ._errors import NotFoundError, UsageError
from ._names import FILES, OF, ORDER, PATH, Entry, Names, entry_of, names_of, root_of

#: Bytes that are written before a file begins to be saved.
BLOCK_BYTES = 4 << 20

#: Files of at most so many bytes are stored as :data:`COPIES`. Fewer shards take fewer requests, and no more of a
#: quota: hosts count each shard as 64 KiB at least.
COPIES_BYTES = 64 << 10

#: One data and two parity shards: each is a copy, and one of the three is enough. Two hosts may be lost, as with the
#: usual 3 and 2.
COPIES = "1+2"

#: Files that one call writes, reads or removes at a time. A client keeps connections for as many saves.
AT_ONCE = 4

T = TypeVar("T")


class CkptFileSystem(AbstractFileSystem):
    """Files on a grid.

    ``grid``, ``key``, ``certificate``, ``memory``, ``cpus`` and ``rate`` are those of :class:`ckpt.Client`;
    ``redundancy`` and ``ttl`` those of :meth:`ckpt.Client.save` for all files that are written. Without ``redundancy``,
    files of up to 64 KiB are stored as three copies.
    """

    protocol = "ckpt"
    cachable = True

    def __init__(
        self,
        grid: str | None = None,
        redundancy: str | None = None,
        ttl: float | None = None,
        **kwargs: Any,
    ) -> None:
        names = ("key", "certificate", "memory", "cpus", "rate")
        self._settings = {name: kwargs.pop(name) for name in names if name in kwargs}
        super().__init__(**kwargs)
        self._grid = grid
        self._saving: dict[str, Any] = {"redundancy": redundancy, "ttl": ttl}

    @property
    def client(self) -> Client:
        """The client of this process, which other file systems with the same settings share."""
        return shared_client(self._grid, **self._settings)

    @classmethod
    def _strip_protocol(cls, path: Any) -> Any:
        if isinstance(path, list):
            return [cls._strip_protocol(one) for one in path]
        path = stringify_path(path)
        for start in ("ckpt://", "ckpt:"):
            if path.startswith(start):
                path = path[len(start) :]
                break
        return path.strip("/")

    # Names

    def _names(self) -> Names:
        return self._listing()[0]

    def _listing(self) -> tuple[Names, bool]:
        """All names, and whether all hosts answered."""
        report = self.client.list_report()
        listed = (entry_of(one) for one in report["checkpoints"])
        return names_of(one for one in listed if one is not None), not report["silent"]

    def _found(self, path: str) -> Entry:
        entry = self._names().files.get(path)
        if entry is None:
            raise FileNotFoundError(path)
        return entry

    def ls(self, path: str, detail: bool = True, **kwargs: Any) -> list[Any]:
        path = self._strip_protocol(path)
        files = self._names().files
        if path in files:
            found = {path: _file(path, files[path])}
        else:
            found = _children(path, files)
            if not found and path:
                raise FileNotFoundError(path)
        names = sorted(found)
        return [found[name] for name in names] if detail else names

    def info(self, path: str, **kwargs: Any) -> dict[str, Any]:
        path = self._strip_protocol(path)
        files = self._names().files
        if path in files:
            return _file(path, files[path])
        if not path or any(name.startswith(f"{path}/") for name in files):
            return _directory(path)
        raise FileNotFoundError(path)

    def find(
        self,
        path: str,
        maxdepth: int | None = None,
        withdirs: bool = False,
        detail: bool = False,
        **kwargs: Any,
    ) -> Any:
        if maxdepth is not None and maxdepth < 1:
            raise ValueError("maxdepth must be at least 1")
        path = self._strip_protocol(path)
        files = self._names().files
        found: dict[str, dict[str, Any]] = {}
        if path in files:
            found[path] = _file(path, files[path])
        start = f"{path}/" if path else ""
        for name, entry in files.items():
            if not name.startswith(start):
                continue
            parts = name[len(start) :].split("/")
            if maxdepth is None or len(parts) <= maxdepth:
                found[name] = _file(name, entry)
            if withdirs:
                for depth in range(1, len(parts)):
                    if maxdepth is None or depth <= maxdepth:
                        directory = start + "/".join(parts[:depth])
                        found[directory] = _directory(directory)
        if withdirs and path and found and path not in files:
            found[path] = _directory(path)
        names = sorted(found)
        return {name: found[name] for name in names} if detail else names

    def created(self, path: str) -> datetime:
        created: datetime = self.info(path)["created"]
        return created

    modified = created

    def ukey(self, path: str) -> str:
        checkpoint: str = self.info(path)["checkpoint"]
        return checkpoint

    # Changes

    def _save(self, path: str, of: str | None, names: Names) -> tuple[str, dict[str, Any]]:
        """A job for a new entry, and the options with which it is saved."""
        return self._save_all({path: of}, names)[0]

    def _save_all(
        self, wanted: dict[str, str | None], names: Names
    ) -> list[tuple[str, dict[str, Any]]]:
        """As :meth:`_save`, for several paths, each a file or with the checkpoint of which it is a name."""
        for path in wanted:
            if not path or any(part in ("", ".", "..") for part in path.split("/")):
                raise UsageError(f"{path!r} is not the path of a file: no part may be empty, . or ..")
        roots = [root_of(path) for path in wanted]
        numbers: dict[str, list[int]] = {}
        for root in set(roots):
            count = roots.count(root)
            numbers[root] = random.sample(names.free_numbers(root, count), count)
        saves = []
        for (path, of), root in zip(wanted.items(), roots):
            labels = {PATH: path, ORDER: str(names.next_order(path, of, time.time_ns()))}
            if of is not None:
                labels[OF] = of
            # Another process may choose the same number. Then both have a version of the job, which keeps all.
            options = {**self._saving, "labels": labels, "keep": 2**32 - 1, "full": True}
            # A file may be empty, and a new name is an entry without bytes.
            options["allow_empty"] = True
            saves.append((f"{root}/{FILES}/{numbers[root].pop()}", options))
        return saves

    def _remove(self, entries: list[Entry]) -> None:
        for entry in entries:
            try:
                self.client.forget(entry.job, version=entry.version)
            except NotFoundError:
                pass  # Another process was faster.

    def _remove_replaced(self, paths: Iterable[str]) -> None:
        """Removes what new entries replaced: other files of their paths, and earlier names of their files."""
        names = self._names()
        _for_each(self._remove, filter(None, map(names.replaced, paths)))

    def rm_file(self, path: str) -> None:
        path = self._strip_protocol(path)
        names = self._names()
        if path not in names.files:
            raise FileNotFoundError(path)
        self._remove(names.all_at(path))

    _rm = rm_file

    def rm(self, path: Any, recursive: bool = False, maxdepth: int | None = None) -> None:
        paths = [path] if isinstance(path, str) or hasattr(path, "__fspath__") else path
        names, is_complete = self._listing()
        removed = []
        for name in self.expand_path(list(paths), recursive=recursive, maxdepth=maxdepth):
            if name in names.files:
                removed.append(names.all_at(name))
            elif not any(file.startswith(f"{name}/") for file in names.files):
                raise FileNotFoundError(name)
            elif not recursive:
                raise IsADirectoryError(name)
        _for_each(self._remove, removed)
        if is_complete:
            # What a process left that was killed while it removed a file.
            self._remove(names.dangling())

    def mv(
        self,
        path1: Any,
        path2: str,
        recursive: bool = False,
        maxdepth: int | None = None,
        **kwargs: Any,
    ) -> None:
        """Renames a file, or with ``recursive`` all files below a directory. No bytes are transferred."""
        if not isinstance(path1, str):
            super().mv(path1, path2, recursive=recursive, maxdepth=maxdepth, **kwargs)
            return
        into = path2.endswith("/")
        source, target = self._strip_protocol(path1), self._strip_protocol(path2)
        names = self._names()
        if source == target:
            return
        if into or (target not in names.files and _is_directory(target, names.files)):
            target = f"{target}/{source.rsplit('/', 1)[-1]}".lstrip("/")
        if source in names.files:
            self._rename({source: target}, names)
            return
        if not _is_directory(source, names.files):
            raise FileNotFoundError(source)
        if not recursive:
            raise IsADirectoryError(source)
        below = self.find(source, maxdepth=maxdepth)
        self._rename({name: target + name[len(source) :] for name in below}, names)

    def _rename(self, targets: dict[str, str], names: Names) -> None:
        """Renames each file to the path that stands with it."""
        # A file that was replaced, and whose writer was killed before it removed it, would come back.
        _for_each(self._remove, filter(None, map(names.replaced, targets)))
        wanted = {path: names.files[source].checkpoint for source, path in targets.items()}
        saves = self._save_all({**wanted}, names)
        _for_each(lambda save: self._write(save, b""), saves)
        self._remove_replaced(wanted)

    def _write(self, save: tuple[str, dict[str, Any]], value: Any) -> None:
        job, options = save
        with self.client.writer(job, **_stored(options, memoryview(value).nbytes)) as writer:
            if value:
                writer.write(value)

    def cp_file(self, path1: str, path2: str, **kwargs: Any) -> None:
        path1, path2 = self._strip_protocol(path1), self._strip_protocol(path2)
        if path1 not in (files := self._names().files) and _is_directory(path1, files):
            return
        with self.open(path1, "rb") as source, self.open(path2, "wb") as target:
            while part := source.read(BLOCK_BYTES):
                target.write(part)

    def mkdir(self, path: str, create_parents: bool = True, **kwargs: Any) -> None:
        """Does nothing: a directory exists while it has files."""

    def makedirs(self, path: str, exist_ok: bool = False) -> None:
        """Does nothing: a directory exists while it has files."""

    def rmdir(self, path: str) -> None:
        path = self._strip_protocol(path)
        if _is_directory(path, self._names().files):
            raise OSError(39, "Directory not empty", path)
        raise FileNotFoundError(path)

    # Contents

    def pipe_file(self, path: str, value: Any, mode: str = "overwrite", **kwargs: Any) -> None:
        with self.open(path, "xb" if mode == "create" else "wb") as file:
            file.write(value)

    def pipe(self, path: Any, value: Any = None, **kwargs: Any) -> None:
        """Writes a file, or with a mapping of paths to contents many at once."""
        if not isinstance(path, dict) or self._intrans or kwargs:
            super().pipe(path, value, **kwargs)
            return
        values = {self._strip_protocol(one): value for one, value in path.items()}
        names = self._names()
        for one in values:
            _require_no_directory(one, names)
        saves = self._save_all(dict.fromkeys(values), names)
        _for_each(lambda pair: self._write(*pair), zip(saves, values.values()))
        self._remove_replaced(values)

    def cat(
        self, path: Any, recursive: bool = False, on_error: str = "raise", **kwargs: Any
    ) -> Any:
        """Reads a file, or many at once as a dictionary of their contents."""
        paths = self.expand_path(path, recursive=recursive)
        if len(paths) < 2 or on_error != "raise" or kwargs:
            return super().cat(path, recursive=recursive, on_error=on_error, **kwargs)
        names = self._names()
        files = [one for one in paths if one in names.files or not _is_directory(one, names.files)]

        def read(one: str) -> tuple[str, bytes]:
            with self._file(one, names) as file:
                return one, file.read_at(0, file.size)

        return dict(_for_each(read, files))

    def cat_file(
        self, path: str, start: int | None = None, end: int | None = None, **kwargs: Any
    ) -> bytes:
        with self._file(self._strip_protocol(path)) as file:
            size = file.size
            start = 0 if start is None else max(start + size, 0) if start < 0 else start
            end = size if end is None else end + size if end < 0 else min(end, size)
            return file.read_at(start, max(end - start, 0))

    def _file(self, path: str, names: Names | None = None) -> File:
        for _ in range(3):
            entry = names.files.get(path) if names else None
            names = None
            entry = entry or self._found(path)
            try:
                file: File = self.client.open(entry.job, version=entry.version, buffering=0)
                return file
            except NotFoundError:
                continue  # It was replaced or renamed since it was listed.
        raise FileNotFoundError(path)

    def _open(
        self,
        path: str,
        mode: str = "rb",
        block_size: int | None = None,
        autocommit: bool = True,
        cache_options: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> CkptFile:
        path = self._strip_protocol(path)
        if mode not in ("rb", "wb", "xb", "ab"):
            raise NotImplementedError(f"{mode}: a checkpoint is written from its beginning (rb, wb, xb, ab)")
        return CkptFile(
            self,
            path,
            mode,
            block_size or BLOCK_BYTES,
            autocommit=autocommit,
            cache_type=kwargs.pop("cache_type", "none"),
            cache_options=cache_options,
            **kwargs,
        )


class CkptFile(AbstractBufferedFile):
    """A file of the file system. A file that is written is committed by ``close`` or by a transaction.

    Nothing is committed after an exception in the ``with`` block, or if the file is never closed. Appending (``ab``)
    reads the file and writes it again.
    """

    def __init__(self, fs: CkptFileSystem, path: str, mode: str, block_size: int, **kwargs: Any) -> None:
        self._writer: Any = None
        self._kept: Any = None
        self._source: File | None = None
        if mode == "rb":
            self._source = fs._file(path)
            kwargs["size"] = self._source.size
        else:
            names = fs._names()
            if mode == "xb" and path in names.files:
                raise FileExistsError(path)
            _require_no_directory(path, names)
            self._job, self._options = fs._save(path, None, names)
            # What is wrong with the options is said now, not when everything has been written.
            save_options(**self._options)
            if mode == "ab" and path in names.files:
                self._source = fs._file(path, names)
        # What begins to be saved before all is written is no small file.
        super().__init__(fs, path, mode, max(block_size, COPIES_BYTES + 1), **kwargs)
        if mode == "ab" and self._source is not None:
            self.loc = self._source.size

    def _fetch_range(self, start: int, end: int) -> bytes:
        if self._source is None:
            raise ValueError("the file was not opened for reading")
        return self._source.read_at(start, end - start)

    def cost(self) -> tuple[int, int]:
        """Number of bytes that hosts have sent for this file, and number of their rows."""
        if self._source is None:
            raise ValueError("the file was not opened for reading")
        return self._source.cost()

    def _initiate_upload(self) -> None:
        # The buffer holds all of the file if it is shorter than a block.
        written = self.buffer.getbuffer().nbytes + (self._source.size if self._source else 0)
        self._writer = self.fs.client.writer(self._job, **_stored(self._options, written))
        if self.mode == "ab" and self._source is not None:
            for at in range(0, self._source.size, BLOCK_BYTES):
                self._writer.write(self._source.read_at(at, BLOCK_BYTES))

    def _upload_chunk(self, final: bool = False) -> bool:
        self._writer.write(self.buffer.getvalue())
        if final and self.autocommit:
            self.commit()
        return True

    def commit(self) -> None:
        writer, self._writer = self._writer, None
        if writer is None:
            return
        if self.mode == "xb" and self.path in self.fs._names().files:
            writer.abort()
            raise FileExistsError(self.path)
        writer.close()
        self.fs._remove_replaced([self.path])

    def discard(self) -> None:
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.abort()

    def close(self) -> None:
        try:
            super().close()
        finally:
            self._close_source()

    def _close_source(self) -> None:
        source, self._source = self._source, None
        if source is not None:
            source.close()

    def __exit__(self, kind: Any, *_: object) -> None:
        if kind is not None and self.mode != "rb":
            self.discard()
            self._close_source()
            self.closed = True
        else:
            self.close()

    def __del__(self) -> None:
        if not self.closed and getattr(self, "mode", "rb") != "rb":
            self._writer = None
            self.closed = True
            warnings.warn(f"{self.path} was not closed, so it was not saved", ResourceWarning, stacklevel=2)


def _for_each(call: Callable[[Any], T], values: Iterable[Any]) -> list[T]:
    """Calls a function with each value, of several at once, and returns the results in their order.

    The first exception is raised when all calls that have begun have ended.
    """
    values = [*values]
    if len(values) < 2:
        return [call(value) for value in values]
    with ThreadPoolExecutor(min(AT_ONCE, len(values))) as pool:
        calls = [pool.submit(call, value) for value in values]
        try:
            return [one.result() for one in calls]
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _stored(options: dict[str, Any], size: int) -> dict[str, Any]:
    """The options with which a file of so many bytes is saved."""
    if options["redundancy"] is None and size <= COPIES_BYTES:
        return {**options, "redundancy": COPIES}
    return options


def _require_no_directory(path: str, names: Names) -> None:
    if _is_directory(path, names.files) and path not in names.files:
        raise IsADirectoryError(path)


def _file(path: str, entry: Entry) -> dict[str, Any]:
    return {
        "name": path,
        "size": entry.size,
        "type": "file",
        "created": datetime.fromtimestamp(entry.created, tz=timezone.utc),
        "mtime": float(entry.created),
        "checkpoint": entry.checkpoint,
        "job": entry.job,
        "version": entry.version,
    }


def _directory(path: str) -> dict[str, Any]:
    return {"name": path, "size": 0, "type": "directory"}


def _is_directory(path: str, files: Any) -> bool:
    return not path or any(name.startswith(f"{path}/") for name in files)


def _children(path: str, files: Any) -> dict[str, dict[str, Any]]:
    start = f"{path}/" if path else ""
    found: dict[str, dict[str, Any]] = {}
    for name, entry in files.items():
        if name.startswith(start):
            child, deeper, _ = name[len(start) :].partition("/")
            child = start + child
            if deeper:
                found.setdefault(child, _directory(child))
            else:
                found[child] = _file(child, entry)
    return found
