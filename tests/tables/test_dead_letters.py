"""Dead letters by the command line: listed, shown, and tried again after the schema was mended."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from click.testing import CliRunner, Result
from deltalake import DeltaTable
from tablekit import rows_of
from test_collection_changes import caught_up

from upriver.cli.main import cli
from upriver.testing import TemporaryProducer


def letters(*words: str) -> Result:
    return CliRunner().invoke(cli, ["dead-letters", *words])


def test_a_change_that_is_read_anew_has_one_letter_of_the_batch_that_read_it_first(
    tmp_path: Path,
) -> None:
    table = tmp_path / "people"
    with TemporaryProducer(vbuckets=4) as producer:
        for number in range(13):
            producer.write(b"bad %d" % number, b"no JSON", number % 4)
        counted = []
        documents: list[dict[str, Any]] = [{"n": 1}, {"n": 0.5}, {"m": {}}, {"m": {"in": 1}}]
        for document in documents:
            key = json.dumps(document).encode()
            producer.write(key, key, 0)
            counted.append(caught_up(producer, table, value_schema="infer").status().dead_letters)
        producer.write(b"bad 0", b"no JSON either", 0)
        producer.write(b"last", b'{"m": {"in": 0.5}}', 1)
        counted.append(caught_up(producer, table, value_schema="infer").status().dead_letters)
        assert counted == [13, 0, 0, 0, 1]
        producer.fail_over(1, 1)
        caught_up(producer, table, value_schema="infer")
    found = [json.loads(line) for line in letters("list", str(table), "--json").stdout.splitlines()]
    assert sorted(one["batch"] for one in found) == [*[1] * 13, 5]
    assert len(rows_of(table / "_upriver" / "dead_letters")) == len(found)
    (line, *_) = letters("show", str(table), "bad 1").stdout.splitlines()
    assert line.endswith("; it is no JSON (batch 1)")


def test_letters_of_earlier_releases_have_no_batch(tmp_path: Path) -> None:
    table = tmp_path / "people"
    with TemporaryProducer(vbuckets=1) as producer:
        producer.write(b"old", b"no JSON", 0)
        caught_up(producer, table, value_schema="age int")
        held = table / "_upriver" / "dead_letters"
        (log,) = (path for path in (held / "_delta_log").glob("*0.json"))
        column = r"{\"name\":\"batch\",\"type\":\"long\",\"nullable\":true,\"metadata\":{}}"
        assert column in log.read_text()
        log.write_text(log.read_text().replace(f",{column}", ""))
        for file in held.glob("**/*.parquet"):
            rows = pq.ParquetFile(file).read()
            pq.write_table(rows.drop_columns(["batch"]), file)
        producer.write(b"new", b"no JSON", 0)
        caught_up(producer, table, value_schema="age int")
    found = [json.loads(line) for line in letters("list", str(table), "--json").stdout.splitlines()]
    assert {one["key"]: one["batch"] for one in found} == {"old": None, "new": 2}
    assert "batch" in {one.name for one in DeltaTable(held).schema().fields}
    assert letters("replay", str(table)).stdout.endswith("2 still do not fit\n")


def test_letters_are_listed_shown_and_replayed(tmp_path: Path) -> None:
    table = str(tmp_path / "people")
    with TemporaryProducer(vbuckets=4) as producer:
        producer.write(b"ann", b'{"age": 31}', 0)
        caught_up(producer, tmp_path / "people", value_schema="age int")
        assert "there are no dead letters" in letters("list", table).stderr
        assert letters("replay", table).stdout.startswith("0 fit now")
        producer.write(b"bob", b'{"age": "many"}', 1)
        producer.write(b"cid", b"no JSON", 2)
        producer.write(b"dan", b'{"age": []}', 3)
        caught_up(producer, tmp_path / "people", value_schema="age int")
        producer.write(b"dan", b'{"age": 7}', 3)
        caught_up(producer, tmp_path / "people", value_schema="age int")
        listed = letters("list", table, "--json")
        found = [json.loads(line) for line in listed.stdout.splitlines()]
        assert sorted((one["key"], one["reason"]) for one in found) == [
            ("bob", "age: it does not fit the schema"),
            ("cid", "it is no JSON"),
            ("dan", "age: it does not fit the schema"),
        ]
        assert "more than 2" in letters("list", table, "--most", "2").stderr
        shown = letters("show", table, "bob")
        line, value = shown.stdout.splitlines()
        assert line.startswith("bob in _default._default, vbucket 1, seqno 1, 15 bytes; age: it")
        assert value == '{"age": "many"}'
        assert letters("show", table, "eve").exit_code != 0
        assert letters("replay", table).stdout == (
            "0 fit now, 1 were replaced since, 2 still do not fit\n"
        )
        options = {"value_schema": "age string", "allow_change": True}
        caught_up(producer, tmp_path / "people", **options)
        listed = letters("list", table, "--json")
        assert len(listed.stdout.splitlines()) == 2
        tried = json.loads(letters("replay", table, "--json").stdout)
        # the table was read anew, with a second letter of cid, which counts as the first does
        assert (tried["fitting"], tried["replaced"], tried["left"]) == (1, 0, 1)
        left = letters("list", table, "--json").stdout.splitlines()
        assert [json.loads(line)["key"] for line in left] == ["cid"]
        producer.write(b"cid", b'{"age": 1}', 2)
        caught_up(producer, tmp_path / "people", value_schema="age string")
        letters("replay", table)
        assert letters("list", table).stdout == ""
        assert letters("list", str(tmp_path / "none")).exit_code != 0
