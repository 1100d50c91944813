"""Files that a node's process keeps beside its data, so that any manager can find and end it.

    node.lock     held by the process as long as it lives, whatever becomes of its manager
    node.json     written under the lock: its process number, or why it could not start
    epoch         the newest epoch that it has heard of

The lock is the proof that a process runs: the operating system releases it when the process ends.
A process number is used only while the lock is held, so /proc is not needed.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from pathlib import Path
from typing import Any, Final

from .._files import replace_file
from ..errors import ConfigError
from . import process_lock

EPOCH_FILE: Final = "epoch"
_LOCK_FILE: Final = "node.lock"
_NODE_FILE: Final = "node.json"
#: Seconds to wait for the lock: a manager that probes it holds it for a moment.
_PATIENCE: Final = 3.0
_POLL_SECONDS: Final = 0.02


class NodeLock(process_lock.ProcessLock):
    """The lock of a node's directory, held by this process until it ends."""

    def __init__(self, data: Path) -> None:
        """Takes the lock; `ConfigError` if another process has it."""
        self._file = data / _NODE_FILE
        deadline = time.monotonic() + _PATIENCE
        while True:
            try:
                super().__init__(data / _LOCK_FILE)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise ConfigError(f"another process runs the node in {data}") from None
                time.sleep(_POLL_SECONDS)

    def write(self, **facts: Any) -> None:
        """Writes who holds the lock, or why the process is about to end."""
        replace_file(self._file, json.dumps(facts).encode())


def lock_name(data: Path) -> str:
    """Names the lock in a node's directory; empty where there is none."""
    return process_lock.lock_name(data / _LOCK_FILE)


def is_locked(data: Path) -> bool | None:
    """Whether a process holds the lock of a node's directory; None where there is no lock."""
    return _probe(data, forgetting=False)


def forget(data: Path) -> None:
    """Removes the file of a process that has ended; does nothing while one runs."""
    _probe(data, forgetting=True)


def _probe(data: Path, *, forgetting: bool) -> bool | None:
    try:
        descriptor = os.open(data / _LOCK_FILE, os.O_RDWR)
    except (FileNotFoundError, NotADirectoryError):
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if forgetting:
            (data / _NODE_FILE).unlink(missing_ok=True)
        return False
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)


def read(data: Path) -> dict[str, Any]:
    """What the node's process last wrote about itself; empty if nothing."""
    try:
        stored = json.loads((data / _NODE_FILE).read_text())
    except (OSError, ValueError):
        return {}
    return stored if isinstance(stored, dict) else {}
