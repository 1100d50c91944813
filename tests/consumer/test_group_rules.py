"""The rules of groups without I/O: rosters, leases, positions; in a simulation with its own time.

The simulation lets members act one store operation at a time, in any order, on clocks of different
speeds, and kills, pauses and adds members meanwhile.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from upriver.consumer.groups.assignment import Reads, Roster
from upriver.consumer.groups.cells import CellSteps, CellWrite, Read, Stored
from upriver.consumer.groups.member import TURNS, Member, Turn
from upriver.consumer.groups.position_cells import PositionCells, Saved
from upriver.errors import ConfigError, InternalError
from upriver.model import Snapshot, StreamOffset
from upriver.session.stream_position import Position

LEASE = 10.0


def reads(vbuckets: int = 16, **others: Any) -> Reads:
    return Reads(bucket="default", bucket_uuid="u", vbuckets=vbuckets, **others)


def at(seqno: int, vbuuid: int = 1) -> Position:
    return Position(StreamOffset(vbuuid, seqno, Snapshot(seqno, seqno)))


# ---- rosters -----------------------------------------------------------------------------


class Generations:
    """Remembers who had which vbucket at which generation."""

    def __init__(self) -> None:
        self._owners: dict[tuple[int, int], str] = {}
        self._newest: dict[int, int] = {}

    def check(self, roster: Roster) -> None:
        for vbucket, holding in enumerate(roster.holdings):
            assert holding.generation >= self._newest.get(vbucket, 0)
            self._newest[vbucket] = holding.generation
            if holding.owner:
                before = self._owners.setdefault((vbucket, holding.generation), holding.owner)
                assert before == holding.owner
                assert holding.owner in roster.members
            assert holding.next == "" or holding.next in roster.members
            assert holding.generation <= roster.generation


def sizes(roster: Roster) -> list[int]:
    return [sum(holding.heir == member for holding in roster.holdings) for member in roster.members]


@given(st.integers(1, 70), st.data())
def test_any_history_of_members_leaves_the_vbuckets_evenly_spread(
    vbuckets: int, data: st.DataObject
) -> None:
    roster, seen = Roster.new(reads(vbuckets), LEASE), Generations()
    for number in range(data.draw(st.integers(1, 12))):
        what = data.draw(st.sampled_from(["join", "leave", "release"]))
        before = roster
        if what == "join" or not roster.members:
            roster = roster.joined(f"m{data.draw(st.integers(0, 9))}{number}")
        elif what == "leave":
            gone = data.draw(st.sets(st.sampled_from(roster.members), min_size=1))
            roster = roster.without(gone)
            seen.check(roster)
        else:
            member = data.draw(st.sampled_from(roster.members))
            roster = roster.released(member, roster.leaving(member))
        roster = roster.balanced()
        seen.check(roster)
        assert Roster.from_json(roster.to_json()) == roster
        assert roster.balanced() == roster
        if roster.members:
            assert sum(sizes(roster)) == vbuckets
            assert max(sizes(roster)) - min(sizes(roster)) <= 1
        # only what is too much somewhere moves
        stay = [set(before.members) & set(roster.members)]
        for vbucket, holding in enumerate(roster.holdings):
            owner = before.holdings[vbucket].owner
            if owner in stay[0] and holding.owner != owner:
                assert what == "release"


def test_a_new_member_gets_its_share_and_nothing_else_moves() -> None:
    roster = Roster.new(reads(12), LEASE).joined("a").joined("b").balanced()
    assert [sorted(roster.owned_by(m)) for m in "ab"] == [[*range(6)], [*range(6, 12)]]
    more = roster.joined("c").balanced()
    assert more.owned_by("c") == {}
    assert len(more.leaving("a")) == len(more.leaving("b")) == 2
    done = more.released("a", more.leaving("a")).released("b", more.leaving("b"))
    assert len(done.owned_by("c")) == 4
    assert set(done.owned_by("a")) < set(roster.owned_by("a"))
    # and when it goes again, the others have what they had, and all of it
    back = done.without({"c"}).balanced()
    assert len(back.owned_by("a")) == len(back.owned_by("b")) == 6


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"[]",
        b'{"version": 1}',
        Roster.new(reads(2), LEASE).to_json().replace(b'"version": 1', b'"version": 2'),
        Roster.new(reads(2), LEASE).to_json().replace(b"[-1, 0, -1]]", b"[5, 0, -1]]"),
        Roster.new(reads(2), LEASE).to_json().replace(b"[-1, 0, -1]]", b"[-1, 0]]"),
    ],
)
def test_a_roster_that_cannot_be_understood_is_refused(text: bytes) -> None:
    with pytest.raises(ConfigError):
        Roster.from_json(text)


# ---- a store, and members on it ----------------------------------------------------------


class Cells:
    """A store in memory, whose operations happen one after the other."""

    def __init__(self) -> None:
        self.cells: dict[str, Stored] = {}
        self._version = 0
        self.generations = Generations()
        self._saved: dict[int, Saved] = {}

    def do(self, step: Any) -> Any:
        if isinstance(step, Read):
            return self.cells.get(step.cell)
        if isinstance(step, CellWrite):
            newest = self.cells.get(step.cell)
            if (newest.version if newest else 0) != step.version:
                return None
            self._version += 1
            self.cells[step.cell] = Stored(step.content, self._version)
            self._check(step)
            return self._version
        self.cells.pop(step.cell, None)
        return None

    def _check(self, step: CellWrite) -> None:
        if step.cell == "g/roster":
            self.generations.check(Roster.from_json(step.content))
        if "/positions-" in step.cell:
            for vbucket, saved in self.run(PositionCells("g").load(range(64))).items():
                before = self._saved.setdefault(vbucket, saved)
                assert saved.generation >= before.generation
                assert saved.rollbacks >= before.rollbacks
                if saved.rollbacks == before.rollbacks:
                    assert saved.position.seqno >= before.position.seqno
                self._saved[vbucket] = saved

    def run(self, steps: CellSteps[Any]) -> Any:
        answer = None
        try:
            while True:
                answer = self.do(steps.send(answer))
        except StopIteration as end:
            return end.value

    @property
    def roster(self) -> Roster:
        return Roster.from_json(self.cells["g/roster"].content)


def member(name: str, clock: Callable[[], float], **others: Any) -> Member:
    lease = others.pop("lease", LEASE)
    return Member("g", name, reads(**others), lease=lease, clock=clock)


def test_members_must_read_the_same_and_have_the_same_lease() -> None:
    store = Cells()
    store.run(member("a", lambda: 0.0).join())
    for others in ({"vbuckets": 8}, {"scope": "shop"}, {"collections": ("a.b",)}, {"lease": 5.0}):
        with pytest.raises(ConfigError, match="'g'"):
            store.run(member("b", lambda: 0.0, **others).join())
    with pytest.raises(ConfigError, match="to 3600 seconds"):
        member("b", lambda: 0.0, lease=0.1)


def test_a_group_without_members_may_get_another_lease() -> None:
    store = Cells()
    first = member("a", lambda: 0.0)
    store.run(first.join())
    store.run(first.leave())
    store.run(member("b", lambda: 0.0, lease=5.0).join())
    assert store.roster.lease == 5.0


def test_a_sealed_member_cannot_renew_its_lease() -> None:
    now = 0.0
    store = Cells()
    a, b = member("a", lambda: now), member("b", lambda: now)
    store.run(a.join())
    store.run(b.join())
    store.run(a.turn())
    store.run(a.release(store.run(a.turn()).leaving))
    assert len(store.run(b.turn()).owned) == 8
    while len(store.run(b.turn()).owned) < 16:
        now += LEASE * TURNS
        assert now <= LEASE
    assert not a.may_deliver
    assert store.run(a.turn()) == Turn({}, lost=True)
    assert not a.may_deliver
    assert "g/member-a" not in store.cells


def test_a_member_that_was_paused_for_a_moment_goes_on() -> None:
    now = 0.0
    store = Cells()
    a, b = member("a", lambda: now), member("b", lambda: now)
    store.run(a.join())
    store.run(b.join())
    store.run(b.turn())
    now = 0.6 * LEASE
    assert not a.may_deliver
    store.run(b.turn())
    assert not store.run(a.turn()).lost
    assert a.may_deliver


def test_a_heartbeat_whose_answer_was_lost_does_not_make_a_lease_longer() -> None:
    now = 0.0
    store = Cells()
    a = member("a", lambda: now)
    store.run(a.join())
    lost = a.turn()
    store.do(next(lost))  # written, but the member never hears of it
    lost.close()
    now = LEASE
    beats = store.cells["g/member-a"]
    assert not store.run(a.turn()).lost
    assert a.may_deliver
    assert store.cells["g/member-a"].version > beats.version + 0


def test_what_an_earlier_owner_saves_is_refused() -> None:
    store, early, late = Cells(), PositionCells("g"), PositionCells("g")
    store.run(early.claim({3: 1, 4: 1}, lambda vb: at(0)))
    assert store.run(early.save({3: Saved(1, 0, at(5)), 4: Saved(1, 0, at(6))})) == frozenset()
    assert store.run(late.claim({3: 2}, lambda vb: at(0)))[3].position.seqno == 5
    both = {3: Saved(1, 0, at(9)), 4: Saved(1, 0, at(9))}
    assert store.run(early.save(both)) == {3}
    assert store.run(early.save({3: Saved(1, 0, at(5))})) == {3}
    assert store.run(early.claim({3: 1}, lambda vb: at(0))) == {}
    found = store.run(late.load(range(5)))
    assert {vb: saved.position.seqno for vb, saved in found.items()} == {3: 5, 4: 9}


def test_of_two_owners_at_one_generation_the_later_claim_counts() -> None:
    """In a store that has lost writes, such as a bucket after a failover."""
    store, one, other = Cells(), PositionCells("g"), PositionCells("g")
    store.run(one.claim({0: 1}, lambda vb: at(3), "a"))
    store.run(other.claim({0: 1}, lambda vb: at(0), "b"))
    assert store.run(one.save({0: Saved(1, 0, at(9), "a")})) == {0}
    assert store.run(other.save({0: Saved(1, 0, at(4), "b")})) == frozenset()


def test_a_position_goes_back_only_by_a_rollback() -> None:
    store, cells = Cells(), PositionCells("g")
    store.run(cells.claim({0: 1}, lambda vb: at(7)))
    with pytest.raises(InternalError, match="without a rollback"):
        store.run(cells.save({0: Saved(1, 0, at(6))}))
    assert store.run(cells.save({0: Saved(1, 1, at(6))})) == frozenset()


# ---- the simulation ----------------------------------------------------------------------


class World:
    """A bucket that is written to, and the processes of a group, in simulated time."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.now = 0.0
        self.store = Cells()
        self.vbuckets = self.random.choice([1, 5, 16])
        self.high = [0] * self.vbuckets
        self.delivered: list[set[int]] = [set() for _ in range(self.vbuckets)]
        self.processes: list[Process] = []
        self._count = 0

    def start(self) -> None:
        self._count += 1
        self.processes.append(Process(self, self._count))

    def write(self) -> None:
        self.high[self.random.randrange(self.vbuckets)] += 1

    def step(self, seconds: float) -> None:
        """Time passes, and those that run do something."""
        self.now += seconds
        for process in self.random.sample(self.processes, len(self.processes)):
            if process.paused_until <= self.now:
                process.act()

    def deliver(self, process: Process, vbucket: int, seqno: int) -> None:
        for other in self.processes:
            if other is not process and vbucket in other.reading:
                assert not other.member.may_deliver, "two members deliver a vbucket"
        self.delivered[vbucket].add(seqno)

    @property
    def is_done(self) -> bool:
        return all(
            delivered == set(range(1, high + 1))
            for delivered, high in zip(self.delivered, self.high, strict=True)
        )


