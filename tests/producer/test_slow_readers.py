"""Readers in another process than the server: they stall, keep quiet or die, and harm nobody."""

from __future__ import annotations

import random
from collections.abc import Iterator
from functools import partial

import pytest
from follower import Follower, everything_in, high_seqnos
from serverkit import ServerProcess, load
from talk import Talk
from waiting import until

from upriver.errors import Status
from upriver.model import NO_END
from upriver.wire import kv_messages as kv
from upriver.wire import messages as m

pytestmark = pytest.mark.story

MIB = 1024 * 1024
SIZE = 64 * 1024
#: A hundred megabytes, far more than all buffers between a server and its reader hold.
DOCUMENTS = 100 * MIB // SIZE
#: What a round of writers adds while somebody is slow.
MORE = 50


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path_factory.mktemp("server"), vbuckets=1) as server:
        write(server, DOCUMENTS)
        yield server


def write(server: ServerProcess, count: int) -> None:
    """Writes documents of which there are ``DOCUMENTS`` at the most."""
    load(server, (b"k%d" % number for number in range(count)), random.Random(1).randbytes(SIZE))


def open_backfills(server: ServerProcess) -> int:
    with Talk(server) as talk:
        talk.send(kv.Stat())
        statistics = talk.read_until(lambda answer: not answer.key)
    return next(int(x.value) for x in statistics if x.key == "ep_backfills_open")


def test_a_reader_that_stalls_within_a_backfill_costs_the_server_little(
    server: ServerProcess,
) -> None:
    everything_in(server, high_seqnos(server))  # so that all that is kept in memory is there
    before = server.resident()
    stalled = Follower(1)
    with stalled.connect(server, "stalled") as talk:
        stalled.follow(talk, lambda: stalled.has({0: 1}))
        for _ in range(3):
            write(server, MORE)
            seqnos = high_seqnos(server)
            assert len(everything_in(server, seqnos).documents) == DOCUMENTS
        assert server.resident() - before < DOCUMENTS * SIZE // 2
        # it missed nothing: what it was promised comes first, then what was written meanwhile
        stalled.follow(talk, lambda: stalled.has(seqnos))
    assert stalled.documents == everything_in(server, seqnos).documents


def test_a_reader_that_never_acknowledges_holds_up_only_itself(server: ServerProcess) -> None:
    window = 4 * SIZE
    with Talk(server) as quiet:
        quiet.open("quiet")
        quiet.control("connection_buffer_size", str(window))
        seqnos = high_seqnos(server)
        quiet.send(m.StreamRequest(vbucket=0, start=0, end=NO_END, opaque=1))
        assert isinstance(quiet.read(), m.StreamAccepted)
        write(server, MORE)  # for which its stream is woken
        lively = everything_in(server, {0: seqnos[0] + MORE})
        assert len(lively.documents) == DOCUMENTS
        quiet.send(kv.Noop(opaque=2))
        received = quiet.read_until(lambda message: message.opaque == 2)
        sizes = [len(quiet.dialect.encode(message)) for message in received[:-1]]
        assert sum(sizes[:-1]) < window <= sum(sizes)
        assert received[-1].status is Status.SUCCESS


def test_readers_that_die_within_a_snapshot_leave_nothing_and_resume_exactly(
    server: ServerProcess,
) -> None:
    seqnos = high_seqnos(server)
    whole = everything_in(server, seqnos)
    reader = Follower(1)
    places = sorted(seqno for _, seqno in whole.owners)
    for stop in sorted([*random.Random(6).sample(places, 10), places[-1]]):
        with reader.connect(server, "mortal") as talk:
            reader.follow(talk, partial(reader.has, {0: stop}))
    assert reader.documents == whole.documents
    assert reader.owners == whole.owners
    until(lambda: open_backfills(server) == 0)
