"""Reads packet captures: the bytes of each TCP connection, one piece per direction.

Reads pcap and pcapng files of Ethernet, Linux cooked, raw IP and loopback links, IPv4 and IPv6.
Segments are ordered by their sequence numbers; a gap ends a piece, and the bytes after it begin a
new one. Packets without a TCP payload are skipped.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final, NamedTuple

_PCAP_MAGICS: Final = {
    b"\xd4\xc3\xb2\xa1": "<",
    b"\xa1\xb2\xc3\xd4": ">",
    b"\x4d\x3c\xb2\xa1": "<",
    b"\xa1\xb2\x3c\x4d": ">",
}
_PCAPNG_MAGIC: Final = b"\x0a\x0d\x0d\x0a"
_PCAPNG_LITTLE: Final = b"\x4d\x3c\x2b\x1a"
_INTERFACE_BLOCK: Final = 1
_SIMPLE_PACKET_BLOCK: Final = 3
_PACKET_BLOCK: Final = 6

_NULL, _ETHERNET, _RAW, _COOKED, _COOKED_2 = 0, 1, 101, 113, 276
_LINK_HEADER: Final = {_NULL: 4, _ETHERNET: 14, _RAW: 0, _COOKED: 16, _COOKED_2: 20}
_TCP: Final = 6
_VLAN: Final = b"\x81\x00"


class _Segment(NamedTuple):
    flow: tuple[bytes, bytes, bytes]
    sequence: int
    payload: bytes


def is_capture(raw: bytes) -> bool:
    """Whether a file is a packet capture."""
    return raw[:4] in _PCAP_MAGICS or raw[:4] == _PCAPNG_MAGIC


def pieces_of_capture(raw: bytes) -> list[bytes]:
    """The streams of a capture, in the order in which they began; ValueError if it is broken."""
    records = _pcapng(raw) if raw[:4] == _PCAPNG_MAGIC else _pcap(raw)
    flows: dict[tuple[bytes, bytes, bytes], list[_Segment]] = {}
    for link, frame in records:
        segment = _segment(link, frame)
        if segment is not None:
            flows.setdefault(segment.flow, []).append(segment)
    return [piece for segments in flows.values() for piece in _ordered(segments)]


def _pcap(raw: bytes) -> Iterator[tuple[int, bytes]]:
    order = _PCAP_MAGICS[raw[:4]]
    if len(raw) < 24:
        raise ValueError("the capture's header is truncated")
    link = struct.unpack_from(order + "I", raw, 20)[0] & 0x0FFFFFFF
    at = 24
    while at + 16 <= len(raw):
        size = struct.unpack_from(order + "I", raw, at + 8)[0]
        at += 16
        yield link, raw[at : at + size]
        at += size


def _pcapng(raw: bytes) -> Iterator[tuple[int, bytes]]:
    order, at = "<", 0
    links: list[int] = []
    while at + 12 <= len(raw):
        if raw[at : at + 4] == _PCAPNG_MAGIC:
            order = "<" if raw[at + 8 : at + 12] == _PCAPNG_LITTLE else ">"
            links = []
        kind, size = struct.unpack_from(order + "II", raw, at)
        if size < 12 or size % 4 or at + size > len(raw):
            raise ValueError(f"the capture's block at byte {at} is truncated")
        body = raw[at + 8 : at + size - 4]
        if kind == _INTERFACE_BLOCK and len(body) >= 2:
            links.append(struct.unpack_from(order + "H", body)[0])
        elif kind == _PACKET_BLOCK and len(body) >= 20:
            interface, _, _, captured = struct.unpack_from(order + "IIII", body)
            if interface < len(links):
                yield links[interface], body[20 : 20 + captured]
        elif kind == _SIMPLE_PACKET_BLOCK and links and len(body) >= 4:
            yield links[0], body[4:]
        at += size


def _segment(link: int, frame: bytes) -> _Segment | None:
    """The TCP payload of a captured frame, if it has one."""
    start = _LINK_HEADER.get(link)
    if start is None:
        raise ValueError(f"captures of link type {link} are not supported")
    if link == _ETHERNET and frame[12:14] == _VLAN:
        start += 4
    packet = frame[start:]
    version = packet[0] >> 4 if packet else 0
    if version == 4 and len(packet) >= 20 and packet[9] == _TCP:
        head = (packet[0] & 0x0F) * 4
        addresses = packet[12:16], packet[16:20]
        packet = packet[: int.from_bytes(packet[2:4], "big") or len(packet)]
    elif version == 6 and len(packet) >= 40 and packet[6] == _TCP:
        head = 40
        addresses = packet[8:24], packet[24:40]
        packet = packet[: 40 + (int.from_bytes(packet[4:6], "big") or len(packet))]
    else:
        return None
    tcp = packet[head:]
    if len(tcp) < 20:
        return None
    payload = tcp[(tcp[12] >> 4) * 4 :]
    if not payload:
        return None
    flow = (*addresses, tcp[:4])
    return _Segment(flow, int.from_bytes(tcp[4:8], "big"), payload)


def _ordered(segments: list[_Segment]) -> Iterator[bytes]:
    """The bytes of one direction of a connection, without retransmissions."""
    base = segments[0].sequence
    lowest = min(_distance(base, s.sequence) for s in segments)
    base = (base + lowest) % 2**32
    piece, expected = bytearray(), 0
    for segment in sorted(segments, key=lambda s: _distance(base, s.sequence)):
        at = _distance(base, segment.sequence)
        if at > expected and piece:
            yield bytes(piece)
            piece = bytearray()
        fresh = segment.payload[max(0, expected - at) :] if at <= expected else segment.payload
        piece += fresh
        expected = max(expected, at + len(segment.payload))
    if piece:
        yield bytes(piece)


def _distance(base: int, sequence: int) -> int:
    """The distance between two sequence numbers, modulo 2**32."""
    distance = (sequence - base) % 2**32
    return distance if distance < 2**31 else distance - 2**32
