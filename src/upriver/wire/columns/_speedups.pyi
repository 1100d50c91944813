from typing_extensions import Buffer

LIMITS: tuple[int, int, int, int, int, int, int, int, int]

def measure(buffer: Buffer, collections: bool, /) -> tuple[int, int, int, int, int]:
    """Bytes of whole frames, rows, bytes of keys, bytes of values, other frames."""

def fill(buffer: Buffer, collections: bool, /, *columns: Buffer) -> None:
    """Fills columns of exactly the measured size: the fixed ones, key offsets, keys, value
    offsets, values, and three numbers for each other frame."""

def patch_opaque(buffer: Buffer, opaque: int, /) -> tuple[int, int]:
    """Frames patched, and their bytes."""

def select(
    buffer: Buffer,
    parts: int,
    opaque: int,
    stream_id: int,
    all_collections: bool,
    collections: Buffer,
    out: Buffer,
    places: Buffer,
    /,
) -> tuple[int, int, int, int, int]:
    """Bytes looked at, bytes written to ``out``, packets, frames left with three numbers each in
    ``places``, the last seqno."""
