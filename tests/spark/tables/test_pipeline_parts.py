"""The parts of a pipeline that need no Spark: options, places, progress, the page about it."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from upriver.errors import ConfigError
from upriver.spark.tables.mirror_table import newest_rows
from upriver.spark.tables.offset_log import OffsetLog, positions_of
from upriver.spark.tables.places import TablePlace
from upriver.spark.tables.progress import BatchRecord, ProgressBook, read_progress
from upriver.spark.tables.report import page
from upriver.spark.tables.settings import PipelineSettings
from upriver.spark.tables.shape import MirrorShape

SOURCE = "couchbase://localhost/default"


def record(number: int, **more: Any) -> BatchRecord:
    facts: dict[str, Any] = {
        "time": 1_700_000_000.0 + number,
        "run": "a",
        "batch": number,
        "rows": 10 * number,
        "bytes": 100,
        "seconds": 0.5,
        "steps": {"log": 0.2},
        "rollbacks": 0,
        "dead_letters": 0,
        "lag": number,
        "delay": 1.0,
    }
    return BatchRecord(**{**facts, **more})


def test_options_are_spelled_as_in_python_or_as_in_spark() -> None:
    one = PipelineSettings.parse(
        "mirror", SOURCE, {"keep_deleted": True, "max_offsets_per_trigger": 7, "groups": None}
    )
    other = PipelineSettings.parse(
        "mirror", SOURCE, {"keepDeleted": "true", "maxOffsetsPerTrigger": "7"}
    )
    assert one == other
    assert one.keep_deleted
    assert one.read.max_offsets_per_trigger == 7
    assert PipelineSettings.parse("changelog", SOURCE, {"format": "parquet"}).parquet


@pytest.mark.parametrize(
    ("kind", "options", "said"),
    [
        ("mirror", {"startingOffsets": "latest"}, "no meaning for a mirror"),
        ("mirror", {"format": "parquet"}, "format"),
        ("changelog", {"keepDeleted": True}, "keepDeleted"),
        ("mirror", {"groups": 0}, "not within 1 to 1024"),
        ("mirror", {"keepDelete": True}, "did you mean|keepDelete"),
    ],
)
def test_options_that_are_wrong_are_named(kind: Any, options: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        PipelineSettings.parse(kind, SOURCE, options)


def test_a_table_is_a_directory(tmp_path: Path) -> None:
    assert TablePlace.parse(f"file://{tmp_path}/a%20b").root == tmp_path / "a b"
    assert TablePlace.parse(tmp_path).root == tmp_path
    for text in ("s3://bucket/table", ""):
        with pytest.raises(ConfigError, match="table: "):
            TablePlace.parse(text)


def test_a_place_is_taken_once(tmp_path: Path) -> None:
    place = TablePlace.parse(tmp_path)
    with (
        place.locked(),
        pytest.raises(ConfigError, match="another pipeline is running"),
        place.locked(),
    ):
        pass
    with place.locked():
        pass


def test_members_must_not_take_the_names_of_columns() -> None:
    schema = {
        "type": "struct",
        "fields": [{"name": "cas", "type": "long", "nullable": True, "metadata": {}}],
    }
    with pytest.raises(ConfigError, match="a column cas already"):
        MirrorShape(schema=json.dumps(schema))
    shape = MirrorShape(text=True, keep_deleted=True, groups=3)
    assert MirrorShape.of_json(shape.to_json()) == shape


def test_offsets_are_read_from_sparks_log(tmp_path: Path) -> None:
    log = OffsetLog(tmp_path)
    assert (log.newest_batch(), log.end_of(0)) == (-1, None)
    directory = tmp_path / "offsets"
    directory.mkdir()
    offset = {
        "format": 1,
        "bucket": "default",
        "bucket_uuid": "u",
        "vbuckets": 8,
        "at": {"3": "5 abc", "7": "12 b1 beef -2+3 rollback"},
    }
    (directory / "0").write_text('v1\n{"batchWatermarkMs":0}\n{}')
    (directory / "1").write_text('v1\n{"batchWatermarkMs":0}\n' + json.dumps(offset))
    (directory / ".2.crc").write_text("")
    assert log.newest_batch() == 1
    assert log.end_of(0) is None
    end = log.end_of(1)
    assert end is not None
    assert positions_of(end) == {"3": "5 abc", "7": "12 beef"}
    (directory / "3").write_text("v1\n{}\nnonsense")
    with pytest.raises(ConfigError, match="is no offset"):
        log.end_of(3)


def test_of_each_document_the_newest_row_stays() -> None:
    rows = [
        {"vbucket": 0, "scope": None, "collection": "c", "key": b"a", "branch": 0, "seqno": 1},
        {"vbucket": 0, "scope": None, "collection": "c", "key": b"a", "branch": 0, "seqno": 9},
        {"vbucket": 0, "scope": "s", "collection": "c", "key": b"a", "branch": 0, "seqno": 5},
        {"vbucket": 0, "scope": None, "collection": "c", "key": b"a", "branch": 1, "seqno": 4},
        {"vbucket": 1, "scope": None, "collection": "c", "key": b"a", "branch": 0, "seqno": 2},
    ]
    found = newest_rows(pa.Table.from_pylist(rows)).to_pylist()
    assert sorted((row["vbucket"], row["branch"], row["seqno"]) for row in found) == [
        (0, 0, 5),
        (0, 1, 4),
        (1, 0, 2),
    ]


def test_progress_is_written_and_read_again(tmp_path: Path) -> None:
    path = tmp_path / "private" / "progress.jsonl"
    book = ProgressBook(path, "run", 100)
    for number in (1, 2):
        facts = {"batch": number, "rows": 10, "bytes": 1, "steps": {}, "dead_letters": 1}
        book.batch_done(advance=20, began=0.0, rollbacks=number, lag=3, delay=None, **facts)
    status = book.status()
    assert (status.batches, status.rows, status.rollbacks, status.dead_letters) == (2, 20, 3, 2)
    assert (status.done, status.total, status.lag) == (40, 100, 3)
    with open(path, "a") as file:
        file.write('{"half a line\n{}\n')
    assert [one.batch for one in read_progress(path)] == [1, 2]
    assert read_progress(tmp_path / "none") == []


class _Tags(HTMLParser):
    """Collects tags, and checks that what is opened is closed."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))
        if tag != "meta":
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_page_needs_nothing_else_and_marks_rollbacks() -> None:
    records = [record(number) for number in range(1, 2000)]
    records += [record(2000, rollbacks=2, run="b"), record(2001, run="b", lag=None, delay=None)]
    text = page("/tables/<a&b>", records)
    tags = _Tags()
    tags.feed(text)
    assert not tags.open
    assert not re.search(r"https?:|\bsrc=|<script|<link|@import|url\(", text)
    assert "/tables/&lt;a&amp;b&gt;" in text
    classes = [attributes.get("class") for tag, attributes in tags.seen if tag == "line"]
    assert classes.count("rollback") == classes.count("run") == 4
    points = [attributes["points"] for tag, attributes in tags.seen if tag == "polyline"]
    assert len(points) == 4
    assert all(points_of is not None and points_of.count(",") <= 800 for points_of in points)


def test_the_page_of_one_batch() -> None:
    assert "not known" in page("t", [record(1, lag=None)])
