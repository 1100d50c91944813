"""Dialects: one codec per draft of the protocol, and detection of the draft that a peer speaks."""

from .dcp import Dcp
from .draft000 import Draft000
from .draft001 import Draft001
from .draft002 import Draft002
from .draft_detection import DialectPin, sniff
from .interface import Dialect, SnapshotStyle

__all__ = [
    "Dcp",
    "Dialect",
    "DialectPin",
    "Draft000",
    "Draft001",
    "Draft002",
    "SnapshotStyle",
    "sniff",
]
