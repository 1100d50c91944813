"""Client: reads the changes of a bucket, blocking or with asyncio, and writes documents.

Its names are imported at their first use: a command that asks one question of a server imports
modules of this package that need neither Arrow nor numpy.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from .._lazy import lazily
from ..escaping import escape_record

if TYPE_CHECKING:
    from ..model import Op
    from ..session.consumer_events import (
        Flushed,
        RollbackReason,
        RolledBack,
        Rows,
        StateAsked,
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
    "RollbackReason",
    "RolledBack",
    "Rows",
    "Source",
    "StateAsked",
    "StreamFinished",
    "StreamOpened",
    "SyncWrite",
    "SystemHappened",
]

__getattr__ = lazily(
    __name__,
    {
        "SCHEMA": "..wire.columns",
        "Access": ".transport.access",
        "AsyncConsumer": ".async_client",
        "BucketGroupStore": ".groups.bucket_store",
        "Change": ".changes",
        "Checkpoint": ".checkpoints.checkpoint",
        "CheckpointStore": ".checkpoints.checkpoint",
        "Consumer": ".client",
        "ConsumerSettings": ".consumer_settings",
        "DirectoryGroupStore": ".groups.create_only_store",
        "FileCheckpoint": ".checkpoints.checkpoint_file",
        "Flushed": "..session.consumer_events",
        "GroupStore": ".groups.cells",
        "MemoryCheckpoint": ".checkpoints.checkpoint",
        "Op": "..model",
        "Position": "..session.stream_position",
        "ReadingStatus": ".streaming.consumer_base",
        "Revocation": ".groups.membership",
        "Rollback": ".streaming.inbox",
        "RollbackPolicy": ".consumer_settings",
        "RollbackReason": "..session.consumer_events",
        "RolledBack": "..session.consumer_events",
        "Rows": "..session.consumer_events",
        "Source": ".transport.connection_string",
        "StateAsked": "..session.consumer_events",
        "StreamFinished": "..session.consumer_events",
        "StreamOpened": "..session.consumer_events",
        "SyncWrite": "..session.consumer_events",
        "SystemHappened": "..session.consumer_events",
    },
)

logging.getLogger("upriver.consumer").addFilter(escape_record)
