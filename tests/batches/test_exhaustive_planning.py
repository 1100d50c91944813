"""Every history of a small scope: one vbucket, two keys, up to two failovers, each step at a time.

The driver plans, the task reads, and between any two of these anything else may happen. After every
step of every history the bucket falls quiet, is read to its end, and the table must equal the
documents. Nothing is random: what is wrong in this scope is found.

The producer is the model of the random simulation; offsets, planning, steps and verdicts are the
project's own.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import pytest
from simulation import AfterReading, Documents, Plan, Row, VBucket, fold

from upriver.batches.admission import Limits
from upriver.batches.offset_planning import (
    ObservedVBucket,
    after_reading,
    from_beginning,
    plan,
)
from upriver.batches.offset_ranges import StepVerdict, judge, steps_between
from upriver.batches.offsets import Offset, SourceIdentity

SOURCE = SourceIdentity("bucket", "b0", 1)
KEYS = ("k0", "k1")
MOST_FAILOVERS = 2
#: Batches in which a quiet bucket is read to its end.
QUIET_BATCHES = 6


@dataclass(frozen=True, slots=True)
class State:
    """Everything that can differ between two histories. The vbucket is never changed in place."""

    vbucket: VBucket
    at: Offset
    planned: Offset | None = None
    #: Whether an attempt at the planned batch has failed.
    replays: bool = False
    rows: tuple[Row, ...] = ()
    failovers: int = 0
    writes: int = 0

    def name(self) -> tuple[object, ...]:
        """Equal names mean that all that can follow is the same."""
        vbucket = self.vbucket
        return (
            tuple(vbucket.history),
            tuple(sorted(vbucket.newest.items())),
            vbucket.log,
            vbucket.high,
            vbucket.purge_seqno,
            text(self.at),
            None if self.planned is None else text(self.planned),
            self.replays,
            self.rows,
        )


def text(offset: Offset) -> str:
    return json.dumps(offset.to_dict())


def copied(vbucket: VBucket) -> VBucket:
    other = VBucket(0)
    other.history, other.newest = list(vbucket.history), dict(vbucket.newest)
    other.log, other.high, other.purge_seqno = vbucket.log, vbucket.high, vbucket.purge_seqno
    return other


class Scope:
    """All histories of up to so many steps, with one rule of planning.

    With ``after_reading`` a batch is committed with what its task saw.
    """

    def __init__(
        self,
        rule: Plan,
        *,
        tells_purges: bool,
        heeds_purges: bool = False,
        after_reading: AfterReading = lambda planned, ends: planned,
    ) -> None:
        self._rule = rule
        self._after_reading = after_reading
        self._tells_purges = tells_purges
        #: Whether the server grants a request that names its purge seqno.
        self._heeds_purges = heeds_purges
        self.states = 0

    def wrong(self, steps: int) -> tuple[str, ...] | None:
        """The first history, by its steps, that ends with a wrong table; None if there is none."""
        first = State(VBucket(0xA0), from_beginning(SOURCE))
        seen = {first.name(): steps}
        stack: list[tuple[State, int, tuple[str, ...]]] = [(first, steps, ())]
        while stack:
            state, left, path = stack.pop()
            self.states += 1
            if not self._ends_well(state):
                return path
            for step, after in self._after(state) if left else ():
                name = after.name()
                if seen.get(name, 0) < left:
                    seen[name] = left
                    stack.append((after, left - 1, (*path, step)))
        return None

    # ---- steps ---------------------------------------------------------------------------

    def _after(self, state: State) -> Iterator[tuple[str, State]]:
        number = state.writes + 1
        for key in KEYS if state.writes else KEYS[:1]:  # the first key is called k0
            yield f"write {key}", self._written(state, key, number)
            if state.vbucket.newest.get(key, (0, None))[1] is not None:
                yield f"delete {key}", self._written(state, key, None)
        high = state.vbucket.high
        if state.failovers < MOST_FAILOVERS:
            for lost, received in ((1, 0), (2, 0), (2, 1), (high, 0)):
                if (0 < lost <= high and (lost, received) != (high, 0)) or lost == high > 2:
                    yield f"lose {lost}, keep {received}", self._failed(state, lost, received)
        if any(value is None for _, value in state.vbucket.newest.values()):
            purged = copied(state.vbucket)
            purged.purge(high)
            yield "purge", replace(state, vbucket=purged)
        if state.planned is None:
            for rows in (1, None):
                end = self._plan(state, Limits(rows=rows))
                if end is not None:
                    yield f"plan {rows or 'all'}", replace(state, planned=end)
        else:
            yield "read", self._read(state)

    @staticmethod
    def _written(state: State, key: str, value: int | None) -> State:
        vbucket = copied(state.vbucket)
        vbucket.write(key, value)
        return replace(state, vbucket=vbucket, writes=state.writes + 1)

    @staticmethod
    def _failed(state: State, lost: int, received: int) -> State:
        vbucket, high = copied(state.vbucket), state.vbucket.high
        vbucket.fail_over(0xB0 + state.failovers, high - lost, high - lost + received, 0)
        vbucket.forgotten = None
        return replace(state, vbucket=vbucket, failovers=state.failovers + 1)

    # ---- driver and task -----------------------------------------------------------------

    def _plan(self, state: State, limits: Limits) -> Offset | None:
        vbucket, progress = state.vbucket, state.at.at(0)
        refused = not vbucket.grants(progress.request, self._heeded(progress.purge_seqno))
        fact = ObservedVBucket(
            high_seqno=vbucket.high,
            failover_log=vbucket.log,
            purge_seqno=vbucket.purge_seqno if self._tells_purges else 0,
            refused=refused and progress.vbuuid == vbucket.vbuuid,
        )
        end = self._rule(state.at, {0: fact}, limits)
        return None if end == state.at else Offset.of_dict(json.loads(text(end)), SOURCE)

    def _read(self, state: State) -> State:
        """One attempt at the planned batch, and its commit; or the same state, to be replayed."""
        assert state.planned is not None
        rows: list[Row] = []
        ends: dict[int, int] = {}
        vbucket = state.vbucket
        branches = {0: vbucket.vbuuid} if state.replays else None
        for step in steps_between(state.at, state.planned, branches):
            if step.rolls_back:
                rows.append(Row(0, step.branch, step.start))
            if not step.has_range:
                continue
            granted = vbucket.grants(step.offset, self._heeded(step.purge_seqno))
            if granted and vbucket.vbuuid == step.offset.vbuuid:
                rows += [
                    Row(0, step.branch, seqno, key, value)
                    for seqno, key, value in vbucket.read(step.start)
                    if step.wants(seqno)
                ]
                ends[0] = vbucket.high
            elif judge(step, step.offset, vbucket.log) is not StepVerdict.SKIP:
                return replace(state, replays=True)
        at = Offset.of_dict(json.loads(text(self._after_reading(state.planned, ends))), SOURCE)
        assert at is not None
        return replace(state, at=at, planned=None, replays=False, rows=state.rows + tuple(rows))

    def _heeded(self, purge_seqno: int) -> int:
        return purge_seqno if self._heeds_purges else 0

    def _ends_well(self, state: State) -> bool:
        """Whether a bucket in which nothing happens any more gives the right table."""
        for _ in range(QUIET_BATCHES):
            if state.planned is None:
                end = self._plan(state, Limits())
                if end is None:
                    break
                state = replace(state, planned=end)
            state = self._read(state)
        else:
            return False
        return fold(state.rows) == documents(state.vbucket)


def documents(vbucket: VBucket) -> Documents:
    return {(0, k): value for k, (_, value) in vbucket.newest.items() if value is not None}


#: Whether a server tells its purge seqno, and whether it heeds that of a request.
SERVERS = pytest.mark.parametrize(
    ("tells", "heeds"), [(False, False), (False, True), (True, False), (True, True)]
)


#: Whether it is known at the commit what tasks saw.
COMMITS = pytest.mark.parametrize(
    "committed",
    [
        pytest.param(lambda planned, ends: planned, id="as planned"),
        pytest.param(after_reading, id="as read"),
    ],
)


@COMMITS
@SERVERS
def test_every_small_history_gives_the_right_table(
    tells: bool, heeds: bool, committed: AfterReading
) -> None:
    scope = Scope(plan, tells_purges=tells, heeds_purges=heeds, after_reading=committed)
    assert scope.wrong(6) is None
    assert scope.states > 2_000, scope.states


@pytest.mark.release
@COMMITS
@SERVERS
def test_every_history_of_eight_steps_gives_the_right_table(
    tells: bool, heeds: bool, committed: AfterReading
) -> None:
    scope = Scope(plan, tells_purges=tells, heeds_purges=heeds, after_reading=committed)
    assert scope.wrong(8) is None
    assert scope.states > 50_000


# ---- the scope is large enough to see what it is there for -------------------------------


def test_a_rule_that_keeps_a_boundary_too_long_is_found() -> None:
    """Every boundary is believed, whatever was hidden from the reader when it was there."""

    def believing(*given: object, **named: object) -> Offset:
        end = plan(*given, **named)  # type: ignore[arg-type]
        progress = end.at(0)
        if not progress.boundaries:
            return end
        kept = tuple(replace(b, bound=b.seqno) for b in progress.boundaries)
        return Offset(end.source, {0: replace(progress, boundaries=kept)})

    assert Scope(believing, tells_purges=False).wrong(7) is not None


def test_an_end_with_too_small_a_bound_is_found() -> None:
    """What a task saw above the end of its step hid nothing below it, it says."""

    def believing(planned: Offset, ends: Mapping[int, int]) -> Offset:
        return after_reading(planned, {vbucket: planned.at(vbucket).seqno for vbucket in ends})

    assert Scope(plan, tells_purges=False, after_reading=believing).wrong(7) is not None


def test_a_rule_that_ignores_failovers_is_found() -> None:
    def ignorant(at: Offset, facts: dict[int, ObservedVBucket], limits: Limits) -> Offset:
        progress = at.at(0)
        log = progress.log if len(progress.log) else facts[0].failover_log
        high = max(facts[0].high_seqno, progress.seqno)
        return plan(at, {0: replace(facts[0], failover_log=log, high_seqno=high)}, limits)

    assert Scope(ignorant, tells_purges=False).wrong(6) is not None  # type: ignore[arg-type]


def test_a_rule_that_ignores_refusals_is_found() -> None:
    def deaf(at: Offset, facts: dict[int, ObservedVBucket], limits: Limits) -> Offset:
        return plan(at, {0: replace(facts[0], refused=False)}, limits)

    assert Scope(deaf, tells_purges=False).wrong(7) is not None  # type: ignore[arg-type]
