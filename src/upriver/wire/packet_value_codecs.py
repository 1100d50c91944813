"""Codecs for structured packet values: failover logs, seqno lists, features, sub-document paths.

Each is a pair of functions over a whole value; they raise ValueError with the broken rule.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

from ..model import Datatype, FailoverEntry
from . import limits
from .enum_codes import Codes
from .kv_messages import SubdocPath
from .layout import Value
from .messages import CachedItem
from .protocol_enums import Command

_ENTRY = struct.Struct(
    ">"
    "Q"  # vbuuid
    "Q"  # seqno
)
_SEQNO = struct.Struct(
    ">"
    "H"  # vbucket
    "Q"  # seqno
)
_KEY_HEAD = struct.Struct(
    ">"
    "H"  # vbucket
    "H"  # key length
)
_CACHED = struct.Struct(
    ">"
    "Q"  # cas
    "Q"  # by seqno
    "Q"  # rev seqno
    "I"  # value length
    "I"  # flags
    "I"  # expiration
    "H"  # key length
    "B"  # datatype
    "B"  # cache hint
)
_LOOKUP = struct.Struct(
    ">"
    "B"  # opcode
    "B"  # path flags
    "H"  # path length
)
_CHANGE = struct.Struct(
    ">"
    "B"  # opcode
    "B"  # path flags
    "H"  # path length
    "I"  # value length
)
_U16 = struct.Struct(">H")


def _load_failover_log(raw: bytes) -> tuple[FailoverEntry, ...]:
    if len(raw) % _ENTRY.size:
        raise ValueError(f"a failover log is pairs of {_ENTRY.size} bytes, not {len(raw)} bytes")
    if len(raw) // _ENTRY.size > limits.MAX_FAILOVER_LOG:
        raise ValueError(f"a failover log has at most {limits.MAX_FAILOVER_LOG} entries")
    return tuple(FailoverEntry(*pair) for pair in _ENTRY.iter_unpack(raw))


def _dump_failover_log(entries: tuple[FailoverEntry, ...]) -> bytes:
    if len(entries) > limits.MAX_FAILOVER_LOG:
        raise ValueError(f"a failover log has at most {limits.MAX_FAILOVER_LOG} entries")
    return b"".join(_ENTRY.pack(entry.vbuuid, entry.seqno) for entry in entries)


def _load_seqnos(raw: bytes) -> tuple[tuple[int, int], ...]:
    if len(raw) % _SEQNO.size:
        raise ValueError(f"seqnos are pairs of {_SEQNO.size} bytes, not {len(raw)} bytes")
    return tuple((vbucket, seqno) for vbucket, seqno in _SEQNO.iter_unpack(raw))


def _dump_seqnos(pairs: tuple[tuple[int, int], ...]) -> bytes:
    return b"".join(_SEQNO.pack(vbucket, seqno) for vbucket, seqno in pairs)


def _load_text(raw: bytes) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError as problem:
        raise ValueError(f"byte {problem.start} of it is not UTF-8 text") from None


def _load_version(raw: bytes) -> int:
    if len(raw) != _U16.size:
        raise ValueError(f"must be 2 bytes, not {len(raw)}")
    return int(_U16.unpack(raw)[0])


def _records(raw: bytes, head: struct.Struct, what: str) -> Callable[[int], tuple[Any, ...]]:
    def at(offset: int) -> tuple[Any, ...]:
        if offset + head.size > len(raw):
            raise ValueError(f"{what} at byte {offset} of it is cut off")
        return head.unpack_from(raw, offset)

    return at


def _take(raw: bytes, offset: int, length: int, what: str) -> bytes:
    if offset + length > len(raw):
        raise ValueError(f"{what} at byte {offset} of it says {length} bytes, too many")
    return raw[offset : offset + length]


def _load_keys(raw: bytes) -> tuple[tuple[int, bytes], ...]:
    head, keys, at = _records(raw, _KEY_HEAD, "a key"), [], 0
    while at < len(raw):
        vbucket, length = head(at)
        at += _KEY_HEAD.size
        keys.append((vbucket, _take(raw, at, length, "a key")))
        at += length
    return tuple(keys)


def _dump_keys(keys: tuple[tuple[int, bytes], ...]) -> bytes:
    return b"".join(_KEY_HEAD.pack(vbucket, len(key)) + key for vbucket, key in keys)


def _load_cached(raw: bytes) -> tuple[CachedItem, ...]:
    head, items, at = _records(raw, _CACHED, "an item"), [], 0
    while at < len(raw):
        cas, seqno, rev, value_length, flags, expiry, key_length, datatype, hint = head(at)
        if datatype > 7:
            raise ValueError(f"an item at byte {at} of it has the unknown datatype {datatype:#04x}")
        at += _CACHED.size
        key = _take(raw, at, key_length, "a key")
        at += key_length
        value = _take(raw, at, value_length, "a value")
        at += value_length
        items.append(
            CachedItem(
                seqno=seqno,
                key=key,
                value=value,
                rev=rev,
                cas=cas,
                flags=flags,
                expiry=expiry,
                datatype=Datatype(datatype),
                cache_hint=hint,
            )
        )
    return tuple(items)


def _dump_cached(items: tuple[CachedItem, ...]) -> bytes:
    return b"".join(
        _CACHED.pack(
            item.cas,
            item.seqno,
            item.rev,
            len(item.value),
            item.flags,
            item.expiry,
            len(item.key),
            item.datatype,
            item.cache_hint,
        )
        + item.key
        + item.value
        for item in items
    )


def feature_list(codes: Codes) -> Value:
    """The codec of HELLO's features, two bytes each; unknown ones stay numbers."""

    def load(raw: bytes) -> tuple[Any, ...]:
        if len(raw) % _U16.size:
            raise ValueError(f"features are 2 bytes each, not {len(raw)} bytes in all")
        if len(raw) // _U16.size > limits.MAX_FEATURES:
            raise ValueError(f"more than {limits.MAX_FEATURES} features")
        return tuple(codes.names.get(number, number) for (number,) in _U16.iter_unpack(raw))

    def dump(features: tuple[Any, ...]) -> bytes:
        return b"".join(
            _U16.pack(feature if isinstance(feature, int) else codes.dump(feature))
            for feature in features
        )

    return Value("features", load, dump)


