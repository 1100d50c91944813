"""A cluster of real processes for tests: nodes with replicas, and what can befall them."""

from __future__ import annotations

import signal
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from ..cluster import state
from ..cluster.api import call
from ..cluster.processes import Processes, reap
from ..cluster.starting import create, start_manager
from ..consumer.edits import Edit, removal, upsert
from ..consumer.source import Source
from ..consumer.writer import Writer, WriterSettings
from ..errors import ConnectionFailed

__all__ = ["TemporaryCluster"]

#: Seconds until a write is given up that no node takes.
_PATIENCE: Final = 60.0


class TemporaryCluster:
    """``upriver cluster`` on free ports, in a directory that goes with its ``with`` block.

    Nodes are called n1, n2 and so on. Each is a process of its own, and so is the manager; a
    cluster is there after about two seconds. Commands return when they are done.
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
    ) -> None:
        """``users`` is a file as `upriver users` makes it; anybody is let in without.

        With a ``directory`` of yours, logs and data stay when it ends.
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
        )
        self._writer: Writer | None = None

    def start(self) -> dict[str, Any]:
        """Starts what does not run, and returns the status once all is ready."""
        return start_manager(self.directory)

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
        if self._passing is not None:
            self._passing.cleanup()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    # ---- what there is -------------------------------------------------------------------

    @property
    def state(self) -> state.ClusterState:
        return state.load(self.directory / "cluster.json")

    @property
    def nodes(self) -> list[str]:
        """The names of all nodes, those too that were failed over."""
        return [node.name for node in self.state.nodes]

    @property
    def source(self) -> str:
        """The connection string, with all nodes that are in service."""
        held = self.state
        hosts = ",".join(f"{held.host}:{node.port}" for node in held.members)
        return f"couchbase://{hosts}/{held.bucket}"

    def status(self) -> dict[str, Any]:
        """What ``upriver cluster status --json`` prints."""
        return self.run("status")

    # ---- documents -----------------------------------------------------------------------

    def write(self, key: bytes, value: bytes) -> None:
        """Writes a document into the default collection, wherever its vbucket is by now."""
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
        """Takes a node out at once; replicas take over, and what they had not got is lost."""
        self.run("failover", node)

    def recover(self, node: str) -> None:
        """Takes a node in again that was failed over."""
        self.run("recover", node)

    def rebalance(self) -> None:
        """Moves vbuckets until every node has its share."""
        self.run("rebalance")

    def add_node(self) -> None:
        """Adds a node, which gets its share with the next `rebalance`."""
        self.run("add-node")

    def remove_node(self, node: str) -> None:
        """Moves everything away from a node, and takes it out."""
        self.run("remove-node", node)

    def run(self, command: str, node: str = "") -> dict[str, Any]:
        """Gives a command as ``upriver cluster COMMAND`` does, and waits for its result."""
        *_, last = call(self.directory, command, node)
        result: dict[str, Any] = last["result"]
        return result

    # ---- misfortune ----------------------------------------------------------------------

    def kill(self, node: str) -> None:
        """Kills the process of a node, as with kill -9. The manager starts it again."""
        self._send(node, signal.SIGKILL)

    def pause(self, node: str) -> None:
        """Stops the process of a node: its connections stay, and nothing answers."""
        self._send(node, signal.SIGSTOP)

    def resume(self, node: str) -> None:
        self._send(node, signal.SIGCONT)

    def _send(self, node: str, number: signal.Signals) -> None:
        Processes(self.directory).send(self.state.node(node), number)