class Process:
    """A member with an application: reads its vbuckets, saves now and then."""

    def __init__(self, world: World, number: int) -> None:
        self.world = world
        self.number = number
        self.speed = world.random.uniform(0.9, 1.1)
        self.paused_until = 0.0
        self.lives = 0
        self._join()

    def _join(self) -> None:
        self.lives += 1
        world = self.world
        self.member = Member(
            "g",
            f"p{self.number}-{self.lives}",
            reads(world.vbuckets),
            lease=LEASE,
            clock=lambda: world.now * self.speed,
        )
        self.cells = PositionCells("g")
        self.reading: dict[int, Saved] = {}
        self._rules = self._life()
        self._answer: Any = None
        self._next_turn = 0.0

    def act(self) -> None:
        """Delivers something, then does one operation on the store."""
        random = self.world.random
        for vbucket, saved in self.reading.items():
            if self.member.may_deliver and random.random() < 0.7:
                seqno = saved.position.seqno
                if seqno < self.world.high[vbucket]:
                    self.world.deliver(self, vbucket, seqno + 1)
                    self.reading[vbucket] = Saved(saved.generation, saved.rollbacks, at(seqno + 1))
                elif seqno and random.random() < 0.02:  # a failover: what was read is read again
                    self.reading[vbucket] = Saved(
                        saved.generation, saved.rollbacks + 1, at(seqno - 1)
                    )
        if self.world.now < self._next_turn:
            return
        try:
            step = self._rules.send(self._answer)
        except StopIteration:
            self._join()
            return
        if step is None:
            self._next_turn = self.world.now + LEASE * TURNS * random.uniform(0.5, 1.0)
            self._answer = None
        else:
            self._answer = self.world.store.do(step)

    def _life(self) -> Any:
        """What `membership` does, as rules; yields None where it waits for the next turn."""
        yield from self.member.join()
        while True:
            turn = yield from self.member.turn()
            if turn.lost:
                self.reading = {}
                return
            for vbucket in set(self.reading) - set(turn.owned):
                del self.reading[vbucket]
            new = {
                vb: generation
                for vb, generation in turn.owned.items()
                if vb not in turn.leaving
                and (vb not in self.reading or self.reading[vb].generation != generation)
            }
            claimed = yield from self.cells.claim(new, lambda vb: Position())
            self.reading |= claimed
            if turn.leaving:
                last = {vb: self.reading.pop(vb) for vb in turn.leaving if vb in self.reading}
                yield from self.cells.save(last)
                yield from self.member.release(turn.leaving)
            if self.world.random.random() < 0.5:
                yield from self.cells.save(dict(self.reading))
            yield None


