"""Writes what a replica receives from the active copy: changes, snapshots, failover logs, states.

It takes the events of a consumer session in order and turns them into changes of the store. Each
write waits for the disk, so it runs in a thread. The events of one connection are written one batch
at a time. This module knows no sockets and sends no messages.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Final

import pyarrow as pa

from ...errors import Status, StoreRefusal
from ...model import FailoverLog, Op, Snapshot, VBucketState
from ...session.consumer_events import (
    Event,
    Flushed,
    RolledBack,
    Rows,
    StateAsked,
    StreamOpened,
    SyncWrite,
    SystemHappened,
)
from ...store import (
    BeginSnapshot,
    Bucket,
    ChangeRequest,
    EndSnapshot,
    Replicate,
    ReplicateAbort,
    ReplicateCommit,
    document_key,
)
from ...wire import canonical, stored_prepares
from ...wire import messages as m
from ...wire.dialects import Dcp
from ...wire.enum_codes import DURABILITY_LEVELS
from ...wire.stored_prepares import StoredPrepare

#: Stored frames are packets of current DCP with collection ids in their keys.
_STORED: Final = Dcp(collections=True)
#: By the state that a producer asks for, the states from which that is safe.
_BEFORE: Final = {
    VBucketState.PENDING: (VBucketState.REPLICA, VBucketState.PENDING),
    VBucketState.ACTIVE: (VBucketState.PENDING,),
}
#: The states that serve nobody, which only the drafts let a producer ask for.
_GIVEN_UP: Final = (VBucketState.REPLICA, VBucketState.DEAD)
_BEFORE_IN_DRAFTS: Final = _BEFORE | dict.fromkeys(
    _GIVEN_UP, (VBucketState.REPLICA, VBucketState.PENDING)
)
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
    """Writes the events that one connection receives."""

    def __init__(self, bucket: Bucket) -> None:
        self._bucket = bucket
        #: The snapshot last passed to the store, for each vbucket with a stream.
        self._snapshots: dict[int, Snapshot] = {}
        self._changes: list[ChangeRequest] = []
        self._refused: dict[int, StoreRefusal] = {}
        self._draft = False

    def write(
        self, events: Iterable[Event], takeovers: frozenset[int], *, draft: bool = False
    ) -> dict[int, StoreRefusal]:
        """Writes events. Returns the vbuckets whose events were refused, with the reason.

        ``takeovers`` are the vbuckets that the producer may make pending and active. ``draft`` says
        whether states have their numbers and meaning from draft 001.
        """
        self._refused = {}
        self._draft = draft
        #: Changes that are not in row batches: system events and durable writes, by vbucket and
        #: seqno. The rows that follow show which snapshot each belongs to.
        happened: dict[tuple[int, int], ChangeRequest] = {}
        for event in events:
            if isinstance(event, Rows):
                self._rows(event, happened)
            elif isinstance(event, SystemHappened):
                message = replace(event.event, opaque=0, frames=())
                stored = Replicate(event.vbucket, _STORED.encode(message))
                happened[event.vbucket, message.seqno] = stored
            elif isinstance(event, SyncWrite):
                seqno, change = _sync_write(event)
                happened[event.vbucket, seqno] = change
            elif isinstance(event, StreamOpened | RolledBack | StateAsked | Flushed):
                self._commit()
                if event.vbucket not in self._refused:
                    self._event(event, takeovers)
        self._commit()
        return self._refused

    # ---- rows ----------------------------------------------------------------------------

    def _rows(self, rows: Rows, happened: dict[tuple[int, int], ChangeRequest]) -> None:
        frames = _frames(rows.batch)
        at = 0
        for step in rows.steps:
            vbucket = step.vbucket
            other = happened.pop((vbucket, step.seqno), None)
            if at < step.stop or other is not None:
                if self._snapshots.get(vbucket) != step.snapshot:
                    self._snapshots[vbucket] = step.snapshot
                    begun = BeginSnapshot(vbucket, step.snapshot.start, step.snapshot.end)
                    self._changes.append(begun)
                self._changes += [Replicate(vbucket, frame) for frame in frames[at : step.stop]]
                if other is not None:
                    self._changes.append(other)
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

    # ---- other stream events -------------------------------------------------------------

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
        """Rolls back to the seqno that the producer named, or drops the newest failover entry."""
        log, stats = self._bucket.failover_log(vbucket), self._bucket.vbucket_stats(vbucket)
        if asked == 0 and len(log) > 1 and log.newest.seqno == stats.high_seqno:
            # The replica has no change of the newest branch, so its entry can be dropped: the
            # producer does not know this branch.
            self._bucket.set_failover_log(vbucket, FailoverLog(log.entries[1:]))
            return
        self._bucket.rollback(vbucket, self._bucket.consistent_until(vbucket, asked))

    def _set_state(self, event: StateAsked, takeovers: frozenset[int]) -> None:
        vbucket, state = event.vbucket, event.state
        before = self._bucket.state(vbucket)
        if state is VBucketState.REPLICA and not self._draft:
            state = VBucketState.PENDING  # servers up to 3.0 use this number on a stream
        # A copy that serves nobody afterwards can be given up in any stream of a draft.
        may_change = vbucket in takeovers or (self._draft and state in _GIVEN_UP)
        if not may_change:
            raise StoreRefusal(Status.INVALID, f"vbucket {vbucket} is not being taken over")
        allowed = _BEFORE_IN_DRAFTS if self._draft else _BEFORE
        if before not in allowed.get(state, ()):
            # The takeover was abandoned meanwhile, so another copy may be the active one; or this
            # is the active one, which may have changes that no other has.
            raise StoreRefusal(
                Status.INVALID,
                f"vbucket {vbucket} is {before.name.lower()} and cannot become "
                f"{state.name.lower()}",
            )
        if state is not before:  # the manager may have set it pending already
            self._bucket.set_state(vbucket, state, transfer=True)


def _sync_write(event: SyncWrite) -> tuple[int, ChangeRequest]:
    """Returns the seqno of a durable-write message, and the change that it makes."""
    vbucket, message = event.vbucket, event.write
    key = document_key(message.key, message.collection or 0)
    if isinstance(message, m.Commit):
        seqno = message.commit_seqno
        return seqno, ReplicateCommit(vbucket, key, message.prepared_seqno, seqno)
    if isinstance(message, m.Abort):
        seqno = message.abort_seqno
        return seqno, ReplicateAbort(vbucket, key, message.prepared_seqno, seqno)
    frame = stored_prepares.prepare(
        StoredPrepare(
            vbucket,
            message.seqno,
            message.rev,
            message.cas,
            message.flags,
            message.expiry,
            int(message.datatype),
            key,
            message.value,
            message.deleted,
            DURABILITY_LEVELS.dump(message.level),
        )
    )
    return message.seqno, Replicate(vbucket, frame)


def _frames(batch: pa.RecordBatch) -> list[bytes]:
    """Encodes rows as stored frames."""
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
