"""Deferred responses of one connection: writes, work in threads, and results that come later.

Consecutive writes are collected, submitted to the store as one group, and answered when the group
is durable. While a response is pending, the connection handles no other request, because responses
are sent in the order of the requests. Responses of many parts are sent part by part, in the
connection's turns. This module knows no sockets. The only packets that it reads itself are plain
SETs, whose responses are made from the packets.

Every request gets its response, or the connection is closed with a reason in the log. No client
waits for ever.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

from ...errors import Status, StoreError, StoreRefusal
from ...store import Applied, Bucket, ChangeRequest, Outcome
from ...wire import messages as m
from ...wire.dialects import Dialect
from ...wire.frameinfo import Durability
from ...wire.protocol_enums import Feature
from ..bootstrap.bootstrap_commands import Delayed, InThread
from ..keyvalue import Answer, BackgroundWork, Blocking, KeyValue, Later, Now, Several, Write
from ..keyvalue.command_counts import counts_of
from ..keyvalue.durability_requirements import PreparedWrite, committed, level_of, patience
from ..keyvalue.fast_sets import set_answer
from .client_info import ClientInfo

if TYPE_CHECKING:
    from ..server import Server

logger = logging.getLogger("upriver.producer")

#: The most writes in one group.
_BATCH: Final = 4096
#: Bytes of one group, which are in memory twice until it is written.
_BATCH_BYTES: Final = 4 * 1024 * 1024
#: Writes that are answered in one step: some hundred microseconds.
_ANSWERED_AT_ONCE: Final = 64
#: Seconds between two polls of a result, at first and at most. The pause doubles, so that a
#: response is late by no more than it took, and a thousand waiting requests cost little.
_FIRST_PAUSE: Final = 0.001
_LAST_PAUSE: Final = 0.05

_Respond = Callable[[Any], tuple[m.Response, ...]]
_Outcomes = list[Outcome] | list[StoreError]
_T = TypeVar("_T")


class _Owner(Protocol):
    """What this class needs of its connection."""

    client: ClientInfo
    #: When the oldest data arrived that is not handled yet.
    received_at: float

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
        """Requests a turn, in which the connection handles what it received meanwhile."""


class DeferredResponses:
    """The pending responses of one connection."""

    def __init__(self, owner: _Owner, server: Server) -> None:
        self._owner = owner
        self._server = server
        self._loop = asyncio.get_running_loop()
        self._keyvalue: KeyValue = server.keyvalue
        #: Whether a response must be sent before the next request is handled.
        self.busy = False
        #: The remaining parts of a response that is sent in parts.
        self._parts: Iterator[bytes] | None = None
        #: Collected writes that are not submitted yet, and how to answer each: by a function, or
        #: from the packet of a plain SET.
        self._writes: list[tuple[ChangeRequest, _Respond | bytes]] = []
        #: Bytes of their packets, and when the first of them arrived.
        self._size = 0
        self._arrived = 0.0

    @property
    def has_writes(self) -> bool:
        """Whether there are collected writes that are not submitted yet."""
        return bool(self._writes)

    @property
    def has_parts(self) -> bool:
        """Whether a response has parts that are not sent yet."""
        return self._parts is not None

    def send_part(self) -> None:
        """Sends the next part of a response. After the last part the next request is handled."""
        assert self._parts is not None
        part = next(self._parts, None)
        if part is None:
            self._parts = None
            self.busy = False
        elif part:
            self._owner.send(part)

    def close(self) -> None:
        """Drops the responses that cannot be sent any more."""
        self._parts = None
        self._writes, self._size = [], 0

    # ---- writes --------------------------------------------------------------------------

    def gather(self, change: ChangeRequest, respond: _Respond | bytes, size: int) -> None:
        """Collects a write, whose packet has that size, for the next group."""
        if not self._writes:
            self._arrived = self._owner.received_at
        self._writes.append((change, respond))
        self._size += size
        if len(self._writes) >= _BATCH or self._size >= _BATCH_BYTES:
            self.submit()

    def submit(self) -> None:
        """Submits the collected writes to the store."""
        writes, self._writes, self._size = self._writes, [], 0
        bucket = self._owner.bucket()
        if not writes or bucket is None:
            return
        try:
            future = bucket.submit([change for change, _ in writes])
        except StoreError as error:
            self._owner.close(str(error))
            return
        arrived = self._arrived
        self._when_done(future, lambda done: self._committed(writes, arrived, done))

    def _answered(self, arrived: float, count: int = 1) -> None:
        """Counts the latency of requests that are answered now."""
        self._server.traffic.request_seconds.add(self._owner.now() - arrived, count)

    def _committed(
        self,
        writes: list[tuple[ChangeRequest, _Respond | bytes]],
        arrived: float,
        future: Future[list[Outcome]],
    ) -> None:
        """Answers a group of writes, each by its outcome, or all by the error of the group."""
        outcomes: _Outcomes
        try:
            outcomes = future.result()
        except StoreError as error:
            if error.is_ambiguous:
                self._owner.close(_UNKNOWN)
                return
            outcomes = [error] * len(writes)
        except Exception:  # an internal error fails these writes, not the connection
            logger.exception("a group of %d writes failed", len(writes))
            outcomes = [StoreError("the write failed")] * len(writes)
        self._answered(arrived, len(writes))
        self._send_in_parts(self._written(writes, outcomes))

    def _written(
        self, writes: list[tuple[ChangeRequest, _Respond | bytes]], outcomes: _Outcomes
    ) -> Iterator[bytes]:
        """Yields the responses to a group of writes."""
        for first in range(0, len(writes), _ANSWERED_AT_ONCE):
            if not self._may_acknowledge():
                return
            packets: list[bytes] = []
            plain: list[bytes] = []
            last = first + _ANSWERED_AT_ONCE
            for (change, respond), outcome in zip(
                writes[first:last], outcomes[first:last], strict=True
            ):
                if isinstance(respond, bytes):
                    if isinstance(outcome, Applied):
                        plain.append(set_answer(respond, outcome, self._token(change.vbucket)))
                        packets.append(plain[-1])
                        continue
                    respond = self._respond_to(respond)
                packets += map(self._owner.dialect.encode, respond(outcome))
            bucket = self._owner.bucket()
            if plain and bucket is not None:
                counts_of(bucket).add_plain_sets(len(plain), sum(map(bool, plain)))
            yield b"".join(packets)

    def _may_acknowledge(self) -> bool:
        """Whether this node may still acknowledge writes. Closes the connection if not.

        The write was stored here, but another node may have the vbucket by now. So neither a
        success nor an error would be correct. A closed connection means that the result
        is unknown.
        """
        if self._server.node.leased:
            return True
        self._owner.close("the lease ran out before a write could be acknowledged")
        return False

    def _token(self, vbucket: int) -> int | None:
        """Returns the vbuuid of a vbucket; None if mutation tokens were not negotiated."""
        bucket = self._owner.bucket()
        if bucket is None or not self._owner.client.has(Feature.MUTATION_SEQNO):
            return None
        return bucket.failover_log(vbucket).newest.vbuuid

    def _respond_to(self, packet: bytes) -> _Respond:
        """Returns how the key-value commands answer a plain SET that the store refused."""
        request = self._owner.dialect.decode(packet)
        assert isinstance(request, m.Request)
        answer = self._keyvalue.answer(self._owner.client, request)
        if isinstance(answer, Write):
            return answer.respond
        assert isinstance(answer, Now)
        return lambda outcome: answer.responses

    def answer_durably(self, request: Any, wanted: Durability) -> None:
        """Prepares a change, and responds when it is committed or aborted."""
        owner = self._owner
        bucket = owner.bucket()
        assert bucket is not None
        names = self._server.node.copies(bucket, request.vbucket)
        refusal = m.PlainResponse(
            command=owner.dialect.command_of(request),
            opaque=request.opaque,
            status=Status.DURABILITY_IMPOSSIBLE,
        )
        if names is None or not names.are_enough:
            owner.reply(refusal)
            return
        durable = PreparedWrite(level_of(wanted))
        answer = self._keyvalue.answer(owner.client, request, durable)
        if isinstance(answer, Now | Later | Several):
            self.deliver(answer)  # nothing is written
            return
        deadline = owner.now() + patience(wanted)

        def completed(respond: _Respond) -> _Respond:
            """Returns a function that responds with the result of a prepare."""
            return lambda outcome: (
                respond(outcome)
                if isinstance(outcome, Applied)
                else (replace(refusal, status=outcome),)
            )

        def wait(prepared: Applied, respond: _Respond) -> tuple[m.Response, ...]:
            future = self._server.durability.wait(bucket, prepared, deadline)
            self._await(future, completed(respond), is_write=True)
            return ()  # the response follows later

        if isinstance(answer, Write):
            respond = answer.respond

            def prepared(outcomes: list[Outcome]) -> tuple[m.Response, ...]:
                outcome = outcomes[0]
                if not isinstance(outcome, Applied):
                    return respond(outcome)
                number = outcome.number
                return wait(outcome, lambda done: respond(done._replace(number=number)))

            future = bucket.submit((durable.wrap(answer.change),))
            self._await(future, prepared, is_write=True)
        else:

            def edited(responses: tuple[m.Response, ...]) -> tuple[m.Response, ...]:
                made = durable.prepared
                if made is None:
                    return responses  # nothing was written
                return wait(made, lambda done: committed(responses, made, done))

            made = self._in_thread(answer, answer.call)
            if made is not None:
                self._await(made, edited, is_write=True)

    # ---- responses that take time --------------------------------------------------------

    def deliver(self, answer: Answer, *, is_write: bool = False) -> None:
        """Sends the result of a key-value command, now or when it is available."""
        if isinstance(answer, Now):
            self._owner.reply(*answer.responses)
            self._answered(self._owner.received_at)
        elif isinstance(answer, Write):
            if not self._writes:
                self._arrived = self._owner.received_at
            self._writes.append((answer.change, answer.respond))
        elif isinstance(answer, Later):
            self._poll(answer, _FIRST_PAUSE)
        elif isinstance(answer, Several):
            self._send_in_parts(self._encoded(answer))
        else:
            assert isinstance(answer, Blocking)
            self._send_from_thread(answer, is_write=is_write)

    def _send_from_thread(self, answer: Blocking, *, is_write: bool) -> None:
        """Makes and encodes a response in a thread: copying a large document takes a while."""
        encode, arrived = self._owner.dialect.encode, self._owner.received_at

        def call() -> list[bytes]:
            return [encode(response) for response in answer.call()]

        def send(done: Future[list[bytes]]) -> None:
            if not is_write or self._may_acknowledge():
                for packet in done.result():
                    self._owner.send(packet)
                self._answered(arrived)

        future = self._in_thread(answer, call)
        if future is not None:
            self._when_done(future, send)

    def _in_thread(self, answer: Blocking, call: Callable[[], _T]) -> Future[_T] | None:
        """Runs a call in a thread. Returns None, after an error response, if the queue is full."""
        try:
            return self._server.in_thread(answer.work, call)
        except StoreRefusal as refusal:
            self._owner.reply(*answer.refused(refusal))
            return None

    def deliver_late(self, answer: InThread | Delayed) -> None:
        """Sends the result of a bootstrap command that takes time or must be delayed."""
        if isinstance(answer, Delayed):
            self._delay(answer)
            return
        try:
            future = self._server.passwords.submit(
                self._owner.client.host, answer.call, lambda made: isinstance(made, Delayed)
            )
        except StoreRefusal as refusal:
            self._owner.reply(*answer.refused(refusal))
            return
        self._when_done(future, self._found_out)

    def run(
        self, work: BackgroundWork, call: Callable[[], Any], then: Callable[[Future[Any]], None]
    ) -> None:
        """Runs a call in a thread; ``then`` is called in any case, on the event loop."""
        self._when_done(self._server.in_thread(work, call), then, always=True)

    def _when_done(
        self,
        future: Future[Any],
        then: Callable[[Future[Any]], None],
        *,
        always: bool = False,
    ) -> None:
        """Calls ``then`` when a future is done. Until then no other request is handled."""
        self.busy = True

        def notify(done: Future[Any]) -> None:
            with contextlib.suppress(RuntimeError):  # the event loop is closed
                self._loop.call_soon_threadsafe(self._late, then, done, always)

        future.add_done_callback(notify)

    def _late(
        self, then: Callable[[Future[Any]], None], done: Future[Any], always: bool = False
    ) -> None:
        """Calls ``then`` with a finished future. An exception closes the connection."""
        self.busy = False
        if self._owner.closing and not always:
            return
        try:
            then(done)
        except StoreError as error:
            logger.error("%s: %s", self._owner.client.peer, error)
            self._owner.close(str(error))
        except Exception:
            logger.exception("%s: a late answer failed", self._owner.client.peer)
            self._owner.close("its request met a fault of the server")
        self._owner.go_on()

    def _await(self, future: Future[Any], respond: _Respond, *, is_write: bool = False) -> None:
        """Responds with the result of a future."""
        arrived = self._owner.received_at

        def answer(done: Future[Any]) -> None:
            if not is_write or self._may_acknowledge():
                self._owner.reply(*respond(done.result()))
                self._answered(arrived)

        self._when_done(future, answer)

    def _poll(self, answer: Later, pause: float) -> None:
        """Polls a result until it is available, and sends it."""
        responses = answer.poll()
        if responses is not None:
            self._owner.reply(*responses)
            return
        longer = min(2 * pause, _LAST_PAUSE)
        self._after(pause, lambda _: self._poll(answer, longer))

    def _found_out(self, done: Future[list[m.Message] | Delayed]) -> None:
        """Sends a response that was made in a thread."""
        answer = done.result()
        if isinstance(answer, Delayed):
            self._delay(answer)
        else:
            self._owner.reply(*answer)

    def _delay(self, answer: Delayed) -> None:
        self._after(answer.seconds, lambda _: self._owner.reply(*answer.messages))

    def _after(self, seconds: float, then: Callable[[Future[Any]], None]) -> None:
        self.busy = True
        self._loop.call_later(seconds, self._late, then, _NOTHING)

    def _send_in_parts(self, parts: Iterator[bytes]) -> None:
        self.busy = True
        self._parts = parts
        self._owner.go_on()

    def _encoded(self, answer: Several) -> Iterator[bytes]:
        for responses in answer.steps:
            yield b"".join(map(self._owner.dialect.encode, responses))


#: The future that is passed to callbacks of timers. It has no result.
_NOTHING: Final[Future[Any]] = Future()
#: Neither a success nor an error would be correct for such a write, so it gets no answer.
_UNKNOWN: Final = "a write failed, and it is not known whether the disk has it"
