"""Consumer inbox: tracks positions, fires rollback callbacks, batches window acknowledgements.

The engine puts deliveries into a queue. The blocking and the asyncio client wait on that queue in
different ways and pass each delivery to the inbox, which does the rest for both.

A session has received more than the application has read, because deliveries wait in the queue. So
the inbox tracks the application's positions itself: a position lies after everything that was
handed out. For an event that is read row by row, it lies after the rows read so far.

In a group, vbuckets come and go (`Assigned`, `Inbox.drop`), and rows are handed out only while the
lease of the member is running. A vbucket that the application closes (`Inbox.close`) keeps its
position, and nothing more of it is handed out.

The inbox calls the rollback callback before it hands out anything of the new branch. It counts the
bytes that the application has finished with, per connection, so that the client can return them to
that connection's flow-control window.

Only one thread may call `Inbox.hand_out`. Any thread may ask for positions.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Protocol

from ...errors import UpriverError
from ...model import NO_END
from ...session.consumer_events import (
    Event,
    Flushed,
    RollbackReason,
    RolledBack,
    Rows,
    Step,
    StreamFinished,
    StreamOpened,
    SystemHappened,
)
from ...session.stream_position import Position, PositionTracker
from ..changes import Change, changes_of
from ..consumer_settings import ConsumerSettings, RollbackPolicy
from ..transport.async_connection import AsyncConnection
from .row_filters import (
    inflated,
    of_vbuckets,
    up_to,
    without_bodies,
    without_internal,
    written_since,
)


@dataclass(frozen=True, slots=True)
class Failed:
    """The engine stopped because of an error that retries cannot repair."""

    error: UpriverError


@dataclass(frozen=True, slots=True)
class Finished:
    """Every vbucket was read up to its end seqno."""


@dataclass(frozen=True, slots=True)
class Closed:
    """The application closed the client, possibly from another thread than the waiting one."""


@dataclass(frozen=True, slots=True)
class Assigned:
    """Vbuckets that a member of a group reads from now on: their positions and generations.

    It comes before all their rows. Rows of a vbucket that come without it are of an earlier time
    and are discarded.
    """

    positions: Mapping[int, Position]
    generations: Mapping[int, int]


@dataclass(frozen=True, slots=True)
class Nudge:
    """Wakes the application's thread, so that it looks what its group wants."""


class Share(Protocol):
    """What an inbox asks of the group that its consumer is a member of."""

    @property
    def may_deliver(self) -> bool:
        """Whether the lease is running."""

    @property
    def hidden(self) -> Collection[int]:
        """The ids of the collections that are not handed out."""

    def entered(self, assigned: Assigned) -> Collection[int]:
        """The application has come to the first row of vbuckets; returns those still ours."""

    def tell_assigned(self, vbuckets: Collection[int]) -> None:
        """Calls the application back about them; whatever that raises, they are read."""


@dataclass(frozen=True, slots=True)
class Delivery:
    """An event from the engine to the application.

    The bytes of its rows count as held on ``carrier``, the connection that received them, until
    they are returned to that connection's flow-control window.
    """

    event: Event | Failed | Finished | Closed | Assigned | Nudge
    carrier: AsyncConnection | None = None

    @property
    def counted(self) -> int:
        """The bytes of its rows."""
        return self.event.counted if isinstance(self.event, Rows) else 0

    def release(self) -> None:
        """Returns the bytes of rows that are not handed out; on the connection's event loop."""
        if self.carrier is not None:
            self.carrier.give_back(self.counted)


@dataclass(frozen=True, slots=True)
class Rollback:
    """A rollback: changes after ``to_seqno`` are no longer part of the vbucket's history."""

    vbucket: int
    from_seqno: int
    to_seqno: int
    reason: RollbackReason


