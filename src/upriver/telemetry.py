"""OpenTelemetry: traces and metrics of pipelines; off unless a program calls `enable`.

Each batch of a pipeline is one trace: a span ``upriver.batch`` with the spans ``tasks`` (reading
and writing files), ``commit`` and ``care`` (compaction and cleaning) below it. Spans are made when
the batch is done, from the times that the pipeline has measured, so nothing is measured twice and a
pipeline costs nothing where this is off.

    upriver.pipeline.batches, .changes, .rollbacks, .dead_letters, .failures    counters
    upriver.pipeline.batch.duration                                             histogram, seconds
    upriver.pipeline.lag, upriver.pipeline.lag.duration                         gauges, changes, s
"""

from __future__ import annotations

import atexit
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, Protocol

from ._extras import extra

if TYPE_CHECKING:
    from opentelemetry.metrics import MeterProvider
    from opentelemetry.trace import TracerProvider

__all__ = ["batch_done", "batch_failed", "disable", "enable", "enable_export"]

_NANO: Final = 1_000_000_000


class _Batch(Protocol):
    """What a pipeline reports of a batch (`upriver.tables.progress_log.BatchRecord`)."""

    @property
    def time(self) -> float: ...
    @property
    def run(self) -> str: ...
    @property
    def batch(self) -> int: ...
    @property
    def rows(self) -> int: ...
    @property
    def bytes(self) -> int: ...
    @property
    def seconds(self) -> float: ...
    @property
    def steps(self) -> Mapping[str, float]: ...
    @property
    def rollbacks(self) -> int: ...
    @property
    def dead_letters(self) -> int: ...
    @property
    def lag(self) -> int | None: ...
    @property
    def lag_seconds(self) -> float | None: ...


_reporter: _Reporter | None = None


def enable(
    tracer_provider: TracerProvider | None = None, meter_provider: MeterProvider | None = None
) -> None:
    """Reports batches to these providers, by default to those that the program has set globally."""
    global _reporter
    _reporter = _Reporter(tracer_provider, meter_provider)


def disable() -> None:
    """Reports nothing any more."""
    global _reporter
    _reporter = None


def enable_export() -> None:
    """Reports batches to a collector by OTLP over HTTP, until the process ends.

    The address and all else come from OpenTelemetry's own variables, such as
    ``OTEL_EXPORTER_OTLP_ENDPOINT`` and ``OTEL_SERVICE_NAME``.
    """
    with extra("otel"):
        from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.metrics import MeterProvider as Meters
        from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
        from opentelemetry.sdk.resources import OTELResourceDetector, Resource
        from opentelemetry.sdk.trace import TracerProvider as Tracers
        from opentelemetry.sdk.trace.export import BatchSpanProcessor

    resource = Resource.create({"service.name": "upriver"}).merge(OTELResourceDetector().detect())
    tracers = Tracers(resource=resource, shutdown_on_exit=False)
    tracers.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    reader = PeriodicExportingMetricReader(OTLPMetricExporter())
    meters = Meters(resource=resource, metric_readers=[reader], shutdown_on_exit=False)
    atexit.register(meters.shutdown)
    atexit.register(tracers.shutdown)
    enable(tracers, meters)


def batch_done(batch: _Batch) -> None:
    """A batch was committed."""
    if _reporter is not None:
        _reporter.done(batch)


def batch_failed(problem: str) -> None:
    """A batch could not be committed, and is planned again or ends its pipeline."""
    if _reporter is not None:
        _reporter.failed(problem)


class _Reporter:
    """Makes spans and measurements of what pipelines report."""

    def __init__(self, tracers: TracerProvider | None, meters: MeterProvider | None) -> None:
        with extra("otel"):
            from opentelemetry import metrics, trace

        self._trace = trace
        self._tracer = trace.get_tracer("upriver", tracer_provider=tracers)
        meter = metrics.get_meter("upriver", meter_provider=meters)
        name = "upriver.pipeline"
        self._batches = meter.create_counter(f"{name}.batches", "{batch}")
        self._changes = meter.create_counter(f"{name}.changes", "{change}")
        self._rollbacks = meter.create_counter(f"{name}.rollbacks", "{rollback}")
        self._letters = meter.create_counter(f"{name}.dead_letters", "{document}")
        self._failures = meter.create_counter(f"{name}.failures", "{batch}")
        self._duration = meter.create_histogram(f"{name}.batch.duration", "s")
        self._lag = meter.create_gauge(f"{name}.lag", "{change}")
        self._lag_seconds = meter.create_gauge(f"{name}.lag.duration", "s")

    def done(self, batch: _Batch) -> None:
        self._report_trace(batch)
        run = {"upriver.run": batch.run}
        self._batches.add(1, run)
        self._changes.add(batch.rows, run)
        self._rollbacks.add(batch.rollbacks, run)
        self._letters.add(batch.dead_letters, run)
        self._duration.record(batch.seconds, run)
        if batch.lag is not None:
            self._lag.set(batch.lag, run)
        if batch.lag_seconds is not None:
            self._lag_seconds.set(batch.lag_seconds, run)

    def _report_trace(self, batch: _Batch) -> None:
        began = batch.time - batch.seconds
        attributes: dict[str, Any] = {
            "upriver.run": batch.run,
            "upriver.batch": batch.batch,
            "upriver.changes": batch.rows,
            "upriver.bytes": batch.bytes,
            "upriver.rollbacks": batch.rollbacks,
            "upriver.dead_letters": batch.dead_letters,
        }
        if batch.lag is not None:
            attributes["upriver.lag"] = batch.lag
        root = self._tracer.start_span(
            "upriver.batch", attributes=attributes, start_time=int(began * _NANO)
        )
        around = self._trace.set_span_in_context(root)
        for name, seconds in batch.steps.items():
            step = self._tracer.start_span(name, around, start_time=int(began * _NANO))
            began += seconds
            step.end(int(began * _NANO))
        root.end(int(batch.time * _NANO))

    def failed(self, problem: str) -> None:
        self._failures.add(1)
        span = self._tracer.start_span("upriver.batch")
        span.set_status(self._trace.Status(self._trace.StatusCode.ERROR, problem))
        span.end()
