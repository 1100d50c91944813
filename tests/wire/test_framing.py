"""Packets from a stream of bytes, and the lengths at which it ends."""

from __future__ import annotations

import pytest

from upriver.errors import DecodeError
from upriver.wire import kv_messages as kv
from upriver.wire import messages as m
from upriver.wire.dialects import Dcp, Draft002
from upriver.wire.framing import Framer, packet_length
from upriver.wire.limits import MAX_BODY

NOOP = Dcp().encode(kv.Noop())
OLD = Draft002().encode(m.StreamAccepted())


def test_byte_by_byte() -> None:
    stream = NOOP + Dcp().encode(kv.Get(key=b"key")) + NOOP
    framer = Framer()
    found: list[bytes] = []
    for byte in stream:
        found += framer.feed(bytes([byte]))
    assert b"".join(found) == stream
    assert len(found) == 3


def test_packets_before_a_fault_are_delivered() -> None:
    framer = Framer()
    packets = framer.feed(NOOP + b"\x42garbage")
    assert next(packets) == NOOP
    with pytest.raises(DecodeError, match="0x42 is neither") as caught:
        next(packets)
    assert not caught.value.usable


def test_a_length_above_the_limit_is_refused_before_its_bytes_come() -> None:
    huge = bytearray(NOOP)
    huge[8:12] = (MAX_BODY + 1).to_bytes(4, "big")
    with pytest.raises(DecodeError, match=str(MAX_BODY)) as caught:
        packet_length(huge[:12])
    assert (caught.value.field, caught.value.offset) == ("total body length", 8)
    assert packet_length(huge[:11]) is None
    huge[8:12] = MAX_BODY.to_bytes(4, "big")
    assert packet_length(huge[:12]) == MAX_BODY + 24


@pytest.mark.parametrize(("first", "second"), [(NOOP, OLD), (OLD, NOOP)])
def test_a_connection_keeps_its_header(first: bytes, second: bytes) -> None:
    framer = Framer()
    assert list(framer.feed(first)) == [first]
    with pytest.raises(DecodeError, match="another header"):
        list(framer.feed(second))


def test_the_buffer_holds_only_what_waits() -> None:
    framer = Framer()
    list(framer.feed(NOOP * 1000 + NOOP[:5]))
    assert framer.pending == 5
