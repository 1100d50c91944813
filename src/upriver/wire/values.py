"""What a document's value is made of: Snappy around extended attributes around the body.

The datatype of a message says which of these are there. Errors are ValueErrors that say what is
wrong with the value; it is one document's fault, never the connection's.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping

import cramjam

from ..model import Datatype
from .limits import MAX_INFLATED

__all__ = ["deflate", "inflate", "join_xattrs", "split_xattrs", "unwrap"]

_LENGTH = struct.Struct(">I")


def inflate(value: bytes) -> bytes:
    """Decompresses a Snappy value, never beyond the size limit of a document."""
    try:
        size = cramjam.snappy.decompress_raw_len(value)
        if size > MAX_INFLATED:
            raise ValueError(f"the value unpacks to {size} bytes, the limit is {MAX_INFLATED}")
        return bytes(cramjam.snappy.decompress_raw(value))
    except cramjam.DecompressionError as problem:
        raise ValueError(f"the value is no Snappy block: {problem}") from None


def deflate(value: bytes) -> bytes:
    """Compresses a value into a Snappy block."""
    return bytes(cramjam.snappy.compress_raw(value))


def split_xattrs(value: bytes) -> tuple[dict[str, bytes], bytes]:
    """The extended attributes of a value, by name, and the body behind them."""
    if len(value) < _LENGTH.size:
        raise ValueError(f"the length of the xattr section needs 4 bytes, {len(value)} are there")
    end = _LENGTH.size + _LENGTH.unpack_from(value)[0]
    if end > len(value):
        raise ValueError(f"the xattr section says {end - _LENGTH.size} bytes, too many")
    xattrs: dict[str, bytes] = {}
    at = _LENGTH.size
    while at < end:
        if at + _LENGTH.size > end:
            raise ValueError(f"the xattr at byte {at} is cut off")
        stop = at + _LENGTH.size + _LENGTH.unpack_from(value, at)[0]
        if stop > end:
            raise ValueError(f"the xattr at byte {at} runs past the section's end")
        pair = value[at + _LENGTH.size : stop]
        name, separator, content = pair.partition(b"\0")
        if not name or not separator or not content.endswith(b"\0"):
            raise ValueError(f"the xattr at byte {at} is no name and value, each ended by 0")
        try:
            text = name.decode()
        except UnicodeDecodeError:
            raise ValueError(f"the xattr at byte {at} has a name that is not UTF-8") from None
        if text in xattrs:
            raise ValueError(f"the xattr {text} is there twice")
        xattrs[text] = content[:-1]
        at = stop
    return xattrs, value[end:]


def join_xattrs(xattrs: Mapping[str, bytes], body: bytes) -> bytes:
    """A value with extended attributes before its body."""
    section = bytearray()
    for name, content in xattrs.items():
        pair = name.encode() + b"\0" + content + b"\0"
        if not name or "\0" in name:
            raise ValueError(f"{name!r} cannot name an xattr")
        section += _LENGTH.pack(len(pair)) + pair
    return _LENGTH.pack(len(section)) + bytes(section) + body


def unwrap(value: bytes, datatype: Datatype) -> tuple[dict[str, bytes], bytes]:
    """The extended attributes and the body of a value as its datatype says."""
    if datatype & Datatype.SNAPPY:
        value = inflate(value)
    return split_xattrs(value) if datatype & Datatype.XATTR else ({}, value)
