"""Consumer settings: what to read, where to start and end, timeouts, and the rollback policy.

Settings are immutable values that are validated on creation. This module does no I/O.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import Enum
from os import PathLike
from typing import Final, Literal, TypedDict

from .. import _entropy
from ..errors import ConfigError
from ..session.stream_position import Position
from ..wire.dialects.by_name import DIALECTS
from ..wire.protocol_enums import DIALECT_NAMES, DialectName
from .checkpoints.checkpoint import Checkpoint, CheckpointStore

#: Where to start: at the oldest change, after the newest change, at a checkpoint, or at a position
#: for each vbucket (vbuckets that are not named start at the beginning).
Start = Literal["beginning", "now"] | Checkpoint | Mapping[int, Position]
#: Where to end: never; at the high seqnos of when reading started, and from there at the end of the
#: snapshot, so that no key is missing because it moved on; or exactly at a seqno for each vbucket
#: (vbuckets that are not named are not read).
End = Literal["never", "now"] | Mapping[int, int]

#: Flow-control window for each node: enough for a fast consumer, small enough for many nodes.
DEFAULT_BUFFER: Final = 16 * 1024 * 1024
_SMALLEST_BUFFER: Final = 1024
_LARGEST_BUFFER: Final = 2**31
_SHORTEST_INTERVAL: Final = 0.1
_MAX_NAME: Final = 200
#: Options in seconds that must not be 0.
_LONGER_THAN_ZERO: Final = (
    *("connect_timeout", "answer_timeout", "retry_first", "retry_most", "map_interval"),
    "persisted_everywhere",
)


class RollbackPolicy(Enum):
    """What to do when the producer demands a rollback because its history has changed."""

    #: Roll back to the last common seqno, and report it to the application before any other event.
    REWIND = "rewind"
    #: Fail with `RollbackRequired`.
    FAIL = "fail"
    #: Read only the branch (vbuuid) of the start position. A vbucket whose producer left that
    #: branch, or flushed it, is not read further, which a `RolledBack` event with ``refused``
    #: reports. The other vbuckets continue.
    STOP = "stop"
    #: Roll back without reporting it: for applications that tolerate repeated or undone changes.
    IGNORE = "ignore"


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerSettings:
    """All options of a consumer."""

    start: Start = "beginning"
    #: Where to end: ``now`` at the end of the snapshot that the high seqno of now is in, a seqno by
    #: vbucket exactly there.
    end: End = "never"
    #: Hand out only changes since a moment (UTC without a zone), by the time in their CAS.
    since: datetime | None = None
    #: The vbuckets to read; None for all.
    vbuckets: frozenset[int] | None = None
    #: The collections to read, as ``scope.collection``; empty for all.
    collections: tuple[str, ...] = ()
    #: Read all collections of this scope, including those created later.
    scope: str = ""
    #: Whether changes include the document bodies.
    values: bool = True
    #: Whether changes include extended attributes.
    xattrs: bool = False
    #: Whether nodes may send values compressed (Snappy). ``decompress`` says whether the consumer
    #: decompresses them before it hands them out.
    compression: bool = False
    decompress: bool = True
    #: Whether to leave out deletions when reading from the beginning, on servers that support it.
    #: They are of documents that the consumer never had.
    skip_deletes: bool = False
    #: Whether the first snapshot from the beginning may be sent out of order, which is faster on
    #: some servers. If the connection is lost before it is complete, it starts over, and changes
    #: are repeated.
    out_of_order: bool = False
    #: Whether durable writes are reported as `SyncWrite` events: prepared, committed, aborted. A
    #: commit then has no value; the value is in its prepare.
    sync_writes: bool = False
    #: Whether documents of transactions (``_txn:``) and of the scope ``_system`` are handed out.
    internal_documents: bool = True
    #: The priority of this consumer at the server, and the order of backfills of its vbuckets.
    priority: Literal["", "low", "medium", "high"] = ""
    backfill_order: Literal["", "round-robin", "sequential"] = ""

    dialect: DialectName = "auto"
    #: The DCP connection name, which must be unique at a server; generated if empty. Drafts 002 and
    #: 000 send it as their group id.
    name: str = ""
    rollback: RollbackPolicy = RollbackPolicy.REWIND
    #: Hand out only changes that every copy of the vbucket has on disk. The value is the interval
    #: in seconds at which the nodes are asked.
    persisted_everywhere: float | None = None

    #: Flow-control window in bytes: what one node may send before the application has read it.
    buffer: int = DEFAULT_BUFFER
    #: Seconds between noops; a node that sends nothing for twice that time counts as lost.
    noop_interval: float = 20.0
    #: Seconds to connect and authenticate, and to wait for one response.
    connect_timeout: float = 10.0
    answer_timeout: float = 30.0
    #: Seconds to keep trying at the start while no node can be reached.
    wait_at_start: float = 0.0
    #: Seconds without a stream of a vbucket that was of use, after which reading fails: one that
    #: brought something, or stayed open for ``retry_most`` seconds.
    give_up_after: float = float("inf")
    #: Which addresses of the nodes to use: the default ones of the cluster, the external ones, or
    #: ("auto") the kind to which the address in the connection string belongs.
    network: Literal["auto", "default", "external"] = "auto"
    #: Seconds between requests for the cluster map, if the nodes do not push it.
    map_interval: float = 2.5
    #: Back-off between attempts, in seconds: the first pause, and the longest.
    retry_first: float = 0.05
    retry_most: float = 5.0
    #: Whether vbuckets with an end seqno are read to the end of their snapshot.
    _whole_snapshots: bool = field(default=False, repr=False)
    #: Whether the server is known to have no map: it is one node with the given vbuckets.
    _one_node: bool = field(default=False, repr=False)
    _unique: str = field(default_factory=lambda: _entropy.token_hex(4), repr=False, compare=False)

    def __post_init__(self) -> None:
        given: object = self.collections
        if isinstance(given, str):  # one name, not its letters
            object.__setattr__(self, "collections", (given,))
        if self.scope and self.collections:
            raise ConfigError("collections and scope contradict each other: give one of them")
        if self.dialect not in DIALECT_NAMES:
            known = ", ".join(DIALECT_NAMES)
            raise ConfigError(f"dialect is {self.dialect!r}; give one of {known}")
        if not _SMALLEST_BUFFER <= self.buffer <= _LARGEST_BUFFER:
            raise ConfigError(
                f"buffer is {self.buffer}; it must be {_SMALLEST_BUFFER} to {_LARGEST_BUFFER} bytes"
            )
        if self.noop_interval < _SHORTEST_INTERVAL:
            raise ConfigError(
                f"noop_interval is {self.noop_interval}; it must be {_SHORTEST_INTERVAL} seconds "
                "or more"
            )
        for name in _LONGER_THAN_ZERO:
            seconds = getattr(self, name)
            if seconds is not None and seconds <= 0:
                raise ConfigError(f"{name} is {seconds}; it must be more than 0 seconds")
        if self.priority not in ("", "low", "medium", "high"):
            raise ConfigError(f"priority is {self.priority!r}; give low, medium or high")
        if self.backfill_order not in ("", "round-robin", "sequential"):
            raise ConfigError(
                f"backfill_order is {self.backfill_order!r}; give round-robin or sequential"
            )
        if self.out_of_order and self.persisted_everywhere is not None:
            raise ConfigError(
                "persisted_everywhere needs changes in seqno order; leave out_of_order off"
            )
        if (size := len(self.name.encode())) > _MAX_NAME:
            raise ConfigError(
                f"name has {size} bytes; the name of a DCP connection has at most {_MAX_NAME}"
            )
        if self.vbuckets is not None and not self.vbuckets:
            raise ConfigError("vbuckets is empty; give at least one vbucket, or None for all")
        kind = DIALECTS.get(self.dialect)
        if kind is not None and not kind.negotiates and self.needs_dcp:
            raise ConfigError(
                f"dialect is {self.dialect!r}, a draft that has no collections, no xattrs and no "
                "durable writes, and always sends values; leave these options out, or dialect"
            )

    @property
    def needs_dcp(self) -> bool:
        """Whether the settings need a feature that none of the older drafts has."""
        return bool(
            self.scope or self.collections or self.xattrs or not self.values or self.sync_writes
        )

    @property
    def connection_name(self) -> str:
        return self.name or f"upriver-{self._unique}"


class ConsumerOptions(TypedDict, total=False):
    """The fields of `ConsumerSettings` as keyword arguments of a consumer."""

    start: Start
    end: End
    since: datetime | None
    vbuckets: frozenset[int] | None
    collections: tuple[str, ...]
    scope: str
    values: bool
    xattrs: bool
    compression: bool
    decompress: bool
    skip_deletes: bool
    out_of_order: bool
    sync_writes: bool
    internal_documents: bool
    priority: Literal["", "low", "medium", "high"]
    backfill_order: Literal["", "round-robin", "sequential"]
    dialect: DialectName
    name: str
    rollback: RollbackPolicy
    persisted_everywhere: float | None
    buffer: int
    noop_interval: float
    connect_timeout: float
    answer_timeout: float
    wait_at_start: float
    give_up_after: float
    network: Literal["auto", "default", "external"]
    map_interval: float
    retry_first: float
    retry_most: float


def settings_for(
    settings: ConsumerSettings | None, options: ConsumerOptions, store: CheckpointStore | None
) -> ConsumerSettings:
    """Returns the settings of a consumer; a saved checkpoint replaces their start."""
    if settings is not None and options:
        raise TypeError("give settings or single options, not both")
    given: object = store
    if isinstance(given, str | PathLike):
        path = os.fspath(given)
        raise ConfigError(f"checkpoint is the path {path!r}; give FileCheckpoint({path!r})")
    chosen = settings or ConsumerSettings(**options)
    saved = store.load() if store is not None else None
    return chosen if saved is None else replace(chosen, start=saved)
