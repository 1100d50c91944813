"""Nodes as processes of this machine: started, found again by a new manager, and killed.

A node outlives its manager. Its process says who it is in a file beside its data; a number in
that file is believed only while a process of that number runs with that data.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ..errors import ConfigError
from .state import ClusterState, NodeEntry

__all__ = ["Processes", "cluster_process", "reap"]

_PID_FILE: Final = "node.pid"
_LOG_FILE: Final = "node.log"
#: Seconds in which a node can close its files before it is killed.
_FAREWELL_SECONDS: Final = 10.0
_POLL_SECONDS: Final = 0.02


def cluster_process(module: str, directory: Path, log: Path, *arguments: str) -> int:
    """Starts a part of a cluster that outlives us; returns its number."""
    with log.open("ab") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", f"upriver.cluster.{module}", str(directory), *arguments],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    # It is not waited for: whoever starts it may be gone when it ends. Until then, as our child,
    # it would stay as a zombie, which `_is_running` takes for ended.
    _children.append((directory, process))
    return process.pid


#: Kept so that they are reaped, with their directories.
_children: list[tuple[Path, subprocess.Popen[bytes]]] = []


def reap(directory: Path) -> None:
    """Waits for what we started in a directory, and what is ending."""
    for child in [child for child in _children if child[0] == directory]:
        child[1].wait()
        _children.remove(child)


@dataclass(frozen=True, slots=True)
class Processes:
    """The processes of a cluster's nodes."""

    directory: Path
    users: Path | None = None

    def data(self, node: NodeEntry) -> Path:
        return self.directory / "nodes" / node.name

    def log(self, node: NodeEntry) -> Path:
        return self.data(node) / _LOG_FILE

    def is_running(self, node: NodeEntry) -> bool:
        return self._pid(node) is not None

    def ensure(self, state: ClusterState, node: NodeEntry) -> None:
        """Starts a node unless it runs."""
        if self.is_running(node):
            return
        data = self.data(node)
        data.mkdir(parents=True, exist_ok=True)
        arguments = [
            *("--host", state.host, "--port", str(node.port)),
            *("--bucket", state.bucket, "--vbuckets", str(len(state.rows))),
        ]
        if self.users is not None:
            arguments += ["--users", str(self.users)]
        pid = cluster_process("node_process", data, self.log(node), *arguments)
        (data / _PID_FILE).write_text(str(pid))

    def kill(self, node: NodeEntry) -> None:
        """Ends a node at once, whatever it is doing: from here on it answers nobody."""
        self.send(node, signal.SIGKILL)

    async def stop(self, node: NodeEntry) -> None:
        """Asks a node to stop, and kills it if it does not; returns when it is gone."""
        self.send(node, signal.SIGTERM)
        self.send(node, signal.SIGCONT)  # one that was stopped hears nothing else
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
                f"process {self._pid(node)} of {node.name} does not end: end it, and try again"
            ) from None

    def send(self, node: NodeEntry, number: signal.Signals) -> None:
        """Sends a signal to a node, if it runs."""
        pid = self._pid(node)
        if pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def _pid(self, node: NodeEntry) -> int | None:
        """The number of a node's process if it runs."""
        for _, child in _children:
            child.poll()
        data = self.data(node)
        try:
            pid = int((data / _PID_FILE).read_text())
            command = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        except (OSError, ValueError):
            return None
        return pid if os.fsencode(data) in command else None
