"""What ``upriver tail`` leaves out, in which form it prints the rest, and where it begins."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from running import finished

from upriver.cli.tail.change_text import PlainLines
from upriver.cli.tail.filters import change_filter
from upriver.cli.tail.line_format import FormattedLines
from upriver.consumer.changes import Change
from upriver.errors import ConfigError
from upriver.model import Op
from upriver.settings.moments import parse_moment
from upriver.testing import TemporaryProducer

pytestmark = pytest.mark.story


@pytest.fixture(scope="module")
def producer() -> Iterator[TemporaryProducer]:
    with TemporaryProducer(vbuckets=4) as started:
        for number in range(10):
            kind = b"order" if number % 2 else b"user"
            started.write(
                b"%s::%d" % (kind, number), b'{"n": %d, "tags": ["t%d"]}' % (number, number)
            )
        started.write(b"plain", b"no JSON")
        started.delete(b"order::9")
        yield started


def run(producer: TemporaryProducer, *words: str) -> Any:
    return finished("tail", producer.source, "--to", "now", *words)


def keys(producer: TemporaryProducer, *words: str) -> list[str]:
    result = run(producer, "--format", "%k\\n", *words)
    assert result.returncode == 0, result.stderr
    return sorted(result.stdout.split())


def change(**more: Any) -> Change:
    fields: dict[str, Any] = {
        "op": Op.MUTATION, "vbucket": 3, "seqno": 7, "rev": 1, "cas": 0, "flags": 0, "expiry": 0,
        "datatype": 1, "collection": 0, "key": b"k", "value": b'{"a": 1}',
    }  # fmt: skip
    return Change(**{**fields, **more})


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("--key-prefix", "user::"), ["user::0", "user::2", "user::4", "user::6", "user::8"]),
        (("--key-regex", "::[13]$"), ["order::1", "order::3"]),
        (("--where", "n > `6`"), ["order::7", "user::8"]),
        (("--where", "contains(tags, 't3') || n == `4`"), ["order::3", "user::4"]),
        (("--where", "n == `1`", "--key-prefix", "user"), []),
        (("--since", "1h", "--key-prefix", "plain"), ["plain"]),
        (("--since", "2100-01-01"), []),
    ],
)
def test_only_what_is_asked_for_is_printed(
    producer: TemporaryProducer, words: tuple[str, ...], expected: list[str]
) -> None:
    assert keys(producer, *words) == expected


def test_documents_that_cannot_be_compared_are_told_in_one_line(
    caplog: pytest.LogCaptureFixture,
) -> None:
    wanted = change_filter(where="a > b")
    assert wanted is not None
    values = (b'{"a": 2, "b": 1}', b'{"a": "x", "b": 1}', b'{"a": "y", "b": 2}', b"{}")
    assert [wanted(change(value=value)) for value in values] == [True, False, False, False]
    (told,) = caplog.messages
    assert told.startswith("--where: '>' not supported between")
    assert "as in b'k'; documents" in told


def test_the_limit_counts_what_is_printed_and_the_checkpoint_what_was_read(
    producer: TemporaryProducer, tmp_path: Any
) -> None:
    file, read = tmp_path / "c", []
    for _ in range(6):
        words = ("--key-prefix", "user::", "--limit", "1", "--checkpoint", str(file))
        read += run(producer, "--format", "%k ", *words).stdout.split()
    assert sorted(read) == ["user::0", "user::2", "user::4", "user::6", "user::8"]


def test_the_newest_changes_come_first_and_in_their_order(producer: TemporaryProducer) -> None:
    result = run(producer, "--last", "3", "--format", "%x %k,")
    assert result.stdout == "mutation user::8,mutation plain,deletion order::9,"
    result = run(producer, "--last", "2", "--key-prefix", "user", "--json")
    *found, end = map(json.loads, result.stdout.splitlines())
    assert [one["key"] for one in found] == ["user::6", "user::8"]
    assert end["changes"] == 2


def test_a_format_has_every_field() -> None:
    lines = FormattedLines("%k|%s|%K|%S|%p|%o|%t|%T|%x|%c|%r|%f|%e|%d|%%\\t", lambda _: "s.c")
    told = lines.changes([change(cas=5_000_000, key=b"\xff")])
    assert told.encode(errors="surrogateescape") == (
        b'\xff|{"a": 1}|1|8|3|7|s.c|5|mutation|5000000|1|0|0|1|%\t'
    )
    for wrong in ("%z", "%", "\\q"):
        with pytest.raises(ConfigError, match="which is no field; there are %k key"):
            FormattedLines(wrong, str)


def test_a_terminal_shows_what_happened_in_colours() -> None:
    lines = PlainLines(lambda _: "_default._default", colour=True)
    assert "\x1b[31mdeletion\x1b[0m" in lines.changes([change(op=Op.DELETION, value=b"")])
    assert "\x1b[32mmutation\x1b[0m" in lines.changes([change(key=b"mutation")])


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (("--where", "n >"), "is no JMESPath expression"),
        (("--key-regex", "("), "is no regular expression"),
        (("--since", "yesterday"), "how long ago, such as 90s"),
        (("--since", "999999999d"), "too long ago"),
    ],
)
def test_what_cannot_be_understood_is_named(
    producer: TemporaryProducer, words: tuple[str, ...], problem: str
) -> None:
    result = run(producer, *words)
    assert (result.returncode, result.stdout) == (1, "")
    assert problem in result.stderr


def test_ways_that_exclude_each_other(producer: TemporaryProducer) -> None:
    assert run(producer, "--format", "%k", "--json").returncode == 2
    assert run(producer, "--last", "1", "--from", "now").returncode == 2


def test_moments() -> None:
    now = datetime(2026, 1, 2, tzinfo=UTC)
    assert parse_moment("90s", "--since", now) == now - timedelta(seconds=90)
    assert parse_moment("3d", "--since", now) == now - timedelta(days=3)
    assert parse_moment("2026-01-01T10:00:00", "--since") == datetime(2026, 1, 1, 10, tzinfo=UTC)
    assert parse_moment("2026-01-01T10:00:00+02:00", "--since") == datetime(
        2026, 1, 1, 8, tzinfo=UTC
    )


def test_a_function_that_does_not_fit_a_document_leaves_it_out() -> None:
    test = change_filter(where="length(a) > `0`")
    assert test is not None
    assert not test(change())
    assert test(change(value=b'{"a": "text"}'))
    assert not test(change(op=Op.DELETION, value=b""))
