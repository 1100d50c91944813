"""What a bucket can be asked to change, and what it answers.

These are named tuples and not dataclasses because one is made for every write. A key always
begins with its collection id, as `document_key` makes it. ``cas`` is a condition: only over the
version with this CAS, 0 for any.
"""

from __future__ import annotations

from typing import NamedTuple

from ..errors import StoreRefusal
from ..model import Op
from ..wire import leb128

__all__ = [
    "Add",
    "Append",
    "Applied",
    "BeginSnapshot",
    "Change",
    "Counter",
    "Delete",
    "EndSnapshot",
    "Expire",
    "Outcome",
    "Prepend",
    "Replace",
    "Replicate",
    "Set",
    "Touch",
    "WithMeta",
    "document_key",
]


def document_key(key: bytes, collection: int = 0) -> bytes:
    """A key as the store wants it: behind its collection id."""
    return leb128.encode(collection) + key


class Set(NamedTuple):
    """Writes a document whether or not there was one."""

    vbucket: int
    key: bytes
    value: bytes
    flags: int = 0
    #: 0 for never, up to 30 days in seconds from now, above as a time.
    expiry: int = 0
    datatype: int = 0
    cas: int = 0


class Add(NamedTuple):
    """Writes a document where there was none."""

    vbucket: int
    key: bytes
    value: bytes
    flags: int = 0
    expiry: int = 0
    datatype: int = 0


class Replace(NamedTuple):
    """Writes a document over another."""

    vbucket: int
    key: bytes
    value: bytes
    flags: int = 0
    expiry: int = 0
    datatype: int = 0
    cas: int = 0


class Append(NamedTuple):
    """Puts bytes behind a document's body."""

    vbucket: int
    key: bytes
    value: bytes
    cas: int = 0


class Prepend(NamedTuple):
    """Puts bytes before a document's body."""

    vbucket: int
    key: bytes
    value: bytes
    cas: int = 0


class Counter(NamedTuple):
    """Adds to a document that is a decimal number of 64 bits.

    Going up wraps to 0, going down stops there. Where there is no document it becomes
    ``initial``, or the change is refused if that is None.
    """

    vbucket: int
    key: bytes
    delta: int
    initial: int | None = None
    #: Of a document that is made by this; one that exists keeps its own.
    expiry: int = 0
    cas: int = 0


class Touch(NamedTuple):
    """Gives a document another expiry."""

    vbucket: int
    key: bytes
    expiry: int


class Delete(NamedTuple):
    """Leaves a tombstone, with the document's system xattrs if it has any."""

    vbucket: int
    key: bytes
    cas: int = 0


class Expire(NamedTuple):
    """Turns this version of a document into an expiration, if its time has come."""

    vbucket: int
    key: bytes
    seqno: int


class WithMeta(NamedTuple):
    """Writes a version that another cluster made, with its revision and CAS, on the next seqno.

    Of two versions the one with the higher revision stays, then CAS, time and flags decide;
    ``force`` writes it anyway.
    """

    vbucket: int
    key: bytes
    op: Op
    rev: int
    new_cas: int
    value: bytes = b""
    flags: int = 0
    #: A mutation's expiry or a deletion's own time; never relative.
    time: int = 0
    datatype: int = 0
    cas: int = 0
    force: bool = False


class Replicate(NamedTuple):
    """Writes a change of the active copy exactly as it was: a canonical frame, or its event."""

    vbucket: int
    frame: bytes


class BeginSnapshot(NamedTuple):
    """The changes from ``start`` to ``end`` follow; a replica is consistent only at the end."""

    vbucket: int
    start: int
    end: int


class EndSnapshot(NamedTuple):
    """What a replica has is consistent: its snapshot is over, in drafts that do not say where."""

    vbucket: int


Change = (
    Set
    | Add
    | Replace
    | Append
    | Prepend
    | Counter
    | Touch
    | Delete
    | Expire
    | WithMeta
    | Replicate
    | BeginSnapshot
    | EndSnapshot
)


class Applied(NamedTuple):
    """A change was made: on which seqno, and the CAS of the document now."""

    vbucket: int
    seqno: int
    cas: int
    #: What a counter came to.
    number: int | None = None


#: What became of one change.
Outcome = Applied | StoreRefusal
