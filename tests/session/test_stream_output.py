"""What a stream sends of stored changes, in every dialect and shape."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from upriver.model import Datatype, StreamEndReason
from upriver.session.change_writer import Shape, ValueMode
from upriver.session.collection_filter import FilterKind, StreamFilter
from upriver.session.stream_output import StreamOutput
from upriver.wire import canonical, leb128, values
from upriver.wire import messages as m
from upriver.wire.dialects import Dcp, Dialect, Draft000, Draft001, Draft002
from upriver.wire.frameinfo import StreamId
from upriver.wire.framing import Framer
from upriver.wire.protocol_enums import MarkerFlag, OsoFlag

STORED = Dcp(collections=True)
EVERYTHING = Shape(xattrs=True, delete_times=True, expirations=True, snappy=True)
XATTRS = values.join_xattrs({"_sync": b"1", "mine": b"2"}, b'{"a":1}')


def mutation(seqno: int, *, collection: int = 0, value: bytes = b"v", datatype: int = 0) -> bytes:
    key = leb128.encode(collection) + b"key%d" % seqno
    return canonical.mutation(5, seqno, 1, 9, 7, 11, datatype, key, value)


def deletion(seqno: int, *, collection: int = 0, value: bytes = b"", datatype: int = 0) -> bytes:
    key = leb128.encode(collection) + b"key%d" % seqno
    return canonical.deletion(5, seqno, 2, 9, 1234, datatype, key, value)


def expiration(seqno: int) -> bytes:
    return canonical.expiration(5, seqno, 2, 9, 1234, 0, b"\0key%d" % seqno)


def event(seqno: int, collection: int, scope: int) -> bytes:
    return STORED.encode(
        m.CollectionCreated(
            vbucket=5, seqno=seqno, name="c", manifest_uid=3, scope=scope, collection=collection
        )
    )


def output(dialect: Dialect, **more: Any) -> StreamOutput:
    return StreamOutput(dialect, vbucket=5, opaque=77, **more)


def sent(stream: StreamOutput, *frames: bytes, **more: Any) -> list[Any]:
    """The messages that a consumer receives for stored frames."""
    last = int.from_bytes(frames[-1][24:32], "big") if frames else 0
    changes = stream.changes(b"".join(frames), last, **more)
    packets = list(Framer().feed(changes.packets))
    assert len(packets) == changes.count
    messages = [stream._dialect.decode(packet) for packet in packets]
    assert all(message.opaque == 77 for message in messages)
    return messages


def test_a_consumer_of_everything_gets_the_stored_bytes() -> None:
    frames = [
        mutation(1, value=XATTRS, datatype=4),
        mutation(2, value=values.deflate(b"x" * 99), datatype=2),
        deletion(3),
        expiration(4),
        event(5, 8, 0),
    ]
    stream = output(STORED, shape=EVERYTHING)
    changes = stream.changes(b"".join(frames), 5)
    opaque = (77).to_bytes(4, "big")
    expected = [frame[:12] + opaque + frame[16:] for frame in frames]
    assert changes.packets == b"".join(expected)
    assert (changes.count, changes.last_seqno) == (5, 5)


def test_without_xattrs_only_the_body_is_sent() -> None:
    stream = output(STORED, shape=Shape(delete_times=True, snappy=True))
    plain, compressed, raw = sent(
        stream,
        mutation(1, value=XATTRS, datatype=5),
        mutation(2, value=values.deflate(XATTRS), datatype=7),
        mutation(3),
    )
    assert (plain.value, plain.datatype) == (b'{"a":1}', Datatype.JSON)
    assert (compressed.value, compressed.datatype) == (b'{"a":1}', Datatype.JSON)
    assert (raw.value, raw.datatype) == (b"v", Datatype.RAW)


def test_compression_is_for_those_who_negotiated_it() -> None:
    packed = values.deflate(b"x" * 500)
    assert sent(output(STORED), mutation(1, value=packed, datatype=2))[0].value == b"x" * 500
    kept = sent(output(STORED, shape=Shape(snappy=True)), mutation(1, value=packed, datatype=2))[0]
    assert (kept.value, kept.datatype) == (packed, Datatype.SNAPPY)
    forcing = output(STORED, shape=Shape(snappy=True, compress=True))
    squeezed, short = sent(forcing, mutation(1, value=b"x" * 500), mutation(2))
    assert (squeezed.value, squeezed.datatype) == (packed, Datatype.SNAPPY)
    assert (short.value, short.datatype) == (b"v", Datatype.RAW)  # it would have grown


@pytest.mark.parametrize(
    ("mode", "xattrs", "value", "datatype"),
    [
        (ValueMode.NONE, False, b"", Datatype.RAW),
        (ValueMode.NONE, True, values.join_xattrs({"_sync": b"1", "mine": b"2"}, b""), 4),
        (ValueMode.NONE_WITH_DATATYPE, False, b"", 5),
        (
            ValueMode.NONE_WITH_DATATYPE,
            True,
            values.join_xattrs({"_sync": b"1", "mine": b"2"}, b""),
            5,
        ),
    ],
)
def test_no_value(mode: ValueMode, xattrs: bool, value: bytes, datatype: int) -> None:
    stream = output(STORED, shape=Shape(value=mode, xattrs=xattrs))
    message = sent(stream, mutation(1, value=XATTRS, datatype=5))[0]
    assert (message.value, message.datatype) == (value, Datatype(datatype))
    assert sent(stream, mutation(2))[0].value == b""


def test_deletions_with_and_without_their_time() -> None:
    system = values.join_xattrs({"_sync": b"1"}, b"")
    timed = sent(output(STORED, shape=Shape(delete_times=True)), deletion(1), expiration(2))
    assert [type(x) for x in timed] == [m.Deletion, m.Deletion]
    assert [x.delete_time for x in timed] == [1234, 1234]
    bare = sent(output(STORED), deletion(1, value=system, datatype=4), expiration(2))
    assert [x.delete_time for x in bare] == [None, None]
    assert bare[0].value == b""
    told = sent(
        output(STORED, shape=EVERYTHING), deletion(1, value=system, datatype=4), expiration(2)
    )
    assert told[0].value == system
    assert type(told[1]) is m.Expiration


def test_a_consumer_without_collections_sees_the_default_one_without_prefix() -> None:
    stream = output(Dcp(), filter=StreamFilter(kind=FilterKind.LEGACY, collections=frozenset({0})))
    messages = sent(
        stream,
        event(1, 8, 0),
        mutation(2),
        mutation(3, collection=8),
        deletion(4),
        mutation(5, value=XATTRS, datatype=5),
    )
    assert [x.key for x in messages] == [b"key2", b"key4", b"key5"]
    assert messages[2].value == b'{"a":1}'
    assert all(x.collection is None for x in messages)


def test_filters() -> None:
    frames = [
        event(1, 8, 0),
        event(2, 10, 9),
        mutation(3),
        mutation(4, collection=8),
        mutation(5, collection=10),
    ]
    chosen = StreamFilter(kind=FilterKind.COLLECTIONS, collections=frozenset({8}))
    assert [x.seqno for x in sent(output(STORED, filter=chosen), *frames)] == [1, 4]
    scope = StreamFilter(kind=FilterKind.SCOPE, scope=9)  # empty until the event of collection 10
    assert [x.seqno for x in sent(output(STORED, filter=scope), *frames)] == [2, 5]
    nothing = output(STORED, filter=StreamFilter(kind=FilterKind.COLLECTIONS))
    assert nothing.changes(b"".join(frames), 5).last_seqno == 0


def test_deletions_can_be_left_out_of_the_first_backfill() -> None:
    for shape in (EVERYTHING, Shape()):
        messages = sent(
            output(STORED, shape=shape),
            mutation(1),
            deletion(2),
            expiration(3),
            skip_deletions=True,
        )
        assert [x.seqno for x in messages] == [1]


def test_stream_ids_are_on_every_message() -> None:
    stream = output(
        STORED, shape=EVERYTHING, filter=StreamFilter(kind=FilterKind.EVERYTHING, stream_id=9)
    )
    assert [x.stream_id for x in sent(stream, mutation(1), deletion(2), event(3, 8, 0))] == [
        9,
        9,
        9,
    ]
    marker: Any = STORED.decode(stream.snapshot_start(0, 1, MarkerFlag.DISK))
    assert (marker.stream_id, marker.opaque) == (9, 77)


@pytest.mark.parametrize("dialect", [Draft002(), Draft000(), Draft001()], ids=lambda d: d.name)
def test_the_drafts_get_plain_documents(dialect: Dialect) -> None:
    messages = sent(
        output(dialect),
        mutation(1, value=values.deflate(XATTRS), datatype=7),
        deletion(2),
        expiration(3),
        event(4, 8, 0),
        mutation(5, collection=8),
    )
    kinds: list[type[m.Message]] = [m.Mutation, m.Deletion, m.Expiration]
    assert [type(x) for x in messages] == kinds
    assert (messages[0].value, messages[0].key, messages[0].datatype) == (b'{"a":1}', b"key1", 0)
    assert [x.seqno for x in messages] == [1, 2, 3]


def test_the_order_of_messages_is_each_drafts_own() -> None:
    def around(dialect: Dialect) -> list[type]:
        stream = output(dialect)
        parts = [
            stream.opening(),
            stream.snapshot_start(0, 3, MarkerFlag.DISK),
            stream.snapshot_end(3, 3),
            stream.ending(StreamEndReason.OK),
        ]
        return [type(dialect.decode(part)) for part in parts if part]

    edges = [m.StreamStart, m.SnapshotStart, m.SnapshotEnd, m.StreamEnd]
    assert around(Draft002()) == edges
    assert around(Draft000()) == edges
    assert around(Draft001()) == [m.SnapshotMarker, m.StreamEnd]
    assert around(Dcp()) == [m.SnapshotMarker, m.StreamEnd]


def test_markers() -> None:
    stream = output(STORED)
    marker: Any = STORED.decode(
        stream.snapshot_start(3, 9, MarkerFlag.DISK | MarkerFlag.CHECKPOINT)
    )
    assert (marker.start, marker.end, marker.flags) == (3, 9, 6)
    newer: Any = STORED.decode(stream.snapshot_start(3, 9, MarkerFlag.DISK, purge_seqno=2))
    assert newer.purge_seqno == 2
    advanced: Any = STORED.decode(stream.snapshot_end(9, 7))
    assert (type(advanced), advanced.seqno) == (m.SeqnoAdvanced, 9)
    assert output(Dcp()).snapshot_end(9, 7) == b""  # nobody without collections could read it
    unordered: Any = STORED.decode(stream.out_of_order(OsoFlag.START))
    assert unordered.flags == OsoFlag.START


@given(
    start=st.integers(0, 2**64 - 1),
    end=st.integers(0, 2**64 - 1),
    flags=st.integers(0, sum(MarkerFlag)).map(MarkerFlag),
    stream_id=st.sampled_from([None, 1, 0xFFFF]),
    collections=st.booleans(),
)
def test_a_marker_is_what_the_dialect_writes(
    start: int, end: int, flags: MarkerFlag, stream_id: int | None, collections: bool
) -> None:
    """Its head is written once for a stream, and only the seqnos and flags for each snapshot."""
    dialect = Dcp(collections=collections)
    wanted = StreamFilter(kind=FilterKind.EVERYTHING, stream_id=stream_id)
    marker = m.SnapshotMarker(
        vbucket=5,
        opaque=77,
        start=start,
        end=end,
        flags=flags,
        frames=() if stream_id is None else (StreamId(stream_id),),
    )
    assert output(dialect, filter=wanted).snapshot_start(start, end, flags) == dialect.encode(
        marker
    )


@pytest.mark.parametrize(
    ("reason", "modern", "plain", "old"),
    [
        ("OK", "OK", "OK", "OK"),
        ("CLOSED", "CLOSED", "CLOSED", "OK"),
        ("STATE_CHANGED", "STATE_CHANGED", "STATE_CHANGED", "STATE_CHANGED"),
        ("ROLLBACK", "STATE_CHANGED", "STATE_CHANGED", "STATE_CHANGED"),
        ("FILTER_EMPTY", "FILTER_EMPTY", "OK", "OK"),
        ("LOST_PRIVILEGES", "LOST_PRIVILEGES", "OK", "STATE_CHANGED"),
        ("TOO_SLOW", "TOO_SLOW", "TOO_SLOW", "STATE_CHANGED"),
    ],
)
def test_reasons_that_a_dialect_can_say(reason: str, modern: str, plain: str, old: str) -> None:
    def said(dialect: Dialect) -> str:
        message = dialect.decode(output(dialect).ending(StreamEndReason[reason]))
        assert isinstance(message, m.StreamEnd)
        return message.reason.name

    assert [said(STORED), said(Dcp()), said(Draft001())] == [modern, plain, old]


@given(
    kinds=st.lists(st.sampled_from("mxsdev"), max_size=12),
    shape=st.builds(
        Shape,
        value=st.sampled_from(ValueMode),
        xattrs=st.booleans(),
        delete_times=st.booleans(),
        expirations=st.just(False),
        snappy=st.booleans(),
    ),
    collections=st.booleans(),
)
def test_every_shape_sends_what_its_dialect_reads(
    kinds: list[str], shape: Shape, collections: bool
) -> None:
    """Whatever is stored and wanted, packets are sound and seqnos rise."""
    makers: dict[str, Callable[[int], bytes]] = {
        "m": mutation,
        "x": lambda s: mutation(s, value=XATTRS, datatype=5),
        "s": lambda s: mutation(s, value=values.deflate(XATTRS), datatype=7),
        "d": deletion,
        "e": expiration,
        "v": lambda s: event(s, 8, 0),
    }
    frames = [makers[kind](number) for number, kind in enumerate(kinds, 1)]
    messages = sent(output(Dcp(collections=collections), shape=shape), *frames)
    seqnos = [x.seqno for x in messages]
    assert seqnos == sorted(set(seqnos))
    assert len(seqnos) == len([kind for kind in kinds if collections or kind != "v"])
