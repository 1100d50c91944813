"""Failover logs in any order: every entry is in the position, and the current branch is known."""

from __future__ import annotations

from typing import Any

import pytest
from consumerkit import DIALECTS, Conversation
from draft_servers import DraftServer, change, closing, opening
from printed_packets import RIGHT

from upriver.consumer import Consumer
from upriver.consumer.checkpoints.position_json import dump_position, load_position
from upriver.model import FailoverEntry, FailoverLog, StreamOffset, rollback_point
from upriver.wire import messages as m
from upriver.wire.dialects import Dcp, Draft000, Draft002

LOGS = {
    "002": Draft002().decode(RIGHT["002", 7]).failover_log,  # type: ignore[attr-defined]
    "000": Draft000().decode(RIGHT["000", 8]).failover_log,  # type: ignore[attr-defined]
    "004": Dcp().decode(RIGHT["004", 4]).failover_log,  # type: ignore[attr-defined]
}
OLDEST_FIRST = FailoverLog.of((7, 0), (8, 0), (9, 40))


@pytest.mark.parametrize("draft", ["002", "000", "001"])
@pytest.mark.parametrize("log", [*LOGS, "oldest first"])
def test_every_entry_is_in_the_position(draft: Any, log: str) -> None:
    sent = FailoverLog(LOGS[log]) if log in LOGS else OLDEST_FIRST
    dialect = DIALECTS[draft]

    def play(talk: Conversation, request: m.StreamRequest) -> None:
        talk.send(*opening(dialect, request), change(request, 1), *closing(dialect, request))

    with (
        DraftServer(dialect, play, log=sent) as server,
        Consumer(server.source, dialect=draft, vbuckets=frozenset({0}), end={0: 1}) as consumer,
    ):
        assert len(list(consumer)) == 1
        position = consumer.position().position(0)
    entries = sent.entries[::-1] if log == "oldest first" else sent.entries
    assert position.log.entries == entries
    assert position.offset.vbuuid == entries[0].vbuuid
    assert load_position(dump_position(position), "saved") == position


def test_the_printed_logs_are_what_they_are() -> None:
    assert [entry.vbuuid for entry in LOGS["004"]] == [0xFEEDDECA, 0xDECAFE, 0xFEEDFACE, 0xDEADBEEF]
    assert LOGS["002"] == LOGS["000"] == (FailoverEntry(3570, 62100), FailoverEntry(31555, 37665))


@pytest.mark.parametrize(
    ("pairs", "current"),
    [
        ([(1, 5), (2, 5), (3, 0)], 1),  # as servers send it, with equal seqnos
        ([(1, 0), (2, 0)], 1),
        ([(3, 0), (2, 5), (1, 5)], 1),  # the same, oldest first
        ([(1, 5), (2, 9), (3, 0)], 1),  # in no order
        ([(0, 9), (1, 5)], 1),
        ([], None),
    ],
)
def test_the_order_tells_which_branch_is_current(
    pairs: list[tuple[int, int]], current: int | None
) -> None:
    log = FailoverLog.of(*pairs).newest_first()
    assert (log.newest.vbuuid if len(log) else None) == current
    assert {entry.vbuuid for entry in log} == {vbuuid for vbuuid, _ in pairs if vbuuid}


def test_nothing_is_shared_beyond_the_first_later_branch() -> None:
    """Of the log that document 004 prints."""
    log = FailoverLog(LOGS["004"])
    ends = {
        vbuuid: log.branch_end(vbuuid, 10**9) for vbuuid in (0xFEEDDECA, 0xFEEDFACE, 0xDEADBEEF)
    }
    assert ends == {0xFEEDDECA: 10**9, 0xFEEDFACE: 0x5432, 0xDEADBEEF: 4}
    at = StreamOffset.at(0xFEEDFACE, 0x6000)
    assert rollback_point(log, at, high_seqno=10**9) == 0x5432
