"""One member of a group: its lease, and what it does in each turn. No I/O; the clock is given.

A member has a cell of its own, ``member-NAME``, and writes it in every turn: its *heartbeat*. A
heartbeat that was written gives the member a lease from the time when the write began. A watcher
that sees the same heartbeat for long enough seals the cell, by a write that replaces just that
heartbeat, and then removes the member from the roster. So either the heartbeat or the seal is
written, and a sealed member cannot renew its lease.

    0                  0.5 lease               0.65 lease               1 lease
    ├─ heartbeat ──────┤ the member stops      ├─ watchers seal it ─────┤ its vbuckets are read
    │                  │ delivering            │                        │ by others

The time between the two limits absorbs clocks that run at different speeds: each is measured by one
clock alone, from an event that both saw. Turns are an eighth of a lease apart, so a watcher seals
after nine tenths of a lease at the latest.

A member that ran out of time without being sealed, because it was paused or the store did not
answer, goes on where it was once a heartbeat is written again.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from ...errors import ConfigError, UpriverError
from .assignment import Reads, Roster
from .cells import CellSteps, CellWrite, Read, Remove, Stored

#: Parts of a lease: for which a heartbeat allows delivering, after which a silent member is sealed,
#: and between two turns.
HOLDS: Final = 0.5
_SEALED_AFTER: Final = 0.65
TURNS: Final = 1 / 8
#: The shortest and the longest lease, in seconds.
LEASES: Final = (0.5, 3600.0)

#: Members that one member watches, in the order of their names after its own.
_WATCHED: Final = 8
#: A heartbeat that nobody renews is removed by the store after so many leases.
_EXPIRES: Final = 20.0
#: A write is repeated this often if another member was faster each time.
_ATTEMPTS: Final = 200
_BEAT_ATTEMPTS: Final = 3
_SEAL: Final = b'{"sealed": true}'


@dataclass(frozen=True, slots=True)
class Turn:
    """What a turn found out."""

    #: The vbuckets of this member, with their generations.
    owned: dict[int, int]
    #: Those of them that it should let go.
    leaving: frozenset[int] = frozenset()
    #: Whether others have removed this member; it has to join again, under another name.
    lost: bool = False


class Member:
    """One member of a group, from `join` to `leave` or until it is lost."""

    def __init__(
        self, group: str, name: str, reads: Reads, *, lease: float, clock: Callable[[], float]
    ) -> None:
        shortest, longest = LEASES
        if not shortest <= lease <= longest:
            raise ConfigError(f"lease is {lease:g}; it must be {shortest:g} to {longest:g} seconds")
        self.group = group
        self.name = name
        self.lease = lease
        self._reads = reads
        self._clock = clock
        self._beats = 0
        self._version = 0
        #: Until when this member may deliver, on its own clock.
        self.deadline = float("-inf")
        #: The roster as this member saw it last.
        self.roster: Roster | None = None
        #: By watched member: the version of its heartbeat, and since when it has not changed.
        self._seen: dict[str, tuple[int, float]] = {}

    @property
    def may_deliver(self) -> bool:
        """Whether the lease is running: nobody else delivers the vbuckets of this member."""
        return self._clock() < self.deadline

    # ---- joining and leaving -------------------------------------------------------------

    def join(self) -> CellSteps[None]:
        """Enters the roster. ConfigError if the group reads something else."""
        self._checked((yield Read(self._roster)))
        began = self._clock()
        if not (yield from self._beat()):
            raise ConfigError(f"there was a member {self.name!r} before; take another name")
        yield from self._change(lambda roster: roster.joined(self.name).balanced())
        self.deadline = began + HOLDS * self.lease

    def leave(self) -> CellSteps[None]:
        """Leaves the roster: others take the vbuckets over at once."""
        self.deadline = float("-inf")
        yield from self._change(lambda roster: roster.without({self.name}).balanced())
        yield Remove(self._heartbeat(self.name))

    # ---- turns ---------------------------------------------------------------------------

    def turn(self) -> CellSteps[Turn]:
        """Renews the lease, replaces dead members, and says which vbuckets are this member's."""
        began = self._clock()
        if not (yield from self._beat()):
            return self._is_lost()
        stored = yield Read(self._roster)
        roster = Roster.from_json(stored.content) if stored is not None else None
        if stored is None or roster is None or self.name not in roster.members:
            return self._is_lost()
        self.deadline = began + HOLDS * self.lease
        dead = yield from self._find_dead(roster)
        after = roster.without(dead).balanced()
        if after != roster:
            version = yield CellWrite(self._roster, after.to_json(), stored.version)
            if version is not None:
                roster = after
                for name in dead:
                    yield Remove(self._heartbeat(name))
            # else another member has changed it: the next turn sees how
        self.roster = roster
        return Turn(roster.owned_by(self.name), roster.leaving(self.name))

    def release(self, vbuckets: frozenset[int]) -> CellSteps[None]:
        """Lets vbuckets go, whose positions were saved: the next owner may read them now."""
        yield from self._change(lambda roster: roster.released(self.name, vbuckets).balanced())

    def _is_lost(self) -> Turn:
        self.deadline = float("-inf")
        return Turn({}, lost=True)

    def _beat(self) -> CellSteps[bool]:
        """Writes the heartbeat; False if somebody has sealed or removed it."""
        cell, expires = self._heartbeat(self.name), _EXPIRES * self.lease
        for _ in range(_BEAT_ATTEMPTS):
            content = json.dumps({"member": self.name, "beats": self._beats + 1}).encode()
            version = yield CellWrite(cell, content, self._version, expires)
            stored: Stored | None = None
            if version is None:
                stored = yield Read(cell)
                if stored is None or stored.content != content:
                    return False
            self._beats += 1
            self._version = version if stored is None else stored.version
            if version is not None:
                return True
            # An earlier write was done although its answer was lost. Watchers have seen it for
            # longer than this turn lasts, so only another one renews the lease.
        return False

    def _find_dead(self, roster: Roster) -> CellSteps[set[str]]:
        """The watched members whose heartbeats are sealed, gone, or old, which are sealed now."""
        watched = self._watched(roster)
        self._seen = {name: seen for name, seen in self._seen.items() if name in watched}
        dead: set[str] = set()
        for name in watched:
            stored: Stored | None = yield Read(self._heartbeat(name))
            if stored is None or stored.content == _SEAL:
                dead.add(name)
                continue
            version, since = self._seen.get(name, (None, 0.0))
            now = self._clock()
            if stored.version != version:
                self._seen[name] = stored.version, now
            elif now - since >= _SEALED_AFTER * self.lease:
                sealed = yield CellWrite(
                    self._heartbeat(name), _SEAL, stored.version, _EXPIRES * self.lease
                )
                if sealed is not None:
                    dead.add(name)
        return dead

    def _watched(self, roster: Roster) -> list[str]:
        at = roster.members.index(self.name)
        others = roster.members[at + 1 :] + roster.members[:at]
        return list(others[:_WATCHED])

    # ---- the roster ----------------------------------------------------------------------

    def _change(self, change: Callable[[Roster], Roster]) -> CellSteps[None]:
        """Changes the newest roster; begins again if another member was faster."""
        for _ in range(_ATTEMPTS):
            stored: Stored | None = yield Read(self._roster)
            roster = self._checked(stored)
            after = change(roster)
            if after == roster:
                break
            version = stored.version if stored is not None else 0
            if (yield CellWrite(self._roster, after.to_json(), version)) is not None:
                break
        else:
            raise UpriverError(
                f"the roster of the group {self.group!r} could not be written: other members were "
                f"faster {_ATTEMPTS} times"
            )
        self.roster = after

    def _checked(self, stored: Stored | None) -> Roster:
        """The roster, if this member fits into it; a new one if there is none."""
        if stored is None:
            return Roster.new(self._reads, self.lease)
        roster = Roster.from_json(stored.content)
        roster.reads.check(self._reads, self.group)
        if roster.lease != self.lease:
            if roster.members:
                raise ConfigError(
                    f"the members of the group {self.group!r} have leases of {roster.lease:g} s, "
                    f"and this one {self.lease:g} s; give all of them the same"
                )
            roster = Roster(
                reads=roster.reads,
                lease=self.lease,
                generation=roster.generation,
                holdings=roster.holdings,
            )
        return roster

    @property
    def _roster(self) -> str:
        return f"{self.group}/roster"

    def _heartbeat(self, name: str) -> str:
        return f"{self.group}/member-{name}"
