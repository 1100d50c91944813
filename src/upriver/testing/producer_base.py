"""Base class of the producers for tests: writes, deletions and failovers done by the test.

They act on the bucket directly, without a connection.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

from ..consumer.topology.cluster_map import vbucket_of
from ..errors import ConfigError
from ..model import VBucketState
from ..store import Applied, Bucket, BucketSettings, DeleteDocument, SetDocument, document_key


def settings_for_tests(vbuckets: int) -> BucketSettings:
    """Bucket settings without background maintenance: a test itself purges tombstones."""
    return BucketSettings(vbuckets=vbuckets, maintenance_interval=0, purge_age=0)


def _parts(name: str) -> tuple[str, str]:
    scope, _, collection = name.partition(".")
    if not scope or not collection or "." in collection:
        raise ConfigError(f"{name!r} is no collection; give SCOPE.NAME")
    return scope, collection


class BucketScript(ABC):
    """Methods of every producer for tests that change its bucket."""

    @property
    @abstractmethod
    def bucket(self) -> Bucket:
        """The bucket itself, to read and write without a connection."""

    # ---- documents -----------------------------------------------------------------------

    def write(
        self,
        key: bytes,
        value: bytes,
        vbucket: int | None = None,
        collection: int | str = 0,
        expiry: int = 0,
    ) -> Applied:
        """Writes a document, by default into the vbucket that clients would use.

        ``collection`` is a name, ``SCOPE.NAME``, or the id that `create_collection` returned.
        ``expiry`` is in seconds from now up to 30 days, above that a Unix time. The result has the
        seqno.
        """
        at, name = self._place(key, vbucket, collection)
        return self.bucket.write(SetDocument(at, name, value, expiry=expiry))

    def delete(self, key: bytes, vbucket: int | None = None, collection: int | str = 0) -> Applied:
        """Deletes a document, which leaves a tombstone; the result has the seqno."""
        at, name = self._place(key, vbucket, collection)
        return self.bucket.write(DeleteDocument(at, name))

    def _place(self, key: bytes, vbucket: int | None, collection: int | str) -> tuple[int, bytes]:
        if vbucket is None:
            vbucket = vbucket_of(key, self.bucket.settings.vbuckets)
        number = self._collection(collection) if isinstance(collection, str) else collection
        return vbucket, document_key(key, number)

    # ---- collections ---------------------------------------------------------------------

    def create_collection(self, name: str, *, max_ttl: int | None = None) -> int:
        """Creates the collection ``SCOPE.NAME``, and its scope if there is none; returns its id.

        ``max_ttl`` is the longest time that its documents live, in seconds.
        """
        scope_name, collection = _parts(name)
        bucket = self.bucket
        scopes = {scope.name: scope.id for scope in bucket.manifest.scopes}
        if scope_name not in scopes:
            scopes[scope_name] = bucket.create_scope(scope_name).id
        return bucket.create_collection(scopes[scope_name], collection, max_ttl=max_ttl).id

    def drop_collection(self, name: str) -> None:
        """Drops the collection ``SCOPE.NAME`` with its documents."""
        self.bucket.drop_collection(self._collection(name))

    def _collection(self, name: str) -> int:
        scope_name, wanted = _parts(name)
        manifest = self.bucket.manifest
        scopes = {scope.id: scope.name for scope in manifest.scopes}
        for one in manifest.collections:
            if (scopes[one.scope], one.name) == (scope_name, wanted):
                return one.id
        raise ConfigError(f"there is no collection {name!r}; make it with create_collection")

    # ---- faults --------------------------------------------------------------------------

    def fail_over(self, vbucket: int, seqno: int) -> int:
        """Simulates a failover to a replica that has changes up to ``seqno``; returns its seqno.

        Later changes are lost, a new branch begins, and streams end with "state changed".
        """
        return self.bucket.rollback(vbucket, seqno)

    def set_state(self, vbucket: int, state: VBucketState) -> None:
        """Makes a vbucket active, replica, pending or dead; its streams end."""
        self.bucket.set_state(vbucket, state)

    def purge(self) -> None:
        """Purges the tombstones of every vbucket, so that readers behind them must roll back to 0.

        A tombstone that is the last change of its vbucket stays, as on every server. With bucket
        settings of your own, only tombstones older than ``purge_age`` are purged.
        """
        self.bucket.compact()
