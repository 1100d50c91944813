"""Converts a producer's statistics into the figures of its dashboard.

It is called in the dashboard's thread. Connections belong to the producer's event loop and are read
there; buckets may be read from any thread.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable
from functools import partial
from typing import Final

from ... import __version__
from ...dashboard.figure_types import (
    STATE_LETTERS,
    BranchFigures,
    BucketFigures,
    CopyFigures,
    DocumentDetail,
    LatencyFigures,
    ReaderFigures,
    RollbackFigures,
    ServerFigures,
    VBucketColumns,
    VBucketDetail,
)
from ...producer.bootstrap.users import Role
from ...producer.connections.latency_histogram import BOUNDS, LatencyHistogram
from ...producer.embedded import Producer
from ...producer.server_views import BucketView, ConnectionView, bucket_view, resident_bytes
from ...store import Bucket
from .connection_figures import connection_figures, stream_figures, stream_lag
from .documents import CollectionCounts, document_detail

#: Seconds to wait for the producer's event loop.
_PATIENCE: Final = 10.0


class ProducerFeed:
    """Samples one producer."""

    def __init__(self, producer: Producer) -> None:
        self._producer = producer
        #: Of the last sample, so that a request for one vbucket does not need another.
        self._connections: tuple[ConnectionView, ...] = ()
        self._counts: dict[str, CollectionCounts] = {}

    def sample(self) -> ServerFigures:
        # Buckets first: a reader that is up to date is then never shown as behind.
        node = self._producer.node
        buckets = node.open_buckets()
        views = {bucket.name: bucket_view(bucket) for bucket in buckets}
        self._connections = self._producer.connection_views(_PATIENCE)
        self._counts = {
            bucket.name: counts
            if (counts := self._counts.get(bucket.name)) is not None and counts.bucket is bucket
            else CollectionCounts(bucket)
            for bucket in buckets
        }
        traffic = self._producer.traffic
        return ServerFigures(
            version=node.version,
            software=__version__,
            address=server_address(self._producer),
            has_users=not node.users.is_unrestricted,
            memory=resident_bytes(),
            cpu_seconds=time.process_time(),
            disk_free=shutil.disk_usage(node.store.path).free,
            request_seconds=_latency(traffic.request_seconds),
            delivery_seconds=_latency(traffic.delivery_seconds),
            started=traffic.started,
            reads=traffic.reads,
            messages=traffic.messages,
            bytes=traffic.streamed_bytes,
            rollbacks=traffic.rollbacks,
            rolled_back=[
                RollbackFigures(
                    id=one.number,
                    time=one.time,
                    connection=one.connection,
                    bucket=one.bucket,
                    vbucket=one.vbucket,
                    seqno=one.seqno,
                )
                for one in tuple(traffic.rolled_back)
            ],
            buckets=[
                _bucket(view, self._lags(view), self._counts[name]) for name, view in views.items()
            ],
            connection_count=len(self._connections),
            connections=connection_figures(
                self._connections, views, {bucket.name: bucket for bucket in buckets}
            ),
        )

    # ---- who may see what ----------------------------------------------------------------

    @property
    def needs_sign_in(self) -> bool:
        return not self._producer.node.users.is_unrestricted

    def authenticate(self, name: str, password: str, address: str) -> str | None:
        """The user's name if the password is right, else None. Takes milliseconds.

        `StoreRefusal`: the server checks too many passwords already.
        """
        users = self._producer.node.users
        check = partial(users.authenticate, name, password)
        if not users.costs_hashing(name):
            return check()
        return self._producer.server.passwords.submit(address, check).result()

    def may_see(self, user: str | None) -> Callable[[str], bool]:
        """Which buckets a user may see figures of: those in which the user has any role."""
        users = self._producer.node.users
        return lambda bucket: bool(users.roles(user, bucket))

    def document(
        self, user: str | None, bucket: str, collection: str, key: str
    ) -> DocumentDetail | None:
        """A document with its versions; None if the bucket is not there, or hidden from the user.

        PermissionError: the user may not read documents of this bucket.
        """
        node = self._producer.node
        found = node.bucket(bucket) if node.users.roles(user, bucket) else None
        if found is None:
            return None
        if not node.users.may(user, bucket, Role.READ_DATA):
            raise PermissionError(f"user {user} has no role {Role.READ_DATA} in bucket {bucket}")
        return document_detail(found, collection, key)

    # ---- one vbucket ---------------------------------------------------------------------

    def vbucket(self, bucket: str, vbucket: int) -> VBucketDetail | None:
        """The details of one vbucket; None if it does not exist."""
        found = self._producer.node.bucket(bucket)
        if found is None or not 0 <= vbucket < found.settings.vbuckets:
            return None
        stats = found.vbucket_stats(vbucket)
        return VBucketDetail(
            bucket=bucket,
            vbucket=vbucket,
            state=stats.state.name.lower(),
            high=stats.high_seqno,
            persisted=stats.persisted_seqno,
            purged=stats.purge_seqno,
            floor=stats.history_floor,
            items=stats.items,
            tombstones=stats.tombstones,
            history_bytes=stats.history_bytes,
            failover_log=[
                BranchFigures(branch=f"{entry.vbuuid:x}", seqno=entry.seqno)
                for entry in found.failover_log(vbucket)
            ],
            copies=self._copies(found, vbucket),
            readers=[
                ReaderFigures(
                    connection=view.name or view.peer, stream=stream_figures(stream, stats)
                )
                for view in self._connections
                if view.bucket == bucket
                for stream in view.streams
                if stream.vbucket == vbucket
            ],
        )

    def _lags(self, bucket: BucketView) -> list[int]:
        lags = [-1] * len(bucket.vbuckets)
        for view in self._connections:
            if view.bucket == bucket.name:
                for stream in view.streams:
                    at = stream.vbucket
                    lags[at] = max(lags[at], stream_lag(stream, bucket.vbuckets[at]))
        return lags

    def _copies(self, bucket: Bucket, vbucket: int) -> list[CopyFigures]:
        """The nodes that have the vbucket according to the map; none without a map."""
        config = self._producer.node.config(bucket)
        if config is None:
            return []
        try:
            servers = json.loads(config)["vBucketServerMap"]
            nodes, row = servers["serverList"], servers["vBucketMap"][vbucket]
            return [
                CopyFigures(
                    role="active" if not place else f"replica {place}",
                    node=str(nodes[at]) if at >= 0 else "nowhere",
                )
                for place, at in enumerate(row)
            ]
        except (LookupError, TypeError, ValueError):
            return []  # a map from a manager may lack the vbucket


def server_address(producer: Producer) -> str:
    """The connection string of a server, without a bucket."""
    settings = producer.settings
    scheme = "couchbase" if settings.certificate is None else "couchbases"
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    return f"{scheme}://{host}:{producer.port}"


def _latency(histogram: LatencyHistogram) -> LatencyFigures:
    return LatencyFigures(bounds=list(BOUNDS), counts=list(histogram.counts), total=histogram.total)


def _bucket(view: BucketView, lags: list[int], counts: CollectionCounts) -> BucketFigures:
    letters = {name.upper(): letter for name, letter in STATE_LETTERS.items()}
    return BucketFigures(
        name=view.name,
        items=view.stats.items,
        tombstones=view.stats.tombstones,
        history_bytes=view.stats.history_bytes,
        disk_bytes=view.stats.disk_bytes,
        backfills=view.stats.readers,
        vbuckets=VBucketColumns(
            state="".join(letters[one.state.name] for one in view.vbuckets),
            high=[one.high_seqno for one in view.vbuckets],
            persisted=[one.persisted_seqno for one in view.vbuckets],
            items=[one.items for one in view.vbuckets],
            lag=lags,
            branch=[f"{one.vbuuid:x}" for one in view.vbuckets],
        ),
        collections=counts.figures(view),
        collection_count=counts.collection_count,
    )
