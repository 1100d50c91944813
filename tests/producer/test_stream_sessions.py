"""The session of document 003 on a real socket, for every draft that has its steps."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
from talk import Talk, everything

from upriver.errors import Status, StoreFull
from upriver.model import NO_END, StreamEndReason, VBucketState
from upriver.producer.server_settings import PeerRelease, ServerSettings
from upriver.session.stream_request_checks import Policy
from upriver.store import DeleteDocument, SetDocument
from upriver.testing import TemporaryProducer
from upriver.wire import kv_messages as kv
from upriver.wire import messages as m
from upriver.wire.dialects import Dcp, Dialect, Draft000, Draft001, Draft002
from upriver.wire.frameinfo import StreamId
from upriver.wire.protocol_enums import Command, Feature, MarkerFlag, OpenFlag, OsoFlag, StreamFlag

DRAFTS: list[Dialect] = [Draft002(), Draft000(), Draft001(), Dcp()]
WITH_OPEN: list[Dialect] = [Draft001(), Dcp()]
DATA = (m.Mutation, m.Deletion, m.Expiration)


def by_name(dialect: Dialect) -> str:
    return dialect.name


@pytest.fixture
def producer() -> Iterator[TemporaryProducer]:
    """Vbucket 1 has k0 to k4 and then loses k0: seqnos 2 to 6."""
    with TemporaryProducer(vbuckets=4) as producer:
        producer.bucket.write_many([SetDocument(1, b"\0k%d" % n, b"v%d" % n) for n in range(5)])
        producer.bucket.write(DeleteDocument(1, b"\0k0"))
        yield producer


def opened(producer: TemporaryProducer, dialect: Dialect, name: str = "reader") -> Talk:
    talk = Talk(producer, dialect)
    if dialect in WITH_OPEN:
        assert talk.open(name).status is Status.SUCCESS
    return talk


def vbuuid(producer: TemporaryProducer, vbucket: int = 1) -> int:
    return producer.bucket.failover_log(vbucket).newest.vbuuid


def request(start: int = 0, end: int = NO_END, **more: object) -> m.StreamRequest:
    return m.StreamRequest(vbucket=1, start=start, end=end, opaque=45, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize("dialect", DRAFTS, ids=by_name)
def test_everything_from_nothing(producer: TemporaryProducer, dialect: Dialect) -> None:
    with opened(producer, dialect) as talk:
        talk.send(request(end=6))
        accepted, *stream = talk.read_until(m.StreamEnd)
    log = producer.bucket.failover_log(1).entries
    sends_log = dialect in WITH_OPEN
    assert accepted == m.StreamAccepted(opaque=45, failover_log=log if sends_log else ())
    edges = dialect not in WITH_OPEN
    kinds = [m.Mutation] * 4 + [m.Deletion]
    around = [m.StreamStart, m.SnapshotStart, *kinds, m.SnapshotEnd, m.StreamEnd]
    assert [type(x) for x in stream] == (
        around if edges else [m.SnapshotMarker, *kinds, m.StreamEnd]
    )
    data = [x for x in stream if isinstance(x, DATA)]
    assert [x.seqno for x in data] == [2, 3, 4, 5, 6]
    assert [x.key for x in data] == [b"k1", b"k2", b"k3", b"k4", b"k0"]
    assert all(x.opaque == 45 for x in stream)
    assert stream[-1].reason is StreamEndReason.OK


@pytest.mark.parametrize("dialect", DRAFTS, ids=by_name)
def test_resuming_where_it_stopped(producer: TemporaryProducer, dialect: Dialect) -> None:
    with opened(producer, dialect) as talk:
        talk.send(request(start=4, end=6, vbuuid=vbuuid(producer)))
        stream = talk.read_until(m.StreamEnd)
    assert [x.seqno for x in stream if isinstance(x, DATA)] == [5, 6]


@pytest.mark.parametrize("dialect", DRAFTS, ids=by_name)
def test_the_tail_follows_the_backfill(producer: TemporaryProducer, dialect: Dialect) -> None:
    with opened(producer, dialect) as talk:
        talk.send(request())
        talk.read_until(m.Deletion)
        for number in range(7, 10):
            producer.bucket.write(SetDocument(1, b"\0k%d" % number, b"live"))
            *around, change = talk.read_until(m.Mutation)
            assert (change.seqno, change.value) == (number, b"live")
            assert any(isinstance(x, m.SnapshotMarker | m.SnapshotStart) for x in around)


@pytest.mark.parametrize("dialect", DRAFTS, ids=by_name)
def test_a_reader_of_a_lost_branch_rolls_back_and_tries_again(
    producer: TemporaryProducer, dialect: Dialect
) -> None:
    old = vbuuid(producer)
    producer.fail_over(1, 4)
    producer.bucket.write(SetDocument(1, b"\0new", b"branch"))
    with opened(producer, dialect) as talk:
        talk.send(request(start=6, vbuuid=old))
        assert talk.read() == m.StreamRollback(opaque=45, seqno=4)
        talk.send(request(start=4, end=5, vbuuid=old))
        stream = talk.read_until(m.StreamEnd)
    assert [(x.seqno, x.key) for x in stream if isinstance(x, DATA)] == [(5, b"new")]


@pytest.mark.parametrize("dialect", DRAFTS, ids=by_name)
def test_an_unknown_branch_goes_back_to_the_beginning(
    producer: TemporaryProducer, dialect: Dialect
) -> None:
    with opened(producer, dialect) as talk:
        talk.send(request(start=4, vbuuid=12345))
        assert talk.read() == m.StreamRollback(opaque=45, seqno=0)


@pytest.mark.parametrize("dialect", DRAFTS, ids=by_name)
def test_a_vbucket_that_is_not_here(producer: TemporaryProducer, dialect: Dialect) -> None:
    with opened(producer, dialect) as talk:
        talk.send(replace(request(), vbucket=99))
        assert talk.read().status is Status.NOT_MY_VBUCKET


@pytest.mark.parametrize("dialect", DRAFTS, ids=by_name)
def test_a_range_that_makes_no_sense(producer: TemporaryProducer, dialect: Dialect) -> None:
    with opened(producer, dialect) as talk:
        talk.send(request(start=5, end=3, vbuuid=vbuuid(producer)))
        answer = talk.read()
    if dialect.name == "002":
        assert isinstance(answer, m.RequestError)
        assert answer.text.startswith("RANGE")
    else:
        assert answer.status is Status.RANGE


@pytest.mark.parametrize("dialect", DRAFTS, ids=by_name)
def test_the_failover_log(producer: TemporaryProducer, dialect: Dialect) -> None:
    producer.fail_over(1, 4)
    with opened(producer, dialect) as talk:
        talk.send(m.FailoverLogRequest(vbucket=1, opaque=3))
        answer = talk.read()
    assert answer.failover_log == producer.bucket.failover_log(1).entries
    assert [entry.seqno for entry in answer.failover_log] == [4, 0]


@pytest.mark.parametrize("dialect", DRAFTS, ids=by_name)
def test_a_state_change_ends_the_stream(producer: TemporaryProducer, dialect: Dialect) -> None:
    with opened(producer, dialect) as talk:
        talk.send(request())
        talk.read_until(m.Deletion)
        producer.set_state(1, VBucketState.DEAD)
        assert talk.read_until(m.StreamEnd)[-1].reason is StreamEndReason.STATE_CHANGED
        talk.send(request())
        assert talk.read().status is Status.NOT_MY_VBUCKET


@pytest.mark.parametrize("dialect", WITH_OPEN, ids=by_name)
def test_a_second_connection_of_the_same_name_closes_the_first(
    producer: TemporaryProducer, dialect: Dialect
) -> None:
    first = opened(producer, dialect, "same")
    other = opened(producer, dialect, "other")
    second = opened(producer, dialect, "same")
    with first, other, second:
        assert first.is_closed()
        for talk in (second, other):
            talk.send(m.FailoverLogRequest(vbucket=1, opaque=3))
            assert isinstance(talk.read(), m.FailoverLogResponse)


@pytest.mark.parametrize("dialect", WITH_OPEN, ids=by_name)
def test_nothing_before_open_and_open_only_once(
    producer: TemporaryProducer, dialect: Dialect
) -> None:
    for early in (request(), m.CloseStream(vbucket=1), m.Control(key="enable_noop", value="true")):
        with Talk(producer, Dcp()) as talk:
            talk.send(early)
            assert talk.is_closed()
    with opened(producer, dialect) as talk:
        talk.send(m.Open(name="again", flags=OpenFlag.PRODUCER))
        assert talk.is_closed()


def test_a_failover_log_before_open(producer: TemporaryProducer) -> None:
    with Talk(producer, Dcp()) as talk:
        log = talk.ask(m.FailoverLogRequest(vbucket=1)).failover_log
        assert log == producer.bucket.failover_log(1).entries
    strict = ServerSettings(policy=Policy(log_needs_open=True))  # as release 3.0.2
    with TemporaryProducer(vbuckets=1, settings=strict) as other, Talk(other, Dcp()) as talk:
        talk.send(m.FailoverLogRequest(vbucket=0))
        assert talk.is_closed()


def test_requests_of_the_other_role_end_the_connection(producer: TemporaryProducer) -> None:
    with opened(producer, Dcp()) as talk:
        talk.send(m.AddStream(vbucket=1, flags=StreamFlag(0)))
        assert talk.is_closed()
    for other in (request(), m.Open(name="again", flags=OpenFlag.PRODUCER)):
        with Talk(producer, Dcp()) as talk:
            talk.hello()
            talk.open("replica", OpenFlag.CONSUMER)
            talk.send(other)
            assert talk.is_closed()


def test_a_notifier_says_only_that_there_is_more(producer: TemporaryProducer) -> None:
    high = producer.bucket.vbucket_stats(1).high_seqno
    with Talk(producer, Dcp()) as talk:
        talk.hello()
        assert talk.open("notifier", OpenFlag.NOTIFIER).status is Status.SUCCESS
        talk.send(request(start=high, vbuuid=vbuuid(producer)))
        assert isinstance(talk.read(), m.StreamAccepted)
        producer.bucket.write(SetDocument(1, b"\0more", b"v"))
        assert talk.read() == m.StreamEnd(vbucket=1, opaque=45, reason=StreamEndReason.OK)
        talk.send(request())  # there is more already
        assert isinstance(talk.read(), m.StreamAccepted)
        assert isinstance(talk.read(), m.StreamEnd)
        assert talk.statistics("dcp")["eq_dcpq:notifier:type"] == "notifier"


def test_a_notifier_s_range_does_not_matter_but_its_history_does(
    producer: TemporaryProducer,
) -> None:
    high = producer.bucket.vbucket_stats(1).high_seqno
    with Talk(producer, Dcp()) as talk:
        talk.hello()
        talk.open("notifier", OpenFlag.NOTIFIER)
        beyond = replace(request(start=high, vbuuid=vbuuid(producer)), end=0)
        talk.send(replace(beyond, snapshot_start=0, snapshot_end=0))
        assert isinstance(talk.read(), m.StreamAccepted)
        producer.bucket.write(SetDocument(1, b"\0more", b"v"))
        assert isinstance(talk.read(), m.StreamEnd)
        talk.send(replace(beyond, start=1, vbuuid=0))
        assert isinstance(talk.read(), m.StreamRollback)


@pytest.mark.parametrize("dialect", WITH_OPEN, ids=by_name)
def test_closing_a_stream(producer: TemporaryProducer, dialect: Dialect) -> None:
    with opened(producer, dialect) as talk:
        talk.send(request())
        talk.read_until(m.Deletion)
        assert talk.ask(m.CloseStream(vbucket=1)).status is Status.SUCCESS
        producer.bucket.write(SetDocument(1, b"\0unseen", b"v"))
        assert talk.ask(m.CloseStream(vbucket=1)).status is Status.NOT_FOUND


def test_a_closed_stream_says_so_if_that_was_asked_for(producer: TemporaryProducer) -> None:
    with opened(producer, Dcp()) as talk:
        talk.control("send_stream_end_on_client_close_stream", "true")
        talk.send(request())
        talk.read_until(m.Deletion)
        assert talk.ask(m.CloseStream(vbucket=1)).status is Status.SUCCESS
        assert talk.read() == m.StreamEnd(vbucket=1, opaque=45, reason=StreamEndReason.CLOSED)


def test_dropping_the_socket_frees_everything(producer: TemporaryProducer) -> None:
    server = producer.producer.server
    for _ in range(20):
        with everything(producer) as talk:
            talk.send(request())
            talk.read_until(m.Deletion)
    with everything(producer, "last"):
        assert len(server.connections) <= 2
        assert producer.bucket.stats().readers == 0


def test_many_streams_on_one_connection(producer: TemporaryProducer) -> None:
    for vbucket in range(4):
        producer.bucket.write(SetDocument(vbucket, b"\0mine", b"%d" % vbucket))
    with everything(producer) as talk:
        for vbucket in range(4):
            talk.send(m.StreamRequest(vbucket=vbucket, start=0, end=NO_END, opaque=100 + vbucket))
        seen: dict[int, list[int]] = {}
        while sum(map(len, seen.values())) < 9:
            message = talk.read()
            if isinstance(message, DATA):
                assert message.opaque == 100 + message.vbucket
                seen.setdefault(message.vbucket, []).append(message.seqno)
    assert {vbucket: len(seqnos) for vbucket, seqnos in seen.items()} == {0: 1, 1: 6, 2: 1, 3: 1}
    assert all(seqnos == sorted(seqnos) for seqnos in seen.values())


def test_several_streams_of_one_vbucket(producer: TemporaryProducer) -> None:
    with everything(producer) as talk:
        assert talk.control("enable_stream_id", "true").status is Status.SUCCESS
        for stream_id in (1, 2):
            talk.send(replace(request(end=6), filter=b'{"sid":%d}' % stream_id, opaque=stream_id))
        ends = 0
        seqnos: dict[int | None, list[int]] = {1: [], 2: []}
        while ends < 2:
            message = talk.read()
            ends += isinstance(message, m.StreamEnd)
            if isinstance(message, DATA):
                assert message.stream_id == message.opaque
                seqnos[message.stream_id].append(message.seqno)
        assert seqnos == {1: [2, 3, 4, 5, 6], 2: [2, 3, 4, 5, 6]}
        missing = talk.ask(m.CloseStream(vbucket=1))
        assert missing.status is Status.STREAM_ID_INVALID
        gone = talk.ask(m.CloseStream(vbucket=1, frames=(StreamId(2),)))
        assert gone.status is Status.NOT_FOUND


def test_markers_of_backfill_and_tail(producer: TemporaryProducer) -> None:
    with everything(producer) as talk:
        talk.send(request())
        markers = [x for x in talk.read_until(m.Deletion) if isinstance(x, m.SnapshotMarker)]
        for value in (b"1", b"2"):
            producer.bucket.write(SetDocument(1, b"\0k9", value))
            markers.append(talk.read())
            talk.read()
    memory = MarkerFlag.MEMORY
    assert [(x.start, x.end, x.flags) for x in markers] == [
        (0, 6, memory | MarkerFlag.CHECKPOINT),
        (7, 7, memory),
        (8, 8, memory),
    ]


def test_markers_of_what_was_there_when_the_server_started() -> None:
    with TemporaryProducer(vbuckets=2) as producer:
        producer.bucket.write(SetDocument(1, b"\0k", b"v"))
        producer.restart()
        with everything(producer) as talk:
            talk.send(request())
            disk = talk.read_until(m.SnapshotMarker)[-1]
        assert disk.flags == MarkerFlag.DISK | MarkerFlag.CHECKPOINT
        producer.bucket.write(SetDocument(1, b"\0k2", b"v"))
        with everything(producer) as talk:
            talk.send(request())
            both = talk.read_until(m.SnapshotMarker)[-1]
            mutation = talk.read()
        assert (both.end, both.flags) == (2, MarkerFlag.MEMORY | MarkerFlag.CHECKPOINT)
        assert mutation.nru == 2


@pytest.mark.parametrize(
    ("peers", "extras"), [(PeerRelease.TODAY, 30), (PeerRelease.APRIL_2014, 31)]
)
def test_mutations_of_draft_001_have_30_or_31_bytes(peers: PeerRelease, extras: int) -> None:
    settings = ServerSettings(peers=peers)
    with TemporaryProducer(vbuckets=2, settings=settings) as producer:
        producer.bucket.write(SetDocument(1, b"\0k", b"v"))
        with opened(producer, Draft001()) as talk:
            talk.send(m.StreamRequest(vbucket=1, start=0, end=1, opaque=1))
            packets = [talk.packet() for _ in range(3)]
    assert [(packet[1], packet[4]) for packet in packets[2:]] == [(0x57, extras)]
    assert (packets[2][24 + 30] == 2) is (extras == 31)


def test_resuming_inside_a_snapshot_repeats_its_edges(producer: TemporaryProducer) -> None:
    with everything(producer) as talk:
        talk.send(request(start=4, vbuuid=vbuuid(producer), snapshot_start=2, snapshot_end=6))
        marker = talk.read_until(m.SnapshotMarker)[-1]
    assert (marker.start, marker.end) == (2, 6)


def test_the_same_key_appears_once_in_a_snapshot(producer: TemporaryProducer) -> None:
    changes = [SetDocument(2, b"\0key%d" % (number % 7), b"%d" % number) for number in range(100)]
    producer.bucket.write_many(changes)
    with everything(producer) as talk:
        talk.send(m.StreamRequest(vbucket=2, start=0, end=100, opaque=1))
        stream = talk.read_until(m.StreamEnd)
    data = [x for x in stream if isinstance(x, m.Mutation)]
    assert len({x.key for x in data}) == len(data) == 7
    assert [x.seqno for x in data] == list(range(94, 101))


def test_flags_of_the_request(producer: TemporaryProducer) -> None:
    with everything(producer) as talk:
        talk.send(request(flags=StreamFlag.TO_LATEST))
        assert [x.seqno for x in talk.read_until(m.StreamEnd) if isinstance(x, DATA)] == [
            2,
            3,
            4,
            5,
            6,
        ]
        talk.send(request(flags=StreamFlag.FROM_LATEST, vbuuid=0))
        assert isinstance(talk.read(), m.StreamAccepted)
        producer.bucket.write(SetDocument(1, b"\0later", b"v"))
        assert talk.read_until(m.Mutation)[-1].seqno == 7


def test_a_takeover_hands_the_vbucket_over(producer: TemporaryProducer) -> None:
    """Pending, dead, active, with every marker acknowledged, and the same branch throughout."""
    branch = vbuuid(producer)
    with everything(producer) as talk:
        talk.send(request(flags=StreamFlag.TAKEOVER))
        stream = talk.read_until(m.Deletion)
        marker = next(x for x in stream if isinstance(x, m.SnapshotMarker))
        assert marker.flags & MarkerFlag.ACK
        talk.send(m.PlainResponse(command=Command.SNAPSHOT_MARKER, opaque=45))
        assert talk.read() == m.SetStreamState(vbucket=1, opaque=45, state=VBucketState.PENDING)
        assert producer.bucket.state(1) is VBucketState.ACTIVE
        producer.bucket.write(SetDocument(1, b"\0last", b"word"))  # between the states
        talk.send(m.PlainResponse(command=Command.SET_STREAM_STATE, opaque=45))
        rest = talk.read_until(m.Mutation)
        assert rest[-1].key == b"last"
        assert producer.bucket.state(1) is VBucketState.DEAD
        talk.send(m.PlainResponse(command=Command.SNAPSHOT_MARKER, opaque=45))
        assert talk.read() == m.SetStreamState(vbucket=1, opaque=45, state=VBucketState.ACTIVE)
        talk.send(m.PlainResponse(command=Command.SET_STREAM_STATE, opaque=45))
        assert talk.read() == m.StreamEnd(vbucket=1, opaque=45, reason=StreamEndReason.OK)
    assert vbuuid(producer) == branch


def test_a_takeover_that_cannot_be_written_ends_its_own_stream(
    producer: TemporaryProducer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise StoreFull(path="default", problem="a planted fault")

    with everything(producer) as talk:
        talk.send(replace(request(), vbucket=2, opaque=46), request(flags=StreamFlag.TAKEOVER))
        talk.read_until(m.Deletion)
        talk.send(m.PlainResponse(command=Command.SNAPSHOT_MARKER, opaque=45))
        talk.read_until(m.SetStreamState)
        monkeypatch.setattr(producer.bucket, "set_state", fail)
        talk.send(m.PlainResponse(command=Command.SET_STREAM_STATE, opaque=45))
        end = talk.read_until(m.StreamEnd)[-1]
        assert (end.opaque, end.reason) == (45, StreamEndReason.BACKFILL_FAILED)
        producer.bucket.write(SetDocument(1, b"\0still", b"active"))
        producer.bucket.write(SetDocument(2, b"\0k", b"v"))
        assert talk.read_until(m.Mutation)[-1].opaque == 46


def test_a_connection_keeps_its_bucket_once_it_is_open(producer: TemporaryProducer) -> None:
    with everything(producer) as talk:
        assert talk.ask(kv.SelectBucket(bucket="default")).status is Status.NOT_SUPPORTED
        assert talk.ask(kv.Noop()).status is Status.SUCCESS
        assert talk.ask(kv.Version()).value.startswith(b"7.")


def test_collections_and_their_events(producer: TemporaryProducer) -> None:
    bucket = producer.bucket
    shop = bucket.create_scope("shop")
    orders = bucket.create_collection(shop.id, "orders")
    bucket.write(SetDocument(1, bytes([orders.id]) + b"o1", b"{}"))
    with everything(producer) as talk:
        talk.send(request(flags=StreamFlag.TO_LATEST))
        stream = talk.read_until(m.StreamEnd)
        kinds = [type(x) for x in stream if isinstance(x, m.ScopeCreated | m.CollectionCreated)]
        assert kinds == [m.ScopeCreated, m.CollectionCreated]
        assert stream[-2].collection == orders.id
        chosen = b'{"collections":["%x"]}' % orders.id
        talk.send(replace(request(flags=StreamFlag.TO_LATEST), filter=chosen))
        stream = talk.read_until(m.StreamEnd)
        assert [x.key for x in stream if isinstance(x, m.Mutation)] == [b"o1"]
        talk.send(replace(request(), filter=b'{"collections":["99"]}'))
        refused = talk.read()
        assert refused.status is Status.UNKNOWN_COLLECTION
        assert b'"manifest_uid":"2"' in refused.value
    with opened(producer, Dcp()) as talk:  # without collections: the default one, and no events
        talk.send(request(flags=StreamFlag.TO_LATEST))
        stream = talk.read_until(m.StreamEnd)
        marker = next(x for x in stream if isinstance(x, m.SnapshotMarker))
        assert marker.end == 6  # lowered to the last change that is for this reader
        assert [x.seqno for x in stream if isinstance(x, DATA)] == [2, 3, 4, 5, 6]


def test_events_as_flatbuffers(producer: TemporaryProducer) -> None:
    shop = producer.bucket.create_scope("shop")
    orders = producer.bucket.create_collection(shop.id, "orders")
    with everything(producer) as talk:
        assert talk.control("flatbuffers_system_events", "true").status is Status.SUCCESS
        for choice in (b"", b'{"collections":["%x"]}' % orders.id):
            talk.send(replace(request(flags=StreamFlag.TO_LATEST), filter=choice))
            events = [x for x in talk.read_until(m.StreamEnd) if isinstance(x, m.SystemEvent)]
            assert {x.version for x in events} == {2}
            told = [(x.event, x.key) for x in events]
            assert told == ([(0, b"orders")] if choice else [(3, b"shop"), (0, b"orders")])


def test_features_need_noops(producer: TemporaryProducer) -> None:
    with Talk(producer) as talk:
        talk.hello(Feature.COLLECTIONS)
        talk.open()
        talk.send(request())
        assert talk.read().status is Status.NOT_SUPPORTED
        talk.control("enable_noop", "true")
        talk.send(request())
        assert isinstance(talk.read(), m.StreamAccepted)


@pytest.mark.parametrize("value", ["true", "true_with_seqno_advanced"])
def test_out_of_order_backfills_have_edges_and_no_marker(
    producer: TemporaryProducer, value: str
) -> None:
    with everything(producer) as talk:
        talk.control("enable_out_of_order_snapshots", value)
        talk.send(request())
        kinds = [type(x) for x in talk.read_until(lambda x: getattr(x, "flags", 0) == OsoFlag.END)]
        advanced = [m.SeqnoAdvanced] if value != "true" else []
        data = [m.Mutation] * 4 + [m.Deletion]
        assert kinds == [m.StreamAccepted, m.OsoSnapshot, *data, *advanced, m.OsoSnapshot]
        producer.bucket.write(SetDocument(1, b"\0tail", b"v"))
        assert isinstance(talk.read(), m.SnapshotMarker)  # the tail is in order again
        talk.read()
        talk.send(replace(request(start=4, vbuuid=vbuuid(producer)), opaque=46))
        assert talk.read().status is Status.EXISTS


def test_statistics_tell_of_streams(producer: TemporaryProducer) -> None:
    with everything(producer, "watched") as talk:
        talk.control("connection_buffer_size", "4096")
        talk.send(request())
        talk.read_until(m.Deletion)
        talk.ask(m.CloseStream(vbucket=1))
        sent = sum(stream.bytes_sent for stream in producer.producer.server.view().connections)
        talk.send(m.BufferAck(size=sent))
        told: dict[str, str] = {}
        older: dict[str, str] = {}
        for group, stats in (("dcp", told), ("upr", older)):
            talk.send(kv.Stat(group=group, opaque=5))
            while (stat := talk.read()).key:
                stats[stat.key] = stat.value.decode()
    assert older == {key.replace("eq_dcpq", "eq_uprq"): told[key] for key in told}
    assert told["eq_dcpq:watched:created"].isdigit()
    assert told["eq_dcpq:watched:total_bytes_sent"] == str(sent)
    assert told["eq_dcpq:watched:total_acked_bytes"] == str(sent)
    assert told["eq_dcpq:watched:unacked_bytes"] == "0"
    assert told["eq_dcpq:watched:num_streams"] == "0"
    assert told["eq_dcpq:watched:max_buffer_bytes"] == "4096"
    assert told["eq_dcpq:watched:stream_1_state"] == "dead"
    assert told["eq_dcpq:watched:stream_1_opaque"] == "45"
    assert told["eq_dcpq:watched:stream_1_items_sent"] == "5"
