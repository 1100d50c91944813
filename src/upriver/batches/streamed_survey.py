"""A survey by streams, for servers that know one document's commands and answer no questions.

Such a server tells neither its vbuckets nor how far they are: no cluster map, no statistics, no
command for high seqnos. A failover log names branches, but not where the newest one is now. The one
thing that tells it is a stream without an end. So the driver of a query opens one for each vbucket,
where its plan has come to, and drops the changes that arrive: the last of them is how far the
vbucket is known to be. Tasks read up to there, on streams of their own.

What is sound in that. The seqno is one of the branch with which the stream was granted, and a
stream never leaves its branch (`RollbackPolicy.STOP`), so it is the end of a step like any other.
It is no upper bound of what tasks have seen, because theirs may run ahead of this one, and no draft
says how far a snapshot reaches: what is planned with it has no bound (`is_tight`). A failover costs
more for that, and is never wrong. The survey is caught up when all its streams are open, nothing
has come for half a second, and the server has answered a request since with nothing before the
answer; under writes that never pause, when each stream is past its first snapshot, which is the
backfill of what was there.

A flush that a stream announces ends the query with an error: documents are gone without deletions,
and on the same branch. Later streams would not tell it.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final, Self, cast

from ..consumer.client import Consumer
from ..consumer.consumer_settings import RollbackPolicy
from ..consumer.topology.cluster_map import ClusterMap
from ..consumer.topology.cluster_view import NODE_TROUBLE, Topology, is_final
from ..consumer.topology.collection_names import Collections
from ..consumer.topology.discovery import Discovery
from ..consumer.topology.questions import NoHistory, VBucketSeqnos, failover_log, unless
from ..consumer.topology.seqno_survey import Survey
from ..consumer.topology.waiting import Interrupted, Waiting
from ..consumer.transport.async_pool import AsyncNodes
from ..consumer.transport.connection_string import Address
from ..errors import ConnectionFailed, StatusError, UpriverError
from ..model import FailoverLog
from ..session.consumer_events import Event, RollbackReason, RolledBack, Rows, StreamOpened
from ..session.stream_position import Position
from ..wire.protocol_enums import DialectName
from .options import MuteServer, ReadOptions
from .source_access import asking_survey, reading_settings

#: Seconds without anything new after which the survey is caught up.
_QUIET: Final = 0.5
#: Seconds after which a survey of streams that are past their first snapshot is good enough, and
#: after which any is.
_LONG: Final = 2.0
_LONGEST: Final = 60.0
#: Seconds between two looks whether somebody has interrupted.
_SLICE: Final = 0.2
#: How often streams are opened again in one look because a vbucket had to begin anew.
_MOST_OPENINGS: Final = 8


def survey_of(options: ReadOptions, patience: float = 0.0) -> Survey | StreamedSurvey:
    """The survey that the server of these options can answer, as far as that is known."""
    if options.mute is not None:
        return StreamedSurvey(options, options.mute)
    return asking_survey(options, patience)


def find_mute(options: ReadOptions) -> MuteServer | None:
    """What there is to know of a server that answers no questions; None if it does answer.

    None too if it cannot be asked now. Raises what cannot become better.
    """
    return asyncio.run(_find_mute(options))


async def _find_mute(options: ReadOptions) -> MuteServer | None:
    settings = replace(
        reading_settings(options, vbuckets=options.vbuckets),
        values=True,  # drafts send them; who says otherwise is not taken for one
        wait_at_start=0.0,
    )
    nodes = AsyncNodes(Topology(options.source), options.access, settings)
    try:
        await Discovery(nodes, settings).find()
        if not nodes.topology.map_is_assumed:
            return None
        owners = range(len(nodes.topology.map.vbuckets))
        owned = frozenset(vb for vb in owners if nodes.topology.owner(vb) is not None)
        spoken = next(iter(nodes.connections.values())).dialect.name
        return MuteServer(cast("DialectName", spoken), owned)
    except NODE_TROUBLE as problem:
        if is_final(problem):
            raise
        return None
    finally:
        nodes.close()


@dataclass(slots=True)
class _Seen:
    """What one stream has brought."""

    start: int
    seqno: int
    #: The log with which it was granted; empty until then.
    log: FailoverLog = field(default_factory=lambda: FailoverLog(()))
    #: Whether something came, and whether a snapshot was complete.
    began: bool = False
    completed: bool = False


class StreamedSurvey:
    """Says of a mute server what `Survey` says of others. One thread uses it."""

    #: Whether its high seqnos are bounds of what tasks have seen.
    is_tight: Final = False

    def __init__(self, options: ReadOptions, server: MuteServer) -> None:
        self._options = replace(options, mute=server)
        self.server = server
        wanted = options.vbuckets
        self._vbuckets = sorted(server.vbuckets if wanted is None else server.vbuckets & wanted)
        self._topology = Topology(options.source)
        self._topology.assume_one_node(options.source.hosts[0], server.vbuckets)
        self._waiting = Waiting(options.source)
        self._interrupted = threading.Event()
        self._consumer: Consumer | None = None
        self._seen: dict[int, _Seen] = {}
        #: Where streams begin: where the last plan ends.
        self._at: Mapping[int, Position] = {}
        #: By vbucket that cannot go on from there where that was.
        self._anew: dict[int, Position | None] = {}
        #: When something came last, and whether the server has answered a request since.
        self._heard_at = 0.0
        self._is_settled = False

    # ---- lifecycle -----------------------------------------------------------------------

    def close(self) -> None:
        consumer, self._consumer = self._consumer, None
        if consumer is not None:
            consumer.close()

    def interrupt(self) -> None:
        """Ends what waits for the server in another thread, with `Interrupted`."""
        self._interrupted.set()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    # ---- what needs no stream ------------------------------------------------------------

    def map(self) -> ClusterMap:
        return self._topology.map

    @property
    def nodes(self) -> list[Address]:
        return self._topology.nodes

    @property
    def waits(self) -> tuple[float, str] | None:
        """Since when the server does not answer, and why; None while it does."""
        return self._waiting.now

    def collections(self) -> Collections:
        """None of the drafts has more than the default one."""
        return Collections()

    def choose(self, collections: tuple[str, ...], scope: str = "") -> None:
        """There are no collections to choose from."""

    def branches(self, vbuckets: Collection[int]) -> dict[int, int]:
        """The newest vbuuid of each vbucket, asked of the server now."""
        asked = [vb for vb in vbuckets if vb in self.server.vbuckets]
        logs = asyncio.run(self._ask_logs(asked, lambda refusal: True))
        return {vb: log.newest.vbuuid for vb, log in logs.items()}

    def known_branches(self, vbucket: int) -> set[int]:
        """Every vbuuid in the failover log of a vbucket, asked of the server now."""
        return {entry.vbuuid for entry in asyncio.run(self._ask_logs([vbucket]))[vbucket]}

    async def _ask_logs(
        self, vbuckets: list[int], excused: Callable[[StatusError], bool] = lambda refusal: False
    ) -> dict[int, FailoverLog]:
        settings = reading_settings(self._options)
        nodes = AsyncNodes(Topology(self._options.source), self._options.access, settings)
        try:
            node = await nodes.reach_any()
            talks = [unless(failover_log(vb, streaming=True), excused) for vb in vbuckets]
            logs = await node.run_all(talks)
            return {vb: log for vb, log in zip(vbuckets, logs, strict=True) if log is not None}
        finally:
            nodes.close()

    # ---- what streams tell ---------------------------------------------------------------

    def follow(self, at: Mapping[int, Position]) -> None:
        """Says up to where vbuckets are read: their streams begin there."""
        self._at = at
        self._anew = {vb: left for vb, left in self._anew.items() if left == at.get(vb)}
        if self._consumer is not None and not all(map(self._goes_on, self._vbuckets)):
            self.close()

    def _goes_on(self, vbucket: int) -> bool:
        """Whether the stream of a vbucket tells what comes after where it is read."""
        seen, at = self._seen[vbucket], self._at.get(vbucket)
        if at is None or not at.seqno:
            return seen.start == 0
        is_same = not len(seen.log) or seen.log.newest.vbuuid == at.offset.vbuuid
        return seen.start <= at.seqno and (is_same or vbucket in self._anew)

    def high_seqnos(self, vbuckets: Collection[int] | None = None) -> dict[int, int]:
        """How far each vbucket is known to be."""
        self._catch_up()
        return {vb: self._seen[vb].seqno for vb in self._asked(vbuckets)}

    def look(self, vbuckets: Collection[int] | None = None) -> dict[int, VBucketSeqnos]:
        """Seqnos and branches as of the last `high_seqnos`; what was purged is not known."""
        if self._consumer is None:
            self._catch_up()
        found = {vb: self._seen[vb] for vb in self._asked(vbuckets)}
        return {
            vb: VBucketSeqnos(seen.log.newest.vbuuid, seen.seqno, None)
            for vb, seen in found.items()
        }

    def failover_logs(self, vbuckets: Collection[int]) -> dict[int, FailoverLog]:
        """The logs with which the streams were granted that `high_seqnos` went by."""
        if self._consumer is None:
            self._catch_up()
        return {vb: self._seen[vb].log for vb in self._asked(vbuckets)}

    def _asked(self, vbuckets: Iterable[int] | None) -> list[int]:
        wanted = None if vbuckets is None else set(vbuckets)
        return [vb for vb in self._vbuckets if wanted is None or vb in wanted]

    def _catch_up(self) -> None:
        """Receives until nothing more comes."""
        began = time.monotonic()
        for _ in range(_MOST_OPENINGS):
            if self._consumer is None:
                self._open()
            try:
                if self._received(began):
                    return
            except UpriverError:
                self.close()
                raise
            self.close()  # a vbucket must begin anew
        raise UpriverError(
            f"the history of {self._options.source.bucket} changes faster than streams of it can "
            "be opened; see the server's log"
        )

    def _open(self) -> None:
        positions = {
            vb: Position() if vb in self._anew else self._at.get(vb, Position())
            for vb in self._vbuckets
        }
        settings = reading_settings(
            self._options,
            rollback=RollbackPolicy.STOP,
            start=positions,
            vbuckets=frozenset(positions),
        )
        settings = replace(settings, wait_at_start=0.0)  # waiting here can be interrupted
        deadline = time.monotonic() + self._options.retry_timeout
        backoff = self._topology.new_backoff()
        while True:
            consumer = Consumer(
                self._options.source, access=self._options.access, settings=settings
            )
            try:
                self._consumer = consumer.start()
                break
            except NODE_TROUBLE as problem:
                if is_final(problem) or time.monotonic() >= deadline:
                    raise
                self._waiting.in_vain(problem)
            self._pause(backoff.next_pause())
        self._seen = {vb: _Seen(at.seqno, at.seqno) for vb, at in positions.items()}
        self._heard_at, self._is_settled = time.monotonic(), False

    def _pause(self, seconds: float = 0.0) -> None:
        if self._interrupted.wait(seconds) if seconds else self._interrupted.is_set():
            raise Interrupted("the program was told to stop, and does not wait for a node")

    def _received(self, began: float) -> bool:
        """Takes what comes until the streams are caught up; false if one must begin anew."""
        consumer = self._consumer
        assert consumer is not None
        is_whole, is_answered = True, self._is_settled
        while True:
            self._pause()
            now = time.monotonic()
            is_late = now - began >= _LONG and self._are_past_first
            waits = not (self._is_settled or (is_late and is_answered))
            left = max(0.0, self._heard_at + _QUIET - now) if waits else 0.0
            event = consumer.poll(min(_SLICE, left))
            if event is not None:
                self._heard_at, self._is_settled = time.monotonic(), False
                is_whole = self._take(event) and is_whole
                if now - began < _LONGEST or not self._are_granted:
                    continue
            if consumer.finished or event is not None or not is_whole:
                return is_whole
            if self._is_settled and consumer.status().is_whole:
                self._waiting.over()
                return True
            if is_late and is_answered:
                return True  # what came since the answer is new
            if is_late or now - self._heard_at >= _QUIET:
                is_answered = self._settle(consumer)

    def _settle(self, consumer: Consumer) -> bool:
        """Has the server answer, if all streams are open: all that it had sent has come then."""
        try:
            if consumer.status().is_whole:
                consumer._hear_out()
                self._is_settled = consumer.status().is_whole
        except NODE_TROUBLE as problem:
            if is_final(problem):
                raise
        if not self._is_settled:
            where = str(self._options.source.hosts[0])
            late = ConnectionFailed("has not granted all streams", "see its log", where=where)
            self._waiting.in_vain(late)
            self._pause(_SLICE)  # the consumer fails by itself if that takes too long
        return self._is_settled

    @property
    def _are_granted(self) -> bool:
        return all(len(seen.log) for seen in self._seen.values())

    @property
    def _are_past_first(self) -> bool:
        """Whether no stream is in the middle of its first snapshot."""
        return self._are_granted and all(
            seen.completed or not seen.began for seen in self._seen.values()
        )

    def _take(self, event: Event) -> bool:
        """Notes what an event tells; false if its vbucket must begin anew."""
        if isinstance(event, Rows):
            for step in event.steps:
                seen = self._seen[step.vbucket]
                seen.began, seen.seqno = True, max(seen.seqno, step.seqno)
                seen.completed |= step.closes or step.seqno == step.snapshot.end
        elif isinstance(event, StreamOpened):
            if not len(event.log):
                raise NoHistory(event.vbucket)
            self._seen[event.vbucket].log = event.log
        elif isinstance(event, RolledBack):
            if event.reason is RollbackReason.FLUSHED:
                raise UpriverError(
                    f"the server has flushed vbucket {event.vbucket}: what was read of it is gone "
                    "there, and this draft tells it to nobody who comes later; read the bucket anew"
                )
            self._anew[event.vbucket] = self._at.get(event.vbucket)
            return False
        return True
