"""Counters of commands, of hits and misses under the names that memcached uses, and of statuses.

The counters start when a bucket is opened and can be reset.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Final
from weakref import WeakKeyDictionary

from ...errors import Status
from ...store import Bucket
from ...wire import kv_messages as kv
from ...wire.messages import Request
from .handler_results import Responses

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
    kv.Set: "cmd_set",
    kv.Add: "cmd_set",
    kv.Replace: "cmd_set",
    kv.Append: "cmd_set",
    kv.Prepend: "cmd_set",
}
_WITH_CAS: Final = (kv.Set, kv.Replace, kv.Append, kv.Prepend)

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
        self._statuses: Counter[Status] = Counter()

    def add_plain_sets(self, stored: int, answered: int) -> None:
        """Counts SETs that were stored on the fast path, and how many of them were answered."""
        self._counted["cmd_set"] += stored
        self._statuses[Status.SUCCESS] += answered

    def add_responses(self, responses: Responses) -> None:
        """Counts responses by their status."""
        for response in responses:
            self._statuses[response.status] += 1

    def add(self, request: Request, responses: Responses) -> None:
        """Counts a request according to the status of its response, and the responses."""
        self.add_responses(responses)
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
        self._statuses.clear()

    def statuses(self) -> dict[Status, int]:
        """Returns how many responses there were with each status."""
        return dict(self._statuses)

    def __iter__(self) -> Iterator[tuple[str, int]]:
        return ((name, self._counted[name]) for name in _NAMES)
