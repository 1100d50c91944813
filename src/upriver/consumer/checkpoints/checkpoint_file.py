"""`FileCheckpoint`: a checkpoint in a file that is replaced atomically and has one writer.

    FILE          the checkpoint
    FILE.new      a checkpoint that is being written; ignored after a crash
    FILE.lock     names the writing process, and holds an advisory lock that ends with it. The file
                  is never removed: a new file of that name would let a second process lock it

After a crash of the process or the machine, either the old or the new checkpoint is there. Only its
owner may read a new file, because a checkpoint describes collections and branches. Loading needs no
lock.
"""

from __future__ import annotations

import fcntl
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Self

from ..._files import replace_file
from ...errors import ConfigError
from .checkpoint import MAX_CHECKPOINT_SIZE, Checkpoint


class FileCheckpoint:
    """Keeps a checkpoint in a file. The first save locks the file against other writers.

    Call ``open`` to take the lock earlier, before doing work that could then not be saved. Call
    ``close``, or use a ``with`` block, to release it. Thread-safe.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        # resolve links: the link itself is not replaced, and all names of a file share one lock
        self._file = Path(os.path.realpath(path))
        self._lock = -1
        self._guard = threading.Lock()

    def open(self) -> Self:
        """Locks the file for writing; ConfigError names the process that already holds the lock."""
        with self._guard:
            self._take_lock()
        return self

    def close(self) -> None:
        """Releases the lock."""
        with self._guard:
            if self._lock >= 0:
                os.close(self._lock)
                self._lock = -1

    def __enter__(self) -> Self:
        return self.open()

    def __exit__(self, *_: object) -> None:
        self.close()

    def load(self) -> Checkpoint | None:
        """Returns the saved checkpoint; None if there is no file. ConfigError if it is damaged."""
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
        """Replaces the file atomically; if that fails, the old checkpoint stays."""
        content = checkpoint.to_json().encode()
        if len(content) > MAX_CHECKPOINT_SIZE:
            raise ConfigError(
                f"a checkpoint of {len(content)} bytes is too large for {self.path}; "
                f"at most {MAX_CHECKPOINT_SIZE} are allowed"
            )
        with self._guard:
            self._take_lock()
            with self._errors("written"):
                replace_file(self._file, content, keep_mode=True)

    def back_up(self) -> Path:
        """Copies the file, damaged or not, to FILE.bak; returns the path of the copy."""
        copy = self._file.with_name(f"{self._file.name}.bak")
        with self._guard:
            self._take_lock()
            with self._errors("backed up"), open(self._file, "rb") as source:
                replace_file(copy, source, keep_mode=True)
        return copy

    def _take_lock(self) -> None:
        if self._lock >= 0:
            return
        path = self._file.with_name(f"{self._file.name}.lock")
        with self._errors("locked"):
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
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
        """Converts OSError into ConfigError."""
        try:
            yield
        except OSError as error:
            raise ConfigError(
                f"the checkpoint {self.path} cannot be {done}: {error.strerror}"
            ) from error
