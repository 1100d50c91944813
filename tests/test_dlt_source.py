"""The dlt source: a table in DuckDB is equal to the bucket after every run, whatever happened."""

from __future__ import annotations

import random
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import dlt
import pyarrow as pa
import pytest

from upriver.batches.collection_events import CollectionEnd
from upriver.batches.options import RowFormat
from upriver.consumer import Consumer
from upriver.dlt import dcp_source
from upriver.dlt.rows import SeenRows, TableRows
from upriver.errors import ConfigError, MissingExtra, StoreRefusal
from upriver.testing import TemporaryProducer

# dlt logs that a package is pending by a method that Python has deprecated
pytestmark = pytest.mark.filterwarnings("ignore:The 'warn' method is deprecated")

Documents = dict[tuple[str, str, str], str | None]

QUERY = "SELECT scope, collection, key, value FROM documents"


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """dlt neither reports its use nor looks at the settings of whoever runs the tests."""
    monkeypatch.setenv("RUNTIME__DLTHUB_TELEMETRY", "false")
    monkeypatch.setenv("DLT_PROJECT_DIR", str(tmp_path))


@pytest.fixture
def producer() -> Iterator[TemporaryProducer]:
    with TemporaryProducer(vbuckets=4) as running:
        yield running


def pipeline_in(home: Path, name: str = "tests") -> dlt.Pipeline:
    return dlt.pipeline(
        name,
        destination=dlt.destinations.duckdb(str(home / "lake.duckdb")),
        dataset_name="bucket",
        pipelines_dir=str(home / "pipelines"),
    )


def run(home: Path, producer: TemporaryProducer, **options: Any) -> None:
    pipeline_in(home).run(dcp_source(producer.source, **options)).raise_on_failed_jobs()


def loaded(home: Path) -> Documents:
    with pipeline_in(home).sql_client() as client:
        rows = client.execute_sql(QUERY)
    assert rows is not None
    found = {(scope, collection, key): value for scope, collection, key, value in rows}
    assert len(found) == len(rows)
    return found


def documents(producer: TemporaryProducer) -> Documents:
    found: Documents = {}
    with Consumer(producer.source, end="now") as consumer:
        for change in consumer:
            names = consumer.collections.live_names().get(change.collection)
            if names is None:
                continue  # a server may still have documents of a collection that was dropped
            name = (*names, change.key.decode())
            if change.op.value == "mutation":
                found[name] = change.value.decode()
            else:
                found.pop(name, None)
    return found


def changed(home: Path, rows: int) -> bool:
    """Whether the last run has loaded this many rows."""
    trace = pipeline_in(home).last_trace
    assert trace is not None
    counts = trace.last_normalize_info
    assert counts is not None
    return counts.row_counts.get("documents", 0) == rows


# ---- what happens to a bucket ----------------------------------------------------------------


def test_each_run_brings_what_has_changed(producer: TemporaryProducer, tmp_path: Path) -> None:
    for number in range(40):
        producer.write(b"key-%d" % number, b'{"n": %d}' % number)
    run(tmp_path, producer)
    assert loaded(tmp_path) == documents(producer)
    producer.write(b"key-1", b"again")
    producer.write(b"key-1", b"and again")
    producer.delete(b"key-2")
    producer.write(b"new", b"{}")
    run(tmp_path, producer)
    assert loaded(tmp_path) == documents(producer)
    assert changed(tmp_path, 3)
    assert loaded(tmp_path)["_default", "_default", "key-1"] == "and again"


@pytest.mark.story
def test_what_a_failover_has_lost_is_undone(producer: TemporaryProducer, tmp_path: Path) -> None:
    for key in (b"updated", b"deleted", b"untouched"):
        producer.write(key, b"old", vbucket=0)
    producer.write(b"elsewhere", b"old", vbucket=1)
    run(tmp_path, producer)
    producer.write(b"updated", b"lost", vbucket=0)
    producer.delete(b"deleted", vbucket=0)
    producer.write(b"inserted", b"lost", vbucket=0)
    run(tmp_path, producer)
    producer.fail_over(0, 3)
    producer.write(b"after", b"new", vbucket=0)
    run(tmp_path, producer)
    assert {key: value for (_, _, key), value in loaded(tmp_path).items()} == {
        "updated": "old",
        "deleted": "old",
        "untouched": "old",
        "elsewhere": "old",
        "after": "new",
    }


def test_a_vbucket_that_has_lost_everything_leaves_nothing(
    producer: TemporaryProducer, tmp_path: Path
) -> None:
    producer.write(b"a", b"1", vbucket=0)
    producer.write(b"b", b"1", vbucket=1)
    run(tmp_path, producer)
    producer.fail_over(0, 0)
    run(tmp_path, producer)
    assert [key for _, _, key in loaded(tmp_path)] == ["b"]


