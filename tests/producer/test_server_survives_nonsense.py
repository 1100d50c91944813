"""Mutated packets of every dialect are thrown at a live server, which must not mind.

It is one server for all of them: whatever one burst leaves behind, the next one meets.
"""

from __future__ import annotations

import gc
import logging
import socket
import tracemalloc
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from serverkit import users_file
from strategies import DIALECTS, FORMS, U8, U32, message_of
from talk import PATIENCE, Talk
from waiting import until

from examples import examples
from upriver.errors import Status
from upriver.model import VBucketState
from upriver.producer.bootstrap.users import Role
from upriver.producer.connections.connection import Connection
from upriver.producer.dcp.active_stream import ActiveStream
from upriver.producer.server_settings import ServerSettings
from upriver.testing import TemporaryProducer
from upriver.wire import kv_messages as kv
from upriver.wire import messages as m
from upriver.wire.dialects import Dcp, Dialect, Draft000, Draft001, Draft002
from upriver.wire.protocol_enums import Command, Feature, OpenFlag

VBUCKETS = 2
#: Connections and streams that live on as the last one that a thread or the loop worked on.
LAST = 6
BURSTS = 400
#: How many are thrown again and again to see whether memory grows.
REPEATED = 100
#: Answered only when a seqno comes that nobody will write, so it would hold a burst up.
WAITS = {Command.SEQNO_PERSISTENCE}
#: The opaque of the question behind a burst. Bursts hardly ever have it.
MARK = 0x5EA1ED00
MAGIC_AND_LENGTH = {0, 8, 9, 10, 11}
VBUCKET = slice(6, 8)


# ---- what is thrown ----------------------------------------------------------------------


@dataclass(frozen=True)
class Burst:
    """Packets for one connection, and what is said on it before them."""

    dialect: Dialect
    greeting: tuple[m.Message, ...]
    packets: tuple[bytes, ...]
    #: Whether every packet still ends where it says.
    framed: bool

    def thrown(self) -> bytes:
        greeting = [self.dialect.encode(message) for message in self.greeting]
        mark = self.dialect.encode(m.FailoverLogRequest(vbucket=0, opaque=MARK))
        return b"".join([*greeting, *self.packets, mark])


HELLO = kv.Hello(agent="nonsense", features=(Feature.COLLECTIONS, Feature.XATTR, Feature.JSON))
OPEN = m.Open(name="nonsense", flags=OpenFlag.PRODUCER | OpenFlag.INCLUDE_XATTRS)
NOOP = m.Control(key="enable_noop", value="true")
STREAM = m.StreamRequest(vbucket=0, start=0, end=2**64 - 1)
GREETINGS: dict[str, list[tuple[m.Request, ...]]] = {
    "002": [(), (STREAM,)],
    "000": [(), (STREAM,)],
    "001": [(), (OPEN,), (OPEN, STREAM)],
    "dcp": [(), (HELLO,), (OPEN,), (HELLO, OPEN, NOOP, STREAM)],
}
FORMS_OF = {
    dialect: [layout for other, layout in FORMS if other is dialect and layout.command not in WAITS]
    for dialect in DIALECTS
}


@st.composite
def packets(draw: st.DrawFn, dialect: Dialect, framed: bool) -> bytes:
    """A packet of a dialect with some bytes changed; with its own length if it is ``framed``."""
    layout = draw(st.sampled_from(FORMS_OF[dialect]))
    packet = bytearray(dialect.encode(draw(message_of(layout, dialect))))
    if draw(st.booleans()) and not isinstance(dialect, Draft002):
        packet[VBUCKET] = draw(st.integers(0, VBUCKETS)).to_bytes(2)  # one that may be there
    for place, byte in draw(st.lists(st.tuples(U32, U8), max_size=3)):
        at = place % len(packet)
        if not framed or at not in MAGIC_AND_LENGTH:
            packet[at] = byte
    if not framed:
        del packet[draw(st.integers(0, len(packet))) :]
    return bytes(packet)


@st.composite
def bursts(draw: st.DrawFn) -> Burst:
    dialect = draw(st.sampled_from(list(FORMS_OF)))
    framed = draw(st.booleans())
    return Burst(
        dialect=dialect,
        greeting=draw(st.sampled_from(GREETINGS[dialect.name])),
        packets=tuple(draw(st.lists(packets(dialect, framed), min_size=1, max_size=12))),
        framed=framed,
    )


def seeded(count: int) -> settings:
    """The same examples in every run, so that a failure can be looked at again."""
    return settings(
        max_examples=examples(count),
        deadline=None,
        derandomize=True,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )


@pytest.fixture(scope="module")
def repeated() -> list[Burst]:
    """Some bursts to throw again and again."""
    made: list[Burst] = []

    @seeded(REPEATED)
    @given(burst=bursts())
    def make(burst: Burst) -> None:
        made.append(burst)

    make()
    return made


