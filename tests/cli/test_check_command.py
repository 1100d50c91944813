"""``upriver check``: what a server would say to a checkpoint, and that it then does say it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from running import finished

from upriver.consumer.checkpoints.checkpoint import Checkpoint, MemoryCheckpoint
from upriver.consumer.checkpoints.checkpoint_file import FileCheckpoint
from upriver.consumer.checkpoints.position_check import PositionVerdict, probe, probe_and_wait
from upriver.consumer.client import Consumer
from upriver.consumer.consumer_settings import ConsumerSettings
from upriver.consumer.transport.access import Access
from upriver.consumer.transport.connection_string import Source
from upriver.errors import ConfigError, Status, StatusError
from upriver.model import NO_END, FailoverLog, Snapshot, StreamOffset, VBucketState
from upriver.producer.bootstrap.users import Grant, Role, Users
from upriver.producer.server_settings import ServerSettings
from upriver.session.consumer_events import RollbackReason, RolledBack
from upriver.session.stream_position import Position
from upriver.testing import TemporaryProducer
from upriver.wire.protocol_enums import DialectName

pytestmark = pytest.mark.story

VBUCKETS = 4


@pytest.fixture
def producer() -> Iterator[TemporaryProducer]:
    with TemporaryProducer(vbuckets=VBUCKETS) as running:
        yield running


def fill(producer: TemporaryProducer, count: int, vbucket: int, prefix: bytes = b"k") -> None:
    for number in range(count):
        producer.write(b"%b%d" % (prefix, number), b"1", vbucket)


def read(producer: TemporaryProducer, **options: Any) -> Checkpoint:
    """The position of a reader that has everything."""
    with Consumer(producer.source, end="now", **options) as consumer:
        for _ in consumer:
            pass
        return consumer.position()


def verdicts(
    producer: TemporaryProducer, positions: Checkpoint | Mapping[int, Position], **options: Any
) -> dict[int, PositionVerdict]:
    settings = ConsumerSettings(**options)
    return probe_and_wait(Source.parse(producer.source), Access(), settings, positions)


def at(producer: TemporaryProducer, vbucket: int, seqno: int, **fields: Any) -> Position:
    """A position on the newest branch, at the end of a snapshot unless told otherwise."""
    log = producer.bucket.failover_log(vbucket)
    snapshot = fields.pop("snapshot", Snapshot(seqno, seqno))
    vbuuid = fields.pop("vbuuid", log.newest.vbuuid)
    return Position(StreamOffset(vbuuid, seqno, snapshot), fields.pop("log", log), **fields)


def rollbacks(producer: TemporaryProducer, checkpoint: Checkpoint) -> dict[int, int]:
    """Where a reader really is sent."""
    found = {}
    with Consumer(producer.source, checkpoint=MemoryCheckpoint(checkpoint), end="now") as consumer:
        for event in consumer.events():
            if isinstance(event, RolledBack):
                found[event.vbucket] = event.to.seqno
    return found


# ---- what it says ------------------------------------------------------------------------


def test_positions_that_are_accepted(producer: TemporaryProducer, tmp_path: Path) -> None:
    fill(producer, 5, vbucket=0)
    file = tmp_path / "reader.checkpoint"
    with FileCheckpoint(file) as store:
        store.save(read(producer))
    fill(producer, 3, vbucket=0, prefix=b"later")
    fill(producer, 2, vbucket=1)
    words = ("check", producer.source, "--checkpoint", file)
    short = finished(*words)
    assert (short.returncode, short.stderr) == (0, "")
    summary = (
        "4 vbuckets: 4 would go on where they are, 3 of them at the beginning; "
        "0 would be rolled back; 5 changes behind\n"
    )
    assert short.stdout == summary
    long = finished(*words, "--all")
    assert long.returncode == 0
    assert [line.split() for line in long.stdout.splitlines()[1:3]] == [
        ["0", "5", "there", "accepted", "3"],
        ["1", "the", "beginning", "there", "accepted", "2"],
    ]
    assert long.stdout.endswith(f"\n\n{summary}")


def test_positions_that_would_be_rolled_back(producer: TemporaryProducer, tmp_path: Path) -> None:
    for vbucket in range(3):
        fill(producer, 5, vbucket)
    file = tmp_path / "reader.checkpoint"
    with FileCheckpoint(file) as store:
        store.save(read(producer))
    before = file.read_bytes()
    producer.fail_over(1, 3)
    fill(producer, 4, vbucket=1, prefix=b"new")
    words = ("check", producer.source, "--checkpoint", file)
    result = finished(*words)
    assert result.returncode == 1
    row = result.stdout.splitlines()[1].split()
    # what was there before it came is one snapshot, so there is no place in between
    assert row == ["1", "5", "at", "the", "beginning", "diverged", "7"]
    assert "; 1 would be rolled back; " in result.stdout
    told = json.loads(finished(*words, "--json").stdout)
    assert (told["bucket"], told["accepted"], told["rolled_back"]) == ("default", 3, 1)
    assert [entry["vbucket"] for entry in told["vbuckets"]] == [0, 1, 2, 3]
    assert told["vbuckets"][1] == {
        "vbucket": 1,
        "accepted": False,
        "seqno": 5,
        "to_seqno": 0,
        "reasons": ["diverged"],
        "high_seqno": 7,
        "behind": 7,
    }
    assert file.read_bytes() == before


def test_what_cannot_be_found_out_is_status_two(
    producer: TemporaryProducer, tmp_path: Path
) -> None:
    file = tmp_path / "reader.checkpoint"
    fill(producer, 1, vbucket=0)
    with FileCheckpoint(file) as store:
        store.save(replace(read(producer), bucket_uuid="another"))
    no_server = "couchbase://127.0.0.1:1/default"
    for source, path, said in (
        (producer.source, tmp_path / "missing", "there is no checkpoint"),
        (producer.source, file, "the checkpoint is of another bucket"),
        (no_server, file, "cannot be reached"),
    ):
        result = finished("check", source, "--checkpoint", path)
        assert (result.returncode, result.stdout) == (2, "")
        assert result.stderr.startswith("error: ")
        assert said in result.stderr
        assert result.stderr.count("\n") == 1


def test_a_user_without_or_with_the_wrong_password(tmp_path: Path) -> None:
    users = Users()
    users.add("reader", "p4ssword", Grant(Role.READ_STREAM), iterations=4096)
    users.save(tmp_path / "users.json")
    settings = ServerSettings(users=tmp_path / "users.json", authentication_delay=0)
    file = tmp_path / "reader.checkpoint"
    with TemporaryProducer(vbuckets=VBUCKETS, settings=settings) as guarded:
        fill(guarded, 1, vbucket=0)
        with FileCheckpoint(file) as store:
            store.save(read(guarded, access=Access(user="reader", password="p4ssword")))
        words = ("check", guarded.source, "--checkpoint", file, "--user", "reader")
        assert finished(*words, UPRIVER_PASSWORD="p4ssword").returncode == 0
        wrong = finished(*words, UPRIVER_PASSWORD="guess")
        none = finished(*words, UPRIVER_PASSWORD="")
    assert wrong.returncode == none.returncode == 2
    assert wrong.stderr.startswith("error: authentication failed for user 'reader' at 127.0.0.1:")
    assert none.stderr == (
        "error: there is no password for reader: give password, a password file, or set "
        "UPRIVER_PASSWORD\n"
    )


# ---- what it finds -----------------------------------------------------------------------


def test_a_reader_goes_back_to_where_it_was_consistent(producer: TemporaryProducer) -> None:
    fill(producer, 6, vbucket=0)
    position = at(producer, 0, 6, boundaries=(1, 3, 6))
    producer.fail_over(0, 4)
    verdict = verdicts(producer, {0: position})[0]
    assert not verdict.accepted
    assert verdict.goes_on.seqno == 3
    assert verdict.reasons == (RollbackReason.DIVERGED,)
    assert (verdict.high_seqno, verdict.behind) == (4, 1)


def test_a_branch_that_nobody_knows(producer: TemporaryProducer) -> None:
    fill(producer, 2, vbucket=0)
    stranger = at(producer, 0, 2, vbuuid=99, log=FailoverLog.of((99, 0)), boundaries=(1, 2))
    verdict = verdicts(producer, {0: stranger})[0]
    assert verdict.reasons == (RollbackReason.UNKNOWN_BRANCH,)
    assert verdict.goes_on.seqno == 0


@pytest.mark.parametrize(
    ("seqno", "snapshot", "boundaries", "onward"),
    [
        (9, Snapshot(9, 9), (2, 9), 2),
        (4, Snapshot(3, 9), (3,), 3),  # within a snapshot of which the server has only a part
        (4, Snapshot(0, 9), (), 0),  # to 0, though nothing was purged
    ],
)
def test_a_reader_that_has_more_than_the_server(
    producer: TemporaryProducer,
    seqno: int,
    snapshot: Snapshot,
    boundaries: tuple[int, ...],
    onward: int,
) -> None:
    fill(producer, 5, vbucket=2)
    ahead = at(producer, 2, seqno, snapshot=snapshot, boundaries=boundaries)
    verdict = verdicts(producer, {2: ahead})[2]
    assert verdict.reasons == (RollbackReason.AHEAD,)
    assert verdict.goes_on.seqno == onward


def purged(producer: TemporaryProducer) -> None:
    """Vbucket 0 at seqno 8, of which the deletions up to seqno 6 cannot be told any more."""
    fill(producer, 4, vbucket=0)
    producer.delete(b"k0", vbucket=0)
    producer.delete(b"k1", vbucket=0)
    fill(producer, 2, vbucket=0, prefix=b"later")
    producer.purge()
    assert producer.bucket.vbucket_stats(0).purge_seqno == 6


def test_deletions_that_were_purged(producer: TemporaryProducer) -> None:
    purged(producer)
    found = verdicts(producer, {0: at(producer, 0, 4, boundaries=(2, 4))})[0]
    assert found.reasons == (RollbackReason.PURGED,)
    assert (found.goes_on.seqno, found.behind) == (0, 8)
    assert verdicts(producer, {0: at(producer, 0, 6)})[0].accepted


def test_two_reasons_one_after_the_other(producer: TemporaryProducer) -> None:
    purged(producer)
    old = at(producer, 0, 8, boundaries=(2, 8))
    producer.fail_over(0, 7)
    verdict = verdicts(producer, {0: old})[0]
    # the branches part after 7, the reader was consistent at 2, and that is before the purge
    assert verdict.reasons == (RollbackReason.DIVERGED, RollbackReason.PURGED)
    assert verdict.goes_on.seqno == 0


def test_the_server_hears_which_collections_are_meant(producer: TemporaryProducer) -> None:
    collection = producer.bucket.create_collection(0, "quiet").id
    seqno = producer.write(b"q", b"1", vbucket=0, collection=collection).seqno
    position = {0: at(producer, 0, seqno)}
    assert verdicts(producer, position, collections=("quiet",))[0].accepted
    with pytest.raises(ConfigError, match="there is no collection 'quite'"):
        verdicts(producer, position, collections=("quite",))


def test_a_snapshot_without_an_end_is_asked_for_from_its_beginning(
    producer: TemporaryProducer,
) -> None:
    fill(producer, 9, vbucket=0)
    for seqno, boundaries in ((6, (2,)), (6, ())):
        unfinished = at(producer, 0, seqno, snapshot=Snapshot(2, NO_END), boundaries=boundaries)
        verdict = verdicts(producer, {0: unfinished})[0]
        assert verdict.accepted
        assert verdict.behind == 3


@pytest.mark.parametrize("dialect", ["001", "000", "002"])
def test_the_drafts_before_dcp(producer: TemporaryProducer, dialect: DialectName) -> None:
    fill(producer, 6, vbucket=0)
    fill(producer, 6, vbucket=1)
    positions = {0: at(producer, 0, 6), 1: at(producer, 1, 6, boundaries=(4, 6))}
    producer.fail_over(1, 5)
    found = verdicts(producer, positions, dialect=dialect)
    assert found[0].accepted
    assert found[1].reasons == (RollbackReason.DIVERGED,)
    assert found[1].goes_on.seqno == 4


def test_the_server_does_what_was_foretold(producer: TemporaryProducer) -> None:
    with Consumer(producer.source, noop_interval=5) as reader:
        changes = iter(reader)
        for vbucket in range(VBUCKETS):
            for number in range(8):  # read one by one: each of them ends a snapshot
                producer.write(b"k%d" % number, b"1", vbucket)
                next(changes)
        position = reader.position()
    for vbucket, seqno in ((0, 0), (1, 5), (3, 7)):
        producer.fail_over(vbucket, seqno)
    foretold = verdicts(producer, position)
    expected = {vb: verdict.goes_on.seqno for vb, verdict in foretold.items() if verdict.reasons}
    assert expected == {0: 0, 1: 5, 3: 7}
    assert rollbacks(producer, position) == expected


def test_a_vbucket_that_nobody_serves(producer: TemporaryProducer) -> None:
    fill(producer, 1, vbucket=2)
    position = at(producer, 2, 1)
    producer.set_state(2, VBucketState.DEAD)
    with pytest.raises(StatusError) as refused:
        verdicts(producer, {2: position}, answer_timeout=0.5)
    assert refused.value.status is Status.NOT_MY_VBUCKET


def test_a_vbucket_that_comes_back_while_it_is_asked_for(producer: TemporaryProducer) -> None:
    fill(producer, 1, vbucket=2)
    position = at(producer, 2, 1)
    producer.set_state(2, VBucketState.DEAD)

    async def both() -> dict[int, PositionVerdict]:
        source = Source.parse(producer.source)
        asked = asyncio.create_task(probe(source, Access(), ConsumerSettings(), {2: position}))
        # long enough to be refused once, as a rule; it must not have given up in any case
        await asyncio.wait({asked}, timeout=0.5)
        assert not asked.done()
        await asyncio.to_thread(producer.set_state, 2, VBucketState.ACTIVE)
        return await asked

    assert list(asyncio.run(both())) == [2]


def test_nothing_to_ask(producer: TemporaryProducer) -> None:
    assert verdicts(producer, {}) == {}
