"""Unsigned LEB128 for collection ids before keys; only the shortest form is valid."""

from __future__ import annotations

from ..escaping import quoted

_MAX_BYTES = 5  # 32 bits, seven at a time
_MAX_ID = 0xFFFFFFFF
_SMALL = tuple(bytes([value]) for value in range(0x80))


def encode(value: int) -> bytes:
    """The shortest encoding of a 32-bit id."""
    if 0 <= value < 0x80:
        return _SMALL[value]
    if not 0 <= value <= _MAX_ID:
        raise ValueError(f"a collection id is a 32-bit number, not {value}")
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def decode(data: bytes | memoryview) -> tuple[int, int]:
    """The id at the start of ``data`` and its length in bytes; ValueError says what is wrong."""
    value = 0
    for position, byte in enumerate(data[:_MAX_BYTES]):
        value |= (byte & 0x7F) << (7 * position)
        if byte < 0x80:
            if byte == 0 and position:
                raise ValueError("the collection id is not in its shortest form")
            if value > _MAX_ID:
                raise ValueError("the collection id does not fit 32 bits")
            return value, position + 1
    if len(data) < _MAX_BYTES:
        raise ValueError("the collection id has no last byte")
    raise ValueError("the collection id has no last byte within 5 bytes")


def key_name(key: bytes) -> str:
    """A key with its collection id, as messages show it: the quoted name of the document alone."""
    try:
        start = decode(key)[1]
    except ValueError:
        start = 0
    return quoted(key[start:])
