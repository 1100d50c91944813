"""Durable writes: which copies must have a write, and what a durable request carries.

A durable write is first stored as a prepare, which only replicas see. It is committed when enough
copies have the prepare; `durability_monitor` decides when that is. A replica acknowledges a seqno
only when a whole snapshot is on its disk. So every durability level is met the same way: a majority
of the copies, this node's own included, has acknowledged the prepare.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, cast

from ...errors import Status, StoreRefusal
from ...store import Applied, ChangeRequest, ClientWrite, PrepareWrite
from ...wire.enum_codes import DURABILITY_LEVELS
from ...wire.frameinfo import Durability
from ...wire.messages import Request
from ...wire.protocol_enums import DurabilityLevel
from .handler_results import MUTATION_TOKEN, Responses
from .required_roles import ADMINISTERS, READS, WRITES

#: Seconds until a write without a timeout of its own gives up, as on Couchbase Server.
DEFAULT_SECONDS: Final = 10.0
_NOBODY: Final = -1
#: Copies in a chain: the active one and up to three replicas. A vbucket moves to one other chain
#: at a time.
_MOST_COPIES: Final = 4
_MOST_CHAINS: Final = 2
#: The nodes with the copies of a vbucket, None for a copy that no node holds.
_Chain = Sequence[str | None]
#: Commands that change a document, and so can be asked to be durable.
DURABLE_COMMANDS: Final = WRITES - READS - ADMINISTERS


@dataclass(frozen=True, slots=True)
class CopyNames:
    """The other nodes that hold a vbucket, and how many of them must acknowledge a write."""

    others: frozenset[str]
    needed: int
    #: The copies that a moving vbucket is going to have. They must acknowledge as well.
    future: CopyNames | None = None

    @property
    def are_enough(self) -> bool:
        """Whether there are at least as many copies as must acknowledge."""
        is_enough = len(self.others) >= self.needed
        return is_enough and (self.future is None or self.future.are_enough)

    def have(self, acknowledged: Mapping[str, int], seqno: int) -> bool:
        """Whether enough copies have a seqno; each acknowledged one is given by its name."""
        count = sum(acknowledged.get(name, 0) >= seqno for name in self.others)
        return count >= self.needed and (
            self.future is None or self.future.have(acknowledged, seqno)
        )


#: The copies of a bucket without replicas: a write is durable once it is on this node's disk.
NO_COPIES: Final = CopyNames(frozenset(), 0)


def parse_topology(value: bytes) -> CopyNames:
    """Parses the copies of a vbucket from Set VBucket: `{"topology": [["n1", "n2", null]]}`.

    The first name of a chain is the active copy; null is a copy that no node holds. A second chain
    is the one that the vbucket is moving to.
    """
    try:
        chains = json.loads(value)["topology"]
        for chain in chains:
            _check_chain(chain)
        if not 1 <= len(chains) <= _MOST_CHAINS:
            raise ValueError(f"{len(chains)} chains")
    except (ValueError, KeyError, TypeError, IndexError, RecursionError) as problem:
        raise StoreRefusal(Status.INVALID, f"the topology cannot be read: {problem}") from None
    this = chains[0][0]
    return _majorities(this, *chains)


def _check_chain(chain: Any) -> None:
    if not isinstance(chain, list) or not 1 <= len(chain) <= _MOST_COPIES:
        raise ValueError(f"a chain names 1 to {_MOST_COPIES} nodes")
    named = (chain[0], *(name for name in chain[1:] if name is not None))
    if not all(isinstance(name, str) and name for name in named):
        raise ValueError("a chain consists of names")


def _majorities(this: str, now: _Chain, future: _Chain | None = None) -> CopyNames:
    """Returns what a node needs for a majority of a vbucket's copies, and of its future ones.

    The node serves the vbucket, and so counts as one of its copies now, even if its map is not yet
    that of a takeover. It counts as a future one only if it is to be one: the first name of that
    chain may be another node, which must acknowledge like the others.
    """
    copies = CopyNames(_others(this, now), len(now) // 2)
    if future is None or (len(future), set(future)) == (len(now), set(now)):
        return copies
    needed = len(future) // 2 + 1 - (this in future)
    return replace(copies, future=CopyNames(_others(this, future), needed))


def _others(this: str, chain: _Chain) -> frozenset[str]:
    return frozenset(name for name in chain if name is not None and name != this)


def level_of(wanted: Durability) -> int:
    """Returns the number of a durability level, from 1 on."""
    return DURABILITY_LEVELS.dump(wanted.level)


def durability_of(request: Request) -> Durability | None:
    """Returns the durability that a request asks for, or None."""
    for info in request.frames:
        if isinstance(info, Durability) and info.level is not DurabilityLevel.NONE:
            return info
    return None


def copy_names(config: bytes) -> tuple[CopyNames, ...]:
    """Returns the copies of each vbucket by node name. Empty if the cluster map names none.

    While vbuckets move, ``vBucketMapForward`` has the rows that are next.
    """
    try:
        terse: dict[str, Any] = json.loads(config)
        this = next(node["nodeUUID"] for node in terse["nodesExt"] if node.get("thisNode"))
        rows = terse["vBucketServerMap"]["vBucketMap"]
        forward = terse["vBucketServerMap"].get("vBucketMapForward", rows)
        names: dict[int, str | None] = {_NOBODY: None}
        names.update(enumerate(node["nodeUUID"] for node in terse["nodesExt"]))
        return tuple(
            _majorities(this, [names[place] for place in row], [names[place] for place in future])
            for row, future in zip(rows, forward, strict=True)
        )
    except (ValueError, KeyError, TypeError, IndexError, StopIteration, RecursionError):
        return ()


def patience(wanted: Durability) -> float:
    """Returns how many seconds a write can wait for its copies."""
    return DEFAULT_SECONDS if wanted.timeout_ms is None else wanted.timeout_ms / 1000


@dataclass(slots=True)
class PreparedWrite:
    """One request whose change is prepared before it is committed."""

    #: The durability level, from 1 on.
    level: int
    #: The result of the prepare, once the store has written it.
    prepared: Applied | None = None

    def wrap(self, change: ChangeRequest) -> PrepareWrite:
        """Returns the prepare for the change that a client asked for."""
        return PrepareWrite(change.vbucket, cast("ClientWrite", change), self.level)


def committed(responses: Responses, prepared: Applied, done: Applied) -> Responses:
    """Returns the responses of a prepare with its seqno replaced by that of the commit."""
    return tuple(_with_seqno(response, prepared.seqno, done.seqno) for response in responses)


def _with_seqno(response: Any, prepared: int, seqno: int) -> Any:
    if getattr(response, "seqno", None) == prepared:
        return replace(response, seqno=seqno)
    extras = getattr(response, "extras", b"")
    if len(extras) == MUTATION_TOKEN.size:
        vbuuid, found = MUTATION_TOKEN.unpack(extras)
        if found == prepared:
            return replace(response, extras=MUTATION_TOKEN.pack(vbuuid, seqno))
    return response
