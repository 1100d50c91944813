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
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from ..consumer.access import Access
from ..consumer.source import Address
from ..errors import ConfigError, UpriverError
from ..model import VBucketState
from . import heirs, janitor, plan, state
from .moving import Moving
from .node_link import Copy, NodeLink
from .plan import Row
from .processes import Processes
from .replicator import Replicator
from .state import MAX_NODES, ClusterState, NodeEntry
from .turns import Audience, Turn, Turns
from .wires import Endpoint

__all__ = ["Manager", "free_port"]

logger = logging.getLogger("upriver.cluster")

#: Seconds between two looks at the nodes when nothing happens.
_INTERVAL: Final = 0.5
#: Seconds without any progress after which a command gives up.
_PATIENCE: Final = 60.0


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
        #: What the nodes have that answered in the last round, and what any had when it last did.
        self._facts: dict[str, dict[int, Copy]] = {}
        self._last_seen: dict[str, dict[int, Copy]] = {}
        self._replicators: dict[tuple[str, str], Replicator] = {}
        #: Further copies of vbuckets, for the time of a move.
        self._extra: dict[int, set[str]] = {}
        #: Vbuckets that are being taken over.
        self._busy: set[int] = set()
        #: Those of which something changed since the nodes were last asked.
        self._touched: set[int] = set()
        self._turns = Turns()
        #: Nodes that must not be started again: they are being failed over.
        self._given_up: set[str] = set()
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

    async def stop(self, audience: Audience) -> None:
        """Stops the nodes, and itself."""
        async with self._turns.take("stop", audience, urgent=True) as turn:
            await self.close()
            stopping = [asyncio.create_task(self._processes.stop(n)) for n in self._state.nodes]
            for done, stopped in enumerate(asyncio.as_completed(stopping)):
                turn.report(done, len(stopping), "nodes stopped")
                await stopped
            turn.report(len(stopping), len(stopping), "nodes stopped")

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
            if node.name not in self._given_up:
                self._ensure(node)
        names = [node.name for node in members]
        for name in set(self._links) - set(names):
            self._links.pop(name).close()
        answers = await asyncio.gather(*map(self._look_at, members))
        self._facts = {
            name: told for name, told in zip(names, answers, strict=True) if told is not None
        }
        self._last_seen |= self._facts
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

    def _ensure(self, node: NodeEntry) -> None:
        """Starts a node unless it runs; the others do not suffer if that cannot be."""
        try:
            self._processes.ensure(self._state, node)
        except OSError as problem:
            logger.warning("%s cannot be started: %s", node.name, problem)

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

    async def ready(self, audience: Audience) -> None:
        """Returns when every vbucket has its active copy, and every node its map."""
        await self._until(Turn("start", audience), self._ready_so_far, "nodes and vbuckets ready")

    def _ready_so_far(self) -> tuple[int, int]:
        told = [
            link is not None and link.connected and link.rev == self._state.rev
            for link in (self._links.get(node.name) for node in self._state.members)
        ]
        held = [row[0] is not None for row in self._state.rows]
        there = len(held) - self._without_active()
        return sum(told) + there, len(told) + sum(held)

    async def _until(self, turn: Turn, so_far: Callable[[], tuple[int, int]], what: str) -> None:
        """Looks until all of something is there; gives up when it does not become more."""
        loop = asyncio.get_running_loop()
        most, deadline = -1, loop.time() + _PATIENCE
        while True:
            done, total = so_far()
            turn.report(done, total, what)
            if done >= total:
                return
            turn.check()
            if done > most:
                most, deadline = done, loop.time() + _PATIENCE
            elif loop.time() > deadline:
                raise ConfigError(f"only {done} of {total} {what}: {self._what_is_wrong()}")
            await self.looked()

    def _what_is_wrong(self) -> str:
        silent = self._silent()
        if not silent:
            return f"see {self._path.with_name('manager.log')}, and give the command again"
        first = self._processes.log(self._state.node(silent[0]))
        return f"{_do_not_answer(silent)}; see {first}, and fail over what does not come back"

    def _silent(self) -> list[str]:
        """The members that do not answer."""
        return [node.name for node in self._state.members if node.name not in self._facts]

    async def _looked_once(self) -> None:
        """A manager that has just begun knows of nobody."""
        if not self._rounds:
            await self.looked()

    async def rebalance(self, audience: Audience) -> None:
        """Spreads the vbuckets over the nodes that stay."""
        async with self._turns.take("rebalance", audience) as turn:
            await self._rebalance(turn)

    async def _rebalance(self, turn: Turn) -> None:
        await self._looked_once()
        silent = self._silent()
        if silent:
            raise ConfigError(f"{_do_not_answer(silent)}: fail over what is lost, or wait for it")
        staying = [node.name for node in self._state.members if not node.leaving]
        target = plan.balanced(self._state.rows, staying)
        try:
            await Moving(self, turn).run(self._state.rows, target)
        except UpriverError:
            turn.check()
            raise

    async def failover(self, name: str, audience: Audience) -> None:
        """Gives up a node: its process is ended for good, and replicas take its place."""
        self._refuse_if_only_copy(self._state.node(name), {})
        async with self._turns.take(f"failover of {name}", audience, urgent=True) as turn:
            await self._looked_once()
            node = self._state.node(name)
            rows = self._state.rows
            if node.failed:  # but maybe not everything was done that follows from it
                await self._promote(turn, range(len(rows)))
                return
            turn.waits("asking the other nodes what they have")
            self._refuse_if_only_copy(node, await heirs.copies_at(self._links_without(name)))
            self._given_up.add(name)
            try:
                self._processes.kill(node)
                await self._processes.gone(node)
                left = await heirs.inherited_rows(rows, name, self._links_without(name))
                self._touched.update(range(len(rows)))
                failed = replace(node, failed=True, leaving=False)
                self._keep(self._state.with_rows(left).with_node(failed))
            finally:
                self._given_up.discard(name)
            # those of others are not its business: they may be active elsewhere
            await self._promote(turn, [vb for vb, row in enumerate(rows) if row[0] == name])

    def _refuse_if_only_copy(self, node: NodeEntry, copies: heirs.Copies) -> None:
        if not node.failed:
            had = self._last_seen.get(node.name, {})
            heirs.refuse_if_only_copy(self._state.rows, node.name, had, copies)

    def _links_without(self, name: str) -> dict[str, NodeLink]:
        members = {node.name for node in self._state.members} - {name}
        return {other: link for other, link in self._links.items() if other in members}

    async def _promote(self, turn: Turn, vbuckets: Iterable[int]) -> None:
        """Makes active what the rows say, without asking who else might be: that was decided."""
        rows = self._state.rows
        wanted = [
            (vbucket, node)
            for vbucket in vbuckets
            if (node := rows[vbucket][0]) is not None and not self._is_active(vbucket, node)
        ]
        for done, (vbucket, node) in enumerate(wanted):
            turn.report(done, len(wanted), "vbuckets promoted")
            link = self._links.get(node)
            if link is not None:
                with contextlib.suppress(UpriverError):  # it is tried again when it is back
                    await link.set_state(vbucket, VBucketState.ACTIVE)
        await self._renew_maps()
        await self.looked()
        done = sum(self._is_active(vbucket, node) for vbucket, node in wanted)
        turn.report(done, len(wanted), "vbuckets promoted")

    def _is_active(self, vbucket: int, node: str | None) -> bool:
        copy = self._facts.get(node or "", {}).get(vbucket)
        return copy is not None and copy.state is VBucketState.ACTIVE

    async def recover(self, name: str, audience: Audience) -> None:
        """Brings back a node that was failed over: what it has that nobody else has is lost."""
        self._state.node(name)
        async with self._turns.take(f"recovery of {name}", audience) as turn:
            node = self._state.node(name)
            if node.failed:
                rows = tuple(_refilled(row, name) for row in self._state.rows)
                back = replace(node, failed=False)
                self._touched.update(range(len(rows)))
                self._keep(self._state.with_node(back).with_rows(rows))
            await self._until(turn, lambda: (int(name in self._facts), 1), "nodes recovered")
            await self._until(turn, lambda: self._recovered(name), "vbuckets recovered")

    def _recovered(self, name: str) -> tuple[int, int]:
        """How many copies a node has that are being kept up to date, and how many it shall have."""
        mine = {vbucket for vbucket, row in enumerate(self._state.rows) if name in row[1:]}
        flowing: set[int] = set()
        for (_, target), replicator in self._replicators.items():
            if target == name:
                flowing |= replicator.flowing
        return len(mine & flowing), len(mine)

    async def add_node(self, audience: Audience) -> NodeEntry:
        """Starts another node, which has nothing until the cluster is rebalanced."""
        async with self._turns.take("adding of a node", audience) as turn:
            if len(self._state.nodes) >= MAX_NODES:
                raise ConfigError(f"a cluster has up to {MAX_NODES} nodes")
            numbers = {int(node.name.removeprefix("n")) for node in self._state.nodes}
            name = f"n{max(numbers) + 1}"
            entry = NodeEntry(name, free_port(self._state.host))
            self._keep(self._state.with_node(entry))
            await self._until(turn, lambda: (int(name in self._facts), 1), "nodes added")
            return entry

    async def remove_node(self, name: str, audience: Audience) -> None:
        """Moves everything away from a node, and stops it."""
        self._state.node(name)
        async with self._turns.take(f"removal of {name}", audience) as turn:
            node = self._state.node(name)
            if not node.failed:
                staying = [other for other in self._state.members if other.name != name]
                if not [other for other in staying if not other.leaving]:
                    raise ConfigError(f"{name} is the last node: stop the cluster instead")
                self._keep(self._state.with_node(replace(node, leaving=True)))
                await self._rebalance(turn)
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
            "silent": self._silent(),
            "moving": sorted(self._busy | set(self._extra)),
            "under_way": self._turns.under_way,
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


def _do_not_answer(nodes: list[str]) -> str:
    return f"{', '.join(nodes)} {'does' if len(nodes) == 1 else 'do'} not answer"


def _refilled(row: Row, name: str) -> Row:
    """A row with a node in its first empty place, unless it is there already or none is empty."""
    if name in row or None not in row:
        return row
    place = row.index(None)
    return (*row[:place], name, *row[place + 1 :])
