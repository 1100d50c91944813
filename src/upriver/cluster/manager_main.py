"""The manager of a cluster as a process: ``python -m upriver.cluster.manager_main DIRECTORY``.

It serves commands until it is stopped. SIGTERM ends the manager alone and leaves the nodes running,
so that another manager can take over; the command ``stop`` ends everything. It ends by itself when
its directory is removed, or when a manager of a newer epoch has taken over the nodes.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import os
import signal
from pathlib import Path
from typing import Any, Final

from ..errors import ConfigError
from ..logs import JSON_VARIABLE, configure_logging
from . import manager_credentials
from .command_queue import Audience
from .control_socket import ControlServer
from .manager import Manager
from .manager_commands import Commands
from .node_processes import Processes
from .process_lock import ProcessLock

logger = logging.getLogger("upriver.cluster")

_LOCK: Final = "manager.lock"
#: Seconds between two checks that the directory still exists.
_LOOK_SECONDS: Final = 1.0


def main() -> None:
    """Runs the manager until it is stopped."""
    parser = argparse.ArgumentParser(description="the manager of a cluster")
    parser.add_argument("directory", type=Path)
    directory: Path = parser.parse_args().directory
    configure_logging(logging.INFO, as_json=bool(os.environ.get(JSON_VARIABLE)))
    try:
        lock = ProcessLock(directory / _LOCK)
    except BlockingIOError:
        raise SystemExit("another manager runs in this directory") from None
    os.umask(0o077)  # its files are readable by their owner only
    asyncio.run(_manage(directory, lock))


async def _manage(directory: Path, lock: ProcessLock) -> None:
    if not manager_credentials.exists(directory):  # a cluster of the first release, without users
        manager_credentials.make(directory, None)
    users, access = manager_credentials.read(directory)
    manager = Manager(directory, Processes(directory, users), access)
    commands = Commands(manager)
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stopped.set)
    await manager.start()

    async def obey(command: str, node: str, audience: Audience) -> dict[str, Any]:
        try:
            return await _obey(commands, command, node, audience)
        finally:
            if command == "stop":
                stopped.set()

    api = ControlServer(directory, obey)
    await api.start()
    while not stopped.is_set() and not manager.fenced.is_set() and lock.is_there:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_LOOK_SECONDS):
                await stopped.wait()
    if not stopped.is_set():
        logger.error("a newer manager has this cluster, or its directory was removed: ending")
    await api.stop()
    await manager.close()


async def _obey(commands: Commands, command: str, node: str, audience: Audience) -> dict[str, Any]:
    match command:
        case "ready":
            await commands.ready(audience)
        case "status":
            return commands.status()
        case "rebalance":
            await commands.rebalance(audience)
        case "failover":
            await commands.failover(node, audience)
        case "recover":
            await commands.recover(node, audience)
        case "add-node":
            added = await commands.add_node(audience)
            await commands.looked()
            return {**commands.status(), "added": added.name}
        case "remove-node":
            await commands.remove_node(node, audience)
        case "stop":
            await commands.stop(audience)
            return commands.status()
        case _:
            raise ConfigError(f"the manager knows no command {command!r}")
    await commands.looked()  # so that the status shows the effect of the command
    return commands.status()


if __name__ == "__main__":
    main()
