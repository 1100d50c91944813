"""One look at a whole server, as frozen values: buckets, vbuckets, connections, streams.

The statistics command, metrics and any page read this and nothing deeper. It is made on the
loop's thread and may be read by any other.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from ..store import Bucket, BucketStats, VBucketStats
from .client import Client
from .replica_desk import ReplicaDesk
from .stream_desk import StreamDesk
from .streams import ActiveStream

__all__ = [
    "BucketView",
    "ConnectionView",
    "ServerView",
    "StreamView",
    "bucket_view",
    "connection_view",
    "dcp_statistics",
    "takeover_statistics",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamView:
    """One stream."""

    vbucket: int
    stream_id: int | None
    opaque: int
    state: str
    position: int
    end: int
    messages_sent: int
    bytes_sent: int
    takeover: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionView:
    """One connection, and the window of its change streams if it has any."""

    peer: str
    agent: str
    user: str | None
    bucket: str | None
    dialect: str
    name: str
    tls: bool
    #: Bytes of the flow-control window, 0 without one, and how many of them are under way.
    window: int
    outstanding: int
    noop: bool
    streams: tuple[StreamView, ...]
    #: The vbuckets that this node receives on it as the consumer.
    receives: tuple[int, ...] = ()
    consumer: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketView:
    """One bucket and its vbuckets."""

    name: str
    stats: BucketStats
    vbuckets: tuple[VBucketStats, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerView:
    """Everything at one moment."""

    version: str
    connections: tuple[ConnectionView, ...]
    buckets: tuple[BucketView, ...]


def connection_view(
    client: Client, desk: StreamDesk, replica: ReplicaDesk | None, dialect: str
) -> ConnectionView:
    options = client.options
    return ConnectionView(
        peer=client.peer,
        agent=client.agent,
        user=client.user,
        bucket=client.bucket.name if client.bucket else None,
        dialect=dialect,
        name=desk.name if replica is None else replica.name,
        tls=client.tls,
        window=options.window.size if options else 0,
        outstanding=options.window.outstanding if options else 0,
        noop=options.keepalive.enabled if options else False,
        streams=tuple(map(_stream_view, desk.streams.values())),
        receives=() if replica is None else replica.vbuckets,
        consumer=replica is not None,
    )


def _stream_view(stream: ActiveStream) -> StreamView:
    return StreamView(
        vbucket=stream.vbucket,
        stream_id=stream.stream_id,
        opaque=stream.opaque,
        state=stream.state.name.lower(),
        position=stream.position,
        end=stream.end,
        messages_sent=stream.messages_sent,
        bytes_sent=stream.bytes_sent,
        takeover=stream.is_takeover,
    )


def bucket_view(bucket: Bucket) -> BucketView:
    vbuckets = range(bucket.settings.vbuckets)
    return BucketView(
        name=bucket.name,
        stats=bucket.stats(),
        vbuckets=tuple(bucket.vbucket_stats(vbucket) for vbucket in vbuckets),
    )


def dcp_statistics(connections: Iterable[ConnectionView]) -> Mapping[str, str]:
    """The statistics group ``dcp``: connections by name, with a line for each fact."""
    told: dict[str, str] = {}
    named = [view for view in connections if view.name]
    told["ep_dcp_producer_count"] = str(sum(not view.consumer for view in named))
    told["ep_dcp_count"] = str(len(named))
    for view in named:
        prefix = f"eq_dcpq:{view.name}"
        told[f"{prefix}:type"] = "consumer" if view.consumer else "producer"
        told[f"{prefix}:connected"] = "true"
        told[f"{prefix}:max_buffer_bytes"] = str(view.window)
        told[f"{prefix}:unacked_bytes"] = str(view.outstanding)
        told[f"{prefix}:flow_control"] = "enabled" if view.window else "disabled"
        told[f"{prefix}:noop_enabled"] = str(view.noop).lower()
        told[f"{prefix}:num_streams"] = str(len(view.streams) + len(view.receives))
        for stream in view.streams:
            at = f"{prefix}:stream_{stream.vbucket}"
            if stream.stream_id is not None:
                at += f"_sid:{stream.stream_id}"
            told[f"{at}_state"] = stream.state.replace("_", "-")
            told[f"{at}_opaque"] = str(stream.opaque)
            told[f"{at}_last_sent_seqno"] = str(stream.position)
            told[f"{at}_end_seqno"] = str(stream.end)
            told[f"{at}_items_sent"] = str(stream.messages_sent)
    return told


def takeover_statistics(
    connections: Iterable[ConnectionView], bucket: Bucket, argument: str
) -> Mapping[str, str] | None:
    """How far one connection is with taking over a vbucket; None if it has no stream of it."""
    number, _, name = argument.partition(" ")
    for view in connections:
        for stream in view.streams:
            if view.name == name and str(stream.vbucket) == number:
                stats = bucket.vbucket_stats(stream.vbucket)
                left = max(0, stats.high_seqno - stream.position)
                return {
                    "name": name,
                    "status": stream.state.replace("_", "-"),
                    "estimate": str(left),
                    "chk_items": str(left),
                    "vb_items": str(stats.items),
                    "on_disk_deletes": str(stats.tombstones),
                    "backfillRemaining": str(left if stream.state == "backfilling" else 0),
                }
    return None
