"""The interface of the columns, with the checks that are common to both implementations.

An implementation processes whole frames from a window of bytes and returns how far it came.
Arguments, and the case of no whole frame, are checked here once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeAlias

from ...errors import DecodeError
from ..framing import packet_length
from ..header import HEADER_SIZE, MAGICS
from .frame_selection import Selected, Selection
from .result import NOTHING, Decoded

Buffer: TypeAlias = bytes | bytearray | memoryview

#: Arrow's binary columns have 31-bit offsets, so one call processes no more of a buffer; the rest
#: is left for the next call.
MAX_WINDOW: Final = 2**31 - 1

#: The most bytes of stored frames in one call. A chunk has far less; the numpy implementation
#: addresses frames and packets together with 31-bit offsets.
MAX_SELECTED: Final = 2**30 - 1

_MAX_OPAQUE: Final = 0xFFFFFFFF
_MAX_STREAM_ID: Final = 0xFFFF
_MAX_COLLECTION: Final = 0xFFFFFFFF


@dataclass(frozen=True, slots=True)
class Implementation:
    """One implementation of the columns. All have the same results."""

    name: str
    #: Decodes a window; the flag says whether keys carry their collection. Consumes nothing if
    #: the first frame is incomplete or invalid.
    decode_window: Callable[[memoryview, bool], Decoded]
    #: Writes an opaque into writable frames; returns how many were patched, and their bytes.
    patch_frames: Callable[[memoryview, int], tuple[int, int]]
    #: Selects from whole stored frames, up to the first that the caller has to process.
    select_frames: Callable[[memoryview, Selection], Selected]

    def decode(self, buffer: Buffer, *, collections: bool) -> Decoded:
        """Decodes the whole frames at the start of ``buffer``: changes as rows, others by position.

        A frame is a row exactly if `Dcp` would decode it as a change, with no framing extras or
        with a stream id alone. Raises a fatal `DecodeError` if the first frame has an invalid
        header; if a later one has, those before it are returned, and the next call raises.
        """
        view = memoryview(buffer).cast("B")[:MAX_WINDOW]
        head, size = bytes(view[:HEADER_SIZE]), len(view)
        del view  # the exception's traceback would keep it alive, which locks a bytearray
        # The rest of a buffer is often a part of a frame: return early, without making columns.
        if not _is_whole(head, size):
            return NOTHING
        return self.decode_window(memoryview(buffer).cast("B")[:MAX_WINDOW], collections)

    def patch_opaque(self, buffer: bytearray | memoryview, opaque: int) -> int:
        """Writes ``opaque`` into every frame of ``buffer``, and returns how many there are.

        ValueError if ``buffer`` is not made of whole frames; those before the fault are patched.
        """
        if not 0 <= opaque <= _MAX_OPAQUE:
            raise ValueError(f"an opaque must be an unsigned 32-bit number, not {opaque}")
        view = memoryview(buffer).cast("B")
        if view.readonly:
            raise TypeError("the buffer must be writable")
        frames, whole = self.patch_frames(view, opaque)
        size = len(view)
        if whole != size:
            del view
            raise ValueError(f"there is no whole frame at byte {whole} of {size}")
        return frames

    def select(self, buffer: Buffer, selection: Selection) -> Selected:
        """The packets for the stored frames in ``buffer`` that match ``selection``.

        ValueError if a frame is not whole, or if a number of the selection does not fit.
        """
        _check(selection)
        view = memoryview(buffer).cast("B")
        if len(view) > MAX_SELECTED:
            raise ValueError(f"{len(view)} bytes are more than the limit of {MAX_SELECTED}")
        selected = self.select_frames(view, selection)
        at, size = selected.consumed, len(view)
        if at < size and not _is_framed(view[at : at + HEADER_SIZE], size - at):
            del view
            raise ValueError(f"there is no whole frame at byte {at} of {size}")
        return selected


def _check(selection: Selection) -> None:
    if not 0 <= selection.opaque <= _MAX_OPAQUE:
        raise ValueError(f"an opaque must be an unsigned 32-bit number, not {selection.opaque}")
    if selection.stream_id is not None and not 0 <= selection.stream_id <= _MAX_STREAM_ID:
        raise ValueError(f"a stream id is an unsigned 16-bit number, not {selection.stream_id}")
    wanted = selection.collections
    if wanted and not 0 <= wanted[0] <= wanted[-1] <= _MAX_COLLECTION:
        raise ValueError("collection ids must be ascending unsigned 32-bit numbers")


def _is_framed(head: memoryview, size: int) -> bool:
    """Whether ``head`` begins a whole, valid frame within ``size`` bytes."""
    try:
        return _is_whole(bytes(head), size)
    except DecodeError:
        return False


def _is_whole(head: bytes, size: int) -> bool:
    """Whether the frame of ``head`` is within ``size`` bytes; raises for an invalid header.

    Draft 002's header is valid for framing, but it shares no frame with DCP and is refused too.
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
