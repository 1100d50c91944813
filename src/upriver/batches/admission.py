"""Admission control: how much of every vbucket's backlog one micro-batch reads.

The limits are soft. The number of seqnos is an upper bound of the rows, because a seqno whose key
was changed again has no row; bytes are an estimate. Every vbucket with a backlog gets at least one
seqno, so that none starves and a limit of one row still makes progress everywhere. Some backlogs
cannot be split (see `offset_planning`): they are read whole, as many as fit, at least one.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from ..errors import ConfigError


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of one micro-batch. None is no limit."""

    rows: int | None = None
    bytes: int | None = None
    #: A running mean of the size of a row, for the limit of bytes.
    bytes_per_row: float = 1.0
    #: For Trigger.AvailableNow: the high seqnos at the start of the query. No vbucket is read past
    #: its seqno, and vbuckets without an entry are not read.
    target: Mapping[int, int] | None = None

    def __post_init__(self) -> None:
        for name, limit in (("rows", self.rows), ("bytes", self.bytes)):
            if limit is not None and limit < 1:
                raise ConfigError(f"with a limit of {limit} {name} a batch would read nothing")
        if not self.bytes_per_row > 0:
            raise ConfigError(f"a row cannot have {self.bytes_per_row} bytes")

    @property
    def seqnos(self) -> int | None:
        """Both limits as one number of seqnos."""
        found = [] if self.rows is None else [self.rows]
        if self.bytes is not None:
            found.append(max(1, int(self.bytes / self.bytes_per_row)))
        return min(found, default=None)


def spread(
    backlogs: Mapping[int, int], seqnos: int | None, whole: AbstractSet[int] = frozenset()
) -> dict[int, int]:
    """The number of seqnos that each vbucket may read; those in ``whole`` all or nothing.

    Small backlogs are admitted completely and the others share the rest equally. The result is
    deterministic and does not depend on the order of the arguments.
    """
    if seqnos is None:
        return dict(backlogs)
    granted = dict.fromkeys(backlogs, 0)
    left = seqnos
    for nth, vbucket in enumerate(sorted(whole, key=lambda v: (backlogs[v], v))):
        if nth == 0 or backlogs[vbucket] <= left:
            granted[vbucket] = backlogs[vbucket]
            left -= backlogs[vbucket]
    smallest_first = sorted((backlog, v) for v, backlog in backlogs.items() if v not in whole)
    waiting = len(smallest_first)
    for backlog, vbucket in smallest_first:
        granted[vbucket] = min(backlog, max(1, left // waiting))
        left -= granted[vbucket]
        waiting -= 1
    return granted
