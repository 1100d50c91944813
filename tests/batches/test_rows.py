"""Rows for Spark: nothing lost, nothing rounded, and the exact schema that Spark demands."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from examples import examples
from upriver.batches import value_columns
from upriver.batches.options import RowFormat
from upriver.batches.row_schema import RowBuilder, arrow_schema
from upriver.errors import ConfigError, RemoteProtocolError, UpriverError
from upriver.model import Datatype
from upriver.spark.source.row_types import spark_schema
from upriver.wire.columns.result import SCHEMA
from upriver.wire.values import deflate, join_xattrs

FORMATS = [
    RowFormat(),
    RowFormat(text=True, corrupt_column="_corrupt_record"),
    RowFormat(xattrs=True, fail_fast=True),
    RowFormat(text=True, xattrs=True, corrupt_column="bad"),
    RowFormat(values=False),
]

#: 1 June 2026 in UTC, as a CAS with some counter in it.
MOMENT = datetime(2026, 6, 1, 12, 30, 15, tzinfo=UTC)
CAS = (int(MOMENT.timestamp()) * 10**9 & ~0xFFFF) | 0x1234

CHANGE = {
    "op": "mutation",
    "vbucket": 3,
    "seqno": 7,
    "rev": 2,
    "cas": CAS,
    "flags": 0x2000006,
    "expiry": 0,
    "datatype": 1,
    "collection": 0,
    "key": b"k",
    "value": b"{}",
    "opaque": 9,
}


def decoded(*changes: dict[str, Any]) -> pa.RecordBatch:
    """A batch as the consumer delivers it; what a change leaves out is as above."""
    rows = [CHANGE | change for change in changes]
    columns = []
    for cell in SCHEMA:
        values = [row[cell.name] for row in rows]
        if cell.name == "op":
            ops = ["mutation", "deletion", "expiration"]
            indices = pa.array([ops.index(str(value)) for value in values], pa.int8())
            columns.append(pa.DictionaryArray.from_arrays(indices, pa.array(ops)))
        else:
            columns.append(pa.array(values, cell.type))
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


def names(collection: int) -> tuple[str, str]:
    return {0: ("_default", "_default"), 8: ("shop", "orders")}[collection]


def builder(rows: RowFormat | None = None, **changed: Any) -> RowBuilder:
    placed = {"branches": {3: 1, 4: 0, 1023: 2}, "vbuuids": {3: 33, 4: 2**64 - 1, 1023: 7}}
    return RowBuilder(rows or RowFormat(), **{"names": names, **placed, **changed})


def rows_of(batches: Iterator[pa.RecordBatch]) -> list[dict[str, Any]]:
    return [row for batch in batches for row in batch.to_pylist()]


def one_row(rows: RowFormat | None = None, **change: Any) -> dict[str, Any]:
    (row,) = rows_of(builder(rows).changes(decoded(change)))
    return row


@pytest.mark.parametrize("rows", FORMATS)
def test_the_schema_is_exactly_what_spark_checks(rows: RowFormat) -> None:
    assert arrow_schema(rows).equals(to_arrow_schema(spark_schema(rows), timezone="UTC"))
    for batch in (*builder(rows).changes(decoded({}, {})), builder(rows).rollbacks({3: 5})):
        assert batch.schema.equals(arrow_schema(rows), check_metadata=True)
        batch.validate(full=True)


def test_the_column_for_bad_values_cannot_be_another_one() -> None:
    with pytest.raises(ConfigError, match="columnNameOfCorruptRecord: rows have a column Key"):
        arrow_schema(RowFormat(text=True, corrupt_column="Key"))


def test_a_mutation_keeps_everything() -> None:
    assert one_row(collection=8, expiry=1_893_456_000) == {
        "op": "mutation",
        "vbucket": 3,
        "seqno": 7,
        "branch": 1,
        "vbuuid": 33,
        "key": b"k",
        "value": b"{}",
        "cas": CAS,
        "rev": 2,
        "flags": 0x2000006,
        "expiry": datetime(2030, 1, 1, tzinfo=UTC),
        "datatype": 1,
        "scope": "shop",
        "collection": "orders",
        "event_time": datetime.fromtimestamp((CAS & ~0xFFFF) // 1000 / 10**6, UTC),
    }


def test_the_event_time_is_the_time_of_the_cas_to_its_precision() -> None:
    late = MOMENT - one_row()["event_time"]
    assert 0 <= late.total_seconds() < 65_536e-9 + 1e-6


@pytest.mark.parametrize("cas", [0, 1, 2**40, 2**63, 2**64 - 1])
def test_a_cas_that_is_no_time_has_no_event_time(cas: int) -> None:
    row = one_row(cas=cas)
    assert row["event_time"] is None
    assert row["cas"] % 2**64 == cas


@given(
    st.integers(0, 2**64 - 1),
    st.integers(0, 2**64 - 1),
    st.integers(0, 2**63 - 1),
    st.integers(0, 2**32 - 1),
    st.integers(0, 2**32 - 1),
)
@settings(max_examples=examples(60))
def test_numbers_are_exact(cas: int, rev: int, seqno: int, flags: int, expiry: int) -> None:
    row = one_row(cas=cas, rev=rev, seqno=seqno, flags=flags, expiry=expiry, vbucket=4)
    assert (row["cas"] % 2**64, row["rev"] % 2**64) == (cas, rev)
    assert (row["seqno"], row["flags"]) == (seqno, flags)
    assert row["vbuuid"] % 2**64 == 2**64 - 1
    assert (row["expiry"].timestamp() if row["expiry"] else 0) == expiry


def test_a_seqno_that_spark_cannot_hold_is_refused() -> None:
    with pytest.raises(RemoteProtocolError, match=str(2**63)):
        list(builder().changes(decoded({}, {"seqno": 2**63})))


def test_a_vbucket_that_nobody_asked_for_is_refused() -> None:
    with pytest.raises(RemoteProtocolError, match="vbucket 5 "):
        list(builder().changes(decoded({}, {"vbucket": 5})))


def test_what_is_gone_has_no_value_and_no_expiry() -> None:
    rows = rows_of(
        builder().changes(
            decoded(
                {"op": "deletion", "value": b"", "expiry": 1_700_000_000, "datatype": 0},
                {"value": b""},
                {"op": "expiration", "value": b"", "vbucket": 1023},
            )
        )
    )
    assert [row["op"] for row in rows] == ["deletion", "mutation", "expiration"]
    assert [row["value"] for row in rows] == [None, b"", None]
    assert [row["expiry"] for row in rows] == [None, None, None]
    assert [(row["vbucket"], row["branch"]) for row in rows] == [(3, 1), (3, 1), (1023, 2)]


def test_without_values_there_are_nulls() -> None:
    assert one_row(RowFormat(values=False), value=b"")["value"] is None


def test_a_slice_of_a_batch_is_only_the_slice() -> None:
    batch = decoded(*({"seqno": n, "value": b"%d" % n} for n in range(1, 30)))
    deleted = decoded({"op": "deletion", "value": b"", "seqno": 30})
    whole = pa.Table.from_batches([batch, deleted]).combine_chunks().to_batches()[0]
    rows = rows_of(builder().changes(whole.slice(11)))
    assert [row["seqno"] for row in rows] == list(range(12, 31))
    assert [row["value"] for row in rows] == [b"%d" % n for n in range(12, 30)] + [None]


def test_an_empty_batch_makes_no_rows() -> None:
    assert list(builder().changes(decoded().slice(0))) == []


def test_each_collection_is_asked_for_once_and_unknown_ones_stay_apart() -> None:
    asked = []

    def tell(collection: int) -> tuple[str, str]:
        asked.append(collection)
        return names(collection)

    made = builder(names=tell)
    batch = decoded(*({"collection": number} for number in (8, 0, 31, 8, 32, 0)))
    for _ in range(2):
        rows = rows_of(made.changes(batch))
        assert [(row["scope"], row["collection"]) for row in rows] == [
            ("shop", "orders"),
            ("_default", "_default"),
            (None, "0x1f"),
            ("shop", "orders"),
            (None, "0x20"),
            ("_default", "_default"),
        ]
    assert asked == [8, 0, 31, 32]


def test_rollbacks_name_vbucket_seqno_and_branch_and_nothing_else() -> None:
    rows = builder().rollbacks({3: 40, 1023: 0}).to_pylist()
    assert [{k: v for k, v in row.items() if v is not None} for row in rows] == [
        {"op": "rollback", "vbucket": 3, "seqno": 40, "branch": 1, "vbuuid": 33},
        {"op": "rollback", "vbucket": 1023, "seqno": 0, "branch": 2, "vbuuid": 7},
    ]


# ---- values ----------------------------------------------------------------------------------

SNAPPY, XATTR, JSON = Datatype.SNAPPY, Datatype.XATTR, Datatype.JSON


def test_wrapped_values_are_unwrapped_between_plain_ones() -> None:
    attributed = join_xattrs({"_sync": b'{"rev":1}', "tags": b"[]"}, b'{"b":2}')
    rows = rows_of(
        builder(RowFormat(xattrs=True)).changes(
            decoded(
                {"value": b"plain"},
                {"value": deflate(b'{"a":1}'), "datatype": JSON | SNAPPY},
                {"value": b"also plain"},
                {"value": deflate(attributed), "datatype": JSON | SNAPPY | XATTR},
                {"value": attributed, "datatype": JSON | XATTR, "op": "deletion"},
                {"value": join_xattrs({}, b""), "datatype": XATTR, "op": "deletion"},
            )
        )
    )
    assert [row["value"] for row in rows] == [
        b"plain",
        b'{"a":1}',
        b"also plain",
        b'{"b":2}',
        b'{"b":2}',
        None,
    ]
    assert [row["datatype"] for row in rows] == [1, 1, 1, 1, 1, 0]
    pairs = [("_sync", '{"rev":1}'), ("tags", "[]")]
    assert [row["xattrs"] for row in rows] == [None, None, None, pairs, pairs, []]


def test_values_may_stay_compressed() -> None:
    packed = deflate(b"x" * 1000)
    row = one_row(RowFormat(inflate=False), value=packed, datatype=SNAPPY)
    assert (row["value"], row["datatype"]) == (packed, SNAPPY)


BROKEN = [
    (b"\xff\xff\xff no snappy", SNAPPY),
    (b"\x00\x00\x00\xff short", XATTR),
    (join_xattrs({"a": b"\xff"}, b""), XATTR),
]


@pytest.mark.parametrize(("value", "datatype"), BROKEN)
def test_a_broken_value_stays_as_it_came_and_hurts_no_other(value: bytes, datatype: int) -> None:
    batch = decoded({"value": b"1"}, {"value": value, "datatype": datatype}, {"value": b"2"})
    rows = rows_of(builder(RowFormat(xattrs=True)).changes(batch))
    assert [row["value"] for row in rows] == [b"1", value, b"2"]
    assert [row["datatype"] for row in rows] == [1, datatype, 1]


@pytest.mark.parametrize(("value", "datatype"), BROKEN)
def test_with_text_a_broken_value_goes_to_its_own_column(value: bytes, datatype: int) -> None:
    rows = RowFormat(text=True, xattrs=True, corrupt_column="bad")
    batch = decoded({"value": b"1"}, {"value": value, "datatype": datatype}, {"value": b"2"})
    made = rows_of(builder(rows).changes(batch))
    assert [row["value"] for row in made] == ["1", None, "2"]
    assert [row["bad"] for row in made] == [None, value, None]


@pytest.mark.parametrize(("value", "datatype"), [*BROKEN, (b"\xc3(", 0)])
def test_failing_fast_names_the_document(value: bytes, datatype: int) -> None:
    rows = RowFormat(text=True, xattrs=True, fail_fast=True)
    batch = decoded({}, {"value": value, "datatype": datatype, "seqno": 88, "key": b"the key"})
    with pytest.raises(UpriverError, match=r"DCP-BAD-VALUE vb=3 seqno=88 key=b'the key'"):
        list(builder(rows).changes(batch))


def test_text_is_checked_and_what_is_none_is_kept_apart() -> None:
    rows = RowFormat(text=True, corrupt_column="bad")
    values = ["gr\u00fc\u00df".encode(), b"\xff\xfe", b"", b"ok", b"\xed\xa0\x80"]
    batch = decoded(*({"value": value} for value in values), {"op": "deletion", "value": b""})
    made = rows_of(builder(rows).changes(batch))
    assert [row["value"] for row in made] == ["gr\u00fc\u00df", None, "", "ok", None, None]
    assert [row["bad"] for row in made] == [None, b"\xff\xfe", None, None, b"\xed\xa0\x80", None]


def test_a_batch_that_unpacks_to_much_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(value_columns, "_MOST_UNPACKED", 5_000)
    changes = [
        {"seqno": n, "value": deflate(b"%d" % n * 500), "datatype": SNAPPY}
        if n % 3
        else {"seqno": n}
        for n in range(1, 40)
    ]
    made = list(builder().changes(decoded(*changes)))
    assert len(made) > 3
    rows = rows_of(iter(made))
    assert [row["seqno"] for row in rows] == list(range(1, 40))
    assert [row["value"] for row in rows] == [
        b"%d" % n * 500 if n % 3 else b"{}" for n in range(1, 40)
    ]


# ---- through Spark ---------------------------------------------------------------------------


@pytest.mark.parametrize("rows", FORMATS)
def test_spark_takes_the_batches_and_reads_the_same(spark: SparkSession, rows: RowFormat) -> None:
    attributed = join_xattrs({"meta": b'{"n":1}'}, b'{"b":2}')
    batches = [
        builder(rows).rollbacks({3: 5}),
        *builder(rows).changes(
            decoded(
                {"value": attributed, "datatype": JSON | XATTR, "collection": 8},
                {"value": b"", "op": "deletion", "cas": 2**64 - 1},
            )
        ),
    ]
    schema = spark_schema(rows)

    # local classes, because workers get them by value and cannot import this module
    class Reader(DataSourceReader):
        def partitions(self) -> list[InputPartition]:
            return [InputPartition(0)]

        def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
            yield from batches

    class Source(DataSource):
        @classmethod
        def name(cls) -> str:
            return "ready_batches"

        def schema(self) -> StructType:
            return schema

        def reader(self, schema: StructType) -> DataSourceReader:
            return Reader()

    spark.dataSource.register(Source)
    frame = spark.read.format("ready_batches").load()
    assert frame.schema == schema
    assert frame.toArrow().to_pylist() == [row for batch in batches for row in batch.to_pylist()]
