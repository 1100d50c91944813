"""From one offset to the next: how far every vbucket is read, and where it must go back.

The driver plans a batch before tasks read it, so it cannot know the snapshots they will see; and
reading ``(a, b]`` misses a key whose newer version has already moved above ``b``. A reader at
``b`` is therefore not consistent there, and no producer can know that. The rule:

1. The branch is the one of the last plan, and the last step's request would be granted now: go on
   from its end ``b``, which becomes a boundary with the high seqno sampled now as its bound.
2. The branch is a new one that shares the history up to ``F``: go back to the newest boundary
   whose bound is <= F; to the origin, or to F if that is lower, if there is none. If that is below
   ``b``, count a new branch and begin the step with a rollback row.
3. The branch is the same but the last step's request would be refused now (the producer purged
   deletions above its start, or lost changes): go back to 0, with a rollback row, and read the
   vbucket up to its high seqno in one step, since any stop below the purge seqno may be refused.
4. A vbucket that cannot be asked now stays where it is.
5. Where nothing is new for a while, the ends of the last steps become boundaries by 1 all the same,
   in a batch without rows (`with_closed_ends`).

Who commits after the tasks have read, as the pipelines of tables do, knows which snapshots they
saw. Then the end of a step is a boundary at once (`after_reading`): a failover that took nothing
from what was read costs nothing.

Why it is right. ``Held`` are the rows that no later rollback row of their vbucket has killed.

- *Boundaries.* Let (b, s) be one, and a history agree with the one that was read up to F >= s. If
  the newest version of a key in that history is at or below b, it is among the held rows: it is
  shared; nothing replaced it up to s, which is above all that any task had seen; so it was there
  to be read, and it was read. Whatever is above b will be read from b on. Dropping or thinning
  boundaries leaves the others right, and the origin is one because nothing is held below it.
- *A step under a branch that is gone.* Its rows lie above its start, and the rollback of rule 2
  goes to that start or below it (its end is no boundary yet). So all of them die, whatever mixture
  of histories a task got hold of, and if it got nothing, nothing is lost: they are read again.
- *A step under a branch that lives.* All its rows are of that branch, as `task_reader` takes no
  others. It was read to its end: had its request been refused, it would be refused now too (3),
  because purge seqnos only rise, and had its rest been refused, the attempt would have failed.
  Its bound is sampled after it, on the same branch, so its end becomes a boundary.
- *Ends that tasks know.* A task that read a step to its end took rows of the planned branch only,
  from snapshots that ended at s or below; a key was hidden from it by a version up to s. Below the
  step's start a key may have been hidden by a version up to the bound of the boundary there. So the
  end with the larger of both as its bound is a boundary, whatever became of the branch meanwhile.
- *Folding.* A rollback goes to a place at or below everything that follows it, so held rows rise
  in (branch, seqno), and the newest of a key is the producer's own.
- *Purging.* Deletions in (start, end] were there when a step from start was granted, or had been
  purged before the reader began at 0, and then it never held what they deleted.
- *Replays.* An offset is its own plan. What an attempt that was not committed has read is not held.

A server that tells no seqnos (`streamed_survey`) has steps like any other. Only a bound of what
tasks have seen cannot be known there: it is `NO_END`. So after a change of branch no place is left
but those of which tasks knew the bound, and the origin. All else is as above.

It takes for granted that a vbuuid names one history, which servers lose no tail of silently (of a
lost tail we notice what we can: a high seqno that fell); that purge seqnos do not fall while a
branch lives; and that `ObservedVBucket` are no older than what the tasks of the last batch saw.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import Final

from ..errors import ConfigError, RemoteProtocolError
from ..model import NO_END, FailoverLog, rollback_point
from ..session.stream_position import Position
from .admission import Limits, spread
from .offsets import (
    MAX_BRANCHES,
    Boundary,
    Offset,
    SourceIdentity,
    VBucketProgress,
    most_boundaries,
    thinned,
)

_NO_LIMITS: Final = Limits()


@dataclass(frozen=True, slots=True)
class ObservedVBucket:
    """What the driver has found out about a vbucket, after the last batch was read.

    The seqno must be one of the newest branch of the log. Ask for the seqno first and the log
    second; if the log's newest branch is not the one of the last offset, ask for both again until
    the log is the same before and after the seqno.

    The driver must also say whether the last step's request would be ``refused`` now for what was
    purged. Its start and the server's purge seqno tell that, unless the server tells none, or it is
    the one that the request names, which only some servers heed: then the driver repeats the
    request with its start as its end. Either may be of any moment since the last batch was read;
    the first such moment makes the fewest detours.
    """

    high_seqno: int
    failover_log: FailoverLog
    #: What steps after one that begins at 0 name in their requests; 0 if it is not known.
    purge_seqno: int = 0
    refused: bool = False
    #: Whether nothing that a task has seen was above the high seqno. A server that tells none has
    #: it only from a stream, and tasks may have seen more on theirs.
    is_bound: bool = True

    def __post_init__(self) -> None:
        if not len(self.failover_log):
            raise RemoteProtocolError("a vbucket's failover log has at least one branch; this none")


@dataclass(frozen=True, slots=True)
class _Start:
    """Where a step may begin: a progress that ends where it starts, and what could be read."""

    progress: VBucketProgress
    backlog: int
    whole: bool = False


# ---- the first offset --------------------------------------------------------------------


def from_beginning(source: SourceIdentity) -> Offset:
    """Everything is still to be read."""
    return Offset(source)


def from_latest(
    source: SourceIdentity,
    facts: Mapping[int, ObservedVBucket],
    vbuckets: Collection[int] | None = None,
) -> Offset:
    """Only what changes from now on is to be read. Facts of every vbucket are needed.

    ``vbuckets`` are those that there are, if not all.
    """
    needed = range(source.vbuckets) if vbuckets is None else sorted(vbuckets)
    missing = [vbucket for vbucket in needed if vbucket not in facts]
    if missing:
        raise ConfigError(
            f"cannot start at the latest changes: {len(missing)} vbuckets have no server now,"
            f" the first is {missing[0]}; wait until the cluster is complete"
        )
    return Offset(
        source,
        {
            vbucket: VBucketProgress(
                seqno=high, log=_kept(facts[vbucket].failover_log), origin=high
            )
            for vbucket in needed
            if (high := facts[vbucket].high_seqno)
        },
    )


def from_positions(source: SourceIdentity, positions: Mapping[int, Position]) -> Offset:
    """What a consumer has read is not to be read again; vbuckets without a position are."""
    wrong = [vbucket for vbucket in positions if not 0 <= vbucket < source.vbuckets]
    if wrong:
        raise ConfigError(
            f"there is a position of vbucket {wrong[0]}, but {source.bucket} has"
            f" {source.vbuckets} vbuckets; give positions of the same bucket"
        )
    return Offset(
        source,
        {
            v: _of_position(positions[v], most_boundaries(source.vbuckets))
            for v in sorted(positions)
            if positions[v].seqno
        },
    )


def _of_position(position: Position, most: int) -> VBucketProgress:
    offset, origin = position.offset, position.origin
    boundaries = [
        Boundary(seqno, seqno) for seqno in position.boundaries if origin < seqno < offset.seqno
    ]
    if (
        origin < offset.seqno and offset.snapshot.end != NO_END
    ):  # an open snapshot is no bound yet; the next plan finds one
        boundaries.append(Boundary(offset.seqno, offset.snapshot.end))
    known = len(position.log) and position.log.newest.vbuuid == offset.vbuuid
    return VBucketProgress(
        seqno=offset.seqno,
        log=_kept(position.log.sanitised() if known else FailoverLog.of((offset.vbuuid, 0))),
        boundaries=thinned(boundaries, most),
        origin=origin,
        purge_seqno=position.purge_seqno if position.purge_seqno > offset.seqno else 0,
    )


# ---- the next offset ---------------------------------------------------------------------


def plan(
    previous: Offset, facts: Mapping[int, ObservedVBucket], limits: Limits = _NO_LIMITS
) -> Offset:
    """The offset at which the next batch ends; equal to ``previous`` if there is nothing to do."""
    count = previous.source.vbuckets
    for vbucket in facts:
        if not 0 <= vbucket < count:
            raise ConfigError(
                f"the server has a vbucket {vbucket}, but the checkpoint is of a bucket with"
                f" {count} vbuckets; start the query with a new checkpoint location"
            )
    most = most_boundaries(count)
    starts = {v: _start(previous.at(v), facts[v], v, limits, most) for v in sorted(facts)}
    granted = spread(
        {vbucket: start.backlog for vbucket, start in starts.items()},
        limits.seqnos,
        {vbucket for vbucket, start in starts.items() if start.whole},
    )
    progress = dict(previous.progress)
    moved = False
    for vbucket, start in starts.items():
        grant, must_roll_back = granted[vbucket], start.progress.rolled_back
        if start.whole and grant < start.backlog:
            continue  # it waits for a batch with room for all of it
        if not grant and not must_roll_back and vbucket not in previous.progress:
            continue
        # a branch that lost nothing is worth a batch too: tables name the branch they are of
        on_another = start.progress.vbuuid != previous.at(vbucket).vbuuid
        moved = moved or bool(grant) or must_roll_back or on_another
        progress[vbucket] = _step_of(start.progress, grant)
    # where nothing moved, a boundary that is known better is not worth a batch of its own
    return Offset(previous.source, progress) if moved else previous


def with_closed_ends(previous: Offset, facts: Mapping[int, ObservedVBucket]) -> Offset:
    """The same place, with the ends of the last steps as boundaries; ``previous`` if they are.

    Facts are of vbuckets on the branch that was read last. Where nothing follows for a while, that
    is worth a batch without rows: a failover before the next one then takes back less.
    """
    most = most_boundaries(previous.source.vbuckets)
    open_ends = {vb for vb in facts if (at := previous.at(vb)).start < at.seqno}
    closed = {
        vb: _gone_on(previous.at(vb), facts[vb], most)
        for vb in open_ends
        if not _would_be_refused(previous.at(vb), facts[vb])
    }
    return Offset(previous.source, {**previous.progress, **closed}) if closed else previous


def _step_of(start: VBucketProgress, grant: int) -> VBucketProgress:
    log = start.log
    oldest = start.boundaries[0].bound if start.boundaries else NO_END
    if not start.origin and oldest > log.newest.seqno:
        log = FailoverLog(log.entries[:1])  # there is no place on older branches to go back to
    return replace(start, seqno=start.seqno + grant, log=log)


def _start(
    at: VBucketProgress, facts: ObservedVBucket, vbucket: int, limits: Limits, most: int
) -> _Start:
    if not len(at.log):
        progress = VBucketProgress(log=_kept(facts.failover_log), purge_seqno=facts.purge_seqno)
    elif facts.failover_log.newest.vbuuid != at.vbuuid:
        progress = _gone_back(at, facts, shared(at.log, facts.failover_log, facts.high_seqno))
    elif _would_be_refused(at, facts):
        return _Start(_gone_back(at, facts, 0), facts.high_seqno, whole=True)
    else:
        progress = _gone_on(at, facts, most)
    until = facts.high_seqno
    if limits.target is not None:
        until = min(until, limits.target.get(vbucket, 0))
    return _Start(progress, max(0, until - progress.seqno))


def _gone_on(at: VBucketProgress, facts: ObservedVBucket, most: int) -> VBucketProgress:
    boundaries = at.boundaries
    if at.start < at.seqno:
        bound = facts.high_seqno if facts.is_bound else NO_END
        boundaries = thinned((*boundaries, Boundary(at.seqno, bound)), most)
    purge = at.purge_seqno if at.purge_seqno > at.seqno else 0
    return replace(at, boundaries=boundaries, purge_seqno=purge, rolled_back=False)


def _gone_back(at: VBucketProgress, facts: ObservedVBucket, shared: int) -> VBucketProgress:
    """At the newest place where nothing is held that histories equal up to ``shared`` differ in."""
    boundaries = tuple(boundary for boundary in at.boundaries if boundary.bound <= shared)
    origin = min(at.origin, shared)
    point = boundaries[-1].seqno if boundaries else origin
    rolled_back = point < at.seqno
    purge = at.purge_seqno if point else facts.purge_seqno
    return VBucketProgress(
        seqno=point,
        branch=at.branch + rolled_back,
        log=_kept(facts.failover_log),
        boundaries=boundaries,
        origin=origin,
        purge_seqno=purge if purge > point else 0,
        rolled_back=rolled_back,
    )


def shared(mine: FailoverLog, served: FailoverLog, high_seqno: int) -> int:
    """Up to which seqno the history that was read and the one that is served are the same."""
    if any(served.newest.vbuuid == entry.vbuuid for entry in mine):
        return 0  # the server went back in time, and nobody knows what it has written since
    left_at = NO_END
    for entry in mine:
        until = served.branch_end(entry.vbuuid, high_seqno)
        if until is not None:
            return min(until, left_at, high_seqno)
        left_at = entry.seqno
    return 0


def _would_be_refused(at: VBucketProgress, facts: ObservedVBucket) -> bool:
    """Whether the last step's request, asked again now, would be refused, or its end is gone."""
    asked_again = rollback_point(facts.failover_log, at.request, high_seqno=facts.high_seqno)
    return facts.refused or asked_again is not None or at.seqno > facts.high_seqno


