"""A flush reaches the copies of a bucket on other nodes through their streams."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest
from clusterkit import (
    PATIENCE,
    VB,
    Script,
    branches,
    frames,
    happens,
    high,
    make_replica,
    marker,
    mutation,
    relayed,
)
from localcluster import LocalCluster, MapClient, assert_copies_equal
from talk import Talk
from waiting import until

from upriver.cluster.replication_relay import ReplicationRelay
from upriver.errors import Status
from upriver.model import VBucketState
from upriver.producer.server_settings import PeerRelease, ServerSettings
from upriver.testing import TemporaryProducer
from upriver.wire import kv_messages as kv
from upriver.wire import messages as m
from upriver.wire.dialects import Draft001
from upriver.wire.protocol_enums import OpenFlag, StreamFlag

pytestmark = pytest.mark.story

#: As servers of April 2014 speak it.
DRAFT = Draft001(nru=True)
Pair = tuple[TemporaryProducer, TemporaryProducer]


@pytest.fixture
def nodes() -> Iterator[Pair]:
    """One whose vbucket 1 is active, and one where it is a replica."""
    old = ServerSettings(peers=PeerRelease.APRIL_2014)  # of those that do not say who they are
    with (
        TemporaryProducer(vbuckets=4, settings=old) as source,
        TemporaryProducer(vbuckets=4, settings=old) as target,
    ):
        make_replica(target)
        yield source, target


def run(story: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(story, PATIENCE))


def flush(node: Any) -> None:
    with Talk(node) as client:
        assert client.ask(kv.FlushAll()).status is Status.SUCCESS


def test_a_replica_becomes_empty_when_its_active_copy_is_flushed(nodes: Pair) -> None:
    source, target = nodes
    old = branches(source.bucket)

    async def story() -> None:
        for number in range(20):
            source.write(b"k%d" % number, b"v", VB)
        ended = asyncio.Event()
        async with relayed(source, target, on_end=lambda _: ended.set()) as relay:
            await relay.add(VB)
            await happens(lambda: high(target.bucket) == 20)
            await asyncio.to_thread(flush, source)
            await ended.wait()  # today's streams end, and the copy's next request tells it all
            assert await relay.add(VB) is Status.SUCCESS
            await happens(lambda: target.bucket.vbucket_stats(VB).items == 0)
            source.write(b"new", b"v", VB)
            await happens(lambda: high(target.bucket) == 1)

    run(story())
    assert frames(source.bucket) == frames(target.bucket)
    assert branches(target.bucket) == branches(source.bucket)
    assert not set(branches(target.bucket)) & set(old)


def test_a_replica_of_draft_001_is_emptied_by_the_message(nodes: Pair) -> None:
    source, target = nodes
    source.write(b"k", b"v", VB)
    with Talk(source, DRAFT) as above, Talk(target, DRAFT) as below:
        above.open("copy", OpenFlag.PRODUCER)
        below.open("copy", OpenFlag.CONSUMER)

        def begin() -> m.StreamRequest:
            """Has the copy ask, and passes on what it asks and what it is answered."""
            below.send(m.AddStream(vbucket=VB, opaque=77))
            request: m.StreamRequest = below.read()
            above.send(request)
            below.send(above.read())
            assert below.read() == m.AddStreamResponse(opaque=77, stream_opaque=request.opaque)
            return request

        begin()
        below.send(*above.read_until(m.Mutation))
        until(lambda: high(target.bucket) == 1)
        flush(source)
        flushed, end = above.read_until(m.StreamEnd)
        below.send(flushed)
        until(lambda: target.bucket.vbucket_stats(VB).items == 0)
        below.send(end)
        source.write(b"new", b"v", VB)
        assert begin().start == 0
        below.send(*above.read_until(m.Mutation))
        until(lambda: high(target.bucket) == 1)
    assert frames(source.bucket) == frames(target.bucket)
    assert branches(target.bucket) == branches(source.bucket)


def test_a_copy_that_is_flushed_forgets_the_name_of_what_it_had(nodes: Pair) -> None:
    """A reader of what was there must not go on with the copy once that is the active one."""
    _, node = nodes
    with Script(node) as script:
        request = script.add()
        script.accept(request, (7, 0))
        script.send(marker(request, 0, 1), mutation(request, 1))
        script.send(m.FlushStream(vbucket=VB, opaque=request.opaque))
        script.send(marker(request, 2, 2), mutation(request, 2))
        until(lambda: high(node.bucket) == 2)
    node.bucket.set_state(VB, VBucketState.ACTIVE)
    assert 7 not in branches(node.bucket)
    assert node.bucket.vbucket_stats(VB).items == 1


def test_a_takeover_is_given_up_when_the_vbucket_is_flushed(nodes: Pair) -> None:
    source, target = nodes
    source.write(b"k", b"v", VB)

    class Holding(ReplicationRelay):
        """Keeps the answer to the marker back, so that the takeover waits for it."""

        def _is_mine(self, packet: bytes) -> bool:
            return packet[:2] == b"\x81\x56" or super()._is_mine(packet)

    async def story() -> None:
        ended = asyncio.Event()
        async with relayed(source, target, on_end=lambda _: ended.set(), kind=Holding) as relay:
            await relay.add(VB, StreamFlag.TAKEOVER)
            await happens(lambda: high(target.bucket) == 1)
            await asyncio.to_thread(flush, source)
            await ended.wait()
        assert target.bucket.state(VB) is VBucketState.REPLICA
        assert source.bucket.state(VB) is VBucketState.ACTIVE
        async with relayed(source, target) as relay:
            await relay.add(VB, StreamFlag.TAKEOVER)
            await happens(lambda: target.bucket.state(VB) is VBucketState.ACTIVE)

    run(story())
    assert target.bucket.vbucket_stats(VB).items == 0


def test_a_cluster_is_flushed_node_by_node(tmp_path: Path) -> None:
    with (
        LocalCluster(tmp_path / "c", nodes=2, replicas=1, vbuckets=8) as cluster,
        MapClient(cluster) as client,
    ):
        for number in range(40):
            client.set(b"k%d" % number, b"v")
        assert_copies_equal(cluster)
        for node in cluster.state.members:
            flush(cluster.address(node.name))
        assert [client.get(b"k%d" % number) for number in range(40)] == [None] * 40
        client.set(b"new", b"v")
        assert_copies_equal(cluster)
        assert client.get(b"new") == b"v"
