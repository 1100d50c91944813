"""A connection on which this node is the DCP consumer: stores what the producer sends."""

from __future__ import annotations

import logging
from concurrent.futures import Future
from typing import TYPE_CHECKING, Final

from ...errors import DecodeError, StoreRefusal
from ...store import Bucket
from ...wire.dialects import Dialect
from ..dcp.dcp_consumer import DcpConsumer, Unread, is_from_producer
from ..keyvalue import BackgroundWork

if TYPE_CHECKING:
    from ..server import Server
    from .connection import Connection
    from .deferred_responses import DeferredResponses
    from .receive_buffer import ReceiveBuffer

logger = logging.getLogger("upriver.producer")

#: Bytes from a producer that are handled at once.
_RECEIVE_BYTES: Final = 1024 * 1024


class ReplicaInput:
    """Gathers packets of a producer and writes them in a thread; the `Inlet` of its commands."""

    def __init__(
        self,
        connection: Connection,
        server: Server,
        bucket: Bucket,
        dialect: Dialect,
        name: str,
        consumer_name: str,
        *,
        other: Dialect | None,
    ) -> None:
        self._connection = connection
        self._server = server
        self._bucket = bucket
        self.now = connection.now
        self.close = connection.close
        self.send = connection.send
        self.reply = connection.reply
        self.commands = DcpConsumer(bucket, dialect, self, name, consumer_name, other=other)

    def receive(self, packet: bytes, inbox: ReceiveBuffer, waiting: DeferredResponses) -> None:
        """Writes the messages that a producer has sent so far, in a thread."""
        gathered = bytearray(packet)
        while len(gathered) < _RECEIVE_BYTES and _is_next_from_producer(inbox):
            gathered += inbox.take() or b""
        unread = self.commands.received(bytes(gathered))
        if unread is None:
            return
        waiting.run(
            BackgroundWork.REPLICATING, unread.write, lambda done: self._stored(unread, done)
        )

    def _stored(self, unread: Unread, done: Future[dict[int, StoreRefusal]]) -> None:
        error = done.exception()
        self.commands.stored(unread, None if error else done.result())
        if error is not None:
            peer = self._connection.client.peer
            logger.error("%s: what came cannot be written: %s", peer, error)
            self.close("what came cannot be written")

    def claim(self, vbucket: int) -> bool:
        return self._server.claim(self._connection, self._bucket, vbucket)

    def release(self, vbucket: int) -> None:
        self._server.release(self._bucket, vbucket)

    def answered(self, dialect: Dialect) -> None:
        name = self.commands.name
        self._server.peer_dialects.answered(name, negotiates=dialect.negotiates)

    def unanswered(self, dialect: Dialect) -> None:
        name = self.commands.name
        self._server.peer_dialects.unanswered(name, negotiates=dialect.negotiates)


def _is_next_from_producer(inbox: ReceiveBuffer) -> bool:
    try:
        following = inbox.peek()
    except DecodeError:  # the error is found again later
        return False
    return following is not None and is_from_producer(following)
