"""The leases that a manager gives its nodes: renews them, and knows when one has run out.

A node answers writes only while it holds a lease; `producer.write_lease` describes the renewal.
A manager that takes a node's vbuckets away without proof that its process has ended waits until
the node's lease has run out.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from ..errors import UpriverError
from .node_link import NodeLink

logger = logging.getLogger("upriver.cluster")

#: Renewals in the time of one lease, if none fails; of short leases more often than once a second.
_PER_LEASE: Final = 5
_LONGEST_PAUSE: Final = 1.0


class Leases:
    """The leases of one manager. Create it on the event loop."""

    def __init__(self, seconds: float, links: Callable[[], Mapping[str, NodeLink]]) -> None:
        self._seconds = seconds
        self._links = links
        self._loop = asyncio.get_running_loop()
        #: Earlier managers had ended by then, so their leases run out one lease length later.
        self._begun = self._loop.time()
        self._kept: frozenset[str] = frozenset()
        self._last_ticket: dict[str, float] = {}
        self._never: set[str] = set()
        self._renewing: dict[str, asyncio.Task[None]] = {}

    def keep(self, nodes: Iterable[str]) -> None:
        """Sets the nodes whose leases are renewed: these and no others."""
        self._kept = frozenset(nodes)

    def end(self, node: str) -> None:
        """Stops renewing the lease of a node."""
        self._kept -= {node}

    def is_new(self, node: str) -> None:
        """Notes a node that was just created: it holds no lease of an earlier manager."""
        self._never.add(node)

    def remaining(self, node: str) -> float:
        """Seconds until a lease that is not renewed has certainly run out."""
        link = self._links().get(node)
        last = self._last_ticket.get(node, 0.0)
        if link is not None:
            last = max(last, link.ticket_at)
        if node not in self._never:
            last = max(last, self._begun)
        return max(0.0, last + self._seconds - self._loop.time()) if last else 0.0

    async def run(self) -> None:
        """Renews leases until it is cancelled. A node that does not answer delays no other."""
        try:
            while True:
                for node, link in list(self._links().items()):
                    # only a node that was checked and given its map since it was connected
                    if node in self._kept and link.connected and link.rev:
                        self._begin(node, link)
                await asyncio.sleep(min(_LONGEST_PAUSE, self._seconds / _PER_LEASE))
        finally:
            for task in self._renewing.values():
                task.cancel()

    def _begin(self, node: str, link: NodeLink) -> None:
        under_way = self._renewing.get(node)
        if under_way is None or under_way.done():
            self._last_ticket[node] = link.ticket_at
            self._renewing[node] = self._loop.create_task(self._renew(node, link))

    async def _renew(self, node: str, link: NodeLink) -> None:
        with contextlib.suppress(asyncio.CancelledError):
            try:
                await link.renew_lease()
            except UpriverError as problem:
                logger.info("the lease of %s is not renewed: %s", node, problem)
            except Exception:
                logger.exception("the lease of %s is not renewed", node)
