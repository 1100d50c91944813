"""A consumer's session wired to the real producer without sockets, under schedules of any kind.

Whatever is written, failed over, purged, cut, forgotten and taken up again, in any order and with
bytes in pieces of any size: what the application was told folds to the producer's documents.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, note, settings
from hypothesis import strategies as st
from storekit import split

from upriver.consumer.checkpoints.position_json import dump_position, load_position
from upriver.consumer.streaming.inbox import Delivery, Inbox
from upriver.model import Op, StreamEndReason
from upriver.session.consumer_events import (
    Event,
    RolledBack,
    Rows,
    StreamFinished,
    StreamOpened,
    StreamRefused,
)
from upriver.session.consumer_session import ConsumerSession
from upriver.session.dcp_open import Opening, open_connection
from upriver.session.stream_position import Position
from upriver.testing import MemoryLink, MemoryProducer
from upriver.wire import canonical
from upriver.wire.dialects import Dcp, Dialect, Draft000, Draft001, Draft002
from upriver.wire.messages import Request

VBUCKETS = 2
KEYS = [b"a", b"b", b"c", b"d"]
#: Small enough that flow control stops the producer again and again.
WINDOW = 400

Row = tuple[int, bytes, bytes | None]


class Application:
    """What a reader does with what it is told, and what it has saved of it."""

    def __init__(self) -> None:
        self.rows: dict[int, list[Row]] = {vb: [] for vb in range(VBUCKETS)}
        self.inbox = Inbox(dict.fromkeys(range(VBUCKETS), Position()))
        self._saved: tuple[dict[int, list[Row]], dict[int, Any]] = ({}, {})
        self.save()

    def save(self) -> None:
        """Positions together with the data, as JSON."""
        positions = {vb: dump_position(p) for vb, p in self.inbox.positions().items()}
        self._saved = {vb: list(rows) for vb, rows in self.rows.items()}, positions

    def restart(self) -> dict[int, Position]:
        """Goes on with what was saved."""
        rows, positions = self._saved
        self.rows = {vb: list(rows[vb]) for vb in rows}
        loaded = {vb: load_saved(p) for vb, p in positions.items()}
        self.inbox = Inbox(loaded)
        return loaded

    def saved(self) -> dict[int, Position]:
        return {vb: load_saved(text) for vb, text in self._saved[1].items()}

    def hear(self, event: Event) -> int:
        """Takes an event; returns the counted bytes that are done with."""
        if isinstance(event, Rows):
            self.inbox.hand_out(Delivery(event))
            for row in event.batch.to_pylist():
                told = self.rows[row["vbucket"]]
                assert not told or told[-1][0] < row["seqno"], "a change came twice or too late"
                gone = row["op"] != Op.MUTATION.value
                told.append((row["seqno"], row["key"], None if gone else row["value"]))
            self.inbox.done()
            return event.counted
        if isinstance(event, RolledBack):
            assert event.from_seqno == max((r[0] for r in self.rows[event.vbucket]), default=0)
            kept = [row for row in self.rows[event.vbucket] if row[0] <= event.to.seqno]
            self.rows[event.vbucket] = kept
            self.inbox.hand_out(Delivery(event))
        elif isinstance(event, StreamOpened):
            self.inbox.hand_out(Delivery(event))
        return 0

    def documents(self, vbucket: int) -> dict[bytes, bytes]:
        newest = {key: value for _, key, value in self.rows[vbucket]}
        return {key: value for key, value in newest.items() if value is not None}


class Wire:
    """A session over a link, made anew whenever it is cut."""

    def __init__(self, producer: MemoryProducer, dialect: Dialect, application: Application):
        self._producer = producer
        self._dialect = dialect
        self._application = application
        self._positions = dict.fromkeys(range(VBUCKETS), Position())
        self._link: MemoryLink | None = None
        self._session = ConsumerSession(dialect)

    def connect(self) -> None:
        if self._link is not None and not self._link.closed:
            return
        self._link = self._producer.connect()
        opening = Opening(name="schedule", window=WINDOW, noop_interval=20)
        talk = open_connection(self._dialect, opening)
        try:
            request = next(talk)
            while True:
                assert isinstance(request, Request)
                self._link.send(self._dialect.encode(request))
                self._producer.settle()
                request = talk.send(self._dialect.decode(self._link.receive()))
        except StopIteration:
            pass
        self._session = ConsumerSession(self._dialect)
        for vbucket, position in self._positions.items():
            self._session.open(vbucket, position)
        self._flush()

    def may_miss_a_purge(self) -> bool:
        """Whether the reader would ask from 0 again, in a draft that cannot say what it has.

        No message of these drafts tells of a deletion that is purged then. What is under way on
        a connection may be the first snapshot.
        """
        if isinstance(self._dialect, Dcp):
            return False
        known = (*self._positions.values(), *self._application.saved().values())
        return self._link is not None or any(map(_in_first_snapshot, known))

    def cut(self) -> None:
        """The connection is lost, with whatever was under way."""
        if self._link is None:
            return
        for vbucket in self._session.vbuckets:
            self._positions[vbucket] = self._session.position(vbucket)
        self._link.cut()
        self._link = None

    def crash(self) -> None:
        """The reader dies and comes back with what it had saved."""
        self.cut()
        self._positions = self._application.restart()

    def receive(self, limit: int | None) -> bool:
        """Some bytes reach the session and what they mean the application; false if none."""
        if self._link is None:
            return False
        data = self._link.receive(limit)
        freed = 0
        for event in self._session.feed(data):
            freed += self._application.hear(event)
            if isinstance(event, StreamFinished):
                assert event.reason in (StreamEndReason.STATE_CHANGED, StreamEndReason.ROLLBACK)
                self._session.open(event.vbucket, event.position)
            assert not isinstance(event, StreamRefused)
        if self._session.broken is not None:
            # the drafts that tell their history apart from their streams
            assert getattr(self._session.broken, "rule", "") == "branch", self._session.broken
            self.cut()
            self.connect()
            return True
        freed += self._session.take_freed()
        if freed and isinstance(self._dialect, Dcp):
            self._session.acknowledge(freed)
        self._flush()
        return bool(data)

    def _flush(self) -> None:
        assert self._link is not None
        self._link.send(self._session.data_to_send())


def load_saved(text: Any) -> Position:
    return load_position(text, "vbucket")


def _in_first_snapshot(position: Position) -> bool:
    return position.seqno > 0 and position.last_boundary == 0


def documents(producer: MemoryProducer, vbucket: int) -> dict[bytes, bytes]:
    found: dict[bytes, bytes] = {}
    with producer.bucket.open_reader(vbucket, 0) as reader:
        for chunk in reader:
            for change in map(canonical.parse, split(chunk.frames)):
                if change.op is Op.MUTATION:
                    found[change.key] = change.value
    return found


vbuckets = st.integers(0, VBUCKETS - 1)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("write"), vbuckets, st.sampled_from(KEYS)),
        st.tuples(st.just("write"), vbuckets, st.sampled_from(KEYS)),
        st.tuples(st.just("delete"), vbuckets, st.sampled_from(KEYS)),
        st.tuples(st.just("fail over"), vbuckets, st.integers(0, 6)),
        st.tuples(st.just("receive"), st.just(0), st.integers(1, 300)),
        st.tuples(st.just("receive"), st.just(0), st.none()),
        st.tuples(st.just("work"), st.just(0), st.integers(1, 8)),
        st.tuples(st.just("connect"), st.just(0), st.none()),
        st.tuples(st.just("cut"), st.just(0), st.none()),
        st.tuples(st.just("save"), st.just(0), st.none()),
        st.tuples(st.just("crash"), st.just(0), st.none()),
        st.tuples(st.just("purge"), st.just(0), st.none()),
    ),
    min_size=5,
    max_size=60,
)


def play(producer: MemoryProducer, dialect: Dialect, schedule: list[tuple[str, int, Any]]) -> None:
    application = Application()
    wire = Wire(producer, dialect, application)
    written = 0
    for action, vbucket, detail in schedule:
        if action == "write":
            written += 1
            producer.write(detail, b"%d" % written, vbucket)
        elif action == "delete":
            if detail in documents(producer, vbucket):
                producer.delete(detail, vbucket)
        elif action == "fail over":
            high = producer.bucket.vbucket_stats(vbucket).high_seqno
            producer.fail_over(vbucket, max(0, high - detail))
        elif action == "receive":
            wire.receive(detail)
        elif action == "work":
            for _ in range(detail):
                producer.step()
        elif action == "connect":
            wire.connect()
        elif action == "cut":
            wire.cut()
        elif action == "save":
            application.save()
        elif action == "crash":
            wire.crash()
        elif action == "purge" and not (wire.may_miss_a_purge()):
            producer.purge()
    wire.connect()
    for _ in range(1000):
        producer.settle()
        if not wire.receive(None):
            break
    else:
        raise AssertionError("it never comes to rest")
    for vbucket in range(VBUCKETS):
        note(f"vbucket {vbucket}: {application.rows[vbucket]}")
        assert application.documents(vbucket) == documents(producer, vbucket)


@pytest.fixture(scope="module")
def producer() -> Iterator[MemoryProducer]:
    with MemoryProducer(vbuckets=VBUCKETS) as started:
        yield started


@pytest.mark.parametrize(
    "dialect", [Dcp(), Draft001(), Draft000(), Draft002()], ids=lambda dialect: dialect.name
)
@given(schedule=steps)
@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_what_was_told_folds_to_what_there_is(
    producer: MemoryProducer, dialect: Dialect, schedule: list[tuple[str, int, Any]]
) -> None:
    producer.reset()
    play(producer, dialect, schedule)
