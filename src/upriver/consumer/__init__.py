"""Client: reads the changes of a bucket, blocking or with asyncio, and writes documents."""

import logging

from ..escaping import escape_record
from ..model import Op
from ..session.consumer_events import (
    Flushed,
    RolledBack,
    Rows,
    StreamFinished,
    StreamOpened,
    SyncWrite,
    SystemHappened,
)
from ..session.stream_position import Position
from ..wire.columns import SCHEMA
from .async_client import AsyncConsumer
from .changes import Change
from .checkpoints.checkpoint import Checkpoint, CheckpointStore, MemoryCheckpoint
from .checkpoints.checkpoint_file import FileCheckpoint
from .client import Consumer
from .consumer_settings import ConsumerSettings, RollbackPolicy
from .groups.bucket_store import BucketGroupStore
from .groups.cells import GroupStore
from .groups.create_only_store import DirectoryGroupStore
from .groups.membership import Revocation
from .streaming.consumer_base import ReadingStatus
from .streaming.inbox import Rollback
from .transport.access import Access
from .transport.connection_string import Source

__all__ = [
    "SCHEMA",
    "Access",
    "AsyncConsumer",
    "BucketGroupStore",
    "Change",
    "Checkpoint",
    "CheckpointStore",
    "Consumer",
    "ConsumerSettings",
    "DirectoryGroupStore",
    "FileCheckpoint",
    "Flushed",
    "GroupStore",
    "MemoryCheckpoint",
    "Op",
    "Position",
    "ReadingStatus",
    "Revocation",
    "Rollback",
    "RollbackPolicy",
    "RolledBack",
    "Rows",
    "Source",
    "StreamFinished",
    "StreamOpened",
    "SyncWrite",
    "SystemHappened",
]

logging.getLogger("upriver.consumer").addFilter(escape_record)
