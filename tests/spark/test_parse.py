"""JSON values as columns, and what becomes of those that are no JSON."""

from __future__ import annotations

from typing import Any

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.sql import DataFrame, SparkSession

from upriver.errors import ConfigError
from upriver.spark.functions.parse import parse

VALUES = [
    (1, b'{"name": "Ada", "age": 36}'),
    (2, b'{"name": "Bob", "age": "old"}'),
    (3, b"no json"),
    (4, b"\xff\xfe"),
    (5, None),
    (6, b'{"other": 1}'),
]


def frame(spark: SparkSession, values: list[Any] = VALUES) -> DataFrame:
    return spark.createDataFrame(values, "seqno long, value binary")


def test_a_schema_makes_columns_and_keeps_what_does_not_fit(spark: SparkSession) -> None:
    parsed = parse(frame(spark), "name string, age int").orderBy("seqno")
    assert parsed.schema["value"].dataType.simpleString() == "struct<name:string,age:int>"
    rows = [(row.value and tuple(row.value), row._corrupt_record) for row in parsed.collect()]
    assert rows == [
        (("Ada", 36), None),
        (None, VALUES[1][1]),
        (None, b"no json"),
        (None, b"\xff\xfe"),
        (None, None),
        ((None, None), None),
    ]


def test_without_a_schema_values_become_variants(spark: SparkSession) -> None:
    parsed = parse(frame(spark), corrupt="bad")
    rows = parsed.selectExpr(
        "seqno", "variant_get(value, '$.name', 'string') name", "value is null gone", "bad"
    )
    assert [tuple(row) for row in rows.orderBy("seqno").collect()] == [
        (1, "Ada", False, None),
        (2, "Bob", False, None),
        (3, None, True, b"no json"),
        (4, None, True, b"\xff\xfe"),
        (5, None, True, None),
        (6, None, False, None),
    ]


def test_what_the_source_kept_apart_stays_there(spark: SparkSession) -> None:
    changes = spark.createDataFrame(
        [(None, b"\xff"), ("{", None), ("{}", None)], "value string, _corrupt_record binary"
    )
    assert {
        row._corrupt_record and bytes(row._corrupt_record) for row in parse(changes).collect()
    } == {
        b"\xff",
        b"{",
        None,
    }


@pytest.mark.parametrize("schema", ["name string, age int", None])
def test_failing_fast_fails(spark: SparkSession, schema: str | None) -> None:
    with pytest.raises(Py4JJavaError, match="MALFORMED_RECORD"):
        parse(frame(spark), schema, mode="FAILFAST").collect()
    good = parse(frame(spark, VALUES[:1]), schema, mode="FAILFAST")
    assert good.columns == ["seqno", "value"]
    assert good.count() == 1


def test_wrong_arguments_are_named(spark: SparkSession) -> None:
    with pytest.raises(ConfigError, match="mode"):
        parse(frame(spark), mode="SOMETIMES")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="schema"):
        parse(frame(spark), "map<string, int>")
    with pytest.raises(ConfigError, match="another column"):
        parse(frame(spark), "bad string", corrupt="bad")
