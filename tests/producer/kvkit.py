"""What the tests of the key-value front end share: a node, a client, and one way to ask.

Every request and every response goes through the codec, so nothing is tested that could not
travel. Nothing waits: writes are committed at once, and the clock moves only when told to.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from upriver.errors import Status, StoreRefusal
from upriver.producer.connections.client_info import ClientInfo
from upriver.producer.keyvalue import Answer, Blocking, KeyValue, Later, Now, Responses, Several
from upriver.producer.keyvalue.durability_requirements import CopyNames
from upriver.store import Bucket, BucketSettings, Store
from upriver.wire import kv_messages as kv
from upriver.wire.dialects.dcp import Dcp
from upriver.wire.messages import PlainResponse, Request, Response
from upriver.wire.protocol_enums import Feature

MODERN = frozenset(
    {
        Feature.MUTATION_SEQNO,
        Feature.XATTR,
        Feature.XERROR,
        Feature.SNAPPY,
        Feature.JSON,
        Feature.COLLECTIONS,
    }
)


@dataclass
class Node:
    """A server around the front end, as plain as possible."""

    version: str = "7.6.0-0000-enterprise"
    flush_allowed: bool = True
    durable_writes: bool = False
    seconds: float = 1_700_000_000.0
    persistence: list[bool] = field(default_factory=list)
    resets: int = 0
    topology: CopyNames | None = None

    def now(self) -> float:
        return self.seconds

    def may_flush(self, bucket: Bucket) -> bool:
        return self.flush_allowed

    def wall(self) -> int:
        return int(self.seconds * 1_000_000_000)

    def cluster_map(self, client: ClientInfo) -> bytes:
        return b'{"rev":7}'

    def statistics(
        self, client: ClientInfo, group: str, argument: str
    ) -> Iterable[tuple[str, str]] | None:
        known = {"": [("uptime", "5")], "dcp": [("ep_dcp_count", "1")]}
        return [("status", "backfilling")] if group == "dcp-vbtakeover" else known.get(group)

    def reset_statistics(self, client: ClientInfo) -> None:
        self.resets += 1

    def set_topology(self, bucket: Bucket, vbucket: int, copies: CopyNames | None) -> None:
        self.topology = copies

    def set_persistence(self, bucket: Bucket, *, running: bool) -> None:
        if running in self.persistence[-1:]:
            raise StoreRefusal(Status.NOT_SUPPORTED, "it already is")
        self.persistence.append(running)


class Desk:
    """One client at the front end of a node with one bucket."""

    def __init__(self, bucket: Bucket, node: Node) -> None:
        self.bucket = bucket
        self.node = node
        self.keyvalue = KeyValue(node)
        self.client = ClientInfo(peer="test")
        self.negotiate(MODERN)

    def negotiate(self, features: frozenset[Feature]) -> None:
        self.client = ClientInfo(peer="test", features=features, bucket=self.bucket)
        self.dialect = Dcp(collections=Feature.COLLECTIONS in features)
        self.collection = 0 if self.dialect.collections else None

    def without(self, *features: Feature) -> None:
        self.negotiate(MODERN - frozenset(features))

    def answer(self, request: Request) -> Answer:
        decoded = self.dialect.decode(self.dialect.encode(request))
        assert isinstance(decoded, Request)
        return self.keyvalue.answer(self.client, decoded)

    def run(self, answer: Answer) -> Responses:
        if isinstance(answer, Now):
            return answer.responses
        if isinstance(answer, Several):
            return tuple(response for step in answer.steps for response in step)
        if isinstance(answer, Blocking):
            return answer.call()
        if isinstance(answer, Later):
            return answer.poll() or ()
        (outcome,) = self.bucket.submit([answer.change]).result()
        return answer.respond(outcome)

    def ask_all(self, request: Request) -> list[Any]:
        """Every response to a request."""
        heard = [
            self.dialect.decode(self.dialect.encode(response))
            for response in self.run(self.answer(request))
        ]
        for response in heard:
            assert isinstance(response, Response)
            assert response.opaque == request.opaque
            assert response.command == self.dialect.command_of(request)
        return heard

    def ask(self, request: Request) -> Any:
        """The one response to a request."""
        (response,) = self.ask_all(request)
        return response

    def document(self, kind: type[Any], key: bytes = b"k", **fields: Any) -> Any:
        """The response to a request about a document of the default collection."""
        fields.setdefault("collection", self.collection)
        return self.ask(kind(key=key, opaque=7, **fields))

    def get(self, key: bytes = b"k", **fields: Any) -> Any:
        return self.document(kv.Get, key, **fields)

    def set(self, value: bytes = b"v", key: bytes = b"k", **fields: Any) -> Any:
        return self.document(kv.Set, key, value=value, **fields)


def context(response: PlainResponse) -> str:
    """Why a request was refused, as its client is told."""
    told: str = json.loads(response.value)["error"]["context"]
    assert told
    return told


@contextmanager
def open_desk(path: Path, **settings: Any) -> Iterator[Desk]:
    node = Node()
    settings = {"vbuckets": 4, "maintenance_interval": 0, **settings}
    with Store(path / "store", wall=node.wall) as store:
        bucket = store.create_bucket("b", BucketSettings(**settings))
        yield Desk(bucket, node)
        assert bucket.verify() == []
