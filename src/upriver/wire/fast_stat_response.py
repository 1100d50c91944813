"""Fast decoding of a statistics response, of which one question brings thousands.

For every other packet it returns None, and the caller decodes it with the dialect. The result
always equals that of the dialect.
"""

from __future__ import annotations

from typing import Final

from . import kv_messages as kv
from .dialects import Dcp
from .header import HEADER_SIZE
from .limits import MAX_KEY

#: Header of every statistics response, except for its lengths and its opaque.
_STATISTIC: Final = Dcp().encode(kv.StatResponse())


def quick_statistic(packet: bytes) -> kv.StatResponse | None:
    """Decodes a statistics response; None for other packets."""
    if packet[:2] != _STATISTIC[:2] or packet[4:8] != _STATISTIC[4:8]:
        return None
    body, length = packet[HEADER_SIZE:], int.from_bytes(packet[2:4])
    if length > min(len(body), MAX_KEY) or not body.isascii():
        return None
    return kv.StatResponse(
        opaque=int.from_bytes(packet[12:16]), key=body[:length].decode(), value=body[length:]
    )
