"""Reading a bucket into Spark once: every row and column, what options and filters leave out."""

from __future__ import annotations

import json
import re
import socket
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

import cramjam
import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.datasource import DataSource
from serverkit import SECRET, users_file
from sparkkit import behind_a_proxy, documents, documents_of, fill, name_of, row_of, stored
from storekit import Clock

from upriver.consumer import Consumer
from upriver.consumer.topology.cluster_map import vbucket_of
from upriver.model import Datatype, FailoverLog, Op, VBucketState
from upriver.producer.bootstrap.users import Role
from upriver.producer.server_settings import ServerSettings
from upriver.spark.functions.fold import fold
from upriver.store import SetDocument, WithMeta, document_key
from upriver.testing import ChaosProxy, Faults, TemporaryProducer
from upriver.wire.values import join_xattrs

VBUCKETS = 16
#: Numbers of 64 bits that Spark has no place for as they are.
HIGH_CAS = 0xFEDC_BA98_7654_3210
HIGH_VBUUID = 0x8123_4567_89AB_CDEF
PLENTY = b'{"padding":"' + b"x" * 2000 + b'"}'


class Shop:
    """A bucket with some of everything, behind a proxy that counts bytes."""

    def __init__(self, spark: SparkSession, producer: TemporaryProducer, proxy: ChaosProxy) -> None:
        self._spark = spark
        self.producer = producer
        self.bucket = producer.bucket
        self.proxy = proxy
        with Consumer(producer.source, end="now") as consumer:
            assert list(consumer)
            #: Where a reader was when half of everything was there.
            self.checkpoint = consumer.position()

    def frame(self, **options: Any) -> DataFrame:
        return self._spark.read.format("dcp").options(**options).load(self.producer.source)

    def rows(self, **options: Any) -> list[Row]:
        return in_order(self.frame(**options))

    def expected(self) -> list[dict[str, Any]]:
        return [row_of(self.bucket, change) for change in stored(self.bucket)]


def in_order(frame: DataFrame) -> list[Row]:
    return sorted(frame.collect(), key=lambda row: (row.vbucket, row.seqno))


@pytest.fixture(scope="module")
def shop(spark: SparkSession) -> Iterator[Shop]:
    clock = Clock()
    with behind_a_proxy(vbuckets=VBUCKETS, wall=clock) as (producer, proxy):
        bucket = producer.bucket
        bucket.set_state(2, VBucketState.REPLICA)
        bucket.set_failover_log(2, FailoverLog.of((HIGH_VBUUID, 0)))
        bucket.set_state(2, VBucketState.ACTIVE, transfer=True)
        for number in range(20 * VBUCKETS):
            producer.write(b"key-%d" % number, PLENTY)
        shop = Shop(spark, producer, proxy)
        for number in range(0, 40, 4):
            producer.delete(b"key-%d" % number)
        soon = SetDocument(
            5, document_key(b"short-lived"), b"{}", expiry=clock.seconds + 60, flags=7
        )
        later = SetDocument(5, document_key(b"lives"), b"", expiry=clock.seconds + 9_999_999)
        bucket.write(soon)
        bucket.write(later)
        clock.advance(120)
        bucket.expire()
        bucket.write(WithMeta(2, document_key(b"far"), Op.MUTATION, 2**40, HIGH_CAS, b"[]", 2**31))
        scope = bucket.create_scope("sales").id
        orders = bucket.create_collection(scope, "orders").id
        bucket.create_collection(scope, "nothing")
        for number in range(30):
            producer.write(b"order-%d" % number, b"{}", collection=orders)
        bucket.write(
            SetDocument(
                6,
                document_key(b"with attributes"),
                join_xattrs({"note": b'{"by":"ann"}'}, b'{"a":1}'),
                datatype=int(Datatype.XATTR | Datatype.JSON),
            )
        )
        packed = bytes(cramjam.snappy.compress_raw(b"packed " * 99))
        bucket.write(SetDocument(6, document_key(b"packed"), packed, datatype=int(Datatype.SNAPPY)))
        bucket.write(SetDocument(6, document_key(b"no text"), b"\xff\xfe"))
        yield shop


# ---- rows --------------------------------------------------------------------------------


