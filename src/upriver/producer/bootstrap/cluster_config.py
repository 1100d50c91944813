"""Cluster map: the JSON document by which clients find nodes and vbuckets.

It fits the parsers of existing clients, which differ in what they require:

- The C++ SDKs and gocbcore take ``nodesExt``; gocbcore and the Java clients also count ``nodes``,
  which must have the same order as ``nodesExt`` and ``serverList``.
- The Java clients, java-dcp-client among them, refuse a node without a management port, and two
  nodes with the same host and management port; the C++ SDKs wait for that port to answer before
  they are ready. So it is listed exactly if HTTP is served there.
- java-dcp-client looks for the texts ``"rev":`` and ``"nodeLocator"`` before it parses.
- All clients refuse a map without vbuckets, and one whose number of vbuckets changed.

This module knows no sockets and no store: it gets values and returns bytes.
"""

from __future__ import annotations

import functools
import hashlib
import json
from dataclasses import dataclass
from typing import Any, Final

from ...errors import ConfigError

#: Capabilities of every bucket, by Couchbase's names. Clients do not use what is not listed.
CAPABILITIES: Final = (
    "collections",
    "cccp",
    "xattr",
    "dcp",
    "cbhello",
    "touch",
    "nodesExt",
    "dcp.IgnorePurgedTombstones",
    "durableWrite",
    "preserveExpiry",
    "tombstonedUserXAttrs",
    "subdoc.DocumentMacroSupport",
    "subdoc.ReplaceBodyWithXattr",
    "subdoc.ReplicaRead",
    "subdoc.ReviveDocument",
    "rangeScan",
)

#: In a row of the vbucket map: no node has this copy.
_NOBODY: Final = -1
#: Placeholder that clients replace by the address at which they reached the server.
_HOST_USED: Final = "$HOST"
_UUID_DIGITS: Final = 32


@dataclass(frozen=True, slots=True)
class NodeAddress:
    """Host name and ports of a node. A service without a port is not listed.

    An empty hostname stands for the address at which the client reached the server. That is the
    only correct address of a node that listens on all interfaces. Only ``this_node`` can have it.
    """

    hostname: str
    kv_port: int | None
    tls_port: int | None = None
    http_port: int | None = None
    https_port: int | None = None
    #: What identifies the node: its name in the cluster, or its store's uuid.
    uuid: str = ""

    def __post_init__(self) -> None:
        if self.kv_port is None and self.tls_port is None:
            raise ConfigError(f"the node {self.hostname} has no port for data")

    def address(self, port: int | None) -> str:
        """Returns HOST:PORT. Couchbase writes 0 for a port that is not served."""
        host = self.hostname or _HOST_USED
        return f"[{host}]:{port or 0}" if ":" in host else f"{host}:{port or 0}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterConfig:
    """One version of the cluster map: which node has which copy of each vbucket."""

    rev: int
    epoch: int = 1
    nodes: tuple[NodeAddress, ...]
    #: Index of the node that sends this map.
    this_node: int = 0
    #: For each vbucket the node of its active copy and the nodes of its replicas, -1 for none. Each
    #: bucket may have other rows; without a bucket they are empty.
    rows: tuple[tuple[int, ...], ...] = ()
    #: The rows to which vbuckets are moving, with those of all other vbuckets; empty while none is.
    forward: tuple[tuple[int, ...], ...] = ()
    replicas: int = 0
    #: Name and uuid of the cluster. Clients label their metrics with them.
    cluster_name: str = ""
    cluster_uuid: str = ""

    def __post_init__(self) -> None:
        if self.rev < 1 or self.epoch < 1:
            raise ConfigError("a cluster map has a positive rev and epoch: clients ignore others")
        if not 0 <= self.this_node < len(self.nodes):
            raise ConfigError(f"a cluster map has no node {self.this_node}")
        if len({(node.hostname, node.kv_port, node.tls_port) for node in self.nodes}) != len(
            self.nodes
        ):
            raise ConfigError("a node is twice in a cluster map")
        if any(not node.hostname for node in self.nodes if node is not self.nodes[self.this_node]):
            raise ConfigError("a node other than the serving one has no hostname")
        copies = 1 + self.replicas
        if self.forward and len(self.forward) != len(self.rows):
            raise ConfigError(f"{len(self.forward)} of {len(self.rows)} vbuckets have a next row")
        for row in {*self.rows, *self.forward}:  # there are few different rows
            if len(row) != copies:
                raise ConfigError(f"a vbucket has the copies {row}, which are not {copies}")
            if not _NOBODY <= min(row) <= max(row) < len(self.nodes):
                raise ConfigError(f"a vbucket has the copies {row}, not all on nodes of the map")


