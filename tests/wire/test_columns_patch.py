"""Stored frames get the opaque of the stream that sends them."""

from __future__ import annotations

import pytest
from columns_reference import CHANGES, on_both
from hypothesis import given
from hypothesis import strategies as st

from upriver.wire import canonical
from upriver.wire.columns.interface import Implementation
from upriver.wire.dialects import Dcp

_STORED = [
    canonical.mutation(5, 1, 1, 7, 0, 0, 1, b"\0one", b"{}"),
    canonical.deletion(5, 2, 2, 8, 1_700_000_000, 0, b"\0two"),
    canonical.expiration(5, 3, 3, 9, 1_700_000_000, 0, b"\x08three"),
    canonical.mutation(5, 4, 1, 7, 0, 0, 0, b"\0four", bytes(5000)),
]


@on_both
@given(opaque=st.integers(0, 2**32 - 1), frames=st.lists(st.sampled_from(_STORED), max_size=8))
def test_only_the_opaque_changes(columns: Implementation, opaque: int, frames: list[bytes]) -> None:
    buffer = bytearray(b"".join(frames))
    assert columns.patch_opaque(buffer, opaque) == len(frames)
    wanted = b"".join(x[:12] + opaque.to_bytes(4, "big") + x[16:] for x in frames)
    assert buffer == wanted


@on_both
def test_what_is_sent_has_the_opaque(columns: Implementation) -> None:
    buffer = bytearray(_STORED[0])
    columns.patch_opaque(buffer, 0xDEADBEEF)
    assert Dcp(collections=True).decode(bytes(buffer)).opaque == 0xDEADBEEF


@on_both
def test_a_part_of_a_buffer(columns: Implementation) -> None:
    buffer = bytearray(b"\xff" + _STORED[0] + b"\xff" * 9)
    part = memoryview(buffer)[1:-9]
    assert columns.patch_opaque(part, 1) == 1
    assert buffer[0] == 0xFF
    assert buffer.endswith(b"\xff" * 9)
    assert buffer[13:17] == b"\0\0\0\x01"


@on_both
@pytest.mark.parametrize(
    "fault", [b"\x80", _STORED[0][:-1], b"\x01" + bytes(40), b"\0", bytes(24)], ids=len
)
def test_a_malformed_buffer(columns: Implementation, fault: bytes) -> None:
    """What stands before the fault is patched, the rest is left alone."""
    buffer = bytearray(_STORED[1] + fault)
    with pytest.raises(ValueError, match=f"no whole frame at byte {len(_STORED[1])} of"):
        columns.patch_opaque(buffer, 6)
    assert buffer[12:16] == b"\0\0\0\x06"
    assert buffer.endswith(fault)
    buffer.extend(b"still free")


@on_both
def test_a_length_above_the_limit(columns: Implementation) -> None:
    huge = bytearray(_STORED[0])
    huge[8:12] = b"\x7f\xff\xff\xff"
    with pytest.raises(ValueError, match="no whole frame at byte 0"):
        columns.patch_opaque(huge, 6)


@on_both
@pytest.mark.parametrize("opaque", [-1, 2**32, 2**64])
def test_an_opaque_that_does_not_fit(columns: Implementation, opaque: int) -> None:
    buffer = bytearray(_STORED[0])
    with pytest.raises(ValueError, match="32-bit"):
        columns.patch_opaque(buffer, opaque)
    assert buffer == _STORED[0]


@on_both
def test_a_buffer_that_cannot_be_written(columns: Implementation) -> None:
    with pytest.raises(TypeError, match="writable"):
        columns.patch_opaque(memoryview(CHANGES["mutation"]), 1)