@pytest.mark.story
def test_every_change_is_a_row_and_every_column_is_exact(shop: Shop) -> None:
    expected = {(row["vbucket"], row["seqno"]): row for row in shop.expected()}
    plain = {b"with attributes", b"packed"}
    rows = shop.rows()
    assert [(row.vbucket, row.seqno) for row in rows] == sorted(expected)
    for row in rows:
        if bytes(row.key) not in plain:
            assert row.asDict() == expected[row.vbucket, row.seqno]
    assert {row.op for row in rows} == {"mutation", "deletion", "expiration"}
    assert HIGH_CAS in {row.cas % 2**64 for row in rows}
    assert {row.vbuuid % 2**64 for row in rows if row.vbucket == 2} == {HIGH_VBUUID}
    unpacked = {bytes(row.key): bytes(row.value) for row in rows if bytes(row.key) in plain}
    assert unpacked == {b"with attributes": b'{"a":1}', b"packed": b"packed " * 99}


def test_rows_fold_to_the_documents_that_the_store_has(shop: Shop) -> None:
    found = documents_of(fold(shop.frame(decompress="false").cache()))
    # attributes are no part of the value that a row has
    expected = {place: value for place, value in documents(shop.bucket).items() if place[0] != 6}
    assert {place: value for place, value in found.items() if place[0] != 6} == expected


def test_without_values_nothing_else_is_missing(shop: Shop) -> None:
    rows = shop.rows(noValue="true")
    whole = shop.rows()
    assert all(row.value is None for row in rows)
    left_out = {"value", "datatype"}
    assert [{k: v for k, v in row.asDict().items() if k not in left_out} for row in rows] == [
        {k: v for k, v in row.asDict().items() if k not in left_out} for row in whole
    ]


def test_extended_attributes_are_a_column_on_request(shop: Shop) -> None:
    rows = {bytes(row.key): row for row in shop.rows(xattrs="true", vbuckets="6")}
    assert rows[b"with attributes"].xattrs == {"note": '{"by":"ann"}'}
    assert bytes(rows[b"with attributes"].value) == b'{"a":1}'
    assert rows[b"no text"].xattrs is None


def test_values_as_text_keep_what_is_no_text_apart(shop: Shop) -> None:
    rows = {bytes(row.key): row for row in shop.rows(valueFormat="string", vbuckets="6")}
    assert rows[b"packed"].value == "packed " * 99
    assert rows[b"packed"]._corrupt_record is None
    assert rows[b"no text"].value is None
    assert bytes(rows[b"no text"]._corrupt_record) == b"\xff\xfe"
    with pytest.raises(PySparkException, match="no text"):
        shop.rows(valueFormat="string", mode="FAILFAST", vbuckets="6")


def test_dropped_collections_have_no_rows_before_the_server_has_erased_them(
    spark: SparkSession,
) -> None:
    with TemporaryProducer(vbuckets=4) as producer:  # which erases nothing by itself
        bucket = producer.bucket
        shop, gone = bucket.create_scope("shop"), bucket.create_scope("gone")
        dropped = [bucket.create_collection(scope.id, "orders").id for scope in (shop, gone)]
        for number in range(8):
            for collection in (0, *dropped):
                producer.write(b"k%d" % number, b"old", collection=collection)
        bucket.drop_collection(dropped[0])
        bucket.drop_scope(gone.id)
        orders = bucket.create_collection(shop.id, "orders").id
        producer.write(b"k0", b"new", collection=orders)
        sent = Counter(change.collection for change in stored(bucket))
        assert sent == {0: 8, dropped[0]: 8, dropped[1]: 8, orders: 1}
        frame = spark.read.format("dcp").load(producer.source)
        rows = [(row.scope, row.collection, bytes(row.value)) for row in frame.collect()]
        assert Counter(rows) == {
            ("_default", "_default", b"old"): 8,
            ("shop", "orders", b"new"): 1,
        }


# ---- what options choose -----------------------------------------------------------------


@pytest.mark.parametrize(
    "options", [{"collections": "sales.orders"}, {"scope": "sales"}], ids=lambda o: next(iter(o))
)
def test_collections_and_scopes_are_read_alone(shop: Shop, options: dict[str, str]) -> None:
    rows = shop.rows(**options)
    assert {bytes(row.key) for row in rows} == {b"order-%d" % n for n in range(30)}
    assert {(row.scope, row.collection) for row in rows} == {("sales", "orders")}


def test_vbuckets_are_read_alone(shop: Shop) -> None:
    rows = shop.rows(vbuckets="2-4,9")
    names = [name_of(row) for row in shop.rows() if row.vbucket in (2, 3, 4, 9)]
    assert [name_of(row) for row in rows] == names


