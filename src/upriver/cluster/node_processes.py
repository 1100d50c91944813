"""Starts the processes of nodes, finds them again after a restart of the manager, and ends them.

A node outlives its manager and writes its own process number: see `node_lock`. A node that fails
to start is started again with growing pauses, and its error message is kept for the status.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from ..consumer.topology.cluster_view import Backoff
from ..errors import ConfigError
from . import node_lock
from .cluster_state import ClusterState, NodeEntry

_LOG_FILE: Final = "node.log"
#: Seconds that a node gets to close its files before it is killed.
_FAREWELL_SECONDS: Final = 10.0
_POLL_SECONDS: Final = 0.02
#: Seconds until a node that failed to start is started again: the first pause and the longest.
_FIRST_PAUSE: Final = 0.5
_LONGEST_PAUSE: Final = 30.0
#: How often a node is started before its error is reported: another program's connection may
#: have its port for a moment.
_TRIES: Final = 3


def cluster_process(
    module: str, directory: Path, log: Path, *arguments: str
) -> subprocess.Popen[bytes]:
    """Starts a process of a cluster that outlives this one."""
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    with os.fdopen(descriptor, "ab") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", f"upriver.cluster.{module}", str(directory), *arguments],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    # Nothing waits for it here, because it outlives its starter; children that have ended are
    # reaped when the next one is started.
    _children[:] = [child for child in _children if child[1].poll() is None]
    _children.append((directory, process))
    return process


#: Child processes with their directories, kept to be reaped.
_children: list[tuple[Path, subprocess.Popen[bytes]]] = []


def reap(directory: Path) -> None:
    """Waits for the children of a directory, which are ending."""
    for child in [child for child in _children if child[0] == directory]:
        child[1].wait()
        _children.remove(child)


@dataclass(slots=True)
class _Attempts:
    """How often a node was started since it last answered, and when to start it again."""

    backoff: Backoff = field(default_factory=lambda: Backoff(_FIRST_PAUSE, _LONGEST_PAUSE))
    again_at: float = 0.0
    problem: str = ""


class Processes:
    """The processes of a cluster's nodes."""

    def __init__(self, directory: Path, users: Path | None = None) -> None:
        """``users`` is the file that nodes are started with."""
        self.directory = directory
        self._users = users
        self._attempts: dict[str, _Attempts] = {}

    def data(self, node: NodeEntry) -> Path:
        return self.directory / "nodes" / node.name

    def log(self, node: NodeEntry) -> Path:
        return self.data(node) / _LOG_FILE

    # ---- starting ------------------------------------------------------------------------

    def ensure(self, state: ClusterState, node: NodeEntry) -> None:
        """Starts a node unless it runs, or its last attempt failed a moment ago."""
        attempts = self._attempts.setdefault(node.name, _Attempts())
        now = time.monotonic()
        if self.is_running(node) or now < attempts.again_at:
            return
        attempts.problem = str(node_lock.read(self.data(node)).get("problem", ""))
        attempts.again_at = now + attempts.backoff.next_pause()
        try:
            self._start(state, node)
        except OSError as problem:
            attempts.problem = f"cannot be started: {problem}"
            raise

    def answered(self, node: NodeEntry) -> None:
        """Notes that a node is up: if it ends, it is started again at once."""
        self._attempts.pop(node.name, None)

    def problem(self, node: NodeEntry) -> str:
        """Why a node does not start; empty if it does, or after too few attempts."""
        attempts = self._attempts.get(node.name)
        if attempts is None or attempts.backoff.attempts < _TRIES:
            return ""
        return attempts.problem

    def _start(self, state: ClusterState, node: NodeEntry) -> None:
        data = self.data(node)
        data.parent.mkdir(mode=0o700, exist_ok=True)
        data.mkdir(mode=0o700, exist_ok=True)
        node_lock.forget(data)
        arguments = [
            *("--host", state.host, "--port", str(node.port)),
            *("--http-port", str(node.http_port)),
            *("--bucket", state.bucket, "--vbuckets", str(len(state.rows))),
            *("--bucket-uuid", state.bucket_uuid, "--users", str(self._users)),
            *("--cluster", state.cluster, "--node", node.name, "--lease", str(state.lease)),
        ]
        cluster_process("node_main", data, self.log(node), *arguments)

    # ---- ending --------------------------------------------------------------------------

    def is_running(self, node: NodeEntry) -> bool:
        """Whether a process holds the node's lock, or is a child that may be about to take it."""
        return bool(node_lock.is_locked(self.data(node))) or self._child(node) is not None

    def has_ended(self, node: NodeEntry) -> bool:
        """Whether it is proven that no process runs a node: its lock is free."""
        return node_lock.is_locked(self.data(node)) is False and self._child(node) is None

    def kill(self, node: NodeEntry) -> None:
        """Kills a node with SIGKILL."""
        self.send(node, signal.SIGKILL)

    async def stop(self, node: NodeEntry) -> None:
        """Asks a node to stop, and kills it if it does not; returns when it is gone."""
        self.send(node, signal.SIGTERM)
        self.send(node, signal.SIGCONT)  # a stopped process handles no other signal
        try:
            await self.gone(node)
        except ConfigError:
            self.kill(node)
            await self.gone(node)

    async def gone(self, node: NodeEntry) -> None:
        """Returns when a node's process has ended."""
        try:
            async with asyncio.timeout(_FAREWELL_SECONDS):
                while self.is_running(node):
                    await asyncio.sleep(_POLL_SECONDS)
        except TimeoutError:
            raise ConfigError(
                f"process {self.pid(node)} of {node.name} does not end: end it, and try again"
            ) from None

    def send(self, node: NodeEntry, number: signal.Signals) -> None:
        """Sends a signal to a node, if it runs."""
        pid = self.pid(node)
        if pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def pid(self, node: NodeEntry) -> int | None:
        """The number of a node's process if it runs.

        The file is written under the lock and removed before another process is started, so while
        the lock is held the number is that of its holder.
        """
        data = self.data(node)
        if not node_lock.is_locked(data):
            return self._child(node)
        pid = node_lock.read(data).get("pid")
        return pid if isinstance(pid, int) and pid > 1 else self._child(node)

    def _child(self, node: NodeEntry) -> int | None:
        """The number of a node's process if we started it and it has not ended."""
        data = self.data(node)
        for directory, process in _children:
            if process.poll() is None and directory == data:
                return process.pid
        return None
