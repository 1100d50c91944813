"""JSON documents of the management port about the server, its nodes and its buckets.

Each has the members that parsers of existing clients read. The C++ SDKs and those built on them
(Python, Node, PHP, Ruby) raise an exception if a bucket has no ``quota``, ``controllers``,
``evictionPolicy`` or ``conflictResolutionType``, or a node no ``status``, ``version``, ``services``
or ``ports``. go-dcp reads ``implementationVersion``, ``bucketType`` and ``storageBackend``. All
documents are made from the terse map, so that both always agree.

This module knows no sockets: it gets values and returns objects to encode as JSON.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from ...store import Bucket
from .users import ALL_BUCKETS, Role, User

_MIB: Final = 1024 * 1024

#: Couchbase's names of the roles.
_ROLES: Final = {
    Role.READ_STREAM: "data_dcp_reader",
    Role.READ_DATA: "data_reader",
    Role.WRITE_DATA: "data_writer",
    Role.ADMINISTER: "bucket_admin",
}


def whoami(name: str | None, user: User | None) -> dict[str, Any]:
    """Returns the name and roles of a client; without a ``user`` it has all roles."""
    if user is None:
        domain = "local" if name else "anonymous"
        return {"roles": [{"role": "admin"}], "id": name or "", "domain": domain}
    roles = [
        {"role": "admin"}
        if grant.role is Role.ADMINISTER and grant.bucket == ALL_BUCKETS
        else {"role": _ROLES[grant.role], "bucket_name": grant.bucket}
        for grant in sorted(user.grants, key=lambda grant: (grant.bucket, grant.role))
    ]
    return {"roles": roles, "id": user.name, "domain": "local"}


def pools(version: str, uuid: str, *, administers: bool) -> dict[str, Any]:
    """Returns the document of ``/pools``; ``uuid`` is that of the cluster."""
    return {
        "isAdminCreds": administers,
        "isROAdminCreds": False,
        "isEnterprise": True,
        "pools": [
            {
                "name": "default",
                "uri": f"/pools/default?uuid={uuid}",
                "streamingUri": f"/poolsStreaming/default?uuid={uuid}",
            }
        ],
        "uuid": uuid,
        "implementationVersion": version,
        "componentsVersion": {"upriver": version},
    }


def pool(
    version: str, cluster: str, terse: Mapping[str, Any], buckets: Iterable[str]
) -> dict[str, Any]:
    """Returns the document of ``/pools/default``, from the map without a bucket."""
    return {
        "name": "default",
        "clusterName": cluster,
        "nodes": _nodes(terse, version),
        "buckets": {
            "uri": "/pools/default/buckets",
            "terseBucketsBase": "/pools/default/b/",
            "terseStreamingBucketsBase": "/pools/default/bs/",
        },
        "bucketNames": [{"bucketName": name} for name in buckets],
        "balanced": True,
        "rebalanceStatus": "none",
        "nodeStatusesUri": "/nodeStatuses",
        "serverGroupsUri": "/pools/default/serverGroups",
    }


def node_services(terse: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the document of ``/pools/default/nodeServices``."""
    return {name: terse[name] for name in ("rev", "revEpoch", "nodesExt") if name in terse}


def bucket_document(
    bucket: Bucket, terse: Mapping[str, Any], version: str, *, flush: bool
) -> dict[str, Any]:
    """Returns the document of a bucket, from its terse map; ``flush``: whether flush is enabled."""
    base = f"/pools/default/buckets/{bucket.name}"
    settings, stats = bucket.settings, bucket.stats()
    memory = settings.read_memory + settings.write_memory
    copied = (
        "name",
        "uuid",
        "nodeLocator",
        "bucketType",
        "bucketCapabilities",
        "collectionsManifestUid",
        "vBucketServerMap",
    )
    controllers = {"flush": f"{base}/controller/doFlush"} if flush else {}
    return {
        **{name: terse[name] for name in copied if name in terse},
        "bucketCapabilitiesVer": "",
        "uri": f"{base}?bucket_uuid={bucket.uuid}",
        "streamingUri": f"/pools/default/bucketsStreaming/{bucket.name}?bucket_uuid={bucket.uuid}",
        "numVBuckets": settings.vbuckets,
        # Couchbase's name of a storage engine that keeps no history of versions.
        "storageBackend": "couchstore",
        "authType": "sasl",
        "autoCompactionSettings": False,
        "replicaIndex": False,
        "replicaNumber": terse["vBucketServerMap"]["numReplicas"],
        "threadsNumber": 3,
        "rank": 0,
        "quota": {"ram": memory, "rawRAM": memory},
        "basicStats": {
            "quotaPercentUsed": 0,
            "opsPerSec": 0,
            "diskFetches": 0,
            "itemCount": stats.items,
            "diskUsed": stats.disk_bytes,
            "dataUsed": stats.disk_bytes,
            "memUsed": memory,
            "vbActiveNumNonResident": 0,
        },
        "controllers": controllers,
        "evictionPolicy": "fullEviction",
        "durabilityMinLevel": "none",
        "conflictResolutionType": "seqno",
        "compressionMode": settings.compression_mode,
        "maxTTL": 0,
        "nodes": _nodes(terse, version),
        "stats": {"uri": f"{base}/stats"},
        "ddocs": {"uri": f"{base}/ddocs"},
        "localRandomKeyUri": f"{base}/localRandomKey",
    }


def _nodes(terse: Mapping[str, Any], version: str) -> list[dict[str, Any]]:
    """Returns the detailed nodes of a map."""
    nodes = []
    for node in terse["nodesExt"]:
        services, host = node["services"], node.get("hostname", "$HOST")
        if ":" in host:
            host = f"[{host}]"
        management = services.get("mgmt") or services.get("mgmtSSL") or 0
        direct, tls = services.get("kv", 0), services.get("kvSSL")
        nodes.append(
            {
                "hostname": f"{host}:{management}",
                "otpNode": f"n_0@{host}:{direct or tls}",
                **({"nodeUUID": node["nodeUUID"]} if "nodeUUID" in node else {}),
                "ports": {"direct": direct, **({"httpsMgmt": services["mgmtSSL"]} if tls else {})},
                "services": ["kv"],
                "status": "healthy",
                "clusterMembership": "active",
                "recoveryType": "none",
                "version": version,
                "os": "linux",
                "replication": 1,
                # By this member clients decide which features of a release they may use.
                "clusterCompatibility": _compatibility(version),
                **({"thisNode": True} if node.get("thisNode") else {}),
            }
        )
    return nodes


def _compatibility(version: str) -> int:
    major, minor = version.split(".")[:2]
    return int(major) << 16 | int(minor)