def test_a_batch_begins_at_a_checkpoint_and_ends_exactly_where_it_is_told(
    shop: Shop, tmp_path: Path
) -> None:
    seen = {vb: position.seqno for vb, position in shop.checkpoint.positions.items()}
    rest = shop.rows(startingOffsets=shop.checkpoint.to_json())
    assert rest == [row for row in shop.rows() if row.seqno > seen[row.vbucket]]

    file = tmp_path / "checkpoint.json"
    file.write_text(shop.checkpoint.to_json())
    middle = seen[2] + 1
    ending = json.dumps({"2": middle, "6": 10_000, "5": 3})
    rows = shop.rows(startingOffsets=f"file:{file}", endingOffsets=ending)
    expected = [
        row for row in rest if row.vbucket == 6 or (row.vbucket == 2 and row.seqno <= middle)
    ]
    assert rows == expected
    assert {row.vbucket for row in expected} == {2, 6}


@pytest.mark.parametrize("count", [1, 3, 100])
def test_any_number_of_tasks_reads_the_same(spark: SparkSession, count: int) -> None:
    with TemporaryProducer(vbuckets=8) as producer:
        fill(producer, range(6000))  # a batch of fewer is one task anyway
        frame = spark.read.format("dcp").option("numPartitions", count).load(producer.source)
        assert frame.rdd.getNumPartitions() == min(count, 8)
        names = [(row.vbucket, row.seqno) for row in in_order(frame.select("vbucket", "seqno"))]
        assert names == [(vb, seqno) for vb in range(8) for seqno in range(1, 751)]


def test_an_empty_bucket_has_no_rows(spark: SparkSession) -> None:
    with TemporaryProducer(vbuckets=2) as producer:
        assert spark.read.format("dcp").load(producer.source).collect() == []


# ---- what filters spare ------------------------------------------------------------------

#: A condition, what it means, and the most that is read for it, as a part of everything. A server
#: ends streams at the end of a snapshot, so seqnos below an end spare only the lower ones.
FILTERS: list[tuple[str, Callable[[Row], bool], float]] = [
    ("vbucket = 3", lambda r: r.vbucket == 3, 0.1),
    ("vbucket in (1, 7)", lambda r: r.vbucket in (1, 7), 0.2),
    ("vbucket >= 13 and vbucket < 15", lambda r: 13 <= r.vbucket < 15, 0.2),
    ("vbucket > 99", lambda r: False, 0.1),
    ("key = 'key-7'", lambda r: r.key == b"key-7", 0.1),
    ("key in ('key-7', 'key-8')", lambda r: r.key in (b"key-7", b"key-8"), 0.2),
    ("startswith(key, 'key-11')", lambda r: (r.key or b"").startswith(b"key-11"), 1.1),
    ("key >= 'key-11' and key < 'key-12'", lambda r: b"key-11" <= r.key < b"key-12", 1.1),
    ("collection = 'orders'", lambda r: r.collection == "orders", 0.1),
    ("scope = 'sales' and vbucket < 8", lambda r: r.scope == "sales" and r.vbucket < 8, 0.1),
    ("collection = 'nothing'", lambda r: False, 0.1),
    ("seqno > 18", lambda r: r.seqno > 18, 0.4),
    ("seqno <= 3", lambda r: r.seqno <= 3, 1.1),
    ("seqno between 4 and 6", lambda r: 4 <= r.seqno <= 6, 1.1),
    ("seqno in (5, 6)", lambda r: r.seqno in (5, 6), 1.1),
    ("seqno > 1000", lambda r: False, 0.1),
    ("vbucket = 3 or seqno = 4", lambda r: r.vbucket == 3 or r.seqno == 4, 1.1),
    ("vbucket <> 3 and op <> 'mutation'", lambda r: r.vbucket != 3 and r.op != "mutation", 1.1),
]


def test_filters_spare_reading_and_change_nothing_else(shop: Shop) -> None:
    before = shop.proxy.counts.bytes_to_client
    whole = shop.rows()
    size = shop.proxy.counts.bytes_to_client - before
    for condition, is_meant, share in FILTERS:
        before = shop.proxy.counts.bytes_to_client
        rows = in_order(shop.frame(pushFilters=True).where(condition))
        read = shop.proxy.counts.bytes_to_client - before
        assert rows == [row for row in whole if is_meant(row)], condition
        assert read <= share * size, f"{condition}: {read} bytes of {size}"


def test_the_plan_shows_the_filters_that_decide_what_is_read(
    shop: Shop, capsys: pytest.CaptureFixture[str]
) -> None:
    frame = shop.frame(pushFilters=True).where("vbucket = 3 and seqno > 10 and key > 'a'")
    frame.explain("formatted")
    plan = capsys.readouterr().out
    (pushed,) = re.findall(r"PushedFilters: \[(.*)\]", plan)
    assert pushed == "EqualTo(vbucket,3), GreaterThan(seqno,10)"
    (left,) = re.findall(r"Condition : (.*)", plan)
    assert "key" in left
    assert "vbucket#" not in left.replace("isnotnull(vbucket#", "")


