"""Helpers for people who test change-stream code: real producers, and networks that break."""

from .chaos import ChaosProxy, Direction
from .cluster import TemporaryCluster
from .memory import MemoryLink, MemoryProducer
from .misfortune import Faults
from .relay import ChaosCounts
from .temporary import TemporaryProducer

__all__ = [
    "ChaosCounts",
    "ChaosProxy",
    "Direction",
    "Faults",
    "MemoryLink",
    "MemoryProducer",
    "TemporaryCluster",
    "TemporaryProducer",
]
