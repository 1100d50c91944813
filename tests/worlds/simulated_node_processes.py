"""The machines of a world's nodes, as its manager sees them; and nobody, for whom commands run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from upriver.cluster.cluster_state import ClusterState, NodeEntry
from upriver.cluster.node_processes import Processes
from upriver.errors import ConfigError

from .node import Node

if TYPE_CHECKING:
    from .cluster_world import ClusterWorld


class SimulatedNodeProcesses(Processes):
    """Starts and ends the nodes of a world, as far as the manager can reach their machines."""

    def __init__(self, world: ClusterWorld) -> None:
        super().__init__(world.directory)
        self._world = world
        self._starting: set[str] = set()

    def _node(self, entry: NodeEntry) -> Node:
        return self._world.node_of(entry)

    def _reaches(self, entry: NodeEntry) -> bool:
        return not self._world.network.held_until("manager", entry.name)

    def ensure(self, state: ClusterState, node: NodeEntry) -> None:
        found = self._node(node)
        if found.is_up or node.name in self._starting or not self._reaches(node):
            return
        self._starting.add(node.name)

        def start() -> None:
            self._starting.discard(node.name)
            found.start()

        self._world.scheduler.after(0.3, start)

    def answered(self, node: NodeEntry) -> None:
        pass

    def problem(self, node: NodeEntry) -> str:
        return self._node(node).problem

    def is_running(self, node: NodeEntry) -> bool:
        return self._node(node).is_up or node.name in self._starting or not self._reaches(node)

    def has_ended(self, node: NodeEntry) -> bool:
        return self._reaches(node) and not self.is_running(node)

    def kill(self, node: NodeEntry) -> None:
        if self._reaches(node):
            self._node(node).kill()

    async def gone(self, node: NodeEntry) -> None:
        if not self._reaches(node):
            raise ConfigError(f"the machine of {node.name} cannot be reached")
        await super().gone(node)

    async def stop(self, node: NodeEntry) -> None:
        self.kill(node)


class Nobody:
    """Nobody waits for a command."""

    def progress(self, done: int, total: int, what: str) -> None:
        pass

    def waits(self, why: str) -> None:
        pass
