"""What the tests of the store share: a clock that stands still, and short ways to look inside."""

from __future__ import annotations

from upriver.store import Backfill, Bucket, BucketSettings, Set, document_key
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
    return bucket.write(Set(vbucket, key(name), value.encode())).seqno


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


def messages(reader: Backfill) -> list[m.Message]:
    """Everything that is left in a backfill, decoded by the dialect of a stream."""
    with reader:
        return [DIALECT.decode(frame) for chunk in reader for frame in split(chunk.frames)]


def dump(bucket: Bucket, vbucket: int = 0) -> list[m.Message]:
    """Every change of a vbucket."""
    return messages(bucket.open_reader(vbucket))
