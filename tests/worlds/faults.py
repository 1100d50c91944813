"""What breaks in every world: machines, disks, connections, processes and clocks.

Each fault gets which of several it hits, seconds and an amount, all from the plan.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Final

from upriver.errors import StoreError
from upriver.store import Bucket, SyncMode

from .client import EXPIRING
from .linearizability import FLUSH, LOSS, WIPE
from .node import Node
from .plan import Scope

if TYPE_CHECKING:
    from .world import World

#: One node with its clients and a reader. Everything may break.
SINGLE: Final = Scope(
    name="single",
    kinds=(
        "kill",
        "kill",
        "power failure",
        "restart",
        "failover",
        "failover",
        "small failover",
        "small failover",
        "purge",
        "flush",
        "expire",
        "full disk",
        "slow disk",
        "empty disk",
        "cut",
        "cut",
        "half-open",
        "partition",
        "slow reader",
        "slow reader",
        "reader dies",
        "reader dies",
        "reader away",
        "reader away",
        "stop process",
        "clock jump",
    ),
    more_operations=(EXPIRING,),
    bursts=True,
)


def _node(world: World, which: int) -> Node:
    return world.nodes[which % len(world.nodes)]


def _kill(world: World, which: int, seconds: float, amount: int) -> None:
    node = _node(world, which)
    node.kill()
    world.scheduler.after(seconds / 2, node.start)


def _power_failure(world: World, which: int, seconds: float, amount: int) -> None:
    node = _node(world, which)
    lost = node.kill(power=True)
    world.trace("power", node.name, lost)
    if world.plan.sync is SyncMode.RELAXED:
        world.lose(LOSS)
    world.scheduler.after(seconds / 2, node.start)


def _restart(world: World, which: int, seconds: float, amount: int) -> None:
    node = _node(world, which)
    node.close()
    world.scheduler.after(seconds / 4, node.start)


def _empty_disk(world: World, which: int, seconds: float, amount: int) -> None:
    node = _node(world, which)
    node.kill()
    node.disk.replace()
    world.histories.emptied(node.name)
    world.lose(WIPE)
    world.scheduler.after(seconds / 4, node.start)


def _in_bucket(world: World, which: int, act: Callable[[Bucket], object]) -> bool:
    """Calls a node's own function in its process; False if it is down, or its disk is full."""
    node = _node(world, which)
    bucket = node.bucket
    if bucket is None or node.process is None:
        return False
    with suppress(StoreError):
        node.process.call(lambda: act(bucket))
        return True
    return False


def _failover(world: World, which: int, seconds: float, amount: int) -> None:
    """The node goes on as a replica that was behind would."""
    vbucket = which % world.plan.vbuckets

    def go_back(bucket: Bucket) -> None:
        high = bucket.vbucket_stats(vbucket).high_seqno
        world.lose(LOSS)
        bucket.rollback(vbucket, max(0, high - amount))

    _in_bucket(world, which, go_back)


def _small_failover(world: World, which: int, seconds: float, amount: int) -> None:
    """One that most readers can follow without going back to the beginning."""
    _failover(world, which, seconds, amount % 5)


def _purge(world: World, which: int, seconds: float, amount: int) -> None:
    _in_bucket(world, which, Bucket.compact)


def _flush(world: World, which: int, seconds: float, amount: int) -> None:
    if _in_bucket(world, which, Bucket.flush):
        # as any other write, it is lost with the power if it was not synced
        world.lose(FLUSH if world.plan.sync is SyncMode.RELAXED else WIPE)


def _expire(world: World, which: int, seconds: float, amount: int) -> None:
    _in_bucket(world, which, Bucket.expire)


def _full_disk(world: World, which: int, seconds: float, amount: int) -> None:
    disk = _node(world, which).disk
    disk.full = True

    def mended() -> None:
        disk.full = False

    world.scheduler.after(seconds, mended)


def _slow_disk(world: World, which: int, seconds: float, amount: int) -> None:
    disk = _node(world, which).disk
    disk.slowness = 10.0 * (1 + amount)

    def mended() -> None:
        disk.slowness = 1.0

    world.scheduler.after(seconds, mended)


def _cut(world: World, which: int, seconds: float, amount: int) -> None:
    links = world.network.alive_links()
    if links:
        links[which % len(links)].reset("cut")


def _half_open(world: World, which: int, seconds: float, amount: int) -> None:
    links = world.network.alive_links()
    if links:
        links[which % len(links)].go_silent()


def _partition(world: World, which: int, seconds: float, amount: int) -> None:
    names = sorted({process.name for process in world.processes if process.alive})
    pairs = [(one, other) for one in names for other in names if one < other]
    one, other = pairs[which % len(pairs)]
    world.network.partition(one, other, 2 * seconds)


def _slow_reader(world: World, which: int, seconds: float, amount: int) -> None:
    world.network.slow_reader("reader", seconds, 200.0 * (1 + amount))


def _reader_dies(world: World, which: int, seconds: float, amount: int) -> None:
    if world.reader_process is not None:
        world.reader_process.kill()
        world.scheduler.after(seconds / 4, world.start_reader)


def _reader_away(world: World, which: int, seconds: float, amount: int) -> None:
    """It is gone for longer, and deletions that it has not seen are purged."""
    if world.reader_process is not None:
        world.reader_process.kill()
        world.scheduler.after(seconds, partial(_purge, world, which, seconds, amount))
        world.scheduler.after(seconds + 0.01, world.start_reader)


def _stop_process(world: World, which: int, seconds: float, amount: int) -> None:
    alive = [process for process in world.processes if process.alive]
    alive[which % len(alive)].stop_for(seconds)


def _clock_jump(world: World, which: int, seconds: float, amount: int) -> None:
    alive = [process for process in world.processes if process.alive]
    alive[which % len(alive)].skew += (amount - 6) * 100.0


FAULTS: Final[dict[str, Callable[..., None]]] = {
    "kill": _kill,
    "power failure": _power_failure,
    "restart": _restart,
    "empty disk": _empty_disk,
    "failover": _failover,
    "small failover": _small_failover,
    "purge": _purge,
    "flush": _flush,
    "expire": _expire,
    "full disk": _full_disk,
    "slow disk": _slow_disk,
    "cut": _cut,
    "half-open": _half_open,
    "partition": _partition,
    "slow reader": _slow_reader,
    "reader dies": _reader_dies,
    "reader away": _reader_away,
    "stop process": _stop_process,
    "clock jump": _clock_jump,
}
