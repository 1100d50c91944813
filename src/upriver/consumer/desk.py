"""What stands between an engine and an application: accounts, callbacks, room given back.

The blocking and the asyncio client get deliveries in different ways and do the same with them,
which is here: the ledger is kept, the application hears of rollbacks before anything of the new
branch, and what it is done with is given back to whom it came from.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pyarrow as pa

from ..model import Datatype
from ..session.events import (
    Event,
    RollbackReason,
    RolledBack,
    Rows,
    StreamOpened,
    SystemHappened,
)
from ..wire.values import inflate
from .bearings import Bearings
from .changes import Change, changes_of
from .checkpoint import Checkpoint, CheckpointStore
from .delivery import Delivery, Failed, Finished
from .ledger import Ledger
from .node import NodeConnection
from .settings import ConsumerSettings, RollbackPolicy
from .source import Source

__all__ = ["Desk", "Rollback"]


@dataclass(frozen=True, slots=True)
class Rollback:
    """The changes of a vbucket after seqno ``to_seqno`` are not part of its history any more."""

    vbucket: int
    from_seqno: int
    to_seqno: int
    reason: RollbackReason


class Desk:
    """The application's side of one reading."""

    def __init__(
        self,
        source: Source,
        settings: ConsumerSettings,
        bearings: Bearings,
        *,
        on_rollback: Callable[[Rollback], None] | None,
        checkpoint: CheckpointStore | None,
    ) -> None:
        self._source = source
        self._settings = settings
        self._bearings = bearings
        self._on_rollback = on_rollback
        self._store = checkpoint
        self.ledger = Ledger(bearings.positions)
        self._current: Delivery | None = None
        #: What the application is done with and its connections have not heard of yet.
        self._owed: dict[NodeConnection, int] = {}
        self.rows = 0

    def take(self, delivery: Delivery) -> Event | Finished | None:
        """Takes a delivery; returns what the application shall see, and raises what it must."""
        event = delivery.event
        if isinstance(event, Failed):
            raise event.error
        if isinstance(event, Finished):
            self.ledger.done()
            return event
        if isinstance(event, Rows):
            self.ledger.take(event)
            self._current = delivery
            if not event.batch.num_rows:
                self.done()
                return None
            self.rows += event.batch.num_rows
            self.ledger.read = event.batch.num_rows
            return self._unpacked(event)
        if isinstance(event, StreamOpened | RolledBack | SystemHappened):
            self.ledger.note(event)
        if isinstance(event, RolledBack):
            return self._tell(event)
        return event

    def _tell(self, event: RolledBack) -> RolledBack | None:
        if self._settings.on_rollback is RollbackPolicy.IGNORE:
            return None
        if self._on_rollback is not None and not event.refused:
            told = Rollback(event.vbucket, event.from_seqno, event.to.seqno, event.reason)
            self._on_rollback(told)
        return event

    def changes(self, rows: Rows) -> Iterator[Change]:
        """The rows one by one; those that were handed out count as read."""
        ledger = self.ledger
        for number, change in enumerate(changes_of(rows.batch), 1):
            ledger.read = number
            yield change

    def done(self) -> None:
        """The application is done with what it got last."""
        delivery, self._current = self._current, None
        if delivery is None:
            return
        self.ledger.done()
        if delivery.carrier is not None and isinstance(delivery.event, Rows):
            owed = self._owed.get(delivery.carrier, 0)
            self._owed[delivery.carrier] = owed + delivery.event.counted

    def owed(self, *, at_least: int = 0) -> list[tuple[NodeConnection, int]]:
        """Room to give back, once it is worth it; it then counts as given."""
        due = [(carrier, size) for carrier, size in self._owed.items() if size >= at_least]
        for carrier, _ in due:
            del self._owed[carrier]
        return due

    # ---- positions -----------------------------------------------------------------------

    def checkpoint(self) -> Checkpoint:
        return Checkpoint(
            bucket=self._source.bucket,
            bucket_uuid=self._bearings.map.bucket_uuid,
            vbuckets=len(self._bearings.map.vbuckets),
            positions=self.ledger.positions(),
        )

    def save(self) -> None:
        """Saves where the application is. Without a store there is nowhere to."""
        if self._store is None:
            raise ValueError("there is no checkpoint store to save to: give one as checkpoint=")
        self._store.save(self.checkpoint())

    # ---- values --------------------------------------------------------------------------

    def _unpacked(self, rows: Rows) -> Rows:
        """The rows with their values as they were written, where that is wanted."""
        if not (self._settings.compression and self._settings.decompress):
            return rows
        datatypes = rows.batch.column("datatype").to_numpy()
        packed = datatypes & Datatype.SNAPPY
        if not packed.any():
            return rows
        values = [
            inflate(change.value) if change.datatype & Datatype.SNAPPY else change.value
            for change in changes_of(rows.batch)
        ]
        columns = {name: rows.batch.column(name) for name in rows.batch.schema.names}
        columns["value"] = pa.array(values, pa.binary())
        columns["datatype"] = pa.array(datatypes & ~Datatype.SNAPPY.value, pa.uint8())
        batch = pa.RecordBatch.from_arrays(list(columns.values()), schema=rows.batch.schema)
        return Rows(batch, rows.steps, rows.counted)
