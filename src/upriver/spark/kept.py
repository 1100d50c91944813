"""The consumer that a worker process keeps between two tasks, so that a small one need not connect.

Spark's workers outlive their tasks, and the next micro-batch asks the same nodes for other ranges.
One consumer is kept, because a worker has one task at a time; whoever wants something else, or
somebody else's rights, gets a new one. Only a consumer whose last reading came to its end without
any incident is kept, and not for long. What it knew is not believed: who has which vbucket and on
which branch is answered by the nodes for every range, and what collections are called is asked.
A process that was forked has nothing: sockets and threads stay with the one that made them.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from ..consumer.access import Access
from ..consumer.client import Consumer
from ..consumer.settings import ConsumerSettings
from ..consumer.source import Source
from ..errors import UpriverError
from ..session.position import Position

__all__ = ["Wish", "consumer_for", "keep"]

#: Seconds that a consumer is kept: a query whose triggers are further apart can afford to connect,
#: and Spark ends workers that are idle for a minute.
_LONGEST: Final = 30.0


@dataclass(frozen=True, slots=True)
class Wish:
    """Which consumer is wanted, but for where it starts and ends."""

    source: Source
    access: Access
    settings: ConsumerSettings


@dataclass(frozen=True, slots=True, eq=False)
class _Kept:
    wish: Wish
    consumer: Consumer
    end: threading.Timer


_lock = threading.Lock()
_kept: _Kept | None = None
#: What a forked process must not touch, nor let be cleaned up.
_left_alone: list[_Kept | None] = []


def consumer_for(
    wish: Wish, start: Mapping[int, Position], end: Mapping[int, int], *, anew: bool = False
) -> Consumer:
    """A consumer that reads these ranges: the one that was kept, unless it must be a new one."""
    consumer = _taken(wish)
    if consumer is not None and not anew:
        try:
            consumer.start_again(start, end)
            return consumer
        except UpriverError:
            pass  # a new one finds out whether it is more than a lost connection
    if consumer is not None:
        consumer.close()
    settings = replace(wish.settings, start=start, end=end)
    return Consumer(wish.source, access=wish.access, settings=settings).start()


def keep(wish: Wish, consumer: Consumer) -> None:
    """Keeps a consumer whose reading is at its end for the next task."""
    global _kept
    timer = threading.Timer(_LONGEST, _close, (consumer,))
    timer.daemon = True
    with _lock:
        before, _kept = _kept, _Kept(wish, consumer, timer)
    if before is not None:
        before.end.cancel()
        before.consumer.close()
    timer.start()


def _taken(wish: Wish) -> Consumer | None:
    """What is kept, which then is the caller's; none if it is not what is wanted."""
    global _kept
    with _lock:
        found, _kept = _kept, None
    if found is None:
        return None
    found.end.cancel()
    if found.wish == wish:
        return found.consumer
    found.consumer.close()
    return None


def _close(consumer: Consumer) -> None:
    """Closes what nobody came back for."""
    global _kept
    with _lock:
        if _kept is None or _kept.consumer is not consumer:
            return
        _kept = None
    consumer.close()


def _forget() -> None:
    global _kept, _lock
    _lock = threading.Lock()
    _left_alone.append(_kept)
    _kept = None


os.register_at_fork(after_in_child=_forget)
