"""Writes that are answered only when other nodes have them: how many, and whether they do.

Copies tell how far they are on their own streams, each time a snapshot is whole on their disk. A
write is safe once a majority of its copies, this node's own among them, have it there; every level
that can be asked for comes to that. It is seen by others meanwhile, and stays if the time is over:
then it is unknown whether it would outlive this node, and that is what its client is told.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from ..errors import Status
from ..model import VBucketState
from ..store import Bucket
from ..wire.frameinfo import Durability
from ..wire.messages import PlainResponse, Request
from ..wire.names import DurabilityLevel
from .keyvalue import ADMINISTERS, READS, WRITES, Later
from .keyvalue.answers import Responses

__all__ = [
    "DURABLE_COMMANDS",
    "CopyNames",
    "DurableWrite",
    "copy_names",
    "durability_of",
    "patience",
]

#: Seconds for a write that does not say how long it can wait: as on real servers.
_DEFAULT_SECONDS: Final = 10.0
_NOBODY: Final = -1
#: What changes a document, and so can be asked to be safe.
DURABLE_COMMANDS: Final = WRITES - READS - ADMINISTERS


@dataclass(frozen=True, slots=True)
class CopyNames:
    """The other nodes that have a vbucket, and how many of them must have a write."""

    others: frozenset[str]
    needed: int

    @property
    def are_enough(self) -> bool:
        return len(self.others) >= self.needed


def durability_of(request: Request) -> Durability | None:
    """What a request asks for beyond being stored here."""
    for info in request.frames:
        if isinstance(info, Durability) and info.level is not DurabilityLevel.NONE:
            return info
    return None


def copy_names(config: bytes) -> tuple[CopyNames, ...]:
    """The copies of each vbucket by the names of their nodes; empty if the map names none."""
    try:
        told: dict[str, Any] = json.loads(config)
        nodes = [node["nodeUUID"] for node in told["nodesExt"]]
        this = next(place for place, node in enumerate(told["nodesExt"]) if node.get("thisNode"))
        rows = told["vBucketServerMap"]["vBucketMap"]
        return tuple(
            CopyNames(
                frozenset(nodes[place] for place in row if place not in (_NOBODY, this)),
                len(row) // 2,  # with this node a majority of all copies
            )
            for row in rows
        )
    except (ValueError, KeyError, TypeError, IndexError, StopIteration, RecursionError):
        return ()


def patience(wanted: Durability) -> float:
    """How many seconds a write can wait."""
    return _DEFAULT_SECONDS if wanted.timeout_ms is None else wanted.timeout_ms / 1000


@dataclass(slots=True)
class DurableWrite:
    """One write that is stored here first, and then waits to be safe."""

    bucket: Bucket
    vbucket: int
    names: CopyNames
    #: What is answered in place of a success, but for the status.
    refusal: PlainResponse
    #: Tells up to which seqno each node has the vbucket.
    copied: Callable[[], Mapping[str, int]]
    now: Callable[[], float]
    deadline: float

    def stored(self, responses: Responses) -> Responses | Later:
        """Takes what would be answered if being stored were enough."""
        if any(response.status is not Status.SUCCESS for response in responses):
            return responses
        stats = self.bucket.vbucket_stats(self.vbucket)
        # the write's own seqno or one shortly after it, which is as good
        seqno, branch = stats.high_seqno, stats.vbuuid

        def poll() -> Responses | None:
            status = self._settled(seqno, branch)
            if status is None or status is Status.SUCCESS:
                return responses if status else None
            return (replace(self.refusal, status=status),)

        return Later(poll)

    def _settled(self, seqno: int, branch: int) -> Status | None:
        """What became of it; None while that is open."""
        stats = self.bucket.vbucket_stats(self.vbucket)
        if stats.state is not VBucketState.ACTIVE or stats.vbuuid != branch:
            return Status.SYNC_WRITE_AMBIGUOUS
        copied = self.copied()
        have = sum(copied.get(name, 0) >= seqno for name in self.names.others)
        if have >= self.names.needed:
            return Status.SUCCESS
        return Status.SYNC_WRITE_AMBIGUOUS if self.now() >= self.deadline else None
