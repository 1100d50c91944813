"""A plain blocking client for tests: it sends messages of any dialect and reads what comes."""

from __future__ import annotations

import socket
from collections.abc import Callable
from dataclasses import replace
from types import TracebackType
from typing import Any, Self

from upriver.consumer.source import Source
from upriver.testing import TemporaryProducer
from upriver.wire import kv
from upriver.wire import messages as m
from upriver.wire.dialects import Dcp, Dialect
from upriver.wire.framing import Framer
from upriver.wire.names import Feature, OpenFlag

#: How long a test waits for something that should come; never reached when all is well.
PATIENCE = 60.0


class Talk:
    """One socket and the dialect that is spoken on it."""

    def __init__(
        self, producer: TemporaryProducer | Source, dialect: Dialect | None = None
    ) -> None:
        self.dialect = dialect or Dcp()
        self.socket = socket.create_connection((producer.host, producer.port), timeout=PATIENCE)
        self._framer = Framer()
        self._received: list[bytes] = []
        self._opaque = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.socket.close()

    # ---- sending -------------------------------------------------------------------------

    def send(self, *messages: m.Message) -> None:
        self.socket.sendall(b"".join(self.dialect.encode(message) for message in messages))

    def ask(self, request: m.Request) -> Any:
        """Sends a request under an opaque of its own and returns its answer."""
        self._opaque += 1
        self.send(replace(request, opaque=self._opaque))
        answer = self.read()
        assert answer.opaque == self._opaque, answer
        return answer

    # ---- reading -------------------------------------------------------------------------

    def packet(self) -> bytes:
        while not self._received:
            chunk = self.socket.recv(1 << 18)
            if not chunk:
                raise ConnectionError("the server closed the connection")
            self._received += self._framer.feed(chunk)
        return self._received.pop(0)

    def read(self) -> Any:
        return self.dialect.decode(self.packet())

    def read_until(self, last: type[m.Message] | Callable[[Any], bool]) -> list[Any]:
        """Messages up to and with the first of a kind, or that fits."""
        messages = []
        while True:
            messages.append(self.read())
            if isinstance(messages[-1], last) if isinstance(last, type) else last(messages[-1]):
                return messages

    def is_closed(self) -> bool:
        """Waits until the server has closed the connection."""
        try:
            while self.socket.recv(1 << 16):
                pass
        except ConnectionError:
            pass
        return True

    # ---- what most tests begin with ------------------------------------------------------

    def hello(self, *features: Feature) -> None:
        self.ask(kv.Hello(agent="test", features=features))
        self.dialect = Dcp(collections=Feature.COLLECTIONS in features)

    def open(self, name: str = "test", flags: OpenFlag = OpenFlag.PRODUCER) -> Any:
        return self.ask(m.Open(name=name, flags=flags))

    def control(self, key: str, value: str) -> Any:
        return self.ask(m.Control(key=key, value=value))


def everything(producer: TemporaryProducer, name: str = "all") -> Talk:
    """A connection that is opened for everything a change has."""
    talk = Talk(producer)
    talk.hello(Feature.COLLECTIONS, Feature.XATTR, Feature.SNAPPY, Feature.JSON)
    talk.open(name, OpenFlag.PRODUCER | OpenFlag.INCLUDE_XATTRS | OpenFlag.INCLUDE_DELETE_TIMES)
    talk.control("enable_noop", "true")
    talk.control("enable_expiry_opcode", "true")
    return talk
