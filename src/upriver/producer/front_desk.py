"""What a client says before it works: who it is, what it can, which bucket, where things are.

It answers what concerns the connection as a whole and checks rights for everything else.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from ..errors import DecodeError, Status, StoreRefusal
from ..model import Datatype
from ..wire import kv
from ..wire import messages as m
from ..wire.dialects import Dialect
from ..wire.frameinfo import UnknownFrameInfo
from ..wire.header import Header
from ..wire.names import Command, Feature, OpenFlag
from . import error_map, hello, sasl
from .client import Client
from .durability import durability_of
from .hello import ServerFeatures
from .keyvalue import ADMINISTERS, READS, STREAMS, WRITES
from .node import GivenMap, Node
from .users import Role

__all__ = ["STREAM_COMMANDS", "Delayed", "Elsewhere", "FrontDesk"]

logger = logging.getLogger("upriver.producer")

_ROLES: Final = (
    (READS, Role.READ_DATA),
    (WRITES, Role.WRITE_DATA),
    (ADMINISTERS, Role.ADMINISTER),
    (STREAMS, Role.READ_STREAM),
)
#: The commands of the change stream, whichever side they are for and whichever draft has them.
STREAM_COMMANDS: Final = {command for command in Command if command.from_server} - {
    Command.CLUSTERMAP_CHANGED
} | {
    Command.OPEN,
    Command.ADD_STREAM,
    Command.CLOSE_STREAM,
    Command.STREAM_REQUEST,
    Command.FAILOVER_LOG,
    Command.BUFFER_ACK,
    Command.CONTROL,
    Command.SEQNO_ACKNOWLEDGED,
    Command.RESPONSE_ERROR,
}


#: What a node can only answer once it knows which vbuckets are its own.
_OWN_DATA: Final = ((READS | WRITES) - ADMINISTERS) | {Command.STREAM_REQUEST}


@dataclass(frozen=True, slots=True)
class Delayed:
    """An answer that waits, so that guessing passwords is slow."""

    seconds: float
    messages: list[m.Message]


@dataclass(frozen=True, slots=True)
class Elsewhere:
    """An answer that takes long to work out, in a thread of its own."""

    call: Callable[[], list[m.Message] | Delayed]


class FrontDesk:
    """The desk of one connection."""

    def __init__(self, node: Node, client: Client) -> None:
        self._node = node
        self._client = client
        self._exchange: sasl.Exchange | None = None
        #: Whose map the client was sent last; the cluster's and a bucket's have one revision.
        self._map_sent: str | None = None

    @property
    def may_set(self) -> bool:
        """Whether the client may write documents of its bucket."""
        return self._node.serves and self._allowed(None)

    def may_write(self, request: m.Request) -> bool:
        """Whether a request can go straight to the documents of the client's bucket."""
        return isinstance(request, _DOCUMENTS) and self.may_set and durability_of(request) is None

    def answer(
        self, request: m.Request, dialect: Dialect
    ) -> list[m.Message] | Delayed | Elsewhere | None:
        """The answer to what concerns the connection; None if the request is for another desk."""
        unknown = next((x for x in request.frames if isinstance(x, UnknownFrameInfo)), None)
        if unknown is not None:
            text = f"there is no frame info {unknown.id}"
            return [self._refusal(request, dialect, Status.UNKNOWN_FRAME_INFO, text)]
        match request:
            case kv.Hello():
                return [self._hello(request)]
            case kv.SaslListMechanisms():
                offered = " ".join(self._node.mechanisms(self._client))
                return [_plain(request, dialect, value=offered.encode())]
            case kv.SaslAuth(mechanism=sasl.PLAIN):
                return Elsewhere(lambda: self._authenticate(request))  # it hashes for long
            case kv.SaslAuth() | kv.SaslStep():
                return self._authenticate(request)
            case kv.Noop():
                return [_plain(request, dialect)]
            case kv.Version():
                return [_plain(request, dialect, value=self._node.version.encode())]
            case kv.Quit():
                return [] if request.quiet else [_plain(request, dialect)]
            case kv.Verbosity():
                return [_plain(request, dialect)]
            case kv.GetErrorMap():
                return [self._error_map(request, dialect)]
        if not self.identified:
            return [self._refusal(request, dialect, Status.NO_ACCESS, "authenticate first")]
        match request:
            case kv.SelectBucket():
                return [self._select(request, dialect)]
            case kv.ListBuckets():
                names = " ".join(self._node.visible_buckets(self._client))
                return [_plain(request, dialect, value=names.encode())]
            case kv.GetClusterConfig():
                return [self._config(request, dialect)]
        command = dialect.command_of(request)
        if isinstance(command, Command):
            if self._client.bucket is None:
                return [self._refusal(request, dialect, Status.NO_BUCKET, "select a bucket first")]
            if not self._allowed(command):
                text = f"{self._client.user or 'nobody'} may not {command}"
                return [self._refusal(request, dialect, Status.NO_ACCESS, text)]
            # who makes this node a consumer decides what is written to its replicas
            consumes = isinstance(request, m.Open) and not request.flags & OpenFlag.PRODUCER
            if consumes and not self._allowed(Command.ADD_STREAM):
                text = f"{self._client.user or 'nobody'} may not have this node consume"
                return [self._refusal(request, dialect, Status.NO_ACCESS, text)]
            if isinstance(request, kv.SetClusterConfig):
                return [self._set_config(request, dialect)]
            if command in _OWN_DATA and not self._node.serves:
                text = "the manager has not said yet which vbuckets this node has"
                return [self._refusal(request, dialect, Status.TEMPORARY_FAILURE, text)]
            return None
        return [self._refusal(request, dialect, Status.UNKNOWN_COMMAND, f"no opcode {command:#x}")]

    def malformed(self, header: Header, error: DecodeError) -> m.Message:
        """The answer to a request that breaks a rule of the wire."""
        return m.PlainResponse(
            command=header.opcode,
            status=error.status,
            opaque=header.opaque,
            value=_context(f"{error.field} at byte {error.offset}: {error.rule}"),
            datatype=self._json,
        )

    # ---- who -----------------------------------------------------------------------------

    @property
    def identified(self) -> bool:
        """Whether the client said who it is, or need not."""
        return self._client.user is not None or self._node.users.is_unrestricted

    def _allowed(self, command: Command | None) -> bool:
        """Whether the client may give a command; without one, whether it may write documents."""
        users, client = self._node.users, self._client
        if users.is_unrestricted:
            return True
        if client.bucket is None or client.user is None:
            return False
        roles = users.roles(client.user, client.bucket.name)
        if command is None:
            return Role.WRITE_DATA in roles
        needed = [role for commands, role in _ROLES if command in commands]
        return not needed or any(role in roles for role in needed)

    def _hello(self, request: kv.Hello) -> m.Message:
        server = ServerFeatures(tls=self._client.tls, sync_replication=self._node.durable_writes)
        accepted = hello.accept(request.features, server)
        self._client.features = frozenset(accepted)
        self._client.agent = request.agent
        logger.info("%s is %s", self._client.peer, request.agent or "a client without a name")
        return kv.HelloResponse(opaque=request.opaque, features=accepted)

    def _authenticate(self, request: kv.SaslAuth | kv.SaslStep) -> list[m.Message] | Delayed:
        command = Command.SASL_AUTH if isinstance(request, kv.SaslAuth) else Command.SASL_STEP
        if isinstance(request, kv.SaslAuth):
            self._exchange = self._node.exchange(self._client)
            outcome = self._exchange.start(request.mechanism, request.payload)
        elif self._exchange is not None:
            outcome = self._exchange.step(request.payload)
        else:
            outcome = sasl.Failure("a step without a beginning")
        if isinstance(outcome, sasl.Continue):
            return [
                m.PlainResponse(
                    command=command,
                    status=Status.AUTH_CONTINUE,
                    opaque=request.opaque,
                    value=outcome.challenge,
                )
            ]
        if isinstance(outcome, sasl.Success):
            self._client.user = outcome.user
            if not self._client.is_open:  # a change stream keeps its bucket
                self._client.bucket, self._client.selected = None, False
            return [m.PlainResponse(command=command, opaque=request.opaque, value=outcome.payload)]
        logger.warning(
            "%s failed to authenticate as %r: %s", self._client.peer, outcome.user, outcome.reason
        )
        refusal = m.PlainResponse(command=command, status=Status.AUTH_ERROR, opaque=request.opaque)
        return Delayed(self._node.settings.authentication_delay, [refusal])

    # ---- where ---------------------------------------------------------------------------

    def _select(self, request: kv.SelectBucket, dialect: Dialect) -> m.Message:
        client = self._client
        if client.is_open:
            text = "a change stream keeps its bucket"
            return self._refusal(request, dialect, Status.NOT_SUPPORTED, text)
        if not self._node.users.roles(client.user, request.bucket):
            return self._refusal(
                request, dialect, Status.NO_ACCESS, f"no access to {request.bucket}"
            )
        bucket = self._node.bucket(request.bucket)
        if bucket is None:
            text = f"there is no bucket {request.bucket}"
            return self._refusal(request, dialect, Status.NOT_FOUND, text)
        client.bucket = bucket
        client.selected = True
        return _plain(request, dialect)

    def _config(self, request: kv.GetClusterConfig, dialect: Dialect) -> m.Message:
        client = self._client
        bucket = client.bucket if client.selected else None
        if bucket is None and not client.has(Feature.SELECT_BUCKET):
            bucket = client.bucket
        epoch, rev = request.epoch, request.revision
        known = epoch is not None and rev is not None
        same_map = self._map_sent == (bucket.name if bucket else "")
        if known and same_map and not self._node.has_newer_config(bucket, epoch or 0, rev or 0):
            return _plain(request, dialect)
        value = self._node.config(bucket)
        if value is None:
            text = "the manager has not given this node a map yet"
            return self._refusal(request, dialect, Status.NOT_FOUND, text)
        self._map_sent = bucket.name if bucket else ""
        return _plain(request, dialect, value=value, datatype=self._json)

    def _set_config(self, request: kv.SetClusterConfig, dialect: Dialect) -> m.Message:
        try:
            is_object = isinstance(json.loads(request.config), dict)
        except (ValueError, RecursionError):
            is_object = False
        if not is_object:
            return self._refusal(request, dialect, Status.INVALID, "the map is no JSON object")
        given = GivenMap(
            bucket=request.bucket,
            epoch=request.epoch,
            rev=request.revision,
            config=request.config,
        )
        try:
            self._node.give_map(given)
        except StoreRefusal as refusal:
            return self._refusal(request, dialect, refusal.status, refusal.rule)
        return _plain(request, dialect)

    def _error_map(self, request: kv.GetErrorMap, dialect: Dialect) -> m.Message:
        value = error_map.error_map(request.version)
        if value is None:
            text = f"there is no error map of version {request.version}"
            return self._refusal(request, dialect, Status.INVALID, text)
        return _plain(request, dialect, value=value, datatype=self._json)

    # ---- answers -------------------------------------------------------------------------

    @property
    def _json(self) -> Datatype:
        return Datatype.JSON if self._client.has(Feature.JSON) else Datatype.RAW

    def _refusal(
        self, request: m.Request, dialect: Dialect, status: Status, text: str
    ) -> m.Message:
        if dialect.name == "002":
            return m.RequestError(opaque=request.opaque, text=f"{status.name}: {text}")
        if dialect.name != "dcp":
            return _plain(request, dialect, status=status)
        return _plain(request, dialect, status=status, value=_context(text), datatype=self._json)


_DOCUMENTS: Final = (
    kv.StoreRequest,
    kv.Append,
    kv.Delete,
    kv.Increment,
    kv.Touch,
    kv.SetWithMeta,
    kv.DeleteWithMeta,
)


def _context(text: str) -> bytes:
    return json.dumps({"error": {"context": text}}, separators=(",", ":")).encode()


def _plain(
    request: m.Request,
    dialect: Dialect,
    *,
    status: Status = Status.SUCCESS,
    value: bytes = b"",
    datatype: Datatype = Datatype.RAW,
) -> m.Message:
    return m.PlainResponse(
        command=dialect.command_of(request),
        status=status,
        opaque=request.opaque,
        value=value,
        datatype=datatype,
    )
