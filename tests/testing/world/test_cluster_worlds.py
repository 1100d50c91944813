"""Worlds with a cluster: exact scripts of what broke once, and the oracles they need."""

from __future__ import annotations

from dataclasses import replace

import pytest

from upriver.errors import Status
from upriver.testing.world import CLUSTER, ClusterWorld, Operation, Plan, Step, Violation
from upriver.testing.world.reigns import Reigns


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
