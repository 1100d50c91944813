"""`ConsumerBase`: the common base of the blocking and the asyncio client.

It holds the options, the engine, the inbox and the checkpoint store. `_next_event` is the way to
the next event for both clients: a generator that yields what it needs, such as the next delivery.
The clients differ only in how they wait for that. This module starts the engine on the running
event loop. It does not know which thread runs that loop, nor how deliveries get from there to the
application.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path
from typing import Any, Final, TypeAlias, Unpack

from ..._unclosed import warn_unclosed
from ...errors import ConfigError
from ...session.consumer_events import Event
from ...session.stream_position import Position
from ..checkpoints.checkpoint import Checkpoint, CheckpointStore
from ..consumer_settings import ConsumerOptions, ConsumerSettings, settings_for
from ..groups.cells import GroupStore
from ..groups.membership import DEFAULT_LEASE, Membership, Revocation, check_settings
from ..groups.store_address import open_group_store
from ..topology.collection_names import SYSTEM_SCOPE, Collections
from ..transport.access import Access
from ..transport.connection_string import Address, Source
from .engine import Engine
from .inbox import Closed, Delivery, Finished, Inbox, Rollback

#: Seconds between two looks whether the lease of a group's member was renewed.
LEASE_TICK: Final = 0.05


class Needs(Enum):
    """What `ConsumerBase._next_event` waits for."""

    #: The next delivery, which is sent into the generator.
    DELIVERY = "delivery"
    #: A pause of `LEASE_TICK` seconds, until the lease may have been renewed.
    PAUSE = "pause"


#: What it needs in between (a `Revocation` is for ``on_revoked``), what it is sent, and the event;
#: None at the end of reading.
NextEvent: TypeAlias = Generator[Needs | Revocation, Delivery | None, Event | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadingStatus:
    """State of a subscription at one moment; shows if it is idle or cut off."""

    #: The nodes that own unfinished vbuckets, and whether each is connected.
    nodes: Mapping[Address, bool]
    #: The unfinished vbuckets, and whether each has an open stream.
    vbuckets: Mapping[int, bool]
    #: By vbucket: the last seqno received, and the last seqno handed to the application.
    received: Mapping[int, int]
    seqnos: Mapping[int, int]
    #: Number of changes handed to the application.
    rows: int
    #: Event counters: lost connections, rollbacks by reason, broken protocol rules by name.
    counts: Mapping[str, int]

    @property
    def is_whole(self) -> bool:
        """Whether all nodes are connected and all streams open.

        If no change arrives while this is true, the bucket has no new change.
        """
        return all(self.nodes.values()) and all(self.vbuckets.values())


class ConsumerBase(ABC):
    """Streams the changes of a bucket once, from the given options to the end or to `close`."""

    #: The kind of block to use the client in, for error messages.
    _block = "a with"

    def __init__(
        self,
        source: str | Source,
        *,
        access: Access | None = None,
        checkpoint: CheckpointStore | None = None,
        on_rollback: Callable[[Rollback], None] | None = None,
        group: str | None = None,
        members: str | Path | GroupStore | None = None,
        lease: float = DEFAULT_LEASE,
        on_assigned: Callable[[frozenset[int]], None] | None = None,
        on_revoked: Callable[[Revocation], Any] | None = None,
        settings: ConsumerSettings | None = None,
        **options: Unpack[ConsumerOptions],
    ) -> None:
        self._running: tuple[Engine, Inbox] | None = None
        self._begun = False
        self._finished = False
        self._closed = False
        self._source = Source.parse(source) if isinstance(source, str) else source
        self._access = access or Access()
        self._settings = settings_for(settings, options, checkpoint)
        self._store = checkpoint
        self._on_rollback = on_rollback
        self._on_revoked = on_revoked
        self._group: Membership | None = None
        if group is not None:
            check_settings(self._settings)
            if checkpoint is not None:
                raise ConfigError("a group keeps its own positions: leave checkpoint out")
            store = open_group_store(members, self._source, self._access)
            self._group = Membership(group, store, lease=lease, on_assigned=on_assigned)
        elif members is not None or on_assigned is not None or on_revoked is not None:
            raise ConfigError("members, on_assigned and on_revoked are for a group: give its name")
        self._prepare()

    @abstractmethod
    def _prepare(self) -> None:
        """Creates the delivery queue and the locks of this kind of client."""

    def __del__(self) -> None:
        if getattr(self, "_begun", False) and not self._closed:
            warn_unclosed(self, self._source, f"use it in {self._block} block, or call close()")

    def _start_once(self) -> None:
        if self._begun or self._closed:
            raise RuntimeError("a consumer can be started only once: create another one")
        self._begun = True

    async def _begin(self, deliver: Callable[[Delivery], None]) -> None:
        """Discovers the bucket and starts streaming."""
        engine = Engine(self._source, self._access, self._settings, deliver)
        if self._group is None:
            await engine.start()
            self._running = engine, self._new_inbox(engine)
            return
        await engine.find()
        engine.begin(shared=True)
        self._running = engine, self._new_inbox(engine)
        await self._group.start(engine, self._settings)

    async def _end_engine(self) -> None:
        """Leaves the group, if there is one, and closes the connections."""
        if self._group is not None:
            await self._group.stop()
        if self._running is not None:
            await self._engine.stop()

    def _new_inbox(self, engine: Engine) -> Inbox:
        topology = engine.topology
        return Inbox(
            engine.discovery.positions if self._group is None else {},
            self._settings,
            self._on_rollback,
            lambda: topology.collections.of_scope(SYSTEM_SCOPE),
            self._group,
        )

    async def _begin_again(self, start: Mapping[int, Position], end: Mapping[int, int]) -> None:
        """Streams other seqno ranges over the open connections."""
        if not self._finished or self._settings.persisted_everywhere is not None:
            raise RuntimeError(
                "a consumer can read other ranges only when it has reached its end, and without "
                "persisted_everywhere"
            )
        self._settings = replace(self._settings, start=start, end=end)
        engine = self._engine
        await engine.start_again(self._settings)
        self._running = engine, self._new_inbox(engine)
        self._finished = False

    def _in_use(self) -> tuple[Engine, Inbox]:
        if self._running is None:
            raise RuntimeError(f"the consumer is not running: use it in {self._block} block")
        return self._running

    @property
    def _engine(self) -> Engine:
        return self._in_use()[0]

    @property
    def _inbox(self) -> Inbox:
        return self._in_use()[1]

    # ---- reading -------------------------------------------------------------------------

    def _next_event(self, *, whole: bool) -> NextEvent:
        """Takes the next event from the deliveries. With ``whole``, its rows count as read."""
        inbox, group = self._inbox, self._group
        while not (self._finished or self._closed):
            if group is not None:
                yield from self._give_up_revoked(group)
            inbox.check()
            if group is not None and not group.may_deliver:
                yield Needs.PAUSE
                continue
            rest = inbox.rest() if whole else inbox.unread
            if rest is not None:
                return rest
            inbox.done()
            delivery = yield Needs.DELIVERY
            assert delivery is not None
            event = inbox.hand_out(delivery, whole=whole)
            if isinstance(event, Finished):
                self._finished = True
            elif event is not None and not isinstance(event, Closed):
                return event
        return None

    async def _close_stream(self, vbucket: int) -> None:
        """Ends one stream; must run on the engine's event loop."""
        if self._group is not None:
            raise ConfigError("a member of a group reads what the group gives it: leave the group")
        engine, inbox = self._in_use()
        engine.close_stream(vbucket)
        inbox.close(vbucket)

    def _give_up_revoked(self, group: Membership) -> Generator[Revocation, None, None]:
        """Gives up what the group takes away; yields what ``on_revoked`` is called with."""
        for revocation in group.pending():
            begun = group.begun(revocation)
            try:
                if begun.vbuckets and self._on_revoked is not None:
                    yield begun
            finally:
                self._inbox.drop(revocation.vbuckets)
                group.agree(revocation)

    # ---- position and status -------------------------------------------------------------

    @property
    def finished(self) -> bool:
        """Whether every change up to the requested end was handed out, but for closed streams."""
        return self._finished

    def position(self) -> Checkpoint:
        """The application's position: after everything that was handed to it.

        Vbuckets that are not read keep the position of the checkpoint that reading started from. A
        member of a group has the positions of its own vbuckets only.
        """
        engine, inbox = self._in_use()
        start, cluster = self._settings.start, engine.topology.map
        before = start.positions if isinstance(start, Checkpoint) else {}
        return Checkpoint(
            bucket=self._source.bucket,
            bucket_uuid=cluster.bucket_uuid,
            vbuckets=len(cluster.vbuckets),
            positions={**before, **inbox.positions()},
        )

    def _save(self, position: Checkpoint) -> None:
        if self._group is not None:
            self._group.save(position.positions, self._inbox.rollbacks)
            return
        if self._store is None:
            raise ValueError("there is no checkpoint store to save to: give one as checkpoint=")
        self._store.save(position)

    def _status(self) -> ReadingStatus:
        engine, inbox = self._in_use()
        return ReadingStatus(
            nodes=engine.connected(),
            vbuckets=engine.carried(),
            received=engine.received(),
            seqnos=inbox.seqnos(),
            rows=inbox.rows,
            counts=dict(engine.counts),
        )

    @property
    def collections(self) -> Collections:
        """The names of the bucket's scopes and collections."""
        return self._engine.topology.collections
