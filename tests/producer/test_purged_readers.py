"""Readers behind the purge seqno: who must go back, and who has lost nothing and goes on."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from talk import Talk, everything

from upriver.errors import Status
from upriver.model import NO_END, Op, StreamEndReason
from upriver.store import BucketSettings, SetDocument, WithMeta
from upriver.testing import TemporaryProducer
from upriver.wire import kv_messages as kv
from upriver.wire import messages as m
from upriver.wire.protocol_enums import Feature, RequestedState, StreamFlag

LONG_AGO = 1_500_000_000
#: The id of the collection that hardly anybody writes to.
QUIET = 8
OF_QUIET = b'{"collections":["8"]}'
OF_DEFAULT = b'{"collections":["0"]}'


@pytest.fixture
def producer() -> Iterator[TemporaryProducer]:
    """Seqnos: 1 the quiet collection, 2 its only document, 3 and 5 others', 4 purged of theirs."""
    settings = BucketSettings(vbuckets=1, maintenance_interval=0, purge_age=1)
    with TemporaryProducer(bucket_settings=settings) as producer:
        assert producer.bucket.create_collection(0, "quiet").id == QUIET
        producer.bucket.write(SetDocument(0, b"\x08quiet", b"v"))
        producer.bucket.write(SetDocument(0, b"\0first", b"v"))
        purge(producer, "4")
        assert producer.bucket.vbucket_stats(0).purge_seqno == 4
        yield producer


def purge(producer: TemporaryProducer, name: str) -> None:
    """Deletes a document long ago, writes another, and has the deletion purged."""
    gone, key = f"\0gone {name}".encode(), f"\0last {name}".encode()
    producer.bucket.write(WithMeta(0, gone, Op.DELETION, 1, LONG_AGO * 10**9, time=LONG_AGO))
    producer.bucket.write(SetDocument(0, key, b"v"))
    producer.bucket.compact()


def request(
    producer: TemporaryProducer, start: int, chosen: bytes, end: int = NO_END, **more: Any
) -> m.StreamRequest:
    branch = producer.bucket.failover_log(0).newest.vbuuid
    return m.StreamRequest(
        vbucket=0,
        start=start,
        end=end,
        vbuuid=branch,
        snapshot_start=start,
        snapshot_end=start,
        filter=chosen,
        opaque=7,
        **more,
    )


# ---- when a stream is asked for ----------------------------------------------------------


def test_a_reader_of_a_quiet_collection_goes_on(producer: TemporaryProducer) -> None:
    with everything(producer) as talk:
        talk.send(request(producer, 2, OF_QUIET))
        assert isinstance(talk.read(), m.StreamAccepted)
        producer.bucket.write(SetDocument(0, b"\x08quiet", b"w"))
        stream = talk.read_until(lambda x: isinstance(x, m.Mutation | m.StreamEnd))
    assert (stream[-1].key, stream[-1].value, stream[-1].seqno) == (b"quiet", b"w", 6)


@pytest.mark.parametrize("chosen", [b"", OF_DEFAULT, b'{"scope":"0"}'])
def test_readers_of_the_collection_go_back(producer: TemporaryProducer, chosen: bytes) -> None:
    with everything(producer) as talk:
        talk.send(request(producer, 3, chosen))
        assert talk.read() == m.StreamRollback(opaque=7, seqno=0)


def test_a_reader_that_has_not_all_of_its_collection_goes_back(
    producer: TemporaryProducer,
) -> None:
    with everything(producer) as talk:
        talk.send(request(producer, 1, OF_QUIET))
        assert talk.read() == m.StreamRollback(opaque=7, seqno=0)


@pytest.mark.parametrize("known", [3, 4, 5])
def test_a_reader_that_knows_the_purge_seqno_goes_on(
    producer: TemporaryProducer, known: int
) -> None:
    with everything(producer) as talk:
        talk.send(request(producer, 3, b'{"purge_seqno":"%d"}' % known, end=5))
        if known != 4:
            assert talk.read() == m.StreamRollback(opaque=7, seqno=0)
            return
        accepted, *_, last, end = talk.read_until(m.StreamEnd)
    assert isinstance(accepted, m.StreamAccepted)
    assert (last.key, last.seqno) == (b"last 4", 5)
    assert end.reason is StreamEndReason.OK


