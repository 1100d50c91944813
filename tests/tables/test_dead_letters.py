"""Dead letters by the command line: listed, shown, and tried again after the schema was mended."""

from __future__ import annotations

import json
from pathlib import Path

from click.testing import CliRunner, Result
from test_collection_changes import caught_up

from upriver.cli.main import cli
from upriver.testing import TemporaryProducer


def letters(*words: str) -> Result:
    return CliRunner().invoke(cli, ["dead-letters", *words])


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
