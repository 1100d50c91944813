"""What a server would say to a reader's positions, found out without reading.

Each position is asked for as a real stream that ends where it starts: the server decides about a
rollback as it would for a reader, and if it agrees it ends the stream at once. Where it does not,
the session goes back and asks again, so that the place at which a reader would really go on is
known, however many steps it is away. What streams nevertheless send is dropped.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, TypeVar, cast

from ..errors import ConnectionFailed, ProtocolError, Status, StatusError, UpriverError
from ..session.consumer import ConsumerSession, StreamOptions
from ..session.events import Event, RollbackReason, RolledBack, StreamOpened, StreamRefused
from ..session.position import Position
from .access import Access
from .bearings import Bearings, take_bearings
from .checkpoint import Checkpoint
from .node import NodeConnection
from .readers import Backoff
from .settings import ConsumerSettings
from .source import Address, Source

__all__ = ["Verdict", "probe", "probe_and_wait"]

_T = TypeVar("_T")

#: A session never ends a stream before its start, so this is the start, wherever it lies.
_AT_ONCE: Final = 0


@dataclass(frozen=True, slots=True)
class Verdict:
    """What would become of the reader of one vbucket."""

    position: Position
    #: Where it would go on: its own position if that is accepted.
    goes_on: Position
    #: Why it would be rolled back; several if it took several steps.
    reasons: tuple[RollbackReason, ...] = ()
    #: The newest seqno of the vbucket; None where the server does not tell.
    high_seqno: int | None = None

    @property
    def accepted(self) -> bool:
        return not self.reasons

    @property
    def behind(self) -> int | None:
        """How many seqnos there are after the place where it would go on."""
        if self.high_seqno is None:
            return None
        return max(0, self.high_seqno - self.goes_on.seqno)


async def probe(
    source: Source,
    access: Access,
    settings: ConsumerSettings,
    positions: Checkpoint | Mapping[int, Position],
) -> dict[int, Verdict]:
    """The verdicts by vbucket: on all that are wanted of a checkpoint, or on those of a mapping.

    Errors are those of reading; `StatusError` if a vbucket cannot be asked for now.
    """
    if not isinstance(positions, Checkpoint):
        if not positions:
            return {}
        settings = replace(settings, vbuckets=frozenset(positions))
    settings = replace(settings, start=positions, end="never")
    bearings = await take_bearings(source, access, settings)
    inquiry = _Inquiry(bearings, settings)
    try:
        return await inquiry.run()
    finally:
        inquiry.close()


def probe_and_wait(
    source: Source,
    access: Access,
    settings: ConsumerSettings,
    positions: Checkpoint | Mapping[int, Position],
) -> dict[int, Verdict]:
    """The same for those without an event loop."""
    return asyncio.run(probe(source, access, settings, positions))


class _Inquiry:
    """Asks every node for its vbuckets, and those that moved meanwhile again."""

    def __init__(self, bearings: Bearings, settings: ConsumerSettings) -> None:
        self._bearings = bearings
        self._settings = settings
        self._connections = {c.address: c for c in bearings.connections}
        self._panels: dict[NodeConnection, _Panel] = {}
        self._highs: dict[int, int] = {}

    def close(self) -> None:
        for connection in self._connections.values():
            connection.close()

    async def run(self) -> dict[int, Verdict]:
        # before the streams: what is written while they are asked for makes nobody be ahead
        self._highs = await self._high_seqnos()
        positions = self._bearings.positions
        verdicts = {
            vbucket: Verdict(position, position, (), self._highs.get(vbucket))
            for vbucket, position in positions.items()
        }
        # every server lets everybody begin
        pending = [vbucket for vbucket, position in positions.items() if position.seqno]
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._settings.answer_timeout
        backoff = Backoff(self._settings.retry_first, self._settings.retry_most)
        while pending:
            refused = await self._round(pending, verdicts)
            pending = list(refused)
            if refused:
                pause = backoff.next_pause()
                first = next(iter(refused.values()))
                lasting = [e for e in refused.values() if not e.retriable]
                if lasting or loop.time() + pause > deadline:
                    raise lasting[0] if lasting else first
                await asyncio.sleep(pause)
                await self._renew_map()
        return verdicts

    async def _high_seqnos(self) -> dict[int, int]:
        try:
            return await self._bearings.high_seqnos(self._connections.values())
        except (ConnectionFailed, ProtocolError, StatusError):
            return {}  # servers of the oldest drafts know no such question

    async def _renew_map(self) -> None:
        newer = await self._bearings.ask_map(list(self._connections.values()))
        if newer.is_newer_than(self._bearings.map):
            self._bearings.map = newer

    async def _round(
        self, vbuckets: Iterable[int], verdicts: dict[int, Verdict]
    ) -> dict[int, StatusError]:
        """Asks once for each; returns those that were refused, and how."""
        refused: dict[int, StatusError] = {}
        by_address: dict[Address, list[int]] = {}
        for vbucket in vbuckets:
            owner = self._bearings.map.owner(vbucket)
            if owner is None:
                refused[vbucket] = _refusal(vbucket, Status.NOT_MY_VBUCKET)
            else:
                by_address.setdefault(owner.address, []).append(vbucket)
        panels = await _all_of(map(self._panel, by_address))
        await _all_of(
            panel.ask({vbucket: verdicts[vbucket] for vbucket in asked})
            for panel, asked in zip(panels, by_address.values(), strict=True)
        )
        for panel in panels:
            verdicts |= panel.verdicts
            refused |= panel.refused
        return refused

    async def _panel(self, address: Address) -> _Panel:
        connection = self._connections.get(address)
        if connection is None:
            connection = self._connections[address] = await self._bearings.connect(address)
        if connection not in self._panels:
            self._panels[connection] = _Panel(connection, self._bearings.filter, self._settings)
        return self._panels[connection]


class _Panel:
    """One node, asked for all its vbuckets at once."""

    def __init__(
        self, connection: NodeConnection, collections: bytes, settings: ConsumerSettings
    ) -> None:
        self._connection = connection
        self._session = ConsumerSession(connection.dialect)
        self._options = StreamOptions(end=_AT_ONCE, filter=collections)
        self._timeout = settings.answer_timeout
        self._open: set[int] = set()
        self._answered = asyncio.Event()
        self.verdicts: dict[int, Verdict] = {}
        self.refused: dict[int, StatusError] = {}
        connection.carry(self._session, self._told, self._answered.set)

    async def ask(self, verdicts: Mapping[int, Verdict]) -> None:
        self._open = set(verdicts)
        self._answered.clear()
        self.verdicts, self.refused = dict(verdicts), {}
        if self._connection.lost is None:
            for vbucket, verdict in verdicts.items():
                self._session.open(vbucket, verdict.position, self._options)
            self._connection.flush()
            try:
                async with asyncio.timeout(self._timeout):
                    await self._answered.wait()
            except TimeoutError:
                raise ConnectionFailed(
                    f"did not answer for {len(self._open)} vbuckets",
                    "is it overloaded?",
                    where=str(self._connection.address),
                ) from None
        lost: UpriverError | None = self._connection.lost
        if self._open and lost is not None:
            raise lost

    def _told(self, events: list[Event]) -> None:
        for event in events:
            if isinstance(event, RolledBack):
                self._go_back(event)
            elif isinstance(event, StreamRefused):
                self.refused[event.vbucket] = _refusal(event.vbucket, event.status)
                # from where it is asked for again
                self.verdicts[event.vbucket] = self._anew(self.verdicts[event.vbucket])
                self._open.discard(event.vbucket)
            elif isinstance(event, StreamOpened):
                self._open.discard(event.vbucket)
        if not self._open:
            self._answered.set()

    def _go_back(self, event: RolledBack) -> None:
        verdict = self.verdicts[event.vbucket]
        reason = event.reason
        if reason is RollbackReason.PURGED and _is_ahead(verdict.goes_on, verdict.high_seqno):
            reason = RollbackReason.AHEAD
        self.verdicts[event.vbucket] = replace(
            verdict, goes_on=event.to, reasons=(*verdict.reasons, reason)
        )

    @staticmethod
    def _anew(verdict: Verdict) -> Verdict:
        return replace(verdict, goes_on=verdict.position, reasons=())


async def _all_of(tasks: Iterable[Coroutine[Any, Any, _T]]) -> list[_T]:
    """The results of all; if any fails, its error once none is under way any more."""
    results = await asyncio.gather(*tasks, return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return cast("list[_T]", results)


def _is_ahead(position: Position, high_seqno: int | None) -> bool:
    """Whether what a reader claims to have, or to be in, reaches past the newest seqno.

    A server sends such a reader back to where its snapshot began, which may be 0 too.
    """
    offset = position.offset
    claimed = offset.seqno if offset.seqno == offset.snapshot.start else offset.snapshot.end
    return high_seqno is not None and claimed > high_seqno


def _refusal(vbucket: int, status: Status) -> StatusError:
    return StatusError(status, request=f"the stream of vbucket {vbucket}")
