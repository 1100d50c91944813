"""Blocking connection to a node, and a pool of such connections that runs conversations.

`run` and `run_all` run conversations and block. `send_now` and `receive_now` never block; the
writer (`edit_pipeline`) uses them to send requests without waiting for responses.
"""

from __future__ import annotations

import secrets
import select
import socket
import ssl
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Final, Self, TypeVar

from ...errors import ConnectionFailed, DecodeError
from ...session.client_handshake import FIRST_OPAQUE, introduce, stranger
from ...session.conversation import Conversation, Exchange, single
from ...session.dcp_open import open_for_questions
from ...wire.dialects import Dcp
from ...wire.fast_stat_response import quick_statistic
from ...wire.framing import Framer
from ...wire.messages import Request, Response
from ...wire.protocol_enums import Feature
from ..topology.cluster_view import (
    NODE_TROUBLE,
    ClusterConversation,
    Pause,
    Topology,
    Visit,
    VisitOutcome,
)
from ..topology.waiting import Interrupted
from .access import Access, introduction
from .connection_errors import lost_connection, named, no_tls, reason_of, unreachable
from .connection_string import Address, Source

_T = TypeVar("_T")

#: Seconds to connect to a node: long enough for TCP to resend one or two lost packets.
CONNECT_SECONDS: Final = 10.0
#: Seconds for one response; servers delay the response to a failed authentication on purpose.
ANSWER_SECONDS: Final = 30.0
#: Features requested in HELLO; connections of a pool request collections too.
_FEATURES: Final = (Feature.SELECT_BUCKET, Feature.XERROR, Feature.JSON)

#: Most bytes read from the socket at once.
_RECEIVE_BYTES: Final = 256 * 1024
#: Exceptions of a socket operation that would block. With TLS, a read may have to wait for a write
#: and the other way round.
_NOT_NOW: Final = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


class BlockingConnection:
    """An authenticated connection to one node, with the bucket of ``source`` selected.

    The node need not be one of the hosts that ``source`` names.
    """

    def __init__(
        self,
        address: Address,
        source: Source,
        access: Access,
        *,
        features: Iterable[Feature] = _FEATURES,
        timeout: float = ANSWER_SECONDS,
    ) -> None:
        self.address = address
        self.dialect = Dcp()
        self.framer = Framer()
        self.features: frozenset[Feature | int] = frozenset()
        self._timeout = timeout
        self._tls = source.tls
        self._exchange = Exchange(lambda r: self.dialect.encode(r), first_opaque=FIRST_OPAQUE)
        #: The last bytes received, which identify a peer that is no Couchbase server; and whether
        #: any bytes were received.
        self._chunk = b""
        self._heard_any = False
        self.socket = self._connect(access)
        try:
            self.features = self.run(introduce(introduction(access, source, features))).features
            self.dialect = Dcp(collections=Feature.COLLECTIONS in self.features)
        except DecodeError:
            self.close()
            raise named(stranger(self._chunk), self.where) from None
        except BaseException as problem:
            self.close()
            raise named(problem, self.where) from None

    @property
    def where(self) -> str:
        return str(self.address)

    def close(self) -> None:
        self.socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    # ---- conversations -------------------------------------------------------------------

    def ask(self, request: Request) -> Response:
        """Sends a request; returns the response, whatever its status."""
        return self.run(single(request))

    def run(self, talk: Conversation[_T]) -> _T:
        """Runs a conversation; ignores messages that do not belong to it."""
        return self.run_all((talk,))[0]

    def run_all(self, talks: Iterable[Conversation[_T]]) -> list[_T]:
        """Runs conversations at the same time; raises the error of the first that failed."""
        exchange = self._exchange
        pendings = [exchange.begin(talk) for talk in talks]
        deadline = time.monotonic() + self._timeout
        try:
            for pending in pendings:
                while not pending.done:
                    for other, step in exchange.take_work():
                        exchange.go_on(other, step.work())
                    if data := exchange.data_to_send():
                        self._limit(deadline)
                        self.socket.sendall(data)
                    elif not pending.done:
                        self._receive(deadline)
            return [pending.result() for pending in pendings]
        except TimeoutError:
            waited = f"{exchange.asked or 'a request'} was not answered for {self._timeout:g} s"
            raise self.lost(waited, silent=True) from None
        except OSError as problem:
            raise self.lost(reason_of(problem)) from None
        finally:
            exchange.abandon(pendings)

    def _receive(self, deadline: float) -> None:
        self._limit(deadline)
        self._chunk = self.socket.recv(_RECEIVE_BYTES)
        if not self._chunk:
            raise ConnectionAbortedError("it closed the connection")
        self._heard_any = True
        for packet in self.framer.feed(self._chunk):
            answer = quick_statistic(packet) or self.dialect.decode(packet)
            if isinstance(answer, Response):
                self._exchange.received(answer)

    def _limit(self, deadline: float) -> None:
        left = deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError
        self.socket.settimeout(left)

    # ---- non-blocking I/O ----------------------------------------------------------------

    def send_now(self, data: memoryview) -> int:
        """Sends as many bytes as the socket accepts without blocking; returns their number."""
        try:
            return self.socket.send(data)
        except _NOT_NOW:
            return 0
        except OSError as problem:
            raise self.lost(reason_of(problem)) from None

    def receive_now(self) -> Iterator[Iterable[bytes]]:
        """Yields the packets of each chunk that can be received without blocking."""
        try:
            while chunk := self.socket.recv(_RECEIVE_BYTES):
                yield self.framer.feed(chunk)
        except _NOT_NOW:
            return
        except OSError as problem:
            raise self.lost(reason_of(problem)) from None
        raise self.lost("it closed the connection")

    # ---- errors --------------------------------------------------------------------------

    def lost(self, reason: str, *, silent: bool = False) -> ConnectionFailed:
        """The error for a node that closed the connection, or with ``silent`` does not answer."""
        return lost_connection(
            reason, heard_any=self._heard_any, silent=silent, tls=self._tls, where=self.where
        )

    def _connect(self, access: Access) -> socket.socket:
        context = access.tls_context() if self._tls else None
        seconds = min(CONNECT_SECONDS, self._timeout)
        try:
            plain = socket.create_connection(
                (self.address.host, self.address.port), timeout=seconds
            )
        except (OSError, UnicodeError) as problem:
            raise named(unreachable(problem, seconds), self.where) from None
        try:
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            plain.settimeout(self._timeout)
            if context is None:
                return plain
            return context.wrap_socket(plain, server_hostname=self.address.host)
        except OSError as problem:
            plain.close()
            raise named(no_tls(problem, self._timeout), self.where) from None
        except BaseException:
            plain.close()
            raise


