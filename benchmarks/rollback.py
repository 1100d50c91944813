"""How much a rollback costs: seqnos that are read again for each one that was lost.

    python benchmarks/rollback.py

A reader follows a bucket that is written to all the time, in snapshots of random sizes. Then a
failover loses the newest changes, from a few to a tenth of all, and the reader goes back to the
newest place that it may go to. 1.0 is what must be read again whatever a reader remembers: the lost
part of the snapshots. Nothing is sent anywhere: these are the rules alone.

Then what is read again after a first load, in one batch while others write, and a failover that
lost nothing, or only what nobody had read.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable

from upriver.batches.offset_planning import (
    ObservedVBucket,
    after_reading,
    from_beginning,
    plan,
    with_closed_ends,
)
from upriver.batches.offsets import Offset, SourceIdentity
from upriver.model import FailoverLog, Snapshot, StreamOffset
from upriver.session.rollback_point import agree
from upriver.session.stream_position import Position, PositionTracker

_LOG = FailoverLog.of((7, 0))
_SNAPSHOTS = 20_000
_LOSSES = (10, 100, 1_000, 10_000)
_TRIES = 40


def consumer(draw: random.Random) -> Callable[[int], tuple[int, int]]:
    """A consumer of one vbucket; where it goes back to, and where it must."""
    tracker = PositionTracker()
    tracker.follow(_LOG)
    ends = []
    for _ in range(_SNAPSHOTS):
        end = tracker.seqno + draw.randint(1, 9)
        tracker.snapshot_began(Snapshot(tracker.seqno + 1, end))
        tracker.advanced(end)
        ends.append(end)
    position = tracker.position()

    def lose(count: int) -> tuple[int, int]:
        fork = position.seqno - count
        served = FailoverLog.of((8, fork), (7, 0))
        return agree(position, served)[0].seqno, max(end for end in ends if end <= fork)

    return lose


def from_now(draw: random.Random) -> Callable[[int], tuple[int, int]]:
    """A consumer that began at "now" and has read nothing since: it has nothing to forget."""
    high = 50_000
    offset = StreamOffset(7, high, Snapshot(high, high))
    origin = {"origin": high} if "origin" in Position.__dataclass_fields__ else {}
    position = Position(offset, _LOG, (high,), **origin)

    def lose(count: int) -> tuple[int, int]:
        served = FailoverLog.of((8, high - count), (7, 0))
        return agree(position, served)[0].seqno, high - count

    return lose


def stream(vbuckets: int) -> Callable[[random.Random], Callable[[int], tuple[int, int]]]:
    """A streaming query of Spark, whose batches end where the plan says."""

    def make(draw: random.Random) -> Callable[[int], tuple[int, int]]:
        offset = from_beginning(SourceIdentity("b", "u", vbuckets))
        high, ends = 0, []
        for _ in range(_SNAPSHOTS // 10):
            high += draw.randint(10, 90)
            offset = plan(offset, {0: ObservedVBucket(high, _LOG)})
            ends.append(high)
        # the last batch was read, and something was written since
        offset = plan(offset, {0: ObservedVBucket(high + 5, _LOG)})

        def lose(count: int) -> tuple[int, int]:
            fork = high - count
            log = FailoverLog.of((8, fork), (7, 0))
            planned = plan(offset, {0: ObservedVBucket(fork, log)})
            return planned.at(0).start, max(end for end in ends if end <= fork)

        return lose

    return make


_LOADED = 1_000_000
#: The end of the last snapshot that the first load saw.
_SEEN = _LOADED + 200


def _in_one_batch() -> Offset:
    return plan(from_beginning(SourceIdentity("b", "u", 64)), {0: ObservedVBucket(_LOADED, _LOG)})


def first_load() -> None:
    """What is read again of a first load after failovers that lost none of it."""
    planned = _in_one_batch()
    readers = {
        "Spark, right after it": planned,
        "Spark, after a quiet time": with_closed_ends(
            planned, {0: ObservedVBucket(_SEEN + 500, _LOG)}
        ),
        "a table": after_reading(planned, {0: _SEEN}),
    }
    forks = {"nothing lost": _SEEN + 500, "only what nobody read": _SEEN}
    print(f"{'first load of ' + format(_LOADED, ','):<28}" + "".join(f"{w:>24}" for w in forks))
    for name, offset in readers.items():
        again = []
        for fork in forks.values():
            served = ObservedVBucket(fork, FailoverLog.of((8, fork), (7, 0)))
            again.append(_LOADED - plan(offset, {0: served}).at(0).start)
        print(f"{name:<28}" + "".join(f"{count:>24,}" for count in again))


def main() -> None:
    print(f"{'reader':<28}" + "".join(f"{f'{loss:,} lost':>14}" for loss in _LOSSES))
    readers = {
        "consumer": consumer,
        'consumer from "now"': from_now,
        "Spark, 64 vbuckets": stream(64),
        "Spark, 1024 vbuckets": stream(1024),
    }
    for name, make in readers.items():
        draw = random.Random(1)
        lose = make(draw)
        factors = []
        for loss in _LOSSES:
            costs = []
            for _ in range(_TRIES):
                count = draw.randint(loss // 2, loss)
                to, must = lose(count)
                costs.append((must - to + count) / count)
            factors.append(statistics.mean(costs))
        print(f"{name:<28}" + "".join(f"{factor:>14.2f}" for factor in factors))
    print()
    first_load()


if __name__ == "__main__":
    main()
