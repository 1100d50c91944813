"""Bootstrap commands of a connection: HELLO, SASL, bucket selection, cluster map and error map.

It answers requests that concern the connection as a whole. For all other requests it checks the
role of the user, the node's lease and the manager's epoch.
"""

from __future__ import annotations

import json
import logging
import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from ...errors import DecodeError, Status, StoreRefusal
from ...model import Datatype
from ...session.producer_options import is_for_consumer
from ...wire import kv_messages as kv
from ...wire import messages as m
from ...wire.agent_names import AgentName
from ...wire.dialects import Dialect
from ...wire.dialects.keyvalue import RETIRED_OPCODES
from ...wire.frameinfo import UnknownFrameInfo
from ...wire.header import Header
from ...wire.protocol_enums import Command, Feature, StreamFlag
from ..connections.client_info import ClientInfo
from ..keyvalue import ADMINISTERS, READS, STREAMS, WRITES
from ..keyvalue.durability_requirements import durability_of
from ..server_context import GivenMap, ServerContext
from . import error_map, hello, sasl
from .hello import ServerFeatures
from .users import Role

logger = logging.getLogger("upriver.producer")

_ROLES: Final = (
    (READS, Role.READ_DATA),
    (WRITES, Role.WRITE_DATA),
    (ADMINISTERS, Role.ADMINISTER),
    (STREAMS, Role.READ_STREAM),
)
#: DCP commands of all dialects, whether the producer or the consumer sends them.
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


_SASL: Final = (kv.SaslListMechanisms, kv.SaslAuth, kv.SaslStep)

#: Commands that a node can answer only once the manager has sent it the map of its vbuckets.
_OWN_DATA: Final = ((READS | WRITES) - ADMINISTERS) | {Command.STREAM_REQUEST}
#: Commands that a node of a cluster executes only while it holds a lease.
_LEASED: Final = (WRITES - READS - ADMINISTERS) | {Command.FLUSH, Command.FLUSHQ}
#: Commands that change which node has which vbucket. In a cluster only the manager may send them.
_ORDERS: Final = frozenset(
    {
        Command.SET_VBUCKET,
        Command.DELETE_VBUCKET,
        Command.SET_CLUSTER_CONFIG,
        Command.ADD_STREAM,
    }
)


@dataclass(frozen=True, slots=True)
class Delayed:
    """A response that is sent after a delay, so that guessing passwords is slow."""

    seconds: float
    messages: list[m.Message]


@dataclass(frozen=True, slots=True)
class InThread:
    """The response to a password, whose check takes long, so it is computed in a thread."""

    call: Callable[[], list[m.Message] | Delayed]
    #: Makes the response if too many passwords are being checked.
    refused: Callable[[StoreRefusal], list[m.Message]]


