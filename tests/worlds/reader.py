"""A reader of a world: the project's own consumer, an application with checkpoints, and its oracle.

The application keeps the changes that it was told of, drops them on a rollback, and saves both the
changes and its position from time to time. Every event is compared with what really happened.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from upriver.consumer.async_client import AsyncConsumer
from upriver.consumer.checkpoints.checkpoint import Checkpoint
from upriver.consumer.consumer_settings import ConsumerSettings
from upriver.consumer.transport.access import Access
from upriver.errors import RemoteProtocolError, UpriverError
from upriver.model import Op
from upriver.session.consumer_events import Event, RolledBack, Rows, StreamOpened
from upriver.session.stream_position import Position

from .committed_branches import Branch, Histories, Violation

#: Seconds between two attempts to start after an error.
_AGAIN: Final = 1.0
#: A guarantee that the consumer checks itself.
_RULES: Final = "a server keeps the rules of the stream"
_COLUMNS: Final = ("vbucket", "seqno", "key", "op", "value")


class Row(NamedTuple):
    """A change as the application was told of it; ``value`` is None if the document is gone."""

    seqno: int
    key: bytes
    value: bytes | None


class Reader:
    """An application that reads a bucket. Its process may die; what it has saved stays."""

    def __init__(
        self,
        source: str,
        vbuckets: int,
        histories: Histories,
        trace: Callable[..., None],
        access: Access,
        *,
        buffer: int,
    ) -> None:
        self._source = source
        self._vbuckets = vbuckets
        self._histories = histories
        self._trace = trace
        self._access = access
        self._buffer = buffer
        self._saved_rows: dict[int, list[Row]] = {vb: [] for vb in range(vbuckets)}
        self._saved: Checkpoint | None = None
        self.rows = {vb: list(rows) for vb, rows in self._saved_rows.items()}
        self._branch: dict[int, int] = {}
        self._consumer: AsyncConsumer | None = None
        #: How many changes and rollbacks it was told of, in all its lives.
        self.changes = self.rollbacks = 0

    # ---- checkpoints ---------------------------------------------------------------------

    def load(self) -> Checkpoint | None:
        return self._saved

    def save(self, checkpoint: Checkpoint) -> None:
        # through its text, as a file would have it
        self._saved = Checkpoint.from_json(checkpoint.to_json())
        self._saved_rows = {vb: list(rows) for vb, rows in self.rows.items()}

    async def checkpoint(self) -> None:
        """Saves the position together with the changes."""
        if self._consumer is not None:
            await self._consumer.save()
            self._trace("saved")

    # ---- life ----------------------------------------------------------------------------

    async def live(self) -> None:
        """Reads until its process dies."""
        self._consumer = None
        self.rows = {vb: list(rows) for vb, rows in self._saved_rows.items()}
        self._branch.clear()
        while True:
            consumer = AsyncConsumer(
                self._source,
                access=self._access,
                checkpoint=self,
                settings=ConsumerSettings(
                    name="reader",
                    dialect="dcp",
                    buffer=self._buffer,
                    noop_interval=2.0,
                    connect_timeout=2.0,
                    answer_timeout=4.0,
                    retry_most=2.0,
                ),
            )
            try:
                await consumer.start()
                self._consumer = consumer
                while (event := await consumer.poll()) is not None:
                    self.hear(event)
            except UpriverError as problem:
                self._trace("reader", type(problem).__name__)
                if isinstance(problem, RemoteProtocolError):
                    raise Violation(_RULES, str(problem)) from None
            finally:
                self._consumer = None
                await consumer.close()
            self.rows = {vb: list(rows) for vb, rows in self._saved_rows.items()}
            self._branch.clear()
            await asyncio.sleep(_AGAIN)

    def hear(self, event: Event) -> None:
        """Takes an event and compares it with what happened."""
        if isinstance(event, Rows):
            batch = event.batch
            columns = (batch.column(name).to_pylist() for name in _COLUMNS)
            for vbucket, seqno, key, op, value in zip(*columns, strict=True):
                gone = op != Op.MUTATION.value
                self._changed(vbucket, Row(seqno, key, None if gone else value))
        elif isinstance(event, RolledBack):
            self.rollbacks += 1
            self._trace("rollback", event.vbucket, event.to.seqno)
            kept = [row for row in self.rows[event.vbucket] if row.seqno <= event.to.seqno]
            self.rows[event.vbucket] = kept
        elif isinstance(event, StreamOpened):
            self._branch[event.vbucket] = event.log.newest.vbuuid
        self.check_positions()

    def _changed(self, vbucket: int, row: Row) -> None:
        self.changes += 1
        self._trace("change", vbucket, row.seqno, row.key)
        held = self.rows[vbucket]
        if held and held[-1].seqno >= row.seqno:
            raise Violation(
                "a stream is in order",
                f"vbucket {vbucket}: seqno {row.seqno} comes after {held[-1].seqno}",
            )
        branch = self._branch_of(vbucket, self._branch.get(vbucket, 0))
        known = branch.changes.get(row.seqno)
        if known is None or (known.key, known.value) != (row.key, row.value):
            raise Violation(
                "a stream shows one branch",
                f"vbucket {vbucket}, branch {branch.vbuuid:x}: {row} was told, "
                f"and {known} happened",
            )
        held.append(row)

    def _branch_of(self, vbucket: int, vbuuid: int) -> Branch:
        branch = self._histories.branch(vbucket, vbuuid)
        if branch is None:
            raise Violation(
                "a stream shows one branch", f"vbucket {vbucket} never had a branch {vbuuid:x}"
            )
        return branch

    # ---- positions -----------------------------------------------------------------------

    def check_rules(self) -> None:
        """No server broke a rule of the stream; the consumer would connect again and go on."""
        if self._consumer is None:
            return
        for what in self._consumer.status().counts:
            if what.startswith("broken rule"):
                raise Violation(_RULES, what)

    def positions(self) -> Mapping[int, Position]:
        """Where it is now; nothing while it has no consumer."""
        return self._consumer.position().positions if self._consumer is not None else {}

    def check_positions(self) -> None:
        """What the position claims to have been read was told."""
        self.check_claims(self.positions())

    def check_claims(self, positions: Mapping[int, Position]) -> None:
        for vbucket, position in positions.items():
            if position.seqno:
                self._check_claim(vbucket, position)

    def _check_claim(self, vbucket: int, position: Position) -> None:
        offset = position.offset
        branch = self._branch_of(vbucket, offset.vbuuid)
        held = {row.key: row for row in self.rows[vbucket] if row.seqno <= offset.seqno}
        newest = branch.newest(offset.seqno)
        later = branch.newest(offset.snapshot.end)
        for key in dict.fromkeys((*newest, *held)):
            told, seqno = held.get(key), newest.get(key, 0)
            if told is not None and told.seqno == seqno:
                continue
            if later.get(key, 0) > offset.seqno:
                continue  # a newer version in the same snapshot has replaced it
            gone = seqno == 0 or branch.changes[seqno].value is None
            if gone and (told is None or told.value is None):
                continue
            raise Violation(
                "a position claims only what was seen",
                f"vbucket {vbucket} at {offset.seqno} of branch {branch.vbuuid:x}, snapshot "
                f"{offset.snapshot.start}..{offset.snapshot.end}: {key!r} has seqno {seqno}, "
                f"and the reader has {told}",
            )

    def documents(self, vbucket: int) -> dict[bytes, bytes]:
        """What the changes that it holds amount to."""
        newest = {row.key: row.value for row in self.rows[vbucket]}
        return {key: value for key, value in newest.items() if value is not None}
