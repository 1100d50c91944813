"""What the active copy sent, written to a replica: rows, snapshots, histories, states.

It takes the events of a consumer's session in their order and makes them changes of the store. All
of it waits for the disk, so it runs in a thread; one connection's events are written one batch at
a time. It knows no sockets and asks nobody anything.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Final

import pyarrow as pa

from ..errors import Status, StoreRefusal
from ..model import FailoverLog, Op, Snapshot, VBucketState
from ..session.events import (
    Event,
    Flushed,
    RolledBack,
    Rows,
    StateAsked,
    StreamOpened,
    SystemHappened,
)
from ..store import BeginSnapshot, Bucket, Change, EndSnapshot, Replicate, document_key
from ..wire import canonical
from ..wire.dialects import Dcp

__all__ = ["ReplicaWriter"]

#: Stored frames are packets of today's DCP with the collections in their keys.
_STORED: Final = Dcp(collections=True)
_COLUMNS: Final = (
    "op",
    "vbucket",
    "seqno",
    "rev",
    "cas",
    "flags",
    "expiry",
    "datatype",
    "collection",
    "key",
    "value",
)


class ReplicaWriter:
    """Writes what one connection receives."""

    def __init__(self, bucket: Bucket) -> None:
        self._bucket = bucket
        #: The snapshot that the store was last told of, for each vbucket with a stream.
        self._snapshots: dict[int, Snapshot] = {}
        self._changes: list[Change] = []
        self._refused: dict[int, StoreRefusal] = {}

    def write(self, events: Iterable[Event], takeovers: frozenset[int]) -> dict[int, StoreRefusal]:
        """Writes events; returns the vbuckets that could not take theirs, and why.

        ``takeovers`` are the vbuckets whose state the producer may change.
        """
        self._refused = {}
        #: Events of collections; which snapshot each is in comes with the rows behind it.
        happened: dict[tuple[int, int], bytes] = {}
        for event in events:
            if isinstance(event, Rows):
                self._rows(event, happened)
            elif isinstance(event, SystemHappened):
                message = replace(event.event, opaque=0, frames=())
                happened[event.vbucket, message.seqno] = _STORED.encode(message)
            elif isinstance(event, StreamOpened | RolledBack | StateAsked | Flushed):
                self._commit()
                if event.vbucket not in self._refused:
                    self._event(event, takeovers)
        self._commit()
        return self._refused

    # ---- rows ----------------------------------------------------------------------------

    def _rows(self, rows: Rows, happened: dict[tuple[int, int], bytes]) -> None:
        frames = _frames(rows.batch)
        at = 0
        for step in rows.steps:
            vbucket = step.vbucket
            system = happened.pop((vbucket, step.seqno), None)
            if at < step.stop or system is not None:
                if self._snapshots.get(vbucket) != step.snapshot:
                    self._snapshots[vbucket] = step.snapshot
                    begun = BeginSnapshot(vbucket, step.snapshot.start, step.snapshot.end)
                    self._changes.append(begun)
                self._changes += [Replicate(vbucket, frame) for frame in frames[at : step.stop]]
                if system is not None:
                    self._changes.append(Replicate(vbucket, system))
                at = step.stop
            if step.closes:
                self._changes.append(EndSnapshot(vbucket))
                self._snapshots.pop(vbucket, None)

    def _commit(self) -> None:
        changes, self._changes = self._changes, []
        if not changes:
            return
        for change, outcome in zip(changes, self._bucket.submit(changes).result(), strict=True):
            if isinstance(outcome, StoreRefusal):
                self._refused.setdefault(change.vbucket, outcome)

    # ---- what else a stream says ---------------------------------------------------------

    def _event(
        self, event: StreamOpened | RolledBack | StateAsked | Flushed, takeovers: frozenset[int]
    ) -> None:
        try:
            if isinstance(event, StreamOpened):
                self._snapshots.pop(event.vbucket, None)
                if len(event.log):
                    self._bucket.set_failover_log(event.vbucket, event.log)
            elif isinstance(event, RolledBack):
                self._roll_back(event.vbucket, event.to.seqno)
            elif isinstance(event, Flushed):
                self._snapshots.pop(event.vbucket, None)
                self._bucket.flush_copy(event.vbucket)
            else:
                self._set_state(event, takeovers)
        except StoreRefusal as refusal:
            self._refused[event.vbucket] = refusal

    def _roll_back(self, vbucket: int, asked: int) -> None:
        """Goes back to where the producer still has the same history, or tries an older branch."""
        log, stats = self._bucket.failover_log(vbucket), self._bucket.vbucket_stats(vbucket)
        if asked == 0 and len(log) > 1 and log.newest.seqno == stats.high_seqno:
            # nothing of the newest branch is here, so it does not matter that nobody knows it
            self._bucket.set_failover_log(vbucket, FailoverLog(log.entries[1:]))
            return
        self._bucket.rollback(vbucket, self._bucket.consistent_until(vbucket, asked))

    def _set_state(self, event: StateAsked, takeovers: frozenset[int]) -> None:
        vbucket, state = event.vbucket, event.state
        before = self._bucket.state(vbucket)
        if vbucket not in takeovers:
            raise StoreRefusal(Status.INVALID, f"vbucket {vbucket} is not being taken over")
        if state is VBucketState.REPLICA and before is VBucketState.REPLICA:
            state = VBucketState.PENDING  # as servers up to release 3.0 number it on a stream
        expected = {
            VBucketState.PENDING: VBucketState.REPLICA,
            VBucketState.ACTIVE: VBucketState.PENDING,
        }
        if expected.get(state) is not before:
            # Somebody gave up the takeover meanwhile: then another copy may be the active one.
            raise StoreRefusal(
                Status.INVALID,
                f"vbucket {vbucket} is {before.name.lower()} and cannot become "
                f"{state.name.lower()}",
            )
        self._bucket.set_state(vbucket, state, transfer=True)


def _frames(batch: pa.RecordBatch) -> list[bytes]:
    """Rows as they are stored."""
    columns = [batch.column(name).to_pylist() for name in _COLUMNS]
    frames = []
    for op, vbucket, seqno, rev, cas, flags, time, datatype, collection, name, value in zip(
        *columns, strict=True
    ):
        key = document_key(name, collection)
        if op == _MUTATION:
            frame = canonical.mutation(vbucket, seqno, rev, cas, flags, time, datatype, key, value)
        else:
            pack = canonical.deletion if op == _DELETION else canonical.expiration
            frame = pack(vbucket, seqno, rev, cas, time, datatype, key, value)
        frames.append(frame)
    return frames


_MUTATION: Final = Op.MUTATION.value
_DELETION: Final = Op.DELETION.value
