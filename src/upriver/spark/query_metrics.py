"""Prometheus metrics of streaming queries that read the source: rows, batch times, lag.

They are collected by a listener of Spark's query progress:

    upriver_spark_rows_total{query}             rows that were read
    upriver_spark_batches_total{query}          micro-batches that were finished
    upriver_spark_batch_seconds{query}          a histogram of how long they took
    upriver_spark_lag_seqnos{query}             changes that are not read yet, at the last plan
    upriver_spark_lag_seconds{query}            for how long there have been any
    upriver_spark_rollbacks_total{query,cause}  vbuckets that rolled back: failover, or refused

A query is identified by its name, or by its id if it has none. A change that is replaced before it
is read counts in the lag, because that is not known before. Spark does not report bytes.

    listener = SourceListener()
    spark.streams.addListener(listener)
    listener.serve(9090)

It uses only the offsets in the progress and does not contact a server.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from .._extras import extra
from ..batches.offsets import Offset, SourceIdentity
from ..errors import ConfigError

if TYPE_CHECKING:
    from wsgiref.simple_server import WSGIServer

    from pyspark.sql.streaming.listener import (
        QueryIdleEvent,
        QueryProgressEvent,
        QueryStartedEvent,
        QueryTerminatedEvent,
        SourceProgress,
        StreamingQueryProgress,
    )

with extra("spark"):
    from prometheus_client import (
        CollectorRegistry,
        Counter,
        Gauge,
        Histogram,
        generate_latest,
        start_http_server,
    )
    from pyspark.sql.streaming.listener import StreamingQueryListener

#: Buckets from the fastest batch that was measured to minutes.
_BUCKETS: Final = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
#: The entry of a progress's durations that exists only if a batch was run.
_RUN: Final = "addBatch"


@dataclass(slots=True)
class _Lag:
    """The lag of a query, and since when there is any."""

    seqnos: int
    caught_up_at: float


class SourceListener(StreamingQueryListener):
    """Keeps the metrics of all queries of a session that read the format ``dcp``."""

    def __init__(
        self,
        registry: CollectorRegistry | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``registry`` holds the metrics; the default is a new one."""
        self.registry = registry or CollectorRegistry()
        self._clock = clock
        self._lags: dict[str, _Lag] = {}
        #: The names of running queries, by id.
        self._queries: dict[str, str] = {}
        self._server: WSGIServer | None = None
        query = ("query",)
        self._rows = Counter(
            "upriver_spark_rows", "Rows that were read.", query, registry=self.registry
        )
        self._batches = Counter(
            "upriver_spark_batches", "Finished micro-batches.", query, registry=self.registry
        )
        self._seconds = Histogram(
            "upriver_spark_batch_seconds",
            "How long micro-batches took.",
            query,
            registry=self.registry,
            buckets=_BUCKETS,
        )
        self._lag_seqnos = Gauge(
            "upriver_spark_lag_seqnos",
            "Changes that are not read yet.",
            query,
            registry=self.registry,
        )
        self._lag_seconds = Gauge(
            "upriver_spark_lag_seconds",
            "For how long there have been changes that are not read yet.",
            query,
            registry=self.registry,
        )
        self._rollbacks = Counter(
            "upriver_spark_rollbacks",
            "Vbuckets that were rolled back.",
            ("query", "cause"),
            registry=self.registry,
        )

    # ---- exposition ----------------------------------------------------------------------

    def metrics_text(self) -> str:
        """All metrics in the text format of Prometheus."""
        return generate_latest(self.registry).decode()

    def serve(self, port: int, host: str = "127.0.0.1") -> int:
        """Serves the metrics over HTTP until `close`; returns the port (0 takes a free one)."""
        if self._server is not None:
            raise ConfigError("the metrics are served already")
        try:
            self._server, _ = start_http_server(port, addr=host, registry=self.registry)
        except OSError as problem:
            raise ConfigError(f"cannot listen on {host}:{port}: {problem}") from problem
        return self._server.server_port

    def close(self) -> None:
        """Stops serving; the metrics stay."""
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None

    # ---- callbacks of Spark --------------------------------------------------------------

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802 - Spark's name
        """Does nothing: only the first progress shows whether the query reads this source."""

    def onQueryIdle(self, event: QueryIdleEvent) -> None:  # noqa: N802 - Spark's name
        """Does nothing: an idle query reports its progress now and then as well."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802 - Spark's name
        progress = event.progress
        query = progress.name or str(progress.id)
        ours = [(source, end) for source in progress.sources if (end := _offset(source.endOffset))]
        if not ours:
            return
        self._queries[str(progress.id)] = query
        self._count(query, progress, sum(source.numInputRows for source, _ in ours))
        for source, end in ours:
            self._count_rollbacks(query, _offset(source.startOffset), end)
        waiting = [behind for source, _ in ours if (behind := _behind(source)) is not None]
        if waiting:
            self._note_lag(query, sum(waiting))

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802 - Spark's name
        """Removes the query's lag, which is not known any more; its counters stay."""
        query = self._queries.pop(str(event.id), None)
        if query is not None and self._lags.pop(query, None) is not None:
            self._lag_seqnos.remove(query)
            self._lag_seconds.remove(query)

    def _count(self, query: str, progress: StreamingQueryProgress, rows: int) -> None:
        self._rows.labels(query).inc(rows)
        if _RUN in progress.durationMs:
            self._batches.labels(query).inc()
            self._seconds.labels(query).observe(progress.batchDuration / 1000)

    def _count_rollbacks(self, query: str, start: Offset | None, end: Offset) -> None:
        if start is None:
            return
        for vbucket, progress in end.progress.items():
            before = start.at(vbucket)
            if progress.branch > before.branch:
                # a failover begins a new branch; without one the server refused the position
                cause = "refused" if progress.vbuuid == before.vbuuid else "failover"
                self._rollbacks.labels(query, cause).inc()

    def _note_lag(self, query: str, seqnos: int) -> None:
        now = self._clock()
        lag = self._lags.setdefault(query, _Lag(seqnos, now))
        lag.seqnos = seqnos
        if not seqnos:
            lag.caught_up_at = now
        self._lag_seqnos.labels(query).set(seqnos)
        self._lag_seconds.labels(query).set_function(
            lambda: self._clock() - lag.caught_up_at if lag.seqnos else 0.0
        )


def _offset(text: str | None) -> Offset | None:
    """An offset in a query's progress; None if there is none, or it is of another source."""
    stored = _object(text)
    try:
        source = SourceIdentity(stored["bucket"], stored["bucket_uuid"], stored["vbuckets"])
        return Offset.of_dict(stored, source)
    except (KeyError, TypeError, ConfigError):
        return None


def _behind(source: SourceProgress) -> int | None:
    behind = _object(source.latestOffset).get("behind")
    return behind if isinstance(behind, int) else None


def _object(text: str | None) -> dict[str, Any]:
    try:
        found = json.loads(text or "null")
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
