"""The JSON documents of the dashboard as TypedDicts, for the page, metrics and remote dashboards.

Documents are dictionaries of plain values. Seqnos are numbers; vbuuids are hexadecimal text,
because JavaScript's numbers cannot hold all of them. Vbuckets are stored as columns with one entry
each: a thousand small objects would be five times as long.
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

#: The version of the document format; documents of another version are refused.
FORMAT: Final = 1

#: The letters of the column ``state``.
STATE_LETTERS: Final = {"active": "a", "replica": "r", "pending": "p", "dead": "d"}


class VBucketColumns(TypedDict):
    """The vbuckets of a bucket, in order."""

    #: A letter per vbucket, see `STATE_LETTERS`.
    state: str
    high: list[int]
    persisted: list[int]
    items: list[int]
    #: Changes that the slowest reader has not been sent yet; -1 without readers.
    lag: list[int]
    #: The vbuuid of the newest branch.
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
    #: The end seqno; null for a stream without an end.
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
    #: ``reader`` streams changes, ``replica`` sends changes to this node, ``client`` does neither.
    kind: str
    tls: bool
    noop: bool
    #: Bytes of the flow-control window (0 without one), and unacknowledged bytes.
    window: int
    outstanding: int
    #: The number of streams, in total and by state.
    streams: int
    states: dict[str, int]
    #: Vbuckets that this node receives on it.
    receives: int
    lag: int
    #: The streams with the largest backlog.
    slowest: list[StreamFigures]


class RollbackFigures(TypedDict):
    """A reader that was told to roll back."""

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
    #: The number of connections, and the most active ones.
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
    """A pipeline. Counts are of the batches that its progress file has."""

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
    """The last minutes, as columns with one entry per sample."""

    time: list[float]
    #: Per second.
    writes: list[float]
    reads: list[float]
    messages: list[float]
    bytes: list[float]
    #: The backlog of all readers together, in changes.
    lag: list[int]


class Document(TypedDict):
    """A complete sample: ``/stats.json``."""

    format: int
    time: float
    #: Seconds between two samples, and the CPU seconds of the last one.
    interval: float
    cost: float
    #: Why the server's figures are not up to date; null if they are.
    problem: str | None
    server: ServerFigures | None
    #: By bucket, since the dashboard's start: committed changes, and new branches.
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
    """Validates a document from another dashboard; ValueError says what is wrong.

    Unknown members are left out.
    """
    result: _D = _checked(kind, value, kind.__name__)
    return result


def _checked(kind: Any, value: Any, where: str) -> Any:
    if is_typeddict(kind):
        if not isinstance(value, dict):
            raise ValueError(f"{where} is not an object")
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
    raise ValueError(f"{where} has the wrong type")


def _is(kind: type, value: object) -> bool:
    """Whether a plain value has a type; a bool is not a number, an int is a valid float."""
    if isinstance(value, bool):
        return kind is bool
    return isinstance(value, (int, float) if kind is float else kind)
