"""Position probe: asks a server whether it would accept positions, without reading changes.

For each position the probe requests a real stream that ends where it starts; in the old drafts one
without an end, which is left at once. The server decides about a rollback as it would for a
consumer. If it accepts the position, it ends the stream at once.
If it demands a rollback, the session rolls back and requests the stream again, as often as needed.
So the probe learns the position at which a consumer would really resume.

The probe uses an engine, which follows vbuckets that move to another node. Rows that a stream sends
nevertheless are dropped.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from ...model import NO_END
from ...session.consumer_events import RollbackReason, RolledBack, StreamOpened
from ...session.stream_position import Position
from ..consumer_settings import ConsumerSettings, RollbackPolicy
from ..streaming.engine import Engine
from ..streaming.inbox import Delivery, Failed
from ..topology.cluster_view import NODE_TROUBLE
from ..transport.access import Access
from ..transport.connection_string import Source
from .checkpoint import Checkpoint

#: End seqno of the probe's streams. A session raises it to the start seqno if that is higher, so
#: every stream ends where it starts.
_AT_ONCE: Final = 0


@dataclass(frozen=True, slots=True)
class PositionVerdict:
    """Whether the server accepts a position of one vbucket, and where it would resume."""

    position: Position
    #: Where a consumer would resume: at ``position`` if that is accepted.
    goes_on: Position
    #: Reasons of the rollbacks, in order; empty if ``position`` is accepted.
    reasons: tuple[RollbackReason, ...] = ()
    #: The high seqno of the vbucket; None if the server does not report it.
    high_seqno: int | None = None

    @property
    def accepted(self) -> bool:
        return not self.reasons

    @property
    def behind(self) -> int | None:
        """Number of seqnos between the resume position and the high seqno."""
        if self.high_seqno is None:
            return None
        return max(0, self.high_seqno - self.goes_on.seqno)


async def probe(
    source: Source,
    access: Access,
    settings: ConsumerSettings,
    positions: Checkpoint | Mapping[int, Position],
) -> dict[int, PositionVerdict]:
    """Probes the positions and returns a verdict for each vbucket.

    Of a checkpoint it probes the vbuckets that the settings select, of a mapping all. Raises the
    same errors as reading, and `StatusError` if a stream cannot be requested now.
    """
    if not isinstance(positions, Checkpoint):
        asked = set(positions)
    elif settings.vbuckets is None:
        asked = set(range(positions.vbuckets))
    else:
        asked = set(settings.vbuckets)
    if not asked:
        return {}
    settings = replace(
        settings,
        start=positions,
        end=dict.fromkeys(asked, _AT_ONCE),
        vbuckets=settings.vbuckets if settings._one_node else None,
        rollback=RollbackPolicy.REWIND,
        persisted_everywhere=None,
        give_up_after=settings.answer_timeout,
    )
    deliveries: asyncio.Queue[Delivery] = asyncio.Queue()
    engine = Engine(source, access, settings, deliveries.put_nowait)
    try:
        await engine.find()
        # Get the high seqnos before the streams are requested, so that writes during the probe do
        # not change whether a position counts as ahead.
        highs = {} if settings._one_node else await _high_seqnos(engine)
        if not engine.negotiates:  # draft 001 wants an end above the start
            engine.discovery.ends = dict.fromkeys(asked, NO_END)
        engine.begin()
        verdicts = {
            vbucket: PositionVerdict(position, position, (), highs.get(vbucket))
            for vbucket, position in engine.discovery.positions.items()
        }
        unanswered = set(verdicts)
        while unanswered:
            delivery = await deliveries.get()
            event = delivery.event
            if isinstance(event, Failed):
                raise event.error
            delivery.release()
            if isinstance(event, RolledBack):
                verdicts[event.vbucket] = _sent_back(verdicts[event.vbucket], event)
            elif isinstance(event, StreamOpened):
                unanswered.discard(event.vbucket)
        return verdicts
    finally:
        await engine.stop()


def probe_and_wait(
    source: Source,
    access: Access,
    settings: ConsumerSettings,
    positions: Checkpoint | Mapping[int, Position],
) -> dict[int, PositionVerdict]:
    """As `probe`, for callers without an event loop: blocks until the verdicts are there."""
    return asyncio.run(probe(source, access, settings, positions))


async def _high_seqnos(engine: Engine) -> dict[int, int]:
    try:
        return await engine.discovery.high_seqnos()
    except NODE_TROUBLE:
        if engine.negotiates:
            raise
        return {}  # servers of drafts 000 and 002 do not know the request


def _sent_back(verdict: PositionVerdict, event: RolledBack) -> PositionVerdict:
    reason = event.reason
    if reason is RollbackReason.PURGED and _is_ahead(verdict.goes_on, verdict.high_seqno):
        reason = RollbackReason.AHEAD
    return replace(verdict, goes_on=event.to, reasons=(*verdict.reasons, reason))


def _is_ahead(position: Position, high_seqno: int | None) -> bool:
    """Whether a position, or the end of its unfinished snapshot, is above the high seqno.

    A server rolls such a position back to the start of its snapshot, which may be 0 too.
    """
    offset = position.offset
    claimed = offset.seqno if offset.seqno == offset.snapshot.start else offset.snapshot.end
    return high_seqno is not None and claimed > high_seqno