class Inbox:
    """Turns deliveries into events for the application and tracks its positions.

    ``positions`` are the start positions of the vbuckets that are read.
    """

    def __init__(
        self,
        positions: Mapping[int, Position],
        settings: ConsumerSettings | None = None,
        on_rollback: Callable[[Rollback], None] | None = None,
        internal_collections: Callable[[], frozenset[int]] = frozenset,
        share: Share | None = None,
    ) -> None:
        self._share = share
        #: By vbucket: rollbacks since it was assigned.
        self.rollbacks: Counter[int] = Counter()
        self._settings = settings or ConsumerSettings()
        end = self._settings.end
        whole = isinstance(end, str) or self._settings._whole_snapshots
        #: By vbucket the seqnos beyond which nothing is handed out.
        self._ends: Mapping[int, int] = {} if whole else dict(end)  # type: ignore[arg-type]
        self._internal_collections = internal_collections
        self._on_rollback = on_rollback
        self._failure: UpriverError | None = None
        #: Number of rows handed to the application.
        self.rows = 0
        #: Bytes per connection that the application has finished with, not yet returned to the
        #: connection's flow-control window.
        self._owed: dict[AsyncConnection, int] = {}
        #: The current rows: as delivered, as shown to the application (filtered and decompressed),
        #: and an iterator over those not yet handed out one by one.
        self._current: Delivery | None = None
        self._shown: Rows | None = None
        self._left: Iterator[Change] = iter(())
        #: Number of current rows that the application has read.
        self.read = 0
        #: Guards the attributes below: the position trackers, the steps of the current rows that
        #: are not yet in them, and the number of current rows that are.
        self._lock = threading.Lock()
        self._trackers = {vb: PositionTracker(position) for vb, position in positions.items()}
        #: Where the application was in the vbuckets that it closed.
        self._closed: dict[int, Position] = {}
        self._steps: list[Step] = []
        self._entered = 0

    # ---- deliveries ----------------------------------------------------------------------

    def hand_out(
        self, delivery: Delivery, *, whole: bool = True
    ) -> Event | Finished | Closed | None:
        """Returns the event of a delivery for the application, or None if it is hidden.

        Raises the error of a `Failed` delivery. With ``whole``, all rows count as read when they
        are returned; otherwise `changes` hands them out one by one.
        """
        self.done()
        event = delivery.event
        if isinstance(event, Failed):
            self._failure = event.error
            raise event.error
        if isinstance(event, Nudge):
            return None
        if isinstance(event, Assigned):
            self._enter_share(event)
            return None
        if isinstance(event, Rows):
            return self._hand_out_rows(delivery, event, whole=whole)
        vbucket = getattr(event, "vbucket", None)
        if vbucket in self._closed:
            if not isinstance(event, StreamFinished):
                return None
            return replace(event, position=self._closed[event.vbucket])
        if self._share is not None and vbucket not in self._trackers:
            return event if isinstance(event, Finished | Closed) else None
        if isinstance(event, SystemHappened) and self._is_beyond(event):
            return None
        if isinstance(event, StreamOpened | RolledBack | SystemHappened):
            self._note(event)
        if isinstance(event, RolledBack):
            return self._tell(event)
        if isinstance(event, Flushed):
            self._flushed(event.vbucket)
        return event

    def _is_beyond(self, happened: SystemHappened) -> bool:
        """Whether it happened after the end that is asked for."""
        return bool(self._ends) and happened.event.seqno > self._ends[happened.vbucket]

    def _chosen(self, rows: Rows) -> Rows:
        """The rows that the settings and the group let through."""
        if not self._settings.internal_documents:
            rows = without_internal(rows, self._internal_collections())
        if self._settings.since is not None:
            rows = written_since(rows, self._settings.since)
        if self._share is not None:
            rows = of_vbuckets(rows, self._trackers, self._share.hidden)
        elif self._closed:
            rows = of_vbuckets(rows, self._trackers, ())
        if self._ends:
            rows = up_to(rows, self._ends, self._seqno)
        return rows

    def _seqno(self, vbucket: int) -> int:
        tracker = self._trackers.get(vbucket)
        return NO_END if tracker is None else tracker.seqno  # closed meanwhile: beyond any end

    def _hand_out_rows(self, delivery: Delivery, rows: Rows, *, whole: bool) -> Rows | None:
        """Filters and decompresses the rows, as the settings say, and makes them the current."""
        rows = self._chosen(rows)
        delivery = replace(delivery, event=rows)
        count = rows.batch.num_rows
        with self._lock:
            self._current, self._steps = delivery, list(reversed(rows.steps))
            self.read, self._entered = (count if whole else 0), 0
        if not count:
            self.done()
            return None
        self.rows += count
        if not self._settings.values:
            rows = without_bodies(rows, xattrs=self._settings.xattrs)
        elif self._settings.compression and self._settings.decompress:
            rows = inflated(rows)
        self._shown = rows
        self._left = iter(()) if whole else changes_of(rows.batch)
        return rows

    def _tell(self, event: RolledBack) -> RolledBack | None:
        if self._settings.rollback is RollbackPolicy.IGNORE:
            return None
        if self._on_rollback is not None and not event.refused:
            rollback = Rollback(event.vbucket, event.from_seqno, event.to.seqno, event.reason)
            self._on_rollback(rollback)
        return event

    def _flushed(self, vbucket: int) -> None:
        """Goes back to the beginning of a vbucket that was flushed, and says so."""
        with self._lock:
            tracker = self._trackers.get(vbucket)
            if tracker is None:  # closed meanwhile
                return
            from_seqno = tracker.seqno
            tracker.emptied()
            self.rollbacks[vbucket] += 1
        if self._on_rollback is not None and self._settings.rollback is not RollbackPolicy.IGNORE:
            self._on_rollback(Rollback(vbucket, from_seqno, 0, RollbackReason.FLUSHED))

    def changes(self) -> Iterator[Change]:
        """Yields the current rows one by one; each row counts as read once it is yielded.

        If the caller leaves its loop early, the next call continues with the next row.
        """
        if self._share is not None:
            yield from self._shared_changes(self._share)
            return
        for change in self._left:
            self.read += 1
            if not self._closed or change.vbucket not in self._closed:
                yield change

    def _shared_changes(self, share: Share) -> Iterator[Change]:
        """Yields while the lease is running, and nothing of vbuckets that were dropped."""
        left, trackers = self._left, self._trackers
        while share.may_deliver:
            change = next(left, None)
            if change is None:
                return
            self.read += 1
            if change.vbucket in trackers:
                yield change

    @property
    def unread(self) -> Rows | None:
        """The current rows, if `changes` has not yielded all of them."""
        shown = self._shown
        return shown if shown is not None and self.read < shown.batch.num_rows else None

    def rest(self) -> Rows | None:
        """Returns the current rows that `changes` has not yielded yet, and marks them as read."""
        shown, read = self._shown, self.read
        if shown is None or read == shown.batch.num_rows:
            return None
        self._left = iter(())
        self.read = shown.batch.num_rows
        rows = shown.slice(read, self.read, [step for step in shown.steps if step.stop > read])
        if self._share is None and not self._closed:
            return rows
        rows = of_vbuckets(rows, self._trackers, ())
        return rows if rows.batch.num_rows else None

    def check(self) -> None:
        """Raises the error of an earlier `Failed` delivery again: no delivery follows it."""
        if self._failure is not None:
            raise self._failure

    def done(self) -> None:
        """Marks the current rows as finished: advances positions and counts their bytes as owed."""
        with self._lock:
            delivery, self._current, self._shown = self._current, None, None
            if delivery is None:
                return
            self._enter_steps(reversed(self._steps))
            self._steps = []
        if delivery.carrier is not None:
            owed = self._owed.get(delivery.carrier, 0)
            self._owed[delivery.carrier] = owed + delivery.counted

    def owed(self, *, at_least: int = 0) -> list[tuple[AsyncConnection, int]]:
        """Returns and clears the bytes to acknowledge, for connections with ``at_least`` bytes."""
        due = [(carrier, size) for carrier, size in self._owed.items() if size >= at_least]
        for carrier, _ in due:
            del self._owed[carrier]
        return due

    # ---- vbuckets of a group -------------------------------------------------------------

    def _enter_share(self, assigned: Assigned) -> None:
        assert self._share is not None
        ours = self._share.entered(assigned)
        with self._lock:
            for vbucket in ours:
                self._trackers[vbucket] = PositionTracker(assigned.positions[vbucket])
                self.rollbacks[vbucket] = 0
        self._share.tell_assigned(ours)

    def drop(self, vbuckets: Collection[int]) -> None:
        """Hands nothing more of these vbuckets out; they have no position from now on."""
        with self._lock:
            self._enter()
            for vbucket in vbuckets:
                self._trackers.pop(vbucket, None)

    # ---- closed vbuckets -----------------------------------------------------------------

    def close(self, vbucket: int) -> None:
        """Hands nothing more of a vbucket out; its position stays where the application is."""
        with self._lock:
            self._enter()
            tracker = self._trackers.pop(vbucket, None)
            if tracker is not None:
                self._closed[vbucket] = tracker.position()

    # ---- positions -----------------------------------------------------------------------

    def positions(self) -> dict[int, Position]:
        """The application's position in each vbucket."""
        with self._lock:
            self._enter()
            read = {vb: tracker.position() for vb, tracker in self._trackers.items()}
            return {**read, **self._closed}

    def seqnos(self) -> dict[int, int]:
        """The application's seqno in each vbucket; cheaper than `positions`."""
        with self._lock:
            self._enter()
            read = {vb: tracker.seqno for vb, tracker in self._trackers.items()}
            return read | {vb: position.seqno for vb, position in self._closed.items()}

    def _note(self, event: StreamOpened | RolledBack | SystemHappened) -> None:
        with self._lock:
            tracker = self._trackers.get(event.vbucket)
            if tracker is None:  # closed meanwhile
                return
            if isinstance(event, StreamOpened):
                tracker.follow(event.log)
            elif isinstance(event, RolledBack):
                if not event.refused:
                    self.rollbacks[event.vbucket] += 1
                    self._trackers[event.vbucket] = PositionTracker(event.to)
            else:
                uid = getattr(event.event, "manifest_uid", 0)
                tracker.manifest_uid = max(tracker.manifest_uid, uid)

    def _enter(self) -> None:
        """Advances the position trackers past the current rows that were read."""
        if self._current is None or not isinstance(self._current.event, Rows):
            return
        while self._steps and self._steps[-1].stop <= self.read:
            step = self._steps.pop()
            self._enter_steps([step])
            self._entered = step.stop
        if self._entered < self.read:  # in the middle of the rows of a step
            seqno = self._current.event.batch.column("seqno")[self.read - 1].as_py()
            self._enter_steps([self._steps[-1]._replace(seqno=seqno, closes=False)])
            self._entered = self.read

    def _enter_steps(self, steps: Iterable[Step]) -> None:
        for step in steps:
            tracker = self._trackers.get(step.vbucket)
            if tracker is None or step.holds:  # dropped meanwhile, or out of order
                continue
            if step.purge_seqno:
                tracker.purge_seqno = step.purge_seqno
            if step.closes:
                tracker.snapshot_ended()
                continue
            if tracker.snapshot != step.snapshot:
                tracker.snapshot_began(step.snapshot)
            tracker.advanced(step.seqno)
