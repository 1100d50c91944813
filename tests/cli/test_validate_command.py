"""``upriver validate``: what it accepts, what it finds, and on the lines of a real stream."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from click.testing import CliRunner

from upriver.cli.main import cli
from upriver.cli.tail.change_text import JsonLines
from upriver.consumer import Consumer, RolledBack, Rows
from upriver.consumer.changes import changes_of
from upriver.testing import TemporaryProducer

pytestmark = pytest.mark.story


def change(seqno: int, key: str = "a", rev: int | None = None, **more: object) -> dict[str, object]:
    told = {"type": "mutation", "vbucket": 0, "seqno": seqno, "rev": rev or seqno, "key": key}
    return {**told, **more}


def rollback(start: int, to: int) -> dict[str, object]:
    return {"type": "rollback", "vbucket": 0, "from_seqno": start, "to_seqno": to}


END = {"type": "end", "vbucket": None, "reason": "reached", "changes": 1}

GOOD: dict[str, list[object]] = {
    "seqnos that rise": [change(1), change(5), change(2, vbucket=1)],
    "a rollback and what comes after it": [change(1), change(5), rollback(5, 3), change(4)],
    "a rollback of what was not printed": [change(1), rollback(9, 3), change(4)],
    "the end": [change(1), {"type": "end", "vbucket": 0, "reason": "ok"}, END],
    "a flush": [change(5), {"type": "flush", "vbucket": 0}, change(1)],
    "rows of a change log": [
        change(5, branch=0),
        change(4, branch=1),
        {"op": "rollback", "vbucket": 0, "seqno": 3, "branch": 1},
        change(4, branch=0),
    ],
}

BAD: dict[str, list[object]] = {
    "seqnos must rise": [change(5), change(5, "b")],
    "revisions of a key must rise": [change(1, rev=7), change(2, rev=7)],
    "a rollback goes up": [change(1), rollback(3, 4)],
    "was printed": [change(8), rollback(5, 4)],
    "seqno 3 follows 4": [change(5), rollback(5, 4), change(3, "b")],
    "follows the end of its stream": [{"type": "end", "vbucket": 0, "reason": "ok"}, change(1)],
    "follows the end of everything": [change(1), END, change(2)],
    "counts 1 changes, and there are 2": [change(1), change(2), END],
    "is there twice": [change(4, branch=1), change(4, "b", branch=1)],
    "branch 1 begins after seqno 5, and has a row at 4": [
        change(4, branch=1),
        {"op": "rollback", "vbucket": 0, "seqno": 5, "branch": 1},
    ],
    "is no type of a line": [{"type": "something"}],
    "its seqno is -1": [change(-1)],
    "its vbucket is 70000": [change(1, vbucket=70000)],
    "it is no JSON object": [[]],
}


def lines(records: list[object]) -> str:
    return "".join(json.dumps(record) + "\n" for record in records)


@pytest.mark.parametrize("name", GOOD)
def test_what_keeps_the_rules(name: str) -> None:
    asked = CliRunner().invoke(cli, ["validate"], input=lines(GOOD[name]))
    assert (asked.exit_code, asked.output.startswith("all rules held")) == (0, True), asked.output


@pytest.mark.parametrize("problem", BAD)
def test_what_breaks_a_rule(problem: str) -> None:
    asked = CliRunner().invoke(cli, ["validate", "--json"], input=lines(BAD[problem]))
    assert asked.exit_code == 1
    told = json.loads(asked.output)
    assert told["broken"] == 1
    assert problem in told["problems"][0]["problem"]


def test_keys_are_in_their_vbuckets() -> None:
    asked = CliRunner().invoke(cli, ["validate", "--vbuckets", "64"], input=lines([change(1)]))
    assert asked.exit_code == 1
    assert "'a/'" not in asked.output
    assert "of 64 it is" in asked.output


def test_nothing_to_check_and_a_torn_line() -> None:
    empty = CliRunner().invoke(cli, ["validate"], input="")
    assert empty.exit_code == 2
    torn = CliRunner().invoke(cli, ["validate"], input=lines([change(1)]) + '{"type":"mut')
    assert torn.exit_code == 1
    assert "line 2: it is no JSON" in torn.output


@pytest.fixture(scope="module")
def producer() -> Iterator[TemporaryProducer]:
    with TemporaryProducer(vbuckets=2) as started:
        yield started


def test_the_lines_of_a_real_stream_with_a_failover(producer: TemporaryProducer) -> None:
    """Lines as tail prints them keep the rules; with a line left out or moved they do not."""
    for number in range(20):
        producer.write(b"k%d" % (number % 5), b"%d" % number, 0)
    form = JsonLines(lambda collection: "_default._default")
    printed: list[str] = []
    with Consumer(producer.source) as consumer:
        failed_over = False
        while len(printed) < 9 or not failed_over:
            event = consumer.poll(timeout=60)
            if isinstance(event, Rows):
                printed += form.changes(changes_of(event.batch)).splitlines(keepends=True)
                if not failed_over and len(printed) >= 5:
                    failed_over = True
                    producer.fail_over(0, 10)
                    for number in range(3):
                        producer.write(b"n%d" % number, b"new", 0)
            elif isinstance(event, RolledBack):
                printed.append(form.incident(event))
    asked = CliRunner().invoke(cli, ["validate", "--json"], input="".join(printed))
    assert asked.exit_code == 0, asked.output
    counts = json.loads(asked.output)["counts"]
    assert counts["rollback"] == 1
    without = [line for line in printed if '"rollback"' not in line]
    assert CliRunner().invoke(cli, ["validate"], input="".join(without)).exit_code == 1
