"""What a person can have a cluster's manager do: start, rebalance, fail over, recover, add, remove.

One command at a time. What a command changes is written down before it is carried out, so that a
manager that is killed in the middle goes on with it.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

from ..errors import ConfigError, UpriverError
from . import failover_safety, placement
from . import status_report as shown
from .best_copy import Copies
from .cluster_state import MAX_NODES, NodeEntry
from .command_queue import Audience, CommandQueue, ProgressDeadline, RunningCommand
from .manager import Manager
from .placement import Row
from .rebalance import Moving

#: Seconds without any progress after which a command gives up.
_PATIENCE: Final = 60.0


#: Ports for nodes that were given none. Systems give out ports from 32768 or 49152 on to outgoing
#: connections, one of which could have taken the port of a node that is down for a moment.
_PORTS: Final = range(16_384, 32_768)


def free_port(host: str) -> int:
    """A port that nobody listens on at this moment."""
    for port in random.sample(_PORTS, len(_PORTS)):
        with contextlib.suppress(OSError), socket.create_server((host, port)):
            return port
    raise ConfigError(f"no port of {host} from {_PORTS.start} to {_PORTS.stop - 1} is free")


class Commands:
    """The commands of one manager."""

    def __init__(self, manager: Manager, new_port: Callable[[str], int] = free_port) -> None:
        """``new_port`` returns a port of a host for a node that is added."""
        self._manager = manager
        self._new_port = new_port
        self._turns = CommandQueue()

    def status(self) -> dict[str, Any]:
        return self._manager.status(self._turns.under_way)

    async def looked(self) -> None:
        """Returns after a look at the nodes, so that a status shows what a command has done."""
        await self._manager.looked()

    async def stop(self, audience: Audience) -> None:
        """Stops the manager, then the nodes."""
        manager = self._manager
        async with self._turns.take("stop", audience, urgent=True) as turn:
            await manager.close()
            stopping = [
                asyncio.create_task(manager.processes.stop(node)) for node in manager.state.nodes
            ]
            for done, stopped in enumerate(asyncio.as_completed(stopping)):
                turn.report(done, len(stopping), "nodes stopped")
                await stopped
            turn.report(len(stopping), len(stopping), "nodes stopped")

    async def ready(self, audience: Audience) -> None:
        """Returns when every vbucket has its active copy, and every node its map and lease."""
        turn = RunningCommand("start", audience)
        await self._until(turn, self._ready_so_far, "nodes and vbuckets ready", self._check_nodes)

    def _ready_so_far(self) -> tuple[int, int]:
        held = self._manager.state
        total = sum(row[0] is not None for row in held.rows)
        lost = len(held.rows) - total
        there = total + lost - shown.without_active(held, self._manager.facts)
        return self._manager.told_everybody() + there, len(held.members) + total

    def _check_nodes(self) -> None:
        """Raises what keeps a node from coming up, if it was tried often enough."""
        manager = self._manager
        for node in manager.state.members:
            if manager.processes.problem(node) and node.name not in manager.facts:
                raise ConfigError(
                    f"{node.name} {manager.problem_of(node)}; see {manager.processes.log(node)}. "
                    "It is tried again until the cluster is stopped: "
                    f"upriver cluster stop --data {manager.path.parent}"
                )

    async def _until(
        self,
        turn: RunningCommand,
        so_far: Callable[[], tuple[int, int]],
        what: str,
        check: Callable[[], None] = lambda: None,
    ) -> None:
        """Looks until all of something is there; gives up when it does not become more."""
        progress = ProgressDeadline(_PATIENCE)
        while True:
            done, total = so_far()
            turn.report(done, total, what)
            if done >= total:
                return
            turn.check()
            check()
            if progress.is_over(done):
                raise ConfigError(f"only {done} of {total} {what}: {self._what_is_wrong()}")
            await self._manager.looked()

    def _what_is_wrong(self) -> str:
        manager = self._manager
        silent = self._silent()
        if silent:
            first = manager.processes.log(manager.state.node(silent[0]))
            return f"{_do_not_answer(silent)}; see {first}, and fail over what does not come back"
        problems = manager.status("")["problems"]
        if problems:
            return str(problems[0])
        return f"see {manager.path.with_name('manager.log')}, and give the command again"

    def _silent(self) -> list[str]:
        return shown.silent_nodes(self._manager.state, self._manager.facts)

    async def rebalance(self, audience: Audience) -> None:
        """Spreads the vbuckets over the nodes that stay."""
        async with self._turns.take("rebalance", audience) as turn:
            await self._rebalance(turn)

    async def _rebalance(self, turn: RunningCommand) -> None:
        manager = self._manager
        await manager.looked_once()
        silent = self._silent()
        if silent:
            raise ConfigError(f"{_do_not_answer(silent)}: fail over what is lost, or wait for it")
        staying = [node.name for node in manager.state.members if not node.leaving]
        target = placement.balanced(manager.state.rows, staying)
        try:
            await Moving(manager, turn).run(manager.state.rows, target)
        except UpriverError:
            turn.check()
            raise

    async def failover(self, name: str, audience: Audience) -> None:
        """Gives up a node: its process is ended for good, and replicas take its place."""
        manager = self._manager
        self._refuse_if_only_copy(manager.state.node(name), {})
        async with self._turns.take(f"failover of {name}", audience, urgent=True) as turn:
            await manager.looked_once()
            node, rows = manager.state.node(name), manager.state.rows
            if not node.failed:
                turn.waits("asking the other nodes what they have")
                others = await failover_safety.copies_at(manager.links_without(name))
                self._refuse_if_only_copy(node, others)
                manager.given_up.add(name)
                try:
                    await self._end(turn, node)
                    manager.touched.update(range(len(rows)))
                    manager.keep(manager.state.failed_over(name))
                finally:
                    manager.given_up.discard(name)
            await self._promoted(turn, [vb for vb, row in enumerate(rows) if row[0] == name])

    async def _end(self, turn: RunningCommand, node: NodeEntry) -> None:
        """Returns when a node answers no more writes: it has ended, or its lease is over."""
        manager = self._manager
        manager.leases.end(node.name)
        manager.processes.kill(node)
        try:
            await manager.processes.gone(node)
        except ConfigError as problem:
            turn.waits(str(problem))
        while not manager.processes.has_ended(node):
            seconds = manager.leases.remaining(node.name)
            if not seconds:
                return
            turn.waits(
                f"waiting {seconds:.0f} s until the lease of {node.name} is over, "
                "as nothing proves that its process has ended"
            )
            await asyncio.sleep(min(seconds, 1.0))

    def _refuse_if_only_copy(self, node: NodeEntry, copies: Copies) -> None:
        manager = self._manager
        if not node.failed:
            had = manager.last_seen.get(node.name, {})
            failover_safety.refuse_if_only_copy(manager.state.rows, node.name, had, copies)

    async def _promoted(self, turn: RunningCommand, vbuckets: list[int]) -> None:
        """Has the nodes looked at that are left, and the best copies made active.

        Those that have to wait for a node that does not answer are named in the status.
        """
        turn.report(0, len(vbuckets), "vbuckets promoted")
        await self._manager.looked()
        rows, facts = self._manager.state.rows, self._manager.facts
        await self._manager.looked()  # and seen to be so
        facts = self._manager.facts
        done = sum(shown.is_active(facts, vbucket, rows[vbucket][0]) for vbucket in vbuckets)
        turn.report(done, len(vbuckets), "vbuckets promoted")

    async def recover(self, name: str, audience: Audience) -> None:
        """Brings back a node that was failed over: what it has that nobody else has is lost."""
        manager = self._manager
        manager.state.node(name)
        async with self._turns.take(f"recovery of {name}", audience) as turn:
            node = manager.state.node(name)
            if node.failed:
                rows = tuple(_refilled(row, name) for row in manager.state.rows)
                back = replace(node, failed=False)
                manager.touched.update(range(len(rows)))
                manager.keep(manager.state.with_node(back).with_rows(rows))
            await self._until(turn, lambda: (int(name in manager.facts), 1), "nodes recovered")
            await manager.looked()
            for vbucket in manager.held_back(name):
                await manager.link(name).delete(vbucket)  # it is begun anew, as was commanded
            await self._until(turn, lambda: self._recovered(name), "vbuckets recovered")

    def _recovered(self, name: str) -> tuple[int, int]:
        """How many copies a node has that are being kept up to date, and how many it shall have."""
        rows = self._manager.state.rows
        mine = {vbucket for vbucket, row in enumerate(rows) if name in row[1:]}
        return len(mine & self._manager.flowing(name)), len(mine)

    async def add_node(self, audience: Audience) -> NodeEntry:
        """Starts another node, which has nothing until the cluster is rebalanced."""
        manager = self._manager
        async with self._turns.take("adding of a node", audience) as turn:
            if len(manager.state.nodes) >= MAX_NODES:
                raise ConfigError(f"a cluster has up to {MAX_NODES} nodes")
            numbers = {int(node.name.removeprefix("n")) for node in manager.state.nodes}
            name = f"n{max(numbers) + 1}"
            port = http_port = self._new_port(manager.state.host)
            while http_port == port:
                http_port = self._new_port(manager.state.host)
            entry = NodeEntry(name, port, http_port)
            manager.leases.is_new(name)
            manager.keep(manager.state.with_node(entry))
            await self._until(turn, lambda: (int(name in manager.facts), 1), "nodes added")
            return entry

    async def remove_node(self, name: str, audience: Audience) -> None:
        """Moves everything away from a node, and stops it."""
        manager = self._manager
        manager.state.node(name)
        async with self._turns.take(f"removal of {name}", audience) as turn:
            node = manager.state.node(name)
            if not node.failed:
                staying = [other for other in manager.state.members if other.name != name]
                if not [other for other in staying if not other.leaving]:
                    raise ConfigError(f"{name} is the last node: stop the cluster instead")
                manager.keep(manager.state.with_node(replace(node, leaving=True)))
                await self._rebalance(turn)
            manager.keep(manager.state.without_node(name))
            await manager.looked()
            await manager.processes.stop(node)


def _do_not_answer(nodes: list[str]) -> str:
    return f"{', '.join(nodes)} {'does' if len(nodes) == 1 else 'do'} not answer"


def _refilled(row: Row, name: str) -> Row:
    """A row with a node in its first empty place, unless it is there already or none is empty."""
    if name in row or None not in row:
        return row
    place = row.index(None)
    return (*row[:place], name, *row[place + 1 :])