class BootstrapCommands:
    """Answers the bootstrap commands of one connection."""

    def __init__(self, node: ServerContext, client: ClientInfo) -> None:
        self._node = node
        self._client = client
        self._exchange: sasl.SaslExchange | None = None
        #: The bucket whose map the client was sent last, "" for the cluster's. All maps share one
        #: revision, so a revision does not identify the client's map.
        self._map_sent: str | None = None

    @property
    def may_set(self) -> bool:
        """Whether the client may write documents of its bucket."""
        return self._node.serves and self._node.leased and self._allowed(None)

    def may_write(self, request: m.Request) -> bool:
        """Whether a request may skip further checks and go directly to the key-value commands."""
        return isinstance(request, _DOCUMENTS) and self.may_set and durability_of(request) is None

    def answer(
        self, request: m.Request, dialect: Dialect
    ) -> list[m.Message] | Delayed | InThread | None:
        """Answers a bootstrap request. Returns None for any other request that is allowed."""
        unknown = next((x for x in request.frames if isinstance(x, UnknownFrameInfo)), None)
        if unknown is not None:
            text = f"there is no frame info {unknown.id}"
            return [self._refusal(request, dialect, Status.UNKNOWN_FRAME_INFO, text)]
        if isinstance(request, _SASL) and self._client.is_open:
            text = "a connection with change streams keeps its user"
            return [self._refusal(request, dialect, Status.NOT_SUPPORTED, text)]
        match request:
            case kv.Hello():
                return [self._hello(request, dialect)]
            case kv.SaslListMechanisms():
                offered = " ".join(self._node.mechanisms(self._client))
                return [_plain(request, dialect, value=offered.encode())]
            case kv.SaslAuth(mechanism=sasl.PLAIN) if self._node.users.costs_hashing(
                sasl.plain_name(request.payload)
            ):
                return InThread(  # hashing takes long
                    lambda: self._authenticate(request),
                    lambda no: [self._refusal(request, dialect, no.status, no.rule)],
                )
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
            # A consumer connection decides what is written to this node's replicas.
            consumes = isinstance(request, m.Open) and is_for_consumer(request.flags)
            # A takeover removes a vbucket from this node.
            takes = isinstance(request, m.StreamRequest) and request.flags & StreamFlag.TAKEOVER
            if (consumes or takes) and not self._allowed(Command.ADD_STREAM):
                what = "have this node consume" if consumes else "take over a vbucket"
                text = f"{self._client.user or 'nobody'} may not {what}"
                return [self._refusal(request, dialect, Status.NO_ACCESS, text)]
            if isinstance(request, kv.SetCtrlToken):
                return [self._set_token(request, dialect)]
            if consumes or takes or command in _ORDERS:
                problem = self._node.order_problem(self._client)
                if problem is not None:
                    return [self._refusal(request, dialect, *problem)]
            if isinstance(request, kv.SetClusterConfig):
                return [self._set_config(request, dialect)]
            if command in _OWN_DATA and not self._node.serves:
                text = "the manager has not said yet which vbuckets this node has"
                return [self._refusal(request, dialect, Status.TEMPORARY_FAILURE, text)]
            if command in _LEASED and not self._node.leased:
                text = "this node has had no word of its manager for too long to answer writes"
                return [self._refusal(request, dialect, Status.TEMPORARY_FAILURE, text)]
            return None
        if command in RETIRED_OPCODES:
            text = f"servers have no opcode {command:#x} any more"
            return [self._refusal(request, dialect, Status.NOT_SUPPORTED, text)]
        return [self._refusal(request, dialect, Status.UNKNOWN_COMMAND, f"no opcode {command:#x}")]

    def malformed(self, header: Header, error: DecodeError) -> m.Message:
        """Returns the response to a request that cannot be decoded."""
        return m.PlainResponse(
            command=header.opcode,
            status=error.status,
            opaque=header.opaque,
            value=_context(f"{error.field} at byte {error.offset}: {error.rule}"),
            datatype=self._json,
        )

    # ---- authentication and roles --------------------------------------------------------

    @property
    def identified(self) -> bool:
        """Whether the client has authenticated, or does not have to."""
        return self._client.user is not None or self._node.users.is_unrestricted

    def _allowed(self, command: Command | None) -> bool:
        """Whether the client may send a command; for None, whether it may write documents."""
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

    def _hello(self, request: kv.Hello, dialect: Dialect) -> m.Message:
        problem = hello.contradiction(request.features)
        if problem:
            return self._refusal(request, dialect, Status.INVALID, problem)
        server = ServerFeatures(tls=self._client.tls, sync_replication=self._node.durable_writes)
        accepted = hello.accept(request.features, server)
        self._client.features = frozenset(accepted)
        name = AgentName.parse(request.agent)
        self._client.agent, self._client.connection_id = name.agent, name.connection_id
        logger.info(
            "%s is %s, connection id %s",
            self._client.peer,
            name.agent or "a client without a name",
            name.connection_id or "none",
        )
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
            self._client.bucket, self._client.selected = None, False
            return [m.PlainResponse(command=command, opaque=request.opaque, value=outcome.payload)]
        logger.warning(
            "%s failed to authenticate as %r: %s", self._client.peer, outcome.user, outcome.reason
        )
        self._client.user = None  # a failed attempt also ends an earlier authentication
        self._client.bucket, self._client.selected = None, False
        refusal = m.PlainResponse(command=command, status=Status.AUTH_ERROR, opaque=request.opaque)
        return Delayed(self._node.settings.authentication_delay, [refusal])

    # ---- bucket and cluster map ----------------------------------------------------------

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

    def _set_token(self, request: kv.SetCtrlToken, dialect: Dialect) -> m.Message:
        """Handles SET_CTRL_TOKEN: the manager names its epoch and renews the lease by a ticket."""
        membership = self._node.membership
        if membership is None:
            text = "this server belongs to no cluster"
            return self._refusal(request, dialect, Status.NOT_SUPPORTED, text)
        if not self._node.is_manager(self._client):
            text = "only the manager of the cluster gives this order"
            return self._refusal(request, dialect, Status.NO_ACCESS, text)
        try:
            lease = json.loads(request.value)
            meant = lease["cluster"], lease["node"], lease.get("lock", membership.member.lock)
            ticket = operator.index(lease["ticket"])
        except (ValueError, KeyError, TypeError, RecursionError):
            text = "a manager names the cluster, the node and its ticket"
            return self._refusal(request, dialect, Status.INVALID, text)
        member = membership.member
        if meant != (member.cluster, member.node, member.lock):
            text = f"this is node {member.node} of the cluster {member.cluster}"
            text += f" with the lock {member.lock}" if member.lock else ""
            return self._refusal(request, dialect, Status.NO_ACCESS, text)
        if request.token < membership.epoch:
            text = f"epoch {membership.epoch} has begun"
            return self._refusal(request, dialect, Status.EXISTS, text)
        answer = {
            "ticket": self._node.renew_lease(self._client, request.token, ticket),
            "instance": membership.instance,
            "serves": self._node.serves,
            "sessions": self._client.bucket.sessions if self._client.bucket else (),
        }
        value = json.dumps(answer, separators=(",", ":")).encode()
        return _plain(request, dialect, value=value, datatype=self._json)

    def _error_map(self, request: kv.GetErrorMap, dialect: Dialect) -> m.Message:
        value = error_map.error_map(request.version)
        if value is None:
            text = f"there is no error map of version {request.version}"
            return self._refusal(request, dialect, Status.NOT_FOUND, text)
        return _plain(request, dialect, value=value, datatype=self._json)

    # ---- responses -----------------------------------------------------------------------

    @property
    def _json(self) -> Datatype:
        return Datatype.JSON if self._client.has(Feature.JSON) else Datatype.RAW

    def _refusal(
        self, request: m.Request, dialect: Dialect, status: Status, text: str
    ) -> m.Message:
        if isinstance(request, m.StreamRequest):
            peer, vbucket = self._client.peer, request.vbucket
            asked = f"{peer}: the stream request of vbucket {vbucket} (draft {dialect.name})"
            logger.info("%s is refused with %s: %s", asked, status.name, text)
        if not dialect.has_memcached_header:
            return m.RequestError(opaque=request.opaque, text=f"{status.name}: {text}")
        if not dialect.negotiates:
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
