"""One writer at a time, without locks of a file system.

A lease is a file ``_upriver/lease/N.json``, created only if nobody else has created it; the one
with the greatest number counts. Its holder writes a later end into it every few seconds. A lease
that has ended, that was watched for as long as it lasts and not renewed, or whose process is known
to be dead, is succeeded by the next number.

The number is in every commit. A writer that finds a greater one in the table or beside it has lost
its lease and commits nothing any more. Whoever takes over a lease that was not given back makes a
commit with its own number first: should the other be between its look and its commit just then, it
is too late for that version, looks again and finds the greater number.

A lease has a token of its holder, so that a process knows which leases in its name it does not
hold: it has asked for them and never heard that it got them, or could not give them back.
"""

from __future__ import annotations

import json
import logging
import os
import re
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from .. import _entropy
from ..errors import ConfigError, UpriverError
from ..files.storage import Storage, StorageFailed

_log = logging.getLogger(__name__)

_FOLDER: Final = "_upriver/lease"
_NAME: Final = re.compile(rf"{_FOLDER}/(\d{{20}})\.json")
#: Seconds that a lease lasts, and after which it is renewed.
DURATION: Final = 20.0
_RENEWED_AFTER: Final = 5.0

#: The tokens of leases that this process holds or asks for.
_held: Final[set[str]] = set()


class LeaseLost(UpriverError):
    """Another writer has taken the table over."""


@dataclass(slots=True)
class Lease:
    """The right to write to a table, as long as it lasts."""

    storage: Storage
    number: int
    token: str
    #: Whether the lease before it was not given back: its holder may still be at work.
    took_over: bool = False
    _until: float = 0.0
    _lost: str = ""

    def check(self) -> None:
        """LeaseLost if it is not ours any more."""
        if not self._lost:
            if time.time() > self._until:
                self.renew()
            else:
                self._look()
        if self._lost:
            raise LeaseLost(
                f"the lease of {self.storage.url} is lost: {self._lost}; nothing was committed; "
                "start the pipeline again if no other one runs"
            )

    def renew(self) -> None:
        """Makes it last longer, if nobody has succeeded it."""
        self._look()
        if self._lost:
            return
        until = time.time() + DURATION
        self.storage.put(_path(self.number), _content(until, self.token))
        self._until = until

    def _look(self) -> None:
        newest = max(_numbers(self.storage), default=self.number)
        if newest > self.number:
            self._lost = f"another pipeline has taken it over, with lease {newest}"

    def release(self) -> None:
        if not self._lost:
            self.storage.put(_path(self.number), _content(0.0, self.token))


@contextmanager
def held_lease(storage: Storage, *, wait: bool = True) -> Iterator[Lease]:
    """Holds the lease of a table; ConfigError names who else holds it.

    It waits for the end of a lease whose holder may be dead, unless the caller does not want that.
    """
    token = _entropy.token_hex(16)
    _held.add(token)
    try:
        lease = _acquired(storage, token, 2 * DURATION if wait else 0.0)
        with _kept(lease):
            yield lease
    finally:
        _held.discard(token)


@contextmanager
def _kept(lease: Lease) -> Iterator[None]:
    """Renews a lease in a block, and gives it back after it."""
    ended = threading.Event()
    keeper = threading.Thread(target=_keep, args=(lease, ended), name="upriver lease", daemon=True)
    keeper.start()
    try:
        yield
    finally:
        ended.set()
        keeper.join()
        try:
            lease.release()
        except StorageFailed as problem:
            _log.warning("the lease was not released and ends by itself: %s", problem)


def _keep(lease: Lease, ended: threading.Event) -> None:
    while not ended.wait(_RENEWED_AFTER):
        try:
            lease.renew()
        except StorageFailed as problem:
            _log.warning("the lease was not renewed: %s", problem)
        if lease._lost:
            return


def _acquired(storage: Storage, token: str, patience: float) -> Lease:
    deadline = time.monotonic() + patience
    seen: tuple[int, dict[str, Any]] | None = None
    while True:
        newest = number, holder = _newest(storage)
        now = time.monotonic()
        if newest != seen:
            seen, since = newest, now
        left = float(holder.get("until", 0.0)) - time.time() if holder else 0.0
        # a holder whose clock is ahead has written a late end: what shows its life is renewing
        if left > 0 and now - since < DURATION and not _is_dead(holder):
            if _is_here(holder) or now >= deadline:
                raise ConfigError(
                    f"another pipeline is running on {storage.url}: process {holder.get('pid')} "
                    f"of {holder.get('host')}, lease {number}; stop it first"
                )
            time.sleep(min(left, _RENEWED_AFTER))
            continue
        took_over = number > 0 and holder.get("until") != 0
        lease = Lease(storage, number + 1, token, took_over, time.time() + DURATION)
        if storage.create(_path(lease.number), _content(lease._until, token)):
            storage.delete([_path(number - 1)] if number > 0 else [])
            return lease


def _newest(storage: Storage) -> tuple[int, dict[str, Any]]:
    number = max(_numbers(storage), default=0)
    try:
        return number, json.loads(storage.read(_path(number)))
    except (FileNotFoundError, ValueError):
        return number, {}


def _numbers(storage: Storage) -> list[int]:
    return [int(found[1]) for f in storage.files(_FOLDER) if (found := _NAME.fullmatch(f.path))]


def _path(number: int) -> str:
    return f"{_FOLDER}/{number:020}.json"


def _content(until: float, token: str) -> bytes:
    holder = {
        "host": socket.gethostname(),
        "boot": _boot(),
        "pid": os.getpid(),
        "started": _started(os.getpid()),
        "token": token,
    }
    return json.dumps({**holder, "until": until}).encode()


def _is_here(holder: dict[str, Any]) -> bool:
    return holder.get("host") == socket.gethostname() and holder.get("boot") == _boot()


def _is_dead(holder: dict[str, Any]) -> bool:
    """Whether the holder was a process of this machine that is no more, or holds it no more."""
    if holder.get("host") != socket.gethostname():
        return False
    if holder.get("boot") != _boot():
        return False  # a container of the same name may have another kernel
    if _started(int(holder.get("pid", 0))) != holder.get("started"):
        return True
    return holder.get("pid") == os.getpid() and holder.get("token") not in _held


def _boot() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def _started(pid: int) -> str:
    """When a process began, in the kernel's own count; empty if there is none."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return ""
