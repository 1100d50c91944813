"""Which draft a peer speaks, from its first packets."""

from __future__ import annotations

import pytest

from upriver.errors import DecodeError
from upriver.wire import kv_messages as kv
from upriver.wire import messages as m
from upriver.wire.dialects import Dcp, Dialect, DialectPin, Draft000, Draft001, Draft002, sniff
from upriver.wire.dialects.by_name import DIALECTS
from upriver.wire.frameinfo import StreamId
from upriver.wire.messages import Message
from upriver.wire.protocol_enums import DIALECT_NAMES, OpenFlag

REQUEST = m.StreamRequest(vbucket=1, start=0, end=9)
OPEN = m.Open(name="n", flags=OpenFlag.PRODUCER)

FIRST_PACKETS: list[tuple[Dialect, Message, Dialect | None]] = [
    (Draft002(), REQUEST, Draft002()),
    (Draft002(), m.FailoverLogRequest(vbucket=1), Draft002()),
    (Draft000(), REQUEST, Draft000()),
    (Draft000(), m.StreamRequest(vbucket=1, start=0, end=9, group="g"), Draft000()),
    (Draft000(), m.FailoverLogRequest(vbucket=1), Draft000()),
    (Draft001(), OPEN, None),
    (Dcp(), OPEN, None),
    (Draft001(), REQUEST, Draft001()),
    (Dcp(), REQUEST, Dcp()),
    (Dcp(), kv.Hello(agent="a"), Dcp()),
    (Dcp(), kv.SaslListMechanisms(), Dcp()),
    (Dcp(), kv.SaslAuth(mechanism="PLAIN"), Dcp()),
    (Dcp(), kv.SelectBucket(bucket="b"), Dcp()),
    (Dcp(), kv.GetClusterConfig(), Dcp()),
    (Dcp(), kv.Version(), Dcp()),
    (Dcp(), kv.Get(key=b"k"), Dcp()),
    (Dcp(), m.CloseStream(vbucket=1, frames=(StreamId(1),)), Dcp()),
    (Dcp(), m.AddStream(vbucket=1), Dcp()),
]


@pytest.mark.parametrize(
    ("speaker", "message", "expected"),
    FIRST_PACKETS,
    ids=lambda value: getattr(value, "name", type(value).__name__),
)
def test_the_first_packet_tells(
    speaker: Dialect, message: Message, expected: Dialect | None
) -> None:
    assert sniff(speaker.encode(message)) == expected


def pinned_by(*packets: bytes) -> DialectPin:
    pin = DialectPin()
    for packet in packets:
        pin.observe(packet)
    return pin


def test_after_an_open_the_first_stream_request_decides() -> None:
    opened = Dcp().encode(OPEN)
    pin = pinned_by(opened)
    assert not pin.pinned
    for speaker in (Draft001(), Dcp()):
        pin = pinned_by(opened, speaker.encode(REQUEST))
        assert (pin.pinned, pin.dialect) == (True, speaker)


def test_what_both_drafts_share_decides_nothing() -> None:
    shared = [OPEN, m.FailoverLogRequest(vbucket=1), m.AddStream(vbucket=2), kv.Noop()]
    pin = pinned_by(*(Dcp().encode(message) for message in shared))
    assert not pin.pinned
    assert pin.observe(Draft001().encode(REQUEST)) == Draft001()


def test_a_control_or_a_hello_means_todays_dcp() -> None:
    opened = Dcp().encode(OPEN)
    control = Dcp().encode(m.Control(key="enable_noop", value="true"))
    assert pinned_by(opened, control).pinned
    pin = pinned_by(Dcp().encode(kv.Hello()), opened, Draft001().encode(REQUEST))
    assert pin.dialect == Dcp()


def test_a_pinned_dialect_never_changes() -> None:
    pin = pinned_by(Draft000().encode(REQUEST))
    for message in (OPEN, m.Control(key="k", value="v"), REQUEST):
        assert pin.observe(Dcp().encode(message)) == Draft000()


@pytest.mark.parametrize("first", [b"", b"\x00", b"\x09" * 24, b"GET / HTTP/1.1\r\n\r\n", b"\x80"])
def test_what_is_no_packet_of_any_draft_is_refused(first: bytes) -> None:
    with pytest.raises(DecodeError) as caught:
        sniff(first)
    assert not caught.value.usable


def test_the_names_of_the_dialects_are_those_that_a_client_can_be_told() -> None:
    assert ("auto", *DIALECTS) == DIALECT_NAMES
    assert all(kind.name == name for name, kind in DIALECTS.items())
