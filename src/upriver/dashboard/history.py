"""History of a server and of pipelines: the last minutes by the second, an hour by 10 seconds.

Rates are differences of counts between two samples. A smaller count means that it was reset.
Memory is bounded: a fixed number of points, each with a fixed number of readers and pipelines.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from .figure_types import (
    HistoryFigures,
    LagFigures,
    PipelineFigures,
    ServerFigures,
)

#: Points that are kept: five minutes of samples, and an hour of means over `_STEP` seconds.
_RECENT: Final = 300
_HOUR: Final = 360
_STEP: Final = 10.0
#: Readers and pipelines whose lag a point has: those that are furthest behind.
_MOST_LAGS: Final = 16

#: Whose lag: ``reader`` or ``pipeline``, and the name.
_Who = tuple[str, str]


class _Lag(NamedTuple):
    changes: int | None
    seconds: float | None


class _Point(NamedTuple):
    time: float
    #: Writes, reads, messages and bytes per second, and the share of a processor.
    rates: tuple[float, ...]
    memory: int
    disk: int
    #: Counts of latencies in this interval.
    requests: tuple[int, ...]
    deliveries: tuple[int, ...]
    lags: dict[_Who, _Lag]


class History:
    """Points in time, oldest first."""

    def __init__(self) -> None:
        self._recent: deque[_Point] = deque(maxlen=_RECENT)
        self._hour: deque[_Point] = deque(maxlen=_HOUR)
        #: Points since the last one of the hour.
        self._gathered: list[_Point] = []
        self._bounds: Sequence[float] = ()
        self._before: tuple[float, tuple[float, ...], Sequence[int], Sequence[int]] | None = None

    def add(
        self,
        time: float,
        server: ServerFigures | None,
        changes: int,
        pipelines: Sequence[PipelineFigures] = (),
    ) -> None:
        """Adds one sample; ``changes`` counts the changes of all buckets."""
        lags = _furthest([*_readers(server), *_pipelines(pipelines)])
        if server is None:
            self._append(_Point(time, (0.0,) * 5, 0, 0, (), (), lags))
            return
        self._bounds = server["request_seconds"]["bounds"]
        counts = (
            changes,
            server["reads"],
            server["messages"],
            server["bytes"],
            server["cpu_seconds"],
        )
        requests = server["request_seconds"]["counts"]
        deliveries = server["delivery_seconds"]["counts"]
        if self._before is not None and time > self._before[0]:
            then, counted, requested, delivered = self._before
            rates = tuple(
                max(0.0, count - was) / (time - then)
                for count, was in zip(counts, counted, strict=True)
            )
            self._append(
                _Point(
                    time,
                    rates,
                    server["memory"],
                    sum(bucket["disk_bytes"] for bucket in server["buckets"]),
                    _grown(requests, requested),
                    _grown(deliveries, delivered),
                    lags,
                )
            )
        self._before = time, counts, requests, deliveries

    def _append(self, point: _Point) -> None:
        self._recent.append(point)
        self._gathered.append(point)
        if point.time - self._gathered[0].time >= _STEP:
            self._hour.append(_merged(self._gathered))
            self._gathered = []

    def recent(self) -> HistoryFigures:
        """The last minutes, by sample."""
        return self._figures(self._recent)

    def hour(self) -> HistoryFigures:
        """The last hour, in steps of some seconds; the last point has the samples since."""
        newest = [_merged(self._gathered)] if self._gathered else []
        return self._figures([*self._hour, *newest])

    def _figures(self, points: Iterable[_Point]) -> HistoryFigures:
        points = list(points)
        writes, reads, messages, sent, cpu = (
            [round(point.rates[at], 3) for point in points] for at in range(5)
        )

        def column(share: float, name: str) -> list[float | None]:
            return [percentile(self._bounds, getattr(point, name), share) for point in points]

        return HistoryFigures(
            time=[round(point.time, 2) for point in points],
            writes=writes,
            reads=reads,
            messages=messages,
            bytes=sent,
            cpu=cpu,
            memory=[point.memory for point in points],
            disk=[point.disk for point in points],
            request_p50=column(0.5, "requests"),
            request_p99=column(0.99, "requests"),
            delivery_p50=column(0.5, "deliveries"),
            delivery_p99=column(0.99, "deliveries"),
            lags=_lag_columns(points),
        )


def percentile(bounds: Sequence[float], counts: Sequence[int], share: float) -> float | None:
    """The latency that a share of all observations did not exceed; None without observations.

    Between the bounds of a bucket it is interpolated, as Prometheus does.
    """
    total = sum(counts)
    if not total:
        return None
    wanted, below = share * total, 0
    for at, count in enumerate(counts[: len(bounds)]):
        if below + count >= wanted and count:
            lower = bounds[at - 1] if at else 0.0
            return round(lower + (bounds[at] - lower) * (wanted - below) / count, 6)
        below += count
    return bounds[-1]


def _readers(server: ServerFigures | None) -> Iterable[tuple[_Who, _Lag]]:
    for one in server["connections"] if server else ():
        if one["kind"] == "reader":
            yield ("reader", one["name"] or one["peer"]), _Lag(one["lag"], one["lag_seconds"])


def _pipelines(pipelines: Sequence[PipelineFigures]) -> Iterable[tuple[_Who, _Lag]]:
    for one in pipelines:
        now = one["now"]
        if now is not None:
            yield ("pipeline", one["name"]), _Lag(now["lag"], now["lag_seconds"])


def _furthest(lags: Sequence[tuple[_Who, _Lag]]) -> dict[_Who, _Lag]:
    """The largest lags; several connections of one name are one reader."""
    found: dict[_Who, _Lag] = {}
    for who, lag in lags:
        found[who] = _largest((found[who], lag)) if who in found else lag
    kept = sorted(found, key=lambda who: (-(found[who].changes or 0), who))[:_MOST_LAGS]
    return {who: found[who] for who in kept}


def _largest(lags: Iterable[_Lag]) -> _Lag:
    lags = list(lags)
    changes = [lag.changes for lag in lags if lag.changes is not None]
    seconds = [lag.seconds for lag in lags if lag.seconds is not None]
    return _Lag(max(changes, default=None), max(seconds, default=None))


def _merged(points: Sequence[_Point]) -> _Point:
    """One point for several: mean rates, all latencies, the largest lags."""
    by_name: dict[_Who, list[_Lag]] = {}
    for point in points:
        for who, lag in point.lags.items():
            by_name.setdefault(who, []).append(lag)
    largest = [(who, _largest(lags)) for who, lags in by_name.items()]
    return _Point(
        points[-1].time,
        tuple(
            sum(rates) / len(points)
            for rates in zip(*(point.rates for point in points), strict=True)
        ),
        max(point.memory for point in points),
        points[-1].disk,
        tuple(map(sum, zip(*(point.requests for point in points), strict=False))),
        tuple(map(sum, zip(*(point.deliveries for point in points), strict=False))),
        _furthest(largest),
    )


def _grown(counts: Sequence[int], before: Sequence[int]) -> tuple[int, ...]:
    return tuple(max(0, count - was) for count, was in zip(counts, before, strict=False))


def _lag_columns(points: Sequence[_Point]) -> list[LagFigures]:
    """The lags by name: those of the newest points first, as many as one point has."""
    names: dict[_Who, None] = {}
    for point in reversed(points):
        if len(names) >= _MOST_LAGS:
            break
        names.update(dict.fromkeys(point.lags))
    nothing = _Lag(None, None)
    return [
        LagFigures(
            name=who[1],
            kind=who[0],
            changes=[point.lags.get(who, nothing).changes for point in points],
            seconds=[point.lags.get(who, nothing).seconds for point in points],
        )
        for who in sorted(list(names)[:_MOST_LAGS])
    ]
