"""A process that writes until it is killed, and says on its output what was acknowledged.

Run by the tests: ``python killed_writer.py DIRECTORY SEED DURABILITY``.
"""

from __future__ import annotations

import random
import sys

from storekit import key

from upriver.errors import StoreRefusal
from upriver.store import (
    AbortPrepared,
    Applied,
    Bucket,
    BucketSettings,
    ChangeRequest,
    CommitPrepared,
    DeleteDocument,
    PrepareWrite,
    SetDocument,
    Store,
    SyncMode,
)

VBUCKETS = 4
NAMES = 40


def changes(draw: random.Random) -> list[ChangeRequest]:
    group: list[ChangeRequest] = []
    for _ in range(draw.choice([1, 3, 20, 200])):
        vbucket, name = draw.randrange(VBUCKETS), key(f"k{draw.randrange(NAMES)}")
        change: SetDocument | DeleteDocument
        if draw.random() < 0.2:
            change = DeleteDocument(vbucket, name)
        else:
            value = draw.randbytes(draw.choice([10, 1000]))
            change = SetDocument(vbucket, name, value, expiry=draw.choice([0, 0, 10**6]))
        group.append(PrepareWrite(vbucket, change, 1) if draw.random() < 0.1 else change)
    return group


def complete(bucket: Bucket, prepared: dict[tuple[int, bytes], str], draw: random.Random) -> None:
    """Commits or aborts what is prepared; only what this process prepared can be committed."""
    for vbucket in range(VBUCKETS):
        for name, pending in bucket.prepares(vbucket):
            value = prepared.pop((vbucket, name), None)
            commits = value is not None and draw.random() < 0.7
            kind = CommitPrepared if commits else AbortPrepared
            done = bucket.write(kind(vbucket, name, pending.seqno))
            if commits:
                sys.stdout.write(f"{vbucket} {done.seqno} {done.cas} {name.hex()} {value}\n")
            sys.stdout.write(f"completed {vbucket} {name.hex()} {pending.seqno}\n")
            sys.stdout.flush()


def tell(acknowledged: list[tuple[ChangeRequest, Applied]]) -> None:
    """One line for each change that must never be lost."""
    for change, done in acknowledged:
        if isinstance(change, PrepareWrite):
            name = change.change.key
            sys.stdout.write(f"prepared {done.vbucket} {name.hex()} {done.seqno}\n")
            continue
        assert isinstance(change, SetDocument | DeleteDocument)
        name, value = change.key, change.value.hex() if isinstance(change, SetDocument) else "-"
        sys.stdout.write(f"{done.vbucket} {done.seqno} {done.cas} {name.hex()} {value}\n")
    sys.stdout.write("group\n")
    sys.stdout.flush()


def work(bucket: Bucket, draw: random.Random) -> None:
    prepared: dict[tuple[int, bytes], str] = {}
    while True:
        if draw.random() < 0.5:
            complete(bucket, prepared, draw)
        wanted = changes(draw)
        if draw.random() < 0.05:
            bucket.compact()
        outcomes = bucket.write_many(wanted)
        tell(
            [
                (change, outcome)
                for change, outcome in zip(wanted, outcomes, strict=True)
                if not isinstance(outcome, StoreRefusal)
            ]
        )
        for change, outcome in zip(wanted, outcomes, strict=True):
            if isinstance(change, PrepareWrite) and isinstance(outcome, Applied):
                write = change.change
                value = write.value.hex() if isinstance(write, SetDocument) else "-"
                prepared[change.vbucket, write.key] = value


def main() -> None:
    directory, seed, durability = sys.argv[1], int(sys.argv[2]), SyncMode(sys.argv[3])
    settings = BucketSettings(
        vbuckets=VBUCKETS,
        maintenance_interval=0.02,
        durability=durability,
        history_bytes=200_000,
        write_memory=1024 * 1024,
    )
    store = Store(directory)
    bucket = store.bucket("b") if store.buckets() else store.create_bucket("b", settings)
    sys.stdout.write("open\n")
    sys.stdout.flush()
    work(bucket, random.Random(seed))


if __name__ == "__main__":
    main()
