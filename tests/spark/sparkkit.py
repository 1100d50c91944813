"""What the tests of the source share: what a bucket holds as rows, and queries that keep theirs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, TypeAlias

from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from storekit import split

from upriver.batches.options import RowFormat
from upriver.model import Op
from upriver.spark.functions.fold import fold
from upriver.spark.source.row_types import spark_schema
from upriver.store import Bucket, SetDocument, document_key
from upriver.testing import ChaosProxy, TemporaryProducer
from upriver.wire import canonical
from upriver.wire.canonical import CanonicalChange

#: Seconds that a test waits for what should come; never reached when all is well.
PATIENCE = 600

#: Where documents are: vbucket, scope, collection and key.
Place: TypeAlias = tuple[int, str, str, bytes]
#: The vbucket, branch and seqno of a row, which no two rows may share.
Name: TypeAlias = tuple[str, int, int, int]

_EPOCH = datetime(1970, 1, 1)
#: What a DCP stream calls a mutation, a deletion and an expiration; the rest is no row.
_CHANGES = frozenset({0x57, 0x58, 0x59})
_HALF = 2**63


# ---- what a bucket holds -----------------------------------------------------------------


def stored(bucket: Bucket) -> Iterator[CanonicalChange]:
    """Every change that the store has, in order within each vbucket."""
    for vbucket in range(bucket.settings.vbuckets):
        with bucket.open_reader(vbucket) as reader:
            for chunk in reader:
                for frame in split(chunk.frames):
                    if frame[1] in _CHANGES:
                        yield canonical.parse(frame)


def names(bucket: Bucket, collection: int) -> tuple[str, str]:
    found = bucket.manifest.collection(collection)
    return bucket.manifest.scope(found.scope).name, found.name


def signed(number: int) -> int:
    return number - 2 * _HALF if number >= _HALF else number


def moment(seconds: float) -> datetime:
    """As Spark shows a timestamp in a session whose zone is UTC."""
    return datetime.fromtimestamp(seconds, UTC).replace(tzinfo=None)


def row_of(bucket: Bucket, change: CanonicalChange) -> dict[str, Any]:
    """The row of a plain change."""
    scope, collection = names(bucket, change.collection)
    is_mutation = change.op is Op.MUTATION
    nanoseconds = change.cas & ~0xFFFF
    return {
        "op": change.op.value,
        "vbucket": change.vbucket,
        "seqno": change.seqno,
        "branch": 0,
        "vbuuid": signed(bucket.vbucket_stats(change.vbucket).vbuuid),
        "key": change.key,
        "value": change.value if is_mutation else None,
        "cas": signed(change.cas),
        "rev": change.rev,
        "flags": change.flags,
        "expiry": moment(change.time) if is_mutation and change.time else None,
        "datatype": change.datatype,
        "scope": scope,
        "collection": collection,
        "event_time": (
            _EPOCH + timedelta(microseconds=nanoseconds // 1000) if change.cas < _HALF else None
        ),
    }


def documents(bucket: Bucket) -> dict[Place, bytes]:
    """Every live document."""
    return {
        (change.vbucket, *names(bucket, change.collection), change.key): change.value
        for change in stored(bucket)
        if change.op is Op.MUTATION
    }


def fill(producer: TemporaryProducer, keys: Iterable[int], value: bytes = b"{}") -> None:
    """Writes documents into all vbuckets in turn: key 5 of 4 vbuckets is in vbucket 1."""
    count = producer.bucket.settings.vbuckets
    changes = [SetDocument(key % count, document_key(b"key-%d" % key), value) for key in keys]
    for outcome in producer.bucket.write_many(changes):
        assert not isinstance(outcome, Exception), outcome


def update(producer: TemporaryProducer, vbucket: int, count: int) -> None:
    """Writes the first documents of a vbucket again."""
    vbuckets = producer.bucket.settings.vbuckets
    fill(producer, range(vbucket, vbucket + count * vbuckets, vbuckets), b'{"again":1}')


# ---- what rows hold ----------------------------------------------------------------------


def name_of(row: Row) -> Name:
    return row.op, row.vbucket, row.branch, row.seqno


def folded(spark: SparkSession, rows: Iterable[Row]) -> dict[Place, bytes]:
    """The documents that rows come to, by the fold that users have."""
    return documents_of(fold(spark.createDataFrame(list(rows), spark_schema(RowFormat()))))


def documents_of(frame: DataFrame) -> dict[Place, bytes]:
    """The documents of a folded frame."""
    rows = frame.select("vbucket", "scope", "collection", "key", "value").collect()
    found = {(r.vbucket, r.scope, r.collection, bytes(r.key)): bytes(r.value) for r in rows}
    assert len(found) == len(rows)
    return found


# ---- queries -----------------------------------------------------------------------------


class Reading:
    """A streaming query over its restarts: its options, its checkpoint, and the rows it gave."""

    def __init__(self, spark: SparkSession, source: str, checkpoint: Path, **options: Any) -> None:
        self._spark = spark
        self.source = source
        self.checkpoint = checkpoint
        self.options = {"longPoll": "50ms", **options}
        self.name: str | None = None
        #: By batch, as a sink that heeds batch numbers would have them.
        self.batches: dict[int, list[Row]] = {}
        #: Called with a batch's number before its rows are read.
        self.before: Callable[[int], None] = lambda number: None

    def start(self, **trigger: Any) -> StreamingQuery:
        reader = self._spark.readStream.format("dcp").options(**self.options)
        writer = reader.load(self.source).writeStream.foreachBatch(self._keep)
        writer = writer.option("checkpointLocation", str(self.checkpoint)).trigger(**trigger)
        return writer.start(queryName=self.name)

    def _keep(self, frame: DataFrame, number: int) -> None:
        self.before(number)
        rows = frame.collect()
        repeated = [name for name, count in Counter(map(name_of, rows)).items() if count > 1]
        assert not repeated, f"batch {number} has rows twice: {repeated[:5]}"
        if rows:
            self.batches[number] = rows

    def read(self) -> list[Row]:
        """Reads what is available now; returns only what came now."""
        before = set(self.batches)
        query = self.start(availableNow=True)
        try:
            assert query.awaitTermination(PATIENCE), "the query goes on and on"
        finally:
            query.stop()
        return [row for number in sorted(self.batches.keys() - before) for row in self[number]]

    def __getitem__(self, number: int) -> list[Row]:
        return self.batches[number]

    @property
    def rows(self) -> list[Row]:
        return [row for number in sorted(self.batches) for row in self.batches[number]]

    @contextmanager
    def running(self, **trigger: Any) -> Iterator[StreamingQuery]:
        """Runs beside the test, until the block ends."""
        query = self.start(**(trigger or {"processingTime": "0 seconds"}))
        try:
            yield query
        finally:
            query.stop()

    def offset_file(self) -> Path:
        """The newest entry of the offset log."""
        return _newest(self.checkpoint / "offsets")

    def forget_commit(self) -> int:
        """Makes the newest batch with rows one that was planned and not finished; its number.

        If no batch had rows, the newest of all.
        """
        newest = max(self.batches, default=_number(_newest(self.checkpoint / "commits")))
        for log, first in (("commits", newest), ("offsets", newest + 1)):
            for entry in _entries(self.checkpoint / log):
                if _number(entry) >= first:
                    entry.unlink()
                    (entry.parent / f".{entry.name}.crc").unlink(missing_ok=True)
        return newest


def _newest(directory: Path) -> Path:
    return max(_entries(directory), key=_number)


def _entries(directory: Path) -> list[Path]:
    return [file for file in directory.iterdir() if file.name.isdecimal()]


def _number(file: Path) -> int:
    return int(file.name)


def ended(query: StreamingQuery) -> Callable[[], str]:
    """Why nothing more comes of a query; empty while it runs."""
    return lambda: "" if query.isActive else f"the query has ended ({query.exception()})"


@contextmanager
def behind_a_proxy(**options: Any) -> Iterator[tuple[TemporaryProducer, ChaosProxy]]:
    """A producer whose clients all come through a network that can break."""
    with ChaosProxy() as proxy:
        producer = TemporaryProducer(advertise=(proxy.host, proxy.port), **options)
        with producer:
            proxy.target = (producer.host, producer.port)
            yield producer, proxy
