"""Random histories of a bucket that is read in micro-batches, and the table folded from the rows.

The producer is a model that decides as the protocol says (`model.rollback_point`) and forgets, as
real ones do, every version of a key but the newest. Everything that can happen between two lines
of the driver or of a task happens at random: writes, deletions, failovers to replicas that were
behind or in the middle of a snapshot, purges, cut streams, answers of a server that has not heard
of the failover yet, tasks that are tried again, drivers that crash and replay. A table's pipeline
commits what its tasks saw and plans anew after a crash; a query of Spark does neither. The code
under test is the project's own: offsets (through their JSON text), planning, admission, steps and
verdicts, and how far streams have come that the driver keeps open.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from upriver.batches.admission import Limits
from upriver.batches.offset_planning import (
    ObservedVBucket,
    after_reading,
    from_beginning,
    from_latest,
    from_positions,
    plan,
)
from upriver.batches.offset_ranges import (
    ReadStep,
    StepVerdict,
    judge,
    partition,
    steps_between,
)
from upriver.batches.offsets import Offset, SourceIdentity
from upriver.batches.read_ahead import ArrivedSeqnos
from upriver.model import NO_END, FailoverLog, Snapshot, StreamOffset, rollback_point
from upriver.session.consumer_events import Step
from upriver.session.stream_position import Position, PositionTracker

Plan = Callable[[Offset, Mapping[int, ObservedVBucket], Limits], Offset]
Judge = Callable[..., StepVerdict]
AfterReading = Callable[[Offset, Mapping[int, int]], Offset]
Documents = dict[tuple[int, str], int]


class Row(NamedTuple):
    """A row of the source. ``value`` is None for a deletion; ``key`` is None for a rollback."""

    vbucket: int
    branch: int
    seqno: int
    key: str | None = None
    value: int | None = None


def fold(rows: Iterable[Row]) -> Documents:
    """The documents that rows amount to, in any order of rows.

    A row is dead if a rollback row of its vbucket has a higher branch and a seqno below the row's.
    Of the others the newest (branch, seqno) of a key counts.
    """
    rows = list(rows)
    rollbacks: dict[int, list[tuple[int, int]]] = {}
    for row in rows:
        if row.key is None:
            rollbacks.setdefault(row.vbucket, []).append((row.branch, row.seqno))
    newest: dict[tuple[int, str], tuple[int, int, int | None]] = {}
    for vbucket, branch, seqno, key, value in rows:
        if key is None:
            continue
        for later, point in rollbacks.get(vbucket, ()):
            if later > branch and point < seqno:
                break
        else:
            held = newest.get((vbucket, key))
            if held is None or (branch, seqno) > held[:2]:
                newest[vbucket, key] = (branch, seqno, value)
    return {name: value for name, (_, _, value) in newest.items() if value is not None}


class VBucket:
    """One vbucket of the producer."""

    def __init__(self, vbuuid: int) -> None:
        self.history: list[tuple[int, str, int | None]] = []
        self.newest: dict[str, tuple[int, int | None]] = {}
        self.log = FailoverLog.of((vbuuid, 0))
        self.high = 0
        self.purge_seqno = 0
        #: What the last active server still has, if it has not heard of the failover.
        self.forgotten: VBucket | None = None

    @property
    def vbuuid(self) -> int:
        return self.log.newest.vbuuid

    def write(self, key: str, value: int | None) -> None:
        self.high += 1
        self.history.append((self.high, key, value))
        self.newest[key] = (self.high, value)

    def fail_over(self, vbuuid: int, seqno: int, received: int, purge_upto: int) -> None:
        """A replica takes over that had all up to ``seqno``, and some of a newer snapshot."""
        old = VBucket(0)
        old.history, old.newest, old.log = self.history, self.newest, self.log
        old.high, old.purge_seqno = self.high, self.purge_seqno
        partly = sorted((s, k, v) for k, (s, v) in self.newest.items() if seqno < s <= received)
        self.history = [change for change in self.history if change[0] <= seqno] + partly
        self.newest = {key: (at, value) for at, key, value in self.history}
        self.high = partly[-1][0] if partly else seqno
        self.log = self.log.branch(vbuuid, seqno)
        self.purge_seqno = 0
        self.purge(purge_upto)
        self.forgotten = old

    def purge(self, upto: int) -> None:
        gone = {k: s for k, (s, value) in self.newest.items() if value is None and s <= upto}
        for key in gone:
            del self.newest[key]
        self.purge_seqno = max(self.purge_seqno, *gone.values(), 0)

    def grants(self, offset: StreamOffset, reader_purge_seqno: int) -> bool:
        point = rollback_point(
            self.log,
            offset,
            high_seqno=self.high,
            purge_seqno=self.purge_seqno,
            reader_purge_seqno=reader_purge_seqno,
        )
        return point is None and offset.seqno <= self.high

    def read(self, after: int) -> list[tuple[int, str, int | None]]:
        """Only the newest version of a key exists."""
        return sorted((s, k, v) for k, (s, v) in self.newest.items() if s > after)

    def snapshot(self, after: int, until: int) -> list[tuple[int, str, int | None]]:
        """As `read`; one that ends earlier is of what memory still has of each change."""
        if until == self.high:
            return self.read(after)
        newest = {key: (at, key, value) for at, key, value in self.history if after < at <= until}
        return sorted(newest.values())


@dataclass(frozen=True)
class World:
    """What may happen, and the rule that is tried. Defaults: everything, and the project's rule."""

    plan: Plan = plan
    judge: Judge = judge
    after_reading: AfterReading = after_reading
    #: Whether anything but a commit happens between a plan and the end of its batch.
    busy_reading: bool = True
    purges: bool = True
    #: Whether the failover log is asked for before the seqno, and not again after it.
    hasty_facts: bool = False
    #: Whether a step is taken for granted because the one before it was.
    trusts_old_proofs: bool = False
    #: How far streams that stay open have come.
    seqnos: type[ArrivedSeqnos] = ArrivedSeqnos
    #: Whether the server tells how far it is, and snapshots say where they end. If not, the driver
    #: knows what a stream has brought by then, and tasks that are cut begin their step again.
    tells_seqnos: bool = True
    #: Whether the driver says then that what it knows is no bound.
    admits_it: bool = True


