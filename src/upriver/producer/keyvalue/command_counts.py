"""Counters of command hits and misses, under the names that memcached uses.

The counters start when a bucket is opened and can be reset. Plain SETs that take the fast path are
not counted here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Final
from weakref import WeakKeyDictionary

from ...errors import Status
from ...store import Bucket
from ...wire import kv
from ...wire.messages import Request
from .responses import Responses

__all__ = ["COUNTED", "CommandCounts", "counts_of"]

#: A quiet read sends no response when it finds nothing; a quiet write sends none when it succeeds.
_READS: Final = (kv.Get, kv.GetAndTouch)
_HITS: Final[dict[type[Request], str]] = {
    kv.Get: "get",
    kv.GetAndTouch: "get",
    kv.Touch: "touch",
    kv.Delete: "delete",
    kv.Increment: "incr",
    kv.Decrement: "decr",
}
_COMMANDS: Final[dict[type[Request], str]] = {
    kv.Get: "cmd_get",
    kv.GetAndTouch: "cmd_get",
    kv.Touch: "cmd_touch",
    kv.FlushAll: "cmd_flush",
}
_WITH_CAS: Final = (kv.Set, kv.Replace, kv.Append, kv.Prepend)
COUNTED: Final = frozenset({*_HITS, *_COMMANDS, *_WITH_CAS})

#: Names that are always reported, even while their count is 0.
_NAMES: Final = (
    *dict.fromkeys(_COMMANDS.values()),
    *(f"{name}_{how}" for name in dict.fromkeys(_HITS.values()) for how in ("hits", "misses")),
    "cas_hits",
    "cas_misses",
    "cas_badval",
)

_counts: WeakKeyDictionary[Bucket, CommandCounts] = WeakKeyDictionary()


def counts_of(bucket: Bucket) -> CommandCounts:
    """Returns the counters of a bucket."""
    counts = _counts.get(bucket)
    if counts is None:
        counts = _counts[bucket] = CommandCounts()
    return counts


class CommandCounts:
    """The counters of one bucket. Threads add without a lock; a lost increment does no harm."""

    def __init__(self) -> None:
        self._counted: Counter[str] = Counter()

    def add(self, request: Request, responses: Responses) -> None:
        """Counts a request according to the status of its response."""
        kind = type(request)
        status = responses[0].status if responses else None
        if kind in _COMMANDS:
            self._counted[_COMMANDS[kind]] += 1
        if kind in _HITS:
            found = status is Status.SUCCESS or (status is None and kind not in _READS)
            if found or status is None or status is Status.NOT_FOUND:
                self._counted[f"{_HITS[kind]}_{'hits' if found else 'misses'}"] += 1
        elif isinstance(request, _WITH_CAS) and request.cas:
            if status is None or status is Status.SUCCESS:
                self._counted["cas_hits"] += 1
            elif status is Status.EXISTS:
                self._counted["cas_badval"] += 1
            elif status is Status.NOT_FOUND:
                self._counted["cas_misses"] += 1

    def reset(self) -> None:
        self._counted.clear()

    def __iter__(self) -> Iterator[tuple[str, int]]:
        return ((name, self._counted[name]) for name in _NAMES)
