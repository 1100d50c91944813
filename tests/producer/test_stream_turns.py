"""Streams work in bounded steps: nobody waits while one looks for changes that it may send."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from talk import Talk, everything

from examples import examples
from upriver.model import NO_END, Op, Snapshot, StreamEndReason
from upriver.producer.connections.client_info import ClientInfo
from upriver.producer.connections.server_counters import Traffic
from upriver.producer.dcp.active_stream import CHUNK, ActiveStream
from upriver.producer.dcp.dcp_producer import DcpProducer
from upriver.session.collection_filter import FilterKind, StreamFilter
from upriver.session.flow_control import SendWindow
from upriver.session.stream_output import StreamOutput
from upriver.session.stream_request_checks import Acceptance, Policy
from upriver.store import Bucket, BucketSettings, DeleteDocument, SetDocument, Store, WithMeta
from upriver.testing import TemporaryProducer
from upriver.wire import messages as m
from upriver.wire.dialects import Dcp, Dialect, Draft000, Draft001, Draft002
from upriver.wire.framing import Framer
from upriver.wire.protocol_enums import Feature, OpenFlag

VALUE = b"v" * 1000
DOCUMENTS = 4000
LONG_AGO = 1_500_000_000
LEGACY = StreamFilter(kind=FilterKind.LEGACY, collections=frozenset({0}))


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    with Store(tmp_path_factory.mktemp("store")) as store:
        yield store


@pytest.fixture(scope="module")
def large(store: Store) -> Bucket:
    """Vbucket 0 has four megabytes in the default collection and one document in another."""
    bucket = store.create_bucket("large", BucketSettings(vbuckets=4))
    collection = bucket.create_collection(0, "rare")
    assert collection.id < 0x80
    bucket.write_many([SetDocument(0, b"\0k%d" % n, VALUE) for n in range(DOCUMENTS)])
    bucket.write(SetDocument(0, bytes([collection.id]) + b"rare", VALUE))
    bucket.write_many([SetDocument(1, b"\0k%d" % n, VALUE) for n in range(10)])
    return bucket


def rare(bucket: Bucket) -> StreamFilter:
    found = next(x.id for x in bucket.manifest.collections if x.name == "rare")
    return StreamFilter(kind=FilterKind.COLLECTIONS, collections=frozenset({found}))


def stream_of(bucket: Bucket, wanted: StreamFilter, vbucket: int = 0, **more: Any) -> ActiveStream:
    dialect = Dcp(collections=wanted.kind is not FilterKind.LEGACY)
    accepted = Acceptance(
        start=0,
        end=NO_END,
        snapshot=Snapshot(0, 0),
        vbuuid=0,
        filter=wanted,
        takeover=False,
    )
    output = StreamOutput(dialect, vbucket=vbucket, opaque=7, filter=wanted)
    return ActiveStream(
        bucket, accepted, output, vbucket=vbucket, opaque=7, hand_over=_no_takeover, **more
    )


def _no_takeover(stream: ActiveStream) -> None:
    raise AssertionError("these streams take nothing over")


def messages_of(packets: bytes, dialect: Dcp) -> list[Any]:
    return [dialect.decode(packet) for packet in Framer().feed(packets)]


def test_a_step_looks_at_a_bounded_number_of_bytes(large: Bucket) -> None:
    stream, sent, steps = stream_of(large, rare(large)), b"", 0
    while True:
        before = stream.bytes_scanned
        taken = stream.take(SendWindow())
        assert stream.bytes_scanned - before <= CHUNK + 2 * len(VALUE)
        sent += taken
        steps += 1
        if not taken and not stream.unfinished:
            break
    assert stream.bytes_scanned > DOCUMENTS * len(VALUE)
    assert steps > stream.bytes_scanned // (CHUNK + 2 * len(VALUE))
    marker, *_, created, document = [
        x for x in messages_of(sent, Dcp(collections=True)) if not isinstance(x, m.SeqnoAdvanced)
    ]
    assert isinstance(marker, m.SnapshotMarker)
    assert isinstance(created, m.CollectionCreated)
    assert document.key == b"rare"


class Outlet:
    """A connection that sends nothing."""

    def __init__(self, bucket: Bucket) -> None:
        self._bucket = bucket

    def now(self) -> float:
        return 0.0

    def opened(self, name: str) -> None: ...
    def follow(self, vbucket: int) -> None: ...
    def commit(
        self,
        call: Callable[[], object],
        then: Callable[[], None],
        failed: Callable[[BaseException], None],
    ) -> None: ...
    def close(self, reason: str = "") -> None: ...
    def consume(self, name: str, consumer_name: str) -> None: ...

    def bucket(self) -> Bucket:
        return self._bucket

    def cluster_map(self) -> bytes:
        return b""


def desk_of(bucket: Bucket) -> DcpProducer:
    client = ClientInfo(peer="")
    client.features = frozenset({Feature.COLLECTIONS})
    desk = DcpProducer(
        client,
        Outlet(bucket),
        policy=Policy(),
        max_streams=10,
        idle_timeout=0.0,
        takeover_time=1.0,
        traffic=Traffic(),
    )
    dialect = Dcp(collections=True)
    desk.answer(m.Open(name="test", flags=OpenFlag.PRODUCER), dialect)
    desk.answer(m.Control(key="enable_noop", value="true"), dialect)
    return desk


def test_a_turn_ends_although_nothing_was_found_and_other_streams_have_theirs(
    large: Bucket,
) -> None:
    desk, dialect = desk_of(large), Dcp(collections=True)
    wanted = b'{"collections":["%x"]}' % min(rare(large).collections)
    for vbucket, text in ((0, wanted), (1, b"")):
        request = m.StreamRequest(vbucket=vbucket, start=0, end=NO_END, opaque=vbucket, filter=text)
        assert isinstance(desk.answer(request, dialect)[0], m.StreamAccepted)
    first = b"".join(desk.packets())
    vbuckets = {x.vbucket for x in messages_of(first, dialect) if isinstance(x, m.Mutation)}
    assert vbuckets == {1}  # the other one's turn came before the first had found its document
    scanned = desk.streams[0, None].bytes_scanned
    assert 0 < scanned < DOCUMENTS * len(VALUE) / 2
    turns = 1
    while desk.has_more:
        found = messages_of(b"".join(desk.packets()), dialect)
        turns += 1
        if any(isinstance(x, m.Mutation) for x in found):
            assert found[0].key == b"rare"
    assert turns > 3
    desk.close()


def test_a_stream_keeps_no_more_than_its_window_lets_through(large: Bucket) -> None:
    """Each of a thousand streams of a connection would otherwise keep a whole chunk."""
    stream, window = stream_of(large, LEGACY), SendWindow(1)
    for _ in range(5):
        taken = stream.take(window)
        assert taken
        window.acknowledged(len(taken))
    assert 0 < stream.bytes_scanned < 6 * 2 * len(VALUE)


# ---- readers without collections -------------------------------------------------------------


def markers_and_changes(stream: ActiveStream) -> list[tuple[int | None, list[int]]]:
    """The end of each snapshot and the seqnos that were sent in it."""
    sent = b""
    while (taken := stream.take(SendWindow())) or stream.unfinished:
        sent += taken
    found: list[tuple[int | None, list[int]]] = []
    for message in messages_of(sent, Dcp()):
        if isinstance(message, m.SnapshotMarker):
            found.append((message.end, []))
        else:
            found[-1][1].append(message.seqno)
    return found


def test_the_end_of_a_snapshot_is_known_without_a_look_at_all_changes(large: Bucket) -> None:
    stream = stream_of(large, LEGACY)
    (end, seqnos), *others = markers_and_changes(stream)
    high = large.vbucket_stats(0).high_seqno
    assert (end, len(seqnos), others) == (high - 1, DOCUMENTS, [])
    size = sum(len(chunk.frames) for chunk in large.open_reader(0))
    assert stream.bytes_scanned == size


@pytest.fixture(scope="module")
def small(store: Store) -> Bucket:
    bucket = store.create_bucket("small", BucketSettings(vbuckets=1024))
    bucket.create_collection(0, "other")
    return bucket


_unused = iter(range(1024))

_writes = st.lists(
    st.tuples(st.sampled_from("sd"), st.booleans(), st.integers(0, 3)), min_size=1, max_size=8
)


@settings(
    max_examples=examples(150),
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
@given(rounds=st.lists(_writes, min_size=1, max_size=3), skip_deletions=st.booleans())
def test_snapshots_end_at_the_last_change_that_is_sent(
    small: Bucket, rounds: list[list[tuple[str, bool, int]]], skip_deletions: bool
) -> None:
    vbucket = next(_unused)
    other = next(x.id for x in small.manifest.collections if x.name == "other")
    stream = stream_of(small, LEGACY, vbucket, skip_deletions=skip_deletions)
    for writes in rounds:
        for kind, elsewhere, number in writes:
            key = bytes([other if elsewhere else 0]) + b"k%d" % number
            change = (
                SetDocument(vbucket, key, b"v") if kind == "s" else DeleteDocument(vbucket, key)
            )
            small.write_many([change])  # refused where there is nothing to delete
        for end, seqnos in markers_and_changes(stream):
            assert seqnos
            assert end == seqnos[-1]
    assert stream.position == small.vbucket_stats(vbucket).high_seqno
    stream.abandon()


def test_deletions_that_are_skipped_do_not_end_a_snapshot(small: Bucket) -> None:
    """The store's last seqno is a deletion's, so all changes are looked at, in steps."""
    vbucket = next(_unused)
    small.write_many([SetDocument(vbucket, b"\0k%d" % n, VALUE) for n in range(600)])
    small.write_many([DeleteDocument(vbucket, b"\0k%d" % n) for n in range(300)])
    stream = stream_of(small, LEGACY, vbucket, skip_deletions=True)
    steps = 0
    while not (first := bytes(stream.take(SendWindow()))):
        assert stream.unfinished
        steps += 1
    assert steps >= 300 * len(VALUE) // CHUNK
    marker, *_ = messages_of(first, Dcp())
    seqnos = [x.seqno for x in messages_of(first, Dcp())[1:]]
    while taken := stream.take(SendWindow()):
        seqnos += [x.seqno for x in messages_of(bytes(taken), Dcp())]
    high = small.vbucket_stats(vbucket).high_seqno
    assert (len(seqnos), marker.end) == (300, high - 300)
    stream.abandon()


def test_a_purged_deletion_does_not_end_a_snapshot(store: Store) -> None:
    """The store still knows the seqno of the last change, but nobody gets that change any more."""
    settings = BucketSettings(vbuckets=1, maintenance_interval=0, purge_age=1)
    bucket = store.create_bucket("purged", settings)
    other = bucket.create_collection(0, "other").id
    bucket.write(SetDocument(0, b"\0kept", b"v"))
    bucket.write(WithMeta(0, b"\0gone", Op.DELETION, 1, LONG_AGO * 10**9, time=LONG_AGO))
    bucket.write(SetDocument(0, bytes([other]) + b"behind", b"v"))
    bucket.compact()
    assert bucket.vbucket_stats(0).purge_seqno == bucket.collection_seqnos(0)[0] == 3
    stream = stream_of(bucket, LEGACY)
    assert markers_and_changes(stream) == [(2, [2])]
    stream.abandon()


def test_two_readers_of_one_moment_agree_while_others_write(small: Bucket) -> None:
    vbucket, stop = next(_unused), threading.Event()

    def write() -> None:
        number = 0
        while not stop.is_set():
            number += 1
            small.write(SetDocument(vbucket, b"\0k%d" % (number % 50), b"v"))

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for _ in range(50):
            one, other = small.open_readers(vbucket)
            with one, other:
                assert one.snapshot == other.snapshot
                assert [x.frames for x in one] == [x.frames for x in other]
    finally:
        stop.set()
        writer.join()


# ---- a change that cannot be sent ------------------------------------------------------------


@pytest.mark.parametrize(
    "dialect", [Draft002(), Draft000(), Draft001(), Dcp()], ids=lambda dialect: dialect.name
)
def test_a_stored_value_that_cannot_be_read_ends_its_stream(dialect: Dialect) -> None:
    """And no other one, nor the connection."""
    with TemporaryProducer(vbuckets=2) as producer:
        producer.bucket.write(SetDocument(0, b"\0k", b"no snappy", 0, 0, 2))
        with Talk(producer, dialect) as talk:
            if dialect.opens_connections:
                talk.open()
            request = m.StreamRequest(vbucket=0, start=0, end=NO_END, opaque=0x2D)
            talk.send(request)
            *_, end = talk.read_until(m.StreamEnd)
            # the only error that the drafts name is that the vbucket changed its state
            failed = StreamEndReason.BACKFILL_FAILED if dialect.negotiates else None
            assert (end.opaque, end.reason) == (0x2D, failed or StreamEndReason.STATE_CHANGED)
            talk.send(replace(request, vbucket=1, opaque=0x2E))
            producer.bucket.write(SetDocument(1, b"\0k", b"v"))
            assert talk.read_until(m.Mutation)[-1].opaque == 0x2E
        with everything(producer) as talk:  # others get it as it is
            talk.send(request)
            document = talk.read_until(m.Mutation)[-1]
            assert document.value == b"no snappy"
