"""Consumer engine: streams every wanted vbucket from the node that owns it, and reconnects.

One supervisor task opens a stream for each vbucket that has none, on a connection to the owner that
the cluster map names. Failed attempts are repeated with back-off. Connections report the events of
their sessions to `EventDispatch`. When a connection is lost, its vbuckets keep the positions that
they had reached, and the supervisor opens their streams again. Events go to ``deliver`` in the
order in which an application must see them.

The engine runs on one event loop. It knows nothing of applications, threads or checkpoint files.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from typing import Final

from ...errors import (
    AuthenticationFailed,
    BucketNotFound,
    ConfigError,
    ConnectionFailed,
    StreamEnded,
    UpriverError,
)
from ...model import NO_END, StreamEndReason
from ...session.consumer_events import StreamFinished
from ...session.consumer_session import ConsumerSession
from ...session.requested_stream import StreamOptions
from ...session.stream_position import Position
from ...wire.protocol_enums import StreamFlag
from ..consumer_settings import ConsumerSettings, RollbackPolicy
from ..topology.cluster_view import NODE_TROUBLE, Topology, is_final
from ..topology.discovery import Discovery
from ..topology.request_routing import renew_map
from ..transport.access import Access
from ..transport.async_connection import AsyncConnection
from ..transport.async_pool import AsyncNodes
from ..transport.background_errors import FaultGuard
from ..transport.connection_string import Address, Source
from .event_dispatch import EventDispatch
from .inbox import Assigned, Delivery, Failed, Finished
from .map_watch import MapWatch
from .persistence_gate import PersistenceGate
from .stream_watchdog import StreamWatchdog
from .vbucket_fetch_state import VBucketFetchState

_log = logging.getLogger(__name__)

#: Seconds for which a restarting node may answer "bucket not found" before the bucket counts as
#: deleted. Couchbase nodes need a few seconds to load their buckets.
_BUCKET_COMES_BACK: Final = 60.0
#: Seconds between two checks of all streams, at least.
_WATCH_SECONDS: Final = 0.25


class Engine:
    """Streams the changes of a bucket from all its nodes into ``deliver``."""

    def __init__(
        self,
        source: Source,
        access: Access,
        settings: ConsumerSettings,
        deliver: Callable[[Delivery], None],
    ) -> None:
        self._source = source
        self._settings = settings
        self._to_application = deliver
        self._loop = asyncio.get_running_loop()
        self.topology = Topology(
            source,
            network=settings.network,
            first_pause=settings.retry_first,
            longest_pause=settings.retry_most,
            clock=self._loop.time,
        )
        self._nodes = AsyncNodes(self.topology, access, settings)
        self.discovery = Discovery(self._nodes, settings)
        self._readers: dict[int, VBucketFetchState] = {}
        self._sessions: dict[AsyncConnection, ConsumerSession] = {}
        self._connecting: dict[Address, asyncio.Task[None]] = {}
        self._wake = asyncio.Event()
        self._supervisor: asyncio.Task[None] | None = None
        #: Background tasks besides the supervisor; `stop` cancels them.
        self._tasks: list[asyncio.Task[None]] = []
        self._over = False
        #: Whether vbuckets come and go, so that reading goes on although there are none.
        self._is_shared = False
        self._gate: PersistenceGate | None = None
        #: Nodes of whose loss a warning was logged; None stands for the cluster map.
        self._warned: set[Address | None] = set()
        self.guard = FaultGuard(self._fail)
        self._events = EventDispatch(
            self._readers,
            self._sessions,
            self._nodes,
            settings,
            deliver=self.deliver,
            fail=self._fail,
            wake=self._wake.set,
            warn=self._warn,
        )
        #: Event counters: lost connections, rollbacks by reason, broken protocol rules by name.
        self.counts = self._events.counts

    # ---- lifecycle -----------------------------------------------------------------------

    async def start(self) -> None:
        """Discovers the bucket and starts streaming."""
        await self.find()
        self.begin()

    async def find(self) -> None:
        """Discovers the bucket and connects to its nodes, without opening streams."""
        await self.discovery.find()
        for connection in list(self._nodes.connections.values()):
            if connection.lost is None:
                self._adopt(connection)
            else:  # lost meanwhile: the supervisor connects again
                self._nodes.forget(connection)
        if self._settings.persisted_everywhere is not None:
            self._gate = PersistenceGate(
                self._nodes,
                self.discovery.positions,
                self._settings.persisted_everywhere,
                self._to_application,
            )
            self._tasks.append(self.guard.task(self._gate.run))

    def begin(self, *, shared: bool = False) -> None:
        """Starts streaming: makes a reader for each wanted vbucket and starts the supervisor.

        With ``shared`` there are none at first, and `add` and `remove` say which are streamed.
        """
        self._is_shared = shared
        self._readers.clear()
        if not shared:
            self._make_readers(self.discovery.positions)
        #: When all streams are checked again, at the earliest.
        self._next_watch = 0.0
        self._watchdog = StreamWatchdog(
            self._sessions, self._settings, self.discovery.high_seqnos, self._events.finished
        )
        self._map_watch = MapWatch(self.topology, self._sessions, self._settings.map_interval)
        self._over = False
        self._supervisor = self.guard.task(self._supervise)

    def _make_readers(self, positions: Mapping[int, Position]) -> None:
        now = self._loop.time()
        for vbucket, position in positions.items():
            end = self.discovery.ends.get(vbucket, NO_END)
            backoff = self.topology.new_backoff()
            self._readers[vbucket] = VBucketFetchState(
                vbucket, position, end, backoff, idle_since=now
            )

    def add(self, positions: Mapping[int, Position], generations: Mapping[int, int]) -> None:
        """Streams more vbuckets, from these positions."""
        if self._gate is not None:
            self._gate.begin(positions)
        self.deliver(Delivery(Assigned(positions, generations)))
        self._make_readers(positions)
        self._wake.set()

    def remove(self, vbuckets: Collection[int]) -> None:
        """Streams vbuckets no longer. What was delivered of them may still wait to be read."""
        self._end_streams([self._readers.pop(vb) for vb in vbuckets if vb in self._readers])

    def close_stream(self, vbucket: int) -> None:
        """Ends the stream of one vbucket, and requests it no more. No effect if it has ended."""
        reader = self._readers.get(vbucket)
        if reader is None:
            raise ConfigError(f"vbucket {vbucket} is not read by this consumer; nothing to close")
        if reader.done:
            return
        self._end_streams([reader])
        reader.done = True
        closed = StreamFinished(vbucket, StreamEndReason.CLOSED, reader.position)
        self.deliver(Delivery(closed))
        self._wake.set()

    def _end_streams(self, readers: Collection[VBucketFetchState]) -> None:
        """Closes the streams of readers, and discards what the gate still holds of them."""
        touched: dict[AsyncConnection, None] = {}
        for reader in readers:
            if reader.carrier is not None:
                session = self._sessions[reader.carrier]
                reader.position = session.position(reader.vbucket)
                session.close(reader.vbucket)
                touched[reader.carrier] = None
                reader.carrier = None
        for connection in touched:
            connection.flush()
        if self._gate is not None:
            self._gate.forget([reader.vbucket for reader in readers])

    async def start_again(self, settings: ConsumerSettings) -> None:
        """Streams other seqno ranges after all vbuckets have ended, over the open connections.

        Only ``start`` and ``end`` of the settings may differ from before. Raises
        `ConnectionFailed` if no connection is open.
        """
        await self.discovery.look_again(settings)
        self._settings = settings
        self.begin()

    async def stop(self) -> None:
        """Cancels all tasks and closes all connections."""
        self._over = True
        tasks = [*self._connecting.values(), *self._tasks]
        if self._supervisor is not None:
            tasks.append(self._supervisor)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for connection in list(self._sessions):
            connection.close()
        self._nodes.close()

    @property
    def negotiates(self) -> bool:
        """Whether a stream connection also answers other requests, as in all but the old drafts."""
        connections = self._nodes.connections.values()
        return any(connection.dialect.negotiates for connection in connections)

    def connected(self) -> dict[Address, bool]:
        """The nodes that own unfinished vbuckets, and whether each is connected."""
        owners = {self._owner(reader) for reader in self._readers.values() if not reader.done}
        return {address: address in self._nodes.connections for address in owners if address}

    def carried(self) -> dict[int, bool]:
        """The unfinished vbuckets, and whether each has an open stream."""
        return {
            reader.vbucket: reader.carrier is not None
            and self._sessions[reader.carrier].is_open(reader.vbucket)
            for reader in self._readers.values()
            if not reader.done
        }

    def received(self) -> dict[int, int]:
        """The last received seqno of each vbucket."""
        return {
            reader.vbucket: reader.position.seqno
            if reader.carrier is None
            else self._sessions[reader.carrier].seqno(reader.vbucket)
            for reader in self._readers.values()
        }

    # ---- events and failure --------------------------------------------------------------

    def deliver(self, delivery: Delivery) -> None:
        """Delivers an event to the application, through the persistence gate if there is one."""
        if self._gate is None:
            self._to_application(delivery)
        else:
            self._gate.hold_back(delivery)

    def _fail(self, error: UpriverError) -> None:
        if not self._over:
            self._over = True
            self.deliver(Delivery(Failed(error)))
            self._wake.set()

    # ---- opening streams -----------------------------------------------------------------

    async def _supervise(self) -> None:
        while not self._over:
            self._wake.clear()
            if self.topology.map_is_old or self._map_watch.left(self._loop.time()) == 0:
                self.topology.map_is_old = False
                await self._renew_map()
            pauses = self._place_all(self._loop.time()), self._map_watch.left(self._loop.time())
            pause = min((pause for pause in pauses if pause is not None), default=None)
            with suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._wake.wait()

    def _place_all(self, now: float) -> float | None:
        """Opens every stream that can be opened now.

        Returns the seconds until the next call is needed, or None if only an event requires one.
        """
        waiting = [reader for reader in self._readers.values() if reader.waits]
        done = all(reader.done for reader in self._readers.values())
        if done and not waiting and not self._is_shared:
            self._over = True
            self.deliver(Delivery(Finished()))
            return 0
        pauses = self._watch(now)
        touched: dict[AsyncConnection, None] = {}
        for reader in waiting:
            if (error := self._given_up(reader, now)) is not None:
                raise error
            if reader.not_before > now:
                pauses.append(reader.not_before - now)
                continue
            if reader.unconfirmed:
                self.topology.map_is_old = True
                reader.put_off(now)
                pauses.append(reader.not_before - now)
                continue
            address = self._owner(reader)
            if address is None:
                reader.put_off(now)
                self.topology.map_is_old = True
                pauses.append(self._settings.retry_first)
            elif (connection := self._nodes.connections.get(address)) is not None:
                self._place(reader, connection)
                touched[connection] = None
                pauses.append(self._settings.answer_timeout)
            elif address not in self._connecting:
                self._connecting[address] = self.guard.task(self._connect, address)
        for connection in touched:
            connection.flush()
        return min(pauses, default=None)

    def _given_up(self, reader: VBucketFetchState, now: float) -> UpriverError | None:
        """The error of a vbucket that has had no stream of use for too long."""
        patience = self._settings.give_up_after
        if reader.futile:  # a stream that was accepted has that long to bring something
            patience += self._settings.answer_timeout
        if now - reader.idle_since <= patience:
            return None
        if reader.futile and isinstance(reader.trouble, StreamEnded):
            where = f"of vbucket {reader.vbucket} after seqno {reader.position.seqno}"
            return ConnectionFailed(
                f"sent nothing more {where} for {patience:g} s",
                "see its log, and whether it gets that far",
                where=str(self._owner(reader)),
            )
        return reader.trouble or self.topology.no_owner_error(reader.vbucket)

    def _owner(self, reader: VBucketFetchState) -> Address | None:
        return self.topology.owner(reader.vbucket)

    def _place(self, reader: VBucketFetchState, connection: AsyncConnection) -> None:
        one_branch = self._settings.rollback is RollbackPolicy.STOP
        # Without this flag a node streams its copy even after it stopped being the owner, and
        # some nodes fail while doing so.
        active = StreamFlag.ACTIVE_ONLY
        options = StreamOptions(
            end=reader.end,
            flags=active if connection.dialect.negotiates else StreamFlag.NONE,
            filter=self.discovery.filter,
            same_branch=one_branch,
            # with STOP, the answer to the stream request says whether the branch is still served
            asks_log=not one_branch or reader.sent_back,
            group=self._settings.connection_name,
        )
        self._sessions[connection].open(reader.vbucket, reader.position, options)
        reader.asked(self._loop.time(), connection)

    def _watch(self, now: float) -> list[float]:
        """Checks for stalled streams and unanswered requests; returns when to check again.

        Each check looks at every stream, and the supervisor is woken by every stream that ends.
        """
        if now < self._next_watch:
            return [self._next_watch - now]
        self._next_watch = now + _WATCH_SECONDS
        readers = self._readers.values()
        silent, pauses = self._map_watch.silent_strays(readers, now)
        for reader in silent:
            self._move(reader, now)
        pauses += self._watchdog.leave_unresponsive(readers, now)
        stalled, more = self._watchdog.stalled(readers, now)
        if stalled:
            self._tasks = [task for task in self._tasks if not task.done()]
            self._tasks.append(self.guard.task(self._ask_about, stalled))
        return pauses + more

    def _move(self, reader: VBucketFetchState, now: float) -> None:
        """Closes a silent stream at a former owner; the supervisor opens it at the new owner."""
        node = reader.carrier
        assert node is not None
        session = self._sessions[node]
        reader.position = session.position(reader.vbucket)
        session.close(reader.vbucket)
        node.flush()
        moved = StreamEnded(vbucket=reader.vbucket, reason="moved to another node")
        reader.leave(now, moved, self._settings.retry_most)
        self.counts["moved to another node"] += 1
        _log.info("vbucket %d moved from %s to another node", reader.vbucket, node.address)
        self._wake.set()

    async def _ask_about(self, stalled: list[VBucketFetchState]) -> None:
        try:
            await self._watchdog.ask_about(stalled)
        except NODE_TROUBLE as error:
            _log.warning("%s", error)

    async def _connect(self, address: Address) -> None:
        """Connects to a node; the supervisor then opens the streams that wait for it."""
        try:
            connection = await self._nodes.connect(address)
            if connection.lost is not None:
                self._nodes.forget(connection)
                raise connection.lost
        except (AuthenticationFailed, ConfigError) as error:
            self._fail(error)
        except NODE_TROUBLE as error:
            self._warn(address, "%s", error)
            pause = self.topology.backoff(address).next_pause()
            now = self._loop.time()
            for reader in self._readers.values():
                if reader.waits and self._owner(reader) == address:
                    reader.trouble = error
                    reader.not_before = now + pause
                    away = now - reader.idle_since
                    if isinstance(error, BucketNotFound) and away > _BUCKET_COMES_BACK:
                        self._fail(error)
            self.topology.map_is_old = True
        else:
            self._adopt(connection)
        finally:
            self._connecting.pop(address, None)
            self._wake.set()

    def _warn(self, address: Address | None, text: str, *facts: object) -> None:
        """Logs a warning about a node, and only once until that node is connected again.

        While a node is gone, there is no cluster map of it either: that is the same trouble. After
        the end nothing is tried again, and nothing is logged.
        """
        if self._over:
            return
        again = address in self._warned or (address is None and bool(self._warned))
        _log.log(logging.DEBUG if again else logging.WARNING, text, *facts)
        self._warned.add(address)

    def _adopt(self, connection: AsyncConnection) -> None:
        if connection.address in self._warned:
            self._warned -= {connection.address, None}
            _log.info("%s is connected again", connection.address)
        refuse = self._settings.rollback in (RollbackPolicy.FAIL, RollbackPolicy.STOP)
        session = ConsumerSession(
            connection.dialect,
            refuse_rollback=refuse,
            sync_writes=connection.granted.sync_writes,
            out_of_order=connection.granted.out_of_order,
            purge_seqnos=connection.granted.purge_seqnos,
        )
        self._sessions[connection] = session
        connection.carry(session, self._events)

    async def _renew_map(self) -> None:
        """Asks the nodes for the cluster map: connected ones first, then all known ones."""
        if self._settings._one_node:
            return
        try:
            await self._nodes.run(renew_map(self.topology, self._map_watch.whom_to_ask()))
        except NODE_TROUBLE as error:
            self._warn(None, "no cluster map: %s", error)
            self._map_watch.failed(self._loop.time())
            return
        self._warned.discard(None)
        self._map_watch.confirmed(self._loop.time())
        await self._confirm_states()

    async def _confirm_states(self) -> None:
        """Asks owners whether they are active for the vbuckets whose state changed."""
        doubtful = [r.vbucket for r in self._readers.values() if r.waits and r.unconfirmed]
        for address, vbuckets in self.topology.by_owner(doubtful).items():
            try:
                active = await self.discovery.active_at(address, vbuckets)
            except NODE_TROUBLE as error:
                _log.warning("%s", error)
                if not is_final(error):
                    continue
                active = set(vbuckets)  # the node refuses the question: rely on the map
            for vbucket in vbuckets:
                reader = self._readers.get(vbucket)
                if reader is None:
                    continue  # removed meanwhile
                reader.unconfirmed = vbucket not in active
                if reader.unconfirmed:
                    reader.trouble = self.topology.no_owner_error(vbucket)
