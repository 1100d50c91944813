"""Whatever bytes come: a message, or an error that was declared. Nothing else, ever."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from strategies import DIALECTS, FORMS, message_of

from examples import examples
from upriver.errors import DecodeError, EncodeError
from upriver.wire.dialects import Dialect, sniff
from upriver.wire.dissect import dissect
from upriver.wire.framing import Framer, packet_length
from upriver.wire.header import HEADER_SIZE, Header, pack_header
from upriver.wire.messages import Message
from upriver.wire.misprint_repairs import readings

DIALECT = st.sampled_from(DIALECTS)


@st.composite
def plausible_packets(draw: st.DrawFn) -> bytes:
    """Bytes that get past the header: right magics and lengths, anything inside."""
    body = draw(st.binary(max_size=120))
    parts = sorted(draw(st.tuples(st.integers(0, len(body)), st.integers(0, len(body)))))
    flexible = draw(st.booleans())
    frames = draw(st.integers(0, min(parts[0], 20))) if flexible else 0
    key = min(parts[1] - parts[0], 255)
    header = Header(
        draw(st.sampled_from([0x08, 0x18] if flexible else [0x80, 0x81, 0x82, 0x83])),
        draw(st.integers(0, 255)),
        frames,
        key,
        parts[0] - frames,
        draw(st.sampled_from([0, 0, 0, 1, 2, 4, 5, 9])),
        draw(st.sampled_from([0, 0, 1, 7, 0x23, 0x22, 0xFFFF])),
        len(body),
        draw(st.integers(0, 2**32 - 1)),
        draw(st.sampled_from([0, 1, 2**64 - 1])),
    )
    return pack_header(header) + body


@st.composite
def damaged_packets(draw: st.DrawFn) -> bytes:
    """A good packet with a few bytes changed, cut or added."""
    dialect, layout = draw(st.sampled_from(FORMS))
    packet = bytearray(dialect.encode(draw(message_of(layout, dialect))))
    for _ in range(draw(st.integers(1, 4))):
        packet[draw(st.integers(0, len(packet) - 1))] = draw(st.integers(0, 255))
    cut = draw(st.integers(0, 3))
    return bytes(packet[: len(packet) - cut] + draw(st.binary(max_size=3)))


ANY_BYTES = st.one_of(st.binary(max_size=100), plausible_packets(), damaged_packets())


@settings(max_examples=examples(600))
@given(dialect=DIALECT, data=ANY_BYTES)
def test_decoding(dialect: Dialect, data: bytes) -> None:
    try:
        message = dialect.decode(data)
    except DecodeError as error:
        assert 0 <= error.offset <= max(len(data), HEADER_SIZE)
        assert error.field
        assert error.rule
    else:
        assert isinstance(message, Message)
        try:
            again = dialect.encode(message)
        except EncodeError:
            return  # accepted from a peer, never sent by us
        assert dialect.decode(again) == message


@settings(max_examples=examples(300))
@given(data=ANY_BYTES)
@example(data=b"")
def test_reading_leniently_and_dissecting(data: bytes) -> None:
    try:
        found = readings(data)
    except DecodeError:
        found = []
    for reading in found:
        assert isinstance(reading.message, Message)
    for dialect in DIALECTS:
        views = dissect(data, dialect)
        assert all(view.offset + view.size <= len(data) or view.size == 0 for view in views)


@settings(max_examples=examples(300))
@given(data=ANY_BYTES)
@example(data=b"")
def test_sniffing(data: bytes) -> None:
    try:
        sniff(data)
    except DecodeError as error:
        assert not error.usable


@settings(max_examples=examples(300))
@given(
    messages=st.lists(
        st.sampled_from(FORMS).flatmap(lambda x: st.tuples(st.just(x[0]), message_of(x[1], x[0]))),
        max_size=4,
    ),
    cuts=st.lists(st.integers(0, 400), max_size=8),
    is_002=st.booleans(),
)
def test_framing_from_any_chunks(
    messages: list[tuple[Dialect, Message]], cuts: list[int], is_002: bool
) -> None:
    packets = [
        dialect.encode(message)
        for dialect, message in messages
        if (dialect.name == "002") is is_002
    ]
    stream = b"".join(packets)
    edges = sorted({0, len(stream), *(cut % (len(stream) + 1) for cut in cuts)})
    framer = Framer()
    found: list[bytes] = []
    for start, end in pairwise(edges):
        found += framer.feed(stream[start:end])
    assert found == packets
    assert framer.pending == 0


@settings(max_examples=examples(300))
@given(chunks=st.lists(ANY_BYTES, max_size=4))
def test_framing_of_nonsense(chunks: list[bytes]) -> None:
    framer = Framer(max_body=1000)
    try:
        for chunk in chunks:
            for packet in framer.feed(chunk):
                assert packet_length(packet) == len(packet)
                assert len(packet) <= HEADER_SIZE + 1000
    except DecodeError as error:
        assert not error.usable


@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda dialect: dialect.name)
def test_every_truncation_of_a_good_packet_is_refused(dialect: Dialect) -> None:
    for packet in _samples(dialect):
        for length in range(len(packet)):
            with pytest.raises(DecodeError) as caught:
                dialect.decode(packet[:length])
            assert not caught.value.usable


def _samples(dialect: Dialect) -> list[bytes]:
    from upriver.wire import messages as m

    collection = 8 if getattr(dialect, "collections", False) else None
    return [
        dialect.encode(m.Mutation(vbucket=1, seqno=1, key=b"k", value=b"v", collection=collection)),
        dialect.encode(m.StreamRequest(vbucket=1, start=1, end=2)),
        dialect.encode(m.StreamRollback(seqno=7)),
    ]
