"""The name that a client gives itself in HELLO, by which server logs show its connections."""

from __future__ import annotations

import platform
import secrets
from typing import Final

from ... import __version__
from ...wire.agent_names import AgentName

#: The name of the client in server logs.
_AGENT: Final = f"upriver/{__version__} (python/{platform.python_version()})"
#: The same for all connections of this process, so that server logs show them as one client.
_CLIENT_ID: Final = secrets.token_hex(8)


def agent_key() -> str:
    """The HELLO key of a new connection: client name and version, and a unique connection id."""
    return AgentName(_AGENT, f"{_CLIENT_ID}/{secrets.token_hex(8)}").key
