"""Making a cluster, and starting one that was made: its manager, which starts the nodes."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from ..errors import ConfigError, ConnectionFailed
from ..store.settings import MAX_VBUCKETS
from . import plan, secret, state
from .api import call
from .manager import free_port
from .processes import cluster_process
from .state import MAX_NODES, MAX_REPLICAS, ClusterState, NodeEntry

__all__ = ["create", "exists", "start_manager"]

_STATE: Final = "cluster.json"
_LOG: Final = "manager.log"
#: Seconds for the manager to answer.
_PATIENCE: Final = 30.0
_POLL_SECONDS: Final = 0.05
_MAX_PORT: Final = 65_535


def exists(directory: Path) -> bool:
    """Whether there is a cluster in a directory."""
    return (directory / _STATE).exists()


def create(
    directory: Path,
    *,
    nodes: int = 3,
    replicas: int = 1,
    vbuckets: int = 64,
    bucket: str = "default",
    port: int = 0,
    users: Path | None = None,
) -> None:
    """Writes down a new cluster. Nodes listen on ports from ``port`` on; 0: on any free ones."""
    if not 1 <= nodes <= MAX_NODES:
        raise ConfigError(f"a cluster has 1 to {MAX_NODES} nodes, not {nodes}")
    if not 0 <= replicas <= min(MAX_REPLICAS, nodes - 1):
        raise ConfigError(
            f"{nodes} nodes hold up to {min(MAX_REPLICAS, nodes - 1)} replicas, not {replicas}"
        )
    if not 1 <= vbuckets <= MAX_VBUCKETS:
        raise ConfigError(f"a bucket has 1 to {MAX_VBUCKETS} vbuckets, not {vbuckets}")
    if port + nodes - 1 > _MAX_PORT:
        raise ConfigError(f"there are no {nodes} ports from {port} on")
    host = "127.0.0.1"
    directory.mkdir(parents=True, exist_ok=True)
    if exists(directory):
        raise ConfigError(f"there is a cluster in {directory}")
    if users is not None:
        secret.make(directory, users)
    entries = tuple(
        NodeEntry(f"n{number + 1}", port + number if port else free_port(host))
        for number in range(nodes)
    )
    rows = plan.first_rows([entry.name for entry in entries], vbuckets, replicas)
    made = ClusterState(bucket=bucket, host=host, replicas=replicas, nodes=entries, rows=rows)
    state.save(made, directory / _STATE)


def start_manager(
    directory: Path, watch: Callable[[dict[str, Any]], None] = lambda line: None
) -> dict[str, Any]:
    """Starts the manager of a cluster unless it runs; returns the status once all is ready.

    ``watch`` sees what the manager says until then.
    """
    directory = directory.resolve()
    try:
        return _ready(directory, watch)
    except ConnectionFailed:
        pass  # so there is none
    pid = cluster_process("manager_process", directory, directory / _LOG)
    deadline = time.monotonic() + _PATIENCE
    while True:
        try:
            return _ready(directory, watch)
        except ConnectionFailed:
            ended = os.waitpid(pid, os.WNOHANG)[0] == pid
            if ended or time.monotonic() > deadline:
                log = directory / _LOG
                raise ConfigError(f"the manager does not come up: see {log}") from None
            time.sleep(_POLL_SECONDS)


def _ready(directory: Path, watch: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for line in call(directory, "ready"):
        if "result" in line:
            result = line["result"]
        else:
            watch(line)
    return result
