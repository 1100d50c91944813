"""Encodes stored changes one at a time, for one stream and in any dialect.

`ChangeWriter` defines what a stream sends for each change. Streams of the current DCP dialect
encode runs of frames with `wire.columns`, which must produce the same packets. They call this
module only for the rest: system events, values that must be compressed or decompressed, and
xattrs that must be filtered. Streams of the older drafts use this module for every change.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum, auto
from typing import Final

from ..model import Datatype, Op
from ..wire import canonical, leb128, values
from ..wire import messages as m
from ..wire.canonical import CanonicalChange
from ..wire.dialects import Dcp, Dialect
from ..wire.enum_codes import DURABILITY_LEVELS
from ..wire.flatbuffer_event_encoder import StoredEvent, flatbuffer_event
from ..wire.frameinfo import FrameInfo, StreamId
from ..wire.protocol_enums import OpenFlag
from ..wire.stored_prepares import StoredPrepare
from .collection_filter import FilterKind, StreamFilter
from .producer_options import ProducerOptions

_STORED: Final = Dcp(collections=True)
_DEFAULT: Final = 0


class ValueMode(Enum):
    """Which part of a document's body is sent."""

    ALL = auto()
    NONE = auto()
    #: The body is left out, but the datatype still describes it.
    NONE_WITH_DATATYPE = auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """How a consumer wants each change encoded."""

    value: ValueMode = ValueMode.ALL
    xattrs: bool = False
    #: Send user xattrs of deleted documents too, not only system xattrs.
    deleted_user_xattrs: bool = False
    delete_times: bool = False
    #: Send expirations as Expiration messages; otherwise they are sent as deletions.
    expirations: bool = False
    snappy: bool = False
    #: Compress values that are stored uncompressed.
    compress: bool = False
    #: Send system events as FlatBuffers.
    flatbuffers: bool = False

    @classmethod
    def of(cls, options: ProducerOptions) -> Shape:
        """Returns the shape that follows from a connection's Open flags and controls."""
        value = ValueMode.ALL
        if options.has(OpenFlag.NO_VALUE):
            value = ValueMode.NONE
        elif options.has(OpenFlag.NO_VALUE_WITH_DATATYPE):
            value = ValueMode.NONE_WITH_DATATYPE
        return cls(
            value=value,
            xattrs=options.has(OpenFlag.INCLUDE_XATTRS),
            deleted_user_xattrs=options.has(OpenFlag.INCLUDE_DELETED_USER_XATTRS),
            delete_times=options.has(OpenFlag.INCLUDE_DELETE_TIMES),
            expirations=options.expiry_opcode,
            snappy=options.snappy,
            compress=options.force_compression,
            flatbuffers=options.flatbuffers,
        )


