"""Many DCP frames at once: changes become Arrow columns, everything else is pointed at.

The columns know bytes and Arrow; they know no connection, and nothing of what a stream may
send when. ``__impl__`` says which implementation is in use, ``c`` or ``numpy``.
"""

from .choice import chosen as _chosen
from .result import SCHEMA, ControlFrame, Decoded

__all__ = ["SCHEMA", "ControlFrame", "Decoded", "__impl__", "decode", "patch_opaque"]

_implementation = _chosen()
__impl__ = _implementation.name
decode = _implementation.decode
patch_opaque = _implementation.patch_opaque
