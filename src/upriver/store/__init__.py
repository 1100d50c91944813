"""Vbuckets on disk: documents by key and by seqno, their history, failover logs and collections.

It knows `upriver.wire` for the form of a stored change, and neither sockets nor event loops.
"""

from .bucket import Bucket, BucketStats
from .changes import (
    Add,
    Append,
    Applied,
    BeginSnapshot,
    Change,
    Counter,
    Delete,
    EndSnapshot,
    Expire,
    Outcome,
    Prepend,
    Replace,
    Replicate,
    Set,
    Touch,
    WithMeta,
    document_key,
)
from .core import Listener
from .directory import Store
from .layout import Kind, Record
from .manifest import Collection, Manifest, Scope
from .reader import Backfill, Chunk
from .settings import BucketSettings, Durability
from .vbucket import VBucketStats

__all__ = [
    "Add",
    "Append",
    "Applied",
    "Backfill",
    "BeginSnapshot",
    "Bucket",
    "BucketSettings",
    "BucketStats",
    "Change",
    "Chunk",
    "Collection",
    "Counter",
    "Delete",
    "Durability",
    "EndSnapshot",
    "Expire",
    "Kind",
    "Listener",
    "Manifest",
    "Outcome",
    "Prepend",
    "Record",
    "Replace",
    "Replicate",
    "Scope",
    "Set",
    "Store",
    "Touch",
    "VBucketStats",
    "WithMeta",
    "document_key",
]
