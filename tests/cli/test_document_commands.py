"""``upriver get``, ``set``, ``delete``, ``touch`` and ``nodes`` against a real server."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from upriver.cli.main import cli
from upriver.errors import StatusError, UpriverError
from upriver.producer.server_context import GivenMap
from upriver.testing import TemporaryProducer

pytestmark = pytest.mark.story


@pytest.fixture(scope="module")
def producer() -> Iterator[TemporaryProducer]:
    with TemporaryProducer(vbuckets=8) as started:
        shop = started.bucket.create_scope("shop").id
        started.bucket.create_collection(shop, "orders")
        yield started


def run(producer: TemporaryProducer, command: str, *words: str, **more: Any) -> Result:
    return CliRunner().invoke(cli, [command, producer.source, *words], **more)


def told(result: Result) -> dict[str, Any]:
    assert result.exit_code == 0, result.output
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def test_a_document_is_written_read_touched_and_deleted(producer: TemporaryProducer) -> None:
    written = told(run(producer, "set", "a", '{"n": 1}', "--json"))
    assert (written["result"], written["key"]) == ("written", "a")
    assert run(producer, "get", "a").stdout == '{"n": 1}'
    found = told(run(producer, "get", "a", "--json"))
    assert (found["value"], found["value_format"]) == ({"n": 1}, "json")
    assert (found["cas"], found["expiry"], found["datatype"]) == (written["cas"], 0, 1)
    touched = told(run(producer, "touch", "a", "4000000000", "--json"))
    found = told(run(producer, "get", "a", "--json"))
    assert (found["cas"], found["expiry"]) == (touched["cas"], 4_000_000_000)
    assert run(producer, "delete", "a").stdout.startswith("deleted: a (CAS ")
    assert producer.bucket.vbucket_stats(found["vbucket"]).high_seqno >= 3


def test_a_collection_has_documents_of_its_own(producer: TemporaryProducer) -> None:
    run(producer, "set", "k", "default")
    run(producer, "set", "k", "order", "--collection", "shop.orders")
    assert run(producer, "get", "k").stdout == "default"
    assert run(producer, "get", "k", "--collection", "shop.orders").stdout == "order"
    unknown = run(producer, "get", "k", "--collection", "shop.nothing")
    assert isinstance(unknown.exception, UpriverError)
    assert "shop.nothing" in str(unknown.exception)


@pytest.mark.parametrize("command", ["get", "delete", "touch"])
def test_what_is_not_there_is_named(producer: TemporaryProducer, command: str) -> None:
    words = ("missing", "0") if command == "touch" else ("missing",)
    result = run(producer, command, *words)
    assert "no document 'missing' in _default._default" in str(result.exception)


def test_bytes_that_are_no_text_come_from_a_file(
    producer: TemporaryProducer, tmp_path: Path
) -> None:
    file = tmp_path / "value"
    file.write_bytes(b"\xff\x00")
    assert run(producer, "set", "bytes", "--file", str(file)).exit_code == 0
    assert run(producer, "get", "bytes").stdout_bytes == b"\xff\x00"
    shown = told(run(producer, "get", "bytes", "--json"))
    assert (shown["value"], shown["value_format"], shown["datatype"]) == ("/wA=", "base64", 0)
    assert run(producer, "set", "piped", "--file", "-", input=b"1").exit_code == 0
    assert run(producer, "set", "both", "x", "--file", str(file)).exit_code == 2
    assert run(producer, "set", "neither").exit_code == 2


def test_another_cas_is_refused_and_named(producer: TemporaryProducer) -> None:
    cas = told(run(producer, "set", "c", "1", "--json"))["cas"]
    assert run(producer, "set", "c", "2", "--cas", str(cas)).exit_code == 0
    for words in (("set", "c", "3"), ("delete", "c")):
        refused = run(producer, words[0], *words[1:], "--cas", str(cas))
        assert isinstance(refused.exception, StatusError)
        assert "'c' was refused with EXISTS: it has another CAS" in str(refused.exception)


def test_collections_are_listed_created_filled_and_dropped(producer: TemporaryProducer) -> None:
    assert run(producer, "collections", "sales.bills").exit_code == 2  # a command is missing
    for words in (("create", "sales.bills"), ("create", "sales.more"), ("drop", "sales.more")):
        result = CliRunner().invoke(cli, ["collections", words[0], producer.source, words[1]])
        assert result.exit_code == 0, result.exception
    listed = CliRunner().invoke(cli, ["collections", "list", producer.source])
    names = [line.split()[0] for line in listed.stdout.splitlines()]
    assert names == ["_default._default", "sales.bills", "shop.orders"]
    loaded = run(producer, "load", "--docs", "5", "--collection", "sales.bills")
    assert loaded.exit_code == 0
    assert "doc" in run(producer, "get", "doc0", "--collection", "sales.bills", "--json").stdout
    again = CliRunner().invoke(cli, ["collections", "create", producer.source, "sales.bills"])
    assert "creating the collection sales.bills was refused" in str(again.exception)
    gone = CliRunner().invoke(cli, ["collections", "drop", producer.source, "sales"])
    assert gone.stdout == "dropped: sales\n"
    missing = CliRunner().invoke(cli, ["collections", "drop", producer.source, "sales.bills"])
    assert "(HTTP 404)" in str(missing.exception)
    wrong = CliRunner().invoke(cli, ["collections", "create", producer.source, "a.b.c"])
    assert "give SCOPE.NAME" in str(wrong.exception)


def test_keys_and_values_have_limits(producer: TemporaryProducer) -> None:
    assert "a key has 1 to 250" in str(run(producer, "get", "k" * 251).exception)
    assert "a key has 1 to" in str(run(producer, "set", "", "x").exception)


def test_nodes_and_their_vbuckets(producer: TemporaryProducer) -> None:
    (node,) = (found := told(run(producer, "nodes", "--json")))["nodes"]
    assert (node["active"], node["replica"], found["vbuckets"]) == (8, 0, 8)
    assert node["address"] == f"127.0.0.1:{producer.port}"
    assert "8 active, 0 replica vbuckets" in run(producer, "nodes").stdout


def test_a_vbucket_without_an_active_copy_is_told() -> None:
    with TemporaryProducer(vbuckets=2) as producer:
        context = producer.producer.server.node
        config = json.loads(context.config(producer.bucket) or b"")
        config["vBucketServerMap"]["vBucketMap"][1] = [-1]
        given = GivenMap(bucket="default", epoch=9, rev=9, config=json.dumps(config).encode())
        context.give_map(given)
        result = run(producer, "nodes")
        assert result.exit_code == 1
        assert "1 of 2 vbuckets have no active copy" in result.stdout