def test_deletions_that_were_purged_before_a_run_saw_them(
    producer: TemporaryProducer, tmp_path: Path
) -> None:
    for key in (b"a", b"b", b"c"):
        producer.write(key, b"1", vbucket=0)
    run(tmp_path, producer)
    producer.delete(b"a", vbucket=0)
    producer.write(b"c", b"2", vbucket=0)
    producer.purge()
    run(tmp_path, producer)
    assert {key: value for (_, _, key), value in loaded(tmp_path).items()} == {"b": "1", "c": "2"}


def test_collections_that_are_dropped_and_made_again(
    producer: TemporaryProducer, tmp_path: Path
) -> None:
    producer.create_collection("shop.orders")
    for number in range(12):
        producer.write(b"o%d" % number, b"1", collection="shop.orders")
        producer.write(b"o%d" % number, b"default")
    run(tmp_path, producer)
    assert loaded(tmp_path) == documents(producer)
    producer.drop_collection("shop.orders")
    producer.create_collection("shop.orders")
    producer.write(b"o1", b"2", collection="shop.orders")
    run(tmp_path, producer)
    assert loaded(tmp_path) == documents(producer)
    assert loaded(tmp_path)["shop", "orders", "o1"] == "2"
    producer.drop_collection("shop.orders")
    run(tmp_path, producer)
    assert {collection for _, collection, _ in loaded(tmp_path)} == {"_default"}


def test_a_flushed_bucket_empties_the_table(producer: TemporaryProducer, tmp_path: Path) -> None:
    for number in range(8):
        producer.write(b"key-%d" % number, b"1")
    run(tmp_path, producer)
    producer.bucket.flush()
    producer.write(b"after", b"2")
    run(tmp_path, producer)
    assert loaded(tmp_path) == documents(producer) == {("_default", "_default", "after"): "2"}


def test_any_history(producer: TemporaryProducer, tmp_path: Path) -> None:
    chance = random.Random(7)
    producer.create_collection("s.c")
    for turn in range(6):
        for _ in range(chance.randrange(1, 40)):
            key, place = b"k%d" % chance.randrange(30), chance.choice(["_default._default", "s.c"])
            try:
                if chance.random() < 0.2:
                    producer.delete(key, collection=place)
                else:
                    producer.write(key, b"%d" % turn, collection=place)
            except StoreRefusal:
                pass  # there was nothing to delete
        if chance.random() < 0.6:
            vbucket = chance.randrange(4)
            high = producer.bucket.vbucket_stats(vbucket).high_seqno
            producer.fail_over(vbucket, chance.randrange(high + 1))
        if chance.random() < 0.3:
            producer.drop_collection("s.c")
            producer.create_collection("s.c")
        run(tmp_path, producer)
        assert loaded(tmp_path) == documents(producer), turn


# ---- what happens to a run -------------------------------------------------------------------

KILLED = """
import os, signal, sys
import dlt
from dlt.load.load import Load
from upriver.dlt import dcp_source

source, home, step = sys.argv[1:]
pipeline = dlt.pipeline(
    "tests", destination=dlt.destinations.duckdb(home + "/lake.duckdb"), dataset_name="bucket",
    pipelines_dir=home + "/pipelines",
)

def kill(*arguments, **named):
    os.kill(os.getpid(), signal.SIGKILL)

documents = dcp_source(source)
if step == "extract":
    documents.documents.add_map(kill)
pipeline.extract(documents)
if step == "normalize":
    kill()
pipeline.normalize()
Load.complete_package = kill  # the rows are loaded, and dlt has not noted that yet
pipeline.load()
"""


