"""Document locks (GET_LOCKED), held in memory only.

The client that locks a document gets a secret token in place of its CAS. A write or an unlock that
carries the token is accepted. The store knows nothing of locks: for the store, the token is
replaced by the CAS that the document had when it was locked.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final, NamedTuple

from ... import _entropy
from ...errors import Status, StoreRefusal

#: The CAS that other clients see of a locked document. No document ever has this CAS.
LOCKED_CAS: Final = 2**64 - 1

#: Seconds, as on Couchbase Server: long enough for a round trip and some work, short enough that a
#: client that died does not block a document for long.
DEFAULT_LOCK_TIME: Final = 15
MAX_LOCK_TIME: Final = 30

#: Locks of one bucket at a time, about 30 MiB. Beyond this limit a client has to try again
#: later.
_MAX_LOCKS: Final = 100_000


class _Lock(NamedTuple):
    token: int
    document_cas: int
    until: float


class Locks:
    """The locks of one bucket. Safe to use from any thread."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._guard = threading.Lock()
        self._locks: dict[tuple[int, bytes], _Lock] = {}
        #: When the last of the locks expires.
        self._last_until = 0.0

    @property
    def in_use(self) -> bool:
        """Whether there is a lock that has not expired."""
        return bool(self._locks) and self._clock() < self._last_until

    def take(self, vbucket: int, key: bytes, cas: int, seconds: int | None) -> int:
        """Locks the version with this CAS and returns the token."""
        now = self._clock()
        with self._guard:
            if self._find(vbucket, key, now) is not None:
                raise _locked(key)
            if len(self._locks) >= _MAX_LOCKS:
                self._locks = {at: lock for at, lock in self._locks.items() if lock.until > now}
                if len(self._locks) >= _MAX_LOCKS:
                    raise StoreRefusal(Status.TEMPORARY_FAILURE, "too many documents are locked")
            token = 1 + _entropy.randbelow(LOCKED_CAS - 1)
            # A time that is too long is replaced by the default, as on Couchbase Server.
            wanted = seconds if seconds and seconds <= MAX_LOCK_TIME else DEFAULT_LOCK_TIME
            until = now + wanted
            self._locks[vbucket, key] = _Lock(token, cas, until)
            self._last_until = max(self._last_until, until)
        return token

    def shown_cas(self, vbucket: int, key: bytes, cas: int) -> int:
        """Returns the CAS that a reader sees, which for a locked document is `LOCKED_CAS`."""
        if not self._locks:
            return cas
        with self._guard:
            locked = self._find(vbucket, key, self._clock()) is not None
        return LOCKED_CAS if locked else cas

    def condition(self, vbucket: int, key: bytes, cas: int) -> int:
        """Returns the CAS that the store must find for a write that carries ``cas``.

        Refuses the write if the document is locked and ``cas`` is not its token.
        """
        if not self._locks:  # the usual case, checked for every write
            return cas
        with self._guard:
            lock = self._find(vbucket, key, self._clock())
        if lock is None:
            return cas
        if lock.token != cas:
            raise _locked(key)
        return lock.document_cas

    def release(self, vbucket: int, key: bytes, token: int) -> bool:
        """Releases the lock with this token. Returns whether there was one."""
        if not self._locks:
            return False
        with self._guard:
            lock = self._find(vbucket, key, self._clock())
            if lock is None or lock.token != token:
                return False
            del self._locks[vbucket, key]
            return True

    def clear(self) -> None:
        """Releases all locks, because the documents were deleted."""
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
