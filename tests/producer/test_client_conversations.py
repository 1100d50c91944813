"""What clients that others built send to read a bucket, byte for byte, and what they need to hear.

The bytes of gocbcore 10.9 and of gomemcached were recorded, without their authentication; the last
five controls of gomemcached and all of java-dcp-client are written down from their sources, in the
order in which they send them.
"""

from __future__ import annotations

import json
import socket
import struct
from collections.abc import Iterator, Sequence

import pytest
from packets import Packets
from talk import PATIENCE

from upriver.testing import TemporaryProducer

HEADER = struct.Struct(">BBHBBHIIQ")
HELLO, SELECT, OPEN, CONTROL, STREAM, END = 0x1F, 0x89, 0x50, 0x5E, 0x53, 0x55
CONFIG, MANIFEST, SEQNOS, LOG, VERSION, CLOSE = 0xB5, 0xBA, 0x48, 0x54, 0x0B, 0x52
MUTATION = 0x57

GOCBCORE = (
    (
        "801f004400000000000000660000000100000000000000007b2261223a22676f6362636f72652f7631302e39"
        "2e3120747279222c2269223a22353238646437613538366663303632632f6238626563396362316235343734"
        "3737227d000200060008001e001d000c0007000b000a001300120010001700190014001c0011"
    ),
    "80fe000000000000000000020000000200000000000000000002",
    "80890007000000000000000700000005000000000000000064656661756c74",
    "80b500000000000000000000000000060000000000000000",
    (
        "8050000e080000000000001600000007000000000000000000000000000000257472792d6576657279746869"
        "6e67"
    ),
    "805e000b000000000000000f000000080000000000000000656e61626c655f6e6f6f7074727565",
    "805e001100000000000000140000000900000000000000007365745f6e6f6f705f696e74657276616c313830",
    "805e000c00000000000000100000000a00000000000000007365745f7072696f7269747968696768",
    (
        "805e001400000000000000180000000b0000000000000000656e61626c655f6578706972795f6f70636f6465"
        "74727565"
    ),
    "805e001000000000000000140000000c0000000000000000656e61626c655f73747265616d5f696474727565",
    (
        "805e001d00000000000000350000000d0000000000000000656e61626c655f6f75745f6f665f6f726465725f"
        "736e617073686f7473747275655f776974685f7365716e6f5f616476616e636564"
    ),
    (
        "805e000e00000000000000180000000e00000000000000006261636b66696c6c5f6f7264657273657175656e"
        "7469616c"
    ),
    (
        "805e0016000000000000001a0000000f0000000000000000636f6e6e656374696f6e5f6275666665725f7369"
        "7a6534303936"
    ),
    ("805e001200000000000000150000001000000000000000006d61785f6d61726b65725f76657273696f6e322e32"),
    (
        "805e0026000000000000002a00000011000000000000000073656e645f73747265616d5f656e645f6f6e5f63"
        "6c69656e745f636c6f73655f73747265616d74727565"
    ),
    "80480000040000000000000400000012000000000000000000000001",
    "8048000008000000000000080000001300000000000000000000000100000000",
    "805400000000000100000000000000140000000000000000",
    (
        "80530000300000010000005700000015000000000000000000000010000000000000000000000000ffffffff"
        "ffffffff0000000000000000000000000000000000000000000000007b22756964223a2230222c22636f6c6c"
        "656374696f6e73223a5b2230225d2c22736964223a377d"
    ),
    "085203000000000100000003000000160000000000000000220007",
)
GOMEMCACHED = (
    (
        "801f000f0000000000000019000000000000000000000000676f6d656d6361636865642d7472790006000700"
        "0a000b0012"
    ),
    "80890007000000000000000700000000000000000000000064656661756c74",
    (
        "8050000f0800000000000017beaf000200000000000000000000000000000025676f6d656d6361636865642d"
        "747279"
    ),
    (
        "805e0016000000000000001bbeaf00030000000000000000636f6e6e656374696f6e5f6275666665725f7369"
        "7a653230303030"
    ),
    "805e000b000000000000000fbeaf00040000000000000000656e61626c655f6e6f6f7074727565",
    "805e00110000000000000014beaf000500000000000000007365745f6e6f6f705f696e74657276616c313230",
    (
        "805e0019000000000000001dbeaf00060000000000000000666c6174627566666572735f73797374656d5f65"
        "76656e747374727565"
    ),
    (
        "805e0017000000000000001bbeaf00070000000000000000666f7263655f76616c75655f636f6d7072657373"
        "696f6e74727565"
    ),
    "805e000c0000000000000010beaf000800000000000000007365745f7072696f7269747968696768",
    (
        "805e00140000000000000018beaf00090000000000000000656e61626c655f6578706972795f6f70636f6465"
        "74727565"
    ),
    (
        "805e001d0000000000000021beaf000a0000000000000000656e61626c655f6f75745f6f665f6f726465725f"
        "736e617073686f747374727565"
    ),
    (
        "805e0026000000000000002abeaf000b000000000000000073656e645f73747265616d5f656e645f6f6e5f63"
        "6c69656e745f636c6f73655f73747265616d74727565"
    ),
    (
        "80530000300000010000004f00050001000000000000000000000000000000000000000000000000ffffffff"
        "ffffffff0000000000000000000000000000000000000000000000007b22756964223a2230222c22636f6c6c"
        "656374696f6e73223a5b2230225d7d"
    ),
    "805200000000000100000000000500010000000000000000",
)


