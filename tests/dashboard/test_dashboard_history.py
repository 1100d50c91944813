"""The history of the dashboard: rates, percentiles and lags over time, in bounded memory."""

from __future__ import annotations

import pytest
from dashboardkit import seen, server_of, watched

from upriver.cli.dashboard.connection_figures import stream_lag
from upriver.dashboard.figure_types import ServerFigures
from upriver.dashboard.history import History, percentile
from upriver.producer.server_views import StreamView, bucket_view
from upriver.testing import TemporaryProducer

BOUNDS = (0.001, 0.01, 0.1)


@pytest.mark.parametrize(
    ("counts", "share", "wanted"),
    [
        ((0, 0, 0, 0), 0.5, None),
        ((10, 0, 0, 0), 0.5, 0.0005),
        ((10, 0, 0, 0), 1.0, 0.001),
        ((0, 10, 0, 0), 0.5, 0.0055),
        ((99, 0, 1, 0), 0.99, 0.001),
        ((50, 0, 50, 0), 0.99, 0.0982),
        ((0, 0, 0, 5), 0.5, 0.1),
    ],
)
def test_a_percentile_is_interpolated_between_bounds(
    counts: tuple[int, ...], share: float, wanted: float | None
) -> None:
    found = percentile(BOUNDS, counts, share)
    assert found == (None if wanted is None else pytest.approx(wanted))


@pytest.fixture(scope="module")
def server() -> ServerFigures:
    with TemporaryProducer(vbuckets=2) as producer, watched(producer) as url:
        return server_of(seen(url))


def test_an_hour_is_kept_and_no_more(server: ServerFigures) -> None:
    history = History()
    for second in range(2 * 3600):
        server["reads"] = 5 * second
        history.add(float(second), server, changes=second)
    recent, hour = history.recent(), history.hour()
    assert len(recent["time"]) == 300
    assert recent["time"][-1] - recent["time"][0] == 299
    assert 3500 <= hour["time"][-1] - hour["time"][0] <= 3700 * 1.1
    assert len(hour["time"]) <= 361
    assert set(recent["reads"]) == {5.0}
    assert set(hour["writes"]) == {1.0}


def test_readers_without_number_are_bounded(server: ServerFigures) -> None:
    history = History()
    for second in range(700):
        server["connections"] = [
            {
                **_CONNECTION,  # type: ignore[typeddict-item]
                "name": f"reader {second} {number}",
                "lag": number,
            }
            for number in range(40)
        ]
        history.add(float(second), server, changes=0)
    for figures in (history.recent(), history.hour()):
        assert len(figures["lags"]) == 16
        for lag in figures["lags"]:
            assert len(lag["changes"]) == len(figures["time"])
    # those that are furthest behind
    assert {lag["name"] for lag in history.recent()["lags"]} == {
        f"reader 699 {number}" for number in range(24, 40)
    }


_CONNECTION = {"kind": "reader", "peer": "p", "lag_seconds": 1.0}


def test_lag_counts_what_is_stored_and_not_seqnos() -> None:
    with TemporaryProducer(vbuckets=1) as producer:
        for number in range(100):
            producer.write(b"same", b"%d" % number, vbucket=0)
        (stats,) = bucket_view(producer.bucket).vbuckets
        view = {
            "vbucket": 0,
            "stream_id": None,
            "opaque": 1,
            "state": "in_memory",
            "messages_sent": 0,
            "bytes_sent": 0,
            "takeover": False,
        }

        def lag(position: int, end: int = 2**64 - 1) -> int:
            return stream_lag(StreamView(position=position, end=end, **view), stats)  # type: ignore[arg-type]

        assert lag(0) == 1  # one document, whatever its seqno
        assert lag(99) == 1
        assert lag(100) == 0
        assert lag(20, end=20) == 0  # nothing is left to send
