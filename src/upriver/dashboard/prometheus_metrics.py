"""The Prometheus metrics of the dashboard: a table of names, labels and their sources.

Names, labels and units are stable. No label has a value per vbucket, connection or key, so the
number of series does not grow with the data. ``docs/reference/metrics.md`` is generated from the
table.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Final

from .. import __version__
from .._extras import extra
from .figure_types import (
    STATE_LETTERS,
    BatchFigures,
    BucketFigures,
    ConnectionFigures,
    HeartbeatFigures,
    LatencyFigures,
    PipelineFigures,
    ServerFigures,
    StatsDocument,
)

with extra("cli"):
    from prometheus_client.core import (
        CounterMetricFamily,
        GaugeMetricFamily,
        HistogramMetricFamily,
        Metric,
    )
    from prometheus_client.exposition import choose_encoder
    from prometheus_client.registry import Collector, CollectorRegistry

LabelledValue = tuple[tuple[str, ...], float]


@dataclass(frozen=True, slots=True)
class MetricRow:
    """One metric."""

    #: The name in queries: counters end with ``_total``.
    name: str
    help: str
    labels: tuple[str, ...]
    samples: Callable[[StatsDocument], Iterable[LabelledValue]] = lambda document: ()
    #: The source of a histogram; others have samples.
    latency: Callable[[ServerFigures], LatencyFigures] | None = None

    @property
    def kind(self) -> str:
        if self.latency is not None:
            return "histogram"
        return "counter" if self.is_counter else "gauge"

    @property
    def is_counter(self) -> bool:
        return self.name.endswith("_total")


def _server(name: str, text: str, read: Callable[[ServerFigures], float]) -> MetricRow:
    def samples(document: StatsDocument) -> Iterator[LabelledValue]:
        if document["server"] is not None:
            yield (), read(document["server"])

    return MetricRow(name, text, (), samples)


def _bucket(name: str, text: str, read: Callable[[BucketFigures], float]) -> MetricRow:
    def samples(document: StatsDocument) -> Iterator[LabelledValue]:
        for bucket in document["server"]["buckets"] if document["server"] else ():
            yield (bucket["name"],), read(bucket)

    return MetricRow(name, text, ("bucket",), samples)


def _readers(
    name: str, text: str, read: Callable[[Sequence[ConnectionFigures]], float]
) -> MetricRow:
    """Sums over the connections of each bucket that stream its changes."""

    def samples(document: StatsDocument) -> Iterator[LabelledValue]:
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
    def samples(document: StatsDocument) -> Iterator[LabelledValue]:
        for pipeline in document["pipelines"]:
            yield (pipeline["name"],), read(pipeline)

    return MetricRow(name, text, ("table",), samples)


def _last_batch(name: str, text: str, read: Callable[[BatchFigures], float | None]) -> MetricRow:
    def samples(document: StatsDocument) -> Iterator[LabelledValue]:
        for pipeline in document["pipelines"]:
            value = read(pipeline["recent"][-1]) if pipeline["recent"] else None
            if value is not None:
                yield (pipeline["name"],), value

    return MetricRow(name, text, ("table",), samples)


def _heartbeat(name: str, text: str, read: Callable[[HeartbeatFigures], float | None]) -> MetricRow:
    def samples(document: StatsDocument) -> Iterator[LabelledValue]:
        for pipeline in document["pipelines"]:
            value = read(pipeline["now"]) if pipeline["now"] is not None else None
            if value is not None:
                yield (pipeline["name"],), value

    return MetricRow(name, text, ("table",), samples)


def _pipeline_states(document: StatsDocument) -> Iterator[LabelledValue]:
    for pipeline in document["pipelines"]:
        if pipeline["now"] is not None:
            yield (pipeline["name"], pipeline["now"]["state"]), 1


def _by_name(name: str, text: str, read: Callable[[StatsDocument], dict[str, int]]) -> MetricRow:
    return MetricRow(
        name,
        text,
        ("bucket",),
        lambda document: (((bucket,), count) for bucket, count in read(document).items()),
    )


def _info(document: StatsDocument) -> Iterator[LabelledValue]:
    server = document["server"]
    yield (__version__ if server is None else server["software"],), 1


def _vbuckets(document: StatsDocument) -> Iterator[LabelledValue]:
    for bucket in document["server"]["buckets"] if document["server"] else ():
        letters = Counter(bucket["vbuckets"]["state"])
        for state, letter in STATE_LETTERS.items():
            yield (bucket["name"], state), letters[letter]


def _connections(document: StatsDocument) -> Iterator[LabelledValue]:
    if document["server"] is None:
        return
    kinds = Counter(connection["kind"] for connection in document["server"]["connections"])
    for kind in ("reader", "replica"):
        yield (kind,), kinds[kind]
    # long lists leave out some clients, which are the remainder of the count
    yield ("client",), document["server"]["connection_count"] - kinds["reader"] - kinds["replica"]


def _streams(document: StatsDocument) -> Iterator[LabelledValue]:
    found: Counter[tuple[str, str]] = Counter()
    for connection in document["server"]["connections"] if document["server"] else ():
        for state, count in connection["states"].items():
            found[connection["bucket"] or "", state] += count
    yield from found.items()


def _collections(document: StatsDocument) -> Iterator[LabelledValue]:
    for bucket in document["server"]["buckets"] if document["server"] else ():
        for one in bucket["collections"]:
            if one["items"] is not None:
                yield (bucket["name"], one["scope"], one["name"]), one["items"]


def _columns(name: str) -> Callable[[BucketFigures], float]:
    def read(bucket: BucketFigures) -> float:
        columns = bucket["vbuckets"]
        if name == "unpersisted":
            return sum(columns["high"]) - sum(columns["persisted"])
        return sum(columns["high"])

    return read


METRICS: Final[tuple[MetricRow, ...]] = (
    MetricRow(
        "upriver_info",
        "Always 1; the label is the version of Upriver that the server runs.",
        ("version",),
        _info,
    ),
    _server(
        "upriver_start_time_seconds",
        "When the server started, in seconds since 1970.",
        lambda server: server["started"],
    ),
    _server(
        "upriver_process_memory_bytes",
        "Memory of the server's process.",
        lambda server: server["memory"],
    ),
    _server(
        "upriver_process_cpu_seconds_total",
        "Processor time of the server's process.",
        lambda server: server["cpu_seconds"],
    ),
    _server(
        "upriver_disk_free_bytes",
        "Free bytes of the disk that has the data directory.",
        lambda server: server["disk_free"],
    ),
    MetricRow(
        "upriver_request_seconds",
        "From the arrival of a document request to its response.",
        (),
        latency=lambda server: server["request_seconds"],
    ),
    MetricRow(
        "upriver_delivery_seconds",
        "From a write, by the time in its CAS, to its delivery to a reader that has caught up; "
        "the oldest change of each chunk that is sent.",
        (),
        latency=lambda server: server["delivery_seconds"],
    ),
    _server(
        "upriver_reads_total",
        "Document requests that were answered without a write.",
        lambda server: server["reads"],
    ),
    _by_name(
        "upriver_changes_total",
        "Changes committed since the dashboard's start: writes, deletions, expirations and "
        "replicated changes.",
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
        "New branches since the dashboard's start: failovers and rollbacks of vbuckets.",
        lambda document: document["branches"],
    ),
    MetricRow(
        "upriver_connections",
        "Connections by kind: readers of changes, replicas that send changes, other clients.",
        ("kind",),
        _connections,
    ),
    MetricRow("upriver_streams", "Open streams by state.", ("bucket", "state"), _streams),
    _readers(
        "upriver_stream_lag_changes",
        "Changes that were not sent yet, of all readers together.",
        lambda readers: sum(reader["lag"] for reader in readers),
    ),
    _readers(
        "upriver_slowest_reader_lag_changes",
        "Changes that were not sent yet to the reader that is furthest behind.",
        lambda readers: max((reader["lag"] for reader in readers), default=0),
    ),
    _readers(
        "upriver_slowest_reader_lag_seconds",
        "The age of the oldest change that a reader was not sent yet; 0 if all are up to date.",
        lambda readers: max((reader["lag_seconds"] for reader in readers), default=0),
    ),
    _readers(
        "upriver_window_bytes",
        "Bytes of all flow-control windows.",
        lambda readers: sum(reader["window"] for reader in readers),
    ),
    _readers(
        "upriver_window_outstanding_bytes",
        "Bytes sent to readers and not acknowledged yet.",
        lambda readers: sum(reader["outstanding"] for reader in readers),
    ),
    _bucket("upriver_bucket_items", "Documents.", lambda bucket: bucket["items"]),
    MetricRow(
        "upriver_collection_items",
        "Documents of a collection, of the first 50 collections of a bucket.",
        ("bucket", "scope", "collection"),
        _collections,
    ),
    _bucket("upriver_bucket_tombstones", "Deletions kept.", lambda bucket: bucket["tombstones"]),
    _bucket(
        "upriver_bucket_history_bytes",
        "Bytes of older versions, kept for rollbacks.",
        lambda bucket: bucket["history_bytes"],
    ),
    _bucket("upriver_bucket_disk_bytes", "Bytes on disk.", lambda bucket: bucket["disk_bytes"]),
    _bucket(
        "upriver_bucket_backfills", "Backfills that are open.", lambda bucket: bucket["backfills"]
    ),
    _bucket("upriver_bucket_seqnos", "The sum of all high seqnos.", _columns("high")),
    _bucket(
        "upriver_bucket_unpersisted_changes",
        "Seqnos that are not known to be persisted.",
        _columns("unpersisted"),
    ),
    MetricRow("upriver_vbuckets", "Vbuckets by state.", ("bucket", "state"), _vbuckets),
    _pipeline(
        "upriver_pipeline_batches_total",
        "Batches in the pipeline's progress file.",
        lambda pipeline: pipeline["batches"],
    ),
    _pipeline(
        "upriver_pipeline_rows_total", "Rows of these batches.", lambda pipeline: pipeline["rows"]
    ),
    _pipeline(
        "upriver_pipeline_rollbacks_total",
        "Rollbacks in these batches.",
        lambda pipeline: pipeline["rollbacks"],
    ),
    _pipeline(
        "upriver_pipeline_dead_letters_total",
        "Rows that were written to the dead letters.",
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
    MetricRow(
        "upriver_pipeline_state",
        "1 for what the pipeline does: starting, reading, idle, waiting, done, stopped, failed, "
        "or gone if nothing was heard of it for 20 seconds.",
        ("table", "state"),
        _pipeline_states,
    ),
    _heartbeat(
        "upriver_pipeline_heartbeat_time_seconds",
        "When the pipeline was heard of last, in seconds since 1970.",
        lambda now: now["time"],
    ),
    _heartbeat(
        "upriver_pipeline_lag_changes",
        "Changes in the bucket that the table does not have; left out if that is not known.",
        lambda now: now["lag"],
    ),
    _heartbeat(
        "upriver_pipeline_lag_seconds",
        "Seconds that the table is behind the bucket; left out if that is not known.",
        lambda now: now["lag_seconds"],
    ),
    _last_batch(
        "upriver_pipeline_delay_seconds",
        "Seconds from the newest change of the newest batch to the end of the batch.",
        lambda batch: batch["delay"],
    ),
    MetricRow(
        "upriver_dashboard_look_seconds",
        "Seconds of processor time that the last sample took the dashboard's thread.",
        (),
        lambda document: [((), document["cost"])],
    ),
    MetricRow(
        "upriver_dashboard_look_time_seconds",
        "When the last sample was taken, in seconds since 1970.",
        (),
        lambda document: [((), document["time"])],
    ),
    MetricRow(
        "upriver_dashboard_healthy",
        "1 if the last sample was complete, else 0.",
        (),
        lambda document: [((), float(document["problem"] is None))],
    ),
)


class _Once(Collector):
    """A Prometheus collector over one document."""

    def __init__(self, document: StatsDocument) -> None:
        self._document = document

    def collect(self) -> Iterator[Metric]:
        for row in METRICS:
            if row.latency is not None:
                if self._document["server"] is not None:
                    yield _histogram(row, row.latency(self._document["server"]))
                continue
            make = CounterMetricFamily if row.is_counter else GaugeMetricFamily
            family = make(row.name, row.help, labels=row.labels)
            for labels, value in row.samples(self._document):
                family.add_metric(labels, value)
            yield family


def _histogram(row: MetricRow, latency: LatencyFigures) -> Metric:
    family = HistogramMetricFamily(row.name, row.help)
    bounds = [*map(str, latency["bounds"]), "+Inf"]
    below = list(accumulate(latency["counts"]))
    family.add_metric([], list(zip(bounds, below, strict=True)), sum_value=latency["total"])
    return family


def exposition(document: StatsDocument, accept: str) -> tuple[bytes, str]:
    """The metrics and their content type, in a format of the Accept header."""
    registry = CollectorRegistry()
    registry.register(_Once(document))
    encode, content_type = choose_encoder(accept)
    return encode(registry), content_type


_PREFACE: Final = (
    "`upriver serve --dashboard` and `upriver dashboard` answer `GET /metrics` in the format of "
    "Prometheus. Names, labels and units are stable. No label has a value per vbucket, "
    "connection or key."
)


_ALERTS: Final = """\
## Grafana and alerts

`upriver dashboard --export grafana` prints a dashboard for Grafana, which its page "Import" takes,
and `upriver dashboard --export alerts` prints alert rules for Prometheus, which belong into a file
that `rule_files` of `prometheus.yml` names. Their thresholds suit most installations;
change them in the file.

A server that has users answers `/metrics` to those who authenticate: give Prometheus a user of the
server in `basic_auth`. It sees the buckets in which the user has a role."""


def reference() -> str:
    """The reference page of the documentation."""
    lines = [
        "# Metrics",
        "",
        _PREFACE,
        "",
        "| metric | type | labels | what it is |",
        "|---|---|---|---|",
    ]
    for row in METRICS:
        labels = ", ".join(f"`{label}`" for label in row.labels)
        lines.append(f"| `{row.name}` | {row.kind} | {labels} | {row.help} |")
    lines += ["", *_ALERTS.splitlines(), ""]
    return "\n".join(lines)
