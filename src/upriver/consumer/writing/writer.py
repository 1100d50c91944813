"""`Writer`: writes documents into a bucket, pipelined, each to the node of its vbucket.

    put ──> pipeline of its node ──> done
              │          ▲
              ▼          │ with a newer map, after a pause
            postponed ───┘ ──> given up, after `retry_timeout`

An edit is postponed if its vbucket is on another node, if the server has a temporary failure, or if
its connection was lost. While an edit is postponed, `put` accepts no new ones. Each document has at
most one edit in progress, so edits of the same document are executed in order. Any other refusal of
a server raises an error that names the document. Memory is bounded by the rounds of each pipeline.

This module knows nothing of input files, data frames or progress displays.
"""

from __future__ import annotations

import logging
import selectors
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final, Self

from ..._unclosed import warn_unclosed
from ...errors import (
    ConfigError,
    ConnectionFailed,
    ProtocolError,
    Status,
    StatusError,
    UpriverError,
)
from ..topology.cluster_map import Network, vbucket_of
from ..topology.cluster_view import Topology, may_heal
from ..topology.collection_names import Collections
from ..topology.request_routing import renew_map
from ..transport.access import Access
from ..transport.blocking_connection import (
    ANSWER_SECONDS,
    CONNECT_SECONDS,
    BlockingConnection,
    BlockingNodes,
)
from ..transport.connection_string import Address, Source
from .document_checks import excuse, request_name
from .edit_pipeline import EditPipeline
from .write_operations import Edit, EditOutcome

_log = logging.getLogger(__name__)

#: Rounds in progress on a connection: one being sent, one being read, one being committed.
_ROUNDS: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class WriterSettings:
    """Options of a `Writer`; all times are in seconds."""

    #: Connections to each node.
    connections: int = 1
    #: Most edits in progress on a connection.
    batch_size: int = 1024
    connect_timeout: float = CONNECT_SECONDS
    #: A connection is closed if no byte is sent or received for this time.
    request_timeout: float = ANSWER_SECONDS
    #: How long an edit is retried before the writer fails.
    retry_timeout: float = 0.0
    #: How long to wait at the start until a node can be reached.
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
    """Results of the edits so far."""

    written: int = 0
    #: Edits that wrote nothing, because the document was in the wanted state.
    unchanged: int = 0
    #: Edits replaced by a later edit of the same document before they were sent.
    superseded: int = 0


