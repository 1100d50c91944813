"""What one stream sends, in any dialect: stored changes in the shape its consumer asked for.

Stored frames are DCP packets that carry everything. A consumer that wants everything gets the
stored bytes with its opaque written in; what anybody else must not or cannot see is taken out of
each frame that has it, and only those frames are made anew. The order of messages around the
changes is the draft's own:

    002        Stream Start, { Snapshot Start, changes, Snapshot End }*, Stream End
    000        Stream Start, { Snapshot Start, changes, Snapshot End }*, Flush?, Stream End
    001        { Snapshot Marker, changes }*, Flush?, Stream End
    DCP        { Snapshot Marker with its seqnos, changes, Seqno Advanced? }*, Stream End

A Flush has no room for a seqno or a name. What follows it is another history that begins at
seqno 0, and seqnos only rise inside a stream: so the stream ends behind it, and whoever asks again
is told the new name.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum, auto
from typing import Final

from ..model import Datatype, Op, StreamEndReason, VBucketState
from ..wire import canonical, values
from ..wire import messages as m
from ..wire.canonical import CanonicalChange
from ..wire.columns import patch_opaque
from ..wire.dialects import Dcp, Dialect, Draft001, Draft002
from ..wire.frameinfo import FrameInfo, StreamId
from ..wire.header import HEADER_SIZE, REQUEST
from ..wire.names import MarkerFlag, OpenFlag, OsoFlag
from .filters import FilterKind, StreamFilter
from .options import ProducerOptions

__all__ = ["Changes", "Shape", "StreamOutput", "ValueMode"]

_STORED: Final = Dcp(collections=True)
_LENGTHS = struct.Struct(">I")
#: A plain marker, packed by hand because a tail has one for almost every change.
_MARKER = struct.Struct(
    ">"
    "B"  # magic
    "B"  # opcode
    "2x"  # key length
    "B"  # extras length
    "x"  # datatype
    "H"  # vbucket
    "I"  # total body length
    "I"  # opaque
    "8x"  # cas
    "Q"  # start
    "Q"  # end
    "I"  # flags
)
_MARKER_OPCODE: Final = 0x56
_MARKER_EXTRAS: Final = _MARKER.size - HEADER_SIZE
_BODY_AT: Final = 8
_MUTATION: Final = 0x57
_MUTATION_KEY_AT: Final = HEADER_SIZE + 31
_DELETION: Final = 0x58
_EXPIRATION: Final = 0x59
_DELETIONS: Final = frozenset({_DELETION, _EXPIRATION})
_SYSTEM_EVENT: Final = 0x5F
_DEFAULT: Final = 0


class ValueMode(Enum):
    """How much of a document's body is sent."""

    ALL = auto()
    NONE = auto()
    #: The body is left out, the datatype says what it was.
    NONE_WITH_DATATYPE = auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """What a consumer wants to see of each change."""

    value: ValueMode = ValueMode.ALL
    xattrs: bool = False
    #: Of deleted documents not only the system's attributes.
    deleted_user_xattrs: bool = False
    delete_times: bool = False
    #: Expirations as such, and not as deletions.
    expirations: bool = False
    snappy: bool = False
    #: Compress what is not.
    compress: bool = False

    @classmethod
    def of(cls, options: ProducerOptions) -> Shape:
        """The shape that a connection's choices amount to."""
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
        )


@dataclass(frozen=True, slots=True)
class Changes:
    """Packets for some stored frames."""

    packets: bytes
    count: int
    #: The last seqno among them; 0 if nothing of them is for this consumer.
    last_seqno: int


