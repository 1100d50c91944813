"""A world with a cluster: manager, replication, durable writes, leases and failovers are real.

The manager is a process like any other: it can die, be stopped or be cut off from its nodes. It
starts nodes that are down. What it cannot reach it cannot end, so that it must wait for leases.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import Path
from typing import Final

from ...cluster import cluster_state, manager_credentials, placement
from ...cluster.cluster_state import ClusterState, NodeEntry
from ...cluster.manager import Manager
from ...cluster.manager_commands import Commands
from ...cluster.node_processes import Processes
from ...consumer.topology.cluster_map import vbucket_of
from ...consumer.transport.access import Access
from ...errors import ConfigError, UpriverError
from ...model import VBucketState
from ...producer.membership import NodeIdentity
from ...producer.server_settings import ServerSettings
from ...store import Bucket, BucketSettings
from .history import Violation
from .linearizability import LOSS, Operation
from .node import Node
from .plan import Plan, Scope
from .reigns import Reigns
from .scheduler import Process
from .world import BUCKET, BUCKET_UUID, PATIENCE, World

__all__ = ["CLUSTER", "ClusterWorld"]

#: Three nodes with replicas, and a manager that fails nodes over and recovers them.
CLUSTER: Final = Scope(
    name="cluster",
    nodes=3,
    replicas=(1, 1, 2),
    vbuckets=(1, 2),
    operations=30,
    faults=6,
    seconds=20.0,
    drift=0.0002,
    kinds=(
        "kill",
        "kill",
        "power failure",
        "restart",
        "failover node",
        "failover node",
        "cut off",
        "cut off",
        "cut off at commit",
        "cut off at commit",
        "lagging replica",
        "lagging replica",
        "manager dies",
        "cut",
        "half-open",
        "partition",
        "partition",
        "slow disk",
        "full disk",
        "reader dies",
        "stop process",
        "stop process",
        "clock jump",
    ),
)
#: Where the manager's files are: in memory if possible, as they are synced often.
_MEMORY: Final = "/dev/shm" if Path("/dev/shm").is_dir() else None
_CLUSTER_ID: Final = "fedcba9876543210fedcba9876543210"
#: Seconds for which a node answers writes without a word of its manager.
_LEASE: Final = 3.0


@lru_cache(maxsize=1)
def _credentials() -> tuple[tempfile.TemporaryDirectory[str], Path, Access]:
    """The manager's credentials, made once for all worlds of this process: hashing takes long."""
    home = tempfile.TemporaryDirectory(prefix="upriver-world-", dir=_MEMORY)
    manager_credentials.make(Path(home.name), None)
    users, access = manager_credentials.read(Path(home.name))
    return home, users, access