class OpenStreams:
    """Streams that the driver keeps open, and what is on its way to it or has arrived."""

    def __init__(self, seqnos: ArrivedSeqnos, at: dict[int, int]) -> None:
        self.seqnos = seqnos
        self.sent = at
        #: By vbucket the changes of its newest snapshot that have not arrived, and its end.
        self.on_their_way: dict[int, tuple[list[tuple[int, str, int | None]], int]] = {}
        self.arrived: list[tuple[int, int, str, int | None]] = []
        #: Vbuckets whose stream has ended, of which the driver has not heard.
        self.ended: set[int] = set()

    def send(self, number: int, vbucket: VBucket) -> None:
        """A producer begins a snapshot, if the last one has arrived.

        It ends a stream from which it would have to leave out deletions.
        """
        if 0 < self.sent[number] < vbucket.purge_seqno:
            self.ended.add(number)
        if number not in self.ended and number not in self.on_their_way:
            changes = vbucket.read(self.sent[number])
            if changes:
                self.on_their_way[number] = changes, vbucket.high
                self.sent[number] = vbucket.high

    def receive(self, count: int) -> None:
        for number, (changes, end) in list(self.on_their_way.items()):
            for seqno, key, value in changes[:count]:
                self.arrived.append((number, seqno, key, value))
                self.seqnos.arrived(Step(number, 1, seqno, Snapshot(0, end)))
            if count < len(changes):
                self.on_their_way[number] = changes[count:], end
            else:
                del self.on_their_way[number]


class TaskFailed(Exception):
    """A task cannot go on, or no server knows the branch that was planned."""


class WrongTable(AssertionError):
    """The table differs from the documents although everything was read."""


