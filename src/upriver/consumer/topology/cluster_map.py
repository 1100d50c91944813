"""Cluster map: parses and validates the JSON that says which node has which vbucket.

A map names nodes in three places, and refers to them by index in a fourth:

    nodesExt                      every node of the cluster, with the ports of its services
    nodes                         the nodes with this bucket, which come first in nodesExt
    vBucketServerMap.serverList   the nodes with data of this bucket, as HOST:PORT
    vBucketServerMap.vBucketMap   for each vbucket, indexes into serverList: active, replicas

So ``serverList`` says which nodes to use. The other lists say how to reach them: over TLS, at an
external address, or at the address by which the sender of the map was reached. This module does no
I/O: it gets text and returns values.
"""

from __future__ import annotations

import json
import reprlib
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Final, Literal, Self, TypeAlias

from ...errors import ConfigError, RemoteProtocolError
from ..transport.connection_string import MAX_PORT, Address

#: Which addresses of the nodes to use. "auto": the external ones if the client reached the sender
#: of the map by an external address, else the default ones.
Network: TypeAlias = Literal["auto", "default", "external"]

#: Most characters of a map. A map of 1024 vbuckets, 3 replicas and 100 nodes has 0.1 million.
_MAX_TEXT: Final = 8 * 1024 * 1024
#: The vbucket field of a packet has 16 bits.
_MAX_VBUCKETS: Final = 65_536
#: About ten times the largest known clusters.
_MAX_NODES: Final = 4096
#: Most copies of a vbucket: the active one and its replicas. Couchbase has three replicas at most.
_MAX_COPIES: Final = 16
#: Most characters of a name: hosts have up to 255, buckets up to 100, ids 32.
_MAX_NAME: Final = 300

#: Index in ``vBucketMap`` that means that no node has this copy.
_NOBODY: Final = -1
#: Placeholder for the host by which the client reached the sender of the map.
_HOST_USED: Final = "$HOST"


def vbucket_of(key: bytes, count: int) -> int:
    """The vbucket of a key: CRC-32 as in every Couchbase client."""
    return ((zlib.crc32(key) >> 16) & 0x7FFF) % count


