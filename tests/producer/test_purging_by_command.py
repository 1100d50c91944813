"""Compaction that takes tombstones away at once, and what becomes of readers behind them."""

from __future__ import annotations

import struct
from collections.abc import Iterator

import pytest
from talk import RawAnswer, Talk

from upriver.store import BucketSettings
from upriver.testing import TemporaryProducer

SET, DELETE, COMPACT, OPEN, STREAM_REQUEST = 0x01, 0x04, 0xB3, 0x50, 0x53
DELETION, END, ROLLBACK = 0x58, 0x55, 0x23


@pytest.fixture
def producer() -> Iterator[TemporaryProducer]:
    """Deletions at 4, 5 and 6, and a document behind them."""
    settings = BucketSettings(vbuckets=2, maintenance_interval=0)  # in which they stay for days
    with TemporaryProducer(bucket_settings=settings) as producer:
        with Talk(producer) as talk:
            for opcode, value, extras in ((SET, b"v", bytes(8)), (DELETE, b"", b"")):
                for key in (b"a", b"b", b"c"):
                    assert talk.ask_raw(opcode, key, value, extras).status == 0
            assert talk.ask_raw(SET, b"d", b"v", bytes(8)).status == 0
        yield producer


def compacted(talk: Talk, before: int, last_seqno: int, drop: bool, vbucket: int = 0) -> RawAnswer:
    extras = struct.pack(">QQBBHI", before, last_seqno, drop, 0, 0, 0)
    return talk.ask_raw(COMPACT, b"", b"", extras, vbucket=vbucket)


def asked(talk: Talk, start: int, vbuuid: int) -> RawAnswer:
    extras = struct.pack(">IIQQQQQ", 0, 0, start, 7, vbuuid, start, start)
    return talk.ask_raw(STREAM_REQUEST, b"", b"", extras)


def deletions(producer: TemporaryProducer) -> list[int]:
    """The seqnos of the deletions that a new reader is sent."""
    found = []
    with Talk(producer) as talk:
        talk.ask_raw(OPEN, b"reader", b"", struct.pack(">II", 0, 1))
        assert asked(talk, 0, 0).status == 0
        while (message := talk.read_raw()).opcode != END:
            if message.opcode == DELETION:
                found.append(int.from_bytes(message.extras[:8], "big"))
    return found


FUTURE = 4_000_000_000


@pytest.mark.parametrize(
    ("before", "last_seqno", "drop", "left"),
    [
        (0, 0, True, []),
        (FUTURE, 0, False, []),
        (FUTURE, 5, False, [6]),
        (1, 0, False, [4, 5, 6]),
        (0, 5, False, [4, 5, 6]),
    ],
)
def test_tombstones_go_when_they_are_told_to(
    producer: TemporaryProducer, before: int, last_seqno: int, drop: bool, left: list[int]
) -> None:
    with Talk(producer) as talk:
        assert compacted(talk, before, last_seqno, drop, vbucket=1).status == 0
        assert deletions(producer) == [4, 5, 6]
        assert compacted(talk, before, last_seqno, drop).status == 0
    assert deletions(producer) == left
    assert producer.bucket.verify() == []


def test_a_reader_behind_what_was_purged_begins_again(producer: TemporaryProducer) -> None:
    vbuuid = producer.bucket.failover_log(0).newest.vbuuid
    with Talk(producer) as talk:
        compacted(talk, 0, 0, True)
        told = talk.statistics("vbucket-seqno 0")
        assert (told["vb_0:purge_seqno"], told["vb_0:high_seqno"]) == ("6", "7")
        talk.ask_raw(OPEN, b"reader", b"", struct.pack(">II", 0, 1))
        answer = asked(talk, 3, vbuuid)
        assert (answer.status, answer.value) == (ROLLBACK, bytes(8))
        assert asked(talk, 6, vbuuid).status == 0


def test_the_newest_change_stays(producer: TemporaryProducer) -> None:
    with Talk(producer) as talk:
        talk.ask_raw(DELETE, b"d")
        compacted(talk, 0, 0, True)
    assert producer.bucket.vbucket_stats(0).purge_seqno == 6
    assert producer.bucket.vbucket_stats(0).high_seqno == 8
