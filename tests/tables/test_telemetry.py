"""What OpenTelemetry is told of a pipeline: a trace for each batch, and metrics."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from upriver import telemetry
from upriver.tables.progress_log import LocalProgress, ProgressBook
from upriver.testing import TemporaryProducer


@pytest.fixture
def told() -> Iterator[tuple[InMemorySpanExporter, InMemoryMetricReader]]:
    spans, metrics = InMemorySpanExporter(), InMemoryMetricReader()
    tracers = TracerProvider()
    tracers.add_span_processor(SimpleSpanProcessor(spans))
    telemetry.enable(tracers, MeterProvider([metrics]))
    yield spans, metrics
    telemetry.disable()


def batch(book: ProgressBook, number: int) -> None:
    book.batch_done(
        advance=10,
        began=0.0,
        batch=number,
        rows=10,
        bytes=1000,
        steps={"tasks": 1.0, "commit": 0.5, "care": 0.25},
        rollbacks=1,
        dead_letters=2,
        lag=7,
        lag_seconds=1.5,
        delay=0.1,
    )


def test_a_batch_is_one_trace_with_its_steps(
    told: tuple[InMemorySpanExporter, InMemoryMetricReader], tmp_path: Path
) -> None:
    spans, metrics = told
    book = ProgressBook(LocalProgress(tmp_path / "progress", "run"), None)
    batch(book, 1)
    batch(book, 2)
    found = spans.get_finished_spans()
    roots = [span for span in found if span.parent is None]
    assert [span.name for span in roots] == ["upriver.batch"] * 2
    assert len({span.context.trace_id for span in found if span.context}) == 2
    first = [one for one in found if one.parent and one.parent.span_id == roots[0].context.span_id]
    assert [span.name for span in first] == ["tasks", "commit", "care"]
    for earlier, later in pairwise(first):
        assert earlier.end_time == later.start_time
    attributes = dict(roots[0].attributes or {})
    assert attributes["upriver.changes"] == 10
    assert attributes["upriver.run"] == "run"
    assert values(metrics)["upriver.pipeline.changes"] == 20
    assert values(metrics)["upriver.pipeline.lag"] == 7
    telemetry.batch_failed("somebody else has committed")
    assert spans.get_finished_spans()[-1].status.status_code is StatusCode.ERROR


def values(metrics: InMemoryMetricReader) -> dict[str, Any]:
    data = metrics.get_metrics_data()
    assert data is not None
    return {
        metric.name: point.value
        for resource in data.resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
        for point in metric.data.data_points
        if hasattr(point, "value")
    }


def test_without_being_enabled_nothing_is_loaded(tmp_path: Path) -> None:
    code = (
        "import sys; from upriver import telemetry; telemetry.batch_failed('x');"
        "print('opentelemetry' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


def test_a_mirror_sends_its_batches_to_a_collector(tmp_path: Path) -> None:
    received: list[tuple[str, bytes]] = []

    class Collector(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            received.append((self.path, self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *args: Any) -> None:
            pass

    with (
        ThreadingHTTPServer(("127.0.0.1", 0), Collector) as server,
        TemporaryProducer(vbuckets=4) as producer,
    ):
        threading.Thread(target=server.serve_forever, daemon=True).start()
        producer.write(b"key", b"{}")
        words = ("mirror", producer.source, str(tmp_path / "table"), "--once", "--otel")
        subprocess.run(
            [sys.executable, "-m", "upriver", *words],
            check=True,
            env={
                **os.environ,
                "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{server.server_port}",
                "OTEL_EXPORTER_OTLP_COMPRESSION": "none",
            },
        )
        server.shutdown()
    assert any(path == "/v1/metrics" for path, _ in received)
    names = set()
    for path, body in received:
        if path == "/v1/traces":
            for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
                names |= {span.name for scope in resource.scope_spans for span in scope.spans}
    assert names == {"upriver.batch", "tasks", "commit", "care"}