# ---- at whom -----------------------------------------------------------------------------


class Complaints(logging.Handler):
    """Everything that anybody logs as an error."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.records: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(self.format(record))


@pytest.fixture(scope="module")
def complaints() -> Iterator[Complaints]:
    complaints = Complaints()
    logging.getLogger().addHandler(complaints)
    yield complaints
    logging.getLogger().removeHandler(complaints)


@pytest.fixture(scope="module")
def producer() -> Iterator[TemporaryProducer]:
    with TemporaryProducer(vbuckets=VBUCKETS) as producer:
        yield producer


def throw(producer: TemporaryProducer, burst: Burst) -> None:
    """Sends a burst and reads until it is worked through, or the server has had enough."""
    address = (producer.host, producer.port)
    with socket.create_connection(address, timeout=PATIENCE) as connection:
        try:
            connection.sendall(burst.thrown())
            if not burst.framed:  # the mark may be taken for the rest of a packet
                connection.shutdown(socket.SHUT_WR)
            received = b""
            while MARK.to_bytes(4) not in received:
                chunk = connection.recv(1 << 16)
                if not chunk:
                    break
                received = received[-3:] + chunk
        except ConnectionError:
            pass  # closed while there was something to send or to read


def is_good(message: m.Message) -> bool:
    return isinstance(message, m.Mutation) and message.key == b"good"


def answers_a_good_client(producer: TemporaryProducer) -> None:
    for vbucket in range(VBUCKETS):
        producer.set_state(vbucket, VBucketState.ACTIVE)  # a burst may have changed it, as asked
    with Talk(producer) as talk:
        assert talk.ask(kv.Set(key=b"good", value=b"client")).status is Status.SUCCESS
        assert talk.ask(kv.Get(key=b"good")).value == b"client"
        talk.open("good")
        assert isinstance(talk.ask(STREAM), m.StreamAccepted)
        assert is_good(talk.read_until(is_good)[-1])


@pytest.mark.parametrize(
    "dialect", [Draft002(), Draft000(), Draft001(), Dcp()], ids=lambda dialect: dialect.name
)
def test_what_is_meant_for_consumers_ends_the_connection(
    producer: TemporaryProducer, dialect: Dialect
) -> None:
    """As on real servers: the peer has taken the wrong role."""
    for message in (
        m.Mutation(vbucket=0, key=b"k", seqno=1, rev=1),
        m.Deletion(vbucket=0, key=b"k", seqno=1, rev=1),
        m.StreamEnd(vbucket=0),
    ):
        with Talk(producer, dialect) as talk:
            if OPEN in GREETINGS[dialect.name][-1]:
                talk.open("confused")
            talk.ask(m.StreamRequest(vbucket=99, start=0, end=1))  # now the dialect is plain
            with pytest.raises(ConnectionError):
                talk.ask(message)
    answers_a_good_client(producer)


@seeded(BURSTS)
@given(burst=bursts())
def test_nonsense_harms_nobody_else(
    producer: TemporaryProducer, complaints: Complaints, burst: Burst
) -> None:
    throw(producer, burst)
    answers_a_good_client(producer)
    assert complaints.records == []


def test_nonsense_of_strangers_changes_nothing(
    tmp_path: Path, complaints: Complaints, repeated: list[Burst]
) -> None:
    users = users_file(tmp_path, {"somebody": (Role.ADMINISTER,)})
    settings = ServerSettings(users=users, plain_without_tls=True, authentication_delay=0)
    with TemporaryProducer(vbuckets=VBUCKETS, settings=settings) as producer:
        for burst in repeated:
            throw(producer, burst)
        for vbucket in range(VBUCKETS):
            stats = producer.bucket.vbucket_stats(vbucket)
            assert (stats.high_seqno, stats.state) == (0, VBucketState.ACTIVE)
    assert complaints.records == []


def left_of(producer: TemporaryProducer) -> list[object]:
    """Connections and streams of this server that something still holds."""
    gc.collect()
    server, bucket = producer.producer.server, producer.bucket
    return [
        x
        for x in gc.get_objects()
        if (type(x) is Connection and x._server is server)
        or (type(x) is ActiveStream and x._bucket is bucket)
    ]


def test_nothing_is_left_behind(producer: TemporaryProducer, repeated: list[Burst]) -> None:
    """The same bursts again, round after round: the server keeps nothing of them."""
    sizes = []
    tracemalloc.start()
    try:
        for _ in range(4):
            for burst in repeated:
                throw(producer, burst)
            until(lambda: not producer.producer.server.connections)
            until(lambda: len(left_of(producer)) <= LAST)  # a refused password waits a moment
            assert producer.bucket.stats().readers == 0
            sizes.append(tracemalloc.get_traced_memory()[0])
    finally:
        tracemalloc.stop()
    # the first round fills caches; a connection that stayed would be more than this for each
    assert sizes[-1] - sizes[1] < REPEATED * 1024