def test_a_filter_that_nobody_pushes_down_is_still_heeded(shop: Shop, spark: SparkSession) -> None:
    setting = "spark.sql.python.filterPushdown.enabled"
    spark.conf.set(setting, "false")
    try:
        rows = in_order(shop.frame(pushFilters=True).where("vbucket = 3 and seqno > 10"))
    finally:
        spark.conf.set(setting, "true")
    assert rows == [row for row in shop.rows() if row.vbucket == 3 and row.seqno > 10]


def test_a_frame_that_is_used_twice_with_other_filters_has_the_right_rows(shop: Shop) -> None:
    frame = shop.frame()
    count = frame.count()
    assert 0 < frame.where("vbucket = 3").count() < count
    assert frame.where("vbucket = 3").union(frame).count() > count
    assert frame.count() == count


def test_a_frame_that_is_used_again_has_what_was_written_since(spark: SparkSession) -> None:
    def count(frame: DataFrame) -> int:
        return frame.count()

    with TemporaryProducer(vbuckets=8) as producer:
        names = [b"name-%d" % number for number in range(200)]
        first = [name for name in names if vbucket_of(name, 8) < 4][:40]
        for name in first:
            producer.write(name, b"1")
        with Consumer(producer.source, end="now") as consumer:
            list(consumer)
            reached = consumer.position().to_json()
        plain = spark.read.format("dcp").load(producer.source)
        ending = json.dumps({str(vbucket): 1000 for vbucket in range(8)})
        others = [
            spark.read.format("dcp").options(**options).load(producer.source)
            for options in ({"endingOffsets": ending}, {"startingOffsets": reached})
        ]
        plain.createOrReplaceTempView("used_again")
        kept = plain.select("key").cache()
        frames = [plain, *others, spark.table("used_again"), kept]
        assert list(map(count, frames)) == [40, 40, 0, 40, 40]
        second = [name for name in names if name not in first][-40:]
        assert {vbucket_of(name, 8) for name in second} == set(range(8))
        for name in second:
            producer.write(name, b"1")
        assert list(map(count, frames)) == [80, 80, 40, 80, 40]  # what was cached stays
        assert plain.alias("a").join(plain.alias("b"), "key").count() == 80
        kept.unpersist()
        assert count(kept) == 80


def test_only_the_named_columns_are_made_and_values_do_not_travel(shop: Shop) -> None:
    before = shop.proxy.counts.bytes_to_client
    whole = shop.rows()
    size = shop.proxy.counts.bytes_to_client - before
    before = shop.proxy.counts.bytes_to_client
    frame = shop.frame(columns="seqno, KEY,vbucket")
    assert frame.columns == ["seqno", "key", "vbucket"]
    assert in_order(frame) == [Row(seqno=r.seqno, key=r.key, vbucket=r.vbucket) for r in whole]
    assert shop.proxy.counts.bytes_to_client - before < 0.9 * size
    with_values = in_order(shop.frame(columns="vbucket,seqno,value"))
    assert [row.value for row in with_values] == [row.value for row in whole]


def test_a_limit_ends_the_read_early(spark: SparkSession) -> None:
    with behind_a_proxy(vbuckets=2) as (producer, proxy):
        fill(producer, range(2000), b"x" * 4000)
        reader = spark.read.format("dcp").option("flowControlBuffer", "64k")
        frame = reader.option("numPartitions", 1).load(producer.source)
        assert len(frame.take(5)) == 5
        assert proxy.counts.bytes_to_client < 4_000_000


