"""Whether a stream request is served: the checks of a producer, in the order that clients rely on.

    flags, value ──> vbucket there ──> its state ──> from latest ──> noop for new features
       ──> start <= end ──> snapshot around start ──> filter ──> no such stream yet
       ──> rollback ──> to latest, disk only ──> start <= end, start <= high ──> resources

The first check that fails answers. Everything that must be known comes as an argument.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from ..errors import Status
from ..model import (
    NO_END,
    FailoverLog,
    Snapshot,
    StreamOffset,
    VBucketState,
    rollback_point,
)
from ..wire.messages import StreamRequest
from ..wire.names import OpenFlag, StreamFlag
from .filters import FilterKind, FilterRefused, KnownCollections, StreamFilter, parse_filter
from .options import ProducerOptions

__all__ = ["Acceptance", "Decision", "Policy", "Refusal", "Rollback", "VBucketFacts", "decide"]

_KNOWN_FLAGS: Final = (
    StreamFlag.TAKEOVER
    | StreamFlag.DISK_ONLY
    | StreamFlag.TO_LATEST
    | StreamFlag.ACTIVE_ONLY
    | StreamFlag.STRICT_VBUUID
    | StreamFlag.FROM_LATEST
    | StreamFlag.IGNORE_PURGED
)


@dataclass(frozen=True, slots=True, kw_only=True)
class VBucketFacts:
    """What a producer knows of a vbucket when it decides."""

    state: VBucketState
    high_seqno: int
    failover_log: FailoverLog
    persisted_seqno: int
    purge_seqno: int = 0
    collections: KnownCollections
    #: The highest seqno of each collection that was ever written to.
    collection_seqnos: dict[int, int]
    #: A replica's: the snapshot it is receiving, and whether that is its first from disk.
    receiving: Snapshot | None = None
    first_disk_snapshot: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """Choices of the producer's owner."""

    #: Whether an end of 0 means no end, as draft 004 reads literally; servers end at once.
    end_zero_is_unbounded: bool = False
    #: Whether xattrs and collections need noops, as on real servers.
    noop_mandatory: bool = True


@dataclass(frozen=True, slots=True)
class Refusal:
    """The request is answered with a status."""

    status: Status
    context: str
    #: For unknown collections and scopes.
    manifest_uid: int | None = None


@dataclass(frozen=True, slots=True)
class Rollback:
    """The reader must go back first."""

    seqno: int
    #: Whether that is because the producer does not know the reader's branch at all.
    unknown_branch: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Acceptance:
    """The stream may flow, in this range. With ``start`` at ``end`` it ends at once."""

    start: int
    end: int
    vbuuid: int
    snapshot: Snapshot
    filter: StreamFilter
    takeover: bool = False

    @property
    def ends_at_once(self) -> bool:
        return self.start >= self.end


Decision = Acceptance | Rollback | Refusal


def decide(
    request: StreamRequest,
    vbucket: VBucketFacts | None,
    options: ProducerOptions,
    *,
    streams: frozenset[tuple[int, int | None]] = frozenset(),
    short_of_memory: bool = False,
    policy: Policy | None = None,
) -> Decision:
    """Decides on a request. ``streams`` are those of the connection: vbucket and stream id."""
    policy = policy or Policy()
    unknown = int(request.flags) & ~int(_KNOWN_FLAGS)  # a flag's own ~ forgets unnamed bits
    if unknown:
        return Refusal(Status.INVALID, f"unknown flags {unknown:#x}")
    if request.filter and not options.collections:
        return Refusal(Status.INVALID, "a value needs a connection with collections")
    if vbucket is None:
        return Refusal(Status.NOT_MY_VBUCKET, f"there is no vbucket {request.vbucket}")
    if not _is_served(vbucket.state, request.flags):
        state = vbucket.state.name.lower()
        return Refusal(Status.NOT_MY_VBUCKET, f"vbucket {request.vbucket} is {state}")
    offset, end = _position(request, vbucket, policy)
    needs_noop = options.collections or options.has(OpenFlag.INCLUDE_XATTRS)
    if needs_noop and policy.noop_mandatory and not options.keepalive.enabled:
        return Refusal(Status.NOT_SUPPORTED, "xattrs and collections need enable_noop")
    if offset.seqno > end:
        return Refusal(Status.RANGE, f"start {offset.seqno} is above end {end}")
    if not offset.snapshot.start <= offset.seqno <= offset.snapshot.end:
        around = f"{offset.snapshot.start}..{offset.snapshot.end}"
        return Refusal(Status.RANGE, f"start {offset.seqno} is not within its snapshot {around}")
    try:
        wanted = parse_filter(
            request.filter,
            vbucket.collections,
            collections=options.collections,
            stream_ids=options.stream_ids,
        )
    except FilterRefused as refused:
        return Refusal(refused.status, refused.context, refused.manifest_uid)
    if options.sync_writes and wanted.kind in (FilterKind.COLLECTIONS, FilterKind.SCOPE):
        return Refusal(Status.NOT_SUPPORTED, "filters and sync writes do not go together")
    if (request.vbucket, wanted.stream_id) in streams:
        return Refusal(Status.EXISTS, f"there is a stream of vbucket {request.vbucket}")
    rollback = _rollback(request, vbucket, offset, wanted)
    if rollback is not None:
        return rollback
    return _accept(request, vbucket, offset, end, wanted, short_of_memory)


