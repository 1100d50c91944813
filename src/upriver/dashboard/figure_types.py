"""The JSON documents of the dashboard as TypedDicts, for the page, metrics and remote dashboards.

Documents are dictionaries of plain values. Seqnos are numbers; vbuuids are hexadecimal text,
because JavaScript's numbers cannot hold all of them. Vbuckets are stored as columns with one entry
each: a thousand small objects would be five times as long.
"""

from __future__ import annotations

from typing import Final, TypedDict

#: The version of the document format; documents of another version are refused.
FORMAT: Final = 2

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


class CollectionFigures(TypedDict):
    scope: str
    name: str
    #: Documents in active vbuckets; null until they are counted for the first time.
    items: int | None


class BucketFigures(TypedDict):
    name: str
    items: int
    tombstones: int
    history_bytes: int
    disk_bytes: int
    backfills: int
    vbuckets: VBucketColumns
    #: The first collections, and how many there are.
    collections: list[CollectionFigures]
    collection_count: int


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
    #: Changes that it was not sent yet, and the age in seconds of the oldest of them.
    lag: int
    lag_seconds: float
    #: The streams with the largest backlog.
    slowest: list[StreamFigures]


class LatencyFigures(TypedDict):
    """A histogram since the server's start."""

    #: Upper bounds in seconds, and the counts below each; the last count has no bound.
    bounds: list[float]
    counts: list[int]
    #: The sum of all latencies in seconds.
    total: float


class RollbackFigures(TypedDict):
    """A reader that had to roll back."""

    id: int
    time: float
    connection: str
    bucket: str
    vbucket: int
    seqno: int


class ServerFigures(TypedDict):
    #: The version that clients receive, and the version of Upriver.
    version: str
    software: str
    #: The connection string without a bucket.
    address: str
    #: Whether viewers have to sign in.
    has_users: bool
    #: Bytes of memory, seconds of processor time since the start, and free bytes of the disk.
    memory: int
    cpu_seconds: float
    disk_free: int
    #: From a request to its response, and from a write to its delivery to a reader.
    request_seconds: LatencyFigures
    delivery_seconds: LatencyFigures
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
    lag_seconds: float | None
    delay: float | None


class HeartbeatFigures(TypedDict):
    """What is known of a pipeline now."""

    #: When it was heard of last, in seconds since 1970.
    time: float
    #: starting, reading, idle, waiting, done, stopped, failed, or gone.
    state: str
    #: Since when, and what it waits for or why it failed.
    since: float
    reason: str
    #: How far the table is behind, in changes and in seconds; null if that is not known.
    lag: int | None
    lag_seconds: float | None


class PipelineFigures(TypedDict):
    """A pipeline. Counts are of the batches that its progress file has."""

    name: str
    #: Null if no pipeline of this release ever ran there, or its table cannot be read.
    now: HeartbeatFigures | None
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


class LagFigures(TypedDict):
    """The lag of one reader or pipeline, with one entry per point of the history."""

    name: str
    #: ``reader`` or ``pipeline``.
    kind: str
    #: In changes and in seconds; null where it was not there, or not known.
    changes: list[int | None]
    seconds: list[float | None]


class HistoryFigures(TypedDict):
    """Points in time as columns, oldest first."""

    time: list[float]
    #: Per second.
    writes: list[float]
    reads: list[float]
    messages: list[float]
    bytes: list[float]
    #: The share of one processor.
    cpu: list[float]
    #: Bytes.
    memory: list[int]
    disk: list[int]
    #: Percentiles in seconds; null without requests or deliveries.
    request_p50: list[float | None]
    request_p99: list[float | None]
    delivery_p50: list[float | None]
    delivery_p99: list[float | None]
    lags: list[LagFigures]


class StatsDocument(TypedDict):
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
    #: The last minutes; ``/history.json`` has the last hour.
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


class VersionFigures(TypedDict):
    """One version of a document."""

    #: ``mutation``, ``deletion`` or ``expiration``.
    op: str
    seqno: int
    rev: int
    #: Hexadecimal.
    cas: str
    #: When it was written, by its CAS, in seconds since 1970.
    time: float
    flags: int
    #: When it expires, in seconds since 1970; 0 for never.
    expiry: int
    #: Extended attributes by name, as text.
    xattrs: dict[str, str]
    #: The value as text, if it is UTF-8; null for other bytes.
    value: str | None
    #: The bytes of the value, of which ``value`` may show the first only.
    size: int


class DocumentDetail(TypedDict):
    """A document and its older versions: ``/document.json``."""

    bucket: str
    scope: str
    collection: str
    key: str
    vbucket: int
    #: Newest first.
    versions: list[VersionFigures]