class Simulation:
    """One random history."""

    def __init__(self, seed: int, world: World) -> None:
        self.random = random.Random(seed)
        self.world = world
        self.next_vbuuid = 0xA0
        self.written = 0
        self.rows: list[Row] = []
        count = self.random.choice((1, 2, 3))
        self.source = SourceIdentity("bucket", "b0", count)
        self.vbuckets = [VBucket(self.new_vbuuid()) for _ in range(count)]
        self.keys = [f"k{n}" for n in range(self.random.choice((2, 4, 9)))]
        self.heeds_purge_seqno = self.random.random() < 0.5
        self.tells_purge_seqno = self.random.random() < 0.7
        self.starts_at_latest = False
        #: Whether what tasks saw is known when their batch is committed, as in a table's pipeline.
        self.is_table = self.random.random() < 0.5
        #: By vbucket the highest end of a snapshot that a batch's tasks saw, if they read it all.
        self.snapshot_ends: dict[int, int] = {}
        #: Whether the driver asks only once after a step was read whether it had been refused, and
        #: the vbuckets of which it knows that they were not.
        self.asks_once = self.random.random() < 0.5
        self.proved: set[int] = set()
        self.streams: OpenStreams | None = None
        #: The high seqnos of the driver's last look.
        self.highs: dict[int, int] = {}
        #: What happened, to know that everything does.
        self.seen: Counter[str] = Counter()

    def run(self) -> None:
        for _ in range(self.random.randrange(4)):
            self.anything(12)
        if self.world.purges and self.random.random() < 0.4:
            for vbucket in self.vbuckets:
                vbucket.purge(vbucket.high)
        at = self.stored(self.first_offset())
        for _ in range(self.random.randrange(3, 14)):
            self.anything(8)
            at = self.batch(at, quiet=False)
        for _ in range(20):
            before = at
            at = self.batch(at, quiet=True)
            if at == before:
                break
        else:
            raise WrongTable("a quiet bucket is never read up")
        self.compare(at)

    # ---- the world -----------------------------------------------------------------------

    def new_vbuuid(self) -> int:
        self.next_vbuuid += 1
        return self.next_vbuuid

    def anything(self, most: int) -> None:
        """Time passes."""
        rnd = self.random.random
        for number, vbucket in enumerate(self.vbuckets):
            if rnd() < 0.6:
                for _ in range(int(rnd() * most)):
                    self.written += 1
                    value = None if rnd() < 0.25 else self.written
                    vbucket.write(self.keys[int(rnd() * len(self.keys))], value)
            if self.world.purges and rnd() < 0.08:
                vbucket.purge(self.random.randint(0, vbucket.high))
            if vbucket.high and rnd() < 0.12:
                lost = int(rnd() * self.random.choice((1, 4, 12)))
                seqno = max(0, vbucket.high - lost)
                received = vbucket.high - int(rnd() * lost) if rnd() < 0.4 else seqno
                purged = int(rnd() * seqno) if self.world.purges and rnd() < 0.3 else 0
                vbucket.fail_over(self.new_vbuuid(), seqno, received, purged)
                if self.streams is not None:
                    self.streams.ended.add(number)
            if self.streams is not None and rnd() < 0.7:
                self.streams.send(number, vbucket)
                self.streams.receive(int(rnd() * 6))
            if rnd() < 0.3:
                vbucket.forgotten = None

    def meanwhile(self) -> None:
        if self.world.busy_reading and self.random.random() < 0.25:
            self.anything(5)

    # ---- the driver ----------------------------------------------------------------------

    def first_offset(self) -> Offset:
        choice = self.random.random()
        if choice < 0.2:
            self.starts_at_latest = True
            return from_latest(self.source, self.facts(from_beginning(self.source)))
        if choice < 0.4:
            return from_positions(self.source, self.positions_of_a_consumer())
        return from_beginning(self.source)

    def positions_of_a_consumer(self) -> dict[int, Position]:
        """Somebody has read part of the bucket and hands over; what it read is in the table.

        It may have begun at "now", and then holds nothing of what was there before.
        """
        positions = {}
        self.starts_at_latest = self.random.random() < 0.4
        for number, vbucket in enumerate(self.vbuckets):
            tracker = PositionTracker()
            if self.starts_at_latest and vbucket.high:
                high = vbucket.high
                offset = StreamOffset(vbucket.vbuuid, high, Snapshot(high, high))
                tracker = PositionTracker(Position(offset, vbucket.log, (high,), origin=high))
                for _ in range(self.random.randrange(4)):
                    self.written += 1
                    vbucket.write(self.random.choice(self.keys), self.written)
            for _ in range(self.random.randrange(1, 4)):
                if not vbucket.grants(tracker.position().offset, 0):
                    break
                changes = vbucket.read(tracker.seqno)
                tracker.follow(vbucket.log)
                if changes:
                    # a purged deletion at its end is still part of a snapshot
                    tracker.snapshot_began(Snapshot(changes[0][0], vbucket.high))
                if self.random.random() < 0.4:
                    changes = changes[: self.random.randrange(len(changes) + 1)]
                for seqno, key, value in changes:
                    tracker.advanced(seqno)
                    self.rows.append(Row(number, 0, seqno, key, value))
                for _ in range(self.random.randrange(4)):
                    self.written += 1
                    vbucket.write(self.random.choice(self.keys), self.written)
            positions[number] = tracker.position()
        self.anything(6)
        return positions

    def facts(self, at: Offset, *, all_of_them: bool = True) -> dict[int, ObservedVBucket]:
        found = {}
        for number, vbucket in enumerate(self.vbuckets):
            if not all_of_them and self.random.random() < 0.1:
                continue
            log = vbucket.log
            if self.world.hasty_facts:
                self.meanwhile()
            progress = at.at(number)
            self.highs[number] = vbucket.high
            on_its_branch = progress.vbuuid == log.newest.vbuuid
            # only the failover log is asked for if nothing else has to be known
            looks = number not in self.proved or not on_its_branch
            refused = looks and not vbucket.grants(
                progress.request, self.heeded(progress.purge_seqno)
            )
            if not refused and self.asks_once:
                self.proved.add(number)
            known = vbucket.high
            if not self.world.tells_seqnos and not all_of_them:
                least = progress.seqno if on_its_branch else 0
                known = self.random.randint(min(least, known), known)
            found[number] = ObservedVBucket(
                high_seqno=known,
                failover_log=log,
                purge_seqno=vbucket.purge_seqno if looks and self.tells_purge_seqno else 0,
                refused=refused and on_its_branch,
                is_bound=self.world.tells_seqnos or not self.world.admits_it,
            )
        if self.streams is not None:
            self.streams.seqnos.sampled({n: v.high for n, v in enumerate(self.vbuckets)})
        return found

    def open_streams(self, at: Offset) -> None:
        """The driver has streams opened where the last batch ends, unless one is refused."""
        found: dict[int, tuple[int, FailoverLog]] = {}
        for number, vbucket in enumerate(self.vbuckets):
            progress = at.at(number)
            log = progress.log if len(progress.log) else vbucket.log
            seqno = progress.seqno
            offset = StreamOffset(log.newest.vbuuid, seqno, Snapshot(seqno, seqno))
            if vbucket.vbuuid != log.newest.vbuuid or not vbucket.grants(offset, 0):
                return
            found[number] = seqno, log
        seqnos = self.world.seqnos(found, self.highs)
        for number, vbucket in enumerate(self.vbuckets):
            assert seqnos.opened(number, vbucket.log)
        self.streams = OpenStreams(seqnos, {n: seqno for n, (seqno, _) in found.items()})

    def facts_ahead(self, at: Offset) -> dict[int, ObservedVBucket] | None:
        """What streams have brought, as the driver may plan from it; None if it must look."""
        if not self.world.tells_seqnos:
            return None
        if self.streams is None:
            if self.highs and self.random.random() < 0.5:
                self.open_streams(at)
            return None
        if self.random.random() < 0.2:
            return None
        seqnos = self.streams.seqnos
        if seqnos.is_stale:
            seqnos.sampled({n: vbucket.high for n, vbucket in enumerate(self.vbuckets)})
        self.meanwhile()
        if self.streams.ended and self.random.random() < 0.5:
            self.streams = None
            return None
        facts = seqnos.facts(at)
        for number in facts or {}:
            progress, vbucket = at.at(number), self.vbuckets[number]
            if not len(progress.log) or number in self.proved:
                continue
            if vbucket.vbuuid != progress.vbuuid or not vbucket.grants(
                progress.request, self.heeded(progress.purge_seqno)
            ):
                return None
            self.proved.add(number)
        return facts

    def heeded(self, purge_seqno: int) -> int:
        return purge_seqno if self.heeds_purge_seqno else 0

    def limits(self) -> Limits:
        rnd = self.random.random
        return Limits(
            rows=self.random.randint(1, 12) if rnd() < 0.5 else None,
            bytes=self.random.randint(100, 1000) if rnd() < 0.2 else None,
            bytes_per_row=100,
            target={n: v.high - int(rnd() * 3) for n, v in enumerate(self.vbuckets)}
            if rnd() < 0.1
            else None,
        )

    def stored(self, offset: Offset) -> Offset:
        text = json.dumps(offset.to_dict())
        found = Offset.of_dict(json.loads(text), self.source)
        assert found == offset
        return found

    def batch(self, at: Offset, *, quiet: bool) -> Offset:
        """Plans, reads and commits once; crashes on the way are survived."""
        ahead = None if quiet else self.facts_ahead(at)
        planned = self.world.plan(
            at,
            self.facts(at, all_of_them=quiet) if ahead is None else ahead,
            Limits() if quiet else self.limits(),
        )
        if planned is at or planned == at:
            return at
        if not quiet:
            if ahead is None:
                self.meanwhile()
            if self.random.random() < 0.03:
                self.driver_dies()
                return at  # before the plan is stored
        end = self.stored(planned)
        rows: list[Row] | None
        if ahead is not None:
            rows = self.rows_ahead(at, end)
        else:
            rows = self.rows_of_batch(at, end, quiet=quiet, replay=False)
            if self.streams is not None:
                self.streams.seqnos.is_stale = True
            if not self.world.trusts_old_proofs:
                self.proved -= {step.vbucket for step in steps_between(at, end) if step.has_range}
        while rows is None or (not quiet and self.random.random() < 0.15):
            if self.is_table:
                self.driver_dies()
                return at  # only what was committed counts
            self.seen["replay"] += 1
            self.driver_dies()
            self.meanwhile()  # the driver dies; the batch is replayed from its offsets
            rows = self.rows_of_batch(at, end, quiet=quiet, replay=True)
        self.rows += rows
        if not quiet and not self.is_table and self.random.random() < 0.05:
            # the driver dies after the commit: the sink has this batch already and takes no other
            self.driver_dies()
            self.rows_of_batch(at, end, quiet=False, replay=True)
        if self.is_table and ahead is None:
            known = self.snapshot_ends
            if not self.world.tells_seqnos:
                known = dict.fromkeys(known, NO_END)
            end = self.stored(self.world.after_reading(end, known))
            self.seen["known ends"] += bool(self.snapshot_ends)
            if not self.world.trusts_old_proofs:
                self.proved |= self.snapshot_ends.keys()
        if not quiet and self.is_table and self.random.random() < 0.05:
            self.driver_dies()
        self.seen["rollback"] += sum(row.key is None and row.seqno > 0 for row in rows)
        self.seen["rollback to 0"] += sum(row.key is None and row.seqno == 0 for row in rows)
        self.is_caught_up(end)
        return end

    def driver_dies(self) -> None:
        self.proved.clear()
        self.streams = None
        self.highs = {}

    def rows_ahead(self, at: Offset, end: Offset) -> list[Row]:
        """The rows of a batch whose changes have arrived before it was planned."""
        assert self.streams is not None
        self.seen["read ahead"] += 1
        rows: list[Row] = []
        for step in steps_between(at, end):
            if step.rolls_back:
                raise WrongTable("what has arrived takes a rollback")
            mine = [change[1:] for change in self.streams.arrived if change[0] == step.vbucket]
            self.take(step, mine, rows)
        return rows

    # ---- the tasks -----------------------------------------------------------------------

    def rows_of_batch(
        self, at: Offset, end: Offset, *, quiet: bool, replay: bool
    ) -> list[Row] | None:
        """The rows of one attempt at a batch; None if a task failed."""
        branches = {n: vbucket.vbuuid for n, vbucket in enumerate(self.vbuckets)}
        rows: list[Row] = []
        self.snapshot_ends = {}
        try:
            for group in partition(steps_between(at, end, branches if replay else None), 2):
                if not quiet and self.random.random() < 0.05:
                    for step in group[: self.random.randrange(len(group)) + 1]:
                        self.read(step, [], quiet=False)  # an attempt that dies
                for step in group:
                    seen = self.read(step, rows, quiet=quiet)
                    if seen is not None:
                        self.snapshot_ends[step.vbucket] = seen
        except TaskFailed:
            return None
        return rows

    def read(self, step: ReadStep, rows: list[Row], *, quiet: bool) -> int | None:
        """The highest end of a snapshot that was seen; None if the step was not read to its end."""
        if step.rolls_back:
            rows.append(Row(step.vbucket, step.branch, step.start))
        offset = step.offset
        seen, done = 0, step.start
        while done < step.end:
            if not quiet:
                self.meanwhile()
            server = self.vbuckets[step.vbucket]
            if server.forgotten is not None and not quiet and self.random.random() < 0.3:
                server = server.forgotten
            granted = server.grants(offset, self.heeded(step.purge_seqno))
            # a consumer takes no rows of another branch than the one of its position
            if not granted or server.vbuuid != step.offset.vbuuid:
                verdict = self.world.judge(step, replace(offset, seqno=done), server.log)
                self.seen[verdict.name] += 1
                if verdict is StepVerdict.START_OVER:
                    raise TaskFailed
                if verdict is StepVerdict.SKIP:
                    return None
                if server is self.vbuckets[step.vbucket]:
                    self.seen["branch forgotten"] += 1
                    raise TaskFailed
                self.vbuckets[step.vbucket].forgotten = None
                continue
            until = high = server.high
            if not quiet and high > offset.seqno and self.random.random() < 0.3:
                # what is purged has left memory long before
                until = self.random.randint(max(offset.seqno + 1, server.purge_seqno), high)
            is_last = until >= min(step.end, high)
            changes = server.snapshot(offset.seqno, until)
            snapshot = Snapshot(offset.seqno, until)
            seen = max(seen, until)
            changes = [change for change in changes if change[0] > done]
            cut = len(changes)
            if not quiet and self.random.random() < 0.3:
                cut = self.random.randrange(cut + 1)
            self.take(step, changes[:cut], rows)
            if cut == len(changes) and is_last:
                return seen
            for _ in range(3):
                self.meanwhile()
            if self.random.random() < 0.3:  # what was on its way still arrives
                self.take(step, changes[cut:], rows)
                if is_last:
                    return seen
                cut = len(changes)
            if cut:
                done = changes[cut - 1][0]
                if self.world.tells_seqnos:
                    offset = StreamOffset(step.offset.vbuuid, done, snapshot)
        return seen

    @staticmethod
    def take(
        step: ReadStep, changes: Iterable[tuple[int, str, int | None]], rows: list[Row]
    ) -> None:
        rows += [
            Row(step.vbucket, step.branch, seqno, key, value)
            for seqno, key, value in changes
            if step.wants(seqno)
        ]

    # ---- the verdict ---------------------------------------------------------------------

    def is_caught_up(self, at: Offset) -> bool:
        """Whether all there is was read; if so, the table must be right."""
        for number, vbucket in enumerate(self.vbuckets):
            progress = at.at(number)
            if progress.seqno != vbucket.high or not (
                vbucket.high == 0 or progress.vbuuid == vbucket.vbuuid
            ):
                return False
            if not vbucket.grants(progress.request, self.heeded(progress.purge_seqno)):
                return False
        self.seen["caught up"] += 1
        self.compare(at)
        return True

    def compare(self, at: Offset) -> None:
        table = fold(self.rows)
        documents = {}
        wanted = {}
        for number, vbucket in enumerate(self.vbuckets):
            origin = at.at(number).origin
            for key, (seqno, value) in vbucket.newest.items():
                if value is not None:
                    documents[number, key] = value
                    if seqno > origin:
                        wanted[number, key] = value
        if self.starts_at_latest:
            right = wanted.items() <= table.items() <= documents.items()
        else:
            right = table == documents
        if not right:
            raise WrongTable(f"the table is {table}, the documents are {documents}")
        changes = [row[:3] for row in self.rows if row.key is not None]
        if len(set(changes)) != len(changes):
            raise WrongTable("a change came twice on one branch")


def wrong_histories(
    seeds: Iterable[int], world: World, seen: Counter[str] | None = None
) -> Iterator[int]:
    """The seeds of the histories that end with a wrong table; ``seen`` counts what happened."""
    for seed in seeds:
        simulation = Simulation(seed, world)
        try:
            simulation.run()
        except WrongTable:
            yield seed
        if seen is not None:
            seen += simulation.seen
