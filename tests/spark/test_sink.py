"""The sink ``dcp``: frames and streams into a real bucket, once and then again."""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pytest
from pyspark import TaskContext
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from upriver.batches.options import WriteOptions
from upriver.consumer.topology.cluster_map import vbucket_of
from upriver.errors import ConfigError, StoreRefusal
from upriver.model import VBucketState
from upriver.producer.bootstrap.users import DEVELOPMENT_PASSWORD, Grant, Role, Users
from upriver.producer.server_settings import ServerSettings
from upriver.spark.sink import bucket_writer as sink
from upriver.spark.sink.row_edits import FENCE_PREFIX, roles_of
from upriver.store import document_key
from upriver.testing import TemporaryProducer
from upriver.wire.values import deflate

VBUCKETS = 8


@pytest.fixture
def producer() -> Iterator[TemporaryProducer]:
    with TemporaryProducer(vbuckets=VBUCKETS) as running:
        yield running


def write(frame: DataFrame, producer: TemporaryProducer, **options: str) -> None:
    frame.write.format("dcp").options(**options).mode("append").save(producer.source)


def complaint(frame: DataFrame, producer: TemporaryProducer, **options: str) -> str:
    """What a write that fails says."""
    with pytest.raises(PySparkException) as failure:
        write(frame, producer, **options)
    return str(failure.value)


def place(key: str, collection: int = 0) -> tuple[int, bytes]:
    return vbucket_of(key.encode(), VBUCKETS), document_key(key.encode(), collection)


def stored(producer: TemporaryProducer, key: str, collection: int = 0) -> Any:
    return producer.bucket.get(*place(key, collection))


def is_there(producer: TemporaryProducer, key: str) -> bool:
    try:
        stored(producer, key)
    except StoreRefusal:
        return False
    return True


def versions(producer: TemporaryProducer, keys: list[str]) -> dict[str, tuple[int, int, int]]:
    """Seqno, CAS and revision of documents and tombstones: what any write changes."""
    found = {key: producer.bucket.meta(*place(key)) for key in keys}
    return {key: (record.seqno, record.cas, record.rev) for key, record in found.items()}


def high_seqnos(producer: TemporaryProducer) -> list[int]:
    return [producer.bucket.vbucket_stats(vbucket).high_seqno for vbucket in range(VBUCKETS)]


# ---- batches -----------------------------------------------------------------------------


def test_a_frame_becomes_documents_and_again_changes_nothing(
    spark: SparkSession, producer: TemporaryProducer
) -> None:
    frame = spark.range(3000).selectExpr(
        "concat('k', id) AS key", "concat('{\"n\":', id, '}') AS value", "id % 5 AS flags"
    )
    write(frame, producer)
    assert producer.bucket.stats().items == 3000
    found = stored(producer, "k2999")
    assert (found.value, found.flags, found.datatype) == (b'{"n":2999}', 4, 1)
    before = high_seqnos(producer)
    write(frame, producer, batchSize="100", connections="2")
    assert high_seqnos(producer) == before
    write(frame.where("key = 'k7'").selectExpr("key", "'other' AS value"), producer)
    assert sum(high_seqnos(producer)) == sum(before) + 1
    assert stored(producer, "k7").value == b"other"


def test_rows_that_remove_documents(spark: SparkSession, producer: TemporaryProducer) -> None:
    for key in (b"a", b"b", b"c"):
        producer.write(key, b"old")
    rows = [
        (bytearray(b"a"), None, "deletion"),
        (bytearray(b"b"), None, "expiration"),
        (bytearray(b"c"), bytearray(b"new"), None),
        (bytearray(b"d"), bytearray(b"new"), "mutation"),
        (bytearray(b"never"), None, "deletion"),
    ]
    frame = spark.createDataFrame(rows, "id binary, body binary, what string")
    columns = {"keyColumn": "id", "valueColumn": "body", "opColumn": "what"}
    write(frame, producer, **columns)
    assert [is_there(producer, key) for key in "abcd"] == [False, False, True, True]
    assert stored(producer, "c").value == b"new"
    before = high_seqnos(producer)
    write(frame, producer, **columns)
    assert high_seqnos(producer) == before


