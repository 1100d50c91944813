"""Writes documents into a bucket of any server, many at once and each where it belongs.

    put ──> lane of its node ──> done
              │        ▲
              ▼        │ with a newer map, after a pause
            postponed ─┘ ──> given up, after `retry_timeout`

An edit is postponed when its vbucket is elsewhere, when the server cannot do it now, and when its
connection was lost; nothing new is taken while one waits. A document is in one place only, so two
edits of one document are done in their order. Whatever else a server refuses ends in an error that
names the document. Memory is bounded by the rounds of each lane.

This module knows nothing of files and frames, and of how progress is shown.
"""

from __future__ import annotations

import logging
import selectors
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final, Self

from ..errors import (
    ConfigError,
    ConnectionFailed,
    ProtocolError,
    RemoteProtocolError,
    Status,
    StatusError,
    UpriverError,
)
from ..wire.names import Feature
from .access import Access
from .collections import Collections
from .edits import Edit, Outcome, shown_key
from .lane import Lane
from .link import ANSWER_SECONDS, CONNECT_SECONDS, Link
from .readers import Backoff
from .source import Address, Source
from .topology import ClusterMap, Network, vbucket_of

__all__ = ["Writer", "WriterCounts", "WriterSettings"]

_log = logging.getLogger(__name__)

_FEATURES: Final = (Feature.SELECT_BUCKET, Feature.XERROR, Feature.JSON, Feature.COLLECTIONS)
#: Rounds under way on a connection: one being sent, one being read, one being committed.
_ROUNDS: Final = 3
#: Seconds between two attempts; a failover takes some of the longest.
_FIRST_PAUSE: Final = 0.05
_LONGEST_PAUSE: Final = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class WriterSettings:
    """How a writer goes about it; all times are in seconds."""

    #: To each node.
    connections: int = 1
    #: Edits that may be under way on a connection.
    batch_size: int = 1024
    connect_timeout: float = CONNECT_SECONDS
    #: In which not one byte moves, after which a connection is given up.
    request_timeout: float = ANSWER_SECONDS
    #: For how long an edit is tried again.
    retry_timeout: float = 0.0
    #: For how long the first node is waited for.
    wait_at_start: float = 0.0
    network: Network = "auto"

    def __post_init__(self) -> None:
        for name in ("connections", "batch_size"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} is {getattr(self, name)}; it must be 1 or more")
        for name in ("connect_timeout", "request_timeout"):
            if not getattr(self, name) > 0:
                raise ConfigError(f"{name} is {getattr(self, name)}; it must be more than 0")

    @property
    def rounds(self) -> int:
        return min(_ROUNDS, self.batch_size)


@dataclass(slots=True)
class WriterCounts:
    """What became of the edits so far."""

    written: int = 0
    #: Documents that were as they shall be.
    unchanged: int = 0
    #: Edits in whose place came a later one of the same document.
    superseded: int = 0


