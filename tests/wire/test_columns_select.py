"""What a stream takes of stored frames: both implementations agree, whatever the bytes are."""

from __future__ import annotations

from typing import Any

import pytest
from columns_reference import C, needs_c, on_both
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from stored_frames import COLLECTIONS, frame_lists

from examples import examples
from upriver.wire import canonical
from upriver.wire.columns import Part, Selected, Selection
from upriver.wire.columns.frame_selection import MAX_LEFT
from upriver.wire.columns.interface import Implementation
from upriver.wire.columns.numpy_path import NUMPY

ALL = Part(sum(Part)) & ~Part.DATATYPE
_relaxed = settings(
    max_examples=examples(400),
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
selections = st.builds(
    Selection,
    parts=st.integers(0, sum(Part)).map(Part),
    opaque=st.integers(0, 2**32 - 1),
    stream_id=st.one_of(st.none(), st.integers(0, 0xFFFF)),
    collections=st.one_of(
        st.none(),
        st.frozensets(st.sampled_from(COLLECTIONS), max_size=5).map(lambda x: tuple(sorted(x))),
    ),
)


def outcome(columns: Implementation, data: bytes, selection: Selection) -> Selected | str:
    try:
        return columns.select(data, selection)
    except ValueError as problem:
        return str(problem)


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    """Stored frames with bits flipped, or cut off."""
    data = bytearray(b"".join(draw(frame_lists())))
    for _ in range(draw(st.integers(0, 6)) if data else 0):
        bit = draw(st.integers(0, 8 * len(data) - 1))
        data[bit >> 3] ^= 1 << (bit & 7)
    return bytes(data[: draw(st.one_of(st.just(len(data)), st.integers(0, len(data))))])


@needs_c
@_relaxed
@given(damaged(), selections)
@example(b"", Selection(parts=ALL, opaque=0))
@example(bytes(24), Selection(parts=ALL, opaque=0))
@example(b"\x80\x5f" + bytes(22), Selection(parts=ALL, opaque=1, stream_id=2))
def test_both_implementations_are_one(data: bytes, selection: Selection) -> None:
    assert C is not None
    assert outcome(C, data, selection) == outcome(NUMPY, data, selection)


def plain(number: int, *, collection: bytes = b"\0", datatype: int = 0) -> bytes:
    key = collection + b"k%d" % number
    return canonical.mutation(5, number, 1, 7, 0, 0, datatype, key, b"value")


@on_both
def test_runs_of_wanted_frames_are_sent_as_they_are(columns: Implementation) -> None:
    frames = [plain(n, collection=b"\x08" if n % 4 == 0 else b"\0") for n in range(1, 9)]
    found = columns.select(b"".join(frames), Selection(parts=ALL, opaque=9, collections=(0,)))
    kept = [x[:12] + b"\0\0\0\x09" + x[16:] for n, x in enumerate(frames, 1) if n % 4]
    assert found.packets == b"".join(kept)
    assert (found.count, found.last_seqno, found.left) == (6, 7, ())
    assert found.consumed == sum(map(len, frames))


@on_both
def test_a_walk_stops_before_an_event_that_is_not_passed_on(columns: Implementation) -> None:
    event = b"\x80\x5f" + bytes(9) + b"\x15" + bytes(12) + bytes(21)
    data = plain(1) + event + plain(2)
    found = columns.select(data, Selection(parts=ALL & ~Part.EVENTS, opaque=9))
    assert (found.count, found.consumed) == (1, len(plain(1)))
    assert columns.select(data, Selection(parts=ALL, opaque=9)).count == 3


@on_both
def test_frames_that_are_left_are_pointed_at_and_bounded(columns: Implementation) -> None:
    frames = [plain(n, datatype=2) for n in range(1, MAX_LEFT + 3)]
    data = plain(1) + b"".join(frames)
    found = columns.select(data, Selection(parts=ALL & ~Part.SNAPPY_VALUES, opaque=9))
    assert len(found.left) == MAX_LEFT
    assert found.left[0] == (len(plain(1)), len(plain(1)), len(frames[0]))
    assert found.consumed == len(plain(1)) + sum(map(len, frames[:MAX_LEFT]))


@on_both
@pytest.mark.parametrize("fault", [b"\x80", plain(1)[:-1], b"\x01" + bytes(40), bytes(24)], ids=len)
def test_a_malformed_buffer(columns: Implementation, fault: bytes) -> None:
    with pytest.raises(ValueError, match=f"no whole frame at byte {len(plain(1))} of"):
        columns.select(plain(1) + fault, Selection(parts=ALL, opaque=1))


@on_both
@pytest.mark.parametrize(
    ("more", "text"),
    [
        ({"opaque": 2**32}, "32-bit"),
        ({"opaque": -1}, "32-bit"),
        ({"opaque": 1, "stream_id": 2**16}, "16-bit"),
        ({"opaque": 1, "collections": (-1, 2)}, "ascending"),
        ({"opaque": 1, "collections": (1, 2**32)}, "ascending"),
    ],
)
def test_numbers_that_do_not_fit(columns: Implementation, more: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        columns.select(plain(1), Selection(parts=ALL, **more))


@needs_c
def test_the_accelerator_checks_the_room_that_it_is_given() -> None:
    from upriver.wire.columns import _speedups

    data, places = plain(1), bytearray(12)
    for size in range(len(data)):
        with pytest.raises(ValueError, match="no room"):
            _speedups.select(data, int(ALL), 1, -1, True, b"", bytearray(size), places)
    with pytest.raises((TypeError, BufferError)):
        _speedups.select(data, int(ALL), 1, -1, True, b"", bytes(len(data)), places)