def test_the_last_row_of_a_task_wins(spark: SparkSession, producer: TemporaryProducer) -> None:
    frame = spark.range(0, 1000, numPartitions=1).selectExpr(
        "concat('k', id % 10) AS key",
        "cast(id AS string) AS value",
        "if(id = 995, 'deletion', 'mutation') AS op",
    )
    write(frame, producer, batchSize="7")
    assert stored(producer, "k9").value == b"999"
    assert stored(producer, "k0").value == b"990"
    assert not is_there(producer, "k5")


def test_expiries(spark: SparkSession, producer: TemporaryProducer) -> None:
    later = datetime.now(UTC).replace(microsecond=0) + timedelta(days=100)
    producer.write(b"past", b"old")
    frame = spark.createDataFrame(
        [("at", "v", later), ("never", "v", None), ("past", "v", datetime(1970, 1, 2, tzinfo=UTC))],
        "key string, value string, expiry timestamp",
    )
    write(frame, producer)
    assert stored(producer, "at").time == int(later.timestamp())
    assert stored(producer, "never").time == 0
    assert not is_there(producer, "past")
    before = high_seqnos(producer)
    seconds = frame.selectExpr("key", "value", "unix_seconds(expiry) AS expiry")
    write(frame, producer)
    write(seconds, producer)
    assert high_seqnos(producer) == before


def test_collections_by_option_and_by_column(
    spark: SparkSession, producer: TemporaryProducer
) -> None:
    shop = producer.bucket.create_scope("shop").id
    orders = producer.bucket.create_collection(shop, "orders").id
    people = producer.bucket.create_collection(shop, "people").id
    rows = [("a", "1", "shop", "people"), ("b", "2", None, "people"), ("c", "3", None, None)]
    frame = spark.createDataFrame(rows, "key string, value string, scope string, collection string")
    write(frame, producer, collection="shop.orders")
    assert stored(producer, "a", people).value == b"1"
    assert stored(producer, "b", people).value == b"2"
    assert stored(producer, "c", orders).value == b"3"
    said = complaint(frame.selectExpr("key", "value", "'shoes' AS collection"), producer)
    assert "DCP-BAD-ROW key='" in said
    assert "there is no collection '_default.shoes'" in said
    assert "did you mean 'shop.orders'" in complaint(frame, producer, collection="shop.order")


def test_a_cas_that_is_checked(spark: SparkSession, producer: TemporaryProducer) -> None:
    cas = producer.write(b"k", b"old").cas
    frame = spark.createDataFrame(
        [("k", "new", cas), ("fresh", "new", None)], "key string, value string, cas long"
    )
    write(frame, producer, checkCas="true")
    before = versions(producer, ["k", "fresh"])
    write(frame, producer, checkCas="true")  # as if Spark ran the tasks again
    assert versions(producer, ["k", "fresh"]) == before
    now = producer.write(b"k", b"somebody else's").cas
    said = complaint(frame, producer, checkCas="true")
    assert f"'k' was refused with EXISTS: it has CAS {now}, expected was CAS {cas}" in said
    assert stored(producer, "k").value == b"somebody else's"


def test_a_bucket_is_copied_with_its_versions(
    spark: SparkSession, producer: TemporaryProducer
) -> None:
    for number in range(50):
        producer.write(b"k%d" % number, b"v%d" % number)
    producer.write(b"k7", b"again")
    producer.delete(b"k8")
    rows = spark.read.format("dcp").load(producer.source)
    keys = [f"k{number}" for number in range(50)]
    with TemporaryProducer(vbuckets=VBUCKETS) as other:
        write(rows, other)
        there, here = versions(producer, keys), versions(other, keys)
        assert {key: found[1:] for key, found in here.items()} == {
            key: found[1:] for key, found in there.items()
        }
        assert stored(other, "k7").value == b"again"
        assert not is_there(other, "k8")
        before = high_seqnos(other)
        write(rows, other)
        assert high_seqnos(other) == before
    # what was read and changed is no copy
    changed = rows.where("op = 'mutation'").selectExpr("key", "'x' AS value", "cas", "rev")
    assert "another document with the same CAS and revision" in complaint(changed, producer)
    write(changed.drop("cas", "rev"), producer)
    assert stored(producer, "k7").value == b"x"


