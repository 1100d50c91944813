"""Bulk decoding of DCP frames: changes become Arrow columns, other frames are located.

This package works on bytes and Arrow; it has no connection and no rules of streams. ``__impl__``
names the implementation in use, ``c`` or ``numpy``.
"""

from .frame_selection import LeftFrame, Part, Selected, Selection
from .implementation import chosen as _chosen
from .result import SCHEMA, ControlFrame, Decoded

__all__ = [
    "SCHEMA",
    "ControlFrame",
    "Decoded",
    "LeftFrame",
    "Part",
    "Selected",
    "Selection",
    "__impl__",
    "decode",
    "patch_opaque",
    "select",
]

_implementation = _chosen()
__impl__ = _implementation.name
decode = _implementation.decode
patch_opaque = _implementation.patch_opaque
select = _implementation.select