@dataclass(frozen=True, slots=True)
class Node:
    """A node with data of the bucket, and the address of its data port."""

    #: Index in ``serverList``; valid only for this version of the map.
    index: int
    address: Address
    #: The address of its management port; None if the map names none for this network.
    management: Address | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterMap:
    """One version of the cluster map of a bucket: the nodes of each vbucket's copies."""

    rev: int
    #: Increases when ``rev`` restarts; 0 from servers without epochs.
    epoch: int
    bucket: str
    #: Distinguishes a bucket from an earlier bucket of the same name.
    bucket_uuid: str
    nodes: tuple[Node, ...]
    #: For each vbucket the indexes of the nodes with its active copy and its replicas; -1 for none.
    vbuckets: tuple[tuple[int, ...], ...]
    #: The node that sent the map, if it is one of ``nodes``.
    sender: Node | None = None

    @classmethod
    def parse(
        cls, text: bytes | str, *, reached: Address, tls: bool, network: Network = "auto"
    ) -> Self:
        """Parses the map sent by the node at the address ``reached``.

        Raises `RemoteProtocolError` if the map is invalid, `ConfigError` if a node has no TLS port
        or no external address although one is needed.
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
        """The node with the active copy; None if no node has it."""
        index = self.vbuckets[vbucket][0]
        return None if index == _NOBODY else self.nodes[index]

    def copies(self, vbucket: int) -> tuple[Node, ...]:
        """The nodes with a copy of the vbucket; the active one, if any, comes first."""
        return tuple(self.nodes[index] for index in self.vbuckets[vbucket] if index != _NOBODY)

    def is_newer_than(self, other: ClusterMap) -> bool:
        return (self.epoch, self.rev) > (other.epoch, other.rev)


# ---- the nodes ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Listed:
    """An entry of ``nodesExt``; a port is 0 if the node does not offer that service."""

    #: Empty: the host by which the client reached the sender of the map.
    host: str
    kv: int
    kv_tls: int
    mgmt: int
    mgmt_tls: int
    external: _Listed | None = None
    is_sender: bool = False

    def is_at(self, address: Address, *, whole: bool) -> bool:
        """Whether the address is of this node: host and port if ``whole``, else the host only."""
        same_port = address.port in (self.kv, self.kv_tls)
        return self.host == address.host and (same_port or not whole)


def _nodes(
    document: dict[str, Any], servers: list[str], reached: Address, *, tls: bool, network: Network
) -> tuple[tuple[Node, ...], Node | None]:
    """The nodes of ``serverList`` with their addresses, and which of them sent the map."""
    listed = [_listed(entry) for entry in _list(document, "nodesExt", _MAX_NODES, optional=True)]
    with_data = [node for node in listed if node.kv or node.kv_tls]
    external = network == "external" or (network == "auto" and _is_external(reached, listed))
    if len(servers) == 1 and len(with_data) <= 1:
        # The address that the client used is known to work; the node's own name may not.
        entry = replace(with_data[0], host="") if with_data else None
        only = Node(0, reached, _management(entry, reached, tls=tls, external=external))
        return (only,), only
    with_bucket = len(_list(document, "nodes", _MAX_NODES, optional=True)) or len(listed)
    candidates = [node for node in listed[:with_bucket] if node in with_data]
    nodes = []
    sender = None
    for index, server in enumerate(servers):
        found = _find(server, index, len(servers), candidates)
        if found is None:
            address = _plain_address(server, reached, tls=tls, external=external)
        else:
            address = _address(found, reached, tls=tls, external=external)
        management = _management(found, reached, tls=tls, external=external)
        nodes.append(Node(index, address, management))
        if address == reached or (found is not None and found.is_sender):
            sender = nodes[-1]
    return tuple(nodes), sender


def _find(server: str, index: int, count: int, candidates: list[_Listed]) -> _Listed | None:
    """The entry of ``nodesExt`` that belongs to an entry of ``serverList``.

    Both lists have the same order. But ``nodesExt`` may contain a node that is not in
    ``serverList`` yet, or a node without a host name. So entries are matched by name first, and by
    index only if no name matches.
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
    """The address of a node that is in ``serverList`` only."""
    if tls or external:
        kind = "TLS port" if tls else "external address"
        raise ConfigError(f"the cluster map has no {kind} of the node {server}")
    try:
        address = Address.parse(server)
    except ValueError as problem:
        raise _nonsense(str(problem)) from None
    return replace(address, host=reached.host) if server.startswith(_HOST_USED) else address


def _management(
    found: _Listed | None, reached: Address, *, tls: bool, external: bool
) -> Address | None:
    """The address of a node's management port; None if the map names none for this network."""
    if found is not None and external:
        found = found.external
    port = 0 if found is None else found.mgmt_tls if tls else found.mgmt
    return Address(found.host or reached.host, port) if found is not None and port else None


def _is_external(reached: Address, listed: list[_Listed]) -> bool:
    """Whether the client used an external address: compares host and port, then hosts only."""
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
        # an external address without ports has the same ports as the node
        ports = _dict(outside.get("ports", services), "a node's external ports")
        external = _Listed(_host(outside) or host, *_ports(ports))
    return _Listed(host, *_ports(services), external, entry.get("thisNode") is True)


def _host(entry: dict[str, Any]) -> str:
    name = _text(entry.get("hostname", ""), "a hostname")
    if name in ("", _HOST_USED):
        return ""
    try:
        return Address.parse(f"[{name}]" if ":" in name else name, default_port=1).host
    except ValueError as problem:
        raise _nonsense(str(problem)) from None


def _ports(services: dict[str, Any]) -> tuple[int, int, int, int]:
    """The ports of `_Listed`, in its order."""
    kv, kv_tls, mgmt, mgmt_tls = (
        _port(services, name) for name in ("kv", "kvSSL", "mgmt", "mgmtSSL")
    )
    return kv, kv_tls, mgmt, mgmt_tls


def _port(services: dict[str, Any], name: str) -> int:
    port = _number(services.get(name, 0), f"the port {name}")
    if port > MAX_PORT:
        raise _nonsense(f"{port} is no port")
    return port


# ---- the vbuckets, and checks of JSON values ---------------------------------------------


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
