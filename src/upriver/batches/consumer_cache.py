"""Caches a connected consumer in a process that runs tasks, so that a small one need not connect.

Spark's workers outlive their tasks, as does the process of a pipeline, and the next micro-batch
reads other ranges from the same nodes. One consumer is cached, because a worker runs one task at a
time; a task with another source, other credentials or other settings gets a new one. Only a
consumer whose last read ended without an error is cached, and not for long. Its knowledge is not
reused: for every range the nodes are asked again for the vbuckets, their branches and the names of
collections. A forked process starts with an empty cache: sockets and threads belong to its parent.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from ..consumer.client import Consumer
from ..consumer.consumer_settings import ConsumerSettings
from ..consumer.transport.access import Access
from ..consumer.transport.connection_string import Source
from ..errors import UpriverError
from ..session.stream_position import Position

#: Seconds for which a consumer is cached: a query with a longer trigger interval can afford to
#: connect, and Spark ends workers that are idle for a minute.
_LONGEST: Final = 30.0


@dataclass(frozen=True, slots=True)
class CacheKey:
    """The parameters of a consumer, except its start and end positions."""

    source: Source
    access: Access
    settings: ConsumerSettings


@dataclass(frozen=True, slots=True, eq=False)
class _CachedConsumer:
    key: CacheKey
    consumer: Consumer
    end: threading.Timer


_lock = threading.Lock()
_cached: _CachedConsumer | None = None
#: In a forked process: the parent's entry, referenced so that it is not finalized.
_abandoned: list[_CachedConsumer | None] = []


def consumer_for(
    key: CacheKey, start: Mapping[int, Position], end: Mapping[int, int], *, anew: bool = False
) -> Consumer:
    """A consumer that reads these ranges: the cached one if it fits, or a new one."""
    consumer = _take(key)
    if consumer is not None and not anew:
        try:
            consumer._start_again(start, end)
            return consumer
        except UpriverError:
            pass  # a new consumer reports the error if it is more than a lost connection
    if consumer is not None:
        consumer.close()
    settings = replace(key.settings, start=start, end=end)
    return Consumer(key.source, access=key.access, settings=settings).start()


def keep(key: CacheKey, consumer: Consumer) -> None:
    """Caches a consumer that has read to its end, for the next task."""
    global _cached
    timer = threading.Timer(_LONGEST, _close, (consumer,))
    timer.daemon = True
    with _lock:
        before, _cached = _cached, _CachedConsumer(key, consumer, timer)
    if before is not None:
        before.end.cancel()
        before.consumer.close()
    timer.start()


def close_cached() -> None:
    """Closes the cached consumer: no more tasks are expected in this process."""
    global _cached
    with _lock:
        found, _cached = _cached, None
    if found is not None:
        found.end.cancel()
        found.consumer.close()


def _take(key: CacheKey) -> Consumer | None:
    """Removes and returns the cached consumer; None if it has another key."""
    global _cached
    with _lock:
        found, _cached = _cached, None
    if found is None:
        return None
    found.end.cancel()
    if found.key == key:
        return found.consumer
    found.consumer.close()
    return None


def _close(consumer: Consumer) -> None:
    """Closes a consumer that was not used again in time."""
    global _cached
    with _lock:
        if _cached is None or _cached.consumer is not consumer:
            return
        _cached = None
    consumer.close()


def _forget() -> None:
    global _cached, _lock
    _lock = threading.Lock()
    _abandoned.append(_cached)
    _cached = None


os.register_at_fork(after_in_child=_forget)
