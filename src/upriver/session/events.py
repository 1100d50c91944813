"""What a consumer's session tells: rows with the steps they mean, and what happened to streams.

Events are values in the order in which their reader must act on them.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final, NamedTuple

import pyarrow as pa

from ..errors import Status
from ..model import FailoverLog, Snapshot, StreamEndReason, VBucketState
from ..wire import messages as m
from .position import Position

__all__ = [
    "Answered",
    "Event",
    "Flushed",
    "MapPushed",
    "RollbackReason",
    "RolledBack",
    "Rows",
    "StateAsked",
    "Step",
    "StreamFinished",
    "StreamOpened",
    "StreamRefused",
    "SystemHappened",
]

_NOT_ASKED: Final = FailoverLog(())


class RollbackReason(Enum):
    """Why a reader has to forget something."""

    #: The producer's history left the reader's at an earlier seqno: a failover.
    DIVERGED = "diverged"
    #: The producer does not know any branch that the reader followed.
    UNKNOWN_BRANCH = "unknown branch"
    #: The branch is the producer's newest, but the reader has more of it.
    AHEAD = "ahead of the server"
    #: Deletions that the reader has not seen were purged.
    PURGED = "purged"


class Step(NamedTuple):
    """How far a vbucket is once ``stop`` rows of the event were read."""

    vbucket: int
    stop: int
    seqno: int
    snapshot: Snapshot
    #: The snapshot is complete although its end was not announced.
    closes: bool = False


@dataclass(frozen=True, slots=True)
class Rows:
    """Changes of one or several vbuckets, each vbucket's in order."""

    batch: pa.RecordBatch
    steps: tuple[Step, ...]
    #: What its packets take of the flow-control window.
    counted: int = 0


@dataclass(frozen=True, slots=True)
class SystemHappened:
    """A collection or scope came or went; the step that it is comes with the next rows."""

    vbucket: int
    event: (
        m.CollectionCreated | m.CollectionDropped | m.ScopeCreated | m.ScopeDropped | m.SystemEvent
    )


@dataclass(frozen=True, slots=True)
class Flushed:
    """Every document of the vbucket is gone."""

    vbucket: int


@dataclass(frozen=True, slots=True)
class StreamOpened:
    """The producer serves the stream; what comes belongs to the newest branch of ``log``."""

    vbucket: int
    log: FailoverLog


@dataclass(frozen=True, slots=True)
class RolledBack:
    """What the reader got after ``to`` is not the producer's history: it must be forgotten.

    ``refused`` says that the reader's policy is not to, so its stream is closed instead.
    """

    vbucket: int
    from_seqno: int
    to: Position
    reason: RollbackReason
    refused: bool = False
    #: The history that the producer served when it said so, as far as that was asked.
    served: FailoverLog = _NOT_ASKED


@dataclass(frozen=True, slots=True)
class StreamFinished:
    """The producer ended the stream, which was received up to a position."""

    vbucket: int
    reason: StreamEndReason
    position: Position


@dataclass(frozen=True, slots=True)
class StreamRefused:
    """The producer does not serve the stream; ``value`` may hold a newer cluster map."""

    vbucket: int
    status: Status
    position: Position
    value: bytes = b""


@dataclass(frozen=True, slots=True)
class StateAsked:
    """A takeover: the reader's copy shall have this state, to be confirmed when it has."""

    vbucket: int
    state: VBucketState


@dataclass(frozen=True, slots=True)
class Answered:
    """An answer to something that the session did not ask."""

    response: m.Response


@dataclass(frozen=True, slots=True)
class MapPushed:
    """The server has a newer cluster map; without a value it must be asked for."""

    value: bytes


Event = (
    Rows
    | SystemHappened
    | Flushed
    | StreamOpened
    | RolledBack
    | StreamFinished
    | StreamRefused
    | StateAsked
    | Answered
    | MapPushed
)