@pytest.mark.parametrize("step", ["extract", "normalize", "complete"])
def test_a_killed_run_is_finished_or_repeated_by_the_next_one(
    producer: TemporaryProducer, tmp_path: Path, step: str
) -> None:
    for number in range(20):
        producer.write(b"key-%d" % number, b"1", vbucket=number % 4)
    run(tmp_path, producer)
    producer.write(b"key-0", b"2", vbucket=0)
    producer.delete(b"key-1", vbucket=1)
    producer.fail_over(2, 2)
    killed = subprocess.run(
        [sys.executable, "-c", KILLED, producer.source, str(tmp_path), step],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    run(tmp_path, producer)  # loads what the killed run has left, and nothing else
    run(tmp_path, producer)
    assert loaded(tmp_path) == documents(producer)


def test_another_machine_goes_on_from_the_state_in_the_destination(
    producer: TemporaryProducer, tmp_path: Path
) -> None:
    for number in range(20):
        producer.write(b"key-%d" % number, b"1")
    run(tmp_path, producer)
    shutil.rmtree(tmp_path / "pipelines")
    producer.write(b"new", b"2")
    run(tmp_path, producer)
    assert changed(tmp_path, 1)
    assert loaded(tmp_path) == documents(producer)


def test_a_table_whose_state_was_lost_is_made_equal_again(
    producer: TemporaryProducer, tmp_path: Path
) -> None:
    producer.write(b"stays", b"1")
    producer.write(b"goes", b"1")
    run(tmp_path, producer)
    producer.delete(b"goes")
    producer.purge()
    pipeline_in(tmp_path, "another").run(dcp_source(producer.source))
    assert loaded(tmp_path) == documents(producer)


def test_a_table_can_be_loaded_anew(producer: TemporaryProducer, tmp_path: Path) -> None:
    producer.create_collection("s.c")
    producer.write(b"a", b"1")
    producer.write(b"b", b"1", collection="s.c")
    run(tmp_path, producer, collections="s.c")
    assert [key for _, _, key in loaded(tmp_path)] == ["b"]
    with pytest.raises(Exception, match=r"other collections, scope or vbuckets; give the same\."):
        run(tmp_path, producer)
    pipeline_in(tmp_path).run(dcp_source(producer.source), refresh="drop_resources")
    assert loaded(tmp_path) == documents(producer)


# ---- rows and options ------------------------------------------------------------------------


def test_keys_and_values_can_be_binary(producer: TemporaryProducer, tmp_path: Path) -> None:
    producer.write(b"\xff", b"\xfe")
    with pytest.raises(Exception, match="a key that is no text: set key_format to binary"):
        run(tmp_path, producer)
    run(tmp_path, producer, key_format="binary", value_format="binary")
    with pipeline_in(tmp_path).sql_client() as client:
        assert client.execute_sql("SELECT key, value FROM documents") == [(b"\xff", b"\xfe")]


def test_a_value_that_is_no_text_is_kept_as_bytes(
    producer: TemporaryProducer, tmp_path: Path
) -> None:
    producer.write(b"k", b"\xfe")
    run(tmp_path, producer)
    with pipeline_in(tmp_path).sql_client() as client:
        rows = client.execute_sql("SELECT value, _corrupt_record FROM documents")
    assert rows == [(None, b"\xfe")]


@pytest.mark.parametrize(
    ("make", "problem"),
    [
        (lambda: dcp_source("couchbase://h/b", colections="x"), "no option 'colections'"),  # type: ignore[call-arg]
        (lambda: dcp_source("couchbase://h/b", on_rollback="emit"), "no option 'on_rollback'"),  # type: ignore[call-arg]
        (lambda: dcp_source("couchbase://h/b", key_format="json"), "expected: binary, string"),  # type: ignore[arg-type]
        (lambda: dcp_source("couchbase://h"), "bucket"),
    ],
)
def test_wrong_options_are_named(make: Callable[[], Any], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        make()


def test_a_destination_without_deletes_is_refused(
    producer: TemporaryProducer, tmp_path: Path
) -> None:
    files = dlt.destinations.filesystem(tmp_path.as_uri())
    pipeline = dlt.pipeline("files", destination=files, pipelines_dir=str(tmp_path / "pipelines"))
    with pytest.raises(Exception, match=r"filesystem cannot merge .* deleted documents would stay"):
        pipeline.run(dcp_source(producer.source))


def test_another_bucket_of_the_same_name_is_refused(
    producer: TemporaryProducer, tmp_path: Path
) -> None:
    producer.write(b"a", b"1")
    run(tmp_path, producer)
    with TemporaryProducer(vbuckets=4) as other:
        other.write(b"b", b"1")
        with pytest.raises(Exception, match=r"bucket_uuid is .* refresh='drop_resources'"):
            run(tmp_path, other)


def test_rows_of_a_collection_that_ends_in_the_same_run() -> None:
    from upriver.dlt.source import _ended

    places = TableRows(RowFormat(), binary_keys=False).places
    rows = [
        {"vbucket": 1, "seqno": 4, "scope": "s", "collection": "c", "key": "old"},
        {"vbucket": 1, "seqno": 6, "scope": "s", "collection": "c", "key": "new"},
        {"vbucket": 2, "seqno": 4, "scope": "s", "collection": "c", "key": "elsewhere"},
        {"vbucket": 1, "seqno": 4, "scope": "", "collection": "0x9", "key": "unknown"},
    ]
    with SeenRows(places) as seen:
        seen.add(pa.Table.from_pylist(rows, schema=places))
        (found,) = seen
    ends = [CollectionEnd(1, 5, "s", "c"), CollectionEnd(1, 5, None, "0x9")]
    assert _ended(found, ends).column("key").to_pylist() == ["old", "unknown"]


def test_neither_spark_nor_a_server_is_needed() -> None:
    code = (
        "import sys\n"
        "sys.modules.update(dict.fromkeys(['pyspark', 'deltalake', 'rocksdict', 'click']))\n"
        "from upriver.dlt import dcp_source\n"
        "print(dcp_source('couchbase://h/b').name)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "dcp\n"


def test_without_dlt_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("upriver.dlt")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "dlt", None)
    with pytest.raises(MissingExtra, match=r"upriver\[dlt\], and dlt is not installed"):
        __import__("upriver.dlt")
