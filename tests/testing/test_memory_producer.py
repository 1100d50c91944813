"""The producer without sockets: real answers, in an order that only the test decides."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from serverkit import SECRET, users_file

from examples import examples
from upriver.errors import Status, StoreRefusal
from upriver.model import NO_END, Op, StreamEndReason, VBucketState
from upriver.producer.bootstrap.users import Role
from upriver.producer.server_settings import ServerSettings
from upriver.testing import MemoryLink, MemoryProducer
from upriver.wire import canonical
from upriver.wire import kv_messages as kv
from upriver.wire import messages as m
from upriver.wire.dialects import Dcp
from upriver.wire.framing import Framer
from upriver.wire.protocol_enums import OpenFlag


class Client:
    """Messages over a link."""

    def __init__(self, producer: MemoryProducer) -> None:
        self.producer = producer
        self.link: MemoryLink = producer.connect()
        self.dialect = Dcp()
        self._framer = Framer()
        self._opened = False

    def send(self, *messages: m.Message) -> None:
        self.link.send(b"".join(map(self.dialect.encode, messages)))

    def read(self, limit: int | None = None) -> list[Any]:
        """What has come, without anybody working."""
        return [
            self.dialect.decode(packet) for packet in self._framer.feed(self.link.receive(limit))
        ]

    def ask(self, *messages: m.Message) -> list[Any]:
        self.send(*messages)
        self.producer.settle()
        return self.read()

    def stream(self, vbucket: int, start: int = 0, vbuuid: int = 0, opaque: int = 1) -> list[Any]:
        if not self._opened:
            self._opened = True
            (opened,) = self.ask(m.Open(name=f"{id(self)}", flags=OpenFlag.PRODUCER))
            assert opened.status is Status.SUCCESS
        request = m.StreamRequest(
            vbucket=vbucket,
            start=start,
            end=NO_END,
            vbuuid=vbuuid,
            snapshot_start=start,
            snapshot_end=start,
            opaque=opaque,
        )
        return self.ask(request)


@pytest.fixture(scope="module")
def started() -> Iterator[MemoryProducer]:
    with MemoryProducer(vbuckets=2) as producer:
        yield producer


@pytest.fixture
def producer(started: MemoryProducer) -> MemoryProducer:
    started.reset()
    return started


def changes(messages: list[Any]) -> list[tuple[int, bytes]]:
    return [(one.seqno, one.key) for one in messages if isinstance(one, m.Mutation | m.Deletion)]


def test_requests_are_answered(producer: MemoryProducer) -> None:
    client = Client(producer)
    (written,) = client.ask(kv.Set(key=b"k", value=b"v", opaque=1))
    assert (written.status, written.opaque) == (Status.SUCCESS, 1)
    (found,) = client.ask(kv.Get(key=b"k", opaque=2))
    assert (found.value, found.cas) == (b"v", written.cas)


def test_nothing_happens_by_itself(producer: MemoryProducer) -> None:
    client = Client(producer)
    assert len(client.stream(0)) == 1
    producer.write(b"k", b"v", 0)
    assert client.read() == []
    while not (heard := client.read()):
        assert producer.step()
    assert changes(heard) == [(1, b"k")]
    producer.settle()
    assert not producer.step()
    assert client.read() == []


def test_pieces_of_any_size_make_the_same_messages(producer: MemoryProducer) -> None:
    client = Client(producer)
    for byte in client.dialect.encode(kv.Set(key=b"k", value=b"v", opaque=3)):
        client.link.send(bytes([byte]))
    producer.settle()
    heard: list[Any] = []
    while not heard:
        heard = client.read(limit=1)
    assert (heard[0].opaque, heard[0].status) == (3, Status.SUCCESS)


def test_streams_follow_what_clients_and_tests_write(producer: MemoryProducer) -> None:
    reader, writer = Client(producer), Client(producer)
    producer.write(b"a", b"1", 1)
    assert changes(reader.stream(1)) == [(1, b"a")]
    writer.ask(kv.Set(key=b"b", value=b"2", vbucket=1))
    producer.delete(b"a", 1)
    producer.settle()
    assert changes(reader.read()) == [(2, b"b"), (3, b"a")]


def test_a_failover_ends_streams_and_sends_readers_back(producer: MemoryProducer) -> None:
    for key in (b"a", b"b", b"c"):
        producer.write(key, b"", 0)
    client = Client(producer)
    accepted = client.stream(0)[0]
    assert producer.fail_over(0, 1) == 1
    producer.settle()
    (end,) = client.read()
    assert end.reason is StreamEndReason.STATE_CHANGED
    (answer,) = client.stream(0, 3, accepted.failover_log[0].vbuuid)
    assert isinstance(answer, m.StreamRollback)
    assert answer.seqno == 1


def test_a_purge_sends_readers_back(producer: MemoryProducer) -> None:
    vbuuid = producer.bucket.failover_log(0).newest.vbuuid
    for change in (producer.write, producer.write):
        change(b"a", b"", 0)
    producer.delete(b"a", 0)
    producer.write(b"b", b"", 0)
    producer.purge()
    (answer,) = Client(producer).stream(0, 2, vbuuid)
    assert isinstance(answer, m.StreamRollback)
    assert answer.seqno == 0


def test_a_cut_is_noticed_by_both_sides(producer: MemoryProducer) -> None:
    client, other = Client(producer), Client(producer)
    client.stream(0)
    producer.write(b"a", b"1", 0)
    producer.settle()
    client.link.cut()
    assert client.link.closed
    assert client.link.receive() == b""
    with pytest.raises(ConnectionResetError):
        client.link.send(b"x")
    client.link.cut()  # again, which changes nothing
    (statistics, *_) = (
        one for one in other.ask(kv.Stat(opaque=1)) if one.key == "curr_connections"
    )
    assert statistics.value == b"1"


def test_a_link_that_the_server_closes_is_closed_when_it_is_read(
    producer: MemoryProducer,
) -> None:
    client = Client(producer)
    client.send(kv.Noop(opaque=1))
    client.send(kv.Quit(opaque=2))
    producer.settle()
    assert not client.link.closed
    with pytest.raises(ConnectionResetError):
        client.link.send(b"x")
    assert [one.opaque for one in client.read()] == [1, 2]
    assert client.link.closed
    nonsense = producer.connect()  # type: ignore[unreachable]
    nonsense.send(b"\xff" * 24)
    producer.settle()
    assert nonsense.closed


def test_what_nobody_receives_holds_the_server_up() -> None:
    with MemoryProducer(vbuckets=1, settings=ServerSettings(connection_memory=10_000)) as producer:
        client = Client(producer)
        client.stream(0)
        for number in range(2000):
            producer.write(b"k%d" % number, bytes(1000), 0)
        producer.settle()
        assert 10_000 < client.link.unread < 1_000_000
        seen: list[tuple[int, bytes]] = []
        while len(seen) < 2000:
            assert client.link.unread
            seen += changes(client.read(limit=5000))
            producer.settle()
        assert [seqno for seqno, _ in seen] == list(range(1, 2001))


def test_requests_wait_while_their_answers_are_not_received() -> None:
    with MemoryProducer(
        vbuckets=1, settings=ServerSettings(connection_memory=1000, max_backlog=1000)
    ) as producer:
        client = Client(producer)
        producer.write(b"k", bytes(2000), 0)
        for number in range(50):
            client.send(kv.Get(key=b"k", opaque=number))
        producer.settle()
        assert client.link.unread < 10_000
        heard: list[Any] = []
        while len(heard) < 50:
            assert client.link.unread
            heard += client.read(limit=1500)
            producer.settle()
        assert [one.opaque for one in heard] == list(range(50))


def test_time_passes_when_it_is_told_to() -> None:
    with MemoryProducer(vbuckets=1, settings=ServerSettings(idle_timeout=50)) as producer:
        client = Client(producer)
        client.stream(0)
        client.ask(m.Control(key="enable_noop", value="true", opaque=9))
        producer.advance(19)
        assert client.read() == []
        producer.advance(2)
        assert [type(one) for one in client.read()] == [m.StreamNoop]
        producer.advance(30)
        assert client.link.closed  # it never answered


def test_documents_expire_when_time_passes(producer: MemoryProducer) -> None:
    client = Client(producer)
    client.ask(kv.Set(key=b"k", value=b"v", expiry=100, opaque=1))
    producer.advance(99)
    assert client.ask(kv.Get(key=b"k"))[0].status is Status.SUCCESS
    producer.advance(2)
    assert client.ask(kv.Get(key=b"k"))[0].status is Status.NOT_FOUND


def test_slow_answers_come_with_the_others(tmp_path: Path) -> None:
    """Passwords are checked in a thread by servers with sockets."""
    users = users_file(tmp_path, {"me": (Role.READ_DATA, Role.WRITE_DATA)})
    allowed = ServerSettings(users=users)
    with MemoryProducer(vbuckets=1, settings=allowed) as producer:
        client = Client(producer)
        secret = f"\0me\0{SECRET}".encode()
        (answer,) = client.ask(kv.SaslAuth(mechanism="PLAIN", payload=secret, opaque=4))
        assert (answer.status, answer.opaque) == (Status.SUCCESS, 4)


def test_a_reset_leaves_nothing_behind(producer: MemoryProducer) -> None:
    client = Client(producer)
    client.stream(0)
    producer.write(b"k", b"v", 0)
    producer.set_state(1, VBucketState.REPLICA)
    before = producer.bucket.failover_log(0)
    producer.reset()
    assert client.link.closed
    stats = [producer.bucket.vbucket_stats(vbucket) for vbucket in range(2)]
    assert [(one.high_seqno, one.state) for one in stats] == [(0, VBucketState.ACTIVE)] * 2
    assert producer.bucket.failover_log(0) != before
    assert len(Client(producer).stream(0)) == 1


def test_one_that_does_not_run_says_so() -> None:
    with pytest.raises(RuntimeError, match="not running"):
        MemoryProducer().write(b"k", b"v")
    with pytest.raises(ConnectionRefusedError):
        MemoryProducer().connect()


# ---- schedules ---------------------------------------------------------------------------

keys = st.sampled_from([b"a", b"b", b"c", b"d"])
vbuckets = st.integers(0, 1)
steps = st.one_of(
    st.tuples(st.just("write"), keys, vbuckets),
    st.tuples(st.just("delete"), keys, vbuckets),
    st.tuples(st.just("fail_over"), st.integers(1, 5), vbuckets),
    st.tuples(st.just("purge")),
    st.tuples(st.just("set"), keys, vbuckets),
    st.tuples(st.just("step")),
    st.tuples(st.just("settle")),
    st.tuples(st.just("receive"), st.integers(1, 200)),
    st.tuples(st.just("cut")),
)


class Reader:
    """Keeps the documents of two vbuckets, whatever happens to its connection and its stream."""

    def __init__(self, producer: MemoryProducer) -> None:
        self.producer = producer
        self.documents: dict[int, dict[bytes, int]] = {0: {}, 1: {}}
        #: vbuuid, seqno, snapshot start and end, of each vbucket.
        self.positions: dict[int, tuple[int, ...]] = {0: (0, 0, 0, 0), 1: (0, 0, 0, 0)}
        self.heard: list[Any] = []
        self.connect()

    def connect(self) -> None:
        self.client = Client(self.producer)
        self.announced: dict[int, tuple[int, int]] = {}
        self.client.send(m.Open(name="reader", flags=OpenFlag.PRODUCER, opaque=99))
        for vbucket in (0, 1):
            self.request(vbucket)

    def request(self, vbucket: int) -> None:
        vbuuid, seqno, start, end = self.positions[vbucket]
        self.client.send(
            m.StreamRequest(
                vbucket=vbucket,
                start=seqno,
                end=NO_END,
                vbuuid=vbuuid,
                snapshot_start=start,
                snapshot_end=end,
                opaque=vbucket,
            )
        )

    def receive(self, limit: int | None = None) -> None:
        for message in self.client.read(limit):
            self.take(message)

    def take(self, message: Any) -> None:
        vbucket = message.opaque
        match message:
            case m.StreamAccepted():
                _, *rest = self.positions[vbucket]
                self.positions[vbucket] = (message.failover_log[0].vbuuid, *rest)
            case m.StreamRollback():  # everything anew is always right
                self.documents[vbucket].clear()
                self.positions[vbucket] = (0, 0, 0, 0)
                self.request(vbucket)
            case m.SnapshotMarker():
                assert message.start is not None
                assert message.end is not None
                self.announced[vbucket] = (message.start, message.end)
            case m.Mutation() | m.Deletion():
                vbuuid, *_ = self.positions[vbucket]
                self.positions[vbucket] = (vbuuid, message.seqno, *self.announced[vbucket])
                if isinstance(message, m.Mutation):
                    self.documents[vbucket][message.key] = message.cas
                else:
                    self.documents[vbucket].pop(message.key, None)
            case m.StreamEnd():
                self.request(vbucket)
        self.heard.append((vbucket, type(message), getattr(message, "seqno", 0)))


def play(producer: MemoryProducer, schedule: list[tuple[Any, ...]]) -> Reader:
    """Makes some steps, then lets the reader get everything."""
    producer.reset()
    writer, reader = Client(producer), Reader(producer)
    for name, *arguments in schedule:
        match name, arguments:
            case "write", (key, vbucket):
                producer.write(key, b"v", vbucket)
            case "set", (key, vbucket):
                writer.send(kv.Set(key=key, value=b"w", vbucket=vbucket))
            case "delete", (key, vbucket):
                with suppress(StoreRefusal):
                    producer.delete(key, vbucket)
            case "fail_over", (back, vbucket):
                stats = producer.bucket.vbucket_stats(vbucket)
                seqno = max(stats.high_seqno - back, 0)
                # no copy ends with a purged tombstone: the last change of a vbucket stays
                if seqno != stats.purge_seqno:
                    producer.fail_over(vbucket, seqno)
            case "purge", _:
                producer.purge()
            case "step", _:
                producer.step()
            case "settle", _:
                producer.settle()
            case "receive", (limit,):
                reader.receive(limit)
            case "cut", _:
                reader.client.link.cut()
                reader.connect()
    producer.settle()
    rounds = 0
    while reader.client.link.unread:
        reader.receive()
        producer.settle()
        rounds += 1
        assert rounds < 50, "it never comes to an end"
    return reader


def stored(producer: MemoryProducer, vbucket: int) -> dict[bytes, int]:
    with producer.bucket.open_reader(vbucket) as backfill:
        frames = b"".join(chunk.frames for chunk in backfill)
    parsed = map(canonical.parse, Framer().feed(frames))
    return {one.key: one.cas for one in parsed if one.op is Op.MUTATION}


@given(schedule=st.lists(steps, min_size=20, max_size=60))
@settings(max_examples=examples(100), deadline=None)
def test_a_reader_has_the_documents_after_any_schedule(
    started: MemoryProducer, schedule: list[tuple[Any, ...]]
) -> None:
    reader = play(started, schedule)
    for vbucket in (0, 1):
        assert reader.documents[vbucket] == stored(started, vbucket)


@given(schedule=st.lists(steps, min_size=20, max_size=60))
@settings(max_examples=examples(30), deadline=None)
def test_the_same_schedule_has_the_same_outcome(
    started: MemoryProducer, schedule: list[tuple[Any, ...]]
) -> None:
    assert play(started, schedule).heard == play(started, schedule).heard
