"""Worlds with a cluster: exact scripts of what broke once, and the oracles they need."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from upriver.cluster.command_queue import CommandQueue
from upriver.errors import Status
from upriver.wire.protocol_enums import DurabilityLevel
from worlds import (
    CLUSTER,
    ClusterWorld,
    Operation,
    Plan,
    Step,
    Violation,
    explain,
    run,
)
from worlds.flush_oracle import FlushOracle
from worlds.leak_oracle import check_bounded
from worlds.linearizability import FLUSH
from worlds.split_brain_oracle import Reigns


def scripted(*steps: Step, replicas: int = 1) -> Plan:
    """A plan of these steps alone, with two vbuckets."""
    return replace(Plan.of(1, CLUSTER), vbuckets=2, replicas=replicas, steps=steps)


class FailsOverLate(ClusterWorld):
    """A node is failed over when everything was mended."""

    def mend(self) -> None:
        super().mend()
        self.failover("n2")


def test_a_failover_that_is_under_way_is_waited_for() -> None:
    """Until it is done and the node is recovered, the cluster is not at rest."""
    world = FailsOverLate(scripted())
    world.run()
    assert [line.split(" ", 1)[1] for line in world.lines if " done " in line] == [
        "done failover n2",
        "done recovery n2",
    ]


class GoesSilent(ClusterWorld):
    """The streams to and from a node become half-open: nothing arrives, and nobody is told."""

    def begin(self) -> None:
        super().begin()
        self.scheduler.after(5.0, self._go_silent)

    def _go_silent(self) -> None:
        # the first connection to it is that for commands
        for link in [link for link in self.network.alive_links() if "manager->n2" in link.name][1:]:
            link.go_silent()


def test_replication_does_not_wait_for_a_connection_that_is_half_open() -> None:
    writes = [
        Step(8.0 + number, "operation", (0, "set", b"k%d" % number, b"1020", DurabilityLevel.NONE))
        for number in range(4)
    ]
    outcome = GoesSilent(scripted(*writes)).run()
    assert outcome.counts["silent"] == 2


def test_one_copy_acknowledges() -> None:
    reigns = Reigns()
    reigns.begin(0, "n1", 1)
    reigns.begin(0, "n2", 10)

    def write(invoked: int, returned: int | None) -> Operation:
        return Operation(
            "c1", b"k", "set", invoked=invoked, returned=returned, status=Status.SUCCESS
        )

    assert reigns.check(0, "n1", write(2, 5))
    assert reigns.check(0, "n1", write(9, 12)), "it may have been answered before"
    assert reigns.check(0, "n2", write(9, 12))
    assert reigns.check(0, "n1", write(11, None)), "nobody was told anything"
    with pytest.raises(Violation, match="one copy acknowledges"):
        reigns.check(0, "n1", write(11, 12))
    with pytest.raises(Violation, match="one copy acknowledges"):
        reigns.check(0, "n2", write(2, 5))
    read = Operation("c1", b"k", "get", invoked=11, returned=12, status=Status.SUCCESS)
    assert not reigns.check(0, "n1", read), "a read of a node that was cut off counts for nothing"
    reigns.begin(0, "n1", 20)
    assert reigns.check(0, "n1", write(11, 21))


def test_what_a_part_keeps_is_followed_without_its_name() -> None:
    """A cache that nobody thought of is found, also in the local variables of a task."""
    kept = CommandQueue()
    check_bounded("manager", [kept])
    kept.forgotten = dict.fromkeys(range(100), "")  # type: ignore[attr-defined]
    with pytest.raises(Violation, match=r"CommandQueue\.forgotten has 100 entries"):
        check_bounded("manager", [kept])

    async def waits() -> None:
        queue = asyncio.Queue[int]()
        for number in range(100):
            queue.put_nowait(number)
        await asyncio.sleep(3600)

    async def look() -> None:
        task = asyncio.create_task(waits())
        await asyncio.sleep(0)
        try:
            with pytest.raises(Violation, match="waits queue has 100 entries"):
                check_bounded("manager", [task])
        finally:
            task.cancel()

    asyncio.run(look())


def test_flushes_are_done_and_asked_for() -> None:
    reigns, flushes = Reigns(), FlushOracle()
    reigns.begin(0, "n1", 1)
    asked = Operation("c1", b"k", FLUSH, invoked=5, returned=9, status=Status.SUCCESS)
    with pytest.raises(Violation, match="acknowledged writes are there"):
        flushes.check([(0, "n1", asked)], reigns)
    flushes.check([(0, "n2", asked)], reigns)  # it has no active copy
    flushes.saw(0, "n1", 7)
    flushes.check([(0, "n1", asked)], reigns)
    with pytest.raises(Violation, match="nothing is flushed unasked"):
        flushes.check([], reigns)
    write = Operation("c1", b"k", "set", b"1", invoked=2, returned=3, status=Status.SUCCESS)
    read = Operation("c1", b"k", "get", invoked=8, returned=9, status=Status.NOT_FOUND)
    assert not explain([write, read])
    assert explain([write, *flushes.of(0), read])


@pytest.mark.parametrize("seed", [7233, 7307])
def test_oracles_know_maps_and_replaced_versions(seed: int) -> None:
    """A map came beside a full window; a reader had a version that a promoted replica never had."""
    assert run(Plan.of(seed, CLUSTER)).violation is None
