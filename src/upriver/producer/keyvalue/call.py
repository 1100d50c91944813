"""One request, with all that its answer depends on, and how refusals look to its client.

It knows nothing of single commands; those are in the modules by topic.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol

from ...errors import Status, StoreClosed, StoreError, StoreFull, StoreRefusal
from ...model import Datatype
from ...store import Applied, Bucket, document_key
from ...wire import kv
from ...wire.dialects.dcp import Dcp
from ...wire.messages import PlainResponse, Request
from ...wire.names import Command, Feature
from ..client import Client
from .answers import Responses
from .locks import Locks

__all__ = ["Call", "NodeView", "key_of"]

logger = logging.getLogger("upriver.producer")


class NodeView(Protocol):
    """What the front end must know of the server around it."""

    @property
    def version(self) -> str:
        """The server's version as clients are told it."""

    @property
    def flush_allowed(self) -> bool:
        """Whether a client may empty its bucket."""

    @property
    def durable_writes(self) -> bool:
        """Whether a write that this node stored is as safe as any durability level asks for."""

    def now(self) -> float:
        """Seconds since 1970, by the clock of the store."""

    def cluster_map(self, client: Client) -> bytes:
        """What comes with NOT_MY_VBUCKET: the map as JSON, or nothing if the client has it."""

    def statistics(self, client: Client, group: str, argument: str) -> Mapping[str, str] | None:
        """What only the server knows of a group; None if it does not know the group."""

    def reset_statistics(self, client: Client) -> None:
        """Sets the counters of the bucket back to 0."""

    def set_persistence(self, bucket: Bucket, *, running: bool) -> None:
        """Stops or starts writing to disk, for tests; may raise a `StoreRefusal`."""


#: Only for the names of commands, which are the same with and without collections.
_DIALECT: Final = Dcp()
_commands: dict[tuple[Any, ...], Command | int] = {}

#: What the rest of an error reply says of the manifest, where that is why it was refused.
_BY_MANIFEST: Final = frozenset({Status.UNKNOWN_COLLECTION, Status.UNKNOWN_SCOPE})


@dataclass(slots=True)
class Call:
    """One request of one client on one bucket."""

    node: NodeView
    client: Client
    bucket: Bucket
    locks: Locks
    request: Request

    @property
    def command(self) -> Command | int:
        """The request's name for the answer. It depends on its type and a few of its marks only."""
        request = self.request
        marks = (
            type(request),
            getattr(request, "command", None) or getattr(request, "opcode", None),
            getattr(request, "quiet", False),
            getattr(request, "with_key", False),
            getattr(request, "add_only", False),
        )
        command = _commands.get(marks)
        if command is None:
            command = _commands[marks] = _DIALECT.command_of(request)
        return command

    def has(self, feature: Feature) -> bool:
        return feature in self.client.features

    def plain(self, value: bytes = b"", **fields: Any) -> PlainResponse:
        """An answer without a layout of its own."""
        return PlainResponse(
            opaque=self.request.opaque, command=self.command, value=value, **fields
        )

    def json(self, document: Any) -> PlainResponse:
        """An answer that is JSON."""
        text = json.dumps(document, separators=(",", ":")).encode()
        return self.plain(text, datatype=self.json_datatype)

    @property
    def json_datatype(self) -> Datatype:
        """The datatype of JSON for this client."""
        return Datatype.JSON if self.has(Feature.JSON) else Datatype.RAW

    def token(self, done: Applied) -> tuple[int, int] | tuple[None, None]:
        """The branch and seqno of a write, for clients that asked for them."""
        if not self.has(Feature.MUTATION_SEQNO):
            return None, None
        return self.bucket.failover_log(done.vbucket).newest.vbuuid, done.seqno

    def refused(self, error: StoreError) -> Responses:
        """The answer to a request that cannot be met."""
        if isinstance(error, StoreRefusal):
            status, context = error.status, error.rule
        else:
            # What is wrong with a disk is the owner's business: it goes into the log only.
            logger.error("%s failed for %s: %s", self.command, self.client.peer, error)
            later = isinstance(error, StoreClosed | StoreFull)
            status = Status.TEMPORARY_FAILURE if later else Status.INTERNAL
            context = "the bucket cannot do this now"
        if status is Status.NOT_MY_VBUCKET:
            cluster_map = self.node.cluster_map(self.client)
            datatype = self.json_datatype if cluster_map else Datatype.RAW
            return (self.plain(cluster_map, status=status, datatype=datatype),)
        if status is Status.LOCKED and not self.has(Feature.XERROR):
            status = Status.TEMPORARY_FAILURE  # older clients know no better, and try again
        told: dict[str, Any] = {"error": {"context": context}}
        if status in _BY_MANIFEST:
            told["manifest_uid"] = f"{self.bucket.manifest.uid:x}"
        value = json.dumps(told, separators=(",", ":")).encode()
        return (self.plain(value, status=status, datatype=self.json_datatype),)


def key_of(request: kv.DocumentRequest) -> bytes:
    """A document's key as the store wants it. Without collections it is in the default one."""
    collection = request.collection
    return document_key(request.key, collection) if collection else b"\0" + request.key
