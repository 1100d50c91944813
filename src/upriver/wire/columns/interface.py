"""What an implementation of the columns is, and what holds for every one of them.

An implementation takes whole frames from a window of bytes and says how far it came. What a
caller may pass, and what happens where there is no whole frame, is decided here once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeAlias

from ...errors import DecodeError
from ..framing import packet_length
from ..header import HEADER_SIZE, MAGICS
from .result import NOTHING, Decoded

__all__ = ["MAX_WINDOW", "Buffer", "Implementation"]

Buffer: TypeAlias = bytes | bytearray | memoryview

#: Arrow's binary columns count with 31 bits, so no more of a buffer is looked at; what is left
#: is not consumed and comes with the next call.
MAX_WINDOW: Final = 2**31 - 1

_MAX_OPAQUE: Final = 0xFFFFFFFF


@dataclass(frozen=True, slots=True)
class Implementation:
    """One way to turn frames into columns. All ways have the same results."""

    name: str
    #: From the window and whether keys carry their collection; nothing consumed if the first
    #: frame is not whole or is none.
    decode_window: Callable[[memoryview, bool], Decoded]
    #: From the writable frames and the opaque: how many were patched, and their bytes.
    patch_frames: Callable[[memoryview, int], tuple[int, int]]

    def decode(self, buffer: Buffer, *, collections: bool) -> Decoded:
        """The whole frames at the start of ``buffer``: changes as columns, the others by place.

        A frame is a row exactly if `Dcp` would read it as a change, with no framing extras or
        with a stream id alone. Raises a fatal `DecodeError` if the first frame cannot be cut;
        where a later one cannot, those before it are returned, and the next call raises.
        """
        view = memoryview(buffer).cast("B")[:MAX_WINDOW]
        head, size = bytes(view[:HEADER_SIZE]), len(view)
        del view  # an exception would keep it, and with it lock a bytearray
        # what is left of a buffer is often a part of a frame, and columns are not made for that
        if not _is_whole(head, size):
            return NOTHING
        return self.decode_window(memoryview(buffer).cast("B")[:MAX_WINDOW], collections)

    def patch_opaque(self, buffer: bytearray | memoryview, opaque: int) -> int:
        """Writes ``opaque`` into every frame of ``buffer``, and returns how many there are.

        ValueError if ``buffer`` is not made of whole frames; those before the fault are patched.
        """
        if not 0 <= opaque <= _MAX_OPAQUE:
            raise ValueError(f"an opaque is an unsigned 32-bit number, not {opaque}")
        view = memoryview(buffer).cast("B")
        if view.readonly:
            raise TypeError("the buffer must be writable")
        frames, whole = self.patch_frames(view, opaque)
        size = len(view)
        if whole != size:
            del view
            raise ValueError(f"there is no whole frame at byte {whole} of {size}")
        return frames


def _is_whole(head: bytes, size: int) -> bool:
    """Whether the frame that begins so is within ``size`` bytes; raises if it cannot be cut.

    Draft 002 can be cut, but shares no frame with DCP, so it is refused as well.
    """
    length = packet_length(head)
    if head and head[0] not in MAGICS:
        raise DecodeError(
            dialect="dcp",
            packet="packet",
            field="first byte",
            offset=0,
            rule=f"{head[0]:#04x} begins a packet of draft 002",
            usable=False,
        )
    return length is not None and length <= size
