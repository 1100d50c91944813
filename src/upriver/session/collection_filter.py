"""Collection filter of a stream: parses the JSON value of a stream request.

On a connection without collections every stream is a legacy stream: it sends the default
collection only, its keys without a collection prefix, and no system events. On a connection with
collections, a request without a value selects everything.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any, Final

from ..errors import Status

#: Clients send a few hundred bytes. A thousand collections of eight hex digits fit as well.
_MAX_VALUE: Final = 64 * 1024
_MAX_ID: Final = 2**32 - 1
_MAX_SEQNO: Final = 2**64 - 1
_SEQNO_DIGITS: Final = len(str(_MAX_SEQNO))
_MAX_STREAM_ID: Final = 0xFFFF
_KNOWN_KEYS: Final = frozenset({"uid", "sid", "collections", "scope", "purge_seqno", "cts"})
_DEFAULT: Final = 0


class FilterRefused(Exception):
    """The filter cannot be served. Carries the status to answer and the reason."""

    def __init__(self, status: Status, context: str, manifest_uid: int | None = None) -> None:
        super().__init__(context)
        self.status = status
        self.context = context
        #: For unknown collections and scopes: the uid of the manifest that lacks them.
        self.manifest_uid = manifest_uid


class FilterKind(Enum):
    LEGACY = auto()
    EVERYTHING = auto()
    COLLECTIONS = auto()
    #: Includes collections that are created in the scope later.
    SCOPE = auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamFilter:
    """The filter of a stream request after parsing."""

    kind: FilterKind
    #: The selected collections at the time of the request; empty if everything is selected.
    collections: frozenset[int] = frozenset()
    scope: int | None = None
    stream_id: int | None = None
    #: The purge seqno that the consumer received last.
    purge_seqno: int = 0
    #: The uid of the newest manifest that the consumer has seen; 0 if it names none.
    manifest_uid: int = 0


@dataclass(frozen=True, slots=True)
class KnownCollections:
    """The collections of the bucket, by scope."""

    uid: int
    scopes: dict[int, Collection[int]]

    def __contains__(self, collection: int) -> bool:
        return any(collection in members for members in self.scopes.values())


def parse_filter(
    value: bytes, known: KnownCollections, *, collections: bool, stream_ids: bool
) -> StreamFilter:
    """Parses the value of a stream request. Raises `FilterRefused` if it cannot be served."""
    if not collections:
        if value:
            raise FilterRefused(Status.INVALID, "a value needs a connection with collections")
        if _DEFAULT not in known:
            raise _unknown_collection(_DEFAULT, known)
        if stream_ids:
            raise FilterRefused(Status.STREAM_ID_INVALID, "a stream id is required")
        return StreamFilter(kind=FilterKind.LEGACY, collections=frozenset({_DEFAULT}))
    wanted = _Parser(_object(value), known).filter() if value else _EVERYTHING
    if stream_ids and wanted.stream_id is None:
        raise FilterRefused(Status.STREAM_ID_INVALID, "a stream id is required")
    if not stream_ids and wanted.stream_id is not None:
        raise FilterRefused(Status.STREAM_ID_INVALID, "stream ids were not enabled")
    return wanted


def names_stream_id(value: bytes) -> bool:
    """Whether the value of a stream request has a stream id, valid or not."""
    try:
        return "sid" in _object(value)
    except FilterRefused:
        return False


_EVERYTHING: Final = StreamFilter(kind=FilterKind.EVERYTHING)


def _object(value: bytes) -> dict[str, Any]:
    if len(value) > _MAX_VALUE:
        raise FilterRefused(Status.INVALID, f"the value is longer than {_MAX_VALUE} bytes")
    try:
        parsed = json.loads(value)
    except (ValueError, RecursionError):
        raise FilterRefused(Status.INVALID, "the value is not JSON") from None
    if not isinstance(parsed, dict):
        raise FilterRefused(Status.INVALID, "the value is no JSON object")
    if not _KNOWN_KEYS & parsed.keys():
        keys = ", ".join(sorted(_KNOWN_KEYS))
        raise FilterRefused(Status.INVALID, f"the value has none of the keys {keys}")
    return parsed


def _unknown_collection(collection: int, known: KnownCollections) -> FilterRefused:
    context = f"there is no collection {collection:#x}"
    return FilterRefused(Status.UNKNOWN_COLLECTION, context, known.uid)


class _Parser:
    """Reads the known keys of one value, in the order in which Couchbase servers check them."""

    def __init__(self, content: dict[str, Any], known: KnownCollections) -> None:
        self._content = content
        self._known = known

    def filter(self) -> StreamFilter:
        stream_id = self._stream_id()
        uid = self._get("uid", str)
        kind, collections, scope = self._selection()
        purge = self._get("purge_seqno", str)
        if purge is not None and not (purge.isascii() and purge.isdigit()):
            raise FilterRefused(Status.INVALID, "purge_seqno is no decimal number")
        if purge is not None and (len(purge) > _SEQNO_DIGITS or int(purge) > _MAX_SEQNO):
            raise FilterRefused(Status.INVALID, "purge_seqno does not fit 64 bits")
        self._get("cts", dict)
        return StreamFilter(
            kind=kind,
            collections=collections,
            scope=scope,
            stream_id=stream_id,
            purge_seqno=int(purge) if purge else 0,
            manifest_uid=0 if uid is None else _hex(uid, "manifest", _MAX_SEQNO),
        )

    def _stream_id(self) -> int | None:
        stream_id = self._get("sid", int)
        if stream_id is None:
            return None
        if stream_id == 0:
            raise FilterRefused(Status.STREAM_ID_INVALID, "0 is no stream id")
        if not 0 < stream_id <= _MAX_STREAM_ID:
            raise FilterRefused(Status.INVALID, f"a stream id is 1 to {_MAX_STREAM_ID}")
        return int(stream_id)

    def _selection(self) -> tuple[FilterKind, frozenset[int], int | None]:
        scope, names = self._get("scope", str), self._get("collections", list)
        if scope is not None and names is not None:
            raise FilterRefused(Status.INVALID, "give scope or collections, not both")
        if scope is not None:
            number = _hex(scope, "scope")
            if number not in self._known.scopes:
                context = f"there is no scope {number:#x}"
                raise FilterRefused(Status.UNKNOWN_SCOPE, context, self._known.uid)
            return FilterKind.SCOPE, frozenset(self._known.scopes[number]), number
        if names is not None:
            return FilterKind.COLLECTIONS, frozenset(map(self._collection, names)), None
        return FilterKind.EVERYTHING, frozenset(), None

    def _collection(self, name: object) -> int:
        if not isinstance(name, str):
            raise FilterRefused(Status.INVALID, "a collection is a hex string")
        number = _hex(name, "collection")
        if number not in self._known:
            raise _unknown_collection(number, self._known)
        return number

    def _get(self, key: str, kind: type) -> Any:
        content = self._content.get(key)
        if key in self._content and (not isinstance(content, kind) or isinstance(content, bool)):
            raise FilterRefused(Status.INVALID, f"{key} is no {kind.__name__}")
        return content


def _hex(text: str, what: str, most: int = _MAX_ID) -> int:
    try:
        if text.startswith(("-", "+", " ")) or "_" in text:
            raise ValueError
        number = int(text, 16)
    except ValueError:
        raise FilterRefused(Status.INVALID, f"{text!r} is no {what} id in hex") from None
    if number > most:
        raise FilterRefused(Status.INVALID, f"{text!r} does not fit {most.bit_length()} bits")
    return number
