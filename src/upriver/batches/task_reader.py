"""What a task does: reads its steps and turns what comes into rows.

A task has one consumer for all its vbuckets. A cut connection is mended inside of it. The task of a
stream takes only rows of the branch that was planned (`RollbackPolicy.STOP`): a vbucket whose
history has left it is read no further (`offset_ranges.judge`), and one that is served by a node
that has not heard of it yet is looked for again. Rows are made by `row_schema`; Spark is not known
here.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ..consumer.client import Consumer
from ..consumer.consumer_settings import RollbackPolicy
from ..consumer.topology.collection_names import Collections
from ..errors import ConnectionFailed, RemoteProtocolError, RollbackRequired, UpriverError
from ..model import NO_END
from ..session.consumer_events import Event, RolledBack, Rows, StreamOpened, SystemHappened
from ..session.stream_position import Position
from ..wire import messages as m
from .collection_events import CollectionLog, Name, unnamed
from .consumer_cache import CacheKey, consumer_for, keep
from .live_collections import LiveCollections
from .offset_ranges import ReadStep, StepVerdict, judge
from .options import ReadOptions
from .read_ahead import ArrivedChanges
from .restate import Restatement
from .row_schema import RowBuilder
from .source_access import asking_survey, reading_settings
from .streamed_survey import survey_of

if TYPE_CHECKING:  # its import takes Spark's own, which a pipeline with little to do never needs
    from .row_conditions import RowConditions

_VBUCKETS: Final = 1 << 16
#: Seconds between two attempts to find a node that knows a branch.
_PAUSE: Final = 0.2
#: Seconds for the map of a cluster to get about: until then a node may be missing in all maps.
_MAP_SECONDS: Final = 3.0


class BranchGone(UpriverError):
    """No node has the branch any more that a step was planned for."""


@dataclass(slots=True)
class StepsRead:
    """What became of steps, for who plans the next ones."""

    #: Vbuckets that were not read to their end, because their branch is gone.
    skipped: set[int] = field(default_factory=set)
    #: By vbucket of the others the highest end of a snapshot that was seen; `NO_END` if one did not
    #: say where it ends.
    snapshot_ends: dict[int, int] = field(default_factory=dict)

    def saw(self, event: Rows) -> None:
        for step in event.steps:
            if self.snapshot_ends.get(step.vbucket, 0) < step.snapshot.end:
                self.snapshot_ends[step.vbucket] = step.snapshot.end

    def skip(self, vbuckets: set[int]) -> None:
        self.skipped |= vbuckets
        for vbucket in vbuckets:
            self.snapshot_ends.pop(vbucket, None)


def read_steps(
    options: ReadOptions,
    steps: Sequence[ReadStep],
    read: StepsRead | None = None,
    log: CollectionLog | None = None,
    arrived: ArrivedChanges | None = None,
) -> Iterator[pa.RecordBatch]:
    """The rows of some steps of a batch.

    ``read`` notes what becomes of them. ``log`` records what happened to collections. Changes that
    have ``arrived`` are not read again.
    """
    log = log if log is not None else CollectionLog()
    names = _CollectionNames(log, arrived.names if arrived is not None else {})
    builder = _builder(options, steps, names)
    if arrived is not None:
        for batch in arrived.batches():
            yield from builder.changes(batch)
        return
    rollbacks = {step.vbucket: step.start for step in steps if step.rolls_back}
    restatement = None
    if options.restate_on_rollback:
        # a batch may have been planned before the option was given
        steps = [step.from_the_beginning() if step.rolls_back else step for step in steps]
        restatement = Restatement(
            options.rows, {step.vbucket: step for step in steps if step.rolls_back}
        )
    elif rollbacks:
        yield builder.rollbacks(rollbacks)
    read = read if read is not None else StepsRead()
    wanted = {step.vbucket: step for step in steps if step.has_range}
    positions = {vb: step.position_on_branch for vb, step in wanted.items()}
    anew = False
    since = 0.0
    while positions:
        attempt = _Attempt(
            options, wanted, positions, names, log, read, anew=anew, restatement=restatement
        )
        for batch in attempt.batches():
            for rows in builder.changes(batch):
                yield rows if restatement is None else restatement.restate(rows)
        positions = attempt.not_found
        read.skip(attempt.left_behind)
        if positions:
            vbucket = next(iter(positions))
            since = since or time.monotonic()
            waited = time.monotonic() - since
            if waited >= options.retry_timeout or (
                waited >= _MAP_SECONDS and _is_gone(options, wanted[vbucket])
            ):
                raise BranchGone(
                    f"DCP-UNKNOWN-BRANCH vb={vbucket}: no node has the branch "
                    f"{wanted[vbucket].offset.vbuuid:#x} that the batch was planned for"
                )
            time.sleep(_PAUSE)
            anew = True  # with the newest map
    if restatement is not None and restatement.has_any:
        done = {step.vbucket: step for step in steps if step.vbucket not in read.skipped}
        yield from _restated(options, restatement, done)


def _restated(
    options: ReadOptions, restatement: Restatement, steps: Mapping[int, ReadStep]
) -> Iterator[pa.RecordBatch]:
    """The ``restated`` rows of vbuckets that were read."""
    with survey_of(options) as survey:
        count, collections = len(survey.map().vbuckets), survey.collections()
    chosen = collections.live(options.collections, options.scope)
    named = [collections.names(number) for number in chosen]
    yield from restatement.finished(steps, count, named)


def _is_gone(options: ReadOptions, step: ReadStep) -> bool:
    """Whether all nodes answer, and none has the step's branch in its history."""
    try:
        with survey_of(options) as survey:
            return step.offset.vbuuid not in survey.known_branches(step.vbucket)
    except UpriverError:
        return False  # who does not answer may have it


