"""The manager of a cluster as a process: ``python -m upriver.cluster.manager_process DIRECTORY``.

It serves commands until it is stopped. SIGTERM ends it alone and leaves the nodes running, so that
another can take its place; the command ``stop`` ends everything.
"""

from __future__ import annotations

import argparse
import asyncio
import fcntl
import logging
import os
import signal
from pathlib import Path
from typing import Any, Final

from ..consumer.access import Access
from ..errors import ConfigError
from . import secret
from .api import ApiServer
from .manager import Manager
from .processes import Processes
from .turns import Audience

__all__ = ["main"]

_LOCK: Final = "manager.lock"


def main() -> None:
    """Manages until it is told to stop."""
    parser = argparse.ArgumentParser(description="the manager of a cluster")
    parser.add_argument("directory", type=Path)
    directory: Path = parser.parse_args().directory
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    lock = os.open(directory / _LOCK, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise SystemExit("another manager runs in this directory") from None
    asyncio.run(_manage(directory))


async def _manage(directory: Path) -> None:
    users, access = secret.read(directory)
    manager = Manager(directory, Processes(directory, users), access or Access())
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stopped.set)
    await manager.start()

    async def obey(command: str, node: str, audience: Audience) -> dict[str, Any]:
        try:
            return await _obey(manager, command, node, audience)
        finally:
            if command == "stop":
                stopped.set()

    api = ApiServer(directory, obey)
    await api.start()
    await stopped.wait()
    await api.stop()
    await manager.close()


async def _obey(manager: Manager, command: str, node: str, audience: Audience) -> dict[str, Any]:
    match command:
        case "ready":
            await manager.ready(audience)
        case "status":
            return manager.status()
        case "rebalance":
            await manager.rebalance(audience)
        case "failover":
            await manager.failover(node, audience)
        case "recover":
            await manager.recover(node, audience)
        case "add-node":
            added = await manager.add_node(audience)
            await manager.looked()
            return {**manager.status(), "added": added.name}
        case "remove-node":
            await manager.remove_node(node, audience)
        case "stop":
            await manager.stop(audience)
            return manager.status()
        case _:
            raise ConfigError(f"the manager knows no command {command!r}")
    await manager.looked()  # so that the answer shows what the command has done
    return manager.status()


if __name__ == "__main__":
    main()
