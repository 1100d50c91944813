"""What may grow while a world runs, and how far: buffers, connections, tasks, positions, tables."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from upriver.model import MAX_FAILOVER_ENTRIES

from .committed_branches import Violation

if TYPE_CHECKING:
    from .world import World

#: Bytes of one direction of a connection that were sent and have not arrived.
_SOCKET_BYTES: Final = 256 * 1024
#: Bytes of a message, by which a window may be exceeded, and of answers and noops beside it.
_BEYOND_WINDOW: Final = 1024
#: Bytes of maps of a cluster, which no window counts.
_MAPS: Final = 8 * 1024
#: Connections that the other side has closed, and that are half-open or cut off by a partition.
_CLOSING: Final = 64
#: Tasks of one process.
_TASKS: Final = 64
#: Boundaries of a position.
_BOUNDARIES: Final = 64


def require_at_most(most: int, found: int, what: str) -> None:
    if found > most:
        raise Violation("memory stays bounded", f"{found} {what}, and at most {most} are allowed")


def check_memory(world: World) -> None:
    """Raises `Violation` for what has grown too far."""
    for link in world.network.links:
        for end in link.ends:
            to = end.peer.process.name
            beyond = _BEYOND_WINDOW + (_MAPS if len(world.nodes) > 1 else 0)
            window = world.plan.buffer + beyond if to == "reader" else _SOCKET_BYTES
            waiting = end.get_write_buffer_size()
            require_at_most(min(window, _SOCKET_BYTES), waiting, f"bytes wait for {to}")
    for node in world.nodes:
        # a stopped process cannot forget a connection
        if node.server and node.process and node.process.stopped_until < world.scheduler.now - 1:
            links = sum(end.process is node.process for x in world.network.links for end in x.ends)
            known = len(node.server.connections)
            require_at_most(links + _CLOSING, known, f"connections of {node.name}")
    for process in world.processes:
        if process.alive:
            require_at_most(_TASKS, process.loop.tasks, f"tasks of {process.name}")
    for vbucket, position in world.reader.positions().items():
        require_at_most(_BOUNDARIES, len(position.boundaries), f"boundaries of {vbucket}")
        require_at_most(MAX_FAILOVER_ENTRIES, len(position.log), f"branches of {vbucket}")
