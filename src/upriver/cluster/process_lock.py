"""A lock file that a process holds as long as it lives.

The operating system releases the lock when the process ends, however it ends.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path


class ProcessLock:
    """A lock file, locked by this process until it ends."""

    def __init__(self, path: Path) -> None:
        """Takes the lock; `BlockingIOError` if another process has it."""
        self._path = path
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BaseException:
            os.close(self._descriptor)
            raise

    @property
    def name(self) -> str:
        """Identifies the lock file on this machine."""
        return _name(os.fstat(self._descriptor))

    @property
    def is_there(self) -> bool:
        """Whether the file is still in its directory, which may have been removed or replaced."""
        return lock_name(self._path) == self.name


def lock_name(path: Path) -> str:
    """Identifies a lock file on this machine; empty where there is none."""
    try:
        return _name(os.stat(path))
    except OSError:
        return ""


def _name(found: os.stat_result) -> str:
    return f"{found.st_dev:x}:{found.st_ino:x}"
