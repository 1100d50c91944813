"""The figures for Prometheus: one table of names, and where each gets its samples.

Names, labels and units are stable. Nothing has a label for each vbucket, connection or key, so the
number of series does not grow with the data. ``docs/reference/metrics.md`` is made from the table.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector, CollectorRegistry

from .figures import (
    STATE_LETTERS,
    BatchFigures,
    BucketFigures,
    ConnectionFigures,
    Document,
    PipelineFigures,
    ServerFigures,
)

__all__ = ["METRICS", "MetricRow", "exposition", "reference"]

Sample = tuple[tuple[str, ...], float]


@dataclass(frozen=True, slots=True)
class MetricRow:
    """One metric."""

    #: As queries spell it: counters end with ``_total``.
    name: str
    help: str
    labels: tuple[str, ...]
    samples: Callable[[Document], Iterable[Sample]]

    @property
    def is_counter(self) -> bool:
        return self.name.endswith("_total")


def _server(name: str, text: str, read: Callable[[ServerFigures], float]) -> MetricRow:
    def samples(document: Document) -> Iterator[Sample]:
        if document["server"] is not None:
            yield (), read(document["server"])

    return MetricRow(name, text, (), samples)


def _bucket(name: str, text: str, read: Callable[[BucketFigures], float]) -> MetricRow:
    def samples(document: Document) -> Iterator[Sample]:
        for bucket in document["server"]["buckets"] if document["server"] else ():
            yield (bucket["name"],), read(bucket)

    return MetricRow(name, text, ("bucket",), samples)


def _readers(
    name: str, text: str, read: Callable[[Sequence[ConnectionFigures]], float]
) -> MetricRow:
    """Of the connections of each bucket that follow its changes."""

    def samples(document: Document) -> Iterator[Sample]:
        server = document["server"]
        for bucket in server["buckets"] if server else ():
            assert server is not None
            yield (
                (bucket["name"],),
                read(
                    [
                        connection
                        for connection in server["connections"]
                        if connection["bucket"] == bucket["name"] and connection["kind"] == "reader"
                    ]
                ),
            )

    return MetricRow(name, text, ("bucket",), samples)


def _pipeline(name: str, text: str, read: Callable[[PipelineFigures], float]) -> MetricRow:
    def samples(document: Document) -> Iterator[Sample]:
        for pipeline in document["pipelines"]:
            yield (pipeline["name"],), read(pipeline)

    return MetricRow(name, text, ("table",), samples)


def _last_batch(name: str, text: str, read: Callable[[BatchFigures], float | None]) -> MetricRow:
    def samples(document: Document) -> Iterator[Sample]:
        for pipeline in document["pipelines"]:
            value = read(pipeline["recent"][-1]) if pipeline["recent"] else None
            if value is not None:
                yield (pipeline["name"],), value

    return MetricRow(name, text, ("table",), samples)


def _by_name(name: str, text: str, read: Callable[[Document], dict[str, int]]) -> MetricRow:
    return MetricRow(
        name,
        text,
        ("bucket",),
        lambda document: (((bucket,), count) for bucket, count in read(document).items()),
    )


def _info(document: Document) -> Iterator[Sample]:
    if document["server"] is not None:
        yield (document["server"]["version"],), 1


def _vbuckets(document: Document) -> Iterator[Sample]:
    for bucket in document["server"]["buckets"] if document["server"] else ():
        letters = Counter(bucket["vbuckets"]["state"])
        for state, letter in STATE_LETTERS.items():
            yield (bucket["name"], state), letters[letter]


def _connections(document: Document) -> Iterator[Sample]:
    if document["server"] is None:
        return
    kinds = Counter(connection["kind"] for connection in document["server"]["connections"])
    for kind in ("reader", "replica"):
        yield (kind,), kinds[kind]
    # those with nothing to tell are left out of long lists, so they are what remains
    yield ("client",), document["server"]["connection_count"] - kinds["reader"] - kinds["replica"]


def _streams(document: Document) -> Iterator[Sample]:
    found: Counter[tuple[str, str]] = Counter()
    for connection in document["server"]["connections"] if document["server"] else ():
        for state, count in connection["states"].items():
            found[connection["bucket"] or "", state] += count
    yield from found.items()


def _columns(name: str) -> Callable[[BucketFigures], float]:
    def read(bucket: BucketFigures) -> float:
        columns = bucket["vbuckets"]
        if name == "unpersisted":
            return sum(columns["high"]) - sum(columns["persisted"])
        return sum(columns["high"])

    return read


METRICS: Final[tuple[MetricRow, ...]] = (
    MetricRow("upriver_info", "Always 1; the label names the version.", ("version",), _info),
    _server(
        "upriver_start_time_seconds",
        "When the server started, in seconds since 1970.",
        lambda server: server["started"],
    ),
    _server(
        "upriver_reads_total",
        "Requests about a document that were answered without a write.",
        lambda server: server["reads"],
    ),
    _by_name(
        "upriver_changes_total",
        "Changes that were committed since the dashboard began: writes, deletions, expirations, "
        "and what was replicated here.",
        lambda document: document["changes"],
    ),
    _server(
        "upriver_streamed_messages_total",
        "Changes that were sent to readers.",
        lambda server: server["messages"],
    ),
    _server(
        "upriver_streamed_bytes_total",
        "Bytes that streams sent to readers, markers included.",
        lambda server: server["bytes"],
    ),
    _server(
        "upriver_rollbacks_total",
        "Stream requests that were answered with a rollback.",
        lambda server: server["rollbacks"],
    ),
    _by_name(
        "upriver_branches_total",
        "Branches of history that began since the dashboard did: failovers and rollbacks of "
        "vbuckets.",
        lambda document: document["branches"],
    ),
    MetricRow(
        "upriver_connections",
        "Connections: readers of changes, replicas whose changes come here, other clients.",
        ("kind",),
        _connections,
    ),
    MetricRow("upriver_streams", "Open streams by state.", ("bucket", "state"), _streams),
    _readers(
        "upriver_stream_lag_changes",
        "Seqnos that all readers together have still to be sent.",
        lambda readers: sum(reader["lag"] for reader in readers),
    ),
    _readers(
        "upriver_slowest_reader_lag_changes",
        "Seqnos that the slowest reader has still to be sent.",
        lambda readers: max((reader["lag"] for reader in readers), default=0),
    ),
    _readers(
        "upriver_window_bytes",
        "Bytes of all flow-control windows.",
        lambda readers: sum(reader["window"] for reader in readers),
    ),
    _readers(
        "upriver_window_outstanding_bytes",
        "Bytes under way that readers have not acknowledged.",
        lambda readers: sum(reader["outstanding"] for reader in readers),
    ),
    _bucket("upriver_bucket_items", "Documents.", lambda bucket: bucket["items"]),
    _bucket("upriver_bucket_tombstones", "Deletions kept.", lambda bucket: bucket["tombstones"]),
    _bucket(
        "upriver_bucket_history_bytes",
        "Bytes of older versions that are kept for rollbacks.",
        lambda bucket: bucket["history_bytes"],
    ),
    _bucket("upriver_bucket_disk_bytes", "Bytes on disk.", lambda bucket: bucket["disk_bytes"]),
    _bucket(
        "upriver_bucket_backfills", "Backfills that are open.", lambda bucket: bucket["backfills"]
    ),
    _bucket("upriver_bucket_seqnos", "The sum of all high seqnos.", _columns("high")),
    _bucket(
        "upriver_bucket_unpersisted_changes",
        "Seqnos that are not on disk for certain.",
        _columns("unpersisted"),
    ),
    MetricRow("upriver_vbuckets", "Vbuckets by state.", ("bucket", "state"), _vbuckets),
    _pipeline(
        "upriver_pipeline_batches_total",
        "Batches that the table tells of.",
        lambda pipeline: pipeline["batches"],
    ),
    _pipeline(
        "upriver_pipeline_rows_total", "Rows of these batches.", lambda pipeline: pipeline["rows"]
    ),
    _pipeline(
        "upriver_pipeline_rollbacks_total",
        "Rollbacks that they followed.",
        lambda pipeline: pipeline["rollbacks"],
    ),
    _pipeline(
        "upriver_pipeline_dead_letters_total",
        "Rows that could not be used and were put aside.",
        lambda pipeline: pipeline["dead_letters"],
    ),
    _last_batch(
        "upriver_pipeline_last_batch_seconds",
        "Seconds that the newest batch took.",
        lambda batch: batch["seconds"],
    ),
    _last_batch(
        "upriver_pipeline_last_batch_time_seconds",
        "When the newest batch was done, in seconds since 1970.",
        lambda batch: batch["time"],
    ),
    _last_batch(
        "upriver_pipeline_lag_changes",
        "Changes that the bucket was ahead of the newest batch.",
        lambda batch: batch["lag"],
    ),
    _last_batch(
        "upriver_pipeline_delay_seconds",
        "Seconds from the newest change of the newest batch until that was done.",
        lambda batch: batch["delay"],
    ),
    MetricRow(
        "upriver_dashboard_look_seconds",
        "Seconds of processor time that the last look took the dashboard's own thread.",
        (),
        lambda document: [((), document["cost"])],
    ),
    MetricRow(
        "upriver_dashboard_look_time_seconds",
        "When that was, in seconds since 1970.",
        (),
        lambda document: [((), document["time"])],
    ),
    MetricRow(
        "upriver_dashboard_healthy",
        "1 if the last look saw everything, else 0.",
        (),
        lambda document: [((), float(document["problem"] is None))],
    ),
)


class _Once(Collector):
    """Gives the samples of one document."""

    def __init__(self, document: Document) -> None:
        self._document = document

    def collect(self) -> Iterator[Metric]:
        for row in METRICS:
            make = CounterMetricFamily if row.is_counter else GaugeMetricFamily
            family = make(row.name, row.help, labels=row.labels)
            for labels, value in row.samples(self._document):
                family.add_metric(labels, value)
            yield family


def exposition(document: Document, accept: str) -> tuple[bytes, str]:
    """The metrics and their content type, in what the asker understands."""
    registry = CollectorRegistry()
    registry.register(_Once(document))
    encode, content_type = choose_encoder(accept)
    return encode(registry), content_type


_PREFACE: Final = (
    "`upriver serve --dashboard` and `upriver dashboard` answer `GET /metrics` in the format of "
    "Prometheus. Names, labels and units are stable. Nothing has a label for each vbucket, "
    "connection or key."
)


def reference() -> str:
    """The page of the documentation."""
    lines = [
        "# Metrics",
        "",
        _PREFACE,
        "",
        "| metric | type | labels | what it is |",
        "|---|---|---|---|",
    ]
    for row in METRICS:
        kind = "counter" if row.is_counter else "gauge"
        labels = ", ".join(f"`{label}`" for label in row.labels)
        lines.append(f"| `{row.name}` | {kind} | {labels} | {row.help} |")
    lines += [
        "",
        "A Grafana dashboard for them is `grafana.json` in the package `upriver.dashboard`.",
        "",
    ]
    return "\n".join(lines)
