"""What is noticed between two looks at a real producer."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from upriver.cli.dashboard.producer_figures import ProducerFeed
from upriver.dashboard.event_detection import EventDetector
from upriver.dashboard.figure_types import EventFigures, RollbackFigures
from upriver.model import VBucketState
from upriver.testing import TemporaryProducer


class Watched:
    """A producer that is looked at when a test says so."""

    def __init__(self, producer: TemporaryProducer) -> None:
        self.producer = producer
        self.feed = ProducerFeed(producer.producer)
        self.watch = EventDetector()
        self.look()

    def look(self) -> list[EventFigures]:
        """What has happened since the last look."""
        known = len(self.watch.events)
        self.watch.see_server(self.feed.sample(), now=100.0)
        return list(self.watch.events)[known:]


@pytest.fixture
def watched() -> Iterator[Watched]:
    with TemporaryProducer(vbuckets=16) as producer:
        for vbucket in range(16):
            for number in range(4):
                producer.write(b"%d" % number, b"v", vbucket=vbucket)
        yield Watched(producer)


def test_nothing_has_happened_before_the_first_look(watched: Watched) -> None:
    assert list(watched.watch.events) == []
    assert watched.watch.changes == {"default": 0}
    assert watched.look() == []


def test_writes_are_counted_and_are_no_events(watched: Watched) -> None:
    watched.producer.write(b"k", b"v")
    watched.producer.delete(b"k")
    assert watched.look() == []
    assert watched.watch.changes == {"default": 2}


def test_a_failover_is_an_event_of_its_vbucket(watched: Watched) -> None:
    watched.producer.fail_over(5, 2)
    (event,) = watched.look()
    assert (event["kind"], event["bucket"], event["vbucket"]) == ("failover", "default", 5)
    assert "the high seqno was 4 and is 2" in event["text"]
    assert watched.watch.branches == {"default": 1}
    assert watched.watch.changes == {"default": 0}
    assert watched.look() == []


def test_many_failovers_at_once_are_one_event(watched: Watched) -> None:
    for vbucket in range(12):
        watched.producer.fail_over(vbucket, 2)
    (event,) = watched.look()
    assert (event["kind"], event["vbucket"]) == ("failover", None)
    assert event["text"] == "12 vbuckets began new branches"
    assert watched.watch.branches == {"default": 12}


def test_other_states_are_events_by_their_way(watched: Watched) -> None:
    watched.producer.set_state(3, VBucketState.DEAD)
    for vbucket in range(8, 16):
        watched.producer.set_state(vbucket, VBucketState.REPLICA)
    dead, replicas = watched.look()
    assert (dead["text"], dead["vbucket"]) == ("active became dead", 3)
    assert (replicas["text"], replicas["vbucket"]) == ("8 vbuckets: active became replica", None)


def test_readers_that_are_sent_back_are_events_once_and_after_a_restart_again() -> None:
    with TemporaryProducer(vbuckets=2) as producer:
        figures = ProducerFeed(producer.producer).sample()
    watch = EventDetector()
    sent_back = RollbackFigures(
        id=1, time=7.0, connection="", bucket="default", vbucket=1, seqno=1000
    )
    figures["rolled_back"] = [sent_back]
    watch.see_server(figures, 1.0)
    assert not watch.events  # it was there before
    later: list[RollbackFigures] = [
        sent_back,
        {**sent_back, "id": 2, "connection": "mirror"},
    ]
    watch.see_server({**figures, "rolled_back": later}, 2.0)
    watch.see_server({**figures, "rolled_back": later}, 3.0)
    (event,) = watch.events
    assert event["text"] == "mirror was rolled back to seqno 1,000"
    assert (event["kind"], event["time"], event["vbucket"]) == ("rollback", 7.0, 1)
    watch.see_server(figures, 4.0)  # the server began to count anew
    assert watch.events[-1]["text"] == "a reader without a name was rolled back to seqno 1,000"


def test_events_do_not_grow_without_end(watched: Watched) -> None:
    for _ in range(120):
        for state in (VBucketState.DEAD, VBucketState.ACTIVE):
            watched.producer.set_state(0, state)
            watched.look()
    assert len(watched.watch.events) == 200
    numbers = [event["id"] for event in watched.watch.events]
    assert numbers == sorted(set(numbers))
