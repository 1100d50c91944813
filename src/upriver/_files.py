"""Replaces small files atomically: after a crash a file has either its old or its new content.

A new file is written beside the old one, synced and renamed over it, and the directory is synced.
If any of this fails, the old file stays and the new one is removed. A process that is killed may
leave the new one, ``FILE.new``, behind; the next replacement removes it.
"""

from __future__ import annotations

import os
import secrets
import shutil
import stat
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, Final

#: Modes of files: only for their owner, and what the umask leaves.
_PRIVATE: Final = 0o600
_PUBLIC: Final = 0o666


def replace_file(
    path: Path,
    content: bytes | BinaryIO,
    *,
    private: bool = True,
    durable: bool = True,
    keep_mode: bool = False,
    unique: bool = False,
) -> None:
    """Gives a file a new content, or creates it; ``content`` may be an open file to copy.

    With ``private`` only the owner may read it, from the first byte on; with ``keep_mode`` an
    existing file keeps its mode instead. Without ``durable`` nothing is synced, so that a power
    failure may lose both contents. With ``unique`` the temporary file has a random name: several
    processes may then replace the file at the same time.
    """
    draft = path.with_name(f"{path.name}.{secrets.token_hex(8)}" if unique else f"{path.name}.new")
    draft.unlink(missing_ok=True)  # of a process that was killed
    mode = None
    if keep_mode:
        with suppress(FileNotFoundError):
            mode = stat.S_IMODE(path.stat().st_mode)
    create_file(draft, content, private=private, durable=durable, mode=mode)
    try:
        os.replace(draft, path)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise
    if durable:
        sync_directory(path.parent)


def create_file(
    path: Path,
    content: bytes | BinaryIO,
    *,
    private: bool = True,
    durable: bool = True,
    mode: int | None = None,
) -> None:
    """Writes a file that must not exist, and syncs it; an error leaves no file behind.

    ``mode`` is set exactly, whatever the umask. The caller syncs the directory.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    descriptor = os.open(path, flags, _PRIVATE if private else _PUBLIC)
    try:
        with os.fdopen(descriptor, "wb") as file:
            if mode is not None:
                os.fchmod(descriptor, mode)
            if isinstance(content, bytes):
                file.write(content)
            else:
                shutil.copyfileobj(content, file)
            file.flush()
            if durable:
                os.fsync(descriptor)
    except BaseException:
        path.unlink(missing_ok=True)
        raise


def sync_directory(path: Path) -> None:
    """Makes created, renamed and removed names in a directory survive a power failure."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
