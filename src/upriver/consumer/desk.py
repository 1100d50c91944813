"""What stands between an engine and an application: accounts, callbacks, room given back.

The blocking and the asyncio client get deliveries in different ways and do the same with them,
which is here: the ledger is kept, the application hears of rollbacks before anything of the new
branch, and what it is done with is given back to whom it came from.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pyarrow as pa

from ..errors import UpriverError
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
from .delivery import Closed, Delivery, Failed, Finished
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
        #: The rows of it as the application sees them, and those that it has not got one by one.
        self._shown: Rows | None = None
        self._left: Iterator[Change] = iter(())
        self._failure: UpriverError | None = None
        #: What the application is done with and its connections have not heard of yet.
        self._owed: dict[NodeConnection, int] = {}
        self.rows = 0

    def take(self, delivery: Delivery, *, whole: bool = True) -> Event | Finished | Closed | None:
        """Takes a delivery; returns what the application shall see, and raises what it must.

        ``whole`` rows are handed out at once, others one by one with `changes`.
        """
        event = delivery.event
        if isinstance(event, Failed):
            self._failure = event.error
            raise event.error
        if isinstance(event, Finished):
            self.ledger.done()
            return event
        if isinstance(event, Rows):
            count = event.batch.num_rows
            self.ledger.take(event, read=count if whole else 0)
            self._current = delivery
            if not count:
                self.done()
                return None
            self.rows += count
            self._shown = self._unpacked(event)
            self._left = iter(()) if whole else changes_of(self._shown.batch)
            return self._shown
        if isinstance(event, StreamOpened | RolledBack | SystemHappened):
            self.ledger.note(event)
        if isinstance(event, RolledBack):
            return self._tell(event)
        return event

    def _tell(self, event: RolledBack) -> RolledBack | None:
        if self._settings.rollback is RollbackPolicy.IGNORE:
            return None
        if self._on_rollback is not None and not event.refused:
            told = Rollback(event.vbucket, event.from_seqno, event.to.seqno, event.reason)
            self._on_rollback(told)
        return event

    def changes(self) -> Iterator[Change]:
        """The rows that came last one by one; those that were handed out count as read.

        A loop that is left leaves the rest to the next one.
        """
        ledger = self.ledger
        for change in self._left:
            ledger.read += 1
            yield change

    def rest(self) -> Rows | None:
        """What the last loop left, to be handed out at once."""
        shown, read = self._shown, self.ledger.read
        if shown is None or read == shown.batch.num_rows:
            return None
        self._left = iter(())
        self.ledger.read = shown.batch.num_rows
        steps = tuple(s._replace(stop=s.stop - read) for s in shown.steps if s.stop > read)
        return Rows(shown.batch.slice(read), steps)

    def check(self) -> None:
        """Raises again what ended the reading: nothing comes after it."""
        if self._failure is not None:
            raise self._failure

    def done(self) -> None:
        """The application is done with what it got last."""
        delivery, self._current, self._shown = self._current, None, None
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
        """Where the application is; in vbuckets that it does not read, where it was before."""
        start = self._settings.start
        before = start.positions if isinstance(start, Checkpoint) else {}
        return Checkpoint(
            bucket=self._source.bucket,
            bucket_uuid=self._bearings.map.bucket_uuid,
            vbuckets=len(self._bearings.map.vbuckets),
            positions={**before, **self.ledger.positions()},
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
        unpacked = [_inflated(change) for change in changes_of(rows.batch)]
        columns = {name: rows.batch.column(name) for name in rows.batch.schema.names}
        columns["value"] = pa.array([value for value, _ in unpacked], pa.binary())
        columns["datatype"] = pa.array([datatype for _, datatype in unpacked], pa.uint8())
        batch = pa.RecordBatch.from_arrays(list(columns.values()), schema=rows.batch.schema)
        return Rows(batch, rows.steps, rows.counted)


def _inflated(change: Change) -> tuple[bytes, int]:
    """A value and its datatype. One that cannot be unpacked stays as it is, for whoever looks."""
    if change.datatype & Datatype.SNAPPY:
        try:
            return inflate(change.value), change.datatype & ~Datatype.SNAPPY
        except ValueError:
            pass
    return change.value, change.datatype