class BlockingNodes:
    """Pool of blocking connections to the nodes of a cluster, opened as conversations need them."""

    def __init__(self, topology: Topology, access: Access, *, timeout: float) -> None:
        self.topology = topology
        self._access = access
        self._timeout = timeout
        #: Idle connections by address and by whether they were opened for DCP.
        self._idle: dict[tuple[Address, bool], BlockingConnection] = {}
        #: The connection on which an answer is awaited.
        self._busy: BlockingConnection | None = None
        self._interrupted = threading.Event()

    def interrupt(self) -> None:
        """Has what waits for a node in another thread raise `Interrupted`, now and later."""
        self._interrupted.set()
        busy = self._busy
        if busy is not None:
            with suppress(OSError):
                busy.socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        for connection in self._idle.values():
            connection.close()
        self._idle.clear()

    def open(self, address: Address, *, streaming: bool = False) -> BlockingConnection:
        """Returns a connection that the caller owns; with ``streaming``, opened for DCP."""
        idle = self._idle.pop((address, streaming), None)
        if idle is not None:
            if not select.select([idle.socket], (), (), 0)[0]:
                return idle
            idle.close()  # an idle socket becomes readable only if the node closed it
        connection = BlockingConnection(
            address,
            self.topology.source,
            self._access,
            features=(*_FEATURES, Feature.COLLECTIONS),
            timeout=self._timeout,
        )
        self.topology.learn_features(address, connection.features)
        if streaming:
            try:
                connection.run(open_for_questions(f"upriver-survey-{secrets.token_hex(4)}"))
            except BaseException:
                connection.close()
                raise
        return connection

    def run(self, conversation: ClusterConversation[_T]) -> _T:
        """Runs a conversation to its end; visits one node after the other."""
        try:
            step = next(conversation)
            while True:
                if isinstance(step, Pause):
                    self._pause(step.seconds)
                    step = conversation.send([])
                else:
                    step = conversation.send([self._visit(visit) for visit in step])
        except StopIteration as done:
            result: _T = done.value
            return result

    def _pause(self, seconds: float = 0.0) -> None:
        if self._interrupted.wait(seconds) if seconds else self._interrupted.is_set():
            raise Interrupted("the program was told to stop, and does not wait for a node")

    @property
    def connected(self) -> list[Address]:
        return [address for address, _ in self._idle]

    def _visit(self, visit: Visit) -> VisitOutcome:
        self._pause()
        connection: BlockingConnection | None = None
        try:
            connection = self.open(visit.address, streaming=visit.streaming)
            self._busy = connection
            results = connection.run_all(visit.talks)
        except NODE_TROUBLE as error:
            if connection is not None:
                connection.close()  # responses to the failed visit may still arrive on it
            return error
        finally:
            self._busy = None
        self._idle[visit.address, visit.streaming] = connection
        return results