def packet(
    opcode: int, key: str = "", value: bytes = b"", extras: bytes = b"", vbucket: int = 0
) -> str:
    body = extras + key.encode() + value
    sizes = (len(key), len(extras), 0, vbucket, len(body))
    return (HEADER.pack(0x80, opcode, *sizes, opcode, 0) + body).hex()


JAVA_NAME = 'java-dcp-client:{"i":"528DD7A586FC062C/B8BEC9CB1B547477","a":"java-dcp-client/0.57.0"}'
JAVA = (
    packet(VERSION),
    packet(HELLO, JAVA_NAME, bytes.fromhex("0001 0006 0007 0008 000a 000c 000d 0012")),
    packet(SELECT, "default"),
    packet(OPEN, JAVA_NAME.replace("{", "").replace("}", ""), extras=bytes(7) + b"\x21"),
    packet(CONFIG),
    packet(CONTROL, "enable_noop", b"true"),
    packet(CONTROL, "set_noop_interval", b"120"),
    packet(CONTROL, "connection_buffer_size", b"1048576"),
    packet(MANIFEST),
    packet(SEQNOS, extras=struct.pack(">I", 1)),
    packet(LOG, vbucket=1),
    packet(
        STREAM,
        value=b'{"uid":"0","collections":["0"]}',
        extras=struct.pack(">IIQQQQQ", 0, 0, 0, 2**64 - 1, 0, 0, 0),
        vbucket=1,
    ),
    packet(CLOSE, vbucket=1),
)


@pytest.fixture(scope="module")
def producer() -> Iterator[TemporaryProducer]:
    with TemporaryProducer(vbuckets=4) as producer:
        for number in range(20):
            producer.write(b"key%d" % number, b"v" * 300)
        yield producer


class Client:
    """A socket on which recorded requests are sent one by one, each after the last answer."""

    def __init__(self, producer: TemporaryProducer) -> None:
        self.socket = socket.create_connection((producer.host, producer.port), timeout=PATIENCE)
        self._packets = Packets(self.socket)
        #: What the server sent of itself, by opcode.
        self.pushed: list[int] = []

    def ask(self, request: bytes) -> tuple[int, bytes]:
        """The status and the value of the answer to a request."""
        self.socket.sendall(request)
        while (answer := self._packets.next())[0] != 0x81:
            self.pushed.append(answer[1])
        _, opcode, key, extras, _, status, _, opaque, _ = HEADER.unpack_from(answer)
        assert (opcode, opaque) == (request[1], int.from_bytes(request[12:16], "big"))
        return status, answer[HEADER.size + extras + key :]

    def until(self, opcode: int) -> None:
        while opcode not in self.pushed:
            self.pushed.append(self._packets.next()[1])


@pytest.mark.parametrize(
    "conversation",
    [
        pytest.param(GOCBCORE, id="gocbcore"),
        pytest.param(GOMEMCACHED, id="gomemcached"),
        pytest.param(JAVA, id="java-dcp-client"),
    ],
)
def test_a_client_reads_a_vbucket(producer: TemporaryProducer, conversation: Sequence[str]) -> None:
    client = Client(producer)
    with client.socket:
        for recorded in conversation:
            request = bytes.fromhex(recorded)
            if request[1] == CLOSE:
                client.until(MUTATION)
            status, value = client.ask(request)
            assert status == 0, (hex(request[1]), request, value)
            if request[1] == CONFIG:
                assert len(json.loads(value)["vBucketServerMap"]["vBucketMap"]) == 4
            elif request[1] in (LOG, STREAM):
                assert len(value) == 16
            elif request[1] == SEQNOS:
                assert len(value) == 4 * 10
            elif request[1] == VERSION:
                assert tuple(map(int, value.split(b"-")[0].split(b"."))) >= (7, 0, 0)
        if conversation is not JAVA:  # it has not asked for the end of streams that it closes
            client.until(END)
