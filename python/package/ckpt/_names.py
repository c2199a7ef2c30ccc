"""Which file has which name: pure functions over labels of checkpoints.

A file is a checkpoint with the labels ``fs.path`` and ``fs.order``. It keeps the name under which it was
written until a *name* for it is saved: an empty checkpoint whose label ``fs.of`` has the id of the file's
checkpoint. Of several names of a file, the one with the highest order counts; and of several files with the
same name, the one whose name has the highest order. So each of writing, replacing and renaming becomes
visible by the commit of one checkpoint, and what it leaves behind changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

PATH = "fs.path"
ORDER = "fs.order"
OF = "fs.of"

#: Component of the job's name, between the first component of the path and a number.
FILES = "files"

#: Fewest numbers of jobs among which a new file chooses.
NUMBERS_MIN = 32


@dataclass(frozen=True)
class Entry:
    """A checkpoint with the labels of a file or of a name."""

    job: str
    version: int
    checkpoint: str
    path: str
    order: int
    #: The checkpoint that it names; ``None`` for a file.
    of: str | None
    size: int
    created: int


@dataclass(frozen=True)
class Names:
    """All files by path, and what is there besides."""

    #: The file of each path.
    files: Mapping[str, Entry]
    #: The path of each file, by its checkpoint; also of those that another one of the same path outdoes.
    paths: Mapping[str, str]
    #: The name that counts of each file that has been renamed, by the file's checkpoint.
    renamed: Mapping[str, Entry]
    #: All entries.
    entries: tuple[Entry, ...]

    def next_order(self, path: str, of: str | None, now_ns: int) -> int:
        """An order above all that a new entry has to outdo, whatever the clocks of other machines say."""
        rivals = (
            entry.order + 1
            for entry in self.entries
            if entry.path == path or (of is not None and of in (entry.of, entry.checkpoint))
        )
        return max([now_ns, *rivals])

    def replaced(self, path: str) -> list[Entry]:
        """Entries of this path that another one outdoes, in the order in which they have to be removed."""
        shown = self.files.get(path)
        left = []
        for checkpoint, its_path in self.paths.items():
            if its_path != path:
                continue
            mine = self.all_of(checkpoint)
            if shown is not None and checkpoint == shown.checkpoint:
                name = self.renamed.get(checkpoint)
                mine = [one for one in mine if one.of is not None and one != name]
            left += mine
        return left

    def dangling(self) -> list[Entry]:
        """Names of files that are not there. The files may only be on hosts that are silent now."""
        return [one for one in self.entries if one.of is not None and one.of not in self.paths]

    def all_of(self, checkpoint: str) -> list[Entry]:
        """A file and all its names, in the order in which they have to be removed: the file first."""
        mine = [one for one in self.entries if checkpoint in (one.checkpoint, one.of)]
        return sorted(mine, key=lambda one: one.of is not None)

    def all_at(self, path: str) -> list[Entry]:
        """All entries of a path. What another one outdoes goes first: it would come back otherwise."""
        return list(dict.fromkeys(self.replaced(path) + self.all_of(self.files[path].checkpoint)))

    def free_numbers(self, root: str, count: int) -> list[int]:
        """Numbers of jobs of this root that have no checkpoint: at least ``count``, so many that few are chosen twice.

        Jobs are used again, since hosts remember for months of each what was deleted.
        """
        start = f"{root}/{FILES}/"
        used = {one.job[len(start) :] for one in self.entries if one.job.startswith(start)}
        end = max(NUMBERS_MIN, 2 * (len(used) + count))
        return [number for number in range(end) if str(number) not in used]


def entry_of(listed: Mapping[str, Any]) -> Entry | None:
    """The entry that a *ListedCheckpoint* is, if it is one."""
    labels = listed["labels"]
    path, order = labels.get(PATH), labels.get(ORDER, "")
    is_version = not listed["void"] and listed["kept_for"] is None
    if path is None or not order.isdigit() or not is_version:
        return None
    return Entry(
        job=listed["job"],
        version=listed["version"],
        checkpoint=listed["checkpoint"],
        path=path,
        order=int(order),
        of=labels.get(OF),
        size=listed["image_bytes"],
        created=listed["created"],
    )


def names_of(entries: Iterable[Entry]) -> Names:
    """Which file has which name."""
    entries = tuple(entries)
    renamed: dict[str, Entry] = {}
    for name in entries:
        if name.of is not None:
            before = renamed.get(name.of)
            if before is None or _rank(before) < _rank(name):
                renamed[name.of] = name
    files: dict[str, Entry] = {}
    paths: dict[str, str] = {}
    ranks: dict[str, tuple[int, str]] = {}
    for file in entries:
        if file.of is None:
            name = renamed.get(file.checkpoint, file)
            paths[file.checkpoint] = name.path
            if name.path not in files or ranks[name.path] < _rank(name):
                files[name.path], ranks[name.path] = file, _rank(name)
    return Names(files, paths, renamed, entries)


def _rank(entry: Entry) -> tuple[int, str]:
    return (entry.order, entry.checkpoint)


def root_of(path: str) -> str:
    """The first component of a path as a component of a job's name.

    Characters that jobs can't have in their names are written as ``+`` and two hexadecimal digits.
    """
    first = path.split("/", 1)[0]
    plain = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-@:#"
    made = "".join(
        chr(byte) if chr(byte) in plain else f"+{byte:02x}" for byte in first.encode()
    )
    return f"+{made}" if made in (".", "..") else made
