"""What a reader chooses: what to read, from where to where, and how to go about trouble.

Values only, checked when they are made; nothing here opens or asks anything.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any, Final, Literal

from ..errors import ConfigError
from ..session.position import Position
from ..wire.dialects import Dcp, Dialect, Draft000, Draft001, Draft002
from .checkpoint import Checkpoint, CheckpointStore

__all__ = [
    "DIALECTS",
    "ConsumerSettings",
    "DialectName",
    "End",
    "RollbackPolicy",
    "Start",
    "settings_for",
]

DialectName = Literal["auto", "dcp", "001", "000", "002"]
#: From the oldest change there is, from what comes now on, from a checkpoint, or from a position
#: for each vbucket (one that is not named: from the beginning).
Start = Literal["beginning", "now"] | Checkpoint | Mapping[int, Position]
#: Never, at what was there when the reading began, or at a seqno for each vbucket (one that is
#: not named is not read).
End = Literal["never", "now"] | Mapping[int, int]

#: Every draft, newest first, as they are tried.
DIALECTS: Final[Mapping[str, type[Dialect]]] = {
    "dcp": Dcp,
    "001": Draft001,
    "000": Draft000,
    "002": Draft002,
}

#: What one node may have under way: enough for a fast reader, little enough for many nodes.
DEFAULT_BUFFER: Final = 16 * 1024 * 1024
_SMALLEST_BUFFER: Final = 1024
_LARGEST_BUFFER: Final = 2**31
_SHORTEST_INTERVAL: Final = 0.1
_MAX_NAME: Final = 200


class RollbackPolicy(Enum):
    """What happens when the producer's history is not what was read."""

    #: Go back to where both agree, and tell the application before anything else comes.
    REWIND = "rewind"
    #: Stop with `RollbackRequired`.
    FAIL = "fail"
    #: Read only the branch that a position names: a vbucket that has left it is read no further,
    #: which a refused `RolledBack` event tells, and the others go on.
    STOP = "stop"
    #: Go back, and tell nobody: for readers to whom a change may come twice or be taken back.
    IGNORE = "ignore"


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerSettings:
    """Everything a reader may choose."""

    start: Start = "beginning"
    end: End = "never"
    #: Those to read; None for all.
    vbuckets: frozenset[int] | None = None
    #: As ``scope.collection``; none for all.
    collections: tuple[str, ...] = ()
    #: All collections of one scope, those that come later too.
    scope: str = ""
    #: Whether documents come with their bodies.
    values: bool = True
    #: Whether their extended attributes come with them.
    xattrs: bool = False
    #: Whether values travel compressed; they are handed out as ``decompress`` says.
    compression: bool = False
    decompress: bool = True

    dialect: DialectName = "auto"
    #: The connection's name, which a server knows one of at a time; made up if empty.
    name: str = ""
    rollback: RollbackPolicy = RollbackPolicy.REWIND
    #: Hand out only what every copy has on disk, asked for in intervals of so many seconds.
    persisted_everywhere: float | None = None

    #: Bytes that one node may have under way and not yet read.
    buffer: int = DEFAULT_BUFFER
    #: Seconds between two signs of life; a node that gives none for twice that is gone.
    noop_interval: float = 20.0
    #: Seconds to reach a node and to be let in, and for one answer.
    connect_timeout: float = 10.0
    answer_timeout: float = 30.0
    #: Seconds to go on trying while no node can be reached at the start.
    wait_at_start: float = 0.0
    #: Seconds without any sign of a node that is needed after which the reading fails.
    give_up_after: float = float("inf")
    #: Which of the addresses of a node: those its neighbours use, those for the outside, or
    #: whichever the source's own address is one of.
    network: Literal["auto", "default", "external"] = "auto"
    #: Seconds between two attempts: the first, and the longest.
    retry_first: float = 0.05
    retry_most: float = 5.0
    _unique: str = field(default_factory=lambda: secrets.token_hex(4), repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.scope and self.collections:
            raise ConfigError("collections and a scope contradict each other: give one of them")
        if self.dialect not in ("auto", *DIALECTS):
            known = ", ".join(("auto", *DIALECTS))
            raise ConfigError(f"there is no dialect {self.dialect!r}; there are {known}")
        if not _SMALLEST_BUFFER <= self.buffer <= _LARGEST_BUFFER:
            raise ConfigError(f"a buffer has {_SMALLEST_BUFFER} to {_LARGEST_BUFFER} bytes")
        if self.noop_interval < _SHORTEST_INTERVAL:
            raise ConfigError(f"signs of life come at most every {_SHORTEST_INTERVAL} seconds")
        if min(self.connect_timeout, self.answer_timeout, self.retry_first, self.retry_most) <= 0:
            raise ConfigError("timeouts and pauses are longer than nothing")
        if self.persisted_everywhere is not None and self.persisted_everywhere <= 0:
            raise ConfigError("the interval of asking what is persisted is longer than nothing")
        if len(self.name.encode()) > _MAX_NAME:
            raise ConfigError(f"a connection's name has at most {_MAX_NAME} bytes")
        if self.vbuckets is not None and not self.vbuckets:
            raise ConfigError("there is no vbucket to read")
        if self.dialect not in ("auto", "dcp") and self.needs_dcp:
            raise ConfigError(
                f"draft {self.dialect} has no collections and no xattrs, and always sends values"
            )

    @property
    def needs_dcp(self) -> bool:
        """Whether something is wanted that none of the older drafts has."""
        return bool(self.scope or self.collections or self.xattrs or not self.values)

    @property
    def connection_name(self) -> str:
        return self.name or f"upriver-{self._unique}"


def settings_for(
    settings: ConsumerSettings | None, options: Mapping[str, Any], store: CheckpointStore | None
) -> ConsumerSettings:
    """The settings of a reading; a checkpoint that was saved decides where it starts."""
    if settings is not None and options:
        raise TypeError("give settings or single options, not both")
    chosen = settings or ConsumerSettings(**options)
    saved = store.load() if store is not None else None
    return chosen if saved is None else replace(chosen, start=saved)
