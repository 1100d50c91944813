"""What the dashboard asks a server besides its samples, and what each viewer may see of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from .figure_types import DocumentDetail, StatsDocument, VBucketDetail


class WatchedServer(Protocol):
    """A server in this process or elsewhere. Any thread may use it."""

    @property
    def needs_sign_in(self) -> bool:
        """Whether viewers need a name and password."""

    def authenticate(self, name: str, password: str, address: str) -> str | None:
        """The name of a user, None if the password is wrong.

        `StoreRefusal`: too many passwords are being checked, in all or for a viewer's address.
        """

    def may_see(self, user: str | None) -> Callable[[str], bool]:
        """Whether a user may see the figures of a bucket, by the bucket's name."""

    def vbucket(self, bucket: str, vbucket: int) -> VBucketDetail | None:
        """One vbucket, None if it does not exist."""

    def document(
        self, user: str | None, bucket: str, collection: str, key: str
    ) -> DocumentDetail | None:
        """A document with its versions; None if its bucket does not exist or may not be seen.

        PermissionError: the user may not read documents.
        """


def visible(document: StatsDocument, may_see: Callable[[str], bool]) -> StatsDocument | None:
    """What a viewer may see of a sample; None if that is all of it."""
    server = document["server"]
    if server is None or all(may_see(bucket["name"]) for bucket in server["buckets"]):
        return None
    seen = server.copy()
    seen["buckets"] = [one for one in server["buckets"] if may_see(one["name"])]
    seen["connections"] = [
        one for one in server["connections"] if one["bucket"] and may_see(one["bucket"])
    ]
    seen["connection_count"] = len(seen["connections"])
    seen["rolled_back"] = [one for one in server["rolled_back"] if may_see(one["bucket"])]
    shown = document.copy()
    shown["server"] = seen
    shown["changes"] = {name: one for name, one in document["changes"].items() if may_see(name)}
    shown["branches"] = {name: one for name, one in document["branches"].items() if may_see(name)}
    shown["events"] = [
        one for one in document["events"] if one["bucket"] is None or may_see(one["bucket"])
    ]
    readers = {one["name"] or one["peer"] for one in seen["connections"]}
    shown["history"] = document["history"].copy()
    shown["history"]["lags"] = [
        one for one in document["history"]["lags"] if one["name"] in readers
    ]
    return shown
