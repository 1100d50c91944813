"""Servers that know one document and nothing else, with the bytes that the document prints.

Each takes what it says on a stream, so that a test can have it refuse, go back or end; `ALONE` has
one of each that sends a mutation, a deletion and an expiration of the document ``mykey`` (001:
``hello``) and ends.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any, Final, NamedTuple

from accepting import Accepting
from consumerkit import at
from packets import Packets
from printed_packets import RIGHT
from seedkit import SOON, Packet, changed, plain, reply, u32, u64

from upriver.consumer import Change, Consumer, Rollback
from upriver.model import FailoverLog

#: What a server says to a stream request.
Stream = Callable[[bytes], Iterable[bytes]]

#: Where a request has its vbucket, and a stream request its start: from 000 on.
_VBUCKET, _START = 6, 32
_OPENED: Final = RIGHT["001", 2]
_LOG_004: Final = RIGHT["004", 4]


class DocumentServer(Accepting):
    """A server that knows what ``answer`` knows: for each packet, those that it sends.

    Where that is None it hangs up. ``heard`` has what came, on any connection.
    """

    def __init__(self, answer: Callable[[bytes], Iterable[bytes] | None]) -> None:
        self._answer = answer
        self.heard: list[bytes] = []
        super().__init__()

    def _serve(self, connection: socket.socket) -> None:
        with connection, suppress(OSError):
            for packet in Packets(connection):
                self.heard.append(packet)
                said = self._answer(packet)
                if said is None:
                    return
                connection.sendall(b"".join(said))


def read_all(
    server: DocumentServer, dialect: str, end: dict[int, int], **options: Any
) -> list[Change]:
    """What a reader has of some vbuckets of a server, up to the ends of them."""
    chosen: dict[str, Any] = {"vbuckets": frozenset(end), "dialect": dialect, **SOON, **options}
    with Consumer(server.source, end=end, **chosen) as consumer:
        return list(consumer)


def goes_back_as_printed(
    dialect: str,
    knows: Callable[[Stream], DocumentServer],
    rest: Callable[[bytes, int], list[bytes]],
    back: bytes,
    start: int,
) -> None:
    """A reader at 20,000 goes back to 17,832, as 002 and 000 print it, and reads the rest.

    A stream request has its start seqno at the offset ``start``.
    """
    asked: list[int] = []

    def stream(request: bytes) -> list[bytes]:
        asked.append(int.from_bytes(request[start : start + 8]))
        return [reply(request, back)] if len(asked) == 1 else rest(request, asked[-1] + 1)

    told: list[Rollback] = []
    log = FailoverLog.of((0xDF2, 0xF294), (0x7B43, 0x9321))
    where = at(20_000, vbuuid=0x7B43, log=log, boundaries=(17_832, 20_000))
    with knows(stream) as server:
        changes = read_all(
            server, dialect, {12: 17_835}, start={12: where}, on_rollback=told.append
        )
    assert [change.seqno for change in changes] == [17_833, 17_834, 17_835]
    assert asked == [20_000, 17_832]
    assert [(x.vbucket, x.from_seqno, x.to_seqno) for x in told] == [(12, 20_000, 17_832)]


class Alone(NamedTuple):
    """A server that knows one document, and what a reader has to be told of it."""

    dialect: str
    server: Callable[[], DocumentServer]
    vbucket: int
    #: The seqnos of its three changes.
    seqnos: tuple[int, int, int]


# ---- document 002 ------------------------------------------------------------------------

ITEM_002 = struct.Struct(
    ">"
    "B"  # type
    "B"  # reserved
    "H"  # key length
    "Q"  # cas
    "Q"  # by seqno
    "Q"  # rev seqno
    "I"  # item flags
    "I"  # item expiration
)


def knows_002(stream: Stream, log: bytes = RIGHT["002", 7]) -> DocumentServer:
    """It knows the two requests of the document, and hangs up on anything else."""

    def answer(packet: bytes) -> Iterable[bytes] | None:
        kind = (packet[0], packet[12]) if len(packet) > 12 else ()
        if kind == (1, 1):
            return stream(packet)
        return [reply(packet, log)] if kind == (1, 2) else None

    return DocumentServer(answer)


def message_002(request: bytes, opcode: int, body: bytes) -> bytes:
    """A message that follows from a request."""
    return struct.pack(">B3x4sI", opcode, request[4:8], len(body)) + body


def stream_002(request: bytes, first: int = 1) -> list[bytes]:
    """A whole stream, whose first change has this seqno."""
    changes = [
        ITEM_002.pack(3, 0, 5, 165, first, 3, 7, 9) + u32(0) + b"mykey" + b"myvalue",
        ITEM_002.pack(4, 0, 5, 166, first + 1, 4, 0, 0) + b"mykey",
        ITEM_002.pack(5, 0, 5, 167, first + 2, 5, 0, 0) + b"mykey",
    ]
    messages = [b"\1\0\0\0", *changes, b"\2\0\0\0"]
    return [
        reply(request, RIGHT["002", 3]),
        message_002(request, 3, request[14:16]),
        *(message_002(request, 4, body) for body in messages),
        message_002(request, 5, u32(0)),
    ]


# ---- document 000 ------------------------------------------------------------------------

#: The seqno of the printed changes.
SEQNO_000: Final = 0x8CB


def knows_000(stream: Stream, log: bytes = RIGHT["000", 8]) -> DocumentServer:
    """It knows the two requests of the document."""

    def answer(packet: bytes) -> Iterable[bytes]:
        asked = Packet.of(packet)
        if (asked.opcode, asked.extras_length) == (0x50, 40):
            return stream(packet)
        return [reply(packet, log) if asked.opcode == 0x51 else plain(packet, 0x81)]

    return DocumentServer(answer)


def stream_000(request: bytes, first: int = SEQNO_000) -> list[bytes]:
    """The printed packets of a stream, whose first change has this seqno."""
    items = [changed(RIGHT["000", 12 + n], (24, u64(first + n))) for n in range(3)]
    before, after = [RIGHT["000", n] for n in (4, 9, 10)], [RIGHT["000", n] for n in (11, 16)]
    return [reply(request, packet) for packet in (*before, *items, *after)]


# ---- document 001 ------------------------------------------------------------------------


def knows_001(stream: Stream, log: bytes = RIGHT["001", 11]) -> DocumentServer:
    """It knows Open, the failover log, Close Stream and streams."""

    def answer(packet: bytes) -> Iterable[bytes]:
        asked = Packet.of(packet)
        if (asked.opcode, asked.extras_length) == (0x50, 8):
            return [reply(packet, _OPENED)]
        if (asked.opcode, asked.extras_length) == (0x53, 40):
            return stream(packet)
        if asked.opcode == 0x54:
            return [changed(reply(packet, log), (1, b"\x54"))]
        return [plain(packet, 0 if asked.opcode == 0x52 else 0x81)]

    return DocumentServer(answer)


def stream_001(request: bytes, *more: bytes) -> list[bytes]:
    """The printed packets of a stream after the start that is asked for, and others before its end.

    The printed deletion and expiration have the same seqno; here the expiration has the next one.
    """
    accepted, end, marker = (RIGHT["001", n] for n in (11, 12, 13))
    mutation, deletion, expiration = (RIGHT["001", n] for n in (14, 15, 16))
    items = [mutation, deletion, changed(expiration, (24, u64(6)))]
    wanted = [item for item in items if item[24:32] > request[_START : _START + 8]]
    place = (_VBUCKET, request[_VBUCKET : _VBUCKET + 2])
    packets = [changed(packet, place) for packet in (marker, *wanted, *more, end)]
    return [reply(request, packet) for packet in (accepted, *packets)]


# ---- document 004 ------------------------------------------------------------------------


def knows_004(stream: Stream) -> DocumentServer:
    """It opens connections, and knows the failover log and the request of the document."""

    def answer(packet: bytes) -> Iterable[bytes]:
        asked = Packet.of(packet)
        if asked.opcode == 0x50:
            return [reply(packet, _OPENED)]
        if asked.opcode == 0x54:
            return [changed(reply(packet, _LOG_004), (1, b"\x54"))]
        if (asked.opcode, asked.extras_length) == (0x53, 48):
            return stream(packet)
        return [plain(packet, 0x81)]

    return DocumentServer(answer)


def marker_004(request: bytes, start: int, end: int) -> bytes:
    head = changed(plain(request)[:24], (0, b"\x80\x56"), (4, b"\x14"), (8, u32(20)))
    return head + u64(start) + u64(end) + u32(1)


ALONE: Final = (
    Alone("002", lambda: knows_002(stream_002), 12, (1, 2, 3)),
    Alone("000", lambda: knows_000(stream_000), 12, (SEQNO_000, SEQNO_000 + 1, SEQNO_000 + 2)),
    Alone("001", lambda: knows_001(stream_001), 0, (4, 5, 6)),
)
