"""Base class of the producers for tests: writes, deletions and failovers done by the test.

They act on the bucket directly, without a connection.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

from ..consumer.topology.cluster_map import vbucket_of
from ..model import VBucketState
from ..store import Applied, Bucket, BucketSettings, DeleteDocument, SetDocument, document_key

__all__ = ["BucketScript", "settings_for_tests"]


def settings_for_tests(vbuckets: int) -> BucketSettings:
    """Bucket settings without background maintenance: a test itself purges tombstones."""
    return BucketSettings(vbuckets=vbuckets, maintenance_interval=0, purge_age=0)


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
        collection: int = 0,
        expiry: int = 0,
    ) -> Applied:
        """Writes a document, by default into the vbucket that clients would use.

        ``expiry`` is in seconds from now up to 30 days, above that a Unix time. The result has the
        seqno.
        """
        at, name = self._place(key, vbucket, collection)
        return self.bucket.write(SetDocument(at, name, value, expiry=expiry))

    def delete(self, key: bytes, vbucket: int | None = None, collection: int = 0) -> Applied:
        """Deletes a document, which leaves a tombstone; the result has the seqno."""
        at, name = self._place(key, vbucket, collection)
        return self.bucket.write(DeleteDocument(at, name))

    def _place(self, key: bytes, vbucket: int | None, collection: int) -> tuple[int, bytes]:
        if vbucket is None:
            vbucket = vbucket_of(key, self.bucket.settings.vbuckets)
        return vbucket, document_key(key, collection)

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