class Writer:
    """Connections to the nodes of a bucket, opened as they are needed. Not for several threads.

    ``on_settled`` is told how many more edits are known to be done. After an error it is of no
    more use than to be closed.
    """

    def __init__(
        self,
        source: Source,
        access: Access | None = None,
        settings: WriterSettings | None = None,
        *,
        on_settled: Callable[[int], None] = lambda count: None,
    ) -> None:
        self.counts = WriterCounts()
        #: What the collections are called, as of when that was last asked.
        self.collections = Collections()
        self._source = source
        self._access = access or Access()
        self._settings = settings or WriterSettings()
        self._on_settled = on_settled
        self._selector = selectors.DefaultSelector()
        self._map: ClusterMap | None = None
        self._map_is_old = False
        self._lanes: dict[tuple[Address, int], Lane] = {}
        #: The names of the documents that edits which are not done are about.
        self._busy: set[bytes] = set()
        self._waiting: list[Edit] = []
        self._due = 0.0
        self._backoff = Backoff(_FIRST_PAUSE, _LONGEST_PAUSE)
        try:
            self._begin()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Closes the connections; what was not flushed may or may not be done."""
        self._selector.close()
        for lane in self._lanes.values():
            lane.link.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    # ---- writing -------------------------------------------------------------------------

    @property
    def vbuckets(self) -> int:
        return len(self._known_map.vbuckets)

    def put(self, edit: Edit) -> None:
        """Does an edit, now or with others; waits while too much is under way."""
        while self._waiting:
            self._progress()
        edit.vbucket = vbucket_of(edit.key, len(self._known_map.vbuckets))
        if edit.name in self._busy and self._replaces(edit):
            self.counts.superseded += 1
            self._on_settled(1)
            return
        self._busy.add(edit.name)
        try:
            lane = self._lane_of(edit.vbucket)
        except (ConnectionFailed, ProtocolError) as trouble:
            self._postpone([edit], trouble)
            return
        if lane.add(edit):
            lane.dispatch()
            self._attempt(lane, lane.send)
            while lane.is_crowded:
                self._progress()

    def _replaces(self, edit: Edit) -> bool:
        """Whether it took the place of one that had not begun; if not, that one is done now."""
        for lane in self._lanes.values():
            earlier = lane.filling.get(edit.name)
            if earlier is not None and earlier.last_wins and edit.last_wins:
                lane.filling[edit.name] = edit
                return True
            if earlier is not None:
                lane.dispatch()
        while edit.name in self._busy:
            self._progress()
        return False

    def flush(self) -> None:
        """Waits until every edit so far is done."""
        for lane in self._lanes.values():
            lane.dispatch()
        while self._busy:
            self._progress()

    def do(self, edit: Edit) -> Any:
        """Does an edit and all before it; returns its result."""
        self.put(edit)
        self.flush()
        return edit.result

    # ---- what lanes tell (see `lane.Owner`) ----------------------------------------------

    def settled(self, edits: Iterable[Edit]) -> None:
        before = self.counts.written + self.counts.unchanged
        for edit in edits:
            self._busy.discard(edit.name)
            if edit.result is Outcome.WRITTEN:
                self.counts.written += 1
            elif edit.result is Outcome.UNCHANGED:
                self.counts.unchanged += 1
            if edit.since is not None:
                self._backoff.reset()
        self._on_settled(self.counts.written + self.counts.unchanged - before)

    def postponed(self, edit: Edit, where: str, status: Status) -> None:
        if status is Status.NOT_MY_VBUCKET:
            self._map_is_old = True
        context = f"{where} {_EXCUSES.get(status, 'cannot do it now')}"
        request = f"writing the document {shown_key(edit.key)}"
        self._postpone([edit], StatusError(status, request=request, context=context))

    # ---- trying again --------------------------------------------------------------------

    def _postpone(self, edits: list[Edit], trouble: UpriverError) -> None:
        """Keeps edits for later; raises if they have been kept for long enough."""
        if not _may_heal(trouble):
            raise trouble
        now = time.monotonic()
        for edit in edits:
            edit.since = edit.since or now
            if now - edit.since >= self._settings.retry_timeout:
                raise trouble
        if not self._waiting:
            self._due = now + self._backoff.next_pause()
            _log.info("trying again: %s", trouble)
        self._waiting += edits

    def _resume(self) -> None:
        """Sends what waits to where it belongs by now."""
        edits, self._waiting = self._waiting, []
        by_lane: dict[Lane, list[Edit]] = {}
        try:
            if self._map_is_old:
                self.renew()
            for edit in edits:
                by_lane.setdefault(self._lane_of(edit.vbucket), []).append(edit)
        except (ConnectionFailed, ProtocolError) as trouble:
            self._map_is_old = True
            self._postpone(edits, trouble)
            return
        for lane, its in by_lane.items():
            lane.launch(its)

    def _lose(self, lane: Lane, trouble: UpriverError) -> None:
        """Gives a connection up. Nobody knows what became of that which was under way."""
        self._lanes = {place: other for place, other in self._lanes.items() if other is not lane}
        self._selector.unregister(lane.link.socket)
        self._map_is_old = True
        left = lane.abandon()
        if left:
            self._postpone(left, trouble)

    def _attempt(self, lane: Lane, act: Callable[[], None]) -> None:
        try:
            act()
        except (ConnectionFailed, ProtocolError) as trouble:
            self._lose(lane, trouble)

    def _progress(self) -> None:
        """Sends and hears what can be, on any connection; waits until something can be."""
        now = time.monotonic()
        if self._waiting and self._due <= now:
            self._resume()
        deadlines = [self._due] if self._waiting else []
        for lane in self._lanes.values():
            self._selector.modify(lane.link.socket, lane.events, lane)
            if lane.is_busy:
                deadlines.append(lane.moved + self._settings.request_timeout)
        wait = max(0.0, min(deadlines, default=now) - time.monotonic())
        for key, events in self._selector.select(wait):
            lane = key.data
            if events & selectors.EVENT_WRITE:
                self._attempt(lane, lane.send)
            if events & selectors.EVENT_READ and lane in self._lanes.values():
                self._attempt(lane, lane.receive)
        self._give_up_on_the_silent()

    def _give_up_on_the_silent(self) -> None:
        limit = self._settings.request_timeout
        now = time.monotonic()
        for lane in list(self._lanes.values()):
            if lane.is_busy and now - lane.moved >= limit:
                self._lose(lane, lane.link.lost(f"nothing was heard of it for {limit:g} s"))

    # ---- nodes ---------------------------------------------------------------------------

    @property
    def _known_map(self) -> ClusterMap:
        if self._map is None:
            raise RuntimeError("a writer knows a map from its beginning on")
        return self._map

    def _begin(self) -> None:
        """Learns where everything is."""
        deadline = time.monotonic() + self._settings.wait_at_start
        while True:
            try:
                self.renew()
                return
            except ConnectionFailed as trouble:
                left = deadline - time.monotonic()
                if left <= 0 or not _may_heal(trouble):
                    raise
                _log.info("trying again: %s", trouble)
                time.sleep(min(left, self._backoff.next_pause()))

    def renew(self) -> None:
        """Asks a node for the newest map and for the collections."""
        link = self._any_link()
        try:
            found = link.cluster_map(self._settings.network)
            if found.bucket not in ("", self._source.bucket):
                raise RemoteProtocolError(f"{link.where} sent the map of {found.bucket!r}")
            if Feature.COLLECTIONS in link.features:
                self.collections = link.collections() or self.collections
            self._check(found, link.where)
        except BaseException:
            link.close()
            raise
        if self._map is None or not self._map.is_newer_than(found):
            self._map = found
        self._map_is_old = False
        # the connection serves on, if there is something for it
        place = (found.sender.address, 0) if found.sender is not None else None
        if place is None or place in self._lanes:
            link.close()
        else:
            self._keep(place, link)

    def _check(self, found: ClusterMap, where: str) -> None:
        """Whether a map can be used. The number of vbuckets never changes while one lives."""
        if self._map is not None and len(found.vbuckets) != len(self._map.vbuckets):
            raise RemoteProtocolError(f"{where} has another number of vbuckets than before")
        if self._map is None:
            for vbucket in range(len(found.vbuckets)):
                if found.owner(vbucket) is None:
                    raise self._homeless(vbucket, where)

    def _any_link(self) -> Link:
        known = [] if self._map is None else [node.address for node in self._map.nodes]
        trouble: ConnectionFailed | None = None
        for address in dict.fromkeys((*known, *self._source.hosts)):
            try:
                return self._open(address)
            except ConnectionFailed as error:
                if not _may_heal(error):
                    raise
                if trouble is not None:
                    error.problem += f" (before it, {trouble.where} {trouble.problem})"
                trouble = error
        raise trouble or ConnectionFailed("is not known", "give a host")

    def _open(self, address: Address) -> Link:
        return Link(
            address,
            self._source,
            self._access,
            features=_FEATURES,
            timeout=self._settings.connect_timeout,
        )

    def _lane_of(self, vbucket: int) -> Lane:
        """The connection for a vbucket: always the same one, as long as it lives."""
        node = self._known_map.owner(vbucket)
        if node is None:
            self._map_is_old = True
            raise self._homeless(vbucket, str(self._source.hosts[0]))
        place = node.address, vbucket % self._settings.connections
        return self._lanes.get(place) or self._keep(place, self._open(node.address))

    def _homeless(self, vbucket: int, where: str) -> ConnectionFailed:
        return ConnectionFailed(
            f"has vbucket {vbucket} of {self._source.bucket} on no node",
            "wait until the cluster is whole",
            where=where,
        )

    def _keep(self, place: tuple[Address, int], link: Link) -> Lane:
        rounds = self._settings.rounds
        lane = Lane(link, self, size=self._settings.batch_size // rounds, rounds=rounds)
        self._lanes[place] = lane
        self._selector.register(link.socket, selectors.EVENT_READ, lane)
        return lane


def _may_heal(trouble: UpriverError) -> bool:
    """Whether it may be gone later; what is wrong with a password or an address does not."""
    if isinstance(trouble, ConnectionFailed):
        return type(trouble) is ConnectionFailed
    if isinstance(trouble, StatusError):
        return trouble.retriable
    return isinstance(trouble, ProtocolError)


_EXCUSES: Final = {
    Status.NOT_MY_VBUCKET: "does not have its vbucket, and there was no newer map",
    Status.NO_MEMORY: "is out of memory",
    Status.LOCKED: "says that somebody has locked it",
    Status.TEMPORARY_FAILURE: "cannot keep up",
    Status.BUSY: "cannot keep up",
}
