"""`Membership`: a consumer's part in its group: takes turns, claims, hands over, saves positions.

    event loop                                        application
    ──────────                                        ───────────
    turn: this vbucket is mine
    claim it, stream it, deliver `Assigned`  ───────> on_assigned, then its rows

    turn: another member shall have it
    stop streaming it, pending revocation    ───────> on_revoked (may save), drop what waits of it
    release it in the roster                 <─────── acknowledged

The rules are those of `member` and `position_cells`; this module executes them, in a thread of
their own, and connects them with the engine. Everything that concerns the application happens in
the application's thread, when it asks for the next change.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
import socket
import threading
import time
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Final, TypeVar

from ... import _entropy
from ...errors import AuthenticationFailed, ConfigError, InternalError, UpriverError
from ...session.stream_position import Position
from ..consumer_settings import ConsumerSettings, RollbackPolicy
from ..streaming.engine import Engine
from ..streaming.inbox import Assigned, Delivery, Nudge
from .assignment import Reads
from .bucket_store import BucketGroupStore
from .cells import CellSteps, GroupStore, run_steps
from .member import TURNS, Member, Turn
from .position_cells import PositionCells, Saved

_T = TypeVar("_T")

_log = logging.getLogger(__name__)

DEFAULT_LEASE: Final = 10.0
#: A group's name becomes part of file names, object names and keys.
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", re.ASCII)
_CLOCK: Final[int] = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
#: Errors that another attempt does not repair.
_FINAL: Final = (AuthenticationFailed, ConfigError, InternalError)
#: Seconds for leaving the group; without an answer the others wait for the lease.
_LEAVING: Final = 5.0


@dataclass(frozen=True, slots=True)
class Revocation:
    """Vbuckets that a member of a group reads no longer.

    Unless they are ``lost``, `Consumer.save` still saves their positions while ``on_revoked`` runs.
    Lost ones are read by other members already, from the positions that were saved last.
    """

    vbuckets: frozenset[int]
    lost: bool = False


def now() -> float:
    """Seconds on a clock that also runs while the machine sleeps, where there is such a clock."""
    return time.clock_gettime(_CLOCK)


class Membership:
    """One consumer as a member of its group; a new member each time it loses its lease."""

    def __init__(
        self,
        group: str,
        store: GroupStore,
        *,
        lease: float = DEFAULT_LEASE,
        on_assigned: Callable[[frozenset[int]], None] | None = None,
    ) -> None:
        if not _NAME.fullmatch(group):
            raise ConfigError(
                f"the name of a group has 1 to 100 letters, digits, dots, dashes and underscores, "
                f"and begins with a letter or digit; {group[:110]!r} does not"
            )
        self.group = group
        self._store = store
        self._lease = lease
        self._on_assigned = on_assigned
        self._threads = ThreadPoolExecutor(1, thread_name_prefix=f"upriver group {group}")
        self._cells = PositionCells(group, may_vanish=isinstance(store, BucketGroupStore))
        self._cells_lock = threading.Lock()
        self._turns: asyncio.Task[None] | None = None
        self._trouble = ""
        self._hidden: frozenset[int] = frozenset()
        #: Guards what follows, which the event loop and the application's thread use.
        self._lock = threading.Lock()
        #: What is streamed, or waits to be released: by vbucket, as it was claimed.
        self._active: dict[int, Saved] = {}
        #: What the application has come to: by vbucket, as it was claimed.
        self._entered: dict[int, Saved] = {}
        #: For the application: what it should stop reading; of those, what waits to be released,
        #: and what the application has agreed to.
        self._pending: list[Revocation] = []
        self._releasing: set[int] = set()
        self._agreed: set[int] = set()

    async def start(self, engine: Engine, settings: ConsumerSettings) -> None:
        """Joins the group and starts to take turns."""
        cluster = engine.topology.map
        self._engine = engine
        self._loop = asyncio.get_running_loop()
        self._wake = asyncio.Event()
        self._reads = Reads(
            bucket=engine.topology.source.bucket,
            bucket_uuid=cluster.bucket_uuid,
            vbuckets=len(cluster.vbuckets),
            collections=tuple(sorted(settings.collections)),
            scope=settings.scope,
        )
        self._member = self._new_member()
        await self._run(self._member.join())
        self._turns = engine.guard.task(self._take_turns)

    async def stop(self) -> None:
        """Leaves the group, so that others take over at once."""
        if self._turns is not None:
            self._turns.cancel()
            await asyncio.gather(self._turns, return_exceptions=True)
            try:
                async with asyncio.timeout(_LEAVING):
                    await self._run(self._member.leave())
            except (UpriverError, OSError, TimeoutError) as problem:
                _log.warning("group %s: it could not be left in order: %s", self.group, problem)
        self._threads.shutdown(wait=False)
        self._store.close()

    def _new_member(self) -> Member:
        host = re.sub(r"[^A-Za-z0-9.-]", "-", socket.gethostname())[:60]
        name = f"{host}-{os.getpid()}-{_entropy.token_hex(4)}"
        return Member(self.group, name, self._reads, lease=self._lease, clock=now)

    async def _run(self, steps: CellSteps[_T]) -> _T:
        """Executes rules in the thread of the group, because stores block."""
        return await self._loop.run_in_executor(self._threads, run_steps, self._store, steps)

    async def _run_on_positions(self, steps: CellSteps[_T]) -> _T:
        def locked() -> _T:
            with self._cells_lock:
                return run_steps(self._store, steps)

        return await self._loop.run_in_executor(self._threads, locked)

    # ---- turns ---------------------------------------------------------------------------

    async def _take_turns(self) -> None:
        while True:
            try:
                await self._take_turn()
                if self._trouble:
                    _log.info("group %s: its store answers again", self.group)
                    self._trouble = ""
            except _FINAL:
                raise
            except (UpriverError, OSError) as problem:
                if str(problem) != self._trouble:
                    self._trouble = str(problem)
                    _log.warning("group %s: %s; trying again", self.group, problem)
            self._wake.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(self._lease * TURNS):
                    await self._wake.wait()

    async def _take_turn(self) -> None:
        with self._lock:
            agreed = frozenset(self._agreed)
        if agreed:
            await self._release(agreed)
        turn = await self._run(self._member.turn())
        if turn.lost:
            # before anything is made anew where members meet
            await self._run_on_positions(self._cells.require_kept())
            self._lose(self._active)
            self._member = self._new_member()
            await self._run(self._member.join())
            turn = await self._run(self._member.turn())
        self._lose([vb for vb, saved in self._active.items() if not _still(saved, vb, turn)])
        await self._claim(turn)
        await self._let_go(turn.leaving)

    async def _claim(self, turn: Turn) -> None:
        new = {
            vb: generation
            for vb, generation in turn.owned.items()
            if vb not in self._active and vb not in turn.leaving
        }
        if not new:
            return
        first = self._engine.discovery.positions
        claimed = await self._run_on_positions(
            self._cells.claim(new, lambda vb: first.get(vb, Position()), self._member.name)
        )
        with self._lock:
            self._active |= claimed
        self._engine.add(
            {vb: saved.position for vb, saved in claimed.items()},
            {vb: saved.generation for vb, saved in claimed.items()},
        )
        _log.info("group %s: %d vbuckets assigned", self.group, len(claimed))

    async def _let_go(self, leaving: frozenset[int]) -> None:
        """Asks the application for vbuckets that another member shall have."""
        with self._lock:
            asked = frozenset(leaving & self._active.keys() - self._releasing)
            self._releasing |= asked
            if asked:
                self._pending.append(Revocation(asked))
        if asked:
            self._engine.remove(asked)
            self._engine.deliver(Delivery(Nudge()))
        never_read = leaving - self._active.keys()
        if never_read:
            await self._release(never_read)

    async def _release(self, vbuckets: frozenset[int]) -> None:
        await self._run(self._member.release(vbuckets))
        with self._lock:
            self._releasing -= vbuckets
            self._agreed -= vbuckets
            for vbucket in vbuckets:
                self._active.pop(vbucket, None)
        _log.info("group %s: %d vbuckets handed over", self.group, len(vbuckets))

    def _lose(self, vbuckets: Collection[int]) -> None:
        """Others have these vbuckets already."""
        lost = frozenset(vbuckets)
        if not lost:
            return
        with self._lock:
            for vbucket in lost:
                del self._active[vbucket]
            self._releasing -= lost
            self._agreed -= lost
            self._pending.append(Revocation(lost, lost=True))
        self._engine.remove(lost)
        self._engine.deliver(Delivery(Nudge()))
        _log.warning(
            "group %s: the lease was lost, and other members have %d vbuckets of this one; what "
            "was not saved comes to them again",
            self.group,
            len(lost),
        )

    # ---- the application's side ----------------------------------------------------------

    @property
    def may_deliver(self) -> bool:
        return now() < self._member.deadline  # asked before every change

    @property
    def hidden(self) -> Collection[int]:
        """The collection of the group itself, if it is in the bucket that is read."""
        store = self._store
        if not self._hidden and isinstance(store, BucketGroupStore):
            topology = self._engine.topology
            if store.source.bucket == topology.source.bucket:
                with suppress(ConfigError):  # nobody has created it yet
                    self._hidden = frozenset({topology.collections.id_of(store.collection)})
        return self._hidden

    def entered(self, assigned: Assigned) -> Collection[int]:
        with self._lock:
            ours = {
                vb: saved
                for vb, saved in self._active.items()
                if assigned.generations.get(vb) == saved.generation and vb not in self._releasing
            }
            self._entered |= ours
        return ours.keys()

    def tell_assigned(self, vbuckets: Collection[int]) -> None:
        if vbuckets and self._on_assigned is not None:
            self._on_assigned(frozenset(vbuckets))

    def pending(self) -> list[Revocation]:
        """What the application should stop reading, with what it has begun to read."""
        with self._lock:
            pending, self._pending = self._pending, []
        return pending

    def begun(self, revocation: Revocation) -> Revocation:
        """The part of a revocation of which the application has seen something."""
        with self._lock:
            return replace(revocation, vbuckets=revocation.vbuckets & frozenset(self._entered))

    def agree(self, revocation: Revocation) -> None:
        """The application reads these vbuckets no longer."""
        with self._lock:
            for vbucket in revocation.vbuckets:
                self._entered.pop(vbucket, None)
            if not revocation.lost:
                self._agreed |= revocation.vbuckets & self._releasing
        with suppress(RuntimeError):  # the loop was closed meanwhile
            self._loop.call_soon_threadsafe(self._wake.set)

    def save(self, positions: Mapping[int, Position], rollbacks: Mapping[int, int]) -> None:
        """Saves positions of vbuckets that are still this member's; blocks."""
        with self._lock:
            mine = {
                vb: Saved(
                    saved.generation,
                    saved.rollbacks + rollbacks.get(vb, 0),
                    positions[vb],
                    saved.owner,
                )
                for vb, saved in self._entered.items()
                if vb in positions and self._active.get(vb) == saved
            }
        with self._cells_lock:
            refused: Any = run_steps(self._store, self._cells.save(mine))
        if refused:
            _log.warning(
                "group %s: positions of %d vbuckets were not saved, because other members have "
                "them now",
                self.group,
                len(refused),
            )
            with suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._wake.set)


def _still(saved: Saved, vbucket: int, turn: Turn) -> bool:
    return turn.owned.get(vbucket) == saved.generation


def check_settings(settings: ConsumerSettings) -> None:
    """Raises ConfigError for settings that a member of a group cannot have."""
    if settings.end != "never":
        raise ConfigError(
            f"end is {settings.end!r}, but members of a group read without an end: leave end out"
        )
    if settings.vbuckets is not None:
        raise ConfigError("a group assigns the vbuckets to its members: leave vbuckets out")
    if settings.rollback is RollbackPolicy.STOP:
        raise ConfigError(
            "rollback is STOP, but a member of a group cannot stop at a rollback; choose REWIND, "
            "FAIL or IGNORE"
        )