def _kept(log: FailoverLog) -> FailoverLog:
    return FailoverLog(log.entries[:MAX_BRANCHES])


def after_reading(planned: Offset, snapshot_ends: Mapping[int, int]) -> Offset:
    """The offset of a batch that was read: what tasks know of the ends of its steps is in it.

    ``snapshot_ends`` are, by vbucket whose step was read to its end on the planned branch, the
    highest end of a snapshot that its task saw.
    """
    most = most_boundaries(planned.source.vbuckets)
    progress = dict(planned.progress)
    for vbucket, seen in snapshot_ends.items():
        at = progress[vbucket]
        if at.start < at.seqno <= seen < NO_END:
            before = at.boundaries[-1].bound if at.boundaries else 0
            end = Boundary(at.seqno, max(seen, before))
            boundaries = thinned((*at.boundaries, end), most)
            progress[vbucket] = replace(at, boundaries=boundaries, rolled_back=False)
    return Offset(planned.source, progress)


def with_rereads(
    previous: Offset,
    planned: Offset,
    facts: Mapping[int, ObservedVBucket],
    can_restore: Callable[[int, int], bool],
) -> Offset:
    """The same plan, but for vbuckets that go back to where they cannot be restored."""
    changed = {
        vb: VBucketProgress(
            seqno=facts[vb].high_seqno,
            branch=step.branch,
            log=step.log,
            purge_seqno=facts[vb].purge_seqno,
            rolled_back=True,
        )
        for vb, step in planned.progress.items()
        if step.rolled_back
        and step != previous.at(vb)
        and not (step.start and can_restore(vb, step.start))
    }
    return Offset(planned.source, {**planned.progress, **changed}) if changed else planned


def nowhere(vbucket: int, seqno: int) -> bool:
    """To which seqnos a target can be restored that holds only the newest versions."""
    return False
