"""Documents for the dashboard: one document with its versions, and counts by collection."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Final

from ...consumer.topology.cluster_map import vbucket_of
from ...dashboard.figure_types import CollectionFigures, DocumentDetail, VersionFigures
from ...errors import Status, StoreError, StoreRefusal
from ...model import Datatype, VBucketState
from ...producer.server_views import BucketView
from ...store import Bucket, Collection, KeyRange, document_key
from ...wire.canonical import CanonicalChange
from ...wire.limits import MAX_KEY
from ...wire.values import unwrap

#: Versions of a document that are shown, and characters of each value and attribute.
_MOST_VERSIONS: Final = 20
_MOST_CHARACTERS: Final = 16 * 1024
#: Collections that are shown and counted.
_MOST_COLLECTIONS: Final = 50
#: Seconds of processor time per sample for counting, and entries that are read in one step.
_COUNT_SECONDS: Final = 0.02
_COUNT_STEP: Final = 512


def document_detail(bucket: Bucket, collection: str, key: str) -> DocumentDetail:
    """A document and its older versions, also of a deleted one. ``collection`` is SCOPE.NAME."""
    scope_name, _, name = (collection or "_default._default").partition(".")
    manifest = bucket.manifest
    scopes = {scope.id: scope.name for scope in manifest.scopes}
    found = next(
        (
            one
            for one in manifest.collections
            if (scopes.get(one.scope), one.name) == (scope_name, name)
        ),
        None,
    )
    if found is None:
        raise StoreRefusal(Status.UNKNOWN_COLLECTION, f"there is no collection {collection}")
    raw = key.encode()
    if not 0 < len(raw) <= MAX_KEY:
        raise StoreRefusal(Status.INVALID, f"a key has 1 to {MAX_KEY} bytes")
    vbucket = vbucket_of(raw, bucket.settings.vbuckets)
    versions = bucket.versions(vbucket, document_key(raw, found.id), _MOST_VERSIONS)
    return DocumentDetail(
        bucket=bucket.name,
        scope=scope_name,
        collection=name,
        key=key,
        vbucket=vbucket,
        versions=[_version(one) for one in versions],
    )


def _version(change: CanonicalChange) -> VersionFigures:
    try:
        xattrs, body = unwrap(change.value, Datatype(change.datatype))
    except ValueError:
        xattrs, body = {}, change.value
    is_mutation = change.op.value == "mutation"
    return VersionFigures(
        op=change.op.value,
        seqno=change.seqno,
        rev=change.rev,
        cas=f"{change.cas:x}",
        time=change.cas / 1e9,
        flags=change.flags,
        expiry=change.time if is_mutation else 0,
        xattrs={name: _text(value) or "" for name, value in xattrs.items()},
        value=_text(body),
        size=len(body),
    )


def _text(value: bytes) -> str | None:
    try:
        return value.decode()[:_MOST_CHARACTERS]
    except UnicodeDecodeError:
        return None


class CollectionCounts:
    """Counts documents by collection, a little with every sample.

    The store counts documents by vbucket only. A bucket that has nothing but the default collection
    needs no counting. Otherwise a vbucket's collection is counted again when its seqno has changed.
    """

    def __init__(self, bucket: Bucket) -> None:
        self.bucket = bucket
        #: By collection and vbucket: the seqno that was counted, and the number of documents.
        self._counted: dict[tuple[int, int], tuple[int, int]] = {}
        self._work: Iterator[None] | None = None
        self._complete = False

    @property
    def collection_count(self) -> int:
        return len(self.bucket.manifest.collections)

    def figures(self, view: BucketView) -> list[CollectionFigures]:
        manifest = self.bucket.manifest
        scopes = {scope.id: scope.name for scope in manifest.scopes}
        shown = manifest.collections[:_MOST_COLLECTIONS]
        if len(manifest.collections) == 1:
            active = (one.items for one in view.vbuckets if one.state is VBucketState.ACTIVE)
            totals = {shown[0].id: sum(active)}
        else:
            totals = self._totals(shown)
        return [
            CollectionFigures(scope=scopes[one.scope], name=one.name, items=totals.get(one.id))
            for one in shown
        ]

    def _totals(self, shown: tuple[Collection, ...]) -> dict[int, int]:
        ids = [one.id for one in shown]
        began = time.thread_time()
        try:
            work = self._work or self._count(ids)
            for _ in work:
                if time.thread_time() - began > _COUNT_SECONDS:
                    self._work = work
                    break
            else:
                self._work, self._complete = None, True
        except StoreError:
            self._work = None  # the bucket is closing, or damaged, which is reported elsewhere
        if not self._complete:
            return {}
        known = set(ids)
        self._counted = {pair: had for pair, had in self._counted.items() if pair[0] in known}
        totals = dict.fromkeys(ids, 0)
        for (collection, _), (_, items) in self._counted.items():
            totals[collection] += items
        return totals

    def _count(self, collections: list[int]) -> Iterator[None]:
        """Counts what has changed, and stops at times."""
        for vbucket in range(self.bucket.settings.vbuckets):
            if self.bucket.state(vbucket) is not VBucketState.ACTIVE:
                for collection in collections:
                    self._counted.pop((collection, vbucket), None)
                continue
            seqnos = self.bucket.collection_seqnos(vbucket)
            for collection in collections:
                seqno, pair = seqnos.get(collection, 0), (collection, vbucket)
                if seqno != self._counted.get(pair, (0, 0))[0]:
                    items = 0
                    scan = self.bucket.open_scan(vbucket, collection, KeyRange())
                    try:
                        more = True
                        while more:
                            found, more = scan.read(_COUNT_STEP)
                            items += len(found)
                            yield
                    finally:
                        scan.close()
                    self._counted[pair] = seqno, items
            yield
