"""The compiled part. Reports are JSON with the fields of ``docs/use/json.md``."""

from __future__ import annotations

import os
from typing import TypedDict

__version__: str

class SaveOptions(TypedDict):
    labels: list[tuple[str, str]]
    keep: int | None
    redundancy: tuple[int, int] | None
    after: str | None
    deadline: float | None
    ttl: float | None
    full: bool
    allow_empty: bool

class Canceller:
    def __init__(self) -> None: ...
    def cancel(self) -> None: ...

class Client:
    def __init__(
        self,
        grid: str | os.PathLike[str],
        *,
        key: str | os.PathLike[str] | None = None,
        certificate: str | os.PathLike[str] | None = None,
        memory: int | None = None,
        cpus: int | None = None,
        rate: int | None = None,
    ) -> None: ...
    def identity_ends(self) -> int: ...
    def save(
        self,
        name: str,
        paths: list[tuple[str | os.PathLike[str], str | None]],
        options: SaveOptions,
        canceller: Canceller,
    ) -> str: ...
    def save_open(
        self,
        name: str,
        descriptor: int,
        len: int,
        options: SaveOptions,
        canceller: Canceller,
    ) -> str: ...
    @staticmethod
    def check(name: str, options: SaveOptions) -> None: ...
    def writer(self, name: str, options: SaveOptions) -> Writer: ...
    def restore(
        self,
        name: str,
        version: int | None,
        to: str | os.PathLike[str],
        labels: list[tuple[str, str]],
        existing: str,
    ) -> str: ...
    def open(self, name: str, version: int | None) -> Image: ...
    def list(self, name: str | None) -> str: ...
    def forget(self, name: str, version: int | None, keep: int | None) -> str: ...
    def close(self) -> None: ...

class Image:
    def version(self) -> int: ...
    def skipped(self) -> str: ...
    def files(self) -> list[tuple[bytes, int, bool]]: ...
    def file(self, path: bytes | None) -> int: ...
    def size(self, file: int) -> int: ...
    def read_at(self, file: int, offset: int, len: int) -> bytes: ...
    def cost(self) -> tuple[int, int]: ...

class Writer:
    def write(self, bytes: bytes) -> None: ...
    def finish(self) -> str: ...
    def cancel(self) -> None: ...
    def abort(self) -> None: ...
