"""Decides on a stream request: the producer's checks, in the order that clients rely on.

    flags, value ──> vbucket exists ──> its state ──> from latest ──> noop for new features
       ──> start <= end ──> snapshot around start ──> filter ──> no such stream yet
       ──> rollback ──> manifest ──> to latest, disk only ──> start <= end, start <= high
       ──> resources

The first check that fails determines the answer. All facts are passed as arguments.
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass
from typing import Final

from ..errors import Status
from ..model import NO_END, FailoverLog, Snapshot, StreamOffset, VBucketState, rollback_point
from ..wire.messages import StreamRequest
from ..wire.protocol_enums import OpenFlag, StreamFlag
from .collection_filter import (
    FilterKind,
    FilterRefused,
    KnownCollections,
    StreamFilter,
    names_stream_id,
    parse_filter,
)
from .producer_options import ProducerOptions

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
    """The facts about a vbucket that the decision needs."""

    state: VBucketState
    high_seqno: int
    failover_log: FailoverLog
    persisted_seqno: int
    purge_seqno: int = 0
    collections: KnownCollections
    #: The highest seqno of each collection that ever had a change.
    collection_seqnos: dict[int, int]
    #: For a replica: the snapshot it is receiving, and whether it is its first disk snapshot.
    receiving: Snapshot | None = None
    first_disk_snapshot: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """The producer's configuration of these checks."""

    #: Whether an end of 0 in a request of document 004 means no end, as that says. Couchbase
    #: servers end at once. In the older drafts a stream ends when its end seqno was sent.
    end_zero_is_unbounded: bool = False
    #: Whether xattrs and collections require noops, as on Couchbase servers.
    noop_mandatory: bool = True
    #: Whether a failover log request before Open closes the connection, as up to release 3.
    log_needs_open: bool = False


@dataclass(frozen=True, slots=True)
class Refusal:
    """The request is refused with a status."""

    status: Status
    context: str
    #: The manifest's uid, for unknown collections and scopes.
    manifest_uid: int | None = None


@dataclass(frozen=True, slots=True)
class RollbackTo:
    """The consumer must roll back to ``seqno`` first."""

    seqno: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Acceptance:
    """The stream is accepted for this range. If ``start`` equals ``end``, it ends at once."""

    start: int
    end: int
    vbuuid: int
    snapshot: Snapshot
    filter: StreamFilter
    takeover: bool = False


Decision = Acceptance | RollbackTo | Refusal


def decide(
    request: StreamRequest,
    vbucket: VBucketFacts | None,
    options: ProducerOptions,
    *,
    streams: Container[tuple[int, int | None]] = frozenset(),
    short_of_memory: bool = False,
    policy: Policy | None = None,
) -> Decision:
    """Decides on a request.

    ``streams`` are the existing streams of the connection, as vbucket and stream id.
    """
    policy = policy or Policy()
    unknown = int(request.flags) & ~int(_KNOWN_FLAGS)  # ~ of a flag drops bits that have no name
    if unknown:
        return Refusal(Status.INVALID, f"unknown flags {unknown:#x}")
    if request.filter and not options.collections:
        if names_stream_id(request.filter):
            return Refusal(Status.STREAM_ID_INVALID, "stream ids were not enabled")
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
    if options.notifies:  # real servers check no range here: the stream ends at the next change
        end = NO_END
    elif offset.seqno > end:
        return Refusal(Status.RANGE, f"start {offset.seqno} is above end {end}")
    elif not offset.snapshot.start <= offset.seqno <= offset.snapshot.end:
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
    known = vbucket.collections.uid
    if wanted.manifest_uid > known:
        context = f"the manifest {wanted.manifest_uid:x} is newer than {known:x}, the one here"
        return Refusal(Status.MANIFEST_AHEAD, context, known)
    return _accept(request, vbucket, offset, end, wanted, short_of_memory)


def _is_served(state: VBucketState, flags: StreamFlag) -> bool:
    if flags & StreamFlag.ACTIVE_ONLY:
        return state is VBucketState.ACTIVE
    return state in (VBucketState.ACTIVE, VBucketState.REPLICA)


def _position(
    request: StreamRequest, vbucket: VBucketFacts, policy: Policy
) -> tuple[StreamOffset, int]:
    """Returns the consumer's position and the requested end.

    Drafts without snapshots in their requests resume only at the end of a snapshot. For them the
    snapshot starts and ends at the start seqno.
    """
    is_004 = request.snapshot_end is not None
    end = request.end or (NO_END if is_004 and policy.end_zero_is_unbounded else 0)
    if request.flags & StreamFlag.FROM_LATEST:
        high = vbucket.high_seqno
        vbuuid = request.vbuuid or vbucket.failover_log.newest.vbuuid
        return StreamOffset.at(vbuuid, high), end
    start = request.start
    snapshot = Snapshot(
        start if request.snapshot_start is None else request.snapshot_start,
        start if request.snapshot_end is None else request.snapshot_end,
    )
    return StreamOffset(request.vbuuid, start, snapshot), end


def _rollback(
    request: StreamRequest, vbucket: VBucketFacts, offset: StreamOffset, wanted: StreamFilter
) -> RollbackTo | None:
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
    return None if point is None else RollbackTo(point)


def _high_of(wanted: StreamFilter, vbucket: VBucketFacts) -> int:
    """Returns the highest seqno among the collections of a filter."""
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
        snapshot = Snapshot(start, start)  # the marker was received, but none of its items
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
