"""Which node has which vbucket: the cluster map that servers hand out, read and checked.

A map names nodes in three places, and numbers them in a fourth:

    nodesExt                      every node of the cluster, with the ports of its services
    nodes                         the first of them: those with this bucket
    vBucketServerMap.serverList   those with this bucket that have data, as HOST:PORT
    vBucketServerMap.vBucketMap   for each vbucket, places in the server list: active, replicas

So the server list says who counts, and the others say how to reach them: over TLS, at an
address for outsiders, or at the address by which the sender of the map was reached. This module
knows no sockets: it gets text and returns values.
"""

from __future__ import annotations

import json
import reprlib
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Final, Literal, Self, TypeAlias

from ..errors import ConfigError, RemoteProtocolError
from .source import MAX_PORT, Address

__all__ = ["ClusterMap", "Network", "Node", "vbucket_of"]

#: Which addresses of the nodes to use. "auto": those for outsiders if we came by one of them.
Network: TypeAlias = Literal["auto", "default", "external"]

#: Characters of a map. One of 1024 vbuckets, three replicas and a hundred nodes has 0.1 million.
_MAX_TEXT: Final = 8 * 1024 * 1024
#: The vbucket of a packet has 16 bits.
_MAX_VBUCKETS: Final = 65_536
#: Ten times the largest clusters that are heard of.
_MAX_NODES: Final = 4096
#: An active copy and replicas, of which Couchbase has three at most.
_MAX_COPIES: Final = 16
#: Hosts have up to 255 characters, buckets up to 100, ids 32.
_MAX_NAME: Final = 300

#: In a row: no node has this copy.
_NOBODY: Final = -1
#: In place of a host: the one by which the sender of the map was reached.
_HOST_USED: Final = "$HOST"


def vbucket_of(key: bytes, count: int) -> int:
    """The vbucket of a key, as every client of Couchbase computes it."""
    return ((zlib.crc32(key) >> 16) & 0x7FFF) % count


@dataclass(frozen=True, slots=True)
class Node:
    """A node that has data of the bucket, and where it serves it."""

    #: Its place in the map, which is only good for this version of it.
    index: int
    address: Address


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterMap:
    """Which node has which copy of each vbucket of a bucket, in one version."""

    rev: int
    #: Rises when revisions start anew; 0 from servers that do not have it.
    epoch: int
    bucket: str
    #: Tells a bucket from an earlier one of its name.
    bucket_uuid: str
    nodes: tuple[Node, ...]
    #: For each vbucket the nodes of its active copy and of its replicas, -1 for none.
    vbuckets: tuple[tuple[int, ...], ...]
    #: The node that handed out the map, if it is one of the nodes.
    sender: Node | None = None

    @classmethod
    def parse(
        cls, text: bytes | str, *, reached: Address, tls: bool, network: Network = "auto"
    ) -> Self:
        """Reads what the node that was reached at an address answered.

        `RemoteProtocolError` says what is wrong with it; `ConfigError` that a node cannot be
        reached the way that was asked for.
        """
        if len(text) > _MAX_TEXT:
            raise _nonsense(f"it is longer than {_MAX_TEXT}")
        try:
            document = json.loads(text)
        except (ValueError, RecursionError) as problem:
            raise _nonsense(f"it is no JSON: {problem}") from None
        vbuckets = _dict(_dict(document, "it").get("vBucketServerMap"), "its vBucketServerMap")
        servers = [_text(name, "a server") for name in _list(vbuckets, "serverList", _MAX_NODES)]
        nodes, sender = _nodes(document, servers, reached, tls=tls, network=network)
        return cls(
            rev=_number(document.get("rev", 0), "rev"),
            epoch=_number(document.get("revEpoch", 0), "revEpoch"),
            bucket=_text(document.get("name", ""), "name"),
            bucket_uuid=_text(document.get("uuid", ""), "uuid"),
            nodes=nodes,
            vbuckets=tuple(_rows(_list(vbuckets, "vBucketMap", _MAX_VBUCKETS), len(nodes))),
            sender=sender,
        )

    def owner(self, vbucket: int) -> Node | None:
        """The node of the active copy; None while there is none."""
        index = self.vbuckets[vbucket][0]
        return None if index == _NOBODY else self.nodes[index]

    def copies(self, vbucket: int) -> tuple[Node, ...]:
        """The nodes that have the vbucket, its active one first if there is one."""
        return tuple(self.nodes[index] for index in self.vbuckets[vbucket] if index != _NOBODY)

    def is_newer_than(self, other: ClusterMap) -> bool:
        return (self.epoch, self.rev) > (other.epoch, other.rev)


# ---- the nodes ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Listed:
    """A node of the cluster as ``nodesExt`` has it; a port is 0 where nothing is served."""

    #: Empty for the one by which the sender of the map was reached.
    host: str
    kv: int
    kv_tls: int
    external: _Listed | None = None
    is_sender: bool = False

    def is_at(self, address: Address, *, whole: bool) -> bool:
        """Whether this is its address, or at least the host of it."""
        same_port = address.port in (self.kv, self.kv_tls)
        return self.host == address.host and (same_port or not whole)


