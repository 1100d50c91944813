"""The manager's connection to a node: cluster commands over the memcached protocol.

It authenticates as the manager's user, and the node proves that it knows the cluster's secret
before anything else is sent. A lost connection is made again.
"""

from __future__ import annotations

import asyncio
import json
import operator
from collections.abc import Callable, Iterable
from typing import Any, Final, TypeVar

from ..consumer.consumer_settings import ConsumerSettings
from ..consumer.topology import questions
from ..consumer.transport.async_connection import AsyncConnection
from ..errors import ConnectionFailed, RemoteProtocolError, StatusError
from ..model import Datatype, FailoverLog, VBucketState
from ..session.conversation import Conversation
from ..wire import kv_messages as kv
from ..wire import messages as m
from ..wire.protocol_enums import RequestedState
from .best_copy import Copy
from .raw_connection import Endpoint

_T = TypeVar("_T")

#: The timeout in seconds: a node on the same machine answers at once, or is suspended.
_SETTINGS: Final = ConsumerSettings(name="manager", connect_timeout=3.0, answer_timeout=5.0)
#: The number of requests in flight.
_AT_ONCE: Final = 64
_STATES: Final = {
    VBucketState.ACTIVE: RequestedState.ACTIVE,
    VBucketState.REPLICA: RequestedState.REPLICA,
    VBucketState.PENDING: RequestedState.PENDING,
    VBucketState.DEAD: RequestedState.DEAD,
}


class NodeLink:
    """The connection to one node."""

    def __init__(self, endpoint: Endpoint, lock: Callable[[], str] = lambda: "") -> None:
        """``lock`` returns the name of the lock that the node's process holds while it lives."""
        self._endpoint = endpoint
        self._lock = lock
        self._connection: AsyncConnection | None = None
        #: The version of the node's map, and of its manifest of collections.
        self.rev = 0
        self.manifest_uid = 0
        #: Identifies the node's process among its earlier ones, and whether it has a map.
        self.instance = ""
        self.serves = False
        #: When its store was opened, newest first: a restored older disk lacks the latest.
        self.sessions: tuple[str, ...] = ()
        #: The ticket for the next renewal of the node's lease, and when it was received.
        self._ticket = 0
        self.ticket_at = 0.0
        #: Whether its lease was renewed on this connection.
        self.leased = False

    @property
    def connected(self) -> bool:
        return self._connection is not None and self._connection.lost is None

    async def connect(self) -> None:
        """Connects unless connected; `ConnectionFailed` if the node cannot be reached."""
        if self.connected:
            return
        connection = self._endpoint.connection(_SETTINGS)
        await connection.open(streams=False)
        self._connection, self.rev, self._ticket, self.leased = connection, 0, 0, False
        try:
            await self.renew_lease()
        except BaseException:
            self.close()
            raise

    async def renew_lease(self) -> None:
        """Renews the node's lease; the first call only gets a ticket."""
        ticket = self._ticket
        token = self._endpoint.token(ticket, lock=self._lock())
        answer = await self._command(token, "SetCtrlToken")
        raw = answer.value if isinstance(answer, m.PlainResponse) else b""
        try:
            reply: dict[str, Any] = json.loads(raw)
            self._ticket = operator.index(reply["ticket"])
            self.instance, self.serves = str(reply["instance"]), bool(reply["serves"])
            self.sessions = tuple(map(str, reply["sessions"]))
        except (ValueError, KeyError, TypeError) as problem:
            raise RemoteProtocolError(
                f"the ticket of {self._endpoint} cannot be read: {problem!r}"
            ) from None
        self.ticket_at = asyncio.get_running_loop().time()
        self.leased = ticket > 0

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    async def _command(self, request: m.Request, name: str) -> m.Response:
        return (await self._run_all([questions.command(request, name)]))[0]

    async def _run_all(self, talks: list[Conversation[_T]]) -> list[_T]:
        """Runs conversations, some at a time; the error of one that failed names the node."""
        results: list[_T] = []
        for first in range(0, len(talks), _AT_ONCE):
            if self._connection is None:
                raise ConnectionFailed(
                    "does not answer", "is the node running?", where=self._endpoint.name
                )
            try:
                results += await self._connection.run_all(talks[first : first + _AT_ONCE])
            except ConnectionFailed:
                self.close()  # a late response would be taken for that of another request
                raise
            except StatusError as refusal:
                request = f"{refusal.request} at {self._endpoint}"
                raise StatusError(
                    refusal.status, request=request, context=refusal.context
                ) from None
        return results

    # ---- vbuckets ------------------------------------------------------------------------

    async def copies(self) -> dict[int, Copy]:
        """The node's copy of every vbucket, including dead ones."""
        copies: dict[int, Copy] = {}
        found = await self._run_all([questions.seqnos_in_state(x) for x in _STATES.values()])
        for state, seqnos in zip(_STATES, found, strict=True):
            copies |= {vbucket: Copy(state, seqno) for vbucket, seqno in seqnos.items()}
        return copies

    async def set_states(self, wanted: Iterable[tuple[int, VBucketState]]) -> None:
        await self._run_all(
            [
                questions.command(
                    kv.SetVBucket(vbucket=vbucket, state=state),
                    f"SetVBucket of vbucket {vbucket} to {state.name.lower()}",
                )
                for vbucket, state in wanted
            ]
        )

    async def set_state(self, vbucket: int, state: VBucketState) -> None:
        await self.set_states([(vbucket, state)])

    async def logs(self, vbuckets: Iterable[int]) -> dict[int, FailoverLog]:
        """The failover logs of vbuckets."""
        wanted = list(vbuckets)
        found = await self._run_all([questions.failover_log(vbucket) for vbucket in wanted])
        return dict(zip(wanted, found, strict=True))

    async def delete(self, vbucket: int) -> None:
        """Deletes a vbucket on the node."""
        request = kv.DeleteVBucket(vbucket=vbucket)
        await self._command(request, f"DeleteVBucket of vbucket {vbucket}")

    # ---- maps and collections ------------------------------------------------------------

    async def give_maps(self, rev: int, bucket: bytes, cluster: bytes) -> None:
        """Sets the node's maps, unless it has those of this version."""
        if self.rev == rev:
            return
        for name, config in ((self._endpoint.bucket, bucket), ("", cluster)):
            request = kv.SetClusterConfig(
                bucket=name,
                epoch=self._endpoint.epoch,
                revision=rev,
                config=config,
                datatype=Datatype.JSON,
            )
            await self._command(request, f"SetClusterConfig {rev}")
        self.rev = rev

    async def manifest(self) -> tuple[int, bytes]:
        """The node's manifest of collections: its version and its JSON."""
        (raw,) = await self._run_all([questions.manifest_json()])
        try:
            reply: dict[str, Any] = json.loads(raw)
            self.manifest_uid = int(reply["uid"], 16)
        except (ValueError, KeyError, TypeError) as problem:
            raise RemoteProtocolError(
                f"the collections manifest of {self._endpoint} cannot be read: {problem!r}"
            ) from None
        return self.manifest_uid, raw

    async def give_manifest(self, uid: int, raw: bytes) -> None:
        await self._command(kv.SetManifest(manifest=raw), f"SetManifest {uid:#x}")
        self.manifest_uid = uid
