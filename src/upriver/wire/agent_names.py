"""What clients call themselves in HELLO: an agent, and an id of the client and its connection.

Couchbase's clients send a JSON object as the key: ``a`` is the agent, ``i`` the ids as
``CLIENT/CONNECTION``, sixteen hexadecimal digits each. java-dcp-client puts its product and a
colon before the object. Older and other clients send plain text, which is the agent. Servers
show both in their logs and statistics, and forget an agent beyond a few dozen characters.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Final

#: Bytes of the key; Couchbase's clients keep to the limit of connection names.
MAX_KEY: Final = 200
_PRODUCT: Final = re.compile(r"[\w.-]+:(?=\{)", re.ASCII)


@dataclass(frozen=True, slots=True)
class AgentName:
    """Who speaks. The id is empty where a client has none."""

    agent: str
    connection_id: str = ""

    @property
    def key(self) -> str:
        """As it is sent: the agent is cut where both would be too long."""
        agent = self.agent
        while True:
            names = {"a": agent, "i": self.connection_id}
            key = json.dumps(names, separators=(",", ":"))
            surplus = len(key) - MAX_KEY
            if surplus <= 0 or not agent:
                return key
            agent = agent[: -min(surplus, len(agent))]

    @classmethod
    def parse(cls, key: str) -> AgentName:
        """What a client sent; a text that is no such object is the agent."""
        product = _PRODUCT.match(key)
        try:
            names = json.loads(key[product.end() :] if product else key)
        except (ValueError, RecursionError):
            return cls(key)
        if not isinstance(names, dict) or not isinstance(names.get("a"), str):
            return cls(key)
        connection_id = names.get("i")
        return cls(names["a"], connection_id if isinstance(connection_id, str) else "")
