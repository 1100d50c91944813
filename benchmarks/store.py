"""How fast the store is, beside bare rocksdict doing the same puts in the same run.

    python benchmarks/store.py            one million documents of 200 bytes, 1024 vbuckets
    python benchmarks/store.py --quick    fifty thousand, to see that it runs

The bare run makes the same keys, packs the same frames and puts the same two entries a document
in the same groups, each synced, with the same options. What the store does beyond that is looking
whether the document is there, counting, telling the caller, and keeping the rules. Loading is
measured in several rounds, the two taking turns, because machines have other things to do.
"""

from __future__ import annotations

import argparse
import random
import resource
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from machine import machine_line
from rocksdict import WriteBatch, WriteOptions

from upriver.store import Bucket, BucketSettings, SetDocument, Store, document_key
from upriver.store.rocksdb import Database
from upriver.store.rocksdb_layout import RecordKind, pack_record, seqno_key, vbucket_key
from upriver.wire import canonical

VBUCKETS = 1024
GROUP = 1000
VALUE = 200
CAS = time.time_ns()


def keys(count: int) -> Iterator[tuple[int, bytes]]:
    """A vbucket and a key for each document, in an order as mixed as clients make it."""
    draw = random.Random(7).randrange
    for number in range(count):
        yield draw(VBUCKETS), document_key(b"document-%010d" % number)


def values() -> list[bytes]:
    make = random.Random(11).randbytes
    return [make(VALUE) for _ in range(GROUP)]


class Timer:
    """Seconds on the wall, and of the calling thread's processor time, since it was made."""

    def __init__(self) -> None:
        self._wall, self._cpu = time.perf_counter(), time.thread_time()

    def read(self) -> tuple[float, float]:
        return time.perf_counter() - self._wall, time.thread_time() - self._cpu


class Report:
    """Prints one line for each measurement and keeps the best rate of each."""

    def __init__(self) -> None:
        self.best: dict[str, float] = {}

    def add(self, what: str, documents: int, seconds: tuple[float, float]) -> None:
        wall, cpu = seconds
        self.best[what] = max(documents / wall, self.best.get(what, 0))
        print(
            f"{what:<42}{documents / wall:>12,.0f} documents/s{wall:>9.2f} s"
            f"{cpu / documents * 1e6:>8.2f} µs of CPU each",
            flush=True,
        )


def bare_load(directory: Path, documents: int) -> tuple[float, float]:
    """rocksdict alone: the same entries, known beforehand, so that nothing is looked up."""
    settings = BucketSettings()
    engine = Database(
        directory / "bare",
        create=True,
        write_memory=settings.write_memory,
        read_memory=settings.read_memory,
        lenient=False,
    )
    high = [0] * VBUCKETS
    contents = values()
    source = keys(documents)
    into_seqnos, into_keys = engine.seqnos.handle, engine.keys.handle
    synced = WriteOptions()
    synced.sync = True
    timer = Timer()
    for _ in range(documents // GROUP):
        batch = WriteBatch(raw_mode=True)
        for value, (vbucket, key) in zip(contents, source, strict=False):
            seqno = high[vbucket] = high[vbucket] + 1
            frame = canonical.mutation(vbucket, seqno, 1, CAS, 0, 0, 0, key, value)
            record = pack_record(seqno, 1, CAS, 0, 0, RecordKind.MUTATION, 0, seqno, 0, 0)
            batch.put(seqno_key(vbucket, seqno), frame, into_seqnos)
            batch.put(vbucket_key(vbucket) + key, record, into_keys)
        engine.seqnos.data.write(batch, synced)
    took = timer.read()
    engine.close()
    return took


def load(bucket: Bucket, documents: int) -> tuple[float, float]:
    """The store: durable groups of a thousand."""
    contents = values()
    source = keys(documents)
    timer = Timer()
    for _ in range(documents // GROUP):
        bucket.write_many(
            [
                SetDocument(vb, key, value)
                for value, (vb, key) in zip(contents, source, strict=False)
            ]
        )
    return timer.read()


def scan(bucket: Bucket) -> tuple[int, tuple[float, float]]:
    timer = Timer()
    found = 0
    for vbucket in range(VBUCKETS):
        with bucket.open_reader(vbucket) as reader:
            for chunk in reader:
                found += chunk.count
    return found, timer.read()


def point_reads(bucket: Bucket, documents: int) -> tuple[int, tuple[float, float]]:
    wanted = list(keys(documents))
    random.Random(13).shuffle(wanted)
    wanted = wanted[:200_000]
    timer = Timer()
    for vbucket, key in wanted:
        bucket.get(vbucket, key)
    return len(wanted), timer.read()


BARE = "bare rocksdict, the same puts"
LOAD = "durable load, groups of 1000"


def run(directory: Path, documents: int, rounds: int) -> None:
    report = Report()
    with Store(directory / "store") as store:
        for number in range(rounds):
            report.add(BARE, documents, bare_load(directory, documents))
            shutil.rmtree(directory / "bare")
            if number:
                store.drop_bucket("bench")
            bucket = store.create_bucket("bench", BucketSettings())
            report.add(LOAD, documents, load(bucket, documents))
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        report.add("ordered scan of everything, as frames", *scan(bucket))
        report.add("point reads", *point_reads(bucket, documents))
        report.add("durable load, every document overwritten", documents, load(bucket, documents))
        report.add("ordered scan after the overwrites", *scan(bucket))
        began = time.perf_counter()
        bucket.compact()
        print(f"compaction on request {time.perf_counter() - began:.1f} s")
        report.add("ordered scan after compaction", *scan(bucket))
        stats = bucket.stats()
        bucket.close()
        began = time.perf_counter()
        store.bucket("bench")
        print(f"opening {time.perf_counter() - began:.2f} s")
    print(f"best load against best of bare rocksdict {report.best[LOAD] / report.best[BARE]:.0%}")
    print(f"peak memory after loading {peak:.0f} MiB")
    print(
        f"on disk {stats.disk_bytes / 2**20:.0f} MiB, of which older versions about "
        f"{stats.history_bytes / 2**20:.0f} MiB"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--docs", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=2, help="of loading; the best one counts")
    parser.add_argument("--quick", action="store_true", help="fifty thousand documents")
    parser.add_argument("--directory", help="where to put the files; a temporary one otherwise")
    options = parser.parse_args()
    documents = 50_000 if options.quick else options.docs
    if documents < GROUP:
        sys.exit(f"--docs must be at least {GROUP}")
    print(machine_line("rocksdict"))
    with tempfile.TemporaryDirectory(dir=options.directory) as directory:
        run(Path(directory), documents - documents % GROUP, options.rounds)


if __name__ == "__main__":
    main()
