"""What a test does to a bucket behind its readers' backs: writes, deletions, faults.

It works on the bucket itself and knows neither sockets nor event loops.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

from ..consumer.topology import vbucket_of
from ..model import VBucketState
from ..store import Applied, Bucket, BucketSettings, Delete, Set, document_key

__all__ = ["BucketScript", "settings_for_tests"]


def settings_for_tests(vbuckets: int) -> BucketSettings:
    """A bucket in which time does nothing by itself: a test says when tombstones go."""
    return BucketSettings(vbuckets=vbuckets, maintenance_interval=0, purge_age=0)


class BucketScript(ABC):
    """The changes and faults that every producer for tests offers."""

    @property
    @abstractmethod
    def bucket(self) -> Bucket:
        """The bucket itself, to write and look without a connection."""

    # ---- documents -----------------------------------------------------------------------

    def write(
        self, key: bytes, value: bytes, vbucket: int | None = None, collection: int = 0
    ) -> Applied:
        """Writes a document where clients would, or in another vbucket; tells its seqno."""
        at, name = self._place(key, vbucket, collection)
        return self.bucket.write(Set(at, name, value))

    def delete(self, key: bytes, vbucket: int | None = None, collection: int = 0) -> Applied:
        """Deletes a document, which leaves a tombstone; tells its seqno."""
        at, name = self._place(key, vbucket, collection)
        return self.bucket.write(Delete(at, name))

    def _place(self, key: bytes, vbucket: int | None, collection: int) -> tuple[int, bytes]:
        if vbucket is None:
            vbucket = vbucket_of(key, self.bucket.settings.vbuckets)
        return vbucket, document_key(key, collection)

    # ---- faults --------------------------------------------------------------------------

    def fail_over(self, vbucket: int, seqno: int) -> int:
        """A replica that had everything up to ``seqno`` becomes active; returns where it is.

        What came after is gone, a new branch begins, and streams end with "state changed".
        """
        return self.bucket.rollback(vbucket, seqno)

    def set_state(self, vbucket: int, state: VBucketState) -> None:
        """Makes a vbucket active, replica, pending or dead; its streams end."""
        self.bucket.set_state(vbucket, state)

    def purge(self) -> None:
        """Takes tombstones away, so that readers who have not seen them must begin again.

        In every vbucket, but for one that is the last change of its vbucket: that one stays, as
        on every server. With settings of one's own, only those older than ``purge_age`` go.
        """
        self.bucket.compact()
