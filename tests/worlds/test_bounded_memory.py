"""The oracle of memory sees what grows: bytes for a slow reader, connections that are kept."""

from __future__ import annotations

import asyncio

import pytest

from worlds import SINGLE, Plan, Violation, World
from worlds.memory_bounds import check_memory


def running() -> World:
    world = World(Plan.of(1, SINGLE).with_steps(()))
    world.begin()
    world.scheduler.run(lambda: False, before=5.0)
    return world


def test_a_quiet_world_is_small() -> None:
    world = running()
    try:
        check_memory(world)
        assert any(end.peer.process.name == "reader" for x in world.network.links for end in x.ends)
    finally:
        for process in world.processes:
            process.dispose()


@pytest.mark.parametrize("what", ["bytes", "connections", "tasks"])
def test_what_grows_is_seen(what: str) -> None:
    world = running()
    try:
        ends = [end for link in world.network.links for end in link.ends]
        if what == "bytes":
            end = next(end for end in ends if end.peer.process.name == "reader")
            end._outgoing += bytes(world.plan.buffer + 2000)
        elif what == "connections":
            world.network.links.clear()
            server = world.nodes[0].server
            assert server is not None
            server._connections.update((object(), None) for _ in range(100))  # type: ignore[misc]
        else:
            for _ in range(70):
                world.processes[0].spawn(_for_ever())
        with pytest.raises(Violation, match=what):
            check_memory(world)
    finally:
        for process in world.processes:
            process.dispose()


async def _for_ever() -> None:
    await asyncio.sleep(1e9)
