"""What one connection waits for: its writes, other threads, and answers that come in time.

Writes that follow each other are gathered, go to the store as one group and are answered when
that is durable. While anything is waited for the connection works on nothing else, because its
answers come in the order of its requests. It knows no socket and no dialect's bytes but those of
plain sets, which are answered from their own packets.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Final, Protocol

from ..errors import Status, StoreError
from ..store import Applied, Bucket, Change, Outcome
from ..wire import messages as m
from ..wire.dialects import Dialect
from ..wire.frameinfo import Durability
from ..wire.names import Feature
from .client import Client
from .durability import DurableWrite, patience
from .front_desk import Delayed, Elsewhere
from .keyvalue import Answer, Blocking, KeyValue, Later, Now, Write
from .quick_sets import set_answer

if TYPE_CHECKING:
    from .server import Server

__all__ = ["Waiting"]

logger = logging.getLogger("upriver.producer")

#: Writes that go to the store as one group at the most.
_BATCH: Final = 4096
#: How often something that has not come yet is asked for.
_POLL_SECONDS: Final = 0.005

_Respond = Callable[[Any], tuple[m.Response, ...]]
_RespondLater = Callable[[Any], tuple[m.Response, ...] | Later]


class _Owner(Protocol):
    """What is needed of the connection."""

    client: Client

    @property
    def dialect(self) -> Dialect: ...
    @property
    def closing(self) -> bool: ...
    def now(self) -> float: ...
    def bucket(self) -> Bucket | None: ...
    def reply(self, *messages: m.Message) -> None: ...
    def send(self, data: bytes) -> None: ...
    def close(self, reason: str = "") -> None: ...
    def go_on(self) -> None:
        """Works on what came meanwhile."""


class Waiting:
    """Everything of one connection that is not answered at once."""

    def __init__(self, owner: _Owner, server: Server) -> None:
        self._owner = owner
        self._server = server
        self._loop = asyncio.get_running_loop()
        self._keyvalue: KeyValue = server.keyvalue
        #: Whether something must come before the next request is worked on.
        self.busy = False
        #: Writes that were not given to the store yet, and how to answer them: a plain set's
        #: own packet will do.
        self._writes: list[tuple[Change, _Respond | bytes]] = []

    @property
    def has_writes(self) -> bool:
        """Whether writes are gathered that nobody makes yet."""
        return bool(self._writes)

    # ---- writes --------------------------------------------------------------------------

    def gather(self, change: Change, respond: _Respond | bytes) -> None:
        """Keeps a write for the next group."""
        self._writes.append((change, respond))
        if len(self._writes) >= _BATCH:
            self.submit()

    def submit(self) -> None:
        """Gives the gathered writes to the store."""
        writes, self._writes = self._writes, []
        bucket = self._owner.bucket()
        if not writes or bucket is None:
            return
        self.busy = True
        try:
            future = bucket.submit([change for change, _ in writes])
        except StoreError as error:
            self.busy = False
            self._owner.close(str(error))
            return

        future.add_done_callback(
            lambda done: self._loop.call_soon_threadsafe(self._committed, writes, done)
        )

    def _committed(
        self, writes: list[tuple[Change, _Respond | bytes]], future: Future[list[Outcome]]
    ) -> None:
        """Answers a group of writes, or tells all of them what their group met."""
        self.busy = False
        outcomes: list[Outcome] | list[StoreError]
        try:
            outcomes = future.result()
        except StoreError as error:
            outcomes = [error] * len(writes)
        except Exception:  # a fault of ours must cost its writers an answer, not the connection
            logger.exception("a group of %d writes failed", len(writes))
            outcomes = [StoreError("the write failed")] * len(writes)
        packets: list[bytes] = []
        for (change, respond), outcome in zip(writes, outcomes, strict=True):
            if isinstance(respond, bytes):
                if isinstance(outcome, Applied):
                    packets.append(set_answer(respond, outcome, self._token(change.vbucket)))
                    continue
                respond = self._respond_to(respond)
            packets += map(self._owner.dialect.encode, respond(outcome))
        self._owner.send(b"".join(packets))
        self._owner.go_on()

    def _token(self, vbucket: int) -> int | None:
        """The branch that clients are told of who asked where their writes are."""
        bucket = self._owner.bucket()
        if bucket is None or not self._owner.client.has(Feature.MUTATION_SEQNO):
            return None
        return bucket.failover_log(vbucket).newest.vbuuid

    def _respond_to(self, packet: bytes) -> _Respond:
        """How the front end answers a plain set that was not made."""
        request = self._owner.dialect.decode(packet)
        assert isinstance(request, m.Request)
        answer = self._keyvalue.answer(self._owner.client, request)
        if isinstance(answer, Write):
            return answer.respond
        assert isinstance(answer, Now)
        return lambda outcome: answer.responses

    def answer_durably(self, request: Any, wanted: Durability) -> None:
        """Makes a change and answers it when other nodes have it, or when it is too late."""
        owner, server = self._owner, self._server
        bucket = owner.bucket()
        assert bucket is not None
        names = server.node.copies(bucket, request.vbucket)
        refusal = m.PlainResponse(
            command=owner.dialect.command_of(request),
            opaque=request.opaque,
            status=Status.DURABILITY_IMPOSSIBLE,
        )
        if names is None or not names.are_enough:
            owner.reply(refusal)
            return
        answer = self._keyvalue.answer(owner.client, request)
        if isinstance(answer, Now | Later):
            self.deliver(answer)  # nothing is written
            return
        write = DurableWrite(
            bucket,
            request.vbucket,
            names,
            refusal,
            copied=lambda: server.copied(bucket, request.vbucket),
            now=owner.now,
            deadline=owner.now() + patience(wanted),
        )
        if isinstance(answer, Write):
            respond = answer.respond
            future = bucket.submit((answer.change,))
            self._await(future, lambda outcomes: write.stored(respond(outcomes[0])))
        else:
            self._await(server.in_thread(answer.call), write.stored)

    # ---- answers that take time ----------------------------------------------------------

    def deliver(self, answer: Answer) -> None:
        """Does what an answer of the key-value front end needs."""
        if isinstance(answer, Now):
            self._owner.reply(*answer.responses)
        elif isinstance(answer, Write):
            self._writes.append((answer.change, answer.respond))
        elif isinstance(answer, Later):
            self._poll(answer)
        else:
            assert isinstance(answer, Blocking)
            self._await(self._server.in_thread(answer.call), lambda responses: responses)

    def deliver_late(self, answer: Elsewhere | Delayed) -> None:
        """Does what an answer of the front desk needs."""
        self.busy = True
        if isinstance(answer, Elsewhere):
            self._server.in_thread(answer.call).add_done_callback(
                lambda done: self._loop.call_soon_threadsafe(self._found_out, done.result())
            )
        else:
            self._loop.call_later(answer.seconds, self._delayed, answer.messages)

    def run(self, call: Callable[[], Any], then: Callable[[Future[Any]], None]) -> None:
        """Calls something in a thread, and goes on with ``then`` when that is done."""
        self.busy = True
        self._server.in_thread(call).add_done_callback(
            lambda done: self._loop.call_soon_threadsafe(self._ran, then, done)
        )

    def _ran(self, then: Callable[[Future[Any]], None], done: Future[Any]) -> None:
        self.busy = False
        then(done)
        self._owner.go_on()

    def _await(self, future: Future[Any], respond: _RespondLater) -> None:
        """Goes on when a future is done; nothing else of this connection is worked on until."""
        self.busy = True
        future.add_done_callback(
            lambda done: self._loop.call_soon_threadsafe(self._done, done, respond)
        )

    def _done(self, future: Future[Any], respond: _RespondLater) -> None:
        self.busy = False
        if self._owner.closing:
            return
        try:
            answer = respond(future.result())
        except StoreError as error:
            logger.error("%s: %s", self._owner.client.peer, error)
            self._owner.close(str(error))
            return
        if isinstance(answer, Later):
            self._poll(answer)
        else:
            self._owner.reply(*answer)
        self._owner.go_on()

    def _poll(self, answer: Later) -> None:
        """Asks for an answer that has not come yet, again and again."""
        self.busy = False
        if self._owner.closing:
            return
        responses = answer.poll()
        if responses is None:
            self.busy = True
            self._loop.call_later(_POLL_SECONDS, self._poll_again, answer)
        else:
            self._owner.reply(*responses)

    def _poll_again(self, answer: Later) -> None:
        self._poll(answer)
        self._owner.go_on()

    def _found_out(self, answer: list[m.Message] | Delayed) -> None:
        """Goes on with an answer that was worked out in a thread."""
        if isinstance(answer, Delayed):
            self._loop.call_later(answer.seconds, self._delayed, answer.messages)
        else:
            self._delayed(answer)

    def _delayed(self, messages: list[m.Message]) -> None:
        self.busy = False
        self._owner.reply(*messages)
        self._owner.go_on()
