"""Test helpers for change-stream code: temporary servers and clusters, and a fault-injecting proxy.

Names are imported at their first use, so that the proxy can be used without the server's packages.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .._lazy import lazily

if TYPE_CHECKING:
    from .chaos_proxy import ChaosProxy, Direction
    from .memory_producer import MemoryLink, MemoryProducer
    from .network_faults import Faults
    from .proxied_connection import ChaosCounts
    from .temporary_cluster import TemporaryCluster
    from .temporary_producer import TemporaryProducer

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

__getattr__ = lazily(
    __name__,
    {
        "ChaosCounts": ".proxied_connection",
        "ChaosProxy": ".chaos_proxy",
        "Direction": ".chaos_proxy",
        "Faults": ".network_faults",
        "MemoryLink": ".memory_producer",
        "MemoryProducer": ".memory_producer",
        "TemporaryCluster": ".temporary_cluster",
        "TemporaryProducer": ".temporary_producer",
    },
)
