"""Which store an address of ``members=`` or ``--members`` means."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ..transport.access import Access
from ..transport.connection_string import Source
from .bucket_store import BucketGroupStore
from .cells import GroupStore
from .create_only_store import DirectoryGroupStore

if TYPE_CHECKING:
    from .object_store import ObjectGroupStore


def open_group_store(
    members: str | Path | GroupStore | None, source: Source, access: Access
) -> GroupStore:
    """A store, a directory, an object store, or a bucket (None: the one that is read).

    A bucket is accessed with the same user as the one that is read.
    """
    if members is None:
        return BucketGroupStore(source, access)
    if not isinstance(members, str | Path):
        return members
    scheme, separator, _ = str(members).partition("://")
    if isinstance(members, Path) or not separator:
        return DirectoryGroupStore(members)
    if scheme in ("couchbase", "couchbases"):
        return BucketGroupStore(members, access)
    return _objects(members)


def _objects(url: str) -> ObjectGroupStore:
    from .object_store import ObjectGroupStore  # needs an extra

    return ObjectGroupStore(url)
