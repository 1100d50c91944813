"""One writer at a time, without locks of a file system.

A lease is a file ``_upriver/lease/N.json``, created only if nobody else has created it; the one
with the greatest number counts. Its holder writes a later end into it every few seconds. A lease is
succeeded by the next number if it was given back, if it was watched for as long as it lasts and not
renewed, or if its process is known to be dead. Ends and names of hosts decide nothing: clocks
differ, and containers have names and process numbers of their own.

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
from collections.abc import Callable, Iterator
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
#: No pipeline has made one with a greater number.
_GREATEST: Final = 1 << 53
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
    #: What else its holder has to say; whoever looks at the table reads it in the lease.
    tells: Callable[[], dict[str, Any]] = dict
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
        self.storage.put(_path(self.number), _content(until, self.token, self.tells()))
        self._until = until

    def _look(self) -> None:
        newest = max(_numbers(self.storage), default=self.number)
        if newest > self.number:
            self._lost = f"another pipeline has taken it over, with lease {newest}"

    def release(self) -> None:
        if not self._lost:
            self.storage.put(_path(self.number), _content(0.0, self.token, self.tells()))


@contextmanager
def held_lease(storage: Storage, *, wait: bool = True) -> Iterator[Lease]:
    """Holds the lease of a table; ConfigError names who else holds it.

    A lease whose holder may be dead is watched until it is renewed, or was not. ``wait`` gives one
    that is renewed some time to be given back.
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
    while True:
        number, holder = _succeedable(storage, deadline)
        took_over = number > 0 and not is_given_back(holder)
        lease = Lease(storage, number + 1, token, took_over, _until=time.time() + DURATION)
        if storage.create(_path(lease.number), _content(lease._until, token)):
            storage.delete([_path(number - 1)] if number > 0 else [])
            return lease


def _succeedable(storage: Storage, deadline: float) -> tuple[int, dict[str, Any]]:
    """The newest lease, as soon as nobody holds it any more; ConfigError names who does."""
    newest = number, holder = newest_lease(storage)
    seen, since = newest, time.monotonic()
    is_waiting = is_renewed = False
    while number and not (is_given_back(holder) or is_dead(holder)):
        now = time.monotonic()
        if newest != seen:
            seen, since, is_renewed = newest, now, True
        if now - since >= DURATION:
            break
        if _is_here(holder) or (is_renewed and now >= deadline):
            raise ConfigError(
                f"another pipeline is running on {storage.url}: process {holder.get('pid')} "
                f"of {holder.get('host')}, lease {number}; stop it first"
            )
        if not is_waiting:
            is_waiting = True
            _log.warning(
                "process %s of %s holds lease %d of %s; it is succeeded if it does not renew it "
                "within %.0f s",
                *(holder.get("pid"), holder.get("host"), number, storage.url, DURATION),
            )
        time.sleep(_RENEWED_AFTER / 2)
        newest = number, holder = newest_lease(storage)
    return newest


def newest_lease(storage: Storage) -> tuple[int, dict[str, Any]]:
    """The number of the newest lease, and what its holder has written: nothing if it is damaged."""
    number = max(_numbers(storage), default=0)
    try:
        holder = json.loads(storage.read(_path(number)))
    except (FileNotFoundError, ValueError, RecursionError):
        holder = None
    return number, holder if isinstance(holder, dict) else {}


def _numbers(storage: Storage) -> list[int]:
    numbers = [int(found[1]) for f in storage.files(_FOLDER) if (found := _NAME.fullmatch(f.path))]
    if numbers and max(numbers) > _GREATEST:
        raise ConfigError(
            f"{storage.url}/{_path(max(numbers))} is no lease that a pipeline has made: delete it"
        )
    return numbers


def _path(number: int) -> str:
    return f"{_FOLDER}/{number:020}.json"


def _content(until: float, token: str, told: dict[str, Any] | None = None) -> bytes:
    holder = {
        "host": socket.gethostname(),
        "space": _process_space(),
        "pid": os.getpid(),
        "started": _started(os.getpid()),
        "token": token,
    }
    written = {"until": until, "time": time.time(), "pipeline": told or {}}
    return json.dumps({**holder, **written}).encode()


def is_given_back(holder: dict[str, Any]) -> bool:
    return holder.get("until") == 0


def _is_here(holder: dict[str, Any]) -> bool:
    """Whether the number of the holder's process means the same process to this one."""
    space = _process_space()
    return bool(space) and holder.get("space") == space


def is_dead(holder: dict[str, Any]) -> bool:
    """Whether the holder was a process beside this one that is no more, or holds it no more."""
    pid = holder.get("pid")
    if not _is_here(holder) or not isinstance(pid, int):
        return False
    if _started(pid) != holder.get("started"):
        return True
    return pid == os.getpid() and holder.get("token") not in _held


def _process_space() -> str:
    """The running kernel and the pid namespace of this process; empty where there is no /proc."""
    try:
        booted = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{booted} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return ""


def _started(pid: int) -> str:
    """When a process began, in the kernel's own count; empty if there is none."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return ""
