"""What is shown, as the JSON documents that the page, the metrics and other dashboards read.

Documents are dictionaries of plain values. Seqnos are numbers; names of branches are hexadecimal
text, because JavaScript's numbers cannot hold all of them. What each vbucket has comes as columns
with one entry for each: a thousand small objects would be five times as long.
"""

from __future__ import annotations

from types import NoneType, UnionType
from typing import (
    Any,
    Final,
    TypedDict,
    TypeVar,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
)

__all__ = [
    "FORMAT",
    "STATE_LETTERS",
    "BatchFigures",
    "BranchFigures",
    "BucketFigures",
    "ConnectionFigures",
    "CopyFigures",
    "Document",
    "EventFigures",
    "HistoryFigures",
    "PipelineFigures",
    "ReaderFigures",
    "RollbackFigures",
    "ServerFigures",
    "StreamFigures",
    "VBucketColumns",
    "VBucketDetail",
    "checked",
]

#: The version of the documents; another one is not understood.
FORMAT: Final = 1

#: How the column of states writes each.
STATE_LETTERS: Final = {"active": "a", "replica": "r", "pending": "p", "dead": "d"}


class VBucketColumns(TypedDict):
    """The vbuckets of a bucket, in order."""

    #: A letter for each, see `STATE_LETTERS`.
    state: str
    high: list[int]
    persisted: list[int]
    items: list[int]
    #: Changes that the slowest reader has still to be sent; -1 where nobody reads.
    lag: list[int]
    #: The name of the newest branch.
    branch: list[str]


class BucketFigures(TypedDict):
    name: str
    items: int
    tombstones: int
    history_bytes: int
    disk_bytes: int
    backfills: int
    vbuckets: VBucketColumns


class StreamFigures(TypedDict):
    vbucket: int
    stream_id: int | None
    state: str
    position: int
    #: The seqno after which it ends; null if it never does.
    end: int | None
    lag: int
    messages: int
    bytes: int
    takeover: bool


class ConnectionFigures(TypedDict):
    peer: str
    agent: str
    user: str | None
    bucket: str | None
    dialect: str
    name: str
    #: ``reader`` follows changes, ``replica`` brings changes here, ``client`` does neither.
    kind: str
    tls: bool
    noop: bool
    #: Bytes of the flow-control window, 0 without one, and how many of them are under way.
    window: int
    outstanding: int
    #: How many streams there are, and how many of them in each state.
    streams: int
    states: dict[str, int]
    #: Vbuckets that this node receives on it.
    receives: int
    lag: int
    #: The streams with the most still to send.
    slowest: list[StreamFigures]


class RollbackFigures(TypedDict):
    """A reader that was told to go back."""

    id: int
    time: float
    connection: str
    bucket: str
    vbucket: int
    seqno: int


class ServerFigures(TypedDict):
    version: str
    #: Seconds since 1970.
    started: float
    #: Counts since the start.
    reads: int
    messages: int
    bytes: int
    rollbacks: int
    rolled_back: list[RollbackFigures]
    buckets: list[BucketFigures]
    #: How many there are, and those with the most to tell.
    connection_count: int
    connections: list[ConnectionFigures]


class BatchFigures(TypedDict):
    time: float
    batch: int
    rows: int
    seconds: float
    rollbacks: int
    dead_letters: int
    lag: int | None
    delay: float | None


class PipelineFigures(TypedDict):
    """A pipeline. Counts are of the batches that its table tells of."""

    name: str
    batches: int
    rows: int
    rollbacks: int
    dead_letters: int
    #: The newest batches, oldest first.
    recent: list[BatchFigures]


class EventFigures(TypedDict):
    id: int
    time: float
    #: ``failover``, ``rollback`` or ``state``.
    kind: str
    text: str
    bucket: str | None
    vbucket: int | None


class HistoryFigures(TypedDict):
    """The last minutes, as columns with one entry for each look."""

    time: list[float]
    #: A second.
    writes: list[float]
    reads: list[float]
    messages: list[float]
    bytes: list[float]
    #: Changes that all readers together have still to be sent.
    lag: list[int]


class Document(TypedDict):
    """Everything at one moment: ``/stats.json``."""

    format: int
    time: float
    #: Seconds between two looks, and seconds that the last one took.
    interval: float
    cost: float
    #: Why there are no newer figures of the server; null if all is well.
    problem: str | None
    server: ServerFigures | None
    #: By bucket, since the dashboard began: changes that were committed, and new branches.
    changes: dict[str, int]
    branches: dict[str, int]
    pipelines: list[PipelineFigures]
    history: HistoryFigures
    events: list[EventFigures]


class BranchFigures(TypedDict):
    branch: str
    seqno: int


class CopyFigures(TypedDict):
    #: ``active``, or which replica.
    role: str
    node: str


class ReaderFigures(TypedDict):
    connection: str
    stream: StreamFigures


class VBucketDetail(TypedDict):
    """One vbucket: ``/vbucket.json``."""

    bucket: str
    vbucket: int
    state: str
    high: int
    persisted: int
    purged: int
    #: The lowest seqno to which it can be rolled back exactly.
    floor: int
    items: int
    tombstones: int
    history_bytes: int
    #: Newest first.
    failover_log: list[BranchFigures]
    copies: list[CopyFigures]
    readers: list[ReaderFigures]


_D = TypeVar("_D")


def checked(kind: type[_D], value: object) -> _D:
    """A document from elsewhere, if it is one of that kind; ValueError says what is wrong.

    What else is in it is left out.
    """
    result: _D = _checked(kind, value, kind.__name__)
    return result


def _checked(kind: Any, value: Any, where: str) -> Any:
    if is_typeddict(kind):
        if not isinstance(value, dict):
            raise ValueError(f"{where} is no object")
        hints = get_type_hints(kind)
        missing = sorted(hints.keys() - value.keys())
        if missing:
            raise ValueError(f"{where} has no {missing[0]}")
        return {name: _checked(hint, value[name], name) for name, hint in hints.items()}
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is UnionType:
        if value is None and NoneType in arguments:
            return None
        return _checked(arguments[0], value, where)
    if origin is list and isinstance(value, list):
        return [_checked(arguments[0], one, where) for one in value]
    if origin is dict and isinstance(value, dict):
        return {str(name): _checked(arguments[1], one, where) for name, one in value.items()}
    if origin is None and _is(kind, value):
        return value
    raise ValueError(f"{where} is of the wrong kind")


def _is(kind: type, value: object) -> bool:
    """Whether a plain value is of a kind; true is no number, a whole number is a number."""
    if isinstance(value, bool):
        return kind is bool
    return isinstance(value, (int, float) if kind is float else kind)
