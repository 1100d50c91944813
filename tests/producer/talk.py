"""A plain blocking client for tests: it sends messages of any dialect and reads what comes."""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable
from dataclasses import replace
from types import TracebackType
from typing import Any, NamedTuple, Protocol, Self

from packets import Packets

from upriver.testing import TemporaryProducer
from upriver.wire import kv_messages as kv
from upriver.wire import messages as m
from upriver.wire.dialects import Dcp, Dialect
from upriver.wire.protocol_enums import Feature, OpenFlag

#: How long a test waits for something that should come; never reached when all is well.
PATIENCE = 300.0


#: Memcached's header.
HEADER = struct.Struct(
    ">"
    "B"  # magic
    "B"  # opcode
    "H"  # key length
    "B"  # extras length
    "B"  # datatype
    "H"  # vbucket of a request, status of an answer
    "I"  # total body length
    "I"  # opaque
    "Q"  # cas
)


class RawAnswer(NamedTuple):
    """An answer as it lies on the wire."""

    opcode: int
    status: int
    opaque: int
    cas: int
    datatype: int
    extras: bytes
    key: bytes
    value: bytes


def request_bytes(
    opcode: int,
    key: bytes = b"",
    value: bytes = b"",
    extras: bytes = b"",
    *,
    cas: int = 0,
    vbucket: int = 0,
    datatype: int = 0,
    opaque: int = 0,
    frames: bytes = b"",
) -> bytes:
    """A request as a client of any make could send it, whether our codec would or not."""
    size = len(frames) + len(extras) + len(key) + len(value)
    magic, key_length = (0x08, len(frames) << 8 | len(key)) if frames else (0x80, len(key))
    head = HEADER.pack(magic, opcode, key_length, len(extras), datatype, vbucket, size, opaque, cas)
    return head + frames + extras + key + value


class Listening(Protocol):
    """Whatever can be connected to."""

    @property
    def host(self) -> str: ...
    @property
    def port(self) -> int: ...


class Talk:
    """One socket and the dialect that is spoken on it."""

    def __init__(self, producer: Listening, dialect: Dialect | None = None) -> None:
        self.dialect = dialect or Dcp()
        self.socket = socket.create_connection((producer.host, producer.port), timeout=PATIENCE)
        self._packets = Packets(self.socket)
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

    def ask_raw(self, opcode: int, *parts: bytes, **fields: Any) -> RawAnswer:
        """Sends bytes that need not be a request our codec knows; see `request_bytes`."""
        self.socket.sendall(request_bytes(opcode, *parts, **fields))
        return self.read_raw()

    def statistics(self, group: str = "") -> dict[str, str]:
        """What the server tells of a group."""
        self.socket.sendall(request_bytes(0x10, group.encode()))
        told = {}
        while (answer := self.read_raw()).key:
            told[answer.key.decode()] = answer.value.decode()
        assert answer.status == 0, answer
        return told

    # ---- reading -------------------------------------------------------------------------

    def read_raw(self) -> RawAnswer:
        raw = self.packet()
        _, opcode, key, extras, datatype, status, _, opaque, cas = HEADER.unpack_from(raw)
        key_at = HEADER.size + extras
        return RawAnswer(
            opcode,
            status,
            opaque,
            cas,
            datatype,
            raw[HEADER.size : key_at],
            raw[key_at : key_at + key],
            raw[key_at + key :],
        )

    def packet(self) -> bytes:
        return self._packets.next()

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
