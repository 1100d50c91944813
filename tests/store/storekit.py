"""What the tests of the store share: a clock that stands still, and short ways to look inside."""

from __future__ import annotations

from typing import Any

from upriver.store import Backfill, Bucket, BucketSettings, SetDocument, document_key
from upriver.wire import leb128, stored_prepares
from upriver.wire import messages as m
from upriver.wire.dialects.dcp import Dcp

SECOND = 1_000_000_000
DIALECT = Dcp(collections=True)

#: Few vbuckets, and nothing happens by itself.
QUIET = BucketSettings(vbuckets=4, maintenance_interval=0)


class Clock:
    """Nanoseconds since 1970 that move only when told to."""

    def __init__(self, seconds: int = 1_700_000_000) -> None:
        self.nanoseconds = seconds * SECOND

    def __call__(self) -> int:
        return self.nanoseconds

    @property
    def seconds(self) -> int:
        return self.nanoseconds // SECOND

    def advance(self, seconds: float) -> None:
        self.nanoseconds += int(seconds * SECOND)


def key(name: str, collection: int = 0) -> bytes:
    return document_key(name.encode(), collection)


def put(bucket: Bucket, name: str, value: str = "value", *, vbucket: int = 0) -> int:
    """Writes a document; returns its seqno."""
    return bucket.write(SetDocument(vbucket, key(name), value.encode())).seqno


def value(bucket: Bucket, name: str, *, vbucket: int = 0) -> str:
    return bucket.get(vbucket, key(name)).value.decode()


def split(joined: bytes) -> list[bytes]:
    """The frames of a chunk."""
    frames = []
    while joined:
        size = 24 + int.from_bytes(joined[8:12])
        frames.append(joined[:size])
        joined = joined[size:]
    return frames


def messages(reader: Backfill) -> list[Any]:
    """Everything that is left in a backfill, decoded by the dialect of a stream."""
    with reader:
        return [decoded(frame) for chunk in reader for frame in split(chunk.frames)]


def decoded(frame: bytes) -> m.Message:
    """A stored frame as a message; only aborts are stored in a form of their own."""
    if not stored_prepares.is_abort(frame):
        return DIALECT.decode(frame)
    one = stored_prepares.parse_abort(frame)
    collection, size = leb128.decode(one.key)
    return m.Abort(
        vbucket=one.vbucket,
        prepared_seqno=one.prepared_seqno,
        abort_seqno=one.seqno,
        key=one.key[size:],
        collection=collection,
    )


def dump(bucket: Bucket, vbucket: int = 0) -> list[Any]:
    """Every change of a vbucket."""
    return messages(bucket.open_reader(vbucket))
