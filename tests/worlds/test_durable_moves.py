"""Durable writes at the worst moment of a move: between the last check and the new row."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from upriver.cluster.placement import Row
from upriver.errors import ConnectionFailed, Status
from upriver.producer.keyvalue.durability_requirements import CopyNames
from upriver.wire.protocol_enums import DurabilityLevel
from worlds import CLUSTER, ClusterWorld, Plan, Scope, Step
from worlds.linearizability import Operation

#: Long enough for a removal and a failover while a node does not answer its manager.
SCOPE = replace(CLUSTER, seconds=40.0)
#: The node that gets a copy of the only vbucket, which the first two have.
FRESH = "n3"


def write(value: bytes, level: DurabilityLevel = DurabilityLevel.MAJORITY) -> Step:
    return Step(0.0, "operation", (0, "set", b"k0", value, level))


def one_vbucket(scope: Scope) -> Plan:
    return replace(Plan.of(1, scope), vbuckets=1, replicas=1, steps=(write(b"1001"),))


class LosesItsActiveCopy(ClusterWorld):
    """A node is removed, and the active copy is failed over as soon as there is a new row.

    Nothing reaches the new copy from its last comparison on; for a second, if the write that is
    made then is not acknowledged without it, and else until the failover is done.
    """

    def __init__(self, removed: str) -> None:
        super().__init__(one_vbucket(SCOPE))
        self._leaving = removed
        self._written = False

    def begin(self) -> None:
        super().begin()
        manager = self.manager
        assert manager is not None
        assert manager.state.rows == (("n1", "n2"),)
        hand_over, commit = manager.alone, manager.commit

        @asynccontextmanager
        async def alone(vbucket: int, target: str) -> AsyncIterator[None]:
            await self._write_apart()
            async with hand_over(vbucket, target):
                yield

        async def commit_and_lose(vbucket: int, row: Row) -> None:
            await self._write_apart()
            await commit(vbucket, row)
            assert row[0] is not None
            self.failover(row[0])

        manager.alone, manager.commit = alone, commit_and_lose  # type: ignore[method-assign]
        self.scheduler.after(5.0, lambda: self.remove_node(self._leaving))

    async def _write_apart(self) -> None:
        if self._written:
            return
        self._written = True
        self.network.partition("manager", FRESH, 1.0)
        self._do(write(b"1002"))
        await asyncio.sleep(0.9)
        if self.clients[0].idle:
            self.network.partition("manager", FRESH, SCOPE.seconds)
        while not self.clients[0].idle:
            await asyncio.sleep(0.1)

    def last_write(self) -> Operation:
        return [op for op in self.clients[0].operations if op.kind == "set"][-1]


@pytest.mark.parametrize("removed", ["n1", "n2"], ids=["the active copy moves", "a replica moves"])
def test_what_is_acknowledged_before_the_new_row_outlives_a_failover(removed: str) -> None:
    world = LosesItsActiveCopy(removed)
    world.run()
    (lost,) = {"n1", "n2"} - {removed}
    done = [line.split(" done ")[1] for line in world.lines if " done " in line]
    assert f"removal of {removed}" in done
    assert f"failover {lost}" in done
    assert world.last_write().value == b"1002"
    assert world.last_write().status is Status.SUCCESS


class BreaksOffTheMove(ClusterWorld):
    """A move ends between the announcement of the new row and the row itself."""

    def __init__(self, *, manager_dies: bool) -> None:
        super().__init__(one_vbucket(replace(CLUSTER, seconds=10.0)))
        self._manager_dies = manager_dies
        #: What a durable write needed at the active copy when the move ended.
        self.needed: CopyNames | None = None

    def copies(self) -> CopyNames | None:
        node = self.node("n1")
        assert node.server is not None
        assert node.bucket is not None
        return node.server.node.copies(node.bucket, 0)

    def begin(self) -> None:
        super().begin()
        assert self.manager is not None
        self.manager.commit = self._break_off  # type: ignore[method-assign]
        self.scheduler.after(3.0, lambda: self.remove_node("n2"))

    async def _break_off(self, vbucket: int, row: Row) -> None:
        self.needed = self.copies()
        if not self._manager_dies:
            raise ConnectionFailed("does not answer", "it is tried again", where=FRESH)
        assert self.manager_process is not None
        self.scheduler.after(0.0, self.manager_process.kill)
        self.scheduler.after(0.5, self.start_manager)
        await asyncio.Event().wait()

    def check(self) -> None:
        super().check()
        assert self.manager is not None
        assert self.manager.state.rows == (("n1", "n2"),)
        assert self.manager.state.next_rows == ()
        assert self.copies() == CopyNames(frozenset({"n2"}), 1)


@pytest.mark.parametrize("manager_dies", [False, True], ids=["the move fails", "the manager dies"])
def test_a_move_that_is_broken_off_asks_nothing_more_of_durable_writes(manager_dies: bool) -> None:
    world = BreaksOffTheMove(manager_dies=manager_dies)
    world.run()
    future = CopyNames(frozenset({FRESH}), 1)
    assert world.needed == CopyNames(frozenset({"n2"}), 1, future)
