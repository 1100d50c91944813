"""Rows that take back: sums and keyed tables stay right through failovers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from simulation import Row, Simulation, TaskFailed, World, WrongTable
from sparkkit import PATIENCE, stored

from upriver.batches.admission import Limits
from upriver.batches.offset_planning import ObservedVBucket, from_beginning, plan, with_rereads
from upriver.batches.offset_ranges import ReadStep, partition, steps_between
from upriver.batches.offsets import Offset
from upriver.batches.restate import Restated
from upriver.errors import ConfigError, UpriverError
from upriver.model import Op
from upriver.spark import retract
from upriver.spark.functions.retract_stream import compensated
from upriver.testing import TemporaryProducer

HISTORIES = 600
PROVIDER = "spark.sql.streaming.stateStore.providerClass"
PARTITIONS = "spark.sql.shuffle.partitions"
ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"


class Held:
    """The state of a vbucket, in memory."""

    def __init__(self) -> None:
        self.rows: dict[Any, Any] = {}

    def get(self, name: Any) -> Any:
        return self.rows.get(name)

    def put(self, name: Any, row: Any) -> None:
        self.rows[name] = row

    def remove(self, name: Any) -> None:
        del self.rows[name]

    def names(self) -> Iterable[Any]:
        return list(self.rows)


# ---- random histories --------------------------------------------------------------------


class Downstream(list[Row]):
    """What is behind a stream: a running sum, and a table by key, changed batch by batch."""

    def __init__(self, *, compensates: bool) -> None:
        super().__init__()
        self.compensates = compensates
        self.held: dict[int, Held] = {}
        self.sum = 0
        self.table: dict[tuple[int, str], int] = {}

    def __iadd__(self, batch: Iterable[Row]) -> Downstream:  # type: ignore[override,misc]
        by_vbucket: dict[int, list[Row]] = {}
        for row in batch:
            by_vbucket.setdefault(row.vbucket, []).append(row)
        for vbucket, rows in by_vbucket.items():
            told = map(as_dict, rows if self.compensates else [r for r in rows if r.key])
            signed = list(compensated(told, self.held.setdefault(vbucket, Held())))
            for sign, row_ in signed:
                self.sum += sign * row_["value"]
            for sign, row_ in sorted(signed, key=lambda one: one[0]):
                place = (vbucket, row_["key"].decode())
                if sign < 0:
                    assert self.table.pop(place) == row_["value"]
                else:
                    assert place not in self.table
                    self.table[place] = row_["value"]
        return self


def as_dict(row: Row) -> dict[str, Any]:
    value: Any = row.value
    op = "restated" if row.key is None else "deletion" if value is None else "mutation"
    return {
        "op": op,
        "branch": row.branch,
        "seqno": row.seqno,
        "scope": "_default",
        "collection": "_default",
        "key": row.key.encode() if row.key is not None else None,
        "value": value,
    }


def restating_plan(
    previous: Offset, facts: Mapping[int, ObservedVBucket], limits: Limits
) -> Offset:
    return with_rereads(previous, plan(previous, facts, limits), facts, lambda vb, seqno: False)


class RestatingSimulation(Simulation):
    """The same world, where vbuckets are restated after rollbacks as the task reader does it."""

    restates = True

    def first_offset(self) -> Offset:
        self.rows = Downstream(compensates=self.restates)
        self.is_table = False  # only queries of Spark are told what was restated
        return from_beginning(self.source)

    def rows_of_batch(
        self, at: Offset, end: Offset, *, quiet: bool, replay: bool
    ) -> list[Row] | None:
        branches = {n: vbucket.vbuuid for n, vbucket in enumerate(self.vbuckets)}
        steps = steps_between(at, end, branches if replay else None, restates=True)
        rows: list[Row] = []
        try:
            for group in partition(steps, 2):
                for step in group:
                    self.read(step, rows, quiet=quiet)
        except TaskFailed:
            return None
        return rows

    def read(self, step: ReadStep, rows: list[Row], *, quiet: bool) -> None:
        if not step.rolls_back:
            super().read(step, rows, quiet=quiet)
            return
        skips, found = self.seen["SKIP"], list[Row]()
        whole = replace(step.from_the_beginning(), end=2**62, rolls_back=False)
        if step.from_the_beginning().has_range:
            super().read(whole, found, quiet=quiet)
        rows += found
        if self.seen["SKIP"] == skips:
            live: dict[str, int | None] = {}
            for row in sorted(found, key=lambda row: row.seqno):
                live[str(row.key)] = row.value
            keys = frozenset(key.encode() for key, value in live.items() if value is not None)
            text: Any = Restated(0, 1, keys).to_json()
            rows.append(Row(step.vbucket, step.branch, step.end, None, text))
            self.seen["restated"] += 1

    def compare(self, at: Offset) -> None:
        downstream = self.rows
        assert isinstance(downstream, Downstream)
        documents = {
            (number, key): value
            for number, vbucket in enumerate(self.vbuckets)
            for key, (_, value) in vbucket.newest.items()
            if value is not None
        }
        if downstream.table != documents or downstream.sum != sum(documents.values()):
            raise WrongTable(f"it is {downstream.table}, the documents are {documents}")


class ForgettingSimulation(RestatingSimulation):
    """Where nothing compensates for what a rollback took back."""

    restates = False


def wrong(kind: type[RestatingSimulation], world: World) -> Iterator[int]:
    for seed in range(HISTORIES):
        simulation = kind(seed, world)
        try:
            simulation.run()
        except (WrongTable, AssertionError):
            yield seed


@pytest.mark.story
def test_a_running_sum_and_a_keyed_table_equal_the_bucket_in_random_histories() -> None:
    assert not list(wrong(RestatingSimulation, World(plan=restating_plan)))


@pytest.mark.parametrize(
    ("kind", "rule"),
    [(ForgettingSimulation, restating_plan), (ForgettingSimulation, plan)],
    ids=["lost documents are not removed", "rollbacks are not heeded"],
)
def test_without_compensation_they_do_not(kind: type[RestatingSimulation], rule: Any) -> None:
    assert len(list(islice(wrong(kind, World(plan=rule)), 3))) == 3


# ---- in Spark ----------------------------------------------------------------------------


def test_sums_stay_right_through_a_failover(spark: SparkSession, tmp_path: Path) -> None:
    total: dict[str, int] = {}

    def add(batch: DataFrame, number: int) -> None:
        parsed = batch.selectExpr(
            "collection", "sign", "sign * get_json_object(string(value), '$.n')::bigint n"
        )
        for row in parsed.groupBy("collection").agg({"n": "sum", "sign": "sum"}).collect():
            total[row[0]] = total.get(row[0], 0) + row["sum(n)"]
            total["count"] = total.get("count", 0) + row["sum(sign)"]

    def read(**options: str) -> None:
        rows = spark.readStream.format("dcp").options(**options).load(producer.source)
        query = (
            retract(rows)
            .writeStream.foreachBatch(add)
            .option("checkpointLocation", str(tmp_path))
            .trigger(availableNow=True)
            .start()
        )
        try:
            assert query.awaitTermination(PATIENCE), "the query goes on and on"
        finally:
            query.stop()

    def of_the_bucket() -> dict[str, int]:
        live = [change for change in stored(producer.bucket) if change.op is Op.MUTATION]
        values = [int(change.value[5:-1]) for change in live]
        return {"_default": sum(values), "count": len(values)}

    with TemporaryProducer(vbuckets=2) as producer:
        rows = spark.readStream.format("dcp").load(producer.source)
        with pytest.raises(ConfigError, match=f"set Spark's {PROVIDER} to"):
            retract(rows)
        with pytest.raises(ConfigError, match="have no column key; select it too"):
            retract(rows.drop("key"))
        with pytest.raises(ConfigError, match="the column value is variant; drop it, or parse"):
            retract(rows.selectExpr("* EXCEPT (value)", "parse_json(string(value)) value"))
        partitions = spark.conf.get(PARTITIONS)
        spark.conf.set(PROVIDER, ROCKSDB)
        spark.conf.set(PARTITIONS, "2")
        try:
            for number in range(40):
                producer.write(b"k%d" % number, b'{"n":%d}' % number, expiry=86_400)
            marks = [producer.bucket.vbucket_stats(vb).high_seqno for vb in range(2)]
            for number in range(20):
                producer.write(b"k%d" % number, b'{"n":1000}')
                producer.write(b"lost-%d" % number, b'{"n":1}')
                producer.delete(b"k%d" % (number + 20))
            read(onRollback="restate")
            assert total == of_the_bucket()
            producer.fail_over(0, marks[0])
            producer.write(b"k0", b'{"n":7}')
            read(onRollback="restate")
            assert total == of_the_bucket()
        finally:
            spark.conf.unset(PROVIDER)
            spark.conf.set(PARTITIONS, str(partitions))


def test_a_rollback_row_is_refused() -> None:
    with pytest.raises(UpriverError, match="set the source's option onRollback to restate"):
        list(compensated([{"op": "rollback"}], Held()))
