"""A checkpoint in a file: replaced whole or not at all, written by one process at a time.

    FILE          the checkpoint
    FILE.new      one that is being written; after a crash it means nothing
    FILE.lock     who writes; an advisory lock that ends with its process. It is never removed:
                  a second file of that name would let a second writer in

A save writes the new file, syncs it, renames it over the old one and syncs the directory, so that
a crash of the process or the machine leaves the old checkpoint or the new. Reading needs no lock.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Self

from ..errors import ConfigError
from .checkpoint import MAX_CHECKPOINT_SIZE, Checkpoint

__all__ = ["FileCheckpoint"]


class FileCheckpoint:
    """Keeps a checkpoint in a file. The first save makes this the file's only writer.

    ``open`` does so earlier, before work is done that could not be saved. Close it, or use it in
    a ``with`` block, to let others write. It may be used from several threads.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        # a link stays a link, and all names of a file share one lock
        self._file = Path(os.path.realpath(path))
        self._lock = -1
        self._guard = threading.Lock()

    def open(self) -> Self:
        """Becomes the file's writer; ConfigError with who is, if another one is."""
        with self._guard:
            self._take_lock()
        return self

    def close(self) -> None:
        """Lets another writer in."""
        with self._guard:
            if self._lock >= 0:
                os.close(self._lock)
                self._lock = -1

    def __enter__(self) -> Self:
        return self.open()

    def __exit__(self, *_: object) -> None:
        self.close()

    def load(self) -> Checkpoint | None:
        """What was saved last; None if there is no file. ConfigError if it is damaged."""
        try:
            with open(self._file, "rb") as file:
                content = file.read(MAX_CHECKPOINT_SIZE + 1)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise ConfigError(
                f"the checkpoint {self.path} cannot be read: {error.strerror}"
            ) from None
        try:
            return Checkpoint.from_json(content)
        except ConfigError as problem:
            raise ConfigError(f"the checkpoint {self.path} cannot be used: {problem}") from None

    def save(self, checkpoint: Checkpoint) -> None:
        """Replaces the file; if that fails, the old checkpoint is still there."""
        content = checkpoint.to_json().encode()
        if len(content) > MAX_CHECKPOINT_SIZE:
            raise ConfigError(
                f"a checkpoint of {len(content)} bytes is too large for {self.path}; "
                f"at most {MAX_CHECKPOINT_SIZE} are allowed"
            )
        with self._guard:
            self._take_lock()
            with self._errors("written"), _replacing(self._file) as file:
                file.write(content)

    def back_up(self) -> Path:
        """Copies the file as it is, damaged or not, to FILE.bak; the path of that."""
        copy = self._file.with_name(f"{self._file.name}.bak")
        with self._guard:
            self._take_lock()
            with (
                self._errors("backed up"),
                open(self._file, "rb") as source,
                _replacing(copy) as file,
            ):
                shutil.copyfileobj(source, file)
        return copy

    def _take_lock(self) -> None:
        if self._lock >= 0:
            return
        path = self._file.with_name(f"{self._file.name}.lock")
        with self._errors("locked"):
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                os.ftruncate(descriptor, 0)
                os.write(descriptor, f"process {os.getpid()} on {os.uname().nodename}\n".encode())
            except BlockingIOError:
                holder = os.read(descriptor, 1000).decode(errors="replace").strip()
                os.close(descriptor)
                raise ConfigError(
                    f"the checkpoint {self.path} is written by {holder or 'another process'}; "
                    "stop it first, or use another file"
                ) from None
            except BaseException:
                os.close(descriptor)
                raise
            self._lock = descriptor

    @contextmanager
    def _errors(self, done: str) -> Iterator[None]:
        """Turns errors of the operating system into ours."""
        try:
            yield
        except OSError as error:
            raise ConfigError(
                f"the checkpoint {self.path} cannot be {done}: {error.strerror}"
            ) from error


@contextmanager
def _replacing(path: Path) -> Iterator[BinaryIO]:
    """A file to write, which then takes the place of ``path`` at once."""
    passing = path.with_name(f"{path.name}.new")
    try:
        with open(passing, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(passing, path)
    except BaseException:
        passing.unlink(missing_ok=True)
        raise
    directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
