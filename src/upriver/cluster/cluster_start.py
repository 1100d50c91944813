"""Making a cluster, and starting one that was made: its manager, which starts the nodes."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from .. import _entropy
from ..errors import ConfigError, ConnectionFailed
from ..producer.server_settings import usual_http_port
from ..store.bucket_settings import MAX_VBUCKETS
from . import cluster_state, manager_credentials, placement
from .cluster_state import (
    LEASE,
    MAX_NODES,
    MAX_REPLICAS,
    STATE_FILE,
    ClusterState,
    NodeEntry,
)
from .control_socket import call
from .manager_commands import free_port
from .node_processes import cluster_process

_LOG: Final = "manager.log"
#: Seconds for the manager to answer.
_PATIENCE: Final = 30.0
_POLL_SECONDS: Final = 0.05
_MAX_PORT: Final = 65_535
#: Of the names of a cluster and its bucket: as many as servers give a bucket.
_ID_BYTES: Final = 16


def exists(directory: Path) -> bool:
    """Whether there is a cluster in a directory."""
    return (directory / STATE_FILE).exists()


def create(
    directory: Path,
    *,
    nodes: int = 3,
    replicas: int = 1,
    vbuckets: int = 64,
    bucket: str = "default",
    port: int = 0,
    users: Path | None = None,
    lease: float = LEASE,
) -> None:
    """Writes down a new cluster. Nodes listen on ports from ``port`` on; 0: on any free ones.

    ``lease`` is how many seconds a node answers writes without a word of its manager.
    """
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
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as problem:
        raise ConfigError(
            f"{directory} cannot be a directory for a cluster: {problem.strerror}; give another one"
        ) from None
    if exists(directory):
        raise ConfigError(f"there is a cluster in {directory} already")
    manager_credentials.make(directory, users)
    ports: list[int] = [port + number for number in range(nodes)] if port else []
    if usual := usual_http_port(host, port):
        ports.append(usual)
    while len(ports) < 2 * nodes:  # for documents, then for management
        ports += {free_port(host)} - set(ports)
    entries = tuple(
        NodeEntry(f"n{number}", ports[number - 1], ports[nodes + number - 1])
        for number in range(1, nodes + 1)
    )
    rows = placement.first_rows([entry.name for entry in entries], vbuckets, replicas)
    made = ClusterState(
        bucket=bucket,
        host=host,
        replicas=replicas,
        nodes=entries,
        rows=rows,
        cluster=_entropy.token_hex(_ID_BYTES),
        bucket_uuid=_entropy.token_hex(_ID_BYTES),
        lease=lease,
    )
    cluster_state.save(made, directory / STATE_FILE)


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
    process = cluster_process("manager_main", directory, directory / _LOG)
    deadline = time.monotonic() + _PATIENCE
    while True:
        try:
            return _ready(directory, watch)
        except ConnectionFailed:
            if process.poll() is not None or time.monotonic() > deadline:
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
