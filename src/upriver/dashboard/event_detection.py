"""Detects events between two samples: failovers, rollbacks, changed vbucket states.

It also counts what a single sample does not show: committed changes and new branches.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from typing import Final

from .figure_types import STATE_LETTERS, BucketFigures, EventFigures, PipelineFigures, ServerFigures

#: The number of events that are kept: a few screens.
_KEPT: Final = 200
#: If more vbuckets than this change at once, they are reported as one event.
_SINGLY: Final = 4

_STATES: Final = {letter: state for state, letter in STATE_LETTERS.items()}


class EventDetector:
    """The events since the first sample."""

    def __init__(self) -> None:
        self.events: deque[EventFigures] = deque(maxlen=_KEPT)
        #: By bucket: assigned seqnos, and new branches.
        self.changes: dict[str, int] = {}
        self.branches: dict[str, int] = {}
        self._before: dict[str, BucketFigures] = {}
        self._last_rollback: int | None = None
        self._last_batches: dict[str, float] = {}
        self._next_id = 1

    def see_server(self, server: ServerFigures, now: float) -> None:
        for bucket in server["buckets"]:
            name = bucket["name"]
            self.changes.setdefault(name, 0)
            self.branches.setdefault(name, 0)
            before = self._before.get(name)
            if before is not None and len(before["vbuckets"]["high"]) == len(
                bucket["vbuckets"]["high"]
            ):
                self._compare(before, bucket, now)
        self._before = {bucket["name"]: bucket for bucket in server["buckets"]}
        newest = max((one["id"] for one in server["rolled_back"]), default=0)
        if self._last_rollback is not None:
            for one in server["rolled_back"]:
                if one["id"] > self._last_rollback or newest < self._last_rollback:
                    reader = one["connection"] or "a reader without a name"
                    text = f"{reader} was rolled back to seqno {one['seqno']:,}"
                    self._add("rollback", text, one["time"], one["bucket"], one["vbucket"])
        self._last_rollback = newest

    def see_pipeline(self, pipeline: PipelineFigures) -> None:
        name = pipeline["name"]
        last = self._last_batches.get(name)
        for batch in pipeline["recent"]:
            if last is not None and batch["time"] > last and batch["rollbacks"]:
                times = f"{batch['rollbacks']:,} rollback{'s' * (batch['rollbacks'] > 1)}"
                text = f"{name}: batch {batch['batch']:,} had {times}"
                self._add("rollback", text, batch["time"])
        newest = (batch["time"] for batch in pipeline["recent"])
        self._last_batches[name] = max(newest, default=last or 0.0)

    def _compare(self, before: BucketFigures, after: BucketFigures, now: float) -> None:
        old, new, name = before["vbuckets"], after["vbuckets"], after["name"]
        self.changes[name] += sum(
            high - was for was, high in zip(old["high"], new["high"], strict=True) if high > was
        )
        branched = _different(old["branch"], new["branch"])
        self.branches[name] += len(branched)
        if len(branched) > _SINGLY:
            text = f"{len(branched):,} vbuckets began new branches"
            self._add("failover", text, now, name)
        else:
            for vbucket in branched:
                was, high = old["high"][vbucket], new["high"][vbucket]
                text = f"a new branch began; the high seqno was {was:,} and is {high:,}"
                self._add("failover", text, now, name, vbucket)
        moved: dict[tuple[str, str], list[int]] = {}
        for vbucket in _different(old["state"], new["state"]):
            way = old["state"][vbucket], new["state"][vbucket]
            moved.setdefault(way, []).append(vbucket)
        for (was_state, state), vbuckets in moved.items():
            text = f"{_STATES.get(was_state, was_state)} became {_STATES.get(state, state)}"
            if len(vbuckets) > _SINGLY:
                self._add("state", f"{len(vbuckets):,} vbuckets: {text}", now, name)
            else:
                for vbucket in vbuckets:
                    self._add("state", text, now, name, vbucket)

    def _add(
        self,
        kind: str,
        text: str,
        time: float,
        bucket: str | None = None,
        vbucket: int | None = None,
    ) -> None:
        self.events.append(
            EventFigures(
                id=self._next_id, time=time, kind=kind, text=text, bucket=bucket, vbucket=vbucket
            )
        )
        self._next_id += 1


def _different(before: Sequence[object], after: Iterable[object]) -> list[int]:
    pairs = zip(before, after, strict=True)
    return [at for at, (was, is_now) in enumerate(pairs) if was != is_now]