def read_whole_snapshots(
    options: ReadOptions, steps: Sequence[ReadStep], wanted: RowConditions
) -> Iterator[pa.RecordBatch]:
    """The rows of a batch read: everything up to now, or exactly what was asked for.

    Dropped collections have no rows, whether or not the server has erased their documents.
    """
    steps, names = _as_far_as_now(options, steps, wanted), _CollectionNames(CollectionLog())
    builder = _builder(options, steps, names)
    rollbacks = {
        step.vbucket: step.start
        for step in steps
        if step.rolls_back and wanted.has_seqno(step.start)
    }
    if rollbacks:
        yield builder.rollbacks(rollbacks)
    restatement = None
    if options.restate_on_rollback and steps:
        restatement = Restatement(options.rows, {step.vbucket: step for step in steps})
    # one that begins above its end was rolled back since: the server says so
    if any(step.end != step.start for step in steps):
        read = _whole_snapshots(options, steps, wanted, builder, names)
        yield from map(restatement.restate, read) if restatement is not None else read
    if restatement is not None:
        yield from _restated(options, restatement, restatement.steps)


def _as_far_as_now(
    options: ReadOptions, steps: Sequence[ReadStep], wanted: RowConditions
) -> list[ReadStep]:
    """The steps with the ends that they have now: a task may run long after it was planned."""
    if not steps:
        return []
    if options.mute is not None:  # only a stream could tell, such as the one that is read
        return list(steps)
    with asking_survey(options, options.retry_timeout) as survey:
        highs = survey.high_seqnos()
    if missing := sorted({step.vbucket for step in steps} - highs.keys()):
        raise UpriverError(f"vbucket {missing[0]} has no server now; wait until it has")
    most = {step.vbucket: wanted.until for step in steps}
    if options.ending is not None:
        most = {vb: min(end, options.ending.get(vb, 0)) for vb, end in most.items()}
    return [
        replace(step, end=min(highs[step.vbucket], max(most[step.vbucket], step.start)))
        for step in steps
    ]


def _whole_snapshots(
    options: ReadOptions,
    steps: Sequence[ReadStep],
    wanted: RowConditions,
    builder: RowBuilder,
    names: _CollectionNames,
) -> Iterator[pa.RecordBatch]:
    exact = options.ending is not None or wanted.ends
    there = [step for step in steps if step.end != step.start]
    positions = {step.vbucket: step.position for step in there}
    until = {step.vbucket: step.end for step in there}
    settings = reading_settings(options, start=positions, end=until, rollback=RollbackPolicy.FAIL)
    live = LiveCollections(lambda: _manifest(options))
    with Consumer(options.source, access=options.access, settings=settings) as consumer:
        names.consumer = consumer
        for event in _events(consumer, _patience(options)):
            if isinstance(event, StreamOpened):
                builder.on_branch(event.vbucket, event.log.newest.vbuuid)
            elif isinstance(event, Rows):
                batch = _up_to(event.batch, _as_array(until)) if exact else event.batch
                batch = live.rows(batch, consumer.collections)
                yield from builder.changes(wanted.rows(batch))


def _manifest(options: ReadOptions) -> Collections:
    with asking_survey(options, options.retry_timeout) as survey:
        return survey.collections()


class _CollectionNames:
    """What collections are called, as the consumer of the moment knows them."""

    def __init__(self, log: CollectionLog, names: Mapping[int, Name] | None = None) -> None:
        self.consumer: Consumer | None = None
        self._log = log
        self._names = {**log.known, **(names or {})}

    def __call__(self, number: int) -> tuple[str | None, str]:
        """LookupError if neither the server nor the reader has heard of it."""
        found = self._names.get(number)
        if self.consumer is not None:
            with suppress(RemoteProtocolError):  # it was dropped before the consumer came
                found = self.consumer.collections.names(number)
        self._log.met[number] = found or unnamed(number)
        if found is None:
            raise LookupError(number)
        return found


