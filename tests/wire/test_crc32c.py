"""CRC-32C against its definition."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from upriver.wire.crc32c import crc32c


def by_the_book(data: bytes) -> int:
    checksum = 0xFFFFFFFF
    for byte in data:
        checksum ^= byte
        for _ in range(8):
            checksum = checksum >> 1 ^ (0x82F63B78 if checksum & 1 else 0)
    return checksum ^ 0xFFFFFFFF


def test_the_check_value_of_the_catalogue() -> None:
    assert crc32c(b"123456789") == 0xE3069283


@given(st.binary(max_size=300))
def test_any_bytes(data: bytes) -> None:
    assert crc32c(data) == by_the_book(data)


@pytest.mark.parametrize("size", [65_535, 65_536, 65_537, 131_073])
def test_blocks_are_combined(size: int) -> None:
    data = bytes(number * number % 251 for number in range(size))
    assert crc32c(data) == by_the_book(data)
