"""Figures of connections and streams for the dashboard, with the lag of each reader."""

from __future__ import annotations

import heapq
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final

from ...dashboard.figure_types import ConnectionFigures, StreamFigures
from ...errors import StoreError
from ...model import NO_END
from ...producer.server_views import BucketView, ConnectionView, StreamView
from ...store import Bucket, VBucketStats

#: The most connections, and streams per connection, that are shown; there may be thousands.
_MOST_CONNECTIONS: Final = 200
_MOST_STREAMS: Final = 8
#: Streams of a connection, and connections, for which the age of the next change is read from disk.
_AGED_STREAMS: Final = 32
_AGED_CONNECTIONS: Final = 32

_KIND_ORDER: Final = ("reader", "replica", "client")


def stream_lag(stream: StreamView, stats: VBucketStats) -> int:
    """The changes that a stream has still to send.

    The difference of seqnos counts versions that newer ones have replaced, which are never sent. A
    vbucket has one change for each document and each tombstone, so there are not more than that.
    """
    seqnos = max(0, min(stats.high_seqno, stream.end) - stream.position)
    stored = stats.items + stats.tombstones
    return min(seqnos, stored) if stored else seqnos


def connection_figures(
    views: Sequence[ConnectionView],
    buckets: Mapping[str, BucketView],
    stores: Mapping[str, Bucket],
) -> list[ConnectionFigures]:
    """The most active connections, in a stable order."""
    found = sorted(
        ((_kind(view), view) for view in views),
        key=lambda pair: (_KIND_ORDER.index(pair[0]), pair[1].name, pair[1].peer),
    )[:_MOST_CONNECTIONS]
    return [
        _connection(
            kind,
            view,
            buckets.get(view.bucket or ""),
            stores.get(view.bucket or "") if number < _AGED_CONNECTIONS else None,
        )
        for number, (kind, view) in enumerate(found)
    ]


def _kind(view: ConnectionView) -> str:
    if view.consumer:
        return "replica"
    return "reader" if view.name or view.streams else "client"


def _connection(
    kind: str, view: ConnectionView, bucket: BucketView | None, store: Bucket | None
) -> ConnectionFigures:
    stats = bucket.vbuckets if bucket is not None else ()
    lags = [
        (stream_lag(stream, stats[stream.vbucket]) if stream.vbucket < len(stats) else 0, stream)
        for stream in view.streams
    ]
    furthest = heapq.nlargest(_AGED_STREAMS, lags, key=lambda pair: pair[0])
    behind = [stream for lag, stream in furthest if lag]
    return ConnectionFigures(
        peer=view.peer,
        agent=view.agent,
        user=view.user,
        bucket=view.bucket,
        dialect=view.dialect,
        name=view.name,
        kind=kind,
        tls=view.tls,
        noop=view.noop,
        window=view.window,
        outstanding=view.outstanding,
        streams=len(lags),
        states=dict(Counter(stream.state for stream in view.streams)),
        receives=len(view.receives),
        lag=sum(lag for lag, _ in lags),
        lag_seconds=_age(store, behind) if store is not None else 0.0,
        slowest=[
            stream_figures(stream, stats[stream.vbucket])
            for _, stream in furthest[:_MOST_STREAMS]
            if stream.vbucket < len(stats)
        ],
    )


def _age(store: Bucket, behind: Sequence[StreamView]) -> float:
    """Seconds since the oldest change was written that these streams have not sent."""
    oldest = None
    for stream in behind:
        try:
            cas = store.next_cas(stream.vbucket, stream.position)
        except StoreError:
            continue  # the bucket is closed or damaged, which is reported elsewhere
        if cas is not None:
            oldest = cas if oldest is None else min(oldest, cas)
    return 0.0 if oldest is None else max(0.0, round(time.time() - oldest / 1e9, 3))


def stream_figures(stream: StreamView, stats: VBucketStats) -> StreamFigures:
    return StreamFigures(
        vbucket=stream.vbucket,
        stream_id=stream.stream_id,
        state=stream.state,
        position=stream.position,
        end=None if stream.end == NO_END else stream.end,
        lag=stream_lag(stream, stats),
        messages=stream.messages_sent,
        bytes=stream.bytes_sent,
        takeover=stream.takeover,
    )
