"""Stores of a group that can only create files: a directory, and the base of object stores.

Version N of a cell is the file CELL/N, with twenty digits. Files never change; a version is
replaced by creating the next one, which only one writer can do. Two versions stay, older ones are
deleted in ascending order by whoever has written.

A writer that was paused could create a version that was there before and has been deleted. So after
creating N + 1 it lists the cell: if N is gone, or if there is a version above N + 1, the write does
not count, although it may have been done. Rules read the cell again then (see `cells`).
"""

from __future__ import annotations

import os
import secrets
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from ..._files import create_file, sync_directory
from ...errors import ConfigError, ConnectionFailed
from .cells import MAX_CELL, Stored

_DIGITS: Final = 20
#: A reader begins again this often if the version that it has found was deleted meanwhile.
_ATTEMPTS: Final = 100


class NumberedStore(ABC):
    """Cells as numbered files that are created and deleted, and never changed."""

    def read(self, cell: str) -> Stored | None:
        for _ in range(_ATTEMPTS):
            versions = self._versions(cell)
            if not versions:
                return None
            content = self._load(_file(cell, versions[-1]))
            if content is not None:
                return Stored(content, versions[-1])
        raise ConnectionFailed(
            f"lists versions of {cell} that cannot be read",
            "see what deletes them",
            where=str(self),
        )

    def write(self, cell: str, content: bytes, version: int, *, expires: float = 0) -> int | None:
        if not self._create(_file(cell, version + 1), content):
            return None
        versions = self._versions(cell)
        if version and version not in versions:  # the cell was removed, or has gone far ahead
            self._delete(_file(cell, version + 1))
            return None
        if versions[-1:] != [version + 1]:
            return None
        for older in versions:
            if older < version:
                self._delete(_file(cell, older))
        return version + 1

    def remove(self, cell: str) -> None:
        for version in self._versions(cell):
            self._delete(_file(cell, version))

    def close(self) -> None:  # noqa: B027
        """Nothing is open between two calls."""

    @abstractmethod
    def _create(self, file: str, content: bytes) -> bool:
        """Writes a file that must not exist; False if it does."""

    @abstractmethod
    def _load(self, file: str) -> bytes | None:
        """The content of a file; None if there is none."""

    @abstractmethod
    def _delete(self, file: str) -> None:
        """Deletes a file, if there is one."""

    @abstractmethod
    def _names(self, cell: str) -> Iterator[str]:
        """The names of the files of a cell, without its own name."""

    def _versions(self, cell: str) -> list[int]:
        names = self._names(cell)
        return sorted(int(name) for name in names if len(name) == _DIGITS and name.isdecimal())


def _file(cell: str, version: int) -> str:
    return f"{cell}/{version:0{_DIGITS}}"


class DirectoryGroupStore(NumberedStore):
    """Keeps the cells of groups in a directory that all members can write.

    The directory may be on a network, if its file system has hard links.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    def __str__(self) -> str:
        return str(self.path)

    def remove(self, cell: str) -> None:
        super().remove(cell)
        for name in self._names(cell):
            if name.startswith("."):  # the draft of a writer that was killed
                self._delete(f"{cell}/{name}")
        with suppress(OSError):  # gone already, or written again
            (self.path / cell).rmdir()

    def _create(self, file: str, content: bytes) -> bool:
        place = self.path / file
        draft = place.with_name(f".{secrets.token_hex(8)}")
        with self._told("written"):
            if file == _file(file.rpartition("/")[0], 1):
                place.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            try:
                create_file(draft, content)
                os.link(draft, place)
            except (FileExistsError, FileNotFoundError):  # or the cell was removed
                return False
            finally:
                draft.unlink(missing_ok=True)
            sync_directory(place.parent)
        return True

    def _load(self, file: str) -> bytes | None:
        with self._told("read"):
            try:
                with open(self.path / file, "rb") as opened:
                    content = opened.read(MAX_CELL + 1)
            except FileNotFoundError:
                return None
        if len(content) > MAX_CELL:
            raise ConfigError(f"{self.path / file} has more than {MAX_CELL} bytes")
        return content

    def _delete(self, file: str) -> None:
        with self._told("deleted"):
            (self.path / file).unlink(missing_ok=True)

    def _names(self, cell: str) -> Iterator[str]:
        with self._told("listed"):
            try:
                return iter(os.listdir(self.path / cell))
            except FileNotFoundError:
                return iter(())

    @contextmanager
    def _told(self, done: str) -> Iterator[None]:
        try:
            yield
        except OSError as problem:
            raise ConnectionFailed(
                f"cannot be {done}: {problem.strerror or problem}",
                "see whether the directory is there, writable, and has room and hard links",
                where=f"the members' directory {self.path}",
            ) from None
