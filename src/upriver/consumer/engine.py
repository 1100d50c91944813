"""The reading of a bucket: every wanted vbucket carried by a connection to the node that has it.

One task supervises: whatever is not carried is placed where the cluster map says, with pauses that
grow where it does not work. Connections report what their sessions tell; a lost one only leaves
its readers uncarried, at the positions they had reached. What is read goes to ``deliver`` in the
order in which an application must see it. The engine lives on one event loop, and knows nothing of
applications, threads or checkpoint files.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections import Counter
from collections.abc import Callable
from typing import Final

from ..errors import (
    AuthenticationFailed,
    BucketNotFound,
    ConfigError,
    ConnectionFailed,
    ProtocolError,
    RemoteProtocolError,
    RollbackRequired,
    Status,
    StatusError,
    StreamEnded,
    StreamRuleBroken,
    UpriverError,
)
from ..model import NO_END, StreamEndReason
from ..session.consumer import ConsumerSession, StreamOptions
from ..session.events import (
    Event,
    MapPushed,
    RolledBack,
    Rows,
    StateAsked,
    StreamFinished,
    StreamOpened,
    StreamRefused,
    SystemHappened,
)
from ..wire import messages as m
from ..wire.dialects import Dcp
from ..wire.names import StreamFlag
from .access import Access
from .bearings import Bearings, take_bearings
from .delivery import Delivery, Failed, Finished
from .gate import PersistenceGate
from .node import NodeConnection
from .readers import Backoff, Reader
from .settings import ConsumerSettings, RollbackPolicy
from .source import Address, Source
from .topology import ClusterMap

__all__ = ["Engine"]

_log = logging.getLogger(__name__)

#: Seconds for which a node that restarts may not have its buckets yet; then they are taken for
#: deleted. Couchbase's nodes take some seconds.
_BUCKET_COMES_BACK: Final = 60.0
#: A node that breaks rules this often, with nothing good in between, is not tried again.
_MOST_BROKEN_IN_A_ROW: Final = 8
#: Ends after which a stream is asked for again, because only its place or time was wrong.
_REOPENED: Final = frozenset(
    {
        StreamEndReason.OK,  # before its own end
        StreamEndReason.CLOSED,
        StreamEndReason.STATE_CHANGED,
        StreamEndReason.DISCONNECTED,
        StreamEndReason.TOO_SLOW,
        StreamEndReason.BACKFILL_FAILED,
        StreamEndReason.ROLLBACK,
    }
)


class Engine:
    """Reads a bucket."""

    def __init__(
        self,
        source: Source,
        access: Access,
        settings: ConsumerSettings,
        deliver: Callable[[Delivery], None],
    ) -> None:
        self._source = source
        self._access = access
        self._settings = settings
        self._deliver = deliver
        self._bearings: Bearings
        self._readers: dict[int, Reader] = {}
        self._sessions: dict[NodeConnection, ConsumerSession] = {}
        self._connections: dict[Address, NodeConnection] = {}
        self._connecting: dict[Address, asyncio.Task[None]] = {}
        self._backoffs: dict[Address, Backoff] = {}
        self._map_is_old = False
        self._broken_in_a_row = 0
        self._wake = asyncio.Event()
        self._supervisor: asyncio.Task[None] | None = None
        #: Other tasks that live as long as the reading.
        self._tasks: list[asyncio.Task[None]] = []
        self._over = False
        #: How often what happened: reconnects, rollbacks by reason, broken rules by name.
        self.counts: Counter[str] = Counter()

    # ---- life ----------------------------------------------------------------------------

    async def start(self) -> Bearings:
        """Finds the bucket, and begins; returns where everything is."""
        bearings = await take_bearings(self._source, self._access, self._settings)
        self._bearings = bearings
        for connection in bearings.connections:
            if connection.lost is None:  # others are connected to again
                self._adopt(connection)
        if self._settings.persisted_everywhere is not None:
            gate = PersistenceGate(
                bearings,
                self._settings.persisted_everywhere,
                lambda: list(self._connections.values()),
                self._deliver,
            )
            self._deliver = gate.take
            self._tasks.append(asyncio.create_task(gate.run()))
        self._begin()
        return bearings

    def _begin(self) -> None:
        """A reader for each vbucket that is wanted, and somebody to place them."""
        now = asyncio.get_running_loop().time()
        self._readers = {
            vbucket: Reader(
                vbucket,
                position,
                self._bearings.ends.get(vbucket, NO_END),
                self._new_backoff(),
                idle_since=now,
            )
            for vbucket, position in self._bearings.positions.items()
        }
        self._over = False
        self._supervisor = asyncio.create_task(self._supervise())

    async def start_again(self, settings: ConsumerSettings) -> Bearings:
        """Reads other ranges once everything was read, over the connections that are left.

        Only the settings' start and end may be others than before. `ConnectionFailed` if no
        connection is left.
        """
        await self._bearings.look_again(settings, list(self._connections.values()))
        self._settings = settings
        self._begin()
        return self._bearings

    async def stop(self) -> None:
        """Hangs up."""
        self._over = True
        tasks = [*self._connecting.values(), *self._tasks]
        if self._supervisor is not None:
            tasks.append(self._supervisor)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for connection in list(self._sessions):
            connection.close()

    @property
    def bearings(self) -> Bearings:
        return self._bearings

    def connected(self) -> dict[Address, bool]:
        """The nodes that are needed, and whether they are connected."""
        owners = {self._owner(reader) for reader in self._readers.values() if not reader.done}
        return {address: address in self._connections for address in owners if address}

    def carried(self) -> dict[int, bool]:
        """The vbuckets that are not at their end, and whether their changes flow."""
        return {
            reader.vbucket: reader.carrier is not None
            and self._sessions[reader.carrier].is_open(reader.vbucket)
            for reader in self._readers.values()
            if not reader.done
        }

    def received(self) -> dict[int, int]:
        """How far each vbucket was received."""
        return {
            reader.vbucket: reader.position.seqno
            if reader.carrier is None
            else self._sessions[reader.carrier].seqno(reader.vbucket)
            for reader in self._readers.values()
        }

    async def high_seqnos(self) -> dict[int, int]:
        """The newest seqno that the nodes have of each vbucket."""
        return await self._bearings.high_seqnos(list(self._connections.values()))

    def _new_backoff(self) -> Backoff:
        return Backoff(self._settings.retry_first, self._settings.retry_most)

    def _fail(self, error: UpriverError) -> None:
        if not self._over:
            self._over = True
            self._deliver(Delivery(Failed(error)))
            self._wake.set()

    # ---- placing -------------------------------------------------------------------------

    async def _supervise(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            while not self._over:
                self._wake.clear()
                if self._map_is_old:
                    self._map_is_old = False
                    await self._renew_map()
                pause = self._place_all(loop.time())
                try:
                    async with asyncio.timeout(pause):
                        await self._wake.wait()
                except TimeoutError:
                    pass
        except UpriverError as error:
            self._fail(error)
        except Exception as error:  # a fault of ours must not look like a quiet bucket
            _log.exception("the reading of %s failed", self._source)
            self._fail(UpriverError(f"the reading failed: {error!r}"))

    def _place_all(self, now: float) -> float | None:
        """Places what can be placed now; returns when to look again, None if when woken."""
        waiting = [reader for reader in self._readers.values() if reader.waits]
        if not waiting and all(reader.done for reader in self._readers.values()):
            self._over = True
            self._deliver(Delivery(Finished()))
            return 0
        pause = self._leave_the_deaf(now)
        touched = set()
        for reader in waiting:
            if now - reader.idle_since > self._settings.give_up_after:
                raise reader.trouble or ConnectionFailed(
                    f"has no vbucket {reader.vbucket}", "is the cluster whole?"
                )
            if reader.not_before > now:
                wait = reader.not_before - now
                pause = wait if pause is None else min(pause, wait)
                continue
            address = self._owner(reader)
            if address is None:
                self._put_off(reader, now)
                self._map_is_old = True
                first = self._settings.retry_first
                pause = first if pause is None else min(pause, first)
            elif (connection := self._connections.get(address)) is not None:
                self._place(reader, connection)
                touched.add(connection)
                patience = self._settings.answer_timeout
                pause = patience if pause is None else min(pause, patience)
            elif address not in self._connecting:
                self._connecting[address] = asyncio.create_task(self._connect(address))
        for connection in touched:
            connection.flush()
        return pause

    def _owner(self, reader: Reader) -> Address | None:
        node = self._bearings.map.owner(reader.vbucket)
        return None if node is None else node.address

    def _place(self, reader: Reader, connection: NodeConnection) -> None:
        one_branch = self._settings.rollback is RollbackPolicy.STOP
        # a node that was demoted still streams its copy to who does not say so, and some stumble
        active = StreamFlag.ACTIVE_ONLY
        options = StreamOptions(
            end=reader.end,
            flags=active if isinstance(connection.dialect, Dcp) else StreamFlag.NONE,
            filter=self._bearings.filter,
            same_branch=one_branch,
            # whoever keeps to a branch is told by the answer whether it is still served
            asks_log=not one_branch or reader.sent_back,
        )
        self._sessions[connection].open(reader.vbucket, reader.position, options)
        reader.carrier, reader.asked_at = connection, asyncio.get_running_loop().time()

    def _leave_the_deaf(self, now: float) -> float | None:
        """Leaves nodes that do not answer a reader; returns when the next one has had its time."""
        patience = self._settings.answer_timeout
        pause: float | None = None
        for reader in self._readers.values():
            node = reader.carrier
            if node is None or reader.flowed or not node.listens:
                continue
            left = reader.asked_at + patience - now
            if left <= 0:
                problem = f"did not answer the request for vbucket {reader.vbucket}"
                node.leave(ConnectionFailed(problem, "is it overloaded?"))
            else:
                pause = left if pause is None else min(pause, left)
        return pause

    def _put_off(self, reader: Reader, now: float) -> None:
        reader.not_before = now + reader.backoff.next_pause()

    async def _connect(self, address: Address) -> None:
        """Connects to a node; what waits for it is placed by the supervisor."""
        backoff = self._backoffs.setdefault(address, self._new_backoff())
        try:
            connection = await self._bearings.connect(address)
            if connection.lost is not None:
                raise connection.lost
        except (AuthenticationFailed, ConfigError) as error:
            self._fail(error)
            return
        except (ConnectionFailed, ProtocolError, StatusError) as error:
            _log.warning("%s", error)
            pause = backoff.next_pause()
            now = asyncio.get_running_loop().time()
            for reader in self._readers.values():
                if reader.waits and self._owner(reader) == address:
                    reader.trouble = error
                    reader.not_before = now + pause
                    away = now - reader.idle_since
                    if isinstance(error, BucketNotFound) and away > _BUCKET_COMES_BACK:
                        self._fail(error)
            self._map_is_old = True
        else:
            self._adopt(connection)
        finally:
            self._connecting.pop(address, None)
            self._wake.set()

    def _adopt(self, connection: NodeConnection) -> None:
        refuse = self._settings.rollback in (RollbackPolicy.FAIL, RollbackPolicy.STOP)
        session = ConsumerSession(connection.dialect, refuse_rollback=refuse)
        self._sessions[connection] = session
        self._connections[connection.address] = connection
        connection.carry(
            session,
            lambda events: self._told(connection, events),
            lambda: self._lost(connection),
        )

    async def _renew_map(self) -> None:
        """Asks whoever is connected; else a node that is known, until one answers."""
        try:
            newer = await self._bearings.ask_map(list(self._connections.values()))
        except (ConnectionFailed, ProtocolError, StatusError) as error:
            _log.warning("no cluster map: %s", error)
        else:
            self._learn_map(newer)

    def _learn_map(self, newer: ClusterMap) -> None:
        if len(newer.vbuckets) != len(self._bearings.map.vbuckets):
            raise ConfigError(
                f"the bucket had {len(self._bearings.map.vbuckets)} vbuckets and now has "
                f"{len(newer.vbuckets)}: it is another one, start from its beginning"
            )
        if newer.is_newer_than(self._bearings.map):
            self._bearings.map = newer

    # ---- what connections tell -----------------------------------------------------------

    def _lost(self, connection: NodeConnection) -> None:
        session = self._sessions.pop(connection)
        if self._connections.get(connection.address) is connection:
            del self._connections[connection.address]
        error = connection.lost
        assert error is not None
        self.counts["connections lost"] += 1
        if isinstance(error, RemoteProtocolError):
            self._broken_in_a_row += 1
            rule = error.rule if isinstance(error, StreamRuleBroken) else "decoding"
            self.counts[f"broken rule: {rule}"] += 1
            if self._broken_in_a_row >= _MOST_BROKEN_IN_A_ROW:
                self._fail(error)
        now = asyncio.get_running_loop().time()
        backoff = self._backoffs.setdefault(connection.address, self._new_backoff())
        pause = backoff.next_pause()
        for vbucket in session.vbuckets:
            reader = self._readers[vbucket]
            reader.position = session.position(vbucket)
            self._leave(reader, now, error)
            reader.not_before = now + pause
        if not self._over:
            _log.warning("%s; trying again in %.2f s", error, pause)
        self._map_is_old = True
        self._wake.set()

    def _leave(self, reader: Reader, now: float, trouble: UpriverError) -> None:
        reader.carrier = None
        reader.trouble = trouble
        if reader.flowed:
            reader.flowed, reader.idle_since = False, now

    def _told(self, connection: NodeConnection, events: list[Event]) -> None:
        for event in events:
            if isinstance(event, Rows):
                self._broken_in_a_row = 0
                connection.held += event.counted
                self._deliver(Delivery(event, connection))
            elif isinstance(event, StreamFinished):
                self._finished(event)
            elif isinstance(event, StreamRefused):
                self._refused(connection, event)
            elif isinstance(event, RolledBack):
                self._rolled_back(event)
            elif isinstance(event, MapPushed):
                self._map_is_old = True
                self._wake.set()
            elif isinstance(event, StateAsked):
                self._sessions[connection].confirm_state(event.vbucket)
                connection.flush()
                self._deliver(Delivery(event))
            else:
                self._note(event)
                self._deliver(Delivery(event))

    def _note(self, event: Event) -> None:
        if isinstance(event, StreamOpened):
            reader = self._readers[event.vbucket]
            reader.backoff.reset()
            reader.flowed = True
            if reader.carrier is not None:
                self._backoffs.setdefault(reader.carrier.address, self._new_backoff()).reset()
        elif isinstance(event, SystemHappened) and not isinstance(event.event, m.SystemEvent):
            self._bearings.note(event.event)

    def _rolled_back(self, event: RolledBack) -> None:
        if event.refused:
            reader = self._readers[event.vbucket]
            reader.carrier = None
            self._wake.set()
            keeps_to_one = self._settings.rollback is RollbackPolicy.STOP
            if keeps_to_one and not len(event.served) and not reader.sent_back:
                reader.sent_back = True  # it is asked for once more, behind the history
                return
            reader.done = True
        self.counts[f"rollback: {event.reason.value}"] += 1
        if self._settings.rollback is RollbackPolicy.FAIL:
            reason = event.reason.value
            self._fail(RollbackRequired(vbucket=event.vbucket, seqno=event.to.seqno, reason=reason))
        else:
            self._deliver(Delivery(event))

    def _finished(self, event: StreamFinished) -> None:
        reader = self._readers[event.vbucket]
        reader.position = event.position
        now = asyncio.get_running_loop().time()
        ended = event.reason.name.lower().replace("_", " ")
        self._leave(reader, now, StreamEnded(vbucket=event.vbucket, reason=ended))
        self._wake.set()
        at_its_end = event.reason is StreamEndReason.OK and reader.end != NO_END
        if at_its_end or event.reason is StreamEndReason.FILTER_EMPTY:
            reader.done = True
            self._deliver(Delivery(event))
        elif event.reason in _REOPENED:
            self.counts[f"stream ended: {ended}"] += 1
            self._put_off(reader, now)
            self._map_is_old = True
        else:
            self._fail(StreamEnded(vbucket=event.vbucket, reason=ended))

    def _is_behind(self, event: StreamRefused) -> bool:
        """Whether a node lacks a collection only because it has not heard of it yet."""
        if event.status not in (Status.UNKNOWN_COLLECTION, Status.UNKNOWN_SCOPE):
            return False
        try:
            return int(json.loads(event.value)["manifest_uid"], 16) < self._bearings.collections.uid
        except (ValueError, KeyError, TypeError, RecursionError):
            return False

    def _refused(self, connection: NodeConnection, event: StreamRefused) -> None:
        reader = self._readers[event.vbucket]
        reader.position = event.position
        now = asyncio.get_running_loop().time()
        error = StatusError(event.status, request=f"the stream of vbucket {event.vbucket}")
        self._leave(reader, now, error)
        later = event.status.retriable or event.status is Status.EXISTS
        if not later and not self._is_behind(event):
            self._fail(error)
            return
        self._put_off(reader, now)
        self._wake.set()
        if event.status is Status.NOT_MY_VBUCKET:
            self._map_is_old = True
            if event.value:
                try:
                    self._learn_map(self._bearings.parse_map(event.value, connection.address))
                except RemoteProtocolError as problem:
                    _log.warning("%s", problem)
                except ConfigError as problem:
                    self._fail(problem)
