"""What the tests of several nodes share: managers that are scripted, relays, and comparisons."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from serverkit import until
from talk import Talk

from upriver.cluster.relay import Relay
from upriver.cluster.wires import Endpoint
from upriver.consumer.access import Access
from upriver.consumer.source import Address
from upriver.model import FailoverEntry, VBucketState
from upriver.store import Bucket
from upriver.testing import TemporaryProducer
from upriver.wire import messages as m
from upriver.wire.dialects import Dcp, Dialect
from upriver.wire.names import Command, Feature, OpenFlag, StreamFlag

#: How long a test waits for something that should come; never reached when all is well.
PATIENCE = 30.0
#: The vbucket of most tests.
VB = 1


class Script(Talk):
    """A test that is manager and producer at once, to a node that it opened as a consumer."""

    def __init__(self, node: TemporaryProducer, name: str = "script") -> None:
        super().__init__(node)
        self.hello(Feature.COLLECTIONS, Feature.XATTR, Feature.SNAPPY, Feature.JSON)
        self.open(name, OpenFlag.CONSUMER)

    def add(self, vbucket: int = VB, flags: StreamFlag = StreamFlag.NONE) -> m.StreamRequest:
        """Sends Add Stream under the opaque 77, answers controls, and returns what is asked."""
        self.send(m.AddStream(vbucket=vbucket, flags=flags, opaque=77))
        while True:
            message = self.read()
            if isinstance(message, m.StreamRequest):
                return message
            assert isinstance(message, m.Control), message
            self.send(m.PlainResponse(command=Command.CONTROL, opaque=message.opaque))

    def accept(self, request: m.StreamRequest, *log: tuple[int, int]) -> None:
        """Accepts a stream; reads that this settled its Add Stream."""
        entries = tuple(FailoverEntry(*pair) for pair in log or ((7, 0),))
        self.send(m.StreamAccepted(opaque=request.opaque, failover_log=entries))
        assert self.read() == m.AddStreamResponse(opaque=77, stream_opaque=request.opaque)


def mutation(
    request: m.StreamRequest, seqno: int, key: bytes = b"", value: bytes = b"v"
) -> m.Mutation:
    """A change on a stream."""
    return m.Mutation(
        vbucket=request.vbucket,
        opaque=request.opaque,
        seqno=seqno,
        key=key or b"k%d" % seqno,
        value=value,
        rev=seqno + 1,
        cas=1000 + seqno,
        collection=0,
    )


def marker(request: m.StreamRequest, start: int, end: int, **more: Any) -> m.SnapshotMarker:
    return m.SnapshotMarker(
        vbucket=request.vbucket, opaque=request.opaque, start=start, end=end, **more
    )


def frames(bucket: Bucket, vbucket: int = VB) -> list[bytes]:
    """Every stored change of a vbucket as it is stored, by seqno."""
    with bucket.open_reader(vbucket) as reader:
        return [chunk.frames for chunk in reader]


def high(bucket: Bucket, vbucket: int = VB) -> int:
    return bucket.vbucket_stats(vbucket).high_seqno


def branches(bucket: Bucket, vbucket: int = VB) -> list[int]:
    return [entry.vbuuid for entry in bucket.failover_log(vbucket)]


def make_replica(node: TemporaryProducer, vbucket: int = VB) -> None:
    node.bucket.set_state(vbucket, VBucketState.REPLICA)


def endpoint(node: TemporaryProducer) -> Endpoint:
    return Endpoint(Address(node.host, node.port), "default", Access())


@asynccontextmanager
async def relayed(
    source: TemporaryProducer,
    target: TemporaryProducer,
    *,
    name: str = "relay",
    watch: Callable[[bool, bytes], None] | None = None,
    on_end: Callable[[int], None] = lambda vbucket: None,
    kind: type[Relay] = Relay,
) -> AsyncIterator[Relay]:
    """A relay between two nodes."""
    relay = await kind.open(endpoint(source), endpoint(target), name, on_end, watch)
    passing = asyncio.create_task(relay.run())
    try:
        yield relay
    finally:
        relay.close()
        passing.cancel()
        await asyncio.gather(passing, return_exceptions=True)


async def happens(condition: Callable[[], bool]) -> None:
    """Waits for something without holding up the relay."""
    await asyncio.to_thread(until, condition)


def decoded(packet: bytes, dialect: Dialect | None = None) -> Any:
    return (dialect or Dcp(collections=True)).decode(packet)