def test_the_latest_is_that_of_the_filter(producer: TemporaryProducer) -> None:
    purge(producer, "7")
    with everything(producer) as talk:
        talk.send(request(producer, 0, OF_QUIET, flags=StreamFlag.TO_LATEST))
        stream = talk.read_until(m.StreamEnd)
        assert [x.seqno for x in stream if isinstance(x, m.Mutation)] == [2]
        talk.send(request(producer, 2, OF_QUIET, flags=StreamFlag.TO_LATEST))
        accepted, end = talk.read_until(m.StreamEnd)  # nothing is left of it
        assert isinstance(accepted, m.StreamAccepted)
        assert end.reason is StreamEndReason.OK
        talk.send(request(producer, 6, OF_QUIET, flags=StreamFlag.TO_LATEST))
        assert talk.read().status is Status.RANGE


# ---- while a stream flows ----------------------------------------------------------------


def held_up(producer: TemporaryProducer, talk: Talk, chosen: bytes) -> None:
    """Has a stream read up to seqno 5, and the vbucket purged up to 6 before it is asked for."""
    talk.control("connection_buffer_size", "1")
    talk.send(request(producer, 0, chosen))
    talk.read_until(m.SnapshotMarker)  # which fills the window
    purge(producer, "6")
    assert producer.bucket.vbucket_stats(0).purge_seqno == 6
    talk.send(m.Control(key="connection_buffer_size", value="0"))


def test_a_slow_reader_of_a_quiet_collection_goes_on(producer: TemporaryProducer) -> None:
    with everything(producer) as talk:
        held_up(producer, talk, OF_QUIET)
        stream = talk.read_until(
            lambda x: (
                isinstance(x, m.StreamEnd) or (isinstance(x, m.SeqnoAdvanced) and x.seqno == 7)
            )
        )
    assert [x.seqno for x in stream if isinstance(x, m.Mutation)] == [2]
    assert isinstance(stream[-1], m.SeqnoAdvanced)


@pytest.mark.parametrize("chosen", [b"", OF_DEFAULT, b'{"scope":"0"}'])
def test_a_slow_reader_that_lost_something_is_told(
    producer: TemporaryProducer, chosen: bytes
) -> None:
    with everything(producer) as talk:
        held_up(producer, talk, chosen)
        *stream, end = talk.read_until(m.StreamEnd)
    assert [x.seqno for x in stream if isinstance(x, m.Mutation)][-1] == 5
    assert end.reason is StreamEndReason.STATE_CHANGED


# ---- what the vbucket says ---------------------------------------------------------------


def test_seqnos_are_told_by_collection(producer: TemporaryProducer) -> None:
    producer.bucket.write(SetDocument(0, b"\x08quiet", b"w"))

    def told(talk: Talk, collection: int | None = None) -> object:
        state = None if collection is None else RequestedState.ACTIVE
        return talk.ask(kv.GetAllSeqnos(state=state, collection=collection)).seqnos

    with Talk(producer) as talk:
        assert told(talk) == ((0, 5),)  # who knows of no collections has the default one
        talk.hello(Feature.COLLECTIONS)
        assert (told(talk), told(talk, 0), told(talk, QUIET)) == (((0, 6),), ((0, 5),), ((0, 6),))
        producer.bucket.drop_collection(0)
        assert talk.ask(kv.GetAllSeqnos()).seqnos == ((0, 7),)
        gone = kv.GetAllSeqnos(state=RequestedState.ACTIVE, collection=0)
        assert talk.ask(gone).status is Status.UNKNOWN_COLLECTION
        talk.hello()
        assert talk.ask(kv.GetAllSeqnos()).status is Status.UNKNOWN_COLLECTION
