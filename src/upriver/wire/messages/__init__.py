"""The messages of the change stream, of all drafts, as dataclasses.

A message is a request or a response and has no opcodes or layouts: those belong to the dialects.
Not every dialect has every message or field; encoding one that it lacks raises `EncodeError`. The
key-value commands are in `kv_messages`.
"""

from __future__ import annotations

from . import changes, collections, message, streams
from .changes import *
from .collections import *
from .message import *
from .streams import *

__all__ = [*changes.__all__, *collections.__all__, *message.__all__, *streams.__all__]