class Writer:
    """Executes edits at the nodes of a bucket; opens connections as needed. Not thread-safe.

    ``on_settled`` is called with the number of edits that were completed since the last call.
    After an error the writer can only be closed.
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
        self._closed = False
        self._settings = settings or WriterSettings()
        self._on_settled = on_settled
        self._selector = selectors.DefaultSelector()
        self._topology = Topology(source, network=self._settings.network)
        self._nodes = BlockingNodes(
            self._topology, access or Access(), timeout=self._settings.connect_timeout
        )
        self._pipelines: dict[tuple[Address, int], EditPipeline] = {}
        #: Names of the documents with an unfinished edit.
        self._busy: set[bytes] = set()
        self._waiting: list[Edit] = []
        self._due = 0.0
        self._backoff = self._topology.new_backoff()
        try:
            self._begin()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Closes the connections; edits that were not flushed may or may not be executed."""
        self._closed = True
        self._selector.close()
        self._nodes.close()
        for pipeline in self._pipelines.values():
            pipeline.connection.close()

    def __del__(self) -> None:
        if getattr(self, "_pipelines", None) and not self._closed:
            warn_unclosed(self, self._topology.source)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    # ---- writing -------------------------------------------------------------------------

    @property
    def vbuckets(self) -> int:
        return len(self._topology.map.vbuckets)

    def put(self, edit: Edit) -> None:
        """Queues an edit and sends full rounds; blocks while too many rounds are in progress."""
        while self._waiting:
            self._progress()
        edit.vbucket = vbucket_of(edit.key, len(self._topology.map.vbuckets))
        if edit.name in self._busy and self._replaces(edit):
            self.counts.superseded += 1
            self._on_settled(1)
            return
        self._busy.add(edit.name)
        try:
            pipeline = self._pipeline_of(edit.vbucket)
        except (ConnectionFailed, ProtocolError) as trouble:
            self._postpone([edit], trouble)
            return
        if pipeline.add(edit):
            pipeline.dispatch()
            self._attempt(pipeline, pipeline.send)
            while pipeline.is_crowded:
                self._progress()

    def _replaces(self, edit: Edit) -> bool:
        """Replaces an unsent edit of the same document if both allow it; returns whether it did.

        Otherwise waits until the earlier edit is done.
        """
        for pipeline in self._pipelines.values():
            earlier = pipeline.filling.get(edit.name)
            if earlier is not None and earlier.last_wins and edit.last_wins:
                pipeline.filling[edit.name] = edit
                return True
            if earlier is not None:
                pipeline.dispatch()
        while edit.name in self._busy:
            self._progress()
        return False

    def flush(self) -> None:
        """Blocks until all edits so far are done."""
        for pipeline in self._pipelines.values():
            pipeline.dispatch()
        while self._busy:
            self._progress()

    def do(self, edit: Edit) -> Any:
        """Executes an edit, after all earlier ones, and returns its result."""
        self.put(edit)
        self.flush()
        return edit.result

    # ---- reports of pipelines (see `edit_pipeline.Owner`) --------------------------------

    def settled(self, edits: Iterable[Edit]) -> None:
        before = self.counts.written + self.counts.unchanged
        for edit in edits:
            self._busy.discard(edit.name)
            if edit.result is EditOutcome.WRITTEN:
                self.counts.written += 1
            elif edit.result is EditOutcome.UNCHANGED:
                self.counts.unchanged += 1
            if edit.since is not None:
                self._backoff.reset()
        self._on_settled(self.counts.written + self.counts.unchanged - before)

    def postponed(self, edit: Edit, where: str, status: Status) -> None:
        if status is Status.NOT_MY_VBUCKET:
            self._topology.map_is_old = True
        context = excuse(status, where) or f"{where} cannot do it now"
        trouble = StatusError(status, request=request_name(edit.key), context=context)
        self._postpone([edit], trouble)

    # ---- retries -------------------------------------------------------------------------

    def _postpone(self, edits: list[Edit], trouble: UpriverError) -> None:
        """Keeps edits for a retry; raises ``trouble`` after `retry_timeout` or if it is final."""
        if not may_heal(trouble):
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
        """Sends postponed edits to the current owners of their vbuckets."""
        edits, self._waiting = self._waiting, []
        by_pipeline: dict[EditPipeline, list[Edit]] = {}
        try:
            if self._topology.map_is_old:
                self.renew()
            for edit in edits:
                by_pipeline.setdefault(self._pipeline_of(edit.vbucket), []).append(edit)
        except (ConnectionFailed, ProtocolError) as trouble:
            self._topology.map_is_old = True
            self._postpone(edits, trouble)
            return
        for pipeline, its in by_pipeline.items():
            pipeline.launch(its)

    def _lose(self, pipeline: EditPipeline, trouble: UpriverError) -> None:
        """Drops a connection and postpones its unfinished edits, whose effect is unknown."""
        self._pipelines = {
            place: other for place, other in self._pipelines.items() if other is not pipeline
        }
        self._selector.unregister(pipeline.connection.socket)
        self._topology.map_is_old = True
        left = pipeline.abandon()
        if left:
            self._postpone(left, trouble)

    def _attempt(self, pipeline: EditPipeline, act: Callable[[], None]) -> None:
        try:
            act()
        except (ConnectionFailed, ProtocolError) as trouble:
            self._lose(pipeline, trouble)

    def _progress(self) -> None:
        """Waits until a socket is ready or a timer is due; then sends, receives and retries."""
        now = time.monotonic()
        if self._waiting and self._due <= now:
            self._resume()
        deadlines = [self._due] if self._waiting else []
        for pipeline in self._pipelines.values():
            self._selector.modify(pipeline.connection.socket, pipeline.events, pipeline)
            if pipeline.is_busy:
                deadlines.append(pipeline.moved + self._settings.request_timeout)
        wait = max(0.0, min(deadlines, default=now) - time.monotonic())
        for key, events in self._selector.select(wait):
            pipeline = key.data
            if events & selectors.EVENT_WRITE:
                self._attempt(pipeline, pipeline.send)
            if events & selectors.EVENT_READ and pipeline in self._pipelines.values():
                self._attempt(pipeline, pipeline.receive)
        self._fail_unanswered()

    def _fail_unanswered(self) -> None:
        limit = self._settings.request_timeout
        now = time.monotonic()
        for pipeline in list(self._pipelines.values()):
            if pipeline.is_busy and now - pipeline.moved >= limit:
                self._lose(
                    pipeline, pipeline.connection.lost(f"nothing was heard of it for {limit:g} s")
                )

    # ---- nodes ---------------------------------------------------------------------------

    @property
    def collections(self) -> Collections:
        """The names of the bucket's scopes and collections, as of the last `renew`."""
        return self._topology.collections

    def _begin(self) -> None:
        """Gets the cluster map and the collections; raises if a vbucket has no owner."""
        self.renew(self._settings.wait_at_start)
        for vbucket in range(self.vbuckets):
            if self._topology.owner(vbucket) is None:
                raise self._topology.no_owner_error(vbucket)

    def renew(self, patience: float = 0.0) -> None:
        """Asks a node for the newest cluster map and the collections."""
        self._nodes.run(renew_map(self._topology, names=True, patience=patience))

    def _pipeline_of(self, vbucket: int) -> EditPipeline:
        """The pipeline for a vbucket: always the same one while its connection is open."""
        address = self._topology.owner(vbucket)
        if address is None:
            self._topology.map_is_old = True
            raise self._topology.no_owner_error(vbucket)
        place = address, vbucket % self._settings.connections
        return self._pipelines.get(place) or self._keep(place, self._nodes.open(address))

    def _keep(self, place: tuple[Address, int], connection: BlockingConnection) -> EditPipeline:
        rounds = self._settings.rounds
        size = self._settings.batch_size // rounds
        pipeline = EditPipeline(connection, self, size=size, rounds=rounds)
        self._pipelines[place] = pipeline
        self._selector.register(connection.socket, selectors.EVENT_READ, pipeline)
        return pipeline
