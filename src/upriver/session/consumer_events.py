"""Events that a consumer session emits: rows with position steps, and changes of stream state.

Events are immutable values. The application must handle them in the order in which they come.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from ..errors import Status
from ..model import FailoverLog, Snapshot, StreamEndReason, VBucketState
from ..wire import messages as m
from ..wire.flatbuffer_event_decoder import NamedEvent
from .stream_position import Position

_NOT_ASKED: Final = FailoverLog(())


class RollbackReason(Enum):
    """Why a consumer must roll back a vbucket."""

    #: After a failover, the producer's history diverges from the consumer's at an earlier seqno.
    DIVERGED = "diverged"
    #: The producer's failover log has none of the branches that the consumer followed.
    UNKNOWN_BRANCH = "unknown branch"
    #: The producer has the consumer's branch as its newest, but with a lower high seqno.
    AHEAD = "ahead of the server"
    #: Deletions that the consumer has not received were purged.
    PURGED = "purged"
    #: Every document was deleted by a flush.
    FLUSHED = "flushed"


class Step(NamedTuple):
    """The position of a vbucket after the first ``stop`` rows of the event."""

    vbucket: int
    stop: int
    seqno: int
    snapshot: Snapshot
    #: The snapshot is complete although its marker did not give its end.
    closes: bool = False
    #: The purge seqno from the snapshot marker; 0 if it had none.
    purge_seqno: int = 0
    #: The rows came out of seqno order: the position stays until their snapshot ends.
    holds: bool = False


@dataclass(frozen=True, slots=True)
class Rows:
    """Changes of one or several vbuckets, in seqno order within each vbucket."""

    batch: pa.RecordBatch
    steps: tuple[Step, ...]
    #: Bytes of the flow-control window that the packets of these rows occupy.
    counted: int = 0

    def slice(self, start: int, stop: int, steps: Iterable[Step]) -> Rows:
        """Returns the rows from ``start`` to ``stop`` with those of the steps that belong to them.

        Slices that together are all rows have together all counted bytes.
        """
        rows = self.batch.num_rows
        return Rows(
            self.batch.slice(start, stop - start),
            tuple(step._replace(stop=step.stop - start) for step in steps),
            self.counted * stop // max(1, rows) - self.counted * start // max(1, rows),
        )

    def filter(self, kept: np.ndarray[Any, np.dtype[np.bool_]]) -> Rows:
        """Returns the rows for which ``kept`` is true.

        All steps and counted bytes stay: every row was received, whether it is kept or not.
        """
        before = np.concatenate(([0], np.cumsum(kept)))
        steps = tuple(step._replace(stop=int(before[step.stop])) for step in self.steps)
        return Rows(self.batch.filter(pa.array(kept)), steps, self.counted)


@dataclass(frozen=True, slots=True)
class SystemHappened:
    """A collection or scope was created, dropped or changed. Its step comes with the next rows."""

    vbucket: int
    event: NamedEvent | m.SystemEvent


@dataclass(frozen=True, slots=True)
class SyncWrite:
    """A durable write was prepared, committed or aborted. Emitted only if sync writes are enabled.

    A commit carries the key and the seqno of its prepare; the prepare carries the value.
    """

    vbucket: int
    write: m.Prepare | m.Commit | m.Abort


@dataclass(frozen=True, slots=True)
class Flushed:
    """Every document of the vbucket was deleted by a flush: a rollback to seqno 0.

    ``on_rollback`` was called for it. What follows belongs to an empty vbucket.
    """

    vbucket: int


@dataclass(frozen=True, slots=True)
class StreamOpened:
    """The producer accepted the stream. Its changes belong to the newest branch of ``log``."""

    vbucket: int
    log: FailoverLog


@dataclass(frozen=True, slots=True)
class RolledBack:
    """The changes after ``to`` are not part of the producer's history: discard them.

    ``refused``: the session does not roll back by itself, and closed the stream instead.
    """

    vbucket: int
    from_seqno: int
    to: Position
    reason: RollbackReason
    refused: bool = False
    #: The producer's failover log at that time; empty if it was not requested.
    served: FailoverLog = _NOT_ASKED


@dataclass(frozen=True, slots=True)
class StreamFinished:
    """The producer ended the stream. ``position`` is how far it was received."""

    vbucket: int
    reason: StreamEndReason
    position: Position


@dataclass(frozen=True, slots=True)
class StreamRefused:
    """The producer refused the stream. ``value`` may hold a newer cluster map."""

    vbucket: int
    status: Status
    position: Position
    value: bytes = b""


@dataclass(frozen=True, slots=True)
class StateAsked:
    """A takeover: the producer asks the consumer for this vbucket state.

    `Consumer` and `AsyncConsumer` have confirmed it when they hand this out.
    """

    vbucket: int
    state: VBucketState


@dataclass(frozen=True, slots=True)
class Answered:
    """A response whose request the session did not send."""

    response: m.Response


@dataclass(frozen=True, slots=True)
class MapPushed:
    """The server announced a newer cluster map. If ``value`` is empty, it must be requested."""

    value: bytes


Event = (
    Rows
    | SystemHappened
    | SyncWrite
    | Flushed
    | StreamOpened
    | RolledBack
    | StreamFinished
    | StreamRefused
    | StateAsked
    | Answered
    | MapPushed
)
