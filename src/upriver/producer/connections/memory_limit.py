"""Memory budget of all connections together: bytes received, and bytes to be sent.

Every connection may always hold a small amount. While all connections together are at the limit,
the server stops reading from connections that hold more than that, and buffers less for their
peers. A large packet reserves its memory before its body is read, so that a packet that was begun
can be finished. If a connection waits for memory too long, the connection that holds the most is
closed.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import logging
import threading
from collections.abc import Callable
from typing import Final, Protocol

logger = logging.getLogger("upriver.producer")

#: Bytes that a connection may always hold, and the longest packet before authentication: the
#: longest HELLO has 2.3 KiB, the longest SASL message 4 KiB.
SMALL: Final = 64 * 1024
#: Seconds that a connection waits for memory before the one that holds the most is closed.
_PATIENCE: Final = 10.0
#: After connections that held this much together were closed, free memory is returned to the
#: operating system: the allocator keeps it otherwise.
_WORTH_TRIMMING: Final = 1024 * 1024
#: The least memory that a connection takes, besides the bytes it received and has to send.
_CONNECTION_BYTES: Final = 8 * 1024
#: Seconds between two returns of memory; each takes milliseconds.
_TRIM_SECONDS: Final = 1.0


class Holder(Protocol):
    """A connection as the budget sees it."""

    def check_memory(self) -> None:
        """Called when there may be memory again; the connection then calls `admits` again."""

    def close(self, reason: str = "") -> None: ...
    def abort(self) -> None: ...


class MemoryLimit:
    """The memory budget of one server. Only the event loop's thread may use it."""

    def __init__(self, loop: asyncio.AbstractEventLoop, limit: int) -> None:
        self._loop = loop
        self.limit = limit
        #: Bytes that all connections hold.
        self.total = 0
        #: The most bytes that they ever held.
        self.peak = 0
        self._held: dict[Holder, int] = {}
        #: Connections that wait for memory and since when, longest wait first.
        self._waiting: dict[Holder, float] = {}
        self._watching = False
        self._trimming = False
        #: Bytes released since memory was last returned to the operating system.
        self._released = 0

    @property
    def short(self) -> bool:
        """Whether the limit is reached."""
        return self.total >= self.limit

    def hold(self, holder: Holder, size: int) -> None:
        """Sets how many bytes a connection holds."""
        before = self._held.get(holder, 0)
        self._held[holder] = size
        self.total += size - before
        self.peak = max(self.peak, self.total)
        if size < before:
            self._tell()
        if self.total > 2 * self.limit:
            self._drop_largest()

    def admits(self, holder: Holder, size: int) -> bool:
        """Whether a connection may hold ``size`` bytes; if not, `check_memory` is called later."""
        if size <= SMALL or self.total - self._held.get(holder, 0) + size <= self.limit:
            self._waiting.pop(holder, None)
            return True
        self._waiting.setdefault(holder, self._loop.time())
        self._watch()
        return False

    def forget(self, holder: Holder) -> None:
        """Removes a connection that is closed."""
        held = self._held.pop(holder, 0)
        self._waiting.pop(holder, None)
        self.total -= held
        self.released(max(held, _CONNECTION_BYTES))
        if held:
            self._tell()

    def released(self, size: int = _CONNECTION_BYTES) -> None:
        """Counts released memory; a large amount is soon returned to the operating system."""
        self._released += size
        if self._released >= _WORTH_TRIMMING and not self._trimming:
            self._trimming = True
            self._loop.call_later(_TRIM_SECONDS, self._trim)

    def _tell(self) -> None:
        if self._waiting and not self.short:
            for holder in list(self._waiting):
                holder.check_memory()

    # ---- closing the largest holder ------------------------------------------------------

    def _watch(self) -> None:
        if not self._watching:
            self._watching = True
            self._loop.call_later(_PATIENCE, self._look)

    def _look(self) -> None:
        self._watching = False
        if not self._waiting:
            return
        if self._loop.time() - next(iter(self._waiting.values())) >= _PATIENCE:
            self._drop_largest()
        self._watch()

    def _drop_largest(self) -> None:
        largest = max(self._held, key=self._held.__getitem__)
        size = self._held[largest]
        largest.close(
            f"all connections together hold {self.total} bytes, the limit is {self.limit}, "
            f"and this one holds the most, {size}"
        )
        largest.abort()
        self.hold(largest, 0)

    # ---- returning memory to the operating system ----------------------------------------

    def _trim(self) -> None:
        self._trimming, self._released = False, 0
        gc.collect()  # transports and protocols of closed TLS connections refer to each other
        trim = _malloc_trim()
        if trim is not None:  # in a thread, because trimming a large heap takes time
            threading.Thread(target=trim, args=(0,), name="upriver trim", daemon=True).start()


def _malloc_trim() -> Callable[[int], int] | None:
    """glibc's malloc_trim, which returns free pages to the operating system; None elsewhere.

    Without it the memory of large packets stays with the process, fragmented by smaller objects.
    """
    try:
        trim: Callable[[int], int] = ctypes.CDLL(None).malloc_trim
    except (OSError, AttributeError, TypeError):
        return None
    return trim