class StreamOutput:
    """Writes the messages of one stream."""

    def __init__(
        self,
        dialect: Dialect,
        *,
        vbucket: int,
        opaque: int,
        shape: Shape | None = None,
        filter: StreamFilter | None = None,  # noqa: A002 - the protocol's own word
    ) -> None:
        self._dialect = dialect
        self._vbucket = vbucket
        self._opaque = opaque
        self._shape = shape or Shape()
        self._filter = filter or StreamFilter(kind=FilterKind.EVERYTHING)
        self._collections = set(self._filter.collections)
        stream_id = self._filter.stream_id
        self._frames: tuple[FrameInfo, ...] = () if stream_id is None else (StreamId(stream_id),)
        self._modern = isinstance(dialect, Dcp)
        self._prefixed = isinstance(dialect, Dcp) and dialect.collections
        shape = self._shape
        plain = not self._frames and shape.value is ValueMode.ALL and not shape.compress
        #: Whether nothing but the collection id has to go from a plain mutation.
        self._unprefixed = self._modern and not self._prefixed and plain
        everything = self._filter.kind is FilterKind.EVERYTHING
        #: Stored frames that can be sent as they are: by opcode, the datatype bits they must not
        #: have.
        self._kept = _kept(shape) if self._prefixed and everything and plain else {}
        #: Whether all of them can.
        self._whole = bool(self._kept) and (
            shape.xattrs
            and shape.deleted_user_xattrs
            and shape.delete_times
            and shape.expirations
            and shape.snappy
        )
        self._marker_head = (
            REQUEST,
            _MARKER_OPCODE,
            _MARKER_EXTRAS,
            vbucket,
            _MARKER_EXTRAS,
            opaque,
        )
        #: Whether everything that the filter chose is gone.
        self.emptied = False

    # ---- around the changes --------------------------------------------------------------

    def opening(self) -> bytes:
        """What the stream begins with, after the request was accepted."""
        return self._encode(m.StreamStart(vbucket=self._vbucket)) if self._has_edges else b""

    def snapshot_start(
        self, start: int, end: int, flags: MarkerFlag, *, purge_seqno: int | None = None
    ) -> bytes:
        """Announces a snapshot."""
        if self._has_edges:
            return self._encode(m.SnapshotStart(vbucket=self._vbucket))
        if isinstance(self._dialect, Draft001):
            return self._encode(m.SnapshotMarker(vbucket=self._vbucket))
        if purge_seqno is None and not self._frames:
            return _MARKER.pack(*self._marker_head, start, end, flags)
        return self._encode(
            m.SnapshotMarker(
                vbucket=self._vbucket, start=start, end=end, flags=flags, purge_seqno=purge_seqno
            )
        )

    def snapshot_end(self, end: int, last_seqno: int) -> bytes:
        """Closes a snapshot, or tells how far it went if its last changes were not for sending."""
        if self._has_edges:
            return self._encode(m.SnapshotEnd(vbucket=self._vbucket))
        return self.seqno_advanced(end) if self._prefixed and last_seqno < end else b""

    def seqno_advanced(self, seqno: int) -> bytes:
        """Tells that everything up to here was sent or left out."""
        return self._encode(m.SeqnoAdvanced(vbucket=self._vbucket, seqno=seqno))

    def state(self, state: VBucketState) -> bytes:
        """The state that the consumer's copy takes in a takeover."""
        return self._encode(m.SetStreamState(vbucket=self._vbucket, state=state))

    def out_of_order(self, flags: OsoFlag) -> bytes:
        """An edge of a snapshot whose changes come in any order."""
        return self._encode(m.OsoSnapshot(vbucket=self._vbucket, flags=flags))

    def flushed(self) -> bytes:
        """Tells the consumer to delete all of its data, in the drafts that can say so.

        Today's servers number the message and refuse it, so there only the new name of the
        history tells, to whoever asks for the stream again.
        """
        if self._modern or isinstance(self._dialect, Draft002):
            return b""
        return self._encode(m.FlushStream(vbucket=self._vbucket))

    def ending(self, reason: StreamEndReason) -> bytes:
        """The stream's last message. What a dialect cannot say becomes the nearest it can."""
        return self._encode(m.StreamEnd(vbucket=self._vbucket, reason=self._sayable(reason)))

    def _sayable(self, reason: StreamEndReason) -> StreamEndReason:
        if not self._modern:
            fine = (StreamEndReason.OK, StreamEndReason.CLOSED, StreamEndReason.FILTER_EMPTY)
            return StreamEndReason.OK if reason in fine else StreamEndReason.STATE_CHANGED
        if reason is StreamEndReason.ROLLBACK:  # real servers never say it
            return StreamEndReason.STATE_CHANGED
        newer = (StreamEndReason.FILTER_EMPTY, StreamEndReason.LOST_PRIVILEGES)
        if reason in newer and not self._prefixed:
            return StreamEndReason.OK
        return reason

    @property
    def _has_edges(self) -> bool:
        return not self._modern and not isinstance(self._dialect, Draft001)

    def _encode(self, message: m.Message) -> bytes:
        return self._dialect.encode(replace(message, opaque=self._opaque, frames=self._frames))

    # ---- the changes ---------------------------------------------------------------------

    def changes(self, frames: bytes, last_seqno: int, *, skip_deletions: bool = False) -> Changes:
        """The packets for some whole stored frames, the last of which has ``last_seqno``."""
        if self._whole and not skip_deletions:
            packets = bytearray(frames)
            count = patch_opaque(packets, self._opaque)
            return Changes(bytes(packets), count, last_seqno)
        pieces: list[bytes] = []
        count = last = run = at = 0
        size = len(frames)
        while at < size:
            body: int = _LENGTHS.unpack_from(frames, at + _BODY_AT)[0]
            end = at + HEADER_SIZE + body
            opcode = frames[at + 1]
            skipped = skip_deletions and opcode in _DELETIONS
            forbidden = self._kept.get(opcode, 0xFF)
            if forbidden != 0xFF and not frames[at + 5] & forbidden and not skipped:
                count, last, at = count + 1, at, end
                continue
            if run < at:
                pieces.append(frames[run:at])
            packet: bytes | None = None
            plain = opcode == _MUTATION and frames[at + 5] <= Datatype.JSON
            if plain and self._unprefixed and frames[at + _MUTATION_KEY_AT] == _DEFAULT:
                packet = _without_prefix(frames, at, body)
            elif not skipped:
                packet = self._rewritten(frames[at:end])
            if packet is not None:
                pieces.append(packet)
                count, last = count + 1, at
            at = run = end
        if run < size:
            pieces.append(frames[run:])
        joined = bytearray(b"".join(pieces))
        if joined and self._patchable:
            patch_opaque(joined, self._opaque)
        return Changes(bytes(joined), count, _seqno_at(frames, last) if count else 0)

    @property
    def _patchable(self) -> bool:
        """Draft 002 keeps its request id elsewhere, so its packets are encoded with it."""
        return self._dialect.name != "002"

    def _rewritten(self, frame: bytes) -> bytes | None:
        """The packet for one stored frame; None if it is not for this consumer."""
        if frame[1] == _SYSTEM_EVENT:
            return self._event(frame)
        change = canonical.parse(frame)
        if not self._wants(change.collection):
            return None
        message = self._change(change)
        opaque = 0 if self._patchable else self._opaque
        return self._dialect.encode(replace(message, opaque=opaque, frames=self._frames))

    def _wants(self, collection: int) -> bool:
        if not self._prefixed:
            return collection == _DEFAULT
        return self._filter.kind is FilterKind.EVERYTHING or collection in self._collections

    def _change(self, change: CanonicalChange) -> m.Message:
        collection = change.collection if self._prefixed else None
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
                datatype=datatype if self._modern else Datatype.RAW,
                collection=collection,
            )
        value, datatype = self._remains(change)
        expired = change.op is Op.EXPIRATION and (self._shape.expirations or not self._modern)
        kind: Callable[..., m.Deletion] = m.Expiration if expired else m.Deletion
        timed = self._modern and (self._shape.delete_times or expired)
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
        """A document's value and datatype as the consumer may see them."""
        shape, value, datatype = self._shape, change.value, Datatype(change.datatype)
        has_xattrs = bool(datatype & Datatype.XATTR)
        if shape.value is not ValueMode.ALL:
            kept = b""
            if has_xattrs and shape.xattrs:
                kept = values.join_xattrs(values.unwrap(value, datatype)[0], b"")
            if shape.value is ValueMode.NONE_WITH_DATATYPE:
                return kept, datatype & ~Datatype.SNAPPY
            return kept, Datatype.XATTR if kept else Datatype.RAW
        hidden = has_xattrs and not (shape.xattrs and self._modern)
        compressed = bool(datatype & Datatype.SNAPPY)
        if compressed and (hidden or not (shape.snappy and self._modern)):
            value, datatype, compressed = values.inflate(value), datatype & ~Datatype.SNAPPY, False
        if hidden:
            value, datatype = values.split_xattrs(value)[1], datatype & ~Datatype.XATTR
        if shape.compress and value and not compressed and self._modern:
            smaller = values.deflate(value)
            if len(smaller) < len(value):
                value, datatype = smaller, datatype | Datatype.SNAPPY
        return value, datatype

    def _remains(self, change: CanonicalChange) -> tuple[bytes, Datatype]:
        """What is left of a deleted document: its system xattrs, for those who asked."""
        if not (self._modern and self._shape.xattrs and change.datatype & Datatype.XATTR):
            return b"", Datatype.RAW
        xattrs, _ = values.unwrap(change.value, Datatype(change.datatype))
        if not self._shape.deleted_user_xattrs:
            xattrs = {name: text for name, text in xattrs.items() if name.startswith("_")}
        if not xattrs:
            return b"", Datatype.RAW
        return values.join_xattrs(xattrs, b""), Datatype.XATTR

    def _event(self, frame: bytes) -> bytes | None:
        """A system event, for consumers of collections whose filter has its subject."""
        message = _STORED.decode(frame)
        wanted = self._prefixed and self._wants_event(message)
        self._follow(message)
        return self._dialect.encode(replace(message, frames=self._frames)) if wanted else None

    def _follow(self, message: m.Message) -> None:
        """Keeps the filter's collections what they are by now."""
        kind = self._filter.kind
        if isinstance(message, m.CollectionCreated):
            if kind is FilterKind.SCOPE and message.scope == self._filter.scope:
                self._collections.add(message.collection)
        elif isinstance(message, m.CollectionDropped) and message.collection in self._collections:
            self._collections.discard(message.collection)
            self.emptied = kind is not FilterKind.SCOPE and not self._collections
        elif isinstance(message, m.ScopeDropped) and kind is FilterKind.SCOPE:
            self.emptied = self.emptied or message.scope == self._filter.scope

    def _wants_event(self, message: m.Message) -> bool:
        if self._filter.kind is FilterKind.SCOPE:
            return getattr(message, "scope", None) == self._filter.scope
        if self._filter.kind is FilterKind.COLLECTIONS:
            return getattr(message, "collection", None) in self._collections
        return True


