"""What breaks in a world with a cluster, beside the faults of every world."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, cast

from upriver.wire.protocol_enums import DurabilityLevel

from .client import Wish
from .cluster_world import ClusterWorld
from .linearizability import FLUSH
from .world import World

#: Seconds until a node that was failed over is recovered.
_RECOVERED_AFTER: Final = 8.0
#: Seconds for which a node is cut off from its manager, at least, after its lease is over.
_CUT_OFF: Final = 2.0
#: How many nodes a cluster has. The first one stays, as clients look for the cluster there.
_FEWEST_NODES: Final = 2
_MOST_NODES: Final = 4


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
    world.network.partition("manager", name, world.lease + _CUT_OFF + 2 * seconds)
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


def _client_flush(world: World, which: int, seconds: float, amount: int) -> None:
    """A client empties the active copies of the node that has a key."""
    number = which % world.plan.scope.clients
    process = next(process for process in world.processes if process.name == f"c{number + 1}")
    wish = Wish(FLUSH, b"k%d" % (which % world.plan.scope.keys), b"", DurabilityLevel.NONE)
    process.call(lambda: world.clients[number].wish(wish))


def _rebalance(world: World, which: int, seconds: float, amount: int) -> None:
    cast("ClusterWorld", world).rebalance()


def _add_node(world: World, which: int, seconds: float, amount: int) -> None:
    if len(world.nodes) < _MOST_NODES:
        cast("ClusterWorld", world).add_node()


def _remove_node(world: World, which: int, seconds: float, amount: int) -> None:
    if len(world.nodes) > _FEWEST_NODES:
        others = world.nodes[1:]
        cast("ClusterWorld", world).remove_node(others[which % len(others)].name)


def _lost_disk(world: World, which: int, seconds: float, amount: int) -> None:
    """An empty disk takes the place of a node's. Its manager starts it again."""
    cast("ClusterWorld", world).lose_disk(world.nodes[which % len(world.nodes)])


CLUSTER_FAULTS: Final[dict[str, Callable[..., None]]] = {
    "failover node": _failover_node,
    "manager dies": _manager_dies,
    "cut off": _cut_off,
    "cut off at commit": _cut_off_at_commit,
    "lagging replica": _lagging_replica,
    "client flush": _client_flush,
    "rebalance": _rebalance,
    "add node": _add_node,
    "remove node": _remove_node,
    "lost disk": _lost_disk,
}