@pytest.mark.parametrize("seed", range(12))
def test_any_schedule_has_one_owner_and_delivers_all(seed: int) -> None:
    world = World(seed)
    world.start()
    for _ in range(1500):
        chance = world.random.random()
        if chance < 0.3:
            world.write()
        elif chance < 0.31 and len(world.processes) < 6:
            world.start()
        elif chance < 0.317 and len(world.processes) > 1:
            world.processes.remove(world.random.choice(world.processes))
        elif chance < 0.33:
            paused = world.random.choice(world.processes)
            paused.paused_until = world.now + world.random.uniform(0, 3 * LEASE)
        world.step(world.random.uniform(0, 0.2))
    for process in world.processes:
        process.paused_until = 0.0
    for _ in range(5000):
        world.step(0.1)
        if world.is_done:
            break
    assert world.is_done
    for _ in range(2000):
        world.step(0.1)
    shares = [len(process.reading) for process in world.processes]
    assert sum(shares) == world.vbuckets
    assert max(shares) - min(shares) <= 1


@pytest.mark.parametrize("seed", range(5))
def test_a_killed_member_is_replaced_within_the_lease(seed: int) -> None:
    world = World(seed)
    for _ in range(4):
        world.start()
    for _ in range(1000):
        world.step(0.05)
    dead = world.random.choice(world.processes)
    its = set(dead.reading)
    killed = world.now
    world.processes.remove(dead)
    while not its <= {vb for process in world.processes for vb in process.reading}:
        world.step(0.05)
    assert world.now - killed <= LEASE * 1.15  # clocks here run up to a tenth slow