def _is_served(state: VBucketState, flags: StreamFlag) -> bool:
    if flags & StreamFlag.ACTIVE_ONLY:
        return state is VBucketState.ACTIVE
    return state in (VBucketState.ACTIVE, VBucketState.REPLICA)


def _position(
    request: StreamRequest, vbucket: VBucketFacts, policy: Policy
) -> tuple[StreamOffset, int]:
    """Where the reader says it is, and the end it asks for.

    Drafts without a snapshot resume only at a snapshot's edge, so theirs is where they are.
    """
    end = NO_END if request.end == 0 and policy.end_zero_is_unbounded else request.end
    if request.flags & StreamFlag.FROM_LATEST:
        high = vbucket.high_seqno
        vbuuid = request.vbuuid or vbucket.failover_log.newest.vbuuid
        return StreamOffset(vbuuid, high, Snapshot(high, high)), end
    start = request.start
    snapshot = Snapshot(
        start if request.snapshot_start is None else request.snapshot_start,
        start if request.snapshot_end is None else request.snapshot_end,
    )
    return StreamOffset(request.vbuuid, start, snapshot), end


def _rollback(
    request: StreamRequest, vbucket: VBucketFacts, offset: StreamOffset, wanted: StreamFilter
) -> Rollback | None:
    filtered = wanted.kind is not FilterKind.EVERYTHING
    point = rollback_point(
        vbucket.failover_log,
        offset,
        high_seqno=vbucket.high_seqno,
        purge_seqno=0 if request.flags & StreamFlag.IGNORE_PURGED else vbucket.purge_seqno,
        reader_purge_seqno=wanted.purge_seqno,
        strict=bool(request.flags & StreamFlag.STRICT_VBUUID),
        collections_high_seqno=_high_of(wanted, vbucket) if filtered else None,
    )
    if point is None:
        return None
    branch_end = vbucket.failover_log.branch_end(offset.vbuuid, vbucket.high_seqno)
    return Rollback(point, unknown_branch=branch_end is None)


def _high_of(wanted: StreamFilter, vbucket: VBucketFacts) -> int:
    """The highest seqno among the collections of a filter."""
    seqnos = vbucket.collection_seqnos
    return max((seqnos.get(collection, 0) for collection in wanted.collections), default=0)


def _accept(
    request: StreamRequest,
    vbucket: VBucketFacts,
    offset: StreamOffset,
    end: int,
    wanted: StreamFilter,
    short_of_memory: bool,
) -> Acceptance | Refusal:
    start, high = offset.seqno, vbucket.high_seqno
    if request.flags & StreamFlag.TO_LATEST:
        everything = wanted.kind is FilterKind.EVERYTHING
        end = high if everything else _high_of(wanted, vbucket)
    if request.flags & StreamFlag.DISK_ONLY:
        end = vbucket.persisted_seqno
    if start > end:
        return Refusal(Status.RANGE, f"start {start} is above the latest seqno {end}")
    if start > high:
        return Refusal(Status.RANGE, f"start {start} is above the high seqno {high}")
    if short_of_memory:
        return Refusal(Status.NO_MEMORY, "there is no memory for another stream")
    if vbucket.first_disk_snapshot:
        return Refusal(Status.TEMPORARY_FAILURE, "the replica receives its first snapshot")
    snapshot = offset.snapshot
    if start == snapshot.start and snapshot.end > high:
        snapshot = Snapshot(start, start)  # a marker was seen, and then lost with its items
    takeover = bool(request.flags & StreamFlag.TAKEOVER)
    if takeover:
        end = NO_END
    elif vbucket.receiving and vbucket.receiving.start <= end < vbucket.receiving.end:
        end = vbucket.receiving.end
    return Acceptance(
        start=start,
        end=end,
        vbuuid=offset.vbuuid,
        snapshot=snapshot,
        filter=wanted,
        takeover=takeover,
    )
