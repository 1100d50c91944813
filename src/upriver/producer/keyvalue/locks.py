"""Which documents are locked, by what, and until when. Locks live in memory only.

Whoever locks a document gets a token in place of its CAS, which nobody else can know; a write or
an unlock that brings the token is let through. The store knows nothing of this: towards it the
token stands for the CAS that the document had when it was locked.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable
from typing import Final, NamedTuple

from ...errors import Status, StoreRefusal

__all__ = ["DEFAULT_LOCK_TIME", "LOCKED_CAS", "MAX_LOCK_TIME", "Locks"]

#: The CAS that anybody else sees of a locked document; no document ever has it.
LOCKED_CAS: Final = 2**64 - 1

#: Seconds, as on real servers: long enough for a round trip and some work, short enough that a
#: client that died does not keep a document for long.
DEFAULT_LOCK_TIME: Final = 15
MAX_LOCK_TIME: Final = 30

#: Of one bucket at a time, about 30 MiB; a client that locks whatever it sees is told to wait.
_MAX_LOCKS: Final = 100_000


class _Lock(NamedTuple):
    token: int
    document_cas: int
    until: float


class Locks:
    """The locks of one bucket. Any thread may ask."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._guard = threading.Lock()
        self._locks: dict[tuple[int, bytes], _Lock] = {}
        #: When the last of them ends.
        self._last_until = 0.0

    @property
    def in_use(self) -> bool:
        """Whether there is a lock whose time is not over."""
        return bool(self._locks) and self._clock() < self._last_until

    def take(self, vbucket: int, key: bytes, cas: int, seconds: int | None) -> int:
        """Locks the version with this CAS; returns the token."""
        now = self._clock()
        with self._guard:
            if self._find(vbucket, key, now) is not None:
                raise _locked(key)
            if len(self._locks) >= _MAX_LOCKS:
                self._locks = {at: lock for at, lock in self._locks.items() if lock.until > now}
                if len(self._locks) >= _MAX_LOCKS:
                    raise StoreRefusal(Status.TEMPORARY_FAILURE, "too many documents are locked")
            token = 1 + secrets.randbelow(LOCKED_CAS - 1)
            until = now + min(seconds or DEFAULT_LOCK_TIME, MAX_LOCK_TIME)
            self._locks[vbucket, key] = _Lock(token, cas, until)
            self._last_until = max(self._last_until, until)
        return token

    def shown_cas(self, vbucket: int, key: bytes, cas: int) -> int:
        """The CAS of a document as those see it who only read."""
        if not self._locks:
            return cas
        with self._guard:
            locked = self._find(vbucket, key, self._clock()) is not None
        return LOCKED_CAS if locked else cas

    def condition(self, vbucket: int, key: bytes, cas: int) -> int:
        """The CAS that the store must find for a write that brings ``cas``; refuses one without
        the token of a locked document."""
        if not self._locks:  # almost always, and asked for every write
            return cas
        with self._guard:
            lock = self._find(vbucket, key, self._clock())
        if lock is None:
            return cas
        if lock.token != cas:
            raise _locked(key)
        return lock.document_cas

    def release(self, vbucket: int, key: bytes, token: int) -> bool:
        """Ends the lock with this token; whether there was one."""
        if not self._locks:
            return False
        with self._guard:
            lock = self._find(vbucket, key, self._clock())
            if lock is None or lock.token != token:
                return False
            del self._locks[vbucket, key]
            return True

    def clear(self) -> None:
        """Ends all locks: the documents are gone."""
        with self._guard:
            self._locks.clear()

    def _find(self, vbucket: int, key: bytes, now: float) -> _Lock | None:
        lock = self._locks.get((vbucket, key))
        if lock is not None and lock.until <= now:
            del self._locks[vbucket, key]
            return None
        return lock


def _locked(key: bytes) -> StoreRefusal:
    return StoreRefusal(Status.LOCKED, f"the document {key[1:]!r} is locked")
