"""Tables of servers that know one document's commands and nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from document_servers import DOCUMENTS, Document000, Document001, Document002, OneDocument
from tablekit import PATIENCE, becomes, documents_of, rows_of

from upriver.errors import ConfigError
from upriver.tables.executors import ThisProcess
from upriver.tables.pipeline import Pipeline
from upriver.tables.pipeline_settings import PipelineSettings
from upriver.tables.pipeline_start import place_of, start_pipeline

DIALECT = {"002": "002", "000": "000", "001": "001", "004": "dcp"}
every = pytest.mark.parametrize("kind", DOCUMENTS, ids=lambda kind: kind.document)
old = pytest.mark.parametrize(
    "kind", [Document002, Document000, Document001], ids=lambda kind: kind.document
)


def started(server: OneDocument, table: Path, kind: str = "mirror", **options: Any) -> Pipeline:
    given = {"dialect": DIALECT[server.document], "retryTimeout": "20s", **options}
    settings = PipelineSettings.parse(kind, server.source, given)
    return start_pipeline(ThisProcess(), settings, place_of(table, settings))


def once(server: OneDocument, table: Path, kind: str = "mirror", **options: Any) -> Pipeline:
    pipeline = started(server, table, kind, once=True, **options)
    assert pipeline.wait(PATIENCE)
    return pipeline


@every
def test_a_mirror_becomes_equal_and_goes_on_where_it_was(
    kind: type[OneDocument], tmp_path: Path
) -> None:
    with kind({0: 3, 1: 0, 3: 2}) as server:
        once(server, tmp_path / "table")
        assert documents_of(tmp_path / "table") == server.documents()
        server.write(0, b"0:k1", b"again")
        server.write(0, b"0:k2", None)
        server.write(1, b"first")
        server.asked.clear()
        once(server, tmp_path / "table")
        assert documents_of(tmp_path / "table") == server.documents()


@every
def test_a_mirror_follows_its_server(kind: type[OneDocument], tmp_path: Path) -> None:
    with kind({0: 2}) as server:
        pipeline = started(server, tmp_path / "table")
        try:
            for number in range(3):
                server.write(0, b"k%d" % number, b"v%d" % number)
                becomes(pipeline, lambda: documents_of(tmp_path / "table"), server.documents())
            assert pipeline.lag() is None  # nobody can know
        finally:
            pipeline.stop()


@every
def test_a_mirror_undoes_what_a_failover_lost(kind: type[OneDocument], tmp_path: Path) -> None:
    with kind({0: 5, 1: 2}) as server:
        once(server, tmp_path / "table")
        server.fail_over(0, 3, 9)
        server.write(0, b"new")
        once(server, tmp_path / "table")
        assert documents_of(tmp_path / "table") == server.documents()


@every
def test_a_changelog_has_every_change_once(kind: type[OneDocument], tmp_path: Path) -> None:
    with kind({0: 3, 2: 1}) as server:
        once(server, tmp_path / "table", "changelog")
        server.write(0, b"0:k1", b"again")
        once(server, tmp_path / "table", "changelog")
        once(server, tmp_path / "table", "changelog")
        found = sorted((row["vbucket"], row["seqno"]) for row in rows_of(tmp_path / "table"))
        assert found == [(0, 1), (0, 2), (0, 3), (0, 4), (2, 1)]


@old
def test_a_history_has_the_versions_that_it_saw(kind: type[OneDocument], tmp_path: Path) -> None:
    with kind({0: 2}) as server:
        once(server, tmp_path / "table", "history")
        server.write(0, b"0:k1", b"again")
        once(server, tmp_path / "table", "history")
        values = sorted(
            (row["key"], row["value"], row["_valid_to_seqno"])
            for row in rows_of(tmp_path / "table")
        )
        assert values == [(b"0:k1", b"again", None), (b"0:k1", b"v", 3), (b"0:k2", b"v", None)]


def test_a_pipeline_says_what_a_draft_does_not_have(tmp_path: Path) -> None:
    with (
        Document000({0: 1}) as server,
        pytest.raises(ConfigError, match="dialect is 000, a draft that has no collections"),
    ):
        once(server, tmp_path / "table", collections="a.b")
