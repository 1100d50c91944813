"""Document values: Snappy compression and extended attributes (xattrs) around the body.

The datatype of a message says which of them are present. A malformed value raises ValueError; it
concerns one document and never the connection.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping

import cramjam

from ..model import Datatype
from .limits import MAX_INFLATED, MAX_INFLATION

_LENGTH = struct.Struct(">I")


def inflate(value: bytes) -> bytes:
    """Decompresses a Snappy value, never beyond the size limit of a document."""
    try:
        size = cramjam.snappy.decompress_raw_len(value)
        if size > MAX_INFLATED:
            raise ValueError(f"the value decompresses to {size} bytes, the limit is {MAX_INFLATED}")
        if size > MAX_INFLATION * len(value):  # the memory for it would be allocated first
            raise ValueError(f"{len(value)} bytes of Snappy cannot decompress to {size} bytes")
        return bytes(cramjam.snappy.decompress_raw(value))
    except cramjam.DecompressionError as problem:
        raise ValueError(f"the value is not a Snappy block: {problem}") from None


def deflate(value: bytes) -> bytes:
    """Compresses a value into a Snappy block."""
    return bytes(cramjam.snappy.compress_raw(value))


def split_xattrs(value: bytes) -> tuple[dict[str, bytes], bytes]:
    """The extended attributes of a value, by name, and the body."""
    if len(value) < _LENGTH.size:
        raise ValueError(f"the xattr section needs a length of 4 bytes, not {len(value)}")
    end = _LENGTH.size + _LENGTH.unpack_from(value)[0]
    if end > len(value):
        raise ValueError(f"the xattr section of {end - _LENGTH.size} bytes exceeds the value")
    xattrs: dict[str, bytes] = {}
    at = _LENGTH.size
    while at < end:
        if at + _LENGTH.size > end:
            raise ValueError(f"the xattr at byte {at} is truncated")
        stop = at + _LENGTH.size + _LENGTH.unpack_from(value, at)[0]
        if stop > end:
            raise ValueError(f"the xattr at byte {at} runs past the section's end")
        pair = value[at + _LENGTH.size : stop]
        name, separator, content = pair.partition(b"\0")
        if not name or not separator or not content.endswith(b"\0"):
            raise ValueError(f"the xattr at byte {at} is not a zero-terminated name and value")
        try:
            text = name.decode()
        except UnicodeDecodeError:
            raise ValueError(f"the xattr at byte {at} has a name that is not UTF-8") from None
        if text in xattrs:
            raise ValueError(f"the xattr {text} occurs twice")
        xattrs[text] = content[:-1]
        at = stop
    return xattrs, value[end:]


def join_xattrs(xattrs: Mapping[str, bytes], body: bytes) -> bytes:
    """A value made of extended attributes and a body."""
    section = bytearray()
    for name, content in xattrs.items():
        pair = name.encode() + b"\0" + content + b"\0"
        if not name or "\0" in name:
            raise ValueError(f"{name!r} is not a valid name of an xattr")
        section += _LENGTH.pack(len(pair)) + pair
    return _LENGTH.pack(len(section)) + bytes(section) + body


def unwrap(value: bytes, datatype: Datatype) -> tuple[dict[str, bytes], bytes]:
    """The extended attributes and the body of a value with this datatype."""
    if datatype & Datatype.SNAPPY:
        value = inflate(value)
    return split_xattrs(value) if datatype & Datatype.XATTR else ({}, value)
