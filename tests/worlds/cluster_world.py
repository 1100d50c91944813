"""A world with a cluster: manager, replication, durable writes, leases and failovers are real.

The manager is a process like any other: it can die, be stopped or be cut off from its nodes. It
starts nodes that are down. What it cannot reach it cannot end, so that it must wait for leases.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import Path
from typing import Final

from upriver.cluster import cluster_state, manager_credentials, placement
from upriver.cluster.cluster_state import ClusterState, NodeEntry
from upriver.cluster.manager import Manager
from upriver.cluster.manager_commands import Commands
from upriver.consumer.topology.cluster_map import vbucket_of
from upriver.consumer.transport.access import Access
from upriver.errors import UpriverError
from upriver.model import VBucketState
from upriver.producer.server_settings import ServerSettings
from upriver.producer.write_lease import NodeIdentity
from upriver.store import Bucket, BucketSettings

from .client import EXPIRING
from .committed_branches import Violation
from .flush_oracle import FlushOracle
from .leak_oracle import check_bounded
from .linearizability import FLUSH, LOSS, Operation
from .node import Node
from .plan import Plan, Scope
from .scheduler import Process
from .simulated_node_processes import Nobody, SimulatedNodeProcesses
from .split_brain_oracle import Reigns
from .world import BUCKET, BUCKET_UUID, FIRST_PORT, PATIENCE, World

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
        "client flush",
        "rebalance",
        "add node",
        "remove node",
        "lost disk",
        "slow disk",
        "full disk",
        "slow reader",
        "reader dies",
        "stop process",
        "stop process",
        "expire",
        "clock jump",
    ),
    more_operations=(EXPIRING,),
    bursts=True,
)
#: Where the manager's files are: in memory if possible, as they are synced often.
_MEMORY: Final = "/dev/shm" if Path("/dev/shm").is_dir() else None
_CLUSTER_ID: Final = "fedcba9876543210fedcba9876543210"
#: Seconds for which a node answers writes without a word of its manager, one of which a seed picks:
#: less and more than the manager waits for the answer of a node.
_LEASES: Final = (3.0, 8.0)


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
        #: The names of nodes by the ports that they have had, and the nodes that were removed.
        self._names: dict[int, str] = {}
        self._removed: dict[str, Node] = {}
        self._ports = itertools.count(FIRST_PORT + 100)
        #: Whether a node has lost its disk, and may not have everything again yet.
        self._lacks_a_disk = False
        #: Whether nothing breaks any more.
        self._is_resting = False
        self.lease = random.Random(f"lease {plan.seed}").choice(_LEASES)
        super().__init__(plan)
        self.manager_process: Process | None = None
        self.manager: Manager | None = None
        self.commands: Commands | None = None
        #: The commands of the manager that runs, until they are done.
        self._under_way: set[asyncio.Task[None]] = set()
        self.reigns = Reigns()
        self.histories.on_promotion = self._promoted
        self.flushes = FlushOracle()
        self.histories.on_flush = self._flushed
        #: Called once, with the node that commits the next change.
        self.at_commit: Callable[[str], None] | None = None
        self.histories.on_commit = self._committed

    def _promoted(self, vbucket: int, node: str) -> None:
        self.trace("promoted", vbucket, node)
        self.reigns.begin(vbucket, node, self.moment())

    def _flushed(self, vbucket: int, node: str) -> None:
        self.trace("flushed", vbucket, node)
        moment = self.moment()
        if self.reigns.reigned(vbucket, node, moment, moment):
            self.flushes.saw(vbucket, node, moment)

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
        self._names[FIRST_PORT + number] = name
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
                    cluster=_CLUSTER_ID, node=name, lease=self.lease, epoch_file=data / "epoch"
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
            lease=self.lease,
        )
        cluster_state.save(state, self.directory / cluster_state.STATE_FILE)
        self.start_manager()
        self.scheduler.run(self._is_ready, before=PATIENCE)
        self.begun_at = self.scheduler.now
        super().begin()

    def start_manager(self) -> None:
        if self.manager_process is not None and self.manager_process.alive:
            return
        process = self.manager_process = self.new_process("manager")

        async def manage() -> None:
            processes = SimulatedNodeProcesses(self)
            self.manager = Manager(self.directory, processes, self._manager_access)
            self.commands = Commands(self.manager, lambda host: next(self._ports))
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
        node = next((node for node in self.nodes if node.name == name), None)
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
        if self._is_resting or (self._lacks_a_disk and not self.is_whole()):
            return  # one loss at a time is survived
        moment = self.moment()
        # what was not durable may be lost whenever the manager gets to it
        self.losses.append(Operation("world", b"", LOSS, invoked=moment, durable=True))
        self.command(lambda commands: commands.failover(name, Nobody()), f"failover {name}")

    def recover(self, name: str) -> None:
        self.command(lambda commands: commands.recover(name, Nobody()), f"recovery {name}")

    def rebalance(self) -> None:
        self.command(lambda commands: commands.rebalance(Nobody()), "rebalance")

    def add_node(self) -> None:
        async def add(commands: Commands) -> None:
            await commands.add_node(Nobody())
            await commands.rebalance(Nobody())

        self.command(add, "new node")

    def remove_node(self, name: str) -> None:
        async def remove(commands: Commands) -> None:
            await commands.remove_node(name, Nobody())
            self._drop_removed()

        self.command(remove, f"removal of {name}")

    def lose_disk(self, node: Node) -> None:
        """An empty disk takes the place of a node's, if the others have everything."""
        if not self.is_whole():
            return
        self._lacks_a_disk = True
        node.kill()
        node.disk.replace()
        (self.directory / "nodes" / node.name / "epoch").unlink(missing_ok=True)
        self.histories.emptied(node.name)
        self.losses.append(Operation("world", b"", LOSS, invoked=self.moment(), durable=True))

    def is_whole(self) -> bool:
        """Whether every copy that there shall be has everything, and nothing is under way."""
        manager = self.manager
        whole = (
            manager is not None
            and self._is_ready()
            and all(None not in row for row in manager.state.rows)
            and not any(node.failed for node in manager.state.nodes)
            and not any(self._behind())
        )
        self._lacks_a_disk = self._lacks_a_disk and not whole
        return whole

    # ---- the nodes -----------------------------------------------------------------------

    def node(self, name: str) -> Node:
        return next(node for node in self.nodes if node.name == name)

    def node_of(self, entry: NodeEntry) -> Node:
        """The node of an entry of the cluster's file; it is made if it is new."""
        for node in self.nodes:
            if node.name == entry.name:
                return node
        if entry.name in self._removed:
            node = self._removed.pop(entry.name)  # its disk is still there
        else:
            node = self.new_node(int(entry.name.removeprefix("n")) - 1)
        node.listen_at(entry.port)
        self._names[entry.port] = node.name
        self.nodes.append(node)
        return node

    def _drop_removed(self) -> None:
        """Ends nodes that are not of the cluster any more."""
        if self.manager is None:
            return
        names = {node.name for node in self.manager.state.nodes}
        for node in [node for node in self.nodes if node.name not in names]:
            self.nodes.remove(node)
            self._removed[node.name] = node
            node.kill()

    # ---- coming to rest ------------------------------------------------------------------

    def mend(self) -> None:
        self.check_containers()
        self.start_manager()
        super().mend()

    def come_to_rest(self) -> None:
        self._is_resting = True
        until = self.scheduler.now + 2 * PATIENCE
        while self.scheduler.now < until:
            self.scheduler.run(self._is_ready, before=self.scheduler.now + 30.0)
            self._drop_removed()
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
        return operation.kind != FLUSH and self.reigns.check(*self._place(operation), operation)

    def _place(self, operation: Operation) -> tuple[int, str]:
        """The vbucket of an operation, and the node that was asked."""
        vbucket = vbucket_of(operation.key, self.plan.vbuckets)
        return vbucket, self._names.get(operation.port, "")

    def losses_of(self, key: bytes) -> list[Operation]:
        return [*self.losses, *self.flushes.of(vbucket_of(key, self.plan.vbuckets))]

    def check_containers(self) -> None:
        """What the manager and every node keep stays small."""
        servers = {node.name: node.server for node in self.nodes}
        for process in self.processes:
            if process.alive and (process.name in servers or process is self.manager_process):
                roots = [*process.loop.alive_tasks, servers.get(process.name)]
                check_bounded(process.name, roots)

    def check(self) -> None:
        super().check()
        self.check_containers()
        self.flushes.check(
            [
                (*self._place(operation), operation)
                for client in self.clients
                for operation in client.operations
                if operation.kind == FLUSH
            ],
            self.reigns,
        )
        for vbucket in range(self.plan.vbuckets):
            active = [
                node.name
                for node in self.nodes
                if node.bucket is not None and node.bucket.state(vbucket) is VBucketState.ACTIVE
            ]
            if len(active) != 1:
                raise Violation("one active copy", f"vbucket {vbucket} is active at {active}")