class ClusterWorld(World):
    """A world whose nodes are a cluster."""

    def __init__(self, plan: Plan) -> None:
        self._home = tempfile.TemporaryDirectory(prefix="upriver-world-", dir=_MEMORY)
        self.directory = Path(self._home.name)
        _, self._users, self._manager_access = _credentials()
        super().__init__(plan)
        self.manager_process: Process | None = None
        self.manager: Manager | None = None
        self.commands: Commands | None = None
        #: The commands of the manager that runs, until they are done.
        self._under_way: set[asyncio.Task[None]] = set()
        self.reigns = Reigns()
        self.histories.on_promotion = self._promoted
        #: Called once, with the node that commits the next change.
        self.at_commit: Callable[[str], None] | None = None
        self.histories.on_commit = self._committed

    def _promoted(self, vbucket: int, node: str) -> None:
        self.trace("promoted", vbucket, node)
        self.reigns.begin(vbucket, node, self.moment())

    def _committed(self, vbucket: int, node: str) -> None:
        if self.at_commit is not None:
            hit, self.at_commit = self.at_commit, None
            hit(node)

    @contextmanager
    def surroundings(self) -> Iterator[None]:
        with self._home:
            yield

    def new_node(self, number: int) -> Node:
        name = f"n{number + 1}"
        data = self.directory / "nodes" / name
        data.mkdir(parents=True)
        return self.node_with(
            number,
            BucketSettings(
                vbuckets=self.plan.vbuckets,
                initial_state=VBucketState.DEAD,
                maintenance_interval=0,
            ),
            ServerSettings(
                users=self._users,
                member=NodeIdentity(
                    cluster=_CLUSTER_ID, node=name, lease=_LEASE, epoch_file=data / "epoch"
                ),
                takeover_time=1.0,
            ),
        )

    # ---- the manager ---------------------------------------------------------------------

    def begin(self) -> None:
        names = [node.name for node in self.nodes]
        state = ClusterState(
            bucket=BUCKET,
            host="127.0.0.1",
            replicas=self.plan.replicas,
            nodes=tuple(NodeEntry(n.name, n.port) for n in self.nodes),
            rows=placement.first_rows(names, self.plan.vbuckets, self.plan.replicas),
            cluster=_CLUSTER_ID,
            bucket_uuid=BUCKET_UUID,
            lease=_LEASE,
        )
        cluster_state.save(state, self.directory / "cluster.json")
        self.start_manager()
        self.scheduler.run(self._is_ready, before=PATIENCE)
        self.begun_at = self.scheduler.now
        super().begin()

    def start_manager(self) -> None:
        if self.manager_process is not None and self.manager_process.alive:
            return
        process = self.manager_process = self.new_process("manager")

        async def manage() -> None:
            processes = _WorldProcesses(self)
            self.manager = Manager(self.directory, processes, self._manager_access)
            self.commands = Commands(self.manager)
            await self.manager.start()
            await self.manager.fenced.wait()

        self.manager = self.commands = None
        self._under_way.clear()  # they ended with their manager
        process.spawn(manage())

    def _is_ready(self) -> bool:
        """Whether every member has its map and lease, and every vbucket an active copy.

        A command that is under way changes what they shall have.
        """
        manager = self.manager
        return (
            manager is not None
            and not self._under_way
            and manager.told_everybody() == len(manager.state.members)
            and all(self._active(vb) is not None for vb in range(self.plan.vbuckets))
        )

    def _active(self, vbucket: int) -> Node | None:
        manager = self.manager
        name = manager.state.rows[vbucket][0] if manager is not None else None
        node = self.node(name) if name is not None else None
        if node is None or node.bucket is None or not node.is_up:
            return None
        return node if node.bucket.state(vbucket) is VBucketState.ACTIVE else None

    def command(self, what: Callable[[Commands], object], name: str) -> asyncio.Task[None] | None:
        """Gives the manager a command; it may refuse it."""
        commands, process = self.commands, self.manager_process
        if commands is None or process is None or not process.alive:
            return None

        async def give() -> None:
            with suppress(UpriverError):
                await what(commands)  # type: ignore[misc]
                self.trace("done", name)

        task = process.spawn(give())
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)
        return task

    def failover(self, name: str) -> None:
        moment = self.moment()
        # what was not durable may be lost whenever the manager gets to it
        self.losses.append(Operation("world", b"", LOSS, invoked=moment, durable=True))
        self.command(lambda commands: commands.failover(name, _Nobody()), f"failover {name}")

    def recover(self, name: str) -> None:
        self.command(lambda commands: commands.recover(name, _Nobody()), f"recovery {name}")

    # ---- coming to rest ------------------------------------------------------------------

    def mend(self) -> None:
        self.start_manager()
        super().mend()

    def come_to_rest(self) -> None:
        until = self.scheduler.now + 2 * PATIENCE
        while self.scheduler.now < until:
            self.scheduler.run(self._is_ready, before=self.scheduler.now + 30.0)
            failed = [n.name for n in self.manager.state.nodes if n.failed] if self.manager else []
            if self._is_ready() and not failed:
                break
            for name in failed:
                self.recover(name)
            self.scheduler.run(lambda: False, before=self.scheduler.now + 5.0)
        else:
            status = {} if self.manager is None else self.manager.status("")
            raise Violation("a mended cluster comes back", str(status))
        super().come_to_rest()
        if not self.scheduler.run(
            lambda: not any(self._behind()), before=self.scheduler.now + PATIENCE
        ):
            raise Violation("replicas catch up", "; ".join(self._behind()))

    def _behind(self) -> Iterator[str]:
        """The replicas that do not have what their active copy has."""
        assert self.manager is not None
        for vbucket, row in enumerate(self.manager.state.rows):
            wanted = self.bucket_of(vbucket).vbucket_stats(vbucket)
            for name in filter(None, row[1:]):
                bucket = self.node(name).bucket
                has = None if bucket is None else bucket.vbucket_stats(vbucket)
                if (
                    has is None
                    or has.state is not VBucketState.REPLICA
                    or (has.vbuuid, has.high_seqno) != (wanted.vbuuid, wanted.high_seqno)
                ):
                    yield f"vbucket {vbucket} at {name}: {has}, and at {row[0]}: {wanted}"

    def node(self, name: str) -> Node:
        return next(node for node in self.nodes if node.name == name)

    def bucket_of(self, vbucket: int) -> Bucket:
        node = self._active(vbucket)
        if node is None or node.bucket is None:
            raise Violation("a mended cluster comes back", f"vbucket {vbucket} is not active")
        return node.bucket

    def is_caught_up(self) -> bool:
        if not all(self._active(vb) for vb in range(self.plan.vbuckets)):
            return False
        return super().is_caught_up()

    def counts_answer(self, operation: Operation) -> bool:
        node = next((node.name for node in self.nodes if node.port == operation.port), "")
        vbucket = vbucket_of(operation.key, self.plan.vbuckets)
        return self.reigns.check(vbucket, node, operation)

    def check(self) -> None:
        super().check()
        for vbucket in range(self.plan.vbuckets):
            active = [
                node.name
                for node in self.nodes
                if node.bucket is not None and node.bucket.state(vbucket) is VBucketState.ACTIVE
            ]
            if len(active) != 1:
                raise Violation("one active copy", f"vbucket {vbucket} is active at {active}")


class _WorldProcesses(Processes):
    """Starts and ends the nodes of a world, as far as the manager can reach their machines."""

    def __init__(self, world: ClusterWorld) -> None:
        super().__init__(world.directory)
        self._world = world
        self._starting: set[str] = set()

    def _node(self, entry: NodeEntry) -> Node:
        return self._world.node(entry.name)

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


class _Nobody:
    """Nobody waits for a command."""

    def progress(self, done: int, total: int, what: str) -> None:
        pass

    def waits(self, why: str) -> None:
        pass
