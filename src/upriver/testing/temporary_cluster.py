"""A temporary cluster of real processes for tests, whose nodes can be killed and failed over."""

from __future__ import annotations

import signal
import tempfile
from pathlib import Path
from typing import Any, Final, Self

from .._unclosed import warn_unclosed
from ..cluster import cluster_state
from ..cluster.cluster_start import create, start_manager
from ..cluster.control_socket import call
from ..cluster.node_processes import Processes, reap
from ..consumer.transport.connection_string import Source
from ..consumer.writing.write_operations import Edit, removal, upsert
from ..consumer.writing.writer import Writer, WriterSettings
from ..errors import ConnectionFailed

#: Seconds after which a write fails that no node accepts.
_PATIENCE: Final = 60.0


class TemporaryCluster:
    """``upriver cluster`` on free ports, in a directory that is removed after the ``with`` block.

    Nodes are called n1, n2 and so on. Each is a process of its own, and so is the manager; a
    cluster starts in about two seconds. Commands return when they are done.
    """

    def __init__(
        self,
        *,
        nodes: int = 3,
        replicas: int = 1,
        vbuckets: int = 16,
        bucket: str = "default",
        users: Path | None = None,
        directory: Path | None = None,
        lease: float = cluster_state.LEASE,
    ) -> None:
        """``users`` is a users file of `upriver users`; without one there is no authentication.

        With a ``directory`` of yours, logs and data stay when it ends. ``lease`` is for how many
        seconds nodes accept writes after their manager was killed.
        """
        self._passing: tempfile.TemporaryDirectory[str] | None = None
        if directory is None:
            self._passing = tempfile.TemporaryDirectory(prefix="upriver-")
            directory = Path(self._passing.name)
        self.directory = directory.resolve()
        create(
            self.directory,
            nodes=nodes,
            replicas=replicas,
            vbuckets=vbuckets,
            bucket=bucket,
            users=users,
            lease=lease,
        )
        self._writer: Writer | None = None
        self._started = False

    def start(self) -> dict[str, Any]:
        """Starts the processes that do not run, and returns the status when all are ready."""
        self._started = True
        return start_manager(self.directory)

    def __del__(self) -> None:
        # without their directory the processes end by themselves
        if getattr(self, "_started", False) and self.directory.exists():
            warn_unclosed(self, self.directory, "use it in a with block, or call stop()")

    def stop(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None
        for node in self.nodes:
            self.resume(node)
        try:
            self.run("stop")
        except ConnectionFailed:  # the manager was killed; only one that runs can stop the nodes
            self.start()
            self.run("stop")
        reap(self.directory)
        self._started = False
        if self._passing is not None:
            self._passing.cleanup()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *raised: object) -> None:
        self.stop()

    # ---- state ---------------------------------------------------------------------------

    @property
    def state(self) -> cluster_state.ClusterState:
        return cluster_state.load(self.directory / cluster_state.STATE_FILE)

    @property
    def nodes(self) -> list[str]:
        """The names of all nodes, including those that were failed over."""
        return [node.name for node in self.state.nodes]

    @property
    def source(self) -> str:
        """The connection string, with all nodes that are in service."""
        held = self.state
        hosts = ",".join(f"{held.host}:{node.port}" for node in held.members)
        return f"couchbase://{hosts}/{held.bucket}"

    def status(self) -> dict[str, Any]:
        """The object that ``upriver cluster status --json`` prints."""
        return self.run("status")

    # ---- documents -----------------------------------------------------------------------

    def write(self, key: bytes, value: bytes) -> None:
        """Writes a document into the default collection, on the node that has its vbucket."""
        self._do(upsert(key, value))

    def delete(self, key: bytes) -> None:
        self._do(removal(key))

    def _do(self, edit: Edit) -> None:
        if self._writer is None:
            patient = WriterSettings(retry_timeout=_PATIENCE)
            self._writer = Writer(Source.parse(self.source), settings=patient)
        self._writer.do(edit)

    # ---- commands ------------------------------------------------------------------------

    def fail_over(self, node: str) -> None:
        """Fails a node over at once: replicas become active, changes they do not have are lost."""
        self.run("failover", node)

    def recover(self, node: str) -> None:
        """Brings a failed-over node back."""
        self.run("recover", node)

    def rebalance(self) -> None:
        """Spreads the vbuckets evenly over the nodes."""
        self.run("rebalance")

    def add_node(self) -> None:
        """Adds a node, which gets vbuckets with the next `rebalance`."""
        self.run("add-node")

    def remove_node(self, node: str) -> None:
        """Moves all vbuckets away from a node and removes it."""
        self.run("remove-node", node)

    def run(self, command: str, node: str = "") -> dict[str, Any]:
        """Runs a command like ``upriver cluster COMMAND`` and waits for its result."""
        *_, last = call(self.directory, command, node)
        result: dict[str, Any] = last["result"]
        return result

    # ---- process faults ------------------------------------------------------------------

    def kill(self, node: str) -> None:
        """Kills the process of a node, as with kill -9. The manager restarts it."""
        self._send(node, signal.SIGKILL)

    def pause(self, node: str) -> None:
        """Suspends the process of a node: its connections stay open, but it does not answer."""
        self._send(node, signal.SIGSTOP)

    def resume(self, node: str) -> None:
        self._send(node, signal.SIGCONT)

    def _send(self, node: str, number: signal.Signals) -> None:
        Processes(self.directory).send(self.state.node(node), number)
