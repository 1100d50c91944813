"""What the tasks of a batch do: the steps between two offsets, and what to make of answers.

A step reads one vbucket from its start up to its end. What arrives above the end, because a
snapshot goes on, belongs to the next step. A cut connection is resumed inside the step, from the
last change received, under the snapshot it was in; the answer is judged like the first one.

Rows must be of the branch that was planned. If the producer's history has left it behind, the step
ends where it is, with no rows or with some: the next plan sees the new branch and kills them
(`offset_planning`). If the producer does not know it at all, it may not have heard yet of a
failover that the driver knows, and what this task skipped nobody would read: then the task must
look for the right producer, and fail if there is none. Or the branch was forgotten by a failover to
before it began; only the driver knows, and checks it when the batch is replayed.

A refusal carries no failover log. So a task that is refused asks for the log and then for the
stream once more, on the same connection, and has the second refusal judged by that log. A refusal
of a first request will show in the next plan. One of a resumed request may not (nobody is refused
at 0), so the attempt fails and all its rows with it.
Nothing here knows sockets or Spark.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum, auto
from typing import Any, Final

from ..model import FailoverLog, Snapshot, StreamOffset
from ..session.stream_position import Position
from .offsets import Offset, VBucketProgress

#: Fewer seqnos than this go into one group: a task of its own takes longer than reading them.
SMALL_BATCH: Final = 5_000


@dataclass(frozen=True, slots=True)
class ReadStep:
    """What a task does with one vbucket."""

    vbucket: int
    #: Goes into every row of the step.
    branch: int
    #: The first request; a resumed one has a later seqno, the snapshot seen, and the same vbuuid.
    offset: StreamOffset
    #: The last seqno that belongs to the step.
    end: int
    #: A rollback row for the seqno at which the step starts comes first, whatever the answer.
    rolls_back: bool = False
    #: The purge seqno to name in the request, if the server understands that; 0 for none.
    purge_seqno: int = 0
    #: The seqno at which the branch began, which the oldest drafts name in a request.
    began: int = 0

    def __reduce__(self) -> tuple[Any, ...]:
        """Numbers only: a batch has a step for each vbucket, and dataclasses are slow to pickle."""
        offset = self.offset
        numbers = (offset.vbuuid, offset.seqno, offset.snapshot.start, offset.snapshot.end)
        rest = (self.end, self.rolls_back, self.purge_seqno, self.began)
        return _unpickled, (self.vbucket, self.branch, *numbers, *rest)

    @property
    def start(self) -> int:
        return self.offset.seqno

    @property
    def size(self) -> int:
        """An upper bound of its rows."""
        return self.end - self.start + self.rolls_back

    @property
    def has_range(self) -> bool:
        """Whether there is anything to ask the producer for."""
        return self.end > self.start

    @property
    def position(self) -> Position:
        """Where a consumer begins with the step. Only the newest branch matters to its request."""
        branch = FailoverLog.of((self.offset.vbuuid, self.began))
        return Position(self.offset, branch, purge_seqno=self.purge_seqno)

    @property
    def position_on_branch(self) -> Position:
        """The same for a consumer that reads only the step's branch.

        Then the plan vouches for what a snapshot hid below the start. So where requests name no
        snapshots the consumer begins exactly there, and not where one was complete before.
        """
        start = self.start
        return replace(self.position, boundaries=(start,) if start else ())

    def from_the_beginning(self) -> ReadStep:
        """The same step on the same branch, from seqno 0 on."""
        return replace(self, offset=StreamOffset.at(self.offset.vbuuid, 0))

    def wants(self, seqno: int) -> bool:
        """Whether a change that arrived is one of the step's rows."""
        return self.start < seqno <= self.end


def _unpickled(
    vbucket: int, branch: int, vbuuid: int, seqno: int, first: int, last: int, *rest: Any
) -> ReadStep:
    return ReadStep(vbucket, branch, StreamOffset(vbuuid, seqno, Snapshot(first, last)), *rest)


class StepVerdict(Enum):
    """What a task does with a vbucket that it is not to read any further here."""

    #: No more rows of this vbucket; the next plan will see why.
    SKIP = auto()
    #: The producer does not know the branch: look for the right one, and fail if there is none.
    RETRY = auto()
    #: The rows of this attempt cannot be completed: fail, so that another attempt begins anew.
    START_OVER = auto()


def judge(step: ReadStep, asked: StreamOffset, log: FailoverLog) -> StepVerdict:
    """What to do if a request of the step, the first or a resumed one, brings none of its rows.

    It was granted on another branch, and ``log`` came with the answer; or it was refused, and
    ``log`` was asked for right before.
    """
    if len(log) and log.newest.vbuuid == step.offset.vbuuid:
        return StepVerdict.SKIP if asked == step.offset else StepVerdict.START_OVER
    left_behind = any(entry.vbuuid == step.offset.vbuuid for entry in log)
    return StepVerdict.SKIP if left_behind else StepVerdict.RETRY


def steps_between(
    start: Offset | None,
    end: Offset,
    branches: Mapping[int, int] | None = None,
    *,
    restates: bool = False,
) -> tuple[ReadStep, ...]:
    """The steps of the batch between two offsets; None is the offset before the first one.

    ``branches`` are the newest vbuuids that the driver knows now, which it must find out for a
    batch that is replayed. A step on another branch than that only rolls back: the next plan,
    which knows no less, reads its range again.

    A source that ``restates`` has no rollback rows. On a branch that is gone it cannot read what
    to restate, so the step is left out: the next plan goes back again, below the step's end. From
    an end of 0 no plan goes back. That step stays: a vbucket holds nothing at 0 on any branch.
    """
    branches = branches or {}
    steps = []
    known = start.progress if start is not None else {}
    # most are the same object: little happens between two plans of a driver
    changed = {vb: now for vb, now in end.progress.items() if now is not known.get(vb)}
    for vbucket, progress in sorted(changed.items()):
        is_read = progress.start < progress.seqno
        if progress == known.get(vbucket) or not (is_read or progress.rolled_back):
            continue
        step = newest_step(vbucket, progress)
        if branches.get(vbucket, progress.vbuuid) == progress.vbuuid:
            steps.append(step)
        elif progress.rolled_back and not (restates and progress.seqno):
            steps.append(replace(step, end=step.start))
    return tuple(steps)


def newest_step(vbucket: int, progress: VBucketProgress) -> ReadStep:
    """The step that led to a vbucket's progress."""
    return ReadStep(
        vbucket=vbucket,
        branch=progress.branch,
        offset=progress.request,
        end=progress.seqno,
        rolls_back=progress.rolled_back,
        purge_seqno=progress.purge_seqno,
        began=progress.log.newest.seqno if len(progress.log) else 0,
    )


def are_few(steps: Sequence[ReadStep]) -> bool:
    """Whether steps are a small batch."""
    return sum(step.size for step in steps) < SMALL_BATCH


def partition(
    steps: Sequence[ReadStep], count: int, *, least: int = 1
) -> list[tuple[ReadStep, ...]]:
    """The steps in at most ``count`` groups of about the same size, each for one task.

    No group is empty, and a small batch is one group, unless ``least`` wants more.
    """
    if not steps:
        return []
    if are_few(steps):
        count = least
    groups: list[list[ReadStep]] = [[] for _ in range(max(1, min(count, len(steps))))]
    lightest = [(0, index) for index in range(len(groups))]
    for step in sorted(steps, key=lambda step: (-step.size, step.vbucket)):
        size, index = heapq.heappop(lightest)
        groups[index].append(step)
        heapq.heappush(lightest, (size + step.size, index))
    return [tuple(group) for group in groups]
