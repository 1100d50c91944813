"""Columns that are written as in Spark SQL."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from upriver.errors import ConfigError
from upriver.tables.rows.ddl import schema_json

WRITTEN = [
    "a string",
    "a int, b bigint, c smallint, d tinyint, e long, f integer, g short, h byte",
    "a FLOAT, b Double, c real, d boolean, e binary, f date, g timestamp",
    "a timestamp_ntz, b timestamp_ltz, c variant",
    "a decimal, b decimal(5), c dec(38,38), d numeric(10, 2)",
    "a array<string>, b map<string, array<int>>, c struct<x: int, y: struct<z string>>",
    "`a b` string, `back``tick` int, `\u00e4` string, _a int, a1 int",
    "a: int, b: struct<`c d`: date>",
    "a int NOT NULL, b struct<x: int NOT NULL>",
    "a int COMMENT 'it\\'s', b int NOT NULL COMMENT \"two\"",
    "  a   int  ,\n b\tstring ",
]


@pytest.mark.story
def test_it_is_read_as_spark_reads_it(spark: SparkSession) -> None:
    for written in WRITTEN:
        assert schema_json(written) == StructType.fromDDL(written).json(), written


@pytest.mark.parametrize(
    ("written", "problem"),
    [
        ("", "it describes no columns"),
        ("a", "it ends where the type of a should be"),
        ("a intt", "a has the type intt, which is no type of a column, did you mean int?"),
        ("a int b int", "'b' is not expected there"),
        ("a int,", "it ends where the name of a column should be"),
        ("a array<int", "a '>' is missing after array"),
        ("a array int", "a '<' is missing after array"),
        ("a map<string>", "a ',' is missing after map"),
        ("a decimal(39,2)", r"a is a decimal(39,2)"),
        ("a decimal(x)", "'x' in the type of a is not a number"),
        ("a int; b int", "';' cannot be read"),
        ("1 2 3 -", "'-' cannot be read"),
        ("a int COMMENT b", "the comment of a needs quotes"),
        ("a " + "array<" * 100 + "int" + ">" * 100, "a has more than 64 levels"),
    ],
)
def test_what_is_wrong_is_named(written: str, problem: str) -> None:
    with pytest.raises(ConfigError) as failure:
        schema_json(written)
    assert problem in str(failure.value)
    assert "write columns such as" in str(failure.value)


@given(st.text() | st.text("ab int,<>():`' strucay09", max_size=60))
def test_any_text_is_read_or_refused(written: str) -> None:
    try:
        found: Any = json.loads(schema_json(written))
    except ConfigError:
        return
    assert found["type"] == "struct"
    assert found["fields"]
