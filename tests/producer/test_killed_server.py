"""kill -9 of a server under load: what it had acknowledged is there, and readers just go on."""

from __future__ import annotations

import random
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from follower import Follower, everything_in, high_seqnos
from serverkit import ServerProcess, load
from talk import Talk

from upriver.errors import Status
from upriver.wire import kv_messages as kv
from upriver.wire.protocol_enums import Feature

pytestmark = pytest.mark.story

VBUCKETS = 3
KILLS = 5
NAMES = 500
PIPELINED = 64


@dataclass
class Ledger:
    """What a writer was told."""

    #: The newest write of each document, by vbucket and key: seqno, CAS and value.
    newest: dict[tuple[int, bytes], tuple[int, int, bytes]] = field(default_factory=dict)
    #: Which key each seqno was given to.
    owners: dict[tuple[int, int], bytes] = field(default_factory=dict)

    def told(self, asked: kv.Set, answer: Any) -> None:
        assert answer.status is Status.SUCCESS
        place = (asked.vbucket, answer.seqno)
        assert place not in self.owners, "a seqno was given out twice"
        self.owners[place] = asked.key
        self.newest[asked.vbucket, asked.key] = (answer.seqno, answer.cas, asked.value)


class Writer:
    """Keeps many writes under way."""

    def __init__(self, draw: random.Random, ledger: Ledger) -> None:
        self._draw = draw
        self._ledger = ledger
        self._under_way: dict[int, kv.Set] = {}
        self._number = 0

    def write(self, server: ServerProcess, answers: int) -> None:
        """Writes until so many answers came; then the server is killed with the rest under way."""
        with Talk(server) as talk:
            talk.hello(Feature.MUTATION_SEQNO)
            for _ in range(answers):
                talk.send(*self._more())
                self._hear(talk)
            server.kill()
            try:
                while True:  # what it answered before it died counts
                    self._hear(talk)
            except ConnectionError:
                self._under_way.clear()

    def _more(self) -> list[kv.Set]:
        batch: list[Any] = []
        while len(self._under_way) + len(batch) < PIPELINED:
            self._number += 1
            name, vbucket = self._draw.randrange(NAMES), self._draw.randrange(VBUCKETS)
            value = b"%d" % self._number
            batch.append(
                kv.Set(key=b"k%d" % name, value=value, vbucket=vbucket, opaque=self._number)
            )
        self._under_way |= {request.opaque: request for request in batch}
        return batch

    def _hear(self, talk: Talk) -> None:
        answer = talk.read()
        self._ledger.told(self._under_way.pop(answer.opaque), answer)


def check(ledger: Ledger, found: Follower) -> None:
    """Every write that was acknowledged is there, or one that came after it."""
    for document, (seqno, cas, value) in ledger.newest.items():
        present = found.documents[document]
        assert present[0] >= seqno
        if present[0] == seqno:
            assert present == (seqno, cas, value)
    for place, key in found.owners.items():
        assert ledger.owners.get(place, key) == key


def test_nothing_acknowledged_is_lost_and_readers_resume_exactly(tmp_path: Path) -> None:
    draw = random.Random(4)
    ledger = Ledger()
    writer = Writer(draw, ledger)
    reader = Follower(VBUCKETS)
    for _ in range(KILLS):
        with ServerProcess(tmp_path, vbuckets=VBUCKETS) as server, reader.connect(server) as talk:
            reading = threading.Thread(target=reader.follow, args=(talk,))
            reading.start()
            writer.write(server, answers=draw.randrange(100, 1200))
            reading.join()
    with ServerProcess(tmp_path, vbuckets=VBUCKETS) as server:
        seqnos = high_seqnos(server)
        found = everything_in(server, seqnos)
        check(ledger, found)
        assert len(ledger.owners) > KILLS * PIPELINED
        # the reader that was cut off each time ends with the same documents on the same branch
        with reader.connect(server) as talk:
            reader.follow(talk, lambda: reader.has(seqnos))
        check(ledger, reader)
        assert reader.documents == found.documents
        assert reader.branches == found.branches


def test_a_reader_that_was_within_a_snapshot_gets_exactly_the_rest(tmp_path: Path) -> None:
    documents = 2000
    reader = Follower(1)
    with ServerProcess(tmp_path, vbuckets=1) as server:
        load(server, (b"k%d" % number for number in range(documents)), b"x" * 1000)
        with reader.connect(server) as talk:
            reader.follow(talk, lambda: reader.has({0: documents // 2}))
    assert reader.is_within_a_snapshot
    with ServerProcess(tmp_path, vbuckets=1) as server, reader.connect(server) as talk:
        load(server, [b"k0", b"new"], b"y")
        reader.follow(talk, lambda: reader.has({0: documents + 2}))
        # nothing came twice, which a follower checks, and nothing is missing
        assert reader.documents == everything_in(server, {0: documents + 2}).documents
    assert len(reader.owners) == documents + 2