def lookup_paths(opcodes: Codes) -> Value:
    """The codec of the paths of a sub-document lookup."""

    def load(raw: bytes) -> tuple[SubdocPath, ...]:
        head, paths, at = _records(raw, _LOOKUP, "a path"), [], 0
        while at < len(raw):
            opcode, flags, length = head(at)
            at += _LOOKUP.size
            path = _take(raw, at, length, "a path")
            at += length
            paths.append(SubdocPath(command=opcodes.load(opcode), path=path, path_flags=flags))
        return tuple(paths)

    def dump(paths: tuple[SubdocPath, ...]) -> bytes:
        if any(path.value for path in paths):
            raise ValueError("a lookup has no values")
        return b"".join(
            _LOOKUP.pack(opcodes.dump(path.command), path.path_flags, len(path.path)) + path.path
            for path in paths
        )

    return Value("paths", load, dump, required=True)


def mutation_paths(opcodes: Codes) -> Value:
    """The codec of the paths and values of a sub-document mutation."""

    def load(raw: bytes) -> tuple[SubdocPath, ...]:
        head, paths, at = _records(raw, _CHANGE, "a path"), [], 0
        while at < len(raw):
            opcode, flags, path_length, value_length = head(at)
            at += _CHANGE.size
            path = _take(raw, at, path_length, "a path")
            at += path_length
            value = _take(raw, at, value_length, "a value")
            at += value_length
            command: Command = opcodes.load(opcode)
            paths.append(SubdocPath(command=command, path=path, value=value, path_flags=flags))
        return tuple(paths)

    def dump(paths: tuple[SubdocPath, ...]) -> bytes:
        return b"".join(
            _CHANGE.pack(
                opcodes.dump(path.command), path.path_flags, len(path.path), len(path.value)
            )
            + path.path
            + path.value
            for path in paths
        )

    return Value("paths", load, dump, required=True)


def text(attribute: str, *, required: bool = True) -> Value:
    """UTF-8 text."""
    return Value(attribute, _load_text, str.encode, required=required)


TEXT = text("value")
FAILOVER_LOG = Value("failover_log", _load_failover_log, _dump_failover_log, label="failover log")
ALL_SEQNOS = Value("seqnos", _load_seqnos, _dump_seqnos)
OBSERVED_KEYS = Value("keys", _load_keys, _dump_keys, required=True)
CACHED_ITEMS = Value("items", _load_cached, _dump_cached, required=True)
U16_VERSION = Value("version", _load_version, _U16.pack)