def _nodes(
    document: dict[str, Any], servers: list[str], reached: Address, *, tls: bool, network: Network
) -> tuple[tuple[Node, ...], Node | None]:
    """The nodes of the server list with their addresses, and which of them sent the map."""
    listed = [_listed(entry) for entry in _list(document, "nodesExt", _MAX_NODES, optional=True)]
    with_data = [node for node in listed if node.kv or node.kv_tls]
    if len(servers) == 1 and len(with_data) <= 1:
        # The address by which it was reached is better than any that it knows itself by.
        only = Node(0, reached)
        return (only,), only
    with_bucket = len(_list(document, "nodes", _MAX_NODES, optional=True)) or len(listed)
    candidates = [node for node in listed[:with_bucket] if node in with_data]
    external = network == "external" or (network == "auto" and _is_external(reached, listed))
    nodes = []
    sender = None
    for index, server in enumerate(servers):
        found = _find(server, index, len(servers), candidates)
        if found is None:
            address = _plain_address(server, reached, tls=tls, external=external)
        else:
            address = _address(found, reached, tls=tls, external=external)
        nodes.append(Node(index, address))
        if address == reached or (found is not None and found.is_sender):
            sender = nodes[-1]
    return tuple(nodes), sender


def _find(server: str, index: int, count: int, candidates: list[_Listed]) -> _Listed | None:
    """The listed node that a name of the server list means.

    Both are in the same order, but a node may be listed that has no place in the server list
    yet, or have no name where it is listed. So names go first.
    """
    for node in candidates:
        host = node.host or _HOST_USED
        if server in (f"{host}:{node.kv}", f"[{host}]:{node.kv}"):
            return node
    return candidates[index] if count <= len(candidates) else None


def _address(node: _Listed, reached: Address, *, tls: bool, external: bool) -> Address:
    if external:
        if node.external is None:
            raise ConfigError(f"the node {node.host or reached.host} has no external address")
        node = node.external
    host = node.host or reached.host
    port = node.kv_tls if tls else node.kv
    if not port:
        kind, scheme = ("TLS", "couchbase") if tls else ("plain", "couchbases")
        raise ConfigError(f"the node {host} has no {kind} port for data; try {scheme}://")
    return Address(host, port)


def _plain_address(server: str, reached: Address, *, tls: bool, external: bool) -> Address:
    """Where a node is that nothing but the server list tells of."""
    if tls or external:
        kind = "TLS port" if tls else "external address"
        raise ConfigError(f"the cluster map tells no {kind} of the node {server}")
    try:
        address = Address.parse(server)
    except ValueError as problem:
        raise _nonsense(str(problem)) from None
    return replace(address, host=reached.host) if server.startswith(_HOST_USED) else address


def _is_external(reached: Address, listed: list[_Listed]) -> bool:
    """Whether we came by an address for outsiders: as a whole, or at least by its host."""
    outside = [node.external for node in listed if node.external is not None]
    for whole in (True, False):
        for nodes, answer in ((listed, False), (outside, True)):
            if any(node.is_at(reached, whole=whole) for node in nodes):
                return answer
    return False


def _listed(entry: Any) -> _Listed:
    entry = _dict(entry, "a node")
    host = _host(entry)
    services = _dict(entry.get("services", {}), "a node's services")
    alternates = _dict(entry.get("alternateAddresses", {}), "a node's alternateAddresses")
    external = None
    if "external" in alternates:
        outside = _dict(alternates["external"], "a node's external address")
        # without ports of its own it has the same ones
        ports = _dict(outside.get("ports", services), "a node's external ports")
        external = _Listed(_host(outside) or host, _port(ports, "kv"), _port(ports, "kvSSL"))
    return _Listed(
        host,
        _port(services, "kv"),
        _port(services, "kvSSL"),
        external,
        entry.get("thisNode") is True,
    )


def _host(entry: dict[str, Any]) -> str:
    name = _text(entry.get("hostname", ""), "a hostname")
    if name in ("", _HOST_USED):
        return ""
    try:
        return Address.parse(f"[{name}]" if ":" in name else name, default_port=1).host
    except ValueError as problem:
        raise _nonsense(str(problem)) from None


def _port(services: dict[str, Any], name: str) -> int:
    port = _number(services.get(name, 0), f"the port {name}")
    if port > MAX_PORT:
        raise _nonsense(f"{port} is no port")
    return port


# ---- the vbuckets, and values of every kind ----------------------------------------------


def _rows(rows: list[Any], nodes: int) -> Iterator[tuple[int, ...]]:
    if not rows:
        raise _nonsense("it has no vbuckets")
    for number, row in enumerate(rows):
        if type(row) is not list or not 1 <= len(row) <= _MAX_COPIES:
            raise _nonsense(f"the copies of vbucket {number} are no list of 1 to {_MAX_COPIES}")
        for index in row:
            if type(index) is not int or not _NOBODY <= index < nodes:
                raise _nonsense(
                    f"vbucket {number} is on the node {reprlib.repr(index)}, of {nodes}"
                )
        yield tuple(row)


def _dict(value: Any, what: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise _nonsense(f"{what} is no object")
    return value


def _list(holder: dict[str, Any], name: str, most: int, *, optional: bool = False) -> list[Any]:
    value = holder.get(name, [] if optional else None)
    if not isinstance(value, list):
        raise _nonsense(f"its {name} is no list")
    if len(value) > most:
        raise _nonsense(f"its {name} has {len(value)} entries, which is more than {most}")
    return value


def _number(value: Any, what: str) -> int:
    if type(value) is not int or value < 0:
        raise _nonsense(f"{what} is {reprlib.repr(value)}, and no number")
    return value


def _text(value: Any, what: str) -> str:
    if not isinstance(value, str) or len(value) > _MAX_NAME:
        raise _nonsense(f"{what} is no text of up to {_MAX_NAME} characters")
    return value


def _nonsense(problem: str) -> RemoteProtocolError:
    return RemoteProtocolError(f"the cluster map cannot be understood: {problem}")
