"""Answers that clients look at closely: statuses, payloads and ends, as real servers give them."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from dataclasses import replace

import pytest
from talk import Talk, everything

from upriver.errors import Status
from upriver.model import NO_END, Datatype, Op, StreamEndReason, VBucketState
from upriver.store import DeleteDocument, SetDocument, WithMeta
from upriver.testing import TemporaryProducer
from upriver.wire import kv_messages as kv
from upriver.wire import messages as m
from upriver.wire import values
from upriver.wire.dialects import Dcp, Draft002
from upriver.wire.frameinfo import StreamId, UnknownFrameInfo
from upriver.wire.protocol_enums import Command, Feature, OpenFlag, StreamFlag


@pytest.fixture
def producer() -> Iterator[TemporaryProducer]:
    with TemporaryProducer(vbuckets=2) as producer:
        producer.bucket.write(SetDocument(1, b"\0first", b"v"))
        yield producer


def request(**more: object) -> m.StreamRequest:
    return m.StreamRequest(vbucket=1, start=0, end=NO_END, opaque=45, **more)  # type: ignore[arg-type]


def opened(producer: TemporaryProducer, flags: OpenFlag = OpenFlag.PRODUCER) -> Talk:
    talk = Talk(producer)
    talk.open("reader", flags)
    return talk


@pytest.mark.parametrize("frame", ["13010000", "1100"])
def test_a_malformed_request_with_frame_infos_is_answered(
    producer: TemporaryProducer, frame: str
) -> None:
    raw = bytes.fromhex(frame)
    packet = bytearray(Dcp().encode(kv.Noop(opaque=3)))
    packet[0], packet[2], packet[11] = 0x08, len(raw), len(raw)
    with Talk(producer) as talk:
        talk.socket.sendall(bytes(packet) + raw)
        refused = talk.read()
        assert refused.opaque == 3
        assert refused.status in (Status.INVALID, Status.DURABILITY_INVALID_LEVEL)
        assert "framing extras at byte" in json.loads(refused.value)["error"]["context"]
        assert talk.ask(kv.Noop()).status is Status.SUCCESS


@pytest.mark.parametrize(
    "packet",
    ["010000000000002d0000000109", "020000000000002d0000000109", "020000000000002d00000000"],
    ids=["a request", "a response", "a response without a type"],
)
def test_a_packet_of_draft_002_that_cannot_be_read_gets_operation_7(
    producer: TemporaryProducer, packet: str
) -> None:
    with Talk(producer, Draft002()) as talk:
        talk.socket.sendall(bytes.fromhex(packet))
        answer = talk.packet()
        assert answer[:8] == bytes.fromhex("070000000000002d")
        assert b"at byte" in answer[12:]
        talk.socket.sendall(bytes.fromhex("070000000000002d00000000"))  # gets no answer itself
        talk.send(m.FailoverLogRequest(vbucket=1, opaque=4))
        assert isinstance(talk.read(), m.FailoverLogResponse)


def test_numbers_of_any_length_are_refused_not_fatal(producer: TemporaryProducer) -> None:
    with everything(producer) as talk:
        many = "9" * 5000
        assert talk.control("connection_buffer_size", many).status is Status.INVALID
        talk.send(replace(request(), filter=b'{"purge_seqno":"%b"}' % many.encode()))
        assert talk.read().status is Status.INVALID


def test_unknown_frame_infos_are_refused_on_every_command(producer: TemporaryProducer) -> None:
    unknown = (UnknownFrameInfo(3, b""),)
    with everything(producer) as talk:
        for asked in (kv.Noop(frames=unknown), replace(request(), frames=unknown)):
            assert talk.ask(asked).status is Status.UNKNOWN_FRAME_INFO


def test_not_my_vbucket_says_where_it_is(producer: TemporaryProducer) -> None:
    with Talk(producer) as talk:
        talk.hello(Feature.JSON)
        talk.open()
        for asked in (replace(request(), vbucket=9), m.FailoverLogRequest(vbucket=9)):
            refused = talk.ask(asked)
            assert (refused.status, refused.datatype) == (Status.NOT_MY_VBUCKET, Datatype.JSON)
            assert "vBucketServerMap" in json.loads(refused.value)
        other = talk.control("no_such_key", "1")
        assert (other.status, other.datatype) == (Status.INVALID, Datatype.JSON)
        assert "no_such_key" in json.loads(other.value)["error"]["context"]


def test_dropping_everything_that_a_filter_chose_ends_the_stream(
    producer: TemporaryProducer,
) -> None:
    bucket = producer.bucket
    scope = bucket.create_scope("s")
    collection = bucket.create_collection(scope.id, "c")
    with everything(producer, "one") as one, everything(producer, "two") as two:
        one.send(replace(request(), filter=b'{"collections":["%x"]}' % collection.id))
        two.send(replace(request(), filter=b'{"scope":"%x"}' % scope.id))
        one.read_until(m.CollectionCreated)
        two.read_until(m.CollectionCreated)
        bucket.drop_scope(scope.id)
        *_, end = one.read_until(m.StreamEnd)
        assert end.reason is StreamEndReason.FILTER_EMPTY
        *_, end = two.read_until(m.StreamEnd)
        assert end.reason is StreamEndReason.FILTER_EMPTY
    with opened(producer) as legacy:
        legacy.send(request())
        legacy.read_until(m.Mutation)
        bucket.drop_collection(0)
        assert legacy.read_until(m.StreamEnd)[-1].reason is StreamEndReason.OK


def test_only_the_last_event_of_a_change_carries_the_new_manifest(
    producer: TemporaryProducer,
) -> None:
    bucket = producer.bucket
    scope = bucket.create_scope("s")
    bucket.create_collection(scope.id, "c")
    with everything(producer) as talk:
        talk.send(request())
        talk.read_until(m.CollectionCreated)
        bucket.drop_scope(scope.id)
        dropped = talk.read_until(m.ScopeDropped)[-2:]
    assert [x.manifest_uid for x in dropped] == [2, 3]


@pytest.mark.parametrize("compressed", [False, True])
def test_what_is_left_of_a_deletion(producer: TemporaryProducer, compressed: bool) -> None:
    kept = values.join_xattrs({"_sys": b"1", "user": b"2"}, b"")
    value = values.deflate(kept) if compressed else kept
    datatype = 6 if compressed else 4
    cas = 1_700_000_000_000_000_000
    gone = WithMeta(1, b"\0gone", Op.DELETION, 9, cas, value, time=1, datatype=datatype)
    producer.bucket.write(gone)
    xattrs = OpenFlag.PRODUCER | OpenFlag.INCLUDE_XATTRS

    def seen(flags: OpenFlag) -> tuple[dict[str, bytes], Datatype]:
        with opened(producer, flags) as talk:
            talk.control("enable_noop", "true")
            talk.send(request())
            deletion = talk.read_until(m.Deletion)[-1]
        found = values.unwrap(deletion.value, deletion.datatype)[0] if deletion.value else {}
        return found, deletion.datatype

    assert seen(xattrs) == ({"_sys": b"1"}, Datatype.XATTR)
    everybody = xattrs | OpenFlag.INCLUDE_DELETED_USER_XATTRS
    assert seen(everybody) == ({"_sys": b"1", "user": b"2"}, Datatype.XATTR)
    assert seen(OpenFlag.PRODUCER) == ({}, Datatype.RAW)


def test_a_snapshot_without_its_deletions_ends_at_what_is_sent(
    producer: TemporaryProducer,
) -> None:
    producer.bucket.write(SetDocument(1, b"\0second", b"v"))
    producer.bucket.write(DeleteDocument(1, b"\0first"))
    with opened(producer, OpenFlag.PRODUCER | OpenFlag.SKIP_DELETES_IN_BACKFILL) as talk:
        talk.send(request())
        marker, change = talk.read_until(m.Mutation)[-2:]
    assert (marker.end, change.seqno) == (2, 2)


def test_a_takeover_of_one_stream_among_several_keeps_its_id(producer: TemporaryProducer) -> None:
    with everything(producer) as talk:
        talk.control("enable_stream_id", "true")
        talk.send(replace(request(flags=StreamFlag.TAKEOVER), filter=b'{"sid":7}'))
        talk.read_until(m.Mutation)
        talk.send(m.PlainResponse(command=Command.SNAPSHOT_MARKER, opaque=45))
        state = talk.read()
    assert (state.state, state.stream_id) == (VBucketState.PENDING, 7)


def test_a_stream_that_was_closed_cannot_be_closed_again(producer: TemporaryProducer) -> None:
    with everything(producer) as talk:
        talk.control("send_stream_end_on_client_close_stream", "true")
        talk.control("enable_stream_id", "true")
        talk.send(replace(request(), filter=b'{"sid":7}'))
        talk.read_until(m.Mutation)
        closing = m.CloseStream(vbucket=1, frames=(StreamId(7),))
        talk.send(replace(closing, opaque=1), replace(closing, opaque=2))
        answers = [x for x in (talk.read(), talk.read(), talk.read()) if isinstance(x, m.Response)]
    assert [x.status for x in answers] == [Status.SUCCESS, Status.NOT_FOUND]


def test_a_hello_counts_on_an_open_connection_too(producer: TemporaryProducer) -> None:
    with opened(producer) as talk:
        talk.hello(Feature.COLLECTIONS)
        talk.send(request())
        assert talk.read().status is Status.NOT_SUPPORTED  # collections need noops
        talk.control("enable_noop", "true")
        talk.send(request())
        assert talk.read_until(m.Mutation)[-1].collection == 0


def test_a_map_that_the_client_never_had_is_sent(producer: TemporaryProducer) -> None:
    with Talk(producer) as talk:
        talk.hello(Feature.SELECT_BUCKET, Feature.CLUSTERMAP_KNOWN_VERSION)
        cluster = json.loads(talk.ask(kv.GetClusterConfig()).value)
        known = kv.GetClusterConfig(epoch=cluster["revEpoch"], revision=cluster["rev"])
        assert talk.ask(known).value == b""
        talk.ask(kv.SelectBucket(bucket="default"))
        assert json.loads(talk.ask(known).value)["name"] == "default"
        assert talk.ask(known).value == b""


@pytest.mark.parametrize("extras", [b"\x02", b"\0\0\0\x02"])
def test_states_of_vbuckets_have_one_byte_or_four(
    producer: TemporaryProducer, extras: bytes
) -> None:
    """Releases 3 and 4, and their tools, send four."""
    head = struct.pack(">BBHBBHIIQ", 0x80, 0x3D, 0, len(extras), 0, 1, len(extras), 9, 0)
    with Talk(producer) as talk:
        talk.socket.sendall(head + extras)
        assert talk.read().status is Status.SUCCESS
    assert producer.bucket.state(1) is VBucketState.REPLICA
    producer.bucket.set_state(1, VBucketState.ACTIVE)


def test_there_is_no_error_map_of_version_0(producer: TemporaryProducer) -> None:
    with Talk(producer) as talk:
        assert talk.ask(kv.GetErrorMap(version=0)).status is Status.NOT_FOUND
