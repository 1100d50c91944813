"""Folding change rows into documents, against a fold of a few lines, over random histories."""

from __future__ import annotations

import random
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from upriver.spark.functions.fold import fold

COLUMNS = (
    "op string, vbucket int, seqno long, branch int, key binary, value binary, "
    "scope string, collection string"
)
Row = tuple[str, int, int, int, bytes | None, bytes | None, str | None, str | None]


def change(
    op: str, seqno: int, branch: int, key: bytes | None = b"k", value: bytes | None = None
) -> Row:
    name = None if op == "rollback" else "_default"
    return (op, 1, seqno, branch, key, value, name, name)


def documents(folded: DataFrame) -> dict[Any, Any]:
    rows = folded.collect()
    found = {
        (row.vbucket, row.scope, row.collection, bytes(row.key)): (row.branch, row.seqno, row.value)
        for row in rows
    }
    assert len(found) == len(rows)
    return found


def folded_by_hand(rows: list[Row]) -> dict[Any, Any]:
    rollbacks = [
        (vbucket, branch, seqno) for op, vbucket, seqno, branch, *_ in rows if op == "rollback"
    ]
    best: dict[Any, Any] = {}
    for op, vbucket, seqno, branch, key, value, scope, collection in rows:
        dead = any(v == vbucket and b > branch and s < seqno for v, b, s in rollbacks)
        if op == "rollback" or dead:
            continue
        document = (vbucket, scope, collection, key)
        if document not in best or (branch, seqno) > best[document][:2]:
            best[document] = (branch, seqno, value if op == "mutation" else None, op)
    return {name: found[:3] for name, found in best.items() if found[3] == "mutation"}


def random_history(seed: int) -> list[Row]:
    """Some vbuckets that write, delete and fail over, read with repeats and in no order."""
    chance = random.Random(seed)
    rows: list[Row] = []
    for vbucket in range(chance.randrange(1, 5)):
        branch = seqno = 0
        for _ in range(chance.randrange(2, 60)):
            if seqno and chance.random() < 0.06:
                branch += 1
                seqno = chance.randrange(seqno + 1)
                rows.append(("rollback", vbucket, seqno, branch, None, None, None, None))
                continue
            seqno += chance.choice((1, 1, 3))
            key = b"k%d" % chance.randrange(6)
            place = chance.choice(
                (("_default", "_default"), ("s", "c"), ("t", "c"), (None, "0x1f"))
            )
            op = chance.choice(("mutation", "mutation", "mutation", "deletion", "expiration"))
            value = b"%d.%d" % (branch, seqno) if op == "mutation" else None
            rows.append((op, vbucket, seqno, branch, key, value, *place))
    rows += chance.sample(rows, len(rows) // 4)
    chance.shuffle(rows)
    return rows


def test_random_histories_fold_as_by_hand(spark: SparkSession) -> None:
    # one frame for all of them, each in vbuckets of its own: a query each would take minutes
    rows = [
        (op, vbucket + 10 * seed, *rest)
        for seed in range(400)
        for op, vbucket, *rest in random_history(seed)
    ]
    expected = folded_by_hand_in_parts(rows)
    assert len(expected) > 1000
    assert documents(fold(spark.createDataFrame(rows, COLUMNS))) == expected


def folded_by_hand_in_parts(rows: list[Any]) -> dict[Any, Any]:
    parts: dict[int, list[Any]] = {}
    for row in rows:
        parts.setdefault(row[1], []).append(row)
    return {name: found for part in parts.values() for name, found in folded_by_hand(part).items()}


def test_a_rolled_back_update_brings_the_older_version_back(spark: SparkSession) -> None:
    rows = [
        change("mutation", 1, 0, value=b"old"),
        change("mutation", 5, 0, value=b"lost"),
        change("mutation", 4, 0, b"inserted", b"lost too"),
        change("rollback", 3, 1, None),
    ]
    found = documents(fold(spark.createDataFrame(rows, COLUMNS)))
    assert found == {(1, "_default", "_default", b"k"): (0, 1, b"old")}


def test_a_later_branch_counts_more_than_a_higher_seqno(spark: SparkSession) -> None:
    rows = [change("mutation", 9, 0, value=b"before"), change("mutation", 4, 1, value=b"after")]
    found = documents(fold(spark.createDataFrame(rows, COLUMNS)))
    assert list(found.values()) == [(1, 4, b"after")]


def test_a_rollback_spares_its_own_seqno_its_own_branch_and_other_vbuckets(
    spark: SparkSession,
) -> None:
    rows = [
        change("mutation", 3, 0, b"at", b"1"),
        change("rollback", 3, 1, None),
        change("mutation", 4, 1, b"after", b"2"),
        ("mutation", 2, 9, 0, b"elsewhere", b"3", "_default", "_default"),
    ]
    found = documents(fold(spark.createDataFrame(rows, COLUMNS)))
    assert {key: value for (_, _, _, key), (_, _, value) in found.items()} == {
        b"at": b"1",
        b"after": b"2",
        b"elsewhere": b"3",
    }


@pytest.mark.parametrize("op", ["deletion", "expiration"])
def test_what_was_deleted_leaves_until_it_is_written_again(spark: SparkSession, op: str) -> None:
    rows = [change("mutation", 1, 0, value=b"1"), change(op, 2, 0)]
    assert documents(fold(spark.createDataFrame(rows, COLUMNS))) == {}
    rows.append(change("mutation", 3, 0, value=b""))
    assert list(documents(fold(spark.createDataFrame(rows, COLUMNS))).values()) == [(0, 3, b"")]


def test_all_columns_but_the_op_stay_in_their_order(spark: SparkSession) -> None:
    frame = spark.createDataFrame([change("mutation", 1, 0)], COLUMNS)
    frame = frame.selectExpr("*", "map('a', 'b') xattrs", "parse_json('{}') parsed")
    assert fold(frame).columns == [name for name in frame.columns if name != "op"]
    assert fold(frame).schema["xattrs"].dataType == frame.schema["xattrs"].dataType
    assert fold(frame).first() is not None


def test_rollbacks_are_sent_everywhere_and_no_window_is_needed(spark: SparkSession) -> None:
    frame = spark.createDataFrame([change("mutation", 1, 0)], COLUMNS)
    plan = fold(frame)._jdf.queryExecution().sparkPlan().toString()
    assert "BroadcastHashJoin" in plan
    assert "Window" not in plan
