"""A process that writes until it is killed, and says on its output what was acknowledged.

Run by the tests: ``python killed_writer.py DIRECTORY SEED DURABILITY``.
"""

from __future__ import annotations

import random
import sys

from storekit import key

from upriver.errors import StoreRefusal
from upriver.store import (
    Applied,
    Bucket,
    BucketSettings,
    Change,
    Delete,
    Durability,
    Set,
    Store,
)

VBUCKETS = 4
NAMES = 40


def changes(draw: random.Random) -> list[Change]:
    group: list[Change] = []
    for _ in range(draw.choice([1, 3, 20, 200])):
        vbucket, name = draw.randrange(VBUCKETS), key(f"k{draw.randrange(NAMES)}")
        if draw.random() < 0.2:
            group.append(Delete(vbucket, name))
        else:
            value = draw.randbytes(draw.choice([10, 1000]))
            group.append(Set(vbucket, name, value, expiry=draw.choice([0, 0, 10**6])))
    return group


def tell(acknowledged: list[tuple[Change, Applied]]) -> None:
    """One line for each change that must never be lost."""
    for change, done in acknowledged:
        value = change.value.hex() if isinstance(change, Set) else "-"
        sys.stdout.write(f"{done.vbucket} {done.seqno} {done.cas} {change[1].hex()} {value}\n")
    sys.stdout.write("group\n")
    sys.stdout.flush()


def work(bucket: Bucket, draw: random.Random) -> None:
    while True:
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


def main() -> None:
    directory, seed, durability = sys.argv[1], int(sys.argv[2]), Durability(sys.argv[3])
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
