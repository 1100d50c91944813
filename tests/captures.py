"""Writes captures for tests: TCP segments over raw IP in a pcap file."""

from __future__ import annotations

import struct
from collections.abc import Iterable

SERVER_PORT = 11210


def segment(payload: bytes, sequence: int, *, to_server: bool = True) -> bytes:
    """One TCP segment in an IPv4 packet."""
    ports = (40000, SERVER_PORT) if to_server else (SERVER_PORT, 40000)
    addresses = [bytes([127, 0, 0, 1]), bytes([127, 0, 0, 2])]
    if not to_server:
        addresses.reverse()
    tcp = struct.pack(">HHIIBBHHH", *ports, sequence % 2**32, 1, 0x50, 0x18, 65535, 0, 0) + payload
    head = struct.pack(">BBHHHBBH", 0x45, 0, 20 + len(tcp), 0, 0, 64, 6, 0)
    return head + b"".join(addresses) + tcp


def pcap(frames: Iterable[bytes], *, link: int = 101) -> bytes:
    """A capture of frames; link type 101 is raw IP."""
    out = [struct.pack("<IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, 262144, link)]
    for frame in frames:
        out.append(struct.pack("<IIII", 0, 0, len(frame), len(frame)) + frame)
    return b"".join(out)


def pcapng(frames: Iterable[bytes], *, link: int = 101) -> bytes:
    """The same in the newer format."""

    def block(kind: int, body: bytes) -> bytes:
        body += bytes(-len(body) % 4)
        size = len(body) + 12
        return struct.pack("<II", kind, size) + body + struct.pack("<I", size)

    out = [
        block(0x0A0D0D0A, struct.pack("<IHHq", 0x1A2B3C4D, 1, 0, -1)),
        block(1, struct.pack("<HHI", link, 0, 262144)),
    ]
    for frame in frames:
        out.append(block(6, struct.pack("<IIIII", 0, 0, 0, len(frame), len(frame)) + frame))
    return b"".join(out)


def stream(packets: Iterable[bytes], *, to_server: bool = True) -> list[bytes]:
    """One segment for each packet, one behind the other."""
    segments, sequence = [], 1
    for packet in packets:
        segments.append(segment(packet, sequence, to_server=to_server))
        sequence += len(packet)
    return segments
