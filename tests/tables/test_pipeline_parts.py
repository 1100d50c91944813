"""The parts of a pipeline that need no Spark: options, places, progress, the page about it."""

from __future__ import annotations

import json
import re
import resource
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from upriver.batches.offset_ranges import ReadStep
from upriver.errors import ConfigError
from upriver.files.storage import Storage, StorageFailed
from upriver.model import StreamOffset
from upriver.tables.pipeline import divided
from upriver.tables.pipeline_report import page
from upriver.tables.pipeline_settings import PipelineSettings
from upriver.tables.places import TablePlace
from upriver.tables.progress_log import (
    BatchRecord,
    LocalProgress,
    ProgressBook,
    read_progress,
)
from upriver.tables.rows.row_shape import MirrorShape

SOURCE = "couchbase://localhost/default"
SECRET = "a-secret-that-nobody-repeats"


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


def test_the_nearest_of_all_options_is_named() -> None:
    for wrong, meant in (("valueShema", "valueSchema"), ("max_offset_per_triger", "maxOffsets")):
        with pytest.raises(ConfigError, match=f"did you mean {meant}"):
            PipelineSettings.parse("mirror", "couchbase://here/bucket", {wrong: "a int"})


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


@pytest.mark.parametrize(
    ("kind", "options", "said"),
    [
        ("mirror", {"startingOffsets": "latest"}, "no meaning for a mirror"),
        ("changelog", {"format": "parquet"}, "format: every table is a Delta table"),
        ("changelog", {"checkpoint": "here"}, "checkpoint: .* in its own commits; leave it out"),
        ("changelog", {"keepDeleted": True}, "keepDeleted"),
        ("mirror", {"groups": 0}, "not within 1 to 1024"),
        ("mirror", {"keepDelete": True}, "did you mean|keepDelete"),
    ],
)
def test_options_that_are_wrong_are_named(kind: Any, options: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        PipelineSettings.parse(kind, SOURCE, options)


def test_a_full_disk_is_not_taken_for_a_network(tmp_path: Path) -> None:
    storage = Storage.parse(tmp_path)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1_000, before[1]))  # as if no more fitted
    try:
        with pytest.raises(StorageFailed, match=r"the store refused: .*check the directory, and"):
            storage.put("file", bytes(100_000))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_table_is_a_directory_or_in_an_object_store(tmp_path: Path) -> None:
    assert TablePlace.parse(f"file://{tmp_path}/a%20b").root == tmp_path / "a b"
    assert TablePlace.parse(tmp_path).root == tmp_path
    assert str(TablePlace.parse("s3://bucket/table/")) == "s3://bucket/table"
    for text in ("ftp://host/table", "s3://", ""):
        with pytest.raises(ConfigError, match="table: "):
            TablePlace.parse(text)


@pytest.mark.parametrize(
    ("address", "options"),
    [
        ("s3://bucket/t", {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": SECRET}),
        ("s3a://bucket/t", {"aws_region": "eu-west-1", "timeout": "30s"}),
        ("az://container/t", {"AZURE_STORAGE_ACCOUNT_NAME": "a", "AZURE_STORAGE_SAS_KEY": "sig=x"}),
        (
            "abfss://container@account.dfs.core.windows.net/t",
            {"AZURE_STORAGE_ACCOUNT_KEY": "c2VjcmV0"},
        ),
        ("gs://bucket/t", {"GOOGLE_SKIP_SIGNATURE": "true"}),
    ],
)
def test_every_kind_of_object_store_is_opened_with_the_options_of_deltalake(
    address: str, options: dict[str, str]
) -> None:
    environment = {
        "HOME": "/",
        "AWS_DEFAULT_REGION": "eu-west-1",
        "AZURE_ALLOW_HTTP": "true",
        "GOOGLE_SERVICE_ACCOUNT_PATH": "",
    }
    storage = Storage.parse(address, options, environment)
    assert storage._store.prefix == "t"
    assert SECRET not in repr(storage) + str(storage)
    assert "HOME" not in dict(storage.options)
    assert ("AWS_DEFAULT_REGION" in dict(storage.options)) == address.startswith("s3")
    assert ("AZURE_ALLOW_HTTP" in dict(storage.options)) == address.startswith("a")


@pytest.mark.parametrize(
    ("address", "options", "said"),
    [
        ("az://container/t", {}, "Account must be specified"),
        ("abfss://container@account/t", {}, "did not match any known pattern"),
        ("gs://bucket/t", {"GOOGLE_SERVICE_ACCOUNT": "/no/such/file"}, "/no/such/file"),
        ("s3://bucket/t", {"AWS_NONSENSE": SECRET}, "aws_nonsense"),
    ],
)
def test_a_store_that_cannot_be_opened_is_named_with_what_to_check(
    address: str, options: dict[str, str], said: str
) -> None:
    with pytest.raises(ConfigError, match="check the address, storageOptions") as failure:
        Storage.parse(address, options, {}).exists("a")
    assert said in str(failure.value)
    assert address in str(failure.value)
    assert SECRET not in str(failure.value)


@pytest.mark.parametrize(
    ("sizes", "count", "wanted"),
    [
        ([1] * 8, 2, [range(4), range(4, 8)]),
        ([1, 1, 1, 100], 4, [range(3), range(3, 4)]),
        ([100, 1, 1], 2, [range(1), range(1, 3)]),
        ([1] * 3, 8, [range(1), range(1, 2), range(2, 3)]),
        ([], 4, []),
    ],
)
def test_tasks_have_ranges_of_groups_of_about_the_same_size(
    sizes: list[int], count: int, wanted: list[range]
) -> None:
    steps = [
        ReadStep(vbucket, 0, StreamOffset.beginning(), size)
        for group, size in enumerate(sizes)
        for vbucket in (group, group + len(sizes))
    ]
    parts = divided(steps, len(sizes), count)
    assert [{step.vbucket % len(sizes) for step in part} for part in parts] == [*map(set, wanted)]
    assert sorted(step.vbucket for part in parts for step in part) == list(range(2 * len(sizes)))


def test_members_must_not_take_the_names_of_columns() -> None:
    schema = {
        "type": "struct",
        "fields": [{"name": "cas", "type": "long", "nullable": True, "metadata": {}}],
    }
    with pytest.raises(ConfigError, match="a column cas already"):
        MirrorShape(schema=json.dumps(schema))
    shape = MirrorShape(text=True, keep_deleted=True, groups=3)
    assert MirrorShape.of_json(shape.to_json()) == shape


def test_progress_is_written_and_read_again(tmp_path: Path) -> None:
    path = tmp_path / "_upriver" / "progress.jsonl"
    book = ProgressBook(LocalProgress(path, "run"), 100)
    for number in (1, 2):
        facts: dict[str, Any] = {
            "batch": number,
            "rows": 10,
            "bytes": 1,
            "steps": {},
            "dead_letters": 1,
        }
        book.batch_done(advance=20, began=0.0, rollbacks=number, lag=3, delay=None, **facts)
    status = book.status()
    assert (status.batches, status.rows, status.rollbacks, status.dead_letters) == (2, 20, 3, 2)
    assert (status.done, status.total, status.lag) == (40, 100, 3)
    with open(path, "a") as file:
        file.write('{"half a line\n{}\n')
    assert [one.batch for one in read_progress(Storage.parse(tmp_path))] == [1, 2]
    assert read_progress(Storage.parse(tmp_path / "none")) == []


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
