"""How commands reach the manager: lines of JSON on a loopback socket.

    -> {"token": ..., "command": "rebalance", "node": ""}
    <- {"done": 3, "total": 12, "what": "vbuckets moved"}       any number of these
    <- {"result": {...}}   or   {"error": "..."}                the last line

Where it listens, and the word that lets one in, is in a file that only the owner can read.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import logging
import os
import secrets
import socket
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, Final

from ..errors import ConfigError, ConnectionFailed, UpriverError

__all__ = ["ApiServer", "call"]

logger = logging.getLogger("upriver.cluster")

_HOST: Final = "127.0.0.1"
#: A command is a few words.
_MAX_LINE: Final = 64 * 1024
_FILE: Final = "manager.json"
#: Seconds to be answered at all; then the manager works for as long as it needs.
_CONNECT_SECONDS: Final = 5.0

#: Runs a command for a node; reports how much of how much of what is done.
Handler = Callable[[str, str, Callable[[int, int, str], None]], Awaitable[dict[str, Any]]]


class ApiServer:
    """Takes commands, several at a time."""

    def __init__(self, directory: Path, handler: Handler) -> None:
        self._path = directory / _FILE
        self._handler = handler
        self._token = secrets.token_hex(16)
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, _HOST, 0, limit=_MAX_LINE)
        port = self._server.sockets[0].getsockname()[1]
        fresh = self._path.with_suffix(".new")
        fresh.unlink(missing_ok=True)
        content = json.dumps({"port": port, "token": self._token, "pid": os.getpid()})
        descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(content)
        fresh.replace(self._path)

    async def stop(self) -> None:
        self._path.unlink(missing_ok=True)
        if self._server is not None:
            self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        def say(line: dict[str, Any]) -> None:
            writer.write(json.dumps(line).encode() + b"\n")

        try:
            command, node = self._understood(await reader.readline())
            result = await self._handler(
                command,
                node,
                lambda done, total, what: say({"done": done, "total": total, "what": what}),
            )
            say({"result": result})
        except (UpriverError, TimeoutError) as problem:
            say({"error": str(problem) or "it took too long; see the manager's log"})
        except (ValueError, OSError):
            pass  # nobody who knows the way speaks like this, or they are gone
        except Exception:  # a fault of ours: whoever asked must not take it for an end
            logger.exception("a command failed")
            say({"error": "the manager failed; see its log"})
        finally:
            writer.close()

    def _understood(self, line: bytes) -> tuple[str, str]:
        request = json.loads(line)
        if not isinstance(request, dict):
            raise ValueError("a command is an object")
        if not hmac.compare_digest(str(request.get("token")).encode(), self._token.encode()):
            raise ConfigError("the token is wrong: is it another manager's?")
        return str(request.get("command")), str(request.get("node", ""))


def call(directory: Path, command: str, node: str = "") -> Iterator[dict[str, Any]]:
    """Gives the manager a command; yields its lines, of which the last has the result.

    `ConfigError` if it refuses or cannot; `ConnectionFailed` if there is no manager. What it has
    begun it finishes, whether or not anybody listens.
    """
    try:
        where = json.loads((directory / _FILE).read_text())
        address = (_HOST, int(where["port"]))
        token = str(where["token"])
    except OSError:
        raise _no_manager(directory) from None
    except (ValueError, KeyError, TypeError) as problem:
        raise ConfigError(f"{directory / _FILE} cannot be read: {problem!r}") from None
    try:
        with socket.create_connection(address, timeout=_CONNECT_SECONDS) as connection:
            connection.settimeout(None)
            request = {"token": token, "command": command, "node": node}
            connection.sendall(json.dumps(request).encode() + b"\n")
            with connection.makefile("rb") as lines:
                for line in lines:
                    told: dict[str, Any] = json.loads(line)
                    if "error" in told:
                        raise ConfigError(told["error"])
                    yield told
                    if "result" in told:
                        return
    except OSError:
        raise _no_manager(directory) from None
    raise ConnectionFailed(
        "ended in the middle of a command", "start it again, and repeat the command", where="it"
    )


def _no_manager(directory: Path) -> ConnectionFailed:
    return ConnectionFailed(
        "is not running", f"start it: upriver cluster start --data {directory}", where="the manager"
    )
