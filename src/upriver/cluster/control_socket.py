"""The manager's command protocol: lines of JSON over a loopback socket, server and client.

    -> {"token": ..., "command": "rebalance", "node": ""}
    <- {"waiting": "waiting for the rebalance to end"}          any number of these three
    <- {"done": 3, "total": 12, "what": "vbuckets moved"}
    <- {}                                                       a heartbeat
    <- {"result": {...}}   or   {"error": "..."}                the last line

A manager without a heartbeat is taken for suspended, which is an error for the client. Its port and
its token are in a file that only the owner can read.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import json
import logging
import os
import secrets
import socket
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, Final

from .._files import replace_file
from ..errors import ConfigError, ConnectionFailed, UpriverError
from .command_queue import Audience

logger = logging.getLogger("upriver.cluster")

_HOST: Final = "127.0.0.1"
#: The most bytes of a command.
_MAX_LINE: Final = 64 * 1024
_FILE: Final = "manager.json"
_MANAGER: Final = "the manager"
#: Seconds for connecting, and for the command to arrive.
_CONNECT_SECONDS: Final = 5.0
#: Seconds between two heartbeats during a command, and without one until the client gives up.
_SIGN_SECONDS: Final = 2.0
_SILENCE_SECONDS: Final = 30.0

#: Runs a command for a node, and reports its progress.
Handler = Callable[[str, str, Audience], Awaitable[dict[str, Any]]]


class _Listener:
    """The client of a command; nothing is sent once its connection is closed."""

    def __init__(self, writer: asyncio.StreamWriter) -> None:
        self._writer = writer

    def say(self, line: dict[str, Any]) -> None:
        if not self._writer.is_closing():
            self._writer.write(json.dumps(line).encode() + b"\n")

    def progress(self, done: int, total: int, what: str) -> None:
        self.say({"done": done, "total": total, "what": what})

    def waits(self, why: str) -> None:
        self.say({"waiting": why})

    async def signs(self) -> None:
        while True:
            await asyncio.sleep(_SIGN_SECONDS)
            self.say({})


class ControlServer:
    """Accepts commands, several at a time."""

    def __init__(self, directory: Path, handler: Handler) -> None:
        self._path = directory / _FILE
        self._handler = handler
        self._token = secrets.token_hex(16)
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, _HOST, 0, limit=_MAX_LINE)
        port = self._server.sockets[0].getsockname()[1]
        content = json.dumps({"port": port, "token": self._token, "pid": os.getpid()})
        replace_file(self._path, content.encode())

    async def stop(self) -> None:
        with contextlib.suppress(OSError, ValueError):  # missing, or of another manager
            if json.loads(self._path.read_text()).get("token") == self._token:
                self._path.unlink()
        if self._server is not None:
            self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        listener = _Listener(writer)
        signs = asyncio.create_task(listener.signs())
        try:
            async with asyncio.timeout(_CONNECT_SECONDS):
                line = await reader.readline()
            result = await self._handler(*self._understood(line), listener)
            listener.say({"result": result})
        except (UpriverError, TimeoutError) as problem:
            listener.say({"error": str(problem) or "timeout; see the manager's log"})
        except (ValueError, OSError):
            pass  # not a client of this protocol, or it has disconnected
        except Exception:  # a fault of Upriver: the client must not take it for a success
            logger.exception("a command failed")
            listener.say({"error": "the manager failed; see its log"})
        finally:
            signs.cancel()
            writer.close()

    def _understood(self, line: bytes) -> tuple[str, str]:
        request = json.loads(line)
        if not isinstance(request, dict):
            raise ValueError("a command must be a JSON object")
        if not hmac.compare_digest(str(request.get("token")).encode(), self._token.encode()):
            raise ConfigError("the token is wrong: is it another manager's?")
        return str(request.get("command")), str(request.get("node", ""))


def call(directory: Path, command: str, node: str = "") -> Iterator[dict[str, Any]]:
    """Sends the manager a command; yields its lines, of which the last has the result.

    `ConfigError` if the command is refused or fails; `ConnectionFailed` if there is no manager. The
    manager finishes a command even if the client disconnects.
    """
    try:
        where = json.loads((directory / _FILE).read_text())
        address = (_HOST, int(where["port"]))
        token, pid = str(where["token"]), int(where["pid"])
    except OSError:
        raise _no_manager(directory) from None
    except (ValueError, KeyError, TypeError) as problem:
        raise ConfigError(f"{directory / _FILE} cannot be read: {problem!r}") from None
    try:
        with socket.create_connection(address, timeout=_CONNECT_SECONDS) as connection:
            connection.settimeout(_SILENCE_SECONDS)
            request = {"token": token, "command": command, "node": node}
            connection.sendall(json.dumps(request).encode() + b"\n")
            with connection.makefile("rb") as lines:
                for line in lines:
                    reply: dict[str, Any] = json.loads(line)
                    if not reply:
                        continue
                    if "error" in reply:
                        raise ConfigError(reply["error"])
                    yield reply
                    if "result" in reply:
                        return
    except TimeoutError:
        raise ConfigError(
            f"the manager does not answer: continue its process {pid}, or kill it and start it anew"
        ) from None
    except OSError:
        raise _no_manager(directory) from None
    raise ConnectionFailed(
        "ended in the middle of a command", "start it again, and repeat it", where=_MANAGER
    )


def _no_manager(directory: Path) -> ConnectionFailed:
    return ConnectionFailed(
        "is not running", f"start it: upriver cluster start --data {directory}", where=_MANAGER
    )