#: Encoding a map of 1024 vbuckets takes 0.2 ms, and every client requests it every few seconds. The
#: cache holds documents of 5 to 10 KiB, about one for each bucket in use.
@functools.lru_cache(maxsize=64)
def bucket_json(
    cluster_map: ClusterConfig,
    name: str,
    *,
    uuid: str | None = None,
    manifest_uid: int = 0,
    capabilities: tuple[str, ...] = CAPABILITIES,
) -> bytes:
    """Returns the document for a connection that has selected a bucket.

    ``uuid`` distinguishes a bucket from an earlier one of the same name. It defaults to the name.
    """
    if not cluster_map.rows:
        raise ConfigError(f"the bucket {name} has no vbuckets")
    return _dump(
        {
            **_version_and_nodes(cluster_map),
            "name": name,
            "uuid": uuid or hashlib.sha256(name.encode()).hexdigest()[:_UUID_DIGITS],
            "nodeLocator": "vbucket",
            # Without this member the Java clients assume a bucket that is kept in memory only.
            "bucketType": "membase",
            "collectionsManifestUid": f"{manifest_uid:x}",
            "bucketCapabilities": capabilities,
            "nodes": [
                {
                    # Couchbase puts the management port here; it may not be served.
                    "hostname": node.address(
                        node.http_port or node.https_port or node.kv_port or node.tls_port
                    ),
                    "ports": {"direct": node.kv_port or 0},
                    **_this_node(cluster_map, index),
                }
                for index, node in enumerate(cluster_map.nodes)
            ],
            "vBucketServerMap": {
                "hashAlgorithm": "CRC",
                "numReplicas": cluster_map.replicas,
                "serverList": [node.address(node.kv_port) for node in cluster_map.nodes],
                "vBucketMap": cluster_map.rows,
                **({"vBucketMapForward": cluster_map.forward} if cluster_map.forward else {}),
            },
        }
    )


def cluster_json(cluster_map: ClusterConfig) -> bytes:
    """Returns the document for a connection without a bucket: the nodes only."""
    return _dump(_version_and_nodes(cluster_map))


def _version_and_nodes(cluster_map: ClusterConfig) -> dict[str, Any]:
    return {
        "rev": cluster_map.rev,
        "revEpoch": cluster_map.epoch,
        **({"clusterName": cluster_map.cluster_name} if cluster_map.cluster_name else {}),
        **({"clusterUUID": cluster_map.cluster_uuid} if cluster_map.cluster_uuid else {}),
        "nodesExt": [
            {
                "services": _services(node),
                **_this_node(cluster_map, index),
                **({"hostname": node.hostname} if node.hostname else {}),
                **({"nodeUUID": node.uuid} if node.uuid else {}),
            }
            for index, node in enumerate(cluster_map.nodes)
        ],
    }


def _services(node: NodeAddress) -> dict[str, int]:
    ports = {
        "kv": node.kv_port,
        "kvSSL": node.tls_port,
        "mgmt": node.http_port,
        "mgmtSSL": node.https_port,
    }
    return {service: port for service, port in ports.items() if port is not None}


def _this_node(cluster_map: ClusterConfig, index: int) -> dict[str, bool]:
    return {"thisNode": True} if index == cluster_map.this_node else {}


def _dump(document: dict[str, Any]) -> bytes:
    return json.dumps(document, separators=(",", ":")).encode()