def _kept(shape: Shape) -> dict[int, int]:
    """What a consumer of all collections can be sent as it is stored."""
    seen = Datatype.JSON
    if shape.xattrs:
        seen |= Datatype.XATTR
    if shape.snappy:
        seen |= Datatype.SNAPPY
    kept = {_MUTATION: 0x7F & ~int(seen), _SYSTEM_EVENT: 0}
    if shape.delete_times:
        kept[_DELETION] = 0x7F  # of those that have anything left, not everything is for everybody
    if shape.expirations:
        kept[_EXPIRATION] = 0x7F
    return kept


def _seqno_at(frames: bytes, at: int) -> int:
    """The seqno of the stored frame at an offset: it is the first of the extras."""
    return int.from_bytes(frames[at + HEADER_SIZE : at + HEADER_SIZE + 8], "big")


def _without_prefix(frames: bytes, at: int, body: int) -> bytes:
    """A stored mutation of the default collection for consumers without collections."""
    key_length = int.from_bytes(frames[at + 2 : at + 4], "big")
    return b"".join(
        (
            frames[at : at + 2],
            (key_length - 1).to_bytes(2, "big"),
            frames[at + 4 : at + _BODY_AT],
            _LENGTHS.pack(body - 1),
            frames[at + _BODY_AT + 4 : at + _MUTATION_KEY_AT],
            frames[at + _MUTATION_KEY_AT + 1 : at + HEADER_SIZE + body],
        )
    )