class ChangeWriter:
    """Encodes the changes of one stream, and tracks which collections its filter selects."""

    def __init__(
        self,
        dialect: Dialect,
        *,
        vbucket: int,
        opaque: int,
        shape: Shape,
        filter: StreamFilter,  # noqa: A002 - the protocol's own word
    ) -> None:
        self._dialect = dialect
        self._vbucket = vbucket
        self._opaque = opaque
        self._shape = shape
        self._filter = filter
        self.stream_id = stream_id = filter.stream_id
        self._frames: tuple[FrameInfo, ...] = () if stream_id is None else (StreamId(stream_id),)
        self._nru = canonical.NRU if dialect.sends_nru else 0
        #: The collections that the filter selects at this point of the stream.
        self.collections = set(filter.collections)
        #: Whether every collection that the filter selected has been dropped.
        self.emptied = False

    @property
    def wants_everything(self) -> bool:
        """Whether the stream sends all collections and all of their system events."""
        return self._dialect.collections and self._filter.kind is FilterKind.EVERYTHING

    def packet(self, frame: bytes, *, skip_deletions: bool = False) -> bytes | None:
        """Returns the packet for a stored frame, or None if the filter excludes it."""
        if canonical.is_event(frame):
            return self._event(frame)
        change = canonical.parse(frame)
        if not self._wants(change.collection) or (skip_deletions and change.op is not Op.MUTATION):
            return None
        message = self._change(change)
        return self.encode(message)

    # ---- durable writes ------------------------------------------------------------------

    def prepare(self, one: StoredPrepare) -> bytes | None:
        """Returns the packet for a prepare, or None if the filter excludes its collection."""
        collection, size = leb128.decode(one.key)
        if not self._wants(collection):
            return None
        op = Op.DELETION if one.deleted else Op.MUTATION
        change = CanonicalChange(
            op,
            one.vbucket,
            one.seqno,
            one.rev,
            one.cas,
            one.flags,
            one.time,
            one.datatype,
            collection,
            one.key[size:],
            one.value,
        )
        value, datatype = self._remains(change) if one.deleted else self._body(change)
        message = m.Prepare(
            vbucket=self._vbucket,
            seqno=one.seqno,
            rev=one.rev,
            cas=one.cas,
            flags=one.flags,
            expiry=one.time,
            deleted=one.deleted,
            level=DURABILITY_LEVELS.load(one.level),
            key=change.key,
            value=value,
            datatype=datatype,
            collection=collection if self._dialect.collections else None,
        )
        return self.encode(message)

    def commit(self, key: bytes, prepared_seqno: int, seqno: int) -> bytes | None:
        """Returns the packet for a commit. ``key`` begins with its collection id."""
        return self._completion(m.Commit, key, prepared_seqno, commit_seqno=seqno)

    def abort(self, key: bytes, prepared_seqno: int, seqno: int) -> bytes | None:
        """Returns the packet for an abort. ``key`` begins with its collection id."""
        return self._completion(m.Abort, key, prepared_seqno, abort_seqno=seqno)

    def _completion(
        self, kind: Callable[..., m.Message], key: bytes, prepared_seqno: int, **seqno: int
    ) -> bytes | None:
        collection, size = leb128.decode(key)
        if not self._wants(collection):
            return None
        message = kind(
            vbucket=self._vbucket,
            prepared_seqno=prepared_seqno,
            key=key[size:],
            collection=collection if self._dialect.collections else None,
            **seqno,
        )
        return self.encode(message)

    def encode(self, message: m.Message) -> bytes:
        """Encodes a message with the stream's opaque and stream id."""
        return self._dialect.encode(replace(message, opaque=self._opaque, frames=self._frames))

    def _wants(self, collection: int) -> bool:
        if not self._dialect.collections:
            return collection == _DEFAULT
        return self.wants_everything or collection in self.collections

    def _change(self, change: CanonicalChange) -> m.Message:
        collection = change.collection if self._dialect.collections else None
        if change.op is Op.MUTATION:
            value, datatype = self._body(change)
            return m.Mutation(
                vbucket=self._vbucket,
                seqno=change.seqno,
                rev=change.rev,
                cas=change.cas,
                flags=change.flags,
                expiry=change.time,
                key=change.key,
                value=value,
                datatype=datatype if self._dialect.negotiates else Datatype.RAW,
                collection=collection,
                nru=self._nru,
            )
        value, datatype = self._remains(change)
        modern = self._dialect.negotiates
        expired = change.op is Op.EXPIRATION and (self._shape.expirations or not modern)
        kind: Callable[..., m.Deletion] = m.Expiration if expired else m.Deletion
        timed = modern and (self._shape.delete_times or expired)
        return kind(
            vbucket=self._vbucket,
            seqno=change.seqno,
            rev=change.rev,
            cas=change.cas,
            key=change.key,
            value=value,
            datatype=datatype,
            delete_time=change.time if timed else None,
            collection=collection,
        )

    def _body(self, change: CanonicalChange) -> tuple[bytes, Datatype]:
        """Returns a document's value and datatype in the shape that the consumer asked for."""
        shape, value, datatype = self._shape, change.value, Datatype(change.datatype)
        modern = self._dialect.negotiates
        has_xattrs = bool(datatype & Datatype.XATTR)
        if shape.value is not ValueMode.ALL:
            kept = b""
            if has_xattrs and shape.xattrs:
                kept = values.join_xattrs(values.unwrap(value, datatype)[0], b"")
            if shape.value is ValueMode.NONE_WITH_DATATYPE:
                return kept, datatype & ~Datatype.SNAPPY
            return kept, Datatype.XATTR if kept else Datatype.RAW
        hidden = has_xattrs and not (shape.xattrs and modern)
        compressed = bool(datatype & Datatype.SNAPPY)
        if compressed and (hidden or not (shape.snappy and modern)):
            value, datatype, compressed = values.inflate(value), datatype & ~Datatype.SNAPPY, False
        if hidden:
            value, datatype = values.split_xattrs(value)[1], datatype & ~Datatype.XATTR
        if shape.compress and value and not compressed and modern:
            smaller = values.deflate(value)
            if len(smaller) < len(value):
                value, datatype = smaller, datatype | Datatype.SNAPPY
        return value, datatype

    def _remains(self, change: CanonicalChange) -> tuple[bytes, Datatype]:
        """Returns the value of a deletion: its xattrs, if the consumer asked for xattrs."""
        wanted = self._dialect.negotiates and self._shape.xattrs
        if not (wanted and change.datatype & Datatype.XATTR):
            return b"", Datatype.RAW
        xattrs, _ = values.unwrap(change.value, Datatype(change.datatype))
        if not self._shape.deleted_user_xattrs:
            xattrs = {name: text for name, text in xattrs.items() if name.startswith("_")}
        if not xattrs:
            return b"", Datatype.RAW
        return values.join_xattrs(xattrs, b""), Datatype.XATTR

    # ---- system events -------------------------------------------------------------------

    def _event(self, frame: bytes) -> bytes | None:
        """Encodes a system event, if the stream has collections and its filter includes it."""
        message = _STORED.decode(frame)
        wanted = self._dialect.collections and self._wants_event(message)
        self._follow(message)
        if not wanted:
            return None
        if self._shape.flatbuffers and isinstance(message, StoredEvent):
            message = flatbuffer_event(message)
        return self.encode(message)

    def _follow(self, message: m.Message) -> None:
        """Updates the selected collections after a system event."""
        kind = self._filter.kind
        if isinstance(message, m.CollectionCreated):
            if kind is FilterKind.SCOPE and message.scope == self._filter.scope:
                self.collections.add(message.collection)
        elif isinstance(message, m.CollectionDropped) and message.collection in self.collections:
            self.collections.discard(message.collection)
            self.emptied = kind is not FilterKind.SCOPE and not self.collections
        elif isinstance(message, m.ScopeDropped) and kind is FilterKind.SCOPE:
            self.emptied = self.emptied or message.scope == self._filter.scope

    def _wants_event(self, message: m.Message) -> bool:
        if self._filter.kind is FilterKind.SCOPE:
            return getattr(message, "scope", None) == self._filter.scope
        if self._filter.kind is FilterKind.COLLECTIONS:
            return getattr(message, "collection", None) in self.collections
        return True
