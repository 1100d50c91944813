"""A pipeline from a bucket to a table: the loop that plans, has executors work, and commits.

    plan -> tasks read, write files and find old rows -> vectors -> one commit -> what follows

The newest commit of the table is all that a pipeline knows when it starts: it goes on from the
offset in it. Any of these steps can be the last before a crash, or before somebody else commits:
what no commit names does not count, and the next batch is planned anew from the newest commit.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import Any, Final

from .. import telemetry
from .._unclosed import warn_unclosed
from ..batches.admission import Limits
from ..batches.offset_planning import after_reading
from ..batches.offset_ranges import ReadStep, are_few, steps_between
from ..batches.offsets import Offset
from ..batches.stream_driver import Driver
from ..batches.task_reader import BranchGone
from ..consumer.topology.waiting import Interrupted
from ..errors import (
    BucketNotFound,
    ConfigError,
    ConnectionFailed,
    Status,
    StatusError,
    UpriverError,
)
from ..files.storage import StorageFailed
from .chosen_collections import (
    ChosenCollections,
    CollectionChange,
    offset_after,
    read_anew,
    steps_of,
)
from .executors import Executors, ThisProcess
from .format.open_table import Conflict
from .history_merge import MergeVersions, stays_up_to
from .lag import Lag, LagMeter
from .lease import Lease
from .merge import AppendTask, Merge, TaskOutcome, VersionGone, files_of_groups
from .pipeline_settings import SHAPE, PipelineSettings
from .pipeline_tables import PipelineTables
from .progress_log import PipelineStatus, ProgressBook
from .rows.row_shape import MirrorShape
from .upkeep.table_maintenance import TableMaintenance

_log = logging.getLogger(__name__)

#: Seconds between two looks for a collection while there is none to read.
_PAUSE: Final = 1.0
#: How often a batch whose branch or version is gone, or that met another writer, is planned again.
_MOST_REPLANS: Final = 8
#: In how many parts ``retryTimeout`` is waited for a node. A task waits for one of them: then the
#: batch is planned again, with what the driver knows of the cluster by then.
_WAITS: Final = 2
#: Changes of the first batch of a table whose columns follow documents.
_SAMPLE: Final = 10_000


class NodeAway(UpriverError):
    """Tasks have waited for a node in vain: the cluster may have another in its place by now."""


class Pipeline:
    """A pipeline that runs; it is left with `stop`, or by itself if it is to run once."""

    def __init__(self, table: str, book: ProgressBook, meter: LagMeter) -> None:
        self._table = table
        self._meter = meter
        self._running = _Run(book)

    def __del__(self) -> None:
        if self._running.is_active:
            warn_unclosed(self, self._table, "call stop()")

    def status(self) -> PipelineStatus:
        """How it goes now. How far the table is behind was measured a few seconds ago at most."""
        return self._running.book.status()

    def lag(self) -> int | None:
        """How many seqnos readers of the table are behind the bucket now; asks its nodes."""
        found = self._meter.measure()
        return found.changes if found is not None else None

    def wait(self, timeout: float | None = None) -> bool:
        """Waits until it has ended, and says whether it has; UpriverError if it has failed."""
        ended = self._running.ended.wait(timeout)
        if self._running.failure is not None:
            raise self._running.failure
        return ended

    def stop(self) -> None:
        """Ends it after the batch that is under way; at once if it waits for a node."""
        self._running.stop()

    def run(self, work: BatchLoop, held: ExitStack) -> None:
        """Starts the work; what is ``held`` is closed when it has ended."""
        self._running.start(work, held.pop_all())


class _Run:
    """The thread of a pipeline, which does not keep the `Pipeline` itself alive."""

    def __init__(self, book: ProgressBook) -> None:
        self.book = book
        self.is_active = False
        self.ended = threading.Event()
        self.stopped = threading.Event()
        self.failure: UpriverError | None = None
        self._interrupt: Callable[[], None] = lambda: None

    def stop(self) -> None:
        self.stopped.set()
        self._interrupt()
        self.ended.wait()

    def start(self, work: BatchLoop, closing: ExitStack) -> None:
        self.is_active = True
        self._interrupt = work.interrupt
        threading.Thread(
            target=self._run, args=(work, closing), name="upriver pipeline", daemon=True
        ).start()

    def _run(self, work: BatchLoop, closing: ExitStack) -> None:
        try:
            with closing:  # gives the lease back, which says how it ended
                self._work(work)
        except Exception as problem:
            self._fail(problem)
        finally:
            self.is_active = False
            self.ended.set()

    def _work(self, work: BatchLoop) -> None:
        try:
            work.run(self.stopped)
            self.book.close("stopped" if self.stopped.is_set() else "done")
        except Exception as problem:  # of Spark, of Java, of ours: whatever ended it
            self._fail(problem)

    def _fail(self, problem: Exception) -> None:
        self.failure = _as_ours(problem)
        self.book.close("failed", _first_line(self.failure))


class BatchLoop:
    """Batch after batch of one table."""

    def __init__(
        self,
        executors: Executors,
        settings: PipelineSettings,
        tables: PipelineTables,
        shape: MirrorShape,
        driver: Driver,
        lease: Lease,
        book: ProgressBook,
        meter: LagMeter,
        chosen: ChosenCollections,
        changed: Mapping[str, str] | None = None,
    ) -> None:
        self._executors = executors
        #: Does what is small: a job of Spark takes longer than the changes do.
        self._here = ThisProcess()
        self._settings = settings
        self._tables = tables
        self._maintenance = TableMaintenance(tables)
        self._shape = shape
        self._driver = driver
        self._lease = lease
        self._book = book
        self._meter = meter
        self._chosen = chosen
        self._reading = chosen.options
        #: Properties of the table that the next commit changes, and whether its rows change too.
        self._changed = changed
        self._reshaped = changed is not None and SHAPE in changed and tables.state.batch > 0
        self._replans = 0
        #: How often in a row tasks have waited for a node in vain.
        self._waits = 0
        #: Since when a node says that there is no bucket; None while there is one.
        self._no_bucket_since: float | None = None
        self._more_to_compact = False

    def interrupt(self) -> None:
        """Ends what is asked of the bucket, from another thread."""
        self._driver.interrupt()

    def run(self, stopped: threading.Event) -> None:
        """Works until all is done, or `stop` is called."""
        self._tables.apply_pending()
        target: dict[int, int] | None = None
        while not stopped.is_set():
            began = time.monotonic()
            try:
                moved = self._follow_collections()
                if self._chosen.options is None and not moved and not self._settings.once:
                    stopped.wait(_PAUSE)
                elif self._chosen.options is not None and not moved:
                    if self._settings.once and target is None:
                        target = self._driver.target(self._tables.state.offset)
                    moved = self._batch(target)
                self._replans, self._waits, self._no_bucket_since = 0, 0, None
            except Interrupted:
                return
            except BucketNotFound as problem:
                self._wait_for_bucket(problem, stopped)
                continue
            except Exception as problem:
                self._replan_after(problem)
                continue
            if not moved and self._settings.once:
                return
            if not moved:
                self._book.enter("idle")
            elif not self._settings.once:
                stopped.wait(max(0.0, self._settings.trigger - (time.monotonic() - began)))

    def _wait_for_bucket(self, problem: BucketNotFound, stopped: threading.Event) -> None:
        """Waits a moment for a bucket that was there before; raises after ``retryTimeout``.

        A node that restarts answers for some time that it has no such bucket.
        """
        now = time.monotonic()
        if self._no_bucket_since is None:
            self._no_bucket_since = now
            _log.warning("waiting for the bucket, which was there before: %s", _first_line(problem))
        self._book.enter("waiting", _first_line(problem))
        if now - self._no_bucket_since >= self._settings.read.retry_timeout:
            raise problem
        stopped.wait(_PAUSE)

    def _replan_after(self, problem: Exception) -> None:
        """Begins again from the newest commit, if that can help."""
        self._replans += 1
        telemetry.batch_failed(_first_line(problem))
        is_dropped = (
            isinstance(problem, StatusError) and problem.status is Status.UNKNOWN_COLLECTION
        )
        if is_dropped:  # a collection, since the batch was planned
            self._chosen.look_again()
        may_help = is_dropped or isinstance(problem, BranchGone | VersionGone | Conflict | NodeAway)
        if self._replans > _MOST_REPLANS or not may_help:
            raise problem
        _log.warning("a batch is planned again: %s", _first_line(problem))
        self._tables.refresh(self._lease.number)
        self._tables.apply_pending()

    # ---- other collections ---------------------------------------------------------------

    def _follow_collections(self) -> bool:
        """Makes the table one of the collections that there are now; says whether it changed."""
        change = self._chosen.change(self._driver, self._tables.state)
        before = self._tables.state.offset
        if before is None:
            change = None
        elif change is not None or self._reshaped:
            self._do(before, offset_after(before), change)
        if change is not None:
            self._chosen.take(change.covered)
        options = self._chosen.options
        if options is not self._reading:
            self._reading = options
            if options is not None:
                self._driver.choose(options)
            self._meter.choose(options)
        return change is not None

    # ---- a batch -------------------------------------------------------------------------

    def _batch(self, target: dict[int, int] | None) -> bool:
        """Plans and does one batch; false if there was nothing to do."""
        before = self._tables.state.offset or self._driver.first_offset()
        if before.source != self._driver.identity():
            raise ConfigError(
                f"the bucket {before.source.bucket} is not the one that {self._tables.root.url} is "
                "of: it was deleted and made anew; give a new table"
            )
        end = self._driver.next_offset(
            before,
            Limits(
                rows=self._most_rows(),
                bytes=self._settings.read.max_bytes_per_trigger,
                target=target,
            ),
            patience=0.0 if target is not None else self._settings.read.long_poll,
            can_restore=self._can_restore(),
        )
        if end is before:
            return False
        self._do(before, end)
        return True

    def _do(self, before: Offset, end: Offset, change: CollectionChange | None = None) -> None:
        """Reads and commits; a table that looks different from now on is read anew up to the end.

        If documents have more members than the columns that follow them, the batch is read again
        with columns for these.
        """
        began = time.monotonic()
        self._book.enter("reading")
        shape, anew = self._shape, self._reshaped
        while True:
            if anew:
                end = read_anew(before, end)
            if change is not None and not anew:
                steps = steps_of(change, before, self._driver, self._chosen)
            else:
                steps = steps_between(before, end)
            executors = self._here if self._is_small(steps) else self._executors
            outcomes = self._run(executors, self._tasks(steps, end, change, shape, anew=anew))
            grown = shape.grown(one.seen for one in outcomes)
            if grown is None:
                break
            anew = anew or not grown.only_adds_to(shape)
            shape = grown
        self._tables.on_step("read")
        read = time.monotonic()
        if change is None:  # otherwise only a part of the collections was read
            seen = {vb: at for one in outcomes for vb, at in one.read.snapshot_ends.items()}
            end = after_reading(end, seen)
        properties = dict(self._changed or {})
        if shape is not self._shape:
            properties[SHAPE] = shape.to_property()
        self._tables.commit_batch(
            outcomes,
            end,
            self._lease,
            self._executors,
            covered=self._chosen.covered if change is None else change.covered,
            properties=properties,
            schema=shape.arrow_schema if SHAPE in properties else None,
            own_schemas=shape.own_schemas,
            forget=anew or change is not None,
        )
        self._shape, self._changed, self._reshaped = shape, None, False
        committed = time.monotonic()
        if change is None:
            skipped = {vbucket for one in outcomes for vbucket in one.read.skipped}
            self._driver.prove({step.vbucket for step in steps} - skipped)
        self._meter.shown = end
        lag = self._meter.measure()
        self._maintain()
        goes_on = change is None and not anew
        advance = sum(step.end - step.start for step in steps) if goes_on else 0
        rollbacks = sum(step.rolls_back for step in steps) if not anew else 0
        self._record(outcomes, began, read, committed, lag, advance, rollbacks)

    def _run(self, executors: Executors, tasks: Sequence[AppendTask | Merge]) -> list[TaskOutcome]:
        try:
            return executors.run(tasks)
        except ConnectionFailed as problem:
            self._waits += 1
            if self._waits >= _WAITS or type(problem) is not ConnectionFailed:
                raise  # its subclasses are permanent
            raise NodeAway(str(problem)) from problem

    def _tasks(
        self,
        steps: Sequence[ReadStep],
        end: Offset,
        change: CollectionChange | None,
        shape: MirrorShape,
        *,
        anew: bool,
    ) -> list[AppendTask | Merge]:
        settings, tables = self._settings, self._tables
        batch = tables.state.batch + 1
        options = self._chosen.options
        if change is not None:
            options = self._chosen.reading(frozenset(change.covered) if anew else change.new)
        assert options is not None
        options = self._driver.reading(options)
        options = replace(options, retry_timeout=options.retry_timeout / _WAITS)
        groups = shape.groups if settings.kind.documents else 0
        parts = divided(steps, groups, self._parallelism(steps))
        if not settings.kind.documents:
            memory = settings.task_memory
            return [AppendTask(tables.root, options, part, batch, memory) for part in parts]
        key = tables.key
        assert key is not None
        held = tables.held()
        older = {
            version: tables.older.files_at(version)
            for version in {self._version_of(step) for step in steps if step.rolls_back}
            if version is not None
        }
        task: Callable[..., Merge] = Merge
        if settings.kind.versions:
            before = tables.state.offset
            kept = stays_up_to(before, end, steps) if before is not None else {}
            task = partial(MergeVersions, kept=kept)
        made: list[AppendTask | Merge] = []
        for part in parts:
            mine = {step.vbucket % groups for step in part}
            restored = []
            for version, files in older.items():
                back = {
                    step.vbucket
                    for step in part
                    if step.rolls_back and self._version_of(step) == version
                }
                if back:
                    chosen = {vb % groups for vb in back}
                    restored.append((back, _of_groups(files, chosen)))
            made.append(
                task(
                    tables.root,
                    options,
                    shape,
                    key,
                    part,
                    _of_groups(held, mine),
                    restored,
                    tables.per_collection,
                    tables.state.collections or {},
                    change.leaving if change is not None else frozenset(),
                    tables.letters(),
                    batch,
                    settings.task_memory,
                )
            )
        return made

    def _version_of(self, step: ReadStep) -> int | None:
        """The version with the rows that a vbucket goes back to; None if none is needed."""
        if not step.start or self._settings.kind.versions:
            return None
        return self._tables.state.versions[step.vbucket][step.start]

    def _can_restore(self) -> Callable[[int, int], bool] | None:
        """To which seqnos a vbucket can go back without being read from its beginning."""
        if not self._settings.kind.documents:
            return None  # a change log only notes it
        if self._settings.kind.versions:
            return lambda vbucket, seqno: True  # rows say from when to when they were valid
        return self._tables.older.can_restore

    def _most_rows(self) -> int | None:
        """Changes of a batch: few of the first one, if columns are yet to be found in them."""
        most = self._settings.read.max_offsets_per_trigger
        if self._tables.state.offset is None and self._shape.follows_any:
            return min(most or _SAMPLE, _SAMPLE)
        return most

    def _parallelism(self, steps: Sequence[ReadStep]) -> int:
        options = self._settings.read
        least = options.min_partitions or 1
        if are_few(steps):
            return least
        most = options.num_partitions or self._executors.parallelism
        return max(most, least)

    def _is_small(self, steps: Sequence[ReadStep]) -> bool:
        """Whether a batch is one task with few changes, and with nothing to restore."""
        return (
            are_few(steps)
            and (self._settings.read.min_partitions or 1) == 1
            and not any(step.rolls_back for step in steps)
        )

    # ---- besides -------------------------------------------------------------------------

    def _maintain(self) -> None:
        """What only rearranges files: if it fails, that is logged, and it is tried again later."""
        every, tables, maintenance = self._settings.compact_every, self._tables, self._maintenance
        try:
            if every and (self._more_to_compact or tables.state.batch % every == 0):
                self._more_to_compact = maintenance.compact(self._executors)
            if maintenance.checkpoint():
                tables.on_step("checkpoint")
                maintenance.vacuum()
                tables.on_step("vacuum")
        except (StorageFailed, Conflict, OSError) as problem:
            _log.warning("%s was not maintained: %s", tables.root.url, problem)

    def _record(
        self,
        outcomes: Sequence[TaskOutcome],
        began: float,
        read: float,
        committed: float,
        lag: Lag | None,
        advance: int,
        rollbacks: int,
    ) -> None:
        newest = [one.newest for one in outcomes if one.newest is not None]
        self._book.batch_done(
            advance=advance,
            began=began,
            batch=self._tables.state.batch,
            rows=sum(one.changes for one in outcomes),
            bytes=sum(one.bytes for one in outcomes),
            steps={
                "tasks": read - began,
                "commit": committed - read,
                "care": time.monotonic() - committed,
            },
            rollbacks=rollbacks,
            dead_letters=sum(new.file.rows for one in outcomes for new in one.letters),
            lag=lag.changes if lag is not None else None,
            lag_seconds=lag.seconds if lag is not None else None,
            delay=max(0.0, time.time() - max(newest)) if newest else None,
        )


def _of_groups(files: dict[str, list[Any]], groups: set[int]) -> dict[str, list[Any]]:
    return {name: files_of_groups(some, groups) for name, some in files.items()}


def divided(steps: Sequence[ReadStep], groups: int, count: int) -> list[tuple[ReadStep, ...]]:
    """Steps for at most so many tasks, of about the same size; those of a group stay together."""
    together: dict[int, list[ReadStep]] = {}
    for step in steps:
        group = step.vbucket % groups if groups else step.vbucket
        together.setdefault(group, []).append(step)
    share = sum(step.size for step in steps) / max(1, count)
    parts: list[list[ReadStep]] = []
    done = 0.0
    for _, some in sorted(together.items()):
        size = sum(step.size for step in some)
        # a task has the groups of one range, so its files are looked at for few groups later
        if not parts or (done + size / 2 >= share * len(parts) and len(parts) < count):
            parts.append([])
        parts[-1] += some
        done += size
    return [tuple(part) for part in parts]


def _first_line(problem: Exception) -> str:
    return str(_as_ours(problem)).partition("\n")[0]


def _as_ours(problem: Exception) -> UpriverError:
    """The error as one of ours: itself, or with its text."""
    if isinstance(problem, UpriverError):
        return problem
    ours = UpriverError(f"{type(problem).__name__}: {problem}")
    ours.__cause__ = problem
    return ours
