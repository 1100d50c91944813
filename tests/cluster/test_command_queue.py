"""Commands that come while another is under way, and who inherits from a node that is lost."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest
from clusterkit import PATIENCE

from upriver.cluster.best_copy import Copy
from upriver.cluster.command_queue import CommandQueue
from upriver.cluster.failover_safety import refuse_if_only_copy
from upriver.errors import ConfigError
from upriver.model import VBucketState

EMPTY, FULL = Copy(VBucketState.REPLICA, 0), Copy(VBucketState.REPLICA, 5)
ACTIVE = Copy(VBucketState.ACTIVE, 9)


class Told:
    """Somebody who remembers what was said to him."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.has_to_wait = asyncio.Event()

    def progress(self, done: int, total: int, what: str) -> None:
        self.lines.append(f"{done} of {total} {what}")

    def waits(self, why: str) -> None:
        self.lines.append(why)
        self.has_to_wait.set()


def run(story: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(story, PATIENCE))


def test_a_command_waits_for_the_one_before_and_is_told_how_far_that_is() -> None:
    async def story() -> None:
        turns, first, second = CommandQueue(), Told(), Told()
        order = []

        async def later() -> None:
            async with turns.take("recovery of n1", second):
                order.append("second")

        async with turns.take("rebalance", first) as turn:
            turn.report(3, 8, "vbuckets moved")
            assert turns.under_way == "rebalance (3 of 8 vbuckets moved)"
            other = asyncio.create_task(later())
            await second.has_to_wait.wait()
            order.append("first")
        await other
        assert order == ["first", "second"]
        assert first.lines == ["3 of 8 vbuckets moved"]
        assert set(second.lines) == {"waiting for the rebalance (3 of 8 vbuckets moved) to end"}
        assert turns.under_way == ""

    run(story())


def test_what_is_urgent_has_the_one_before_broken_off() -> None:
    async def story() -> None:
        turns, told = CommandQueue(), Told()
        begun = asyncio.Event()

        async def without_end() -> None:
            async with turns.take("rebalance", Told()) as turn:
                begun.set()
                await turn.broken_off.wait()
                turn.check()

        endless = asyncio.create_task(without_end())
        await begun.wait()
        async with turns.take("failover of n2", told, urgent=True) as turn:
            turn.check()  # nobody wants it to stop
        with pytest.raises(ConfigError, match="rebalance was aborted for the failover of n2"):
            await endless
        assert told.lines == ["waiting for the rebalance to stop"]

    run(story())


def test_a_command_that_fails_leaves_its_turn_to_the_next() -> None:
    async def story() -> None:
        turns = CommandQueue()
        with pytest.raises(ConfigError):
            async with turns.take("rebalance", Told()):
                raise ConfigError("it cannot be")
        async with turns.take("rebalance", Told()) as turn:
            assert turn.name == "rebalance"

    run(story())


@pytest.mark.parametrize(
    ("copies", "problem"),
    [
        ({"n2": {0: FULL}}, ""),
        ({}, ""),  # it does not answer, and may have everything
        ({"n2": {0: EMPTY}}, "that at n2 is empty so far"),
        ({"n2": {}}, "that at n2 is empty so far"),  # its copy is dead
        ({"n2": {}, "n3": {0: FULL}}, "that at n2 is empty so far"),  # n3's is nobody's
    ],
)
def test_a_node_is_kept_that_alone_has_a_vbucket(
    copies: dict[str, dict[int, Copy]], problem: str
) -> None:
    if problem:
        with pytest.raises(ConfigError, match=problem):
            refuse_if_only_copy([("n1", "n2")], "n1", {0: ACTIVE}, copies)
    else:
        refuse_if_only_copy([("n1", "n2")], "n1", {0: ACTIVE}, copies)
    refuse_if_only_copy([("n2", "n1")], "n1", {}, copies)  # as a replica it is not missed
    # an empty copy of what is empty is whole, and of who never answered nothing is known
    refuse_if_only_copy([("n1", "n2")], "n1", {0: Copy(VBucketState.ACTIVE, 0)}, copies)
    refuse_if_only_copy([("n1", "n2")], "n1", {}, copies)
    with pytest.raises(ConfigError, match="n1 has the only copy of vbucket 1: bring it back"):
        refuse_if_only_copy([("n2", None), ("n1", None)], "n1", {}, copies)
