"""Two nodes and a relay between them: copies that are equal, takeover, failover, rollback."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Iterator
from typing import Any

import cramjam
import pytest
from clusterkit import (
    PATIENCE,
    VB,
    branches,
    decoded,
    endpoint,
    frames,
    happens,
    high,
    make_replica,
    relayed,
)
from talk import Talk

from upriver.cluster.replication_relay import ReplicationRelay
from upriver.cluster.replicator import Replicator
from upriver.errors import Status, StoreRefusal
from upriver.model import NO_END, Op, StreamEndReason, VBucketState
from upriver.producer.server_settings import ServerSettings
from upriver.store import Applied, DeleteDocument, SetDocument, WithMeta, document_key
from upriver.testing import TemporaryProducer
from upriver.wire import messages as m
from upriver.wire.dialects import Draft000, Draft001
from upriver.wire.protocol_enums import Command, MarkerFlag, OpenFlag, StreamFlag
from upriver.wire.values import join_xattrs

ACTIVE, DEAD = VBucketState.ACTIVE, VBucketState.DEAD


@pytest.fixture
def nodes() -> Iterator[tuple[TemporaryProducer, TemporaryProducer]]:
    """One whose vbucket 1 is active, and one where it is a replica."""
    with TemporaryProducer(vbuckets=4) as source, TemporaryProducer(vbuckets=4) as target:
        make_replica(target)
        yield source, target


Pair = tuple[TemporaryProducer, TemporaryProducer]


def run(story: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(story, PATIENCE))


async def copied(source: TemporaryProducer, target: TemporaryProducer, vbucket: int = VB) -> None:
    await happens(lambda: high(source.bucket, vbucket) == high(target.bucket, vbucket))


def test_a_copy_equals_the_original_byte_by_byte(nodes: Pair) -> None:
    source, target = nodes
    scope = source.bucket.create_scope("shop")
    orders = source.bucket.create_collection(scope.id, "orders")

    def write_all(round_: int) -> None:
        text = b'{"round":%d}' % round_
        bucket = source.bucket
        for number in range(50):
            bucket.write(SetDocument(VB, b"\0k%d" % number, text, flags=7, datatype=1))
        bucket.write(
            SetDocument(VB, b"\0packed", bytes(cramjam.snappy.compress_raw(text * 9)), datatype=3)
        )
        bucket.write(
            SetDocument(VB, b"\0tagged", join_xattrs({"_s": b"1", "u": b"2"}, text), datatype=5)
        )
        bucket.write(SetDocument(VB, document_key(b"o", orders.id), text))
        bucket.write(SetDocument(VB, b"\0late", text, expiry=4_000_000_000))
        bucket.write(DeleteDocument(VB, b"\0k%d" % round_))
        bucket.write(DeleteDocument(VB, b"\0tagged"))  # which keeps an attribute
        gone = WithMeta(VB, b"\0gone", Op.EXPIRATION, 5 + round_, 99 + round_, time=1234)
        bucket.write(gone)

    async def story() -> None:
        write_all(1)
        async with relayed(source, target) as relay:
            assert await relay.add(VB) is Status.SUCCESS
            await copied(source, target)
            write_all(2)
            source.bucket.drop_collection(orders.id)
            source.bucket.create_collection(scope.id, "more", max_ttl=60)
            write_all_but_orders()
            await copied(source, target)

    def write_all_but_orders() -> None:
        source.bucket.write(SetDocument(VB, b"\0after", b"the drop"))

    run(story())
    assert b"".join(frames(source.bucket)) == b"".join(frames(target.bucket))
    assert branches(source.bucket) == branches(target.bucket)
    assert target.bucket.verify() == []


def test_the_recorded_takeover_message_by_message(nodes: Pair) -> None:
    source, target = nodes
    for number in range(5):
        source.write(b"k%d" % number, b"v", VB)
    seen: list[tuple[str, Any]] = []
    branch = branches(source.bucket)

    def watch(from_source: bool, packet: bytes) -> None:
        seen.append(("src" if from_source else "dst", decoded(packet)))

    async def story() -> None:
        ended = asyncio.Event()
        async with relayed(source, target, watch=watch, on_end=lambda _: ended.set()) as relay:
            assert await relay.add(VB, StreamFlag.TAKEOVER) is Status.SUCCESS
            await ended.wait()

    run(story())
    of_source = [message for side, message in seen if side == "src"]
    of_target = [message for side, message in seen if side == "dst"]
    opaque = next(x.opaque for x in of_target if isinstance(x, m.StreamRequest))
    # 1 and 2: controls without waiting, then the request
    assert [type(x) for x in of_target[:5]] == [m.Control] * 4 + [m.StreamRequest]
    request = of_target[4]
    assert (request.flags, request.start, request.end) == (StreamFlag.TAKEOVER, 0, NO_END)
    assert (request.snapshot_start, request.snapshot_end) == (0, 0)
    # 3 and 4: their answers, the marker that asks to be answered, the items
    assert [x.status for x in of_source[:4]] == [Status.SUCCESS] * 4
    accepted, marker = of_source[4:6]
    assert [entry.vbuuid for entry in accepted.failover_log] == branch
    assert (marker.start, marker.end, bool(marker.flags & MarkerFlag.ACK)) == (0, 5, True)
    assert [x.seqno for x in of_source[6:11]] == [1, 2, 3, 4, 5]
    # 5 and 6: Add Stream is settled; the marker's answer comes after the last item
    assert m.AddStreamResponse(opaque=1, stream_opaque=opaque) in of_target
    last_item = seen.index(("src", of_source[10]))
    ack = next(
        place
        for place, (side, x) in enumerate(seen)
        if side == "dst" and isinstance(x, m.PlainResponse) and x.command is Command.SNAPSHOT_MARKER
    )
    assert ack > last_item
    # 7 and 8: pending and its answer, active and its answer, the end
    rest = [
        (side, getattr(x, "state", None) or getattr(x, "reason", None))
        for side, x in seen[ack + 1 :]
        if not isinstance(x, m.BufferAck)
    ]
    assert rest == [
        ("src", VBucketState.PENDING),
        ("dst", None),
        ("src", ACTIVE),
        ("dst", None),
        ("src", StreamEndReason.OK),
    ]
    assert (source.bucket.state(VB), target.bucket.state(VB)) == (DEAD, ACTIVE)
    assert branches(target.bucket) == branch


def test_a_takeover_under_writes_loses_nothing_and_doubles_nothing() -> None:
    settings = ServerSettings(takeover_time=0.2)
    with (
        TemporaryProducer(vbuckets=4, settings=settings) as source,
        TemporaryProducer(vbuckets=4) as target,
    ):
        make_replica(target)
        branch = branches(source.bucket)
        acknowledged: list[list[tuple[int, bytes]]] = [[] for _ in range(4)]
        refused: set[Status] = set()
        finished = threading.Event()

        def write(number: int) -> None:
            """Writes as fast as it can, where the vbucket is, until it has moved and a bit on."""
            count = after = 0
            while after < 20 and not finished.is_set():
                for node in (source, target):
                    key = b"\0w%d-%d" % (number, count)
                    try:
                        done = node.bucket.write(SetDocument(VB, key, b"%d" % count))
                    except StoreRefusal as refusal:
                        refused.add(refusal.status)
                        continue
                    assert isinstance(done, Applied)
                    acknowledged[number].append((done.seqno, key))
                    count += 1
                    after += node is target

        writers = [threading.Thread(target=write, args=(number,)) for number in range(4)]

        async def story() -> None:
            ended = asyncio.Event()
            async with relayed(source, target, on_end=lambda _: ended.set()) as relay:
                for writer in writers:
                    writer.start()
                await happens(lambda: high(source.bucket) > 50)
                assert await relay.add(VB, StreamFlag.TAKEOVER) is Status.SUCCESS
                await ended.wait()

        try:
            run(story())
        finally:
            for writer in writers:
                writer.join(PATIENCE)
            finished.set()
        assert (source.bucket.state(VB), target.bucket.state(VB)) == (DEAD, ACTIVE)
        assert branches(target.bucket) == branch
        everything = [pair for pairs in acknowledged for pair in pairs]
        assert len({seqno for seqno, _ in everything}) == len(everything) == high(target.bucket)
        for seqno, key in everything:
            assert target.bucket.meta(VB, key).seqno == seqno
        assert refused <= {Status.NOT_MY_VBUCKET, Status.TEMPORARY_FAILURE}


def test_writers_are_held_only_as_long_as_a_takeover_lives() -> None:
    """A consumer that never answers markers holds writers; when it goes they are let in again."""
    with TemporaryProducer(vbuckets=4, settings=ServerSettings(takeover_time=0)) as source:
        source.write(b"k", b"v", VB)
        with Talk(source) as talk:
            talk.open("slow", OpenFlag.PRODUCER)
            request = m.StreamRequest(vbucket=VB, start=0, end=NO_END, flags=StreamFlag.TAKEOVER)
            talk.ask(request)
            talk.read_until(m.Mutation)

            def is_held() -> bool:
                try:
                    source.write(b"again", b"v", VB)
                except StoreRefusal as refusal:
                    return refusal.status is Status.TEMPORARY_FAILURE
                return False

            asyncio.run(happens(is_held))
        asyncio.run(happens(lambda: not is_held()))


@pytest.mark.parametrize("dialect", [Draft001(), Draft000()])
def test_drafts_hand_a_vbucket_over_without_waiting_for_answers(
    nodes: Pair, dialect: Draft001 | Draft000
) -> None:
    source, _ = nodes
    source.write(b"k", b"v", VB)
    with Talk(source, dialect) as talk:
        if isinstance(dialect, Draft001):
            talk.ask(m.Open(name="old", flags=OpenFlag.PRODUCER))
        talk.send(
            m.StreamRequest(vbucket=VB, opaque=9, start=0, end=NO_END, flags=StreamFlag.TAKEOVER)
        )
        told = talk.read_until(m.StreamEnd)
    states = [x.state for x in told if isinstance(x, m.SetStreamState)]
    assert states == [VBucketState.PENDING, ACTIVE]
    assert told[-1].reason is StreamEndReason.OK
    assert source.bucket.state(VB) is DEAD


def test_an_old_active_copy_takes_back_what_its_replica_never_had(nodes: Pair) -> None:
    """The replica lags, is promoted, takes writes; the old one comes back, rolls back, follows."""
    old, new = nodes

    async def story() -> None:
        async with relayed(old, new) as relay:
            await relay.add(VB)
            for number in range(20):
                old.write(b"k%d" % (number % 7), b"kept %d" % number, VB)
            await copied(old, new)
        kept = high(new.bucket)
        for number in range(30):  # with nobody to copy them
            old.write(b"k%d" % (number % 9), b"lost %d" % number, VB)
        old.delete(b"k1", VB)
        new.bucket.set_state(VB, ACTIVE)
        assert new.bucket.failover_log(VB).newest.seqno == kept
        for number in range(10):
            new.write(b"k%d" % (number % 3), b"new %d" % number, VB)
        make_replica(old)
        asked: list[Any] = []

        def watch(from_source: bool, packet: bytes) -> None:
            message = decoded(packet)
            if isinstance(message, m.StreamRequest | m.StreamRollback):
                asked.append(message)

        async with relayed(new, old, watch=watch) as relay:
            assert await relay.add(VB) is Status.SUCCESS
            await copied(new, old)
        # it went back exactly to the fork, and not to the beginning
        assert [type(x) for x in asked] == [m.StreamRequest, m.StreamRollback, m.StreamRequest]
        assert asked[1].seqno == asked[2].start == kept

    run(story())
    assert b"".join(frames(old.bucket)) == b"".join(frames(new.bucket))
    assert branches(old.bucket) == branches(new.bucket)
    assert len(branches(old.bucket)) == 2
    assert old.bucket.verify() == []


def test_an_old_copy_without_history_begins_anew() -> None:
    with TemporaryProducer(vbuckets=4) as old, TemporaryProducer(vbuckets=4) as new:
        make_replica(new)

        async def story() -> None:
            old.write(b"a", b"1", VB)
            async with relayed(old, new) as relay:
                await relay.add(VB)
                await copied(old, new)
            old.write(b"lost", b"2", VB)
            old.delete(b"a", VB)
            old.write(b"last", b"3", VB)
            old.purge()  # which takes the history below the tombstone with it
            new.bucket.set_state(VB, ACTIVE)
            new.write(b"b", b"4", VB)
            make_replica(old)
            async with relayed(new, old) as relay:
                await relay.add(VB)
                await copied(new, old)

        run(story())
        assert b"".join(frames(old.bucket)) == b"".join(frames(new.bucket))


def test_many_vbuckets_go_over_one_connection() -> None:
    with TemporaryProducer(vbuckets=16) as source, TemporaryProducer(vbuckets=16) as target:
        for number in range(800):
            source.write(b"key-%d" % number, b"value-%d" % number)
        for vbucket in range(16):
            make_replica(target, vbucket)

        async def story() -> None:
            async with relayed(source, target) as relay:
                statuses = await asyncio.gather(*map(relay.add, range(16)))
                assert set(statuses) == {Status.SUCCESS}
                for vbucket in range(16):
                    await copied(source, target, vbucket)

        run(story())
        for vbucket in range(16):
            there = b"".join(frames(source.bucket, vbucket))
            assert there == b"".join(frames(target.bucket, vbucket))


def test_a_replica_serves_streams_too(nodes: Pair) -> None:
    """A chain: a copy of a copy is the same."""
    source, middle = nodes
    with TemporaryProducer(vbuckets=4) as last:
        make_replica(last)

        async def story() -> None:
            async with relayed(source, middle) as first, relayed(middle, last) as second:
                await first.add(VB)
                source.write(b"a", b"1", VB)
                await copied(source, middle)
                await second.add(VB)
                source.write(b"b", b"2", VB)
                await copied(source, last)

        run(story())
        assert b"".join(frames(source.bucket)) == b"".join(frames(last.bucket))


def test_an_answer_to_add_stream_never_reaches_the_producer(nodes: Pair) -> None:
    source, target = nodes

    async def story() -> None:
        async with relayed(source, target) as relay:
            assert await relay.add(VB) is Status.SUCCESS
            assert await relay.add(VB) is Status.EXISTS
            assert await relay.close_stream(VB) is Status.SUCCESS
            assert await relay.close_stream(VB) is Status.NOT_FOUND
            assert await relay.add(VB) is Status.SUCCESS
            source.write(b"k", b"v", VB)
            await copied(source, target)

    run(story())


# ---- faults of ours ----------------------------------------------------------------------


def test_a_fault_does_not_end_replication(
    nodes: tuple[TemporaryProducer, TemporaryProducer],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A replicator that ended would leave its replicas behind without a word."""
    real, faults = ReplicationRelay._down, [RuntimeError("a fault"), RuntimeError("another")]

    async def down(self: ReplicationRelay) -> None:
        if faults:
            raise faults.pop()
        await real(self)

    monkeypatch.setattr(ReplicationRelay, "_down", down)

    async def replicate(source: TemporaryProducer, target: TemporaryProducer) -> None:
        replicator = Replicator(endpoint(source), endpoint(target), "faulty")
        replicator.want([VB])
        try:
            await happens(lambda: high(target.bucket) == 1)
        finally:
            await replicator.stop()

    source, target = nodes
    source.bucket.write(SetDocument(VB, b"\0k", b"v"))
    asyncio.run(replicate(source, target))
    assert "the relay failed" in caplog.text