# ---- what is refused ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"colections": "a.b"}, "collections"),
        ({"scope": "a", "collections": "a.b"}, "scope and collections|collections and scope"),
        ({"maxOffsetsPerTrigger": "5"}, "maxOffsetsPerTrigger has no meaning for a batch"),
        ({"startingOffsets": "latest"}, "startingOffsets"),
        ({"startingOffsets": "yesterday"}, "startingOffsets"),
        ({"vbuckets": "99"}, "the bucket has 0 to 15, not 99"),
        ({"collections": "sales.orderz"}, "sales.orders"),
        ({"noValue": "true", "valueFormat": "string"}, "noValue and valueFormat"),
        ({"noValue": "true", "columns": "key,value"}, "noValue and columns"),
        ({"columns": "key,sequence"}, "rows have no column 'sequence', only op, vbucket"),
        ({"columns": "key,Key"}, "a column is named twice"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_wrong_options_are_refused_by_name(
    shop: Shop, options: dict[str, str], message: str
) -> None:
    with pytest.raises(PySparkException, match=message):
        shop.rows(**options)


def test_a_schema_of_ones_own_is_refused(shop: Shop, spark: SparkSession) -> None:
    reader = spark.read.format("dcp").schema("key binary")
    with pytest.raises(PySparkException, match=r"leave schema\(...\) out"):
        reader.load(shop.producer.source).collect()


def test_trouble_with_the_server_is_told_in_words(spark: SparkSession, tmp_path: Path) -> None:
    def refusal(source: str, **options: str) -> str:
        reader = spark.read.format("dcp").options(**{"retryTimeout": "1s", **options})
        with pytest.raises(PySparkException) as caught:
            reader.load(source).collect()
        return str(caught.value)

    users = users_file(tmp_path, {"ann": (Role.READ_STREAM, Role.READ_DATA)})
    settings = ServerSettings(users=users, authentication_delay=0)
    with TemporaryProducer(vbuckets=2, settings=settings) as producer:
        wrong = refusal(producer.source, user="ann", password="guessed")
        assert "AuthenticationFailed" in wrong
        assert "guessed" not in wrong
        elsewhere = producer.source.replace("/default", "/elsewhere")
        assert "elsewhere" in refusal(elsewhere, user="ann", password=SECRET)
        given = {"user": "ann", "password": SECRET}
        fill(producer, range(10))
        assert spark.read.format("dcp").options(**given).load(producer.source).count() == 10
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))  # and does not listen
        source = "couchbase://{}:{}/default".format(*nobody.getsockname())
        assert f"127.0.0.1:{nobody.getsockname()[1]}" in refusal(source)


def test_a_vbucket_without_a_server_fails_the_batch(spark: SparkSession) -> None:
    with TemporaryProducer(vbuckets=4) as producer:
        fill(producer, range(40))
        producer.set_state(3, VBucketState.DEAD)
        reader = spark.read.format("dcp").option("retryTimeout", "1s")
        with pytest.raises(PySparkException, match="vbucket 3"):
            reader.load(producer.source).collect()
        rows = reader.option("vbuckets", "0-2").load(producer.source).collect()
        assert len(rows) == 30


def test_a_failover_in_the_middle_fails_the_batch_and_not_the_next_one(
    spark: SparkSession,
) -> None:
    with behind_a_proxy(vbuckets=4) as (producer, proxy), ThreadPoolExecutor(1) as pool:
        fill(producer, range(1000), b"x" * 4000)
        # small windows and a slow network, so that there is time to stop it
        proxy.to_client.faults = Faults(delay=0.01)
        reader = spark.read.format("dcp").option("flowControlBuffer", "16k")
        frame = reader.load(producer.source)
        reading = pool.submit(frame.collect)
        while proxy.counts.bytes_to_client < 200_000:
            wait([reading], timeout=0.02)
            assert not reading.done()
        proxy.stall()
        for vbucket in range(4):
            producer.fail_over(vbucket, 10)
        proxy.to_client.faults = Faults()
        proxy.resume()
        with pytest.raises(PySparkException, match="RollbackRequired"):
            reading.result()
        assert len(frame.collect()) == 40


# ---- how it is found ---------------------------------------------------------------------


class OfOneSession(DataSource):
    """Something that was registered in one session only."""

    @classmethod
    def name(cls) -> str:
        return "of_one_session"

    def schema(self) -> str:
        return "number int"


def test_spark_finds_the_format_by_itself(shop: Shop, spark: SparkSession) -> None:
    spark.dataSource.register(OfOneSession)
    fresh = spark.newSession()
    with pytest.raises((PySparkException, Py4JJavaError), match="of_one_session"):
        fresh.read.format("of_one_session").load()
    found = fresh.read.format("dcp").option("vbuckets", "1").load(shop.producer.source)
    assert found.count() == len(shop.rows(vbuckets="1"))


def test_sql_reads_it_as_a_view(shop: Shop, spark: SparkSession) -> None:
    spark.sql(
        f"CREATE OR REPLACE TEMP VIEW changes USING dcp OPTIONS ("
        f"connectionString '{shop.producer.source}', collections 'sales.orders')"
    )
    (row,) = spark.sql("SELECT count(*) AS n, min(collection) AS c FROM changes").collect()
    assert (row.n, row.c) == (30, "orders")
