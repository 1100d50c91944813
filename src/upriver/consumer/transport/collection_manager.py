"""HTTP management client: creates and drops scopes and collections of a bucket.

Couchbase changes collections only through this interface. The cluster map names its addresses.
Requests use Basic authentication and a form body; responses are JSON.
"""

from __future__ import annotations

import http.client
import json
from base64 import b64encode
from collections.abc import Collection
from typing import Any, Final, Literal
from urllib.parse import quote, urlencode

from ...errors import ConfigError, ConnectionFailed
from ..topology.cluster_view import Topology
from ..topology.request_routing import renew_map
from .access import Access
from .blocking_connection import CONNECT_SECONDS, BlockingNodes
from .connection_string import Address, Source

#: Most bytes of a response; more than a manifest with the most collections that servers allow.
_MAX_ANSWER: Final = 16 * 1024 * 1024
_SHOWN: Final = 500
#: Words of refusals: servers have no status of their own for these.
_EXISTS: Final = "already exists"
_MISSING: Final = "not found"


class CollectionManager:
    """Creates and drops scopes and collections of one bucket."""

    def __init__(
        self, source: Source, access: Access | None = None, *, timeout: float = CONNECT_SECONDS
    ) -> None:
        self._source = source
        self._timeout = timeout
        self._access = access or Access()
        self._address = self._find()

    def create_scope(self, scope: str, *, exists_ok: bool = False) -> None:
        what = f"creating the scope {scope!r}"
        self._send("POST", "", {"name": scope}, what, _EXISTS if exists_ok else None)

    def drop_scope(self, scope: str) -> None:
        self._send("DELETE", f"/{_part(scope)}", {}, f"dropping the scope {scope!r}")

    def create_collection(
        self, scope: str, name: str, *, max_expiry: int = 0, exists_ok: bool = False
    ) -> None:
        form = {"name": name, **({"maxTTL": str(max_expiry)} if max_expiry else {})}
        what = f"creating the collection {scope}.{name}"
        path = f"/{_part(scope)}/collections"
        self._send("POST", path, form, what, _EXISTS if exists_ok else None)

    def ensure_collection(self, name: str, *, known_scopes: Collection[str] = ()) -> None:
        """Creates a collection and its scope unless they exist; others may do so meanwhile.

        A scope that is known to exist is not asked for: the user may not be allowed to create one.
        """
        scope, _, collection = name.partition(".")
        if scope not in known_scopes:
            self.create_scope(scope, exists_ok=True)
        self.create_collection(scope, collection, exists_ok=True)

    def drop_collection(self, scope: str, name: str, *, missing_ok: bool = False) -> None:
        what = f"dropping the collection {scope}.{name}"
        path = f"/{_part(scope)}/collections/{_part(name)}"
        self._send("DELETE", path, {}, what, _MISSING if missing_ok else None)

    # ---- requests ------------------------------------------------------------------------

    def _send(
        self,
        method: Literal["POST", "DELETE"],
        path: str,
        form: dict[str, str],
        what: str,
        fine: str | None = None,
    ) -> None:
        """Sends a request; a refusal whose reason has the words ``fine`` is none."""
        headers = {"Accept": "application/json"}
        if self._access.user:
            pair = f"{self._access.user}:{self._access.password}".encode()
            headers["Authorization"] = f"Basic {b64encode(pair).decode()}"
        if form:
            headers["Content-Type"] = "application/x-www-form-urlencoded"
        target = f"/pools/default/buckets/{_part(self._source.bucket)}/scopes{path}"
        connection = self._connection()
        try:
            connection.request(method, target, urlencode(form) if form else None, headers)
            answer = connection.getresponse()
            body = answer.read(_MAX_ANSWER)
        except (OSError, http.client.HTTPException) as problem:
            raise ConnectionFailed(
                f"did not answer over HTTP: {str(problem) or type(problem).__name__}",
                "see whether its management port is reachable",
                where=str(self._address),
            ) from None
        finally:
            connection.close()
        if answer.status != http.client.OK:
            reason = _reason(answer.status, body)
            if fine is None or fine not in reason:
                raise ConfigError(f"{what} was refused: {reason}")

    def _connection(self) -> http.client.HTTPConnection:
        where = self._address
        if self._source.tls:
            return http.client.HTTPSConnection(
                where.host,
                where.port,
                timeout=self._timeout,
                context=self._access.tls_context(),
            )
        return http.client.HTTPConnection(where.host, where.port, timeout=self._timeout)

    # ---- address -------------------------------------------------------------------------

    def _find(self) -> Address:
        """The management address of the node that sends the cluster map, or else of another."""
        topology = Topology(self._source)
        nodes = BlockingNodes(topology, self._access, timeout=self._timeout)
        try:
            answered = nodes.run(renew_map(topology))
        finally:
            nodes.close()
        found = topology.map
        for node in (found.sender, *found.nodes):
            if node is not None and node.management is not None:
                return node.management
        name = "mgmtSSL" if self._source.tls else "mgmt"
        raise ConfigError(f"{answered} names no management port ({name}) in its cluster map")


def _part(name: str) -> str:
    return quote(name, safe="")


def _reason(status: int, body: bytes) -> str:
    """The reason of a refusal; its body is text, or a JSON object of errors by field."""
    if status == http.client.UNAUTHORIZED:
        return "authentication failed (HTTP 401); check user and password"
    if status == http.client.FORBIDDEN:
        return "access denied (HTTP 403); the user needs the role Manage Scopes"
    text = body[:_SHOWN].decode(errors="replace").strip()
    try:
        found: Any = json.loads(body)
    except (ValueError, RecursionError):
        found = None
    errors = found.get("errors") if isinstance(found, dict) else found
    if isinstance(errors, dict):
        text = "; ".join(f"{name}: {problem}" for name, problem in errors.items())[:_SHOWN]
    elif isinstance(errors, str):
        text = errors[:_SHOWN]
    return f"{text or 'no reason given'} (HTTP {status})"
