"""The manager of a cluster: it knows which node shall have what, and sees to it.

One task looks at all nodes again and again, and does what is missing: starts those that are down,
gives them their vbuckets, their maps and their collections, and keeps copies flowing. A person's
commands change what shall be, one at a time; a manager that is killed in the middle of one goes on
from what it wrote down and what the nodes are.

There is one manager. It does not agree with others on anything, and decides on no failover by
itself: that one node does not answer it says little about who else can reach that node.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from ..consumer.access import Access
from ..consumer.source import Address
from ..errors import ConfigError, ConnectionFailed, UpriverError
from ..model import VBucketState
from . import janitor, plan, state
from .moving import Moving
from .node_link import Copy, NodeLink
from .plan import Row
from .processes import Processes
from .replicator import Replicator
from .state import MAX_NODES, ClusterState, NodeEntry
from .wires import Endpoint

__all__ = ["Manager", "Report", "free_port"]

logger = logging.getLogger("upriver.cluster")

#: Seconds between two looks at the nodes when nothing happens.
_INTERVAL: Final = 0.5
#: Seconds for a node to come up, or to go down.
_PATIENCE: Final = 60.0

#: Told how far a command is: how much of how much, and of what.
Report = Callable[[int, int, str], None]


def free_port(host: str) -> int:
    """A port that nobody listens on at this moment."""
    with socket.create_server((host, 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


class Manager:
    """One cluster, on one loop."""

    def __init__(self, directory: Path, processes: Processes, access: Access) -> None:
        self._path = directory / "cluster.json"
        self._processes = processes
        self._access = access
        self._state = state.load(self._path)
        self._links: dict[str, NodeLink] = {}
        self._facts: dict[str, dict[int, Copy]] = {}
        self._replicators: dict[tuple[str, str], Replicator] = {}
        #: Further copies of vbuckets, for the time of a move.
        self._extra: dict[int, set[str]] = {}
        #: Vbuckets that are being taken over.
        self._busy: set[int] = set()
        #: Those of which something changed since the nodes were last asked.
        self._touched: set[int] = set()
        self._command = asyncio.Lock()
        self._woken = asyncio.Event()
        self._round_done = asyncio.Condition()
        self._rounds = 0
        self._task: asyncio.Task[None] | None = None

    # ---- life ----------------------------------------------------------------------------

    @property
    def state(self) -> ClusterState:
        return self._state

    async def start(self) -> None:
        """Begins to look after the nodes."""
        self._task = asyncio.create_task(self._look_after())

    async def close(self) -> None:
        """Leaves the nodes to themselves."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await self._stop_replicators()
        for link in self._links.values():
            link.close()

    async def stop(self) -> None:
        """Stops the nodes, and itself."""
        async with self._command:
            await self.close()
            await asyncio.gather(*map(self._processes.stop, self._state.nodes))

    async def _stop_replicators(self) -> None:
        for replicator in self._replicators.values():
            await replicator.stop()
        self._replicators.clear()

    def _keep(self, newer: ClusterState) -> None:
        """Takes over another state, on disk first."""
        state.save(newer, self._path)
        self._state = newer
        self._woken.set()

    # ---- looking after the nodes ---------------------------------------------------------

    async def _look_after(self) -> None:
        while True:
            self._woken.clear()
            try:
                await self._round()
            except UpriverError as problem:
                logger.info("%s", problem)
            except Exception:  # whatever it is, the nodes need somebody who goes on
                logger.exception("a look at the nodes failed")
            async with self._round_done:
                self._rounds += 1
                self._round_done.notify_all()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_INTERVAL):
                    await self._woken.wait()

    async def looked(self) -> None:
        """Returns after a look at the nodes that began after this was called."""
        wanted = self._rounds + 2  # the one that runs now may have seen things as they were
        async with self._round_done:
            while self._rounds < wanted:
                self._woken.set()
                await self._round_done.wait()

    async def _round(self) -> None:
        members = self._state.members
        self._touched.clear()
        for node in members:
            self._processes.ensure(self._state, node)
        names = [node.name for node in members]
        for name in set(self._links) - set(names):
            self._links.pop(name).close()
        answers = await asyncio.gather(*map(self._look_at, members))
        self._facts = {
            name: told for name, told in zip(names, answers, strict=True) if told is not None
        }
        await self._share_manifest()
        found = janitor.orders(
            self._state.rows,
            self._facts,
            names,
            extra=self._extra,
            # of what moved meanwhile the nodes told how it was
            busy=self._busy | self._touched,
        )
        for vbucket, row in found.rows.items():
            self._keep(self._state.with_row(vbucket, row))
        await self._order(found.demote)
        await self._order(found.promote)
        await self._give_maps(
            {name for name in self._facts if name not in found.doubtful} & set(self._links)
        )
        await self._replicate(names)

    async def _look_at(self, node: NodeEntry) -> dict[int, Copy] | None:
        link = self._links.setdefault(node.name, NodeLink(self.endpoint(node.name)))
        try:
            await link.connect()
            return await link.copies()
        except UpriverError as problem:
            logger.info("%s: %s", node.name, problem)
            return None

    async def _order(self, wanted: dict[str, list[tuple[int, VBucketState]]]) -> None:
        for name, changes in wanted.items():
            with contextlib.suppress(KeyError):  # it is no member any more
                await self._links[name].set_states(
                    change for change in changes if change[0] not in self._busy
                )

    async def _share_manifest(self) -> None:
        """Gives every node the newest collections that any of them has."""
        told = {name: await self._links[name].manifest() for name in self._facts}
        if not told:
            return
        uid, raw = max(told.values())
        for name, (known, _) in told.items():
            if known < uid:
                await self._links[name].give_manifest(uid, raw)

    async def _give_maps(self, names: set[str]) -> None:
        uid = max((link.manifest_uid for link in self._links.values()), default=0)
        for name in names & {node.name for node in self._state.members}:
            newest = self._state
            await self._links[name].give_maps(newest.rev, *newest.maps(name, uid))

    async def _renew_maps(self) -> None:
        """Tells the newest map to those who had one before; who comes back is looked at first."""
        known = {name for name, link in self._links.items() if link.connected and link.rev}
        with contextlib.suppress(UpriverError):  # whoever does not answer is told later
            await self._give_maps(known)

    async def _replicate(self, names: list[str]) -> None:
        wanted = janitor.streams(self._state.rows, self._extra, self._busy)
        for source, target in set(self._replicators) | set(wanted):
            pair = source, target
            if source not in names or target not in names:
                if pair in self._replicators:
                    await self._replicators.pop(pair).stop()
                continue
            if pair not in self._replicators:
                name = f"replication:{source}->{target}:{self._state.bucket}"
                self._replicators[pair] = Replicator(
                    self.endpoint(source), self.endpoint(target), name
                )
            self._replicators[pair].want(wanted.get(pair, ()))

    # ---- what moves need -----------------------------------------------------------------

    def endpoint(self, name: str) -> Endpoint:
        node = self._state.node(name)
        address = Address(self._state.host, node.port)
        return Endpoint(address, self._state.bucket, self._access, name)

    def link(self, name: str) -> NodeLink:
        return self._links[name]

    def begin_copies(self, vbucket: int, nodes: set[str]) -> None:
        """Has further nodes get a copy of a vbucket."""
        self._extra[vbucket] = nodes
        self._touched.add(vbucket)
        self._woken.set()

    def end_copies(self, vbucket: int) -> None:
        self._extra.pop(vbucket, None)
        self._touched.add(vbucket)
        self._woken.set()

    @contextlib.asynccontextmanager
    async def alone(self, vbucket: int) -> AsyncIterator[None]:
        """Keeps everybody else from a vbucket, its streams included."""
        self._busy.add(vbucket)
        try:
            for replicator in self._replicators.values():
                replicator.leave(vbucket)
            yield
        finally:
            self._touched.add(vbucket)
            self._busy.discard(vbucket)
            self._woken.set()

    async def commit(self, vbucket: int, row: Row) -> None:
        """Notes where a vbucket is now, and tells everybody."""
        self._keep(self._state.with_row(vbucket, row))
        await self._renew_maps()

    # ---- commands ------------------------------------------------------------------------

    async def ready(self) -> None:
        """Returns when every vbucket has its active copy, and every node its map."""
        async with asyncio.timeout(_PATIENCE):
            while not self._is_ready():
                await self.looked()

    def _is_ready(self) -> bool:
        for node in self._state.members:
            link = self._links.get(node.name)
            if link is None or not link.connected or link.rev != self._state.rev:
                return False
        return all(
            self._is_active(vbucket, row[0])
            for vbucket, row in enumerate(self._state.rows)
            if row[0] is not None
        )

    async def rebalance(self, report: Report) -> None:
        """Spreads the vbuckets over the nodes that stay."""
        async with self._command:
            await self._rebalance(report)

    async def _rebalance(self, report: Report) -> None:
        down = [node.name for node in self._state.members if node.name not in self._facts]
        if down:
            raise ConfigError(f"{', '.join(down)} does not answer: fail it over, or wait for it")
        staying = [node.name for node in self._state.members if not node.leaving]
        target = plan.balanced(self._state.rows, staying)
        await Moving(self, report).run(self._state.rows, target)

    async def failover(self, name: str, report: Report) -> None:
        """Gives up a node: its process is ended for good, and replicas take its place."""
        async with self._command:
            node = self._state.node(name)
            if not self._rounds:
                await self.looked()  # a manager that has just begun knows of nobody
            if not node.failed:
                for vbucket, row in enumerate(self._state.rows):
                    if plan.without(row, name)[0] is None and name in row:
                        raise ConfigError(
                            f"{name} has the only copy of vbucket {vbucket}: bring it back instead"
                        )
                self._processes.kill(node)
                await self._processes.gone(node)
                rows = await self._heirs(name)
                failed = replace(node, failed=True, leaving=False)
                self._touched.update(range(len(rows)))
                self._keep(self._state.with_rows(rows).with_node(failed))
            await self._promote(report)

    async def _heirs(self, name: str) -> tuple[Row, ...]:
        """The rows without a node that is gone: the best of the other copies takes its place."""
        copies: dict[str, dict[int, Copy]] = {}
        for node in self._state.members:
            if node.name != name and node.name in self._links:
                with contextlib.suppress(UpriverError):
                    copies[node.name] = await self._links[node.name].copies()
        rows = []
        for vbucket, row in enumerate(self._state.rows):
            heir = None
            if row[0] == name:
                candidates = {
                    node: told[vbucket]
                    for node, told in copies.items()
                    if vbucket in told and (node in row or node in self._extra.get(vbucket, ()))
                }
                heir = await self._best(vbucket, candidates)
            rows.append(_inherited(row, name, heir))
        return tuple(rows)

    async def _best(self, vbucket: int, candidates: dict[str, Copy]) -> str | None:
        """The copy with most: the latest branch counts first, then how far it has come on it."""
        if len(candidates) < 2:
            return next(iter(candidates), None)
        logs = {node: await self._links[node].branches(vbucket) for node in candidates}

        def worth(node: str) -> tuple[int, int]:
            later_than = sum(other[0] in logs[node] for other in logs.values())
            return later_than, candidates[node].seqno

        return max(candidates, key=worth)

    async def _promote(self, report: Report) -> None:
        """Makes active what the rows say, without asking who else might be: that was decided."""
        wanted = [
            (vbucket, row[0])
            for vbucket, row in enumerate(self._state.rows)
            if row[0] is not None and not self._is_active(vbucket, row[0])
        ]
        for done, (vbucket, node) in enumerate(wanted):
            report(done, len(wanted), "vbuckets promoted")
            link = self._links.get(node)
            if link is not None:
                with contextlib.suppress(ConnectionFailed):  # it is tried again when it is back
                    await link.set_state(vbucket, VBucketState.ACTIVE)
        await self._renew_maps()
        await self.looked()
        report(len(wanted), len(wanted), "vbuckets promoted")

    def _is_active(self, vbucket: int, node: str | None) -> bool:
        copy = self._facts.get(node or "", {}).get(vbucket)
        return copy is not None and copy.state is VBucketState.ACTIVE

    async def recover(self, name: str, report: Report) -> None:
        """Brings back a node that was failed over: what it has that nobody else has is lost."""
        async with self._command:
            node = self._state.node(name)
            if node.failed:
                rows = tuple(_refilled(row, name) for row in self._state.rows)
                back = replace(node, failed=False)
                self._touched.update(range(len(rows)))
                self._keep(self._state.with_node(back).with_rows(rows))
            async with asyncio.timeout(_PATIENCE):
                while not await self._has_caught_up(name, report):
                    await self.looked()

    async def _has_caught_up(self, name: str, report: Report) -> bool:
        mine = [vbucket for vbucket, row in enumerate(self._state.rows) if name in row[1:]]
        there = [
            vbucket
            for vbucket in mine
            if any(
                vbucket in replicator.flowing
                for (_, target), replicator in self._replicators.items()
                if target == name
            )
        ]
        report(len(there), len(mine), "vbuckets recovered")
        return name in self._facts and len(there) == len(mine)

    async def add_node(self) -> NodeEntry:
        """Starts another node, which has nothing until the cluster is rebalanced."""
        async with self._command:
            if len(self._state.nodes) >= MAX_NODES:
                raise ConfigError(f"a cluster has up to {MAX_NODES} nodes")
            numbers = {int(node.name.removeprefix("n")) for node in self._state.nodes}
            name = f"n{max(numbers) + 1}"
            entry = NodeEntry(name, free_port(self._state.host))
            self._keep(self._state.with_node(entry))
            async with asyncio.timeout(_PATIENCE):
                while name not in self._facts:
                    await self.looked()
            return entry

    async def remove_node(self, name: str, report: Report) -> None:
        """Moves everything away from a node, and stops it."""
        async with self._command:
            node = self._state.node(name)
            if not node.failed:
                staying = [other for other in self._state.members if other.name != name]
                if not [other for other in staying if not other.leaving]:
                    raise ConfigError(f"{name} is the last node: stop the cluster instead")
                self._keep(self._state.with_node(replace(node, leaving=True)))
                await self._rebalance(report)
            self._keep(self._state.without_node(name))
            await self.looked()
            await self._processes.stop(node)

    def status(self) -> dict[str, Any]:
        """How everything is, for people and for programs."""
        return {
            "bucket": self._state.bucket,
            "source": self.source,
            "vbuckets": len(self._state.rows),
            "replicas": self._state.replicas,
            "rev": self._state.rev,
            "nodes": [self._node_status(node) for node in self._state.nodes],
            "without_active": self._without_active(),
            "moving": sorted(self._busy | set(self._extra)),
        }

    @property
    def source(self) -> str:
        """What clients are given to find the cluster."""
        hosts = ",".join(f"{self._state.host}:{node.port}" for node in self._state.members)
        return f"couchbase://{hosts}/{self._state.bucket}"

    def _node_status(self, node: NodeEntry) -> dict[str, Any]:
        facts = self._facts.get(node.name, {})
        behind = 0
        for vbucket, copy in facts.items():
            active = self._state.rows[vbucket][0]
            if copy.state is not VBucketState.ACTIVE and active is not None:
                ahead = self._facts.get(active, {}).get(vbucket)
                behind += max(0, ahead.seqno - copy.seqno) if ahead is not None else 0
        return {
            "name": node.name,
            "address": f"{self._state.host}:{node.port}",
            "state": "failed over"
            if node.failed
            else "not answering"
            if node.name not in self._facts
            else "leaving"
            if node.leaving
            else "up",
            "active": sum(copy.state is VBucketState.ACTIVE for copy in facts.values()),
            "replica": sum(copy.state is VBucketState.REPLICA for copy in facts.values()),
            "behind": behind,
        }

    def _without_active(self) -> int:
        return sum(
            not self._is_active(vbucket, row[0]) for vbucket, row in enumerate(self._state.rows)
        )


def _inherited(row: Row, lost: str, heir: str | None) -> Row:
    """A row without a node, and with another's copy as the active one if there is an heir."""
    left = plan.without(row, lost)
    if heir is None:
        return left
    others = [node for node in left if node is not None and node != heir]
    return (heir, *others, *(None,) * len(row))[: len(row)]


def _refilled(row: Row, name: str) -> Row:
    """A row with a node in its first empty place, unless it is there already or none is empty."""
    if name in row or None not in row:
        return row
    place = row.index(None)
    return (*row[:place], name, *row[place + 1 :])
