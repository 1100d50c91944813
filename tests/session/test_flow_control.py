"""The window of a connection, seen from both ends."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from upriver.model import VBucketState
from upriver.session.flow_control import ReceiveWindow, SendWindow, counted_size
from upriver.wire import kv_messages as kv
from upriver.wire import messages as m
from upriver.wire.dialects import Dcp
from upriver.wire.frameinfo import StreamId
from upriver.wire.protocol_enums import Command, DurabilityLevel, OsoFlag

DCP = Dcp()
PREPARE = m.Prepare(
    vbucket=0, seqno=1, key=b"kk", cas=1, value=b"vvv", level=DurabilityLevel.MAJORITY
)
MARKER = m.SnapshotMarker(vbucket=0, start=0, end=1)


@pytest.mark.parametrize(
    ("message", "counted"),
    [
        (m.StreamEnd(vbucket=0), 28),
        (MARKER, 44),
        (m.SnapshotMarker(vbucket=0, start=0, end=1, max_visible_seqno=1), 61),
        (m.SnapshotMarker(vbucket=0, start=0, end=1, purge_seqno=1), 77),
        (m.Mutation(vbucket=0, seqno=1, key=b"kk", value=b"vvv"), 55 + 5),
        (
            m.Mutation(vbucket=0, seqno=1, key=b"kk", value=b"vvv", frames=(StreamId(1),)),
            55 + 5 + 3,
        ),
        (m.Deletion(vbucket=0, seqno=1, key=b"kk"), 42 + 2),
        (m.Deletion(vbucket=0, seqno=1, key=b"kk", delete_time=1), 45 + 2),
        (m.Expiration(vbucket=0, seqno=1, key=b"kk"), 44 + 2),
        (m.SetStreamState(vbucket=0, state=VBucketState.DEAD), 25),
        (m.ScopeDropped(vbucket=0, seqno=1, manifest_uid=1, scope=8), 37 + 12),
        (PREPARE, 57 + 5),  # two bytes more than it has
        (m.Commit(vbucket=0, prepared_seqno=1, commit_seqno=2, key=b"kk"), 40 + 2),
        (m.SeqnoAdvanced(vbucket=0, seqno=1), 32),
        (m.OsoSnapshot(vbucket=0, flags=OsoFlag.START), 28),
        (m.StreamNoop(), 0),
        (m.StreamAccepted(), 0),
        (kv.MutationResponse(command=Command.SET), 0),
    ],
)
def test_what_takes_room(message: m.Message, counted: int) -> None:
    assert counted_size(DCP.encode(message)) == counted


def test_one_message_may_overshoot() -> None:
    window = SendWindow(100)
    window.sent(99)
    assert window.is_open
    window.sent(20 * 1024 * 1024)
    assert not window.is_open
    window.acknowledged(20 * 1024 * 1024 - 1)  # type: ignore[unreachable]
    assert not window.is_open  # exactly full is full
    window.acknowledged(1)
    assert window.is_open


def test_without_flow_control_nothing_is_counted() -> None:
    window = SendWindow()
    window.sent(10**9)
    assert window.is_open
    window.size = 10  # switched on in the middle
    assert window.is_open
    window.sent(10)
    assert not window.is_open
    window.size = 0  # type: ignore[unreachable]
    assert window.is_open


def test_too_much_acknowledged_is_no_credit() -> None:
    window = SendWindow(10)
    window.sent(5)
    window.acknowledged(1000)
    assert window.outstanding == 0
    window.sent(10)
    assert not window.is_open


def test_room_is_given_back_in_lumps_or_in_time() -> None:
    window = ReceiveWindow(1000, now=0.0)
    window.consumed(200)
    assert window.due(1.0) == 0
    window.consumed(1)
    assert window.due(1.0) == 201
    assert window.due(1.0) == 0
    window.consumed(1)
    assert window.due(5.9) == 0
    assert window.due(6.0) == 1
    assert window.due(60.0) == 0  # nothing to give


@given(
    size=st.integers(1, 10_000),
    sizes=st.lists(st.integers(24, 5_000), max_size=60),
)
def test_a_stream_never_sticks(size: int, sizes: list[int]) -> None:
    """Whatever the sizes, a reader that consumes everything lets the producer go on."""
    sender, receiver = SendWindow(size), ReceiveWindow(size, now=0.0)
    now = 0.0
    for counted in sizes:
        while not sender.is_open:
            now += 1.0
            sender.acknowledged(receiver.due(now))
            assert now < 1_000
        sender.sent(counted)
        assert sender.outstanding < size + counted
        receiver.consumed(counted)
    assert sender.outstanding == receiver.freed
