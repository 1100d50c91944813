"""Context of one key-value request, and how refusals are encoded for its client.

It knows nothing of single commands; those are in the modules by topic.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol

from ...errors import Status, StoreError, StoreRefusal
from ...model import Datatype
from ...store import Applied, Bucket, ChangeRequest, document_key
from ...wire import kv_messages as kv
from ...wire.dialects.dcp import Dcp
from ...wire.messages import PlainResponse, Request
from ...wire.protocol_enums import Command, Feature
from ..connections.client_info import ClientInfo
from .document_locks import Locks
from .durability_requirements import CopyNames, PreparedWrite
from .handler_results import Responses

if TYPE_CHECKING:
    from .range_scans import RangeScans

logger = logging.getLogger("upriver.producer")


class NodeView(Protocol):
    """What the key-value commands need to know of the server."""

    @property
    def version(self) -> str:
        """The server version that clients receive."""

    def may_flush(self, bucket: Bucket) -> bool:
        """Whether a client may empty a bucket."""

    @property
    def durable_writes(self) -> bool:
        """Whether a write stored on this node alone satisfies every durability level."""

    def now(self) -> float:
        """Seconds since 1970, by the store's clock."""

    def cluster_map(self, client: ClientInfo) -> bytes:
        """Returns the cluster map sent with NOT_MY_VBUCKET as JSON; empty if the client has it."""

    def statistics(
        self, client: ClientInfo, group: str, argument: str
    ) -> Iterable[tuple[str, str]] | None:
        """Returns the statistics of a group that the server has; None if it has no such group."""

    def reset_statistics(self, client: ClientInfo) -> None:
        """Resets the counters of the bucket to 0."""

    def set_topology(self, bucket: Bucket, vbucket: int, copies: CopyNames | None) -> None:
        """Sets the copies of an active vbucket as Set VBucket named them; None if it named none."""

    def set_persistence(self, bucket: Bucket, *, running: bool) -> None:
        """Stops or starts writing to disk, for tests. May raise a `StoreRefusal`."""


#: Used only for command names, which are the same with and without collections.
_DIALECT: Final = Dcp()
_commands: dict[tuple[Any, ...], Command | int] = {}

#: Statuses whose error response includes the uid of the manifest that led to the refusal.
_BY_MANIFEST: Final = frozenset({Status.UNKNOWN_COLLECTION, Status.UNKNOWN_SCOPE})
#: Statuses that only clients with extended errors understand.
_ABOUT_LOCKS: Final = frozenset({Status.LOCKED, Status.NOT_LOCKED})


@dataclass(slots=True)
class Call:
    """One request of one client on one bucket."""

    node: NodeView
    client: ClientInfo
    bucket: Bucket
    locks: Locks
    request: Request
    #: The open range scans of the bucket.
    scans: RangeScans
    #: Set if the write must be durable: the change is prepared now and committed later.
    durable: PreparedWrite | None = None

    def write(self, change: ChangeRequest) -> Applied:
        """Makes or prepares a change. Waits for the commit, so it must run in a thread."""
        if self.durable is None:
            return self.bucket.write(change)
        self.durable.prepared = self.bucket.write(self.durable.wrap(change))
        return self.durable.prepared

    @property
    def command(self) -> Command | int:
        """The command named in the response. It depends on the request's type and a few fields."""
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
        """Returns a response without a layout of its own."""
        return PlainResponse(
            opaque=self.request.opaque, command=self.command, value=value, **fields
        )

    def json(self, document: Any) -> PlainResponse:
        """Returns a response whose value is JSON."""
        text = json.dumps(document, separators=(",", ":")).encode()
        return self.plain(text, datatype=self.json_datatype)

    @property
    def json_datatype(self) -> Datatype:
        """The datatype of JSON values for this client: raw if it did not negotiate JSON."""
        return Datatype.JSON if self.has(Feature.JSON) else Datatype.RAW

    def token(self, done: Applied) -> tuple[int, int] | tuple[None, None]:
        """Returns the vbuuid and seqno of a write, for clients that negotiated mutation tokens."""
        if not self.has(Feature.MUTATION_SEQNO):
            return None, None
        return self.bucket.failover_log(done.vbucket).newest.vbuuid, done.seqno

    def refused(self, error: StoreError) -> Responses:
        """Returns the response to a request that was refused.

        Raises the error of a write that may be stored all the same: the connection is then closed,
        by which the client knows that the result is unknown.
        """
        if error.is_ambiguous:
            raise error
        if isinstance(error, StoreRefusal):
            status, context = error.status, error.rule
        else:
            # Details of a disk problem are for the operator of the server, so they go into the log
            # only. The store logs a temporary problem, such as a full disk, itself and once.
            later = getattr(error, "is_temporary", False)
            level = logging.DEBUG if later else logging.ERROR
            logger.log(level, "%s failed for %s: %s", self.command, self.client.peer, error)
            status = Status.TEMPORARY_FAILURE if later else Status.INTERNAL
            context = "the bucket cannot do this now"
        if status is Status.NOT_MY_VBUCKET:
            cluster_map = self.node.cluster_map(self.client)
            datatype = self.json_datatype if cluster_map else Datatype.RAW
            return (self.plain(cluster_map, status=status, datatype=datatype),)
        if status in _ABOUT_LOCKS and not self.has(Feature.XERROR):
            status = Status.TEMPORARY_FAILURE  # older clients do not know the status, and retry
        body: dict[str, Any] = {"error": {"context": context}}
        if status in _BY_MANIFEST:
            body["manifest_uid"] = f"{self.bucket.manifest.uid:x}"
        value = json.dumps(body, separators=(",", ":")).encode()
        return (self.plain(value, status=status, datatype=self.json_datatype),)


def key_of(request: kv.DocumentRequest) -> bytes:
    """Returns a document's key as the store expects it: without collections, in the default one."""
    collection = request.collection
    return document_key(request.key, collection) if collection else b"\0" + request.key
