"""The manager of a cluster: keeps the nodes in the state that the cluster's file describes.

One task checks all nodes in rounds and does what is missing: starts nodes that are down, sets the
states of their vbuckets, gives them maps and collections, and keeps replication running. Another
task renews the nodes' leases. `Commands` change the wanted state, one at a time. A manager that is
killed in the middle of a command continues from the file and from what the nodes have.

There is one manager, with a higher epoch than every manager before it. There is no consensus among
several, and it never fails a node over by itself: a node that does not answer the manager may
still be reachable for clients.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from .. import _entropy
from ..consumer.transport.access import Access
from ..consumer.transport.connection_string import Address
from ..errors import AuthenticationFailed, ConnectionFailed, Status, StatusError, UpriverError
from ..model import VBucketState
from . import cluster_state, node_lock, reconcile
from . import status_report as shown
from .best_copy import Copies, Copy
from .cluster_state import ClusterState, NodeEntry
from .node_leases import Leases
from .node_link import NodeLink
from .node_processes import Processes
from .placement import Row
from .raw_connection import Endpoint
from .reconcile import Orders, Situation
from .replicator import Replicator

logger = logging.getLogger("upriver.cluster")

#: Seconds between two polls of the nodes when nothing happens.
_INTERVAL: Final = 0.5
#: Seconds between two polls while a command waits for them: starting nodes need the processor too.
_SHORTEST_INTERVAL: Final = 0.05
_CLUSTER_ID_BYTES: Final = 16
#: Seconds without an answer after which decisions are made without a node. A node that starts on a
#: busy machine needs a few.
_ABSENT_SECONDS: Final = 10.0
#: The statuses of a server that is another node, or belongs to no cluster.
_NOT_OURS: Final = frozenset({Status.NO_ACCESS, Status.NOT_SUPPORTED, Status.UNKNOWN_COMMAND})


class Manager:
    """The manager of one cluster, on one event loop."""

    def __init__(self, directory: Path, processes: Processes, access: Access) -> None:
        self.path = directory / cluster_state.STATE_FILE
        self.processes = processes
        self._access = access
        self._state = cluster_state.load(self.path)
        #: Set when it must stop managing: a manager of a newer epoch exists.
        self.fenced = asyncio.Event()
        self._links: dict[str, NodeLink] = {}
        self.leases = Leases(self._state.lease, lambda: self._links)
        #: The copies at the nodes that answered the last poll, and at every node's last answer.
        self._facts: Copies = {}
        self.last_seen: dict[str, Mapping[int, Copy]] = {}
        #: When each node last answered, or when the manager started.
        self._answered_at: dict[str, float] = {}
        self._begun = asyncio.get_running_loop().time()
        #: Why a node was not reached, and why a server that answers for it is not used.
        self._unreached: dict[str, str] = {}
        self._strangers: dict[str, str] = {}
        #: Problems of the last poll, by vbucket.
        self._problems: dict[int, str] = {}
        #: Replicas that were compared with their active copy, with the processes of both.
        self._compared: dict[tuple[int, str], tuple[str, str, str]] = {}
        self._replicators: dict[tuple[str, str], Replicator] = {}
        #: Additional copies of vbuckets during a move.
        self._extra: dict[int, set[str]] = {}
        #: Vbuckets that are being taken over.
        self._busy: set[int] = set()
        #: Vbuckets that changed since the nodes were last polled.
        self.touched: set[int] = set()
        #: Nodes that must not be restarted: they are being failed over.
        self.given_up: set[str] = set()
        self._woken = asyncio.Event()
        self._round_done = asyncio.Condition()
        self._rounds = 0
        self._tasks: list[asyncio.Task[None]] = []

    # ---- start and stop ------------------------------------------------------------------

    @property
    def state(self) -> ClusterState:
        return self._state

    @property
    def facts(self) -> Copies:
        return self._facts

    async def start(self) -> None:
        """Begins a new epoch and starts managing the nodes."""
        cluster = self._state.cluster or _entropy.token_hex(_CLUSTER_ID_BYTES)
        # Moves of an earlier manager ended with it, and so do their next rows.
        state = self._state.without_next_rows({vbucket for vbucket, _ in self._state.next_rows})
        self.keep(replace(state, cluster=cluster, epoch=state.epoch + 1))
        logger.info("epoch %d begins", self._state.epoch)
        self._tasks = [
            asyncio.create_task(self._look_after()),
            asyncio.create_task(self.leases.run()),
        ]

    async def close(self) -> None:
        """Stops managing; the nodes keep running."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for replicator in self._replicators.values():
            await replicator.stop()
        self._replicators.clear()
        for link in self._links.values():
            link.close()

    def keep(self, newer: ClusterState) -> None:
        """Replaces the state, on disk first."""
        cluster_state.save(newer, self.path)
        self._state = newer
        self._woken.set()

    # ---- polling and reconciling ---------------------------------------------------------

    async def _look_after(self) -> None:
        fault = ""
        while True:
            self._woken.clear()
            try:
                await self._round()
            except UpriverError as problem:
                logger.info("%s", problem)
                fault = ""
            except Exception as problem:  # the nodes need a manager that goes on
                # a full disk, for example, would fill the log twice a second
                if fault != (fault := repr(problem)):
                    logger.exception("a check of the nodes failed; it is repeated")
            else:
                fault = ""
            async with self._round_done:
                self._rounds += 1
                self._round_done.notify_all()
            await asyncio.sleep(_SHORTEST_INTERVAL)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_INTERVAL):
                    await self._woken.wait()

    async def looked(self) -> None:
        """Returns after a poll of the nodes that began after this call."""
        wanted = self._rounds + 2  # the running poll may have seen the state before
        async with self._round_done:
            while self._rounds < wanted:
                self._woken.set()
                await self._round_done.wait()

    async def looked_once(self) -> None:
        """Returns after the first poll: before it no node is known."""
        if not self._rounds:
            await self.looked()

    async def _round(self) -> None:
        members = self._state.members
        self.touched.clear()
        names = [node.name for node in members]
        for name in sorted(set(self._links) - set(names)):
            self._links.pop(name).close()
        for node in members:
            self._ensure(node)
        answers = await asyncio.gather(*map(self._look_at, members))
        self._facts = {
            name: copies for name, copies in zip(names, answers, strict=True) if copies is not None
        }
        self.last_seen |= self._facts
        await self._share_manifest()
        now = await self._with_logs(self._situation())
        found = reconcile.orders(now)
        self._note(now, found)
        await self._order(found.demote)
        self._restrict_streams()
        await self._order(found.promote)
        trusted = (set(self._facts) - found.doubtful - self.given_up) & set(self._links)
        self._note_disks(trusted)
        unheard = set(self._links) - set(self._facts) - self.given_up
        self.leases.keep(trusted | unheard)
        await self._give_maps(trusted)
        await self._replicate(names)

    def _situation(self) -> Situation:
        links = self._links
        return Situation(
            rows=self._state.rows,
            facts=self._facts,
            extra=self._extra,
            moves=dict(self._state.moves),
            # for vbuckets that moved meanwhile, the nodes reported the state before
            busy=self._busy | self.touched,
            serving={name for name in self._facts if links[name].serves or links[name].rev},
            doubted={node.name for node in self._state.members if self._is_doubted(node)},
            absent={node.name for node in self._state.members if self._is_absent(node)},
            safe=self._safe_pairs(),
        )

    def _is_doubted(self, node: NodeEntry) -> bool:
        """Whether a node that answers has another disk than when it last served."""
        link = self._links.get(node.name)
        known = link.sessions if link is not None and node.name in self._facts else ()
        return bool(known and node.session and node.session not in known)

    def _is_absent(self, node: NodeEntry) -> bool:
        last = self._answered_at.get(node.name, self._begun)
        return asyncio.get_running_loop().time() - last > _ABSENT_SECONDS

    def _safe_pairs(self) -> set[tuple[int, str]]:
        """The replicas that were compared with the current active copy, both being unchanged."""
        rows = self._state.rows
        return {
            (vbucket, node)
            for (vbucket, node), known in self._compared.items()
            if known == self._processes_of(rows[vbucket][0], node)
        }

    def _processes_of(self, active: str | None, node: str) -> tuple[str, str, str]:
        links = self._links
        held = [links[name].instance if name in links else "" for name in (active or "", node)]
        return active or "", held[0], held[1]

    def _note(self, now: Situation, found: Orders) -> None:
        """Saves the results of a poll."""
        for vbucket, row in found.rows.items():
            if row[0] != now.rows[vbucket][0]:
                logger.warning(
                    "vbucket %d: the active copy is now on %s, before on %s",
                    *(vbucket, row[0], now.rows[vbucket][0]),
                )
            self.keep(self._state.with_row(vbucket, row))
        over = {vbucket for vbucket, _ in self._state.moves} & found.decided
        if over:
            self.keep(self._state.without_moves(over))
        for vbucket, node in found.safe:
            active = self._state.rows[vbucket][0]
            self._compared[vbucket, node] = self._processes_of(active, node)
        known = shown.problem_lines(self._problems)
        self._problems = found.problems
        for line in shown.problem_lines(self._problems):
            if line not in known:
                logger.warning("%s", line)

    def _note_disks(self, names: set[str]) -> None:
        """Saves the disks of nodes that are about to accept writes."""
        for node in self._state.members:
            sessions = self._links[node.name].sessions if node.name in names else ()
            if sessions and sessions[0] != node.session:
                if self._is_doubted(node):
                    logger.warning("%s has another disk than it had, or an older one", node.name)
                self.keep(self._state.with_session(node.name, sessions[0]))

    def _ensure(self, node: NodeEntry) -> None:
        """Starts a node unless it runs; a failure does not affect the others."""
        link = self._links.get(node.name)
        if node.name in self.given_up or (link is not None and link.connected):
            return
        try:
            self.processes.ensure(self._state, node)
        except OSError as problem:
            logger.warning("%s cannot be started: %s", node.name, problem)

    async def _look_at(self, node: NodeEntry) -> dict[int, Copy] | None:
        link = self._links.get(node.name)
        if link is None:
            data = self.processes.data(node)
            link = NodeLink(self.endpoint(node.name), lambda: node_lock.lock_name(data))
            self._links[node.name] = link
        try:
            await link.connect()
            copies = await link.copies()
        except UpriverError as problem:
            self._not_reached(node, problem)
            return None
        self._answered_at[node.name] = asyncio.get_running_loop().time()
        self._strangers.pop(node.name, None)
        if self._unreached.pop(node.name, None) is not None:
            logger.info("%s answers", node.name)
        self.processes.answered(node)
        return copies

    def _not_reached(self, node: NodeEntry, problem: UpriverError) -> None:
        status = problem.status if isinstance(problem, StatusError) else None
        if status is Status.EXISTS:
            logger.error("%s has a manager of a newer epoch than %d", node.name, self.state.epoch)
            self.fenced.set()
        if isinstance(problem, AuthenticationFailed) or status in _NOT_OURS:
            where = f"{self._state.host}:{node.port}"
            text = f"what listens on {where} is not {node.name} of this cluster: {problem}"
            self._strangers[node.name] = text
        else:
            self._strangers.pop(node.name, None)
            text = f"{node.name}: {problem}"
        if self._unreached.get(node.name) != text:  # logged once, not at every poll
            self._unreached[node.name] = text
            logger.log(logging.WARNING if node.name in self._strangers else logging.INFO, text)

    async def _with_logs(self, now: Situation) -> Situation:
        """Requests the failover logs of copies that must be compared.

        Active copies come last, so that a replica that follows one never appears to have more.
        """
        wanted = reconcile.undecided(now)
        if not wanted:
            return now
        for actives in (False, True):
            asked = {
                name: [
                    vbucket
                    for vbucket, nodes in wanted.items()
                    if name in nodes and (now.rows[vbucket][0] == name) is actives
                ]
                for name in self._facts
            }
            replies = await asyncio.gather(*(self._asked(*one) for one in asked.items()))
            self._facts = {
                name: copies
                for name, copies in zip(asked, replies, strict=True)
                if copies is not None
            }
        return replace(now, facts=self._facts)

    async def _asked(self, name: str, vbuckets: list[int]) -> Mapping[int, Copy] | None:
        """The copies at a node, with the failover logs of some; None if it does not answer."""
        known = dict(self._facts[name])
        if not vbuckets:
            return known
        try:
            logs = await self._links[name].logs(vbuckets)
            fresh = await self._links[name].copies()
        except (UpriverError, KeyError) as problem:
            logger.info("%s: %s", name, problem)
            return None
        for vbucket in vbuckets:
            if vbucket in fresh:
                known[vbucket] = fresh[vbucket]._replace(log=logs[vbucket])
        return known

    async def _order(self, wanted: dict[str, list[tuple[int, VBucketState]]]) -> None:
        for name, changes in wanted.items():
            with contextlib.suppress(KeyError):  # it is not a member any more
                await self._links[name].set_states(
                    change for change in changes if change[0] not in self._busy
                )

    async def _share_manifest(self) -> None:
        """Sets the newest manifest of collections of any node on all nodes."""
        replies = {name: await self._links[name].manifest() for name in self._facts}
        if not replies:
            return
        uid, raw = max(replies.values())
        for name, (known, _) in replies.items():
            if known < uid:
                await self._links[name].give_manifest(uid, raw)

    async def _give_maps(self, names: set[str]) -> None:
        uid = max((link.manifest_uid for link in self._links.values()), default=0)
        for name in sorted(names & {node.name for node in self._state.members}):
            newest, link = self._state, self._links[name]
            await link.give_maps(newest.rev, *newest.maps(name, uid))
            if not link.leased and name not in self.given_up:
                await link.renew_lease()

    async def _renew_maps(self) -> None:
        """Sends the newest map to nodes that have a map; a node that comes back is polled first."""
        known = {name for name, link in self._links.items() if link.connected and link.rev}
        with contextlib.suppress(UpriverError):  # a node that does not answer gets it later
            await self._give_maps(known)

    def _restrict_streams(self) -> None:
        """Ends the streams to copies that are not known to be behind their active copy."""
        wanted = reconcile.streams(self._situation())
        for pair, replicator in self._replicators.items():
            replicator.restrict(wanted.get(pair, ()))

    async def _replicate(self, names: list[str]) -> None:
        wanted = reconcile.streams(self._situation())
        for source, target in sorted(set(self._replicators) | set(wanted)):
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

    # ---- for rebalance and commands ------------------------------------------------------

    def endpoint(self, name: str) -> Endpoint:
        held = self._state
        address = Address(held.host, held.node(name).port)
        return Endpoint(address, held.bucket, self._access, name, held.cluster, held.epoch)

    def link(self, name: str) -> NodeLink:
        return self._links[name]

    def links_without(self, name: str) -> dict[str, NodeLink]:
        members = {node.name for node in self._state.members} - {name}
        return {other: link for other, link in self._links.items() if other in members}

    def begin_copies(self, vbucket: int, nodes: set[str]) -> None:
        """Starts additional copies of a vbucket on nodes."""
        self._extra[vbucket] = nodes
        self.touched.add(vbucket)
        self._woken.set()

    async def announce(self, vbucket: int, row: Row) -> None:
        """Saves the row that a vbucket is about to have, and sends it to the active copy.

        When this returns, the active copy commits a durable write only if a majority of both rows
        has it. The other nodes get the map with the next poll.
        """
        self.keep(self._state.with_next_row(vbucket, row))
        source = self._state.rows[vbucket][0]
        assert source is not None
        if not self._links[source].rev:
            await self.looked()  # a node that comes back is polled first
        if not self._links[source].rev:
            raise ConnectionFailed("has no map", "rebalance again when it answers", where=source)
        await self._give_maps({source})

    def end_copies(self, vbucket: int) -> None:
        """Ends what `begin_copies` and `announce` began, unless `commit` made it the row."""
        self._extra.pop(vbucket, None)
        self.touched.add(vbucket)
        self._woken.set()
        if vbucket in dict(self._state.next_rows):
            self.keep(self._state.without_next_rows({vbucket}))

    @contextlib.asynccontextmanager
    async def alone(self, vbucket: int, target: str) -> AsyncIterator[None]:
        """Reserves a vbucket for a takeover: reconciling and its streams leave it alone.

        The target is saved first: after a crash a manager must know which node may have it.
        """
        self._busy.add(vbucket)
        try:
            self.keep(self._state.with_move(vbucket, target))
            for replicator in self._replicators.values():
                replicator.leave(vbucket)
            yield
        finally:
            self.touched.add(vbucket)
            self._busy.discard(vbucket)
            self._woken.set()

    async def commit(self, vbucket: int, row: Row) -> None:
        """Saves the new row of a vbucket and sends the new map to all nodes."""
        state = self._state.without_moves({vbucket}).without_next_rows({vbucket})
        self.keep(state.with_row(vbucket, row))
        await self._renew_maps()

    def flowing(self, target: str) -> set[int]:
        """The vbuckets of which a node has a copy that is replicated to."""
        streams = (r.flowing for (_, other), r in self._replicators.items() if other == target)
        return set().union(*streams)

    def held_back(self, name: str) -> set[int]:
        """The vbuckets of which a node that answers has a replica that is not replicated to."""
        now = self._situation()
        return {
            vbucket
            for vbucket in self._problems
            if name in now.replicas(vbucket) and (vbucket, name) not in now.safe
        }

    # ---- status --------------------------------------------------------------------------

    def told_everybody(self) -> int:
        """The number of members with the newest map and a lease."""
        links = [self._links.get(node.name) for node in self._state.members]
        return sum(
            link is not None and link.connected and link.leased and link.rev == self._state.rev
            for link in links
        )

    def problem_of(self, node: NodeEntry) -> str:
        """Why a node is not in service although it should be; empty if unknown."""
        known = (self.processes.problem(node), self._strangers.get(node.name, ""))
        return "; ".join(filter(None, known))

    def status(self, under_way: str) -> dict[str, Any]:
        """The status as JSON values, as ``upriver cluster status --json`` prints it."""
        held, facts = self._state, self._facts
        return {
            "bucket": held.bucket,
            "source": shown.connection_string(held),
            "vbuckets": len(held.rows),
            "replicas": held.replicas,
            "rev": held.rev,
            "epoch": held.epoch,
            "nodes": [
                shown.node_status(held, facts, node, self.problem_of(node)) for node in held.nodes
            ],
            "without_active": shown.without_active(held, facts),
            "silent": shown.silent_nodes(held, facts),
            "problems": shown.problem_lines(self._problems),
            "moving": sorted(self._busy | set(self._extra)),
            "under_way": under_way,
        }