def test_structs_and_datatypes(spark: SparkSession, producer: TemporaryProducer) -> None:
    frame = spark.sql(
        "SELECT 'k' key, named_struct('n', 1, 'gone', cast(NULL AS int), 'price', 1.50, "
        "'at', timestamp_micros(1500000), 'on', DATE '2024-02-29', 'raw', X'ff', "
        "'tags', array('a', NULL), 'by', map('x', 2.5D), 'name', '\u00e9\"') value"
    )
    write(frame, producer)
    found = stored(producer, "k")
    text = '{"n":1,"price":1.50,"at":"1970-01-01T00:00:01.500000Z","on":"2024-02-29",'
    text += '"raw":"/w==","tags":["a",null],"by":{"x":2.5},"name":"\u00e9\\""}'
    assert (found.value.decode(), found.datatype) == (text, 1)
    compressed = deflate(b'{"a":1}')
    rows = [("c", compressed, 3), ("p", b"plain", 0), ("n", b'{"n":1}', None)]
    write(spark.createDataFrame(rows, "key string, value binary, datatype int"), producer)
    assert [stored(producer, key).value for key in "cpn"] == [b'{"a":1}', b"plain", b'{"n":1}']
    nan = spark.sql("SELECT 'k' key, named_struct('n', double('NaN')) value")
    assert "DCP-BAD-ROW key='k': the number nan is not JSON" in complaint(nan, producer)
    attributes = spark.sql("SELECT 'k' key, 'v' value, 5 datatype")
    assert "the datatype 5 cannot be written; it must be 0 to 3" in complaint(attributes, producer)


def test_another_client_reads_what_was_written(
    spark: SparkSession, producer: TemporaryProducer
) -> None:
    pytest.importorskip("couchbase", reason="the couchbase package is not installed")
    from couchbase.auth import PasswordAuthenticator
    from couchbase.cluster import Cluster
    from couchbase.options import ClusterOptions

    frame = spark.range(20).selectExpr(
        "concat('k', id) key", "to_json(named_struct('n', id)) value"
    )
    # Couchbase's own mark of JSON, so that its clients know what to make of it
    write(frame.selectExpr("*", "33554432 AS flags"), producer)
    cluster = Cluster(
        f"couchbase://{producer.host}:{producer.port}",
        ClusterOptions(PasswordAuthenticator("anybody", DEVELOPMENT_PASSWORD)),
    )
    try:
        documents = cluster.bucket("default").default_collection()
        found = [documents.get(f"k{number}").content_as[dict] for number in range(20)]
    finally:
        cluster.close()
    assert found == [{"n": number} for number in range(20)]


def test_vbuckets_that_go_and_come_back(spark: SparkSession, producer: TemporaryProducer) -> None:
    for vbucket in (1, 4):
        producer.set_state(vbucket, VBucketState.DEAD)

    def bring_back() -> None:
        # a task has come when it has written what it could
        while not all(high_seqnos(producer)[vbucket] for vbucket in (0, 2)):
            time.sleep(0.01)
        for vbucket in (1, 4):
            producer.set_state(vbucket, VBucketState.ACTIVE)

    back = threading.Thread(target=bring_back, daemon=True)
    back.start()
    frame = spark.range(500).selectExpr("concat('k', id) AS key", "cast(id AS string) AS value")
    write(frame, producer)
    back.join()
    assert producer.bucket.stats().items == 500


# ---- streams -----------------------------------------------------------------------------


