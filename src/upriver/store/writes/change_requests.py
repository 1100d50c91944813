"""Change requests that a bucket accepts, and their outcomes.

They are named tuples and not dataclasses, because one is created for every write. A key always
begins with its collection id, as `document_key` returns it. ``cas`` is a condition: the change
applies only to the version with this CAS; 0 means any version.
"""

from __future__ import annotations

from typing import NamedTuple

from ...errors import StoreRefusal
from ...model import Op
from ...wire import leb128


def document_key(key: bytes, collection: int = 0) -> bytes:
    """Returns a key in the form of the store: with its collection id as prefix."""
    return leb128.encode(collection) + key


class SetDocument(NamedTuple):
    """Writes a document, whether or not it exists."""

    vbucket: int
    key: bytes
    value: bytes
    flags: int = 0
    #: 0 for never; up to 30 days in seconds from now; higher values are a Unix time.
    expiry: int = 0
    datatype: int = 0
    cas: int = 0


class AddDocument(NamedTuple):
    """Writes a document that must not exist."""

    vbucket: int
    key: bytes
    value: bytes
    flags: int = 0
    expiry: int = 0
    datatype: int = 0


class ReplaceDocument(NamedTuple):
    """Writes a document that must exist."""

    vbucket: int
    key: bytes
    value: bytes
    flags: int = 0
    expiry: int = 0
    datatype: int = 0
    cas: int = 0


class AppendToDocument(NamedTuple):
    """Appends bytes to a document's body."""

    vbucket: int
    key: bytes
    value: bytes
    cas: int = 0


class PrependToDocument(NamedTuple):
    """Prepends bytes to a document's body."""

    vbucket: int
    key: bytes
    value: bytes
    cas: int = 0


class Counter(NamedTuple):
    """Adds ``delta`` to a document that is a decimal number of 64 bits.

    Incrementing wraps around to 0; decrementing stops at 0. A document that does not exist is
    created with ``initial``; if that is None, the change is refused.
    """

    vbucket: int
    key: bytes
    delta: int
    initial: int | None = None
    #: The expiry of a created document. An existing document keeps its own.
    expiry: int = 0
    cas: int = 0


class TouchDocument(NamedTuple):
    """Changes the expiry of a document."""

    vbucket: int
    key: bytes
    expiry: int


class DeleteDocument(NamedTuple):
    """Deletes a document. Its tombstone keeps the system xattrs of the document."""

    vbucket: int
    key: bytes
    cas: int = 0


class EditDocument(NamedTuple):
    """Writes a document computed from one version, or from none, if that is still current."""

    vbucket: int
    key: bytes
    value: bytes
    flags: int = 0
    expiry: int = 0
    datatype: int = 0
    #: The seqno of that version, which may be a tombstone; 0 if the document must not exist.
    over: int = 0
    #: Writes a tombstone, whose value may contain xattrs only.
    deleted: bool = False
    #: Placeholders of 18 characters in the value, replaced by the CAS and the seqno of this write.
    cas_text: bytes = b""
    seqno_text: bytes = b""


class Expire(NamedTuple):
    """Turns this version of a document into an expiration, if it has expired."""

    vbucket: int
    key: bytes
    seqno: int


class WithMeta(NamedTuple):
    """Writes a version from another cluster, with its revision and CAS, at the next seqno.

    It is refused unless it is newer than the stored version. Revision, CAS, time and flags are
    compared in this order. ``force`` skips the comparison.
    """

    vbucket: int
    key: bytes
    op: Op
    rev: int
    new_cas: int
    value: bytes = b""
    flags: int = 0
    #: The expiry of a mutation, or the time of a deletion; always absolute.
    time: int = 0
    datatype: int = 0
    cas: int = 0
    force: bool = False


#: The writes that a client can request with a durability level.
ClientWrite = (
    SetDocument
    | AddDocument
    | ReplaceDocument
    | AppendToDocument
    | PrependToDocument
    | Counter
    | TouchDocument
    | DeleteDocument
    | EditDocument
    | WithMeta
)


class Replicate(NamedTuple):
    """Writes a stored frame of the active copy unchanged: a change or a system event."""

    vbucket: int
    frame: bytes


class PrepareWrite(NamedTuple):
    """Prepares a durable write. Readers do not see it until `CommitPrepared`."""

    vbucket: int
    change: ClientWrite
    #: The durability level, 1 or higher.
    level: int


class CommitPrepared(NamedTuple):
    """Commits the prepare of a key at ``seqno``. The document gets the next seqno."""

    vbucket: int
    key: bytes
    seqno: int


class AbortPrepared(NamedTuple):
    """Aborts the prepare of a key at ``seqno``."""

    vbucket: int
    key: bytes
    seqno: int


class ReplicateCommit(NamedTuple):
    """Replicates a commit of the active copy."""

    vbucket: int
    key: bytes
    prepared_seqno: int
    seqno: int


class ReplicateAbort(NamedTuple):
    """Replicates an abort of the active copy. A replica that joined later may lack its prepare."""

    vbucket: int
    key: bytes
    prepared_seqno: int
    seqno: int


class BeginSnapshot(NamedTuple):
    """Begins a snapshot of the seqnos ``start`` to ``end``; a replica is consistent at its end."""

    vbucket: int
    start: int
    end: int


class EndSnapshot(NamedTuple):
    """Ends a replica's snapshot at its high seqno, for drafts whose markers carry no end."""

    vbucket: int


ChangeRequest = (
    ClientWrite
    | Expire
    | PrepareWrite
    | CommitPrepared
    | AbortPrepared
    | Replicate
    | ReplicateCommit
    | ReplicateAbort
    | BeginSnapshot
    | EndSnapshot
)


class Applied(NamedTuple):
    """A change was applied at ``seqno``. ``cas`` is the new CAS of the document."""

    vbucket: int
    seqno: int
    cas: int
    #: The new value of a counter.
    number: int | None = None


#: The result of one change.
Outcome = Applied | StoreRefusal