class _Attempt:
    """One consumer's work on the steps, or on what is left of them."""

    def __init__(
        self,
        options: ReadOptions,
        steps: dict[int, ReadStep],
        positions: dict[int, Position],
        names: _CollectionNames,
        log: CollectionLog,
        read: StepsRead,
        *,
        anew: bool,
        restatement: Restatement | None,
    ) -> None:
        self._cache_key = CacheKey(
            options.source, options.access, reading_settings(options, rollback=RollbackPolicy.STOP)
        )
        self._patience = _patience(options)
        self._anew = anew
        self._steps = steps
        self._positions = positions
        self._names = names
        self._restatement = restatement
        #: Read to the end of a snapshot, so that no key is missing because it moved on.
        self._whole = frozenset(restatement.steps if restatement is not None else ())
        #: Vbuckets that were not read to their end, because their branch is gone.
        self.left_behind: set[int] = set()
        self._log = log
        self._read = read
        #: Where reading must go on, on a node that knows the branch.
        self.not_found: dict[int, Position] = {}

    def batches(self) -> Iterator[pa.RecordBatch]:
        ends = {vb: self._steps[vb].end for vb in self._positions}
        last = _as_array({vb: NO_END if vb in self._whole else end for vb, end in ends.items()})
        consumer = consumer_for(self._cache_key, self._positions, ends, anew=self._anew)
        undisturbed = True
        try:
            self._names.consumer = consumer
            for event in _events(consumer, self._patience):
                if isinstance(event, Rows):
                    self._read.saw(event)
                    yield _up_to(event.batch, last)
                elif isinstance(event, RolledBack):
                    undisturbed = False
                    self._left(event)
                elif isinstance(event, SystemHappened):
                    self._happened(event)
        finally:
            if consumer.finished and undisturbed:
                keep(self._cache_key, consumer)
            else:
                consumer.close()

    def _happened(self, happened: SystemHappened) -> None:
        """A collection began or ended: what is older of its name is gone."""
        event, step = happened.event, self._steps[happened.vbucket]
        if (
            self._restatement is not None
            and isinstance(event, m.CollectionCreated)
            and (step.wants(event.seqno) or step.vbucket in self._whole)
        ):
            with suppress(LookupError):
                scope, collection = self._names(event.collection)
                if scope is not None:
                    self._restatement.begin(
                        *(happened.vbucket, scope, collection, event.seqno),
                        first=not step.start,
                    )
        if isinstance(event, m.CollectionCreated | m.CollectionDropped) and step.wants(event.seqno):
            self._log.happened(
                happened.vbucket,
                event.seqno,
                event.collection,
                self._names,
                dropped=isinstance(event, m.CollectionDropped),
            )

    def _left(self, event: RolledBack) -> None:
        """A vbucket is not to be read any further here."""
        step = self._steps[event.vbucket]
        asked = replace(step.offset, seqno=event.from_seqno)
        verdict = judge(step, asked, event.served)
        if verdict is StepVerdict.SKIP:
            self.left_behind.add(event.vbucket)
        elif verdict is StepVerdict.RETRY:
            self.not_found[event.vbucket] = event.to
        elif verdict is StepVerdict.START_OVER:
            raise RollbackRequired(
                vbucket=event.vbucket, seqno=step.start, reason=event.reason.value
            )


def _patience(options: ReadOptions) -> float:
    """Seconds that a task waits for the next change: to find a node, and for its answer."""
    return options.retry_timeout + options.request_timeout


def _events(consumer: Consumer, patience: float) -> Iterator[Event]:
    """The events of a consumer; ConnectionFailed if none brings it further for a time.

    That a stream was opened again is no progress: a node can accept it over and over.
    """
    opened: set[int] = set()
    since = time.monotonic()
    while True:
        event = consumer.poll(max(0.0, since + patience - time.monotonic()))
        if event is None:
            if consumer.finished:
                return
            raise _nothing_came(consumer, patience)
        is_again = isinstance(event, StreamOpened) and event.vbucket in opened
        if isinstance(event, StreamOpened):
            opened.add(event.vbucket)
        yield event
        if not is_again:
            since = time.monotonic()  # now: what is done with an event may take long


def _nothing_came(consumer: Consumer, patience: float) -> ConnectionFailed:
    """The error for nodes that were waited for in vain."""
    status = consumer.status()
    unread = sorted(status.vbuckets)
    of = f"vbucket {unread[0]} after seqno {status.received[unread[0]]}" if unread else "its bucket"
    others = f" and of {len(unread) - 1} others" if len(unread) > 1 else ""
    return ConnectionFailed(
        f"sent nothing more of {of}{others} for {patience:g} s",
        "see its log, and whether it gets that far",
        where=", ".join(map(str, sorted(status.nodes))),
    )


def _builder(
    options: ReadOptions, steps: Sequence[ReadStep], names: _CollectionNames
) -> RowBuilder:
    return RowBuilder(
        options.rows,
        branches={step.vbucket: step.branch for step in steps},
        vbuuids={step.vbucket: step.offset.vbuuid for step in steps},
        names=names,
    )


def _as_array(seqnos: Mapping[int, int]) -> npt.NDArray[np.uint64]:
    by_vbucket = np.zeros(_VBUCKETS, np.uint64)
    for vbucket, seqno in seqnos.items():
        by_vbucket[vbucket] = seqno
    return by_vbucket


def _up_to(batch: pa.RecordBatch, ends: npt.NDArray[np.uint64]) -> pa.RecordBatch:
    """The rows that belong to their steps: snapshots go on beyond."""
    within = batch.column("seqno").to_numpy() <= ends[batch.column("vbucket").to_numpy()]
    return batch if within.all() else batch.filter(pa.array(within))
