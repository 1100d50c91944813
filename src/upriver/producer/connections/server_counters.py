"""Counters of a server since its start. Only the event loop's thread adds to them."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass
from typing import Final

from .latency_histogram import LatencyHistogram

#: Rollbacks that are remembered: about as many as a failover of many vbuckets causes.
_REMEMBERED: Final = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class RollbackCount:
    """A rollback that a consumer was asked for."""

    #: Counts up from 1.
    number: int
    #: Seconds since 1970.
    time: float
    connection: str
    bucket: str
    vbucket: int
    seqno: int


class Traffic:
    """Counters that only grow. Any thread may read them."""

    __slots__ = (
        "delivery_seconds",
        "messages",
        "reads",
        "request_seconds",
        "rollbacks",
        "rolled_back",
        "started",
        "streamed_bytes",
    )

    def __init__(self) -> None:
        self.started = time.time()
        #: Requests about a document that were answered without a write.
        self.reads = 0
        #: Changes that streams sent, and all bytes that they sent.
        self.messages = 0
        self.streamed_bytes = 0
        self.rollbacks = 0
        #: The latest rollbacks.
        self.rolled_back: deque[RollbackCount] = deque(maxlen=_REMEMBERED)
        #: From the arrival of a document request to its response.
        self.request_seconds = LatencyHistogram()
        #: From a write, by the time in its CAS, to the moment when a stream that has caught up
        #: sends it. Counted once per chunk of changes, for the oldest of them.
        self.delivery_seconds = LatencyHistogram()

    def streamed(self, messages: int, size: int) -> None:
        self.messages += messages
        self.streamed_bytes += size

    def delivered(self, cas: int) -> None:
        """Counts that a change with this CAS is sent to a consumer."""
        self.delivery_seconds.add(time.time() - cas / 1e9)

    def sent_back(self, connection: str, bucket: str, vbucket: int, seqno: int) -> None:
        self.rollbacks += 1
        self.rolled_back.append(
            RollbackCount(
                number=self.rollbacks,
                time=time.time(),
                connection=connection,
                bucket=bucket,
                vbucket=vbucket,
                seqno=seqno,
            )
        )
