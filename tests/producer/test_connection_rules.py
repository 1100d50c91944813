"""What a connection may and may not do, by the rules that the vendor's suites check."""

from __future__ import annotations

import struct
from collections.abc import Iterator

import pytest
from talk import Talk

from upriver.testing import TemporaryProducer

HELLO, OPEN, NOOP = 0x1F, 0x50, 0x0A
INVALID, UNKNOWN, NOT_SUPPORTED = 0x04, 0x81, 0x83


@pytest.fixture(scope="module")
def producer() -> Iterator[TemporaryProducer]:
    with TemporaryProducer(vbuckets=1) as producer:
        yield producer


def features(*numbers: int) -> bytes:
    return struct.pack(f">{len(numbers)}H", *numbers)


@pytest.mark.parametrize("offer", [(0x0D,), (0x1F, 0x0B), (0x15,), (0x18, 0x0B)])
def test_an_offer_that_contradicts_itself_is_refused_as_a_whole(
    producer: TemporaryProducer, offer: tuple[int, ...]
) -> None:
    with Talk(producer) as talk:
        agreed = talk.ask_raw(HELLO, b"agent", features(0x0B, 0x04)).value
        assert agreed == features(0x0B, 0x04)
        assert talk.ask_raw(HELLO, b"agent", features(*offer)).status == INVALID
        # what was agreed before still holds
        written = talk.ask_raw(0x01, b"k", b"{}", bytes(8))
        assert (written.status, len(written.extras)) == (0, 16)


def test_a_connection_with_change_streams_keeps_its_user(producer: TemporaryProducer) -> None:
    with Talk(producer) as talk:
        opened = talk.ask_raw(OPEN, b"reader", b"", struct.pack(">II", 0, 1))
        assert opened.status == 0
        assert talk.ask_raw(0x20).status == NOT_SUPPORTED
        assert talk.ask_raw(0x21, b"PLAIN", b"\0user\0password").status == NOT_SUPPORTED
        assert talk.ask_raw(0x22, b"PLAIN", b"").status == NOT_SUPPORTED
        assert talk.ask_raw(NOOP).status == 0


@pytest.mark.parametrize("opcode", [0x30, 0x3C, 0x40, 0x47, 0x97, 0x9E, 0xAA, 0xB0, 0xF2])
def test_commands_of_former_servers_are_not_supported(
    producer: TemporaryProducer, opcode: int
) -> None:
    with Talk(producer) as talk:
        for body in (b"", b"anything"):
            answer = talk.ask_raw(opcode, body, opaque=7)
            assert (answer.opcode, answer.status, answer.opaque) == (opcode, NOT_SUPPORTED, 7)
        assert talk.ask_raw(NOOP).status == 0


@pytest.mark.parametrize("opcode", [0x27, 0x4A, 0x68, 0x7F, 0xDE, 0xE0, 0xFF])
def test_commands_that_nobody_has_are_unknown(producer: TemporaryProducer, opcode: int) -> None:
    with Talk(producer) as talk:
        answer = talk.ask_raw(opcode, b"key", b"value", b"extras", opaque=7, cas=9)
        assert (answer.opcode, answer.status, answer.opaque) == (opcode, UNKNOWN, 7)
        assert talk.ask_raw(NOOP).status == 0
