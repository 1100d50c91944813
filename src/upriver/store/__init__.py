"""Persistent bucket store: documents by key and by seqno, history, failover logs, collections.

It stores changes in the wire format of `upriver.wire`. It knows neither sockets nor event loops.
"""

import logging

from ..escaping import escape_record
from .bucket import Bucket
from .bucket_core import SeqnoListener
from .bucket_settings import BucketSettings, SyncMode
from .bucket_stats import BucketStats
from .directory import Store
from .key_scan import KeyRange, KeyScan, ScannedDocument
from .manifest import Collection, Manifest, Scope
from .rocksdb_layout import RecordKind, StoredRecord
from .seqno_reader import Backfill, FrameChunk
from .vbucket import PendingPrepare, VBucketStats
from .writes.change_requests import (
    AbortPrepared,
    AddDocument,
    AppendToDocument,
    Applied,
    BeginSnapshot,
    ChangeRequest,
    ClientWrite,
    CommitPrepared,
    Counter,
    DeleteDocument,
    EditDocument,
    EndSnapshot,
    Expire,
    Outcome,
    PrepareWrite,
    PrependToDocument,
    ReplaceDocument,
    Replicate,
    ReplicateAbort,
    ReplicateCommit,
    SetDocument,
    TouchDocument,
    WithMeta,
    document_key,
)
from .writes.prepared_writes import Completion, CompletionKind

__all__ = [
    "AbortPrepared",
    "AddDocument",
    "AppendToDocument",
    "Applied",
    "Backfill",
    "BeginSnapshot",
    "Bucket",
    "BucketSettings",
    "BucketStats",
    "ChangeRequest",
    "ClientWrite",
    "Collection",
    "CommitPrepared",
    "Completion",
    "CompletionKind",
    "Counter",
    "DeleteDocument",
    "EditDocument",
    "EndSnapshot",
    "Expire",
    "FrameChunk",
    "KeyRange",
    "KeyScan",
    "Manifest",
    "Outcome",
    "PendingPrepare",
    "PrepareWrite",
    "PrependToDocument",
    "RecordKind",
    "ReplaceDocument",
    "Replicate",
    "ReplicateAbort",
    "ReplicateCommit",
    "ScannedDocument",
    "Scope",
    "SeqnoListener",
    "SetDocument",
    "Store",
    "StoredRecord",
    "SyncMode",
    "TouchDocument",
    "VBucketStats",
    "WithMeta",
    "document_key",
]

logging.getLogger("upriver.store").addFilter(escape_record)
