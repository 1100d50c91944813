"""What is inside a value: Snappy, extended attributes, collection ids."""

from __future__ import annotations

import cramjam
import pytest
from hypothesis import given
from hypothesis import strategies as st

from upriver.model import Datatype
from upriver.wire import leb128
from upriver.wire.limits import MAX_INFLATED
from upriver.wire.values import deflate, inflate, join_xattrs, split_xattrs, unwrap

NAMES = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=16)
XATTRS = st.dictionaries(NAMES, st.binary(max_size=30), max_size=5)

#: As kv_engine's documentation of collections lists them, and what a decoder must refuse.
LEB128 = {
    0x0: "00",
    0x1: "01",
    0x7F: "7f",
    0x80: "8001",
    0x555: "d50a",
    0x7FFF: "ffff01",
    0xBFFF: "ffff02",
    0xFFFF: "ffff03",
    0x8000: "808002",
    0x5555: "d5aa01",
    0xCAFEF00: "80debf65",
    0xCAFEF00D: "8de0fbd70c",
    0xFFFFFFFF: "ffffffff0f",
}


@pytest.mark.parametrize(("number", "encoded"), LEB128.items())
def test_collection_ids(number: int, encoded: str) -> None:
    assert leb128.encode(number).hex() == encoded
    assert leb128.decode(bytes.fromhex(encoded) + b"key") == (number, len(encoded) // 2)


@pytest.mark.parametrize("encoded", ["8100", "8000", "", "80", "ffffffffff", "ffffffff1f"])
def test_collection_ids_that_are_none(encoded: str) -> None:
    with pytest.raises(ValueError, match="collection id"):
        leb128.decode(bytes.fromhex(encoded))


@given(st.integers(0, 2**32 - 1))
def test_every_collection_id(number: int) -> None:
    assert leb128.decode(leb128.encode(number))[0] == number


@pytest.mark.parametrize("number", [-1, 2**32])
def test_numbers_that_are_no_collection_id(number: int) -> None:
    with pytest.raises(ValueError, match="32-bit"):
        leb128.encode(number)


@given(xattrs=XATTRS, body=st.binary(max_size=50), compressed=st.booleans())
def test_a_wrapped_value_unwraps(xattrs: dict[str, bytes], body: bytes, compressed: bool) -> None:
    value, datatype = join_xattrs(xattrs, body), Datatype.XATTR
    assert split_xattrs(value) == (xattrs, body)
    if compressed:
        value, datatype = deflate(value), datatype | Datatype.SNAPPY
    assert unwrap(value, datatype) == (xattrs, body)


@given(st.binary(max_size=60))
def test_any_bytes_as_xattrs_or_snappy(raw: bytes) -> None:
    for read in (split_xattrs, inflate):
        try:
            read(raw)
        except ValueError as problem:
            assert str(problem)


def test_a_small_packet_cannot_unpack_into_all_of_memory() -> None:
    claims_too_much = (MAX_INFLATED + 1).to_bytes(4, "little")  # not yet a varint
    size, varint = MAX_INFLATED + 1, bytearray()
    while size >= 0x80:
        varint.append(size & 0x7F | 0x80)
        size >>= 7
    varint.append(size)
    with pytest.raises(ValueError, match="the limit is"):
        inflate(bytes(varint) + claims_too_much)


def test_a_size_that_snappy_cannot_reach_is_refused_before_it_is_allocated() -> None:
    most = 64 * 2**16
    packed = deflate(bytes(most))
    assert most > 20 * len(packed)
    assert inflate(packed) == bytes(most)
    with pytest.raises(ValueError, match="cannot decompress to 4194304 bytes"):
        inflate(packed[: len(packed) // 2])


def test_an_independent_snappy_reads_ours() -> None:
    text = b"the same words, the same words, the same words"
    assert bytes(cramjam.snappy.decompress_raw(deflate(text))) == text
    assert inflate(bytes(cramjam.snappy.compress_raw(text))) == text


@pytest.mark.parametrize(
    ("raw", "rule"),
    [
        ("0000", "needs a length of 4 bytes"),
        ("00000009ff", "exceeds the value"),
        ("00000002ffff", "truncated"),
        ("00000005000000ff61", "past the section's end"),
        ("000000080000000461626364", "not a zero-terminated name and value"),
        ("000000080000000400006100", "not a zero-terminated name and value"),
        ("0000000800000004ff006100", "not UTF-8"),
        ("0000001000000004610062000000000461006300", "twice"),
    ],
)
def test_broken_xattrs_say_where(raw: str, rule: str) -> None:
    with pytest.raises(ValueError, match=rule):
        split_xattrs(bytes.fromhex(raw))


@pytest.mark.parametrize("name", ["", "a\0b"])
def test_names_that_no_xattr_can_have(name: str) -> None:
    with pytest.raises(ValueError, match="not a valid name"):
        join_xattrs({name: b"v"}, b"")
