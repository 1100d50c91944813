"""Where a reader has to go back to: every case of the protocol's own table."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from upriver.model import FailoverLog, Snapshot, StreamOffset, rollback_point

VECTORS = Path(__file__).parent / "data" / "vectors.json"
CASES: list[dict[str, Any]] = json.loads(VECTORS.read_text())["rollback"]


def number(name: int | str) -> int:
    """The table names branches by letters or bare numbers."""
    return name if isinstance(name, int) else int.from_bytes(name.encode())


def test_the_table_is_whole() -> None:
    assert len(CASES) == 23


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["desc"])
def test_decision(case: dict[str, Any]) -> None:
    log = FailoverLog.of(*((number(name), seqno) for name, seqno in case["table"]))
    offset = StreamOffset(number(case["uuid"]), case["start"], Snapshot(case["ss"], case["se"]))
    point = rollback_point(
        log,
        offset,
        high_seqno=case["high"],
        purge_seqno=case["purge"],
        reader_purge_seqno=case.get("remote_purge", 0),
        strict=case.get("strict", False),
    )
    assert point == case["result"]


def purged(**fields: Any) -> int | None:
    log = FailoverLog.of((7, 0))
    offset = StreamOffset(7, 500, Snapshot(500, 500))
    return rollback_point(log, offset, high_seqno=1000, purge_seqno=600, **fields)


def test_purged_tombstones_of_other_collections_do_not_matter() -> None:
    assert purged(collections_high_seqno=500) is None
    assert purged(collections_high_seqno=501) == 0
    assert purged(collections_high_seqno=700) == 0