class Stream:
    """A query that reads files of rows, one in a batch, and writes them into a bucket."""

    def __init__(self, spark: SparkSession, producer: TemporaryProducer, home: Path) -> None:
        self._spark = spark
        self._producer = producer
        self._files = home / "files"
        self._checkpoint = home / "checkpoint"
        self._files.mkdir()
        self._batches = 0

    def add(self, **documents: str) -> None:
        lines = [json.dumps({"key": key, "value": value}) for key, value in documents.items()]
        file = self._files / f"{self._batches}.json"
        draft = file.with_suffix(".draft")
        draft.write_text("\n".join(lines))
        os.utime(draft, (self._batches, self._batches))  # Spark takes them by their age
        draft.rename(file)
        self._batches += 1

    def run(self) -> None:
        """Writes everything that is there."""
        frame = (
            self._spark.readStream.format("json")
            .schema("key string, value string")
            .option("maxFilesPerTrigger", 1)
            .option("pathGlobFilter", "*.json")
            .load(str(self._files))
        )
        query = (
            frame.writeStream.format("dcp")
            .option("connectionString", self._producer.source)
            .option("checkpointLocation", str(self._checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()

    def forget_last_commit(self) -> None:
        """As if Spark had died between the sink's commit and its own."""
        commits = self._checkpoint / "commits"
        last = max(int(file.name) for file in commits.iterdir() if file.name.isdecimal())
        assert last == self._batches - 1
        (commits / str(last)).unlink()
        (commits / f".{last}.crc").unlink(missing_ok=True)

    @property
    def fence(self) -> str:
        metadata = json.loads((self._checkpoint / "metadata").read_text())
        return FENCE_PREFIX.decode() + str(metadata["id"])


def test_a_batch_of_a_stream_that_is_repeated_changes_nothing(
    spark: SparkSession, producer: TemporaryProducer, tmp_path: Path
) -> None:
    stream = Stream(spark, producer, tmp_path)
    stream.add(a="1", b="1")
    stream.add(b="2", c="2")
    stream.run()
    assert [stored(producer, key).value for key in "abc"] == [b"1", b"2", b"2"]
    assert json.loads(stored(producer, stream.fence).value) == {"batch": 1}
    before = high_seqnos(producer)

    stream.forget_last_commit()
    stream.run()
    assert high_seqnos(producer) == before

    # a batch that was complete is not written, even if others have changed its documents since
    producer.write(b"b", b"somebody else's")
    stream.forget_last_commit()
    stream.run()
    assert stored(producer, "b").value == b"somebody else's"

    stream.add(b="3")
    stream.run()
    assert stored(producer, "b").value == b"3"
    assert json.loads(stored(producer, stream.fence).value) == {"batch": 2}


def test_a_batch_that_was_written_in_part_leaves_that_part_alone(
    spark: SparkSession, producer: TemporaryProducer, tmp_path: Path
) -> None:
    """As if Spark had died before the sink's commit: there is no fence yet."""
    stream = Stream(spark, producer, tmp_path)
    stream.add(a="1", b="1", c="1")
    stream.run()
    before = versions(producer, ["a", "b"])
    producer.delete(stream.fence.encode())
    producer.delete(b"c")
    stream.forget_last_commit()
    stream.run()
    assert versions(producer, ["a", "b"]) == before
    assert stored(producer, "c").value == b"1"


def test_a_stream_that_reads_what_it_writes_comes_to_rest(
    spark: SparkSession, producer: TemporaryProducer, tmp_path: Path
) -> None:
    producer.write(b"k", b"v")
    query = (
        spark.readStream.format("dcp")
        .load(producer.source)
        .selectExpr("key", "upper(cast(value AS string)) AS value")
        .writeStream.format("dcp")
        .option("connectionString", producer.source)
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .start()
    )
    try:
        deadline = time.monotonic() + 120
        while stored(producer, "k").value != b"V" and time.monotonic() < deadline:
            query.processAllAvailable()
        query.processAllAvailable()  # returns only if there is an end
        before = high_seqnos(producer)
        query.processAllAvailable()
        assert high_seqnos(producer) == before
        assert stored(producer, "k").value == b"V"
    finally:
        query.stop()


def test_a_stream_whose_tasks_do_not_know_their_batch_writes_nothing(
    producer: TemporaryProducer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such a stream would have no fence, and nobody would hear of it."""
    told: dict[str, str | None] = {"sql.streaming.queryId": "q", "streaming.sql.batchId": None}
    context = SimpleNamespace(getLocalProperty=told.get)
    monkeypatch.setattr(TaskContext, "get", lambda: context)
    options = WriteOptions.parse({"connectionString": producer.source})
    schema = StructType().add("key", "string").add("value", "string")
    writer = sink.DcpStreamWriter(options, roles_of(options, schema), schema)
    rows = pa.RecordBatch.from_pydict({"key": ["k"], "value": ["v"]})
    with pytest.raises(ConfigError, match=r"tasks of this stream streaming\.sql\.batchId, so"):
        writer.write_batches(iter([rows]))
    assert not is_there(producer, "k")

    told["streaming.sql.batchId"] = "0"
    written = writer.write_batches(iter([rows]))
    assert (written.written, written.query) == (1, "q")


def test_the_fence_is_never_lowered(producer: TemporaryProducer) -> None:
    options = WriteOptions.parse({"connectionString": producer.source})
    writer = sink.DcpStreamWriter(options, {}, StructType([]))
    for batch in (3, 2, 4):
        writer.commit([None, sink.TaskWritten(written=1, query="q")], batch)
        assert json.loads(stored(producer, "_upriver:sink:q").value) == {"batch": max(3, batch)}
    writer.commit([sink.TaskWritten(query="empty")], 7)
    assert not is_there(producer, "_upriver:sink:empty")
    producer.write(b"_upriver:sink:q", b"nonsense")
    with pytest.raises(ConfigError, match="is not a fence of a stream: delete it"):
        writer.commit([sink.TaskWritten(written=1, query="q")], 5)


# ---- what cannot be ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("select", "said"),
    [
        ("'k' AS key, cast(NULL AS string) AS value", "key='k': a mutation needs a value"),
        ("cast(NULL AS string) AS key, 'v' AS value", "a row has no key"),
        (
            "'k' AS key, 'v' AS value, 'rollback' AS op",
            "set the source's option onRollback to restate",
        ),
        (
            "'k' AS key, 'v' AS value, 'upsert' AS op",
            "key='k': 'upsert' is not an op; the ops are mut",
        ),
        ("repeat('k', 251) AS key, 'v' AS value", "has 251 bytes; a key has 1 to 250"),
        ("'' AS key, 'v' AS value", "a key has 1 to 250"),
        ("'k' AS key, 'v' AS value, -1 AS flags", "key='k': flags -1 is not within"),
        ("'k' AS key, 'v' AS value, 9999999999 AS expiry", "key='k': the expiry, 9999999999 s"),
    ],
)
def test_a_row_that_cannot_be_written_is_named(
    spark: SparkSession, producer: TemporaryProducer, select: str, said: str
) -> None:
    assert said in complaint(spark.sql(f"SELECT {select}"), producer)
    assert high_seqnos(producer) == [0] * VBUCKETS


def test_a_value_that_is_too_big(spark: SparkSession, producer: TemporaryProducer) -> None:
    huge = spark.sql("SELECT 'k' AS key, repeat('x', 20971521) AS value")
    assert "the document 'k' has 20971521 bytes" in complaint(huge, producer)


def test_a_server_that_is_not_there(spark: SparkSession) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    frame = spark.sql("SELECT 'k' AS key, 'v' AS value")
    with pytest.raises(PySparkException) as failure:
        frame.write.format("dcp").mode("append").save(f"couchbase://127.0.0.1:{port}/default")
    assert f"127.0.0.1:{port} cannot be reached: Connection refused" in str(failure.value)


def test_a_user_who_may_not(spark: SparkSession, tmp_path: Path) -> None:
    users = Users()
    users.add("reader", "p4ssword", Grant(Role.READ_DATA), iterations=4096)
    users.save(tmp_path / "users.json")
    settings = ServerSettings(users=tmp_path / "users.json", authentication_delay=0)
    frame = spark.sql("SELECT 'k' AS key, 'v' AS value")
    with TemporaryProducer(vbuckets=VBUCKETS, settings=settings) as guarded:
        wrong = complaint(frame, guarded, user="reader", password="wr0ng")
        assert "authentication failed for user 'reader'" in wrong
        assert "wr0ng" not in wrong
        said = complaint(frame, guarded, user="reader", password="p4ssword")
        assert "writing the document 'k' was refused with NO_ACCESS: the user may not write" in said


@pytest.mark.parametrize(
    ("columns", "options", "said"),
    [
        ("key string", {}, "valueColumn: there is no column 'value', only key"),
        ("value string", {}, "keyColumn: there is no column 'key', only value"),
        ("key int, value string", {}, "'key' is int; it must be binary or string"),
        ("key string, value double", {}, "'value' is double; it must be array or binary or map"),
        ("key string, value string, cas decimal(20,0)", {}, "'cas' is decimal; it must be bigint"),
        ("key string, value string", {"checkCas": "true"}, "there is no column 'cas'"),
    ],
)
@pytest.mark.usefixtures("spark")
def test_a_frame_that_cannot_be_written(columns: str, options: dict[str, str], said: str) -> None:
    parsed = WriteOptions.parse({"connectionString": "couchbase://h/b", **options})
    with pytest.raises(ConfigError) as failure:
        roles_of(parsed, cast("StructType", StructType.fromDDL(columns)))
    assert said in str(failure.value)


def test_a_bucket_is_not_emptied(spark: SparkSession, producer: TemporaryProducer) -> None:
    frame = spark.sql("SELECT 'k' AS key, 'v' AS value")
    with pytest.raises(PySparkException, match="is not supported"):
        frame.write.format("dcp").mode("overwrite").save(producer.source)
