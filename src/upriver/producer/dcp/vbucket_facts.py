"""What a bucket knows of a vbucket when a stream of it is requested."""

from __future__ import annotations

from ...session.collection_filter import KnownCollections
from ...session.stream_request_checks import VBucketFacts
from ...store import Bucket


def vbucket_facts(bucket: Bucket, vbucket: int) -> VBucketFacts | None:
    if vbucket >= bucket.settings.vbuckets:
        return None
    stats = bucket.vbucket_stats(vbucket)
    manifest = bucket.manifest
    scopes: dict[int, set[int]] = {scope.id: set() for scope in manifest.scopes}
    for collection in manifest.collections:
        scopes.setdefault(collection.scope, set()).add(collection.id)
    return VBucketFacts(
        state=stats.state,
        high_seqno=stats.high_seqno,
        persisted_seqno=stats.persisted_seqno,
        purge_seqno=stats.purge_seqno,
        failover_log=bucket.failover_log(vbucket),
        collections=KnownCollections(manifest.uid, dict(scopes)),
        collection_seqnos=bucket.collection_seqnos(vbucket),
    )
