"""What breaks in a world with a cluster, beside the faults of every world."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, cast

from .cluster_world import ClusterWorld
from .world import World

__all__ = ["CLUSTER_FAULTS"]

#: Seconds until a node that was failed over is recovered.
_RECOVERED_AFTER: Final = 8.0
#: Seconds for which a node is cut off from its manager, at least: longer than a lease.
_CUT_OFF: Final = 5.0


def _failover_node(world: World, which: int, seconds: float, amount: int) -> None:
    _fail_over(cast("ClusterWorld", world), world.nodes[which % len(world.nodes)].name, seconds)


def _fail_over(world: ClusterWorld, name: str, seconds: float) -> None:
    world.failover(name)
    world.scheduler.after(_RECOVERED_AFTER + seconds, lambda: world.recover(name))


def _manager_dies(world: World, which: int, seconds: float, amount: int) -> None:
    world = cast("ClusterWorld", world)
    if world.manager_process is not None:
        world.manager_process.kill()
        world.manager = world.commands = None
        world.scheduler.after(seconds, world.start_manager)


def _cut_off(world: World, which: int, seconds: float, amount: int) -> None:
    """A node cannot reach its manager, but its clients can reach it; it is failed over."""
    _cut_off_node(cast("ClusterWorld", world), world.nodes[which % len(world.nodes)].name, seconds)


def _cut_off_node(world: ClusterWorld, name: str, seconds: float) -> None:
    world.trace("cut off", name)
    world.network.partition("manager", name, _CUT_OFF + 2 * seconds)
    world.scheduler.after(seconds / 2, lambda: _fail_over(world, name, seconds))


def _cut_off_at_commit(world: World, which: int, seconds: float, amount: int) -> None:
    """As before, at the moment of a commit: its replicas do not hear of it."""
    world = cast("ClusterWorld", world)
    world.at_commit = lambda name: _cut_off_node(world, name, seconds)


def _lagging_replica(world: World, which: int, seconds: float, amount: int) -> None:
    """A replica falls behind, and the active copy is lost before it can be asked."""
    world = cast("ClusterWorld", world)
    if world.manager is None:
        return
    active, *replicas = world.manager.state.rows[which % world.plan.vbuckets]
    if active is None or replicas[0] is None:
        return
    world.network.partition("manager", replicas[which % len(replicas)] or replicas[0], 2 + seconds)
    world.scheduler.after((2 + seconds) / 2, lambda: _fail_over(world, active, seconds))


CLUSTER_FAULTS: Final[dict[str, Callable[..., None]]] = {
    "failover node": _failover_node,
    "manager dies": _manager_dies,
    "cut off": _cut_off,
    "cut off at commit": _cut_off_at_commit,
    "lagging replica": _lagging_replica,
}
