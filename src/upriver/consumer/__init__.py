"""The client: how a program of ours reaches a server and follows its changes."""

from ..session.events import Flushed, RolledBack, Rows, StreamFinished, StreamOpened, SystemHappened
from ..session.position import Position
from .access import Access
from .aio import AsyncConsumer
from .changes import Change
from .checkpoint import Checkpoint, CheckpointStore, MemoryCheckpoint
from .checkpoint_files import FileCheckpoint
from .client import Consumer
from .desk import Rollback
from .settings import ConsumerSettings, RollbackPolicy
from .source import Source
from .status import ReadingStatus

__all__ = [
    "Access",
    "AsyncConsumer",
    "Change",
    "Checkpoint",
    "CheckpointStore",
    "Consumer",
    "ConsumerSettings",
    "FileCheckpoint",
    "Flushed",
    "MemoryCheckpoint",
    "Position",
    "ReadingStatus",
    "Rollback",
    "RollbackPolicy",
    "RolledBack",
    "Rows",
    "Source",
    "StreamFinished",
    "StreamOpened",
    "SystemHappened",
]
