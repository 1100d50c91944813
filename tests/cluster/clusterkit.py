"""What the tests of several nodes share: managers that are scripted, relays, and comparisons."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from talk import Talk
from waiting import until

from upriver.cluster import manager_credentials
from upriver.cluster.raw_connection import Endpoint
from upriver.cluster.replication_relay import ReplicationRelay
from upriver.consumer.transport.access import Access
from upriver.consumer.transport.connection_string import Address
from upriver.errors import Status
from upriver.model import FailoverEntry, VBucketState
from upriver.producer.server_settings import ServerSettings
from upriver.producer.write_lease import NodeIdentity
from upriver.session.sasl_client import ScramClient
from upriver.store import Bucket
from upriver.testing import TemporaryProducer
from upriver.wire import kv_messages as kv
from upriver.wire import messages as m
from upriver.wire.dialects import Dcp, Dialect
from upriver.wire.protocol_enums import Command, Feature, OpenFlag, StreamFlag

#: How long a test waits for something that should come; never reached when all is well.
PATIENCE = 90.0
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


# ---- a node that belongs to a cluster ----------------------------------------------------

CLUSTER, NODE = "c0ffee", "n1"
#: Seconds of a lease that no test outlives.
LONG_LEASE = 3600.0


def member_settings(directory: Path, lease: float = LONG_LEASE) -> ServerSettings:
    """Of a node whose manager is known by the secret in a directory."""
    manager_credentials.make(directory, None)
    users, _ = manager_credentials.read(directory)
    member = NodeIdentity(
        cluster=CLUSTER, node=NODE, lease=lease, epoch_file=directory / "epoch-of-node"
    )
    return ServerSettings(users=users, member=member)


def scram(talk: Talk, user: str, password: str) -> tuple[ScramClient, Any]:
    """Authenticates with SCRAM; returns the exchange and the last answer."""
    exchange = ScramClient("SCRAM-SHA512", user, password)
    begun = kv.SaslAuth(mechanism="SCRAM-SHA512", payload=exchange.first())
    challenge = talk.ask(begun).value
    proof = exchange.answer(challenge, exchange.hashing(challenge)())
    return exchange, talk.ask(kv.SaslStep(mechanism="SCRAM-SHA512", payload=proof))


def sign_in(talk: Talk, access: Access) -> None:
    """Authenticates, and checks what the node proves."""
    exchange, final = scram(talk, access.user, access.password)
    assert final.status is Status.SUCCESS, final
    exchange.check(final.value)


def manager_talk(node: TemporaryProducer, directory: Path, epoch: int = 1) -> Talk:
    """A connection of a node's manager, whose secret is in a directory, with an epoch."""
    _, access = manager_credentials.read(directory)
    talk = Talk(node)
    talk.hello(Feature.SELECT_BUCKET)
    sign_in(talk, access)
    talk.ask(kv.SelectBucket(bucket="default"))
    renew(talk, 0, epoch)
    return talk


def token(ticket: int, epoch: int = 1, node: str = NODE, cluster: str = CLUSTER) -> kv.SetCtrlToken:
    value = json.dumps({"cluster": cluster, "node": node, "ticket": ticket}).encode()
    return kv.SetCtrlToken(token=epoch, value=value)


def renew(talk: Talk, ticket: int, epoch: int = 1) -> int:
    """Renews the lease of a node; returns the next ticket."""
    answer = talk.ask(token(ticket, epoch))
    assert answer.status is Status.SUCCESS, answer
    next_ticket: int = json.loads(answer.value)["ticket"]
    return next_ticket


# ---- what a node has ---------------------------------------------------------------------


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
    kind: type[ReplicationRelay] = ReplicationRelay,
) -> AsyncIterator[ReplicationRelay]:
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
