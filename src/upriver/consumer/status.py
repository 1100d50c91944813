"""What a reading looks like from outside at one moment: idle and dead are told apart here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from .desk import Desk
from .engine import Engine
from .source import Address

__all__ = ["ReadingStatus", "status_of"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadingStatus:
    """How a reading goes."""

    #: The nodes that are needed, and whether they are connected.
    nodes: Mapping[Address, bool]
    #: The vbuckets that are not at their end, and whether their changes flow.
    vbuckets: Mapping[int, bool]
    #: How far each vbucket was received, and how far the application is.
    received: Mapping[int, int]
    seqnos: Mapping[int, int]
    #: Changes that the application got.
    rows: int
    #: How often what happened: lost connections, rollbacks by reason, broken rules by name.
    counts: Mapping[str, int]

    @property
    def is_whole(self) -> bool:
        """Whether everything that is wanted flows: if nothing comes, there is nothing new."""
        return all(self.nodes.values()) and all(self.vbuckets.values())


def status_of(engine: Engine, desk: Desk) -> ReadingStatus:
    return ReadingStatus(
        nodes=engine.connected(),
        vbuckets=engine.carried(),
        received=engine.received(),
        seqnos=desk.ledger.seqnos(),
        rows=desk.rows,
        counts=dict(engine.counts),
    )
