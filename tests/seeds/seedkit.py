"""What the tests of the five documents send, take apart and compare."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, NamedTuple, Self

from talk import HEADER, Listening, Talk

from upriver.model import FailoverLog, VBucketState
from upriver.store import Applied, BeginSnapshot, Replicate
from upriver.testing import TemporaryProducer
from upriver.wire import canonical

#: Quick to try again, for readers whose server refuses something once.
SOON: dict[str, Any] = {"retry_first": 0.01, "retry_most": 0.05}

_HEADER_002 = struct.Struct(
    ">"
    "B"  # opcode
    "3s"  # reserved
    "I"  # request id
    "I"  # length of what follows
)


class Packet002(NamedTuple):
    """A packet of document 002, cut by its header."""

    opcode: int
    reserved: bytes
    request: int
    length: int
    body: bytes

    @classmethod
    def of(cls, packet: bytes) -> Self:
        return cls._make((*_HEADER_002.unpack_from(packet), packet[_HEADER_002.size :]))


class Packet(NamedTuple):
    """A packet with memcached's header, cut by that."""

    magic: int
    opcode: int
    key_length: int
    extras_length: int
    datatype: int
    #: The vbucket of a request, the status of an answer.
    place: int
    length: int
    opaque: int
    cas: int
    body: bytes

    @classmethod
    def of(cls, packet: bytes) -> Self:
        return cls._make((*HEADER.unpack_from(packet), packet[HEADER.size :]))


def request_002(body: bytes, request: int = 0x2D) -> bytes:
    return _HEADER_002.pack(1, bytes(3), request, len(body)) + body


def changed(packet: bytes, *changes: tuple[int, bytes]) -> bytes:
    """A packet with other bytes at some offsets."""
    copy = bytearray(packet)
    for at, data in changes:
        copy[at : at + len(data)] = data
    return bytes(copy)


def u16(number: int) -> bytes:
    return number.to_bytes(2)


def u32(number: int) -> bytes:
    return number.to_bytes(4)


def u64(number: int) -> bytes:
    return number.to_bytes(8)


def exchange(talk: Talk, packet: bytes) -> bytes:
    """Sends bytes and returns those of the next packet."""
    talk.socket.sendall(packet)
    return talk.packet()


def packets_until(talk: Talk, last: Callable[[bytes], bool]) -> list[bytes]:
    """Packets up to and with the first for which this is true."""
    found = [talk.packet()]
    while not last(found[-1]):
        found.append(talk.packet())
    return found


def is_closed(producer: Listening, *packets: bytes) -> bool:
    """Whether a new connection is closed after some packets, whatever is said before that."""
    with Talk(producer) as talk:
        talk.socket.sendall(b"".join(packets))
        return talk.is_closed()


def give(
    producer: TemporaryProducer,
    vbucket: int,
    *frames: bytes,
    log: tuple[tuple[int, int], ...],
) -> None:
    """Gives a vbucket stored changes, as one snapshot, and a failover log."""
    bucket = producer.bucket
    bucket.set_state(vbucket, VBucketState.REPLICA)
    if frames:
        snapshot = BeginSnapshot(vbucket, 1, canonical.seqno_of(frames[-1]))
        changes = [Replicate(vbucket, frame) for frame in frames]
        for outcome in bucket.write_many([snapshot, *changes]):
            assert isinstance(outcome, Applied), outcome
    bucket.set_failover_log(vbucket, FailoverLog.of(*log))
    bucket.set_state(vbucket, VBucketState.ACTIVE, transfer=True)


def give_three(producer: TemporaryProducer, vbucket: int, branch: int) -> None:
    """Gives a vbucket three changes in one snapshot."""
    frames = (canonical.mutation(vbucket, n, 1, n, 0, 0, 0, b"\0k%d" % n, b"v") for n in (1, 2, 3))
    give(producer, vbucket, *frames, log=((branch, 0),))


def plain(request: bytes, status: int = 0, value: bytes = b"") -> bytes:
    """An answer with memcached's header, a status and perhaps a value."""
    asked = Packet.of(request)
    head = HEADER.pack(0x81, asked.opcode, 0, 0, 0, status, len(value), asked.opaque, 0)
    return head + value


def reply(request: bytes, packet: bytes) -> bytes:
    """A packet of a document with the opaque, or request id, of what it answers."""
    at = 4 if request[0] < 0x80 else 12
    return changed(packet, (at, request[at : at + 4]))
