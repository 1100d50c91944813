"""How a pipeline goes, as whoever sees its table can know: from what it writes into its lease.

The holder of a lease renews it every few seconds, and says there what it does and how far the table
is behind. A pipeline that has ended says how; one that says nothing any more is gone. How far it
was behind when it was heard of last is no answer to how far it is behind now, so that is unknown.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from ..files.storage import Storage
from .lease import DURATION, is_dead, is_given_back, newest_lease
from .progress_log import PipelineStatus

#: Seconds for which what was measured counts as what is.
_FRESH: Final = 20.0
#: What a pipeline can be, the last two as others see it.
STATES: Final = ("starting", "reading", "idle", "waiting", "done", "stopped", "failed", "gone")
_MOST_TEXT: Final = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class Heartbeat:
    """What is known of a pipeline now."""

    #: When it was heard of last, in seconds since 1970.
    time: float
    #: One of `STATES`.
    state: str
    #: Since when, and what it waits for or why it failed.
    since: float
    reason: str
    #: How far the table is behind; None if that is not known.
    lag: int | None
    lag_seconds: float | None


def heartbeat_of(status: PipelineStatus) -> dict[str, Any]:
    """What the holder of a lease says in it."""
    return {
        "state": status.state,
        "since": status.since,
        "reason": status.reason[:_MOST_TEXT],
        "lag": status.lag,
        "lag_seconds": status.lag_seconds,
        "measured": status.measured,
    }


def read_heartbeat(
    storage: Storage, now: Callable[[], float] = lambda: time.time()
) -> Heartbeat | None:
    """What is known of the pipeline of a table; None if none of this release ever ran there."""
    _, holder = newest_lease(storage)
    told = holder.get("pipeline")
    if not isinstance(told, dict):
        return None
    heard, state = _number(holder.get("time")), told.get("state")
    since, reason = _number(told.get("since")), told.get("reason")
    if heard is None or since is None or state not in STATES:
        return None
    silent = now() - heard
    if not is_given_back(holder) and (silent > DURATION or is_dead(holder)):
        state, since, reason = "gone", heard, f"was {state} when it was heard of last"
    measured, lag = _number(told.get("measured")), _number(told.get("lag"))
    is_known = measured is not None and heard - measured <= _FRESH and not is_given_back(holder)
    is_known = is_known and state != "gone" and lag is not None
    return Heartbeat(
        time=heard,
        state=state,
        since=since,
        reason=str(reason or "")[:_MOST_TEXT],
        lag=int(lag) if is_known and lag is not None else None,
        lag_seconds=_number(told.get("lag_seconds")) if is_known else None,
    )


def _number(value: object) -> float | None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if is_number and abs(value) < 1 << 53 else None  # type: ignore[arg-type]
