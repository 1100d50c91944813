"""Snapshot of a server's state as frozen values: buckets, vbuckets, connections, streams.

The STAT command, metrics and dashboards read only this. It is made on the event loop and may be
read by any thread.
"""

from __future__ import annotations

import json
import resource
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ..store import Bucket, BucketStats, VBucketStats
from .connections.client_info import ClientInfo
from .dcp.active_stream import ActiveStream
from .dcp.dcp_consumer import DcpConsumer
from .dcp.dcp_producer import DcpProducer

#: Characters shown of a client's agent name, as on Couchbase Server.
_MAX_AGENT: Final = 32
_MAX_CONNECTION_ID: Final = 33


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamView:
    """The state of one stream."""

    vbucket: int
    stream_id: int | None
    opaque: int
    state: str
    #: The last seqno that was sent.
    position: int
    end: int
    messages_sent: int
    bytes_sent: int
    takeover: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionView:
    """The state of one connection, and the flow-control window of its DCP streams if it has any."""

    peer: str
    agent: str
    connection_id: str
    user: str | None
    bucket: str | None
    dialect: str
    name: str
    tls: bool
    #: Bytes of the flow-control window, 0 without one, and how many of them are unacknowledged.
    window: int
    outstanding: int
    #: Bytes of streams that were sent, and that were acknowledged, since the connection was opened.
    bytes_sent: int = 0
    bytes_acknowledged: int = 0
    #: Time of the server's clock at which the connection was opened, in seconds.
    opened_at: float = 0.0
    noop: bool
    streams: tuple[StreamView, ...]
    #: Streams that ended while the connection was open.
    ended: tuple[StreamView, ...] = ()
    #: The vbuckets that this node receives on the connection as the consumer.
    receives: tuple[int, ...] = ()
    #: Whether it is for change streams: it was opened, or requested one where drafts have no Open.
    dcp: bool = False
    consumer: bool = False
    notifier: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketView:
    """One bucket and its vbuckets."""

    name: str
    stats: BucketStats
    vbuckets: tuple[VBucketStats, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerView:
    """The state of the server at one moment."""

    version: str
    connections: tuple[ConnectionView, ...]
    buckets: tuple[BucketView, ...]


def connection_view(
    client: ClientInfo, commands: DcpProducer, replica: DcpConsumer | None, dialect: str
) -> ConnectionView:
    options = client.options
    return ConnectionView(
        peer=client.peer,
        agent=client.agent,
        connection_id=client.connection_id,
        user=client.user,
        bucket=client.bucket.name if client.bucket else None,
        dialect=dialect,
        name=commands.name if replica is None else replica.name,
        tls=client.tls,
        window=options.window.size if options else 0,
        outstanding=options.window.outstanding if options else 0,
        noop=options.keepalive.enabled if options else False,
        bytes_sent=commands.bytes_sent,
        bytes_acknowledged=commands.acknowledged_bytes,
        opened_at=commands.opened_at,
        streams=tuple(map(_stream_view, commands.streams.values())),
        ended=tuple(map(_stream_view, commands.ended.values())),
        receives=() if replica is None else replica.vbuckets,
        dcp=replica is not None or options is not None,
        consumer=replica is not None,
        notifier=options.notifies if options else False,
    )


def _stream_view(stream: ActiveStream) -> StreamView:
    return StreamView(
        vbucket=stream.vbucket,
        stream_id=stream.stream_id,
        opaque=stream.opaque,
        state=stream.state.name.lower(),
        position=stream.last_sent,
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


def _kind(view: ConnectionView) -> str:
    if view.consumer:
        return "consumer"
    return "notifier" if view.notifier else "producer"


def dcp_statistics(
    connections: Iterable[ConnectionView], prefix: str = "eq_dcpq"
) -> Iterator[tuple[str, str]]:
    """Yields the statistics group ``dcp``: connections by name, one line for each value.

    With the prefix ``eq_uprq`` it is the group ``upr``, the name of DCP before it was renamed.
    Views are read one by one as lines are consumed, because there may be many thousands.
    Connections of drafts 002 and 000 have their group id for a name, and their address if that is
    empty.
    """
    producers = count = 0
    for view in connections:
        if not view.dcp:
            continue
        count += 1
        producers += not view.consumer
        name = f"{prefix}:{view.name or view.peer}"
        yield f"{name}:type", _kind(view)
        yield f"{name}:created", str(int(view.opened_at))
        yield f"{name}:connected", "true"
        yield f"{name}:max_buffer_bytes", str(view.window)
        yield f"{name}:unacked_bytes", str(view.outstanding)
        yield f"{name}:total_bytes_sent", str(view.bytes_sent)
        yield f"{name}:total_acked_bytes", str(view.bytes_acknowledged)
        yield f"{name}:flow_control", "enabled" if view.window else "disabled"
        yield f"{name}:noop_enabled", str(view.noop).lower()
        yield f"{name}:num_streams", str(len(view.streams) + len(view.receives))
        for stream in (*view.streams, *view.ended):
            at = f"{name}:stream_{stream.vbucket}"
            if stream.stream_id is not None:
                at += f"_sid:{stream.stream_id}"
            yield f"{at}_state", stream.state.replace("_", "-")
            yield f"{at}_opaque", str(stream.opaque)
            yield f"{at}_last_sent_seqno", str(stream.position)
            yield f"{at}_end_seqno", str(stream.end)
            yield f"{at}_items_sent", str(stream.messages_sent)
    yield "ep_dcp_producer_count", str(producers)
    yield "ep_dcp_count", str(count)
    yield "ep_dcp_consumer_count", str(count - producers)
    yield "ep_dcp_dead_conn_count", "0"  # a closed connection is removed at once


def connection_statistics(connections: Iterable[ConnectionView]) -> Iterator[tuple[str, str]]:
    """Yields the statistics group ``connections``: a JSON object for each, numbered from 0."""
    for number, view in enumerate(connections):
        about = {
            "agent_name": view.agent[:_MAX_AGENT],
            "connection_id": view.connection_id[:_MAX_CONNECTION_ID],
            "peername": view.peer,
            "user": view.user,
            "bucket": view.bucket,
            "protocol": view.dialect,
            "tls": view.tls,
            "dcp": view.dcp,
        }
        yield str(number), json.dumps(about)


def resident_bytes() -> int:
    """Returns the memory of the process; its peak, if the system reports nothing else."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return pages * resource.getpagesize()


def takeover_statistics(
    connections: Iterable[ConnectionView], bucket: Bucket, argument: str
) -> list[tuple[str, str]] | None:
    """Returns the progress of a vbucket's takeover on a connection; None without such a stream."""
    number, _, name = argument.partition(" ")
    for view in connections:
        for stream in view.streams:
            if view.name == name and str(stream.vbucket) == number:
                stats = bucket.vbucket_stats(stream.vbucket)
                left = max(0, stats.high_seqno - stream.position)
                return [
                    ("name", name),
                    ("status", stream.state.replace("_", "-")),
                    ("estimate", str(left)),
                    ("chk_items", str(left)),
                    ("vb_items", str(stats.items)),
                    ("on_disk_deletes", str(stats.tombstones)),
                    ("backfillRemaining", str(left if stream.state == "backfilling" else 0)),
                ]
    return None
