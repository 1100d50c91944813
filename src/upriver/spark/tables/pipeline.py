"""A pipeline from a bucket to a table: a streaming query, what it does with a batch, its handle.

    batch -> history or change log, one commit -> mirror, one commit -> Spark's own commit

Each of these can be the last thing before a crash. Spark then runs the batch again with the same
offsets, and whatever is committed already says so by its batch number. A mirror may wait while a
backlog is read: it is brought up when the last of it is in the history, so a first load is appended
batch by batch and built once.
"""

from __future__ import annotations

import logging
import re
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

from ...errors import ConfigError, UpriverError
from ..driver import Driver
from ..offsets import Offset
from ..rows import spark_schema
from ..session import register
from . import first_load, grouped_files, maintenance
from .change_log import ChangeLog
from .delta import DeltaFolder
from .keeper import MirrorKeeper
from .lag import LagMeter
from .offset_log import OffsetLog, positions_of
from .places import TablePlace
from .progress import PipelineStatus, ProgressBook
from .settings import (
    PER_COLLECTION,
    PIPELINE,
    SHAPE,
    PipelineSettings,
    identity_properties,
    require_same,
)
from .shape import MirrorShape, inferred_schema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

__all__ = ["Pipeline", "start_pipeline"]

_log = logging.getLogger(__name__)

#: Batches that a mirror may wait for while a backlog is read.
_MOST_WAITING: Final = 50
#: Seconds without a batch after which none is expected at once.
_IDLE: Final = 1
#: What the source says of a batch whose branch no server has any more, after two failovers in a
#: row; and how often such a batch is tried again.
_GONE: Final = "DCP-UNKNOWN-BRANCH"
_MOST_REPLAYS: Final = 3
#: In a checkpoint: which table it belongs to.
_MARK: Final = "upriver-pipeline"
#: What the errors of a batch look like in the text that Spark makes of them.
_OURS: Final = re.compile(r"upriver\.errors\.\w+: (.+)")
#: Documents that a schema is inferred from.
_SAMPLE: Final = 10_000


class Work(Protocol):
    """What is to do besides batches."""

    def when_idle(self) -> None:
        """Between two batches, if there is time."""

    def finish(self) -> None:
        """After the last batch of a query that has ended by itself."""


class _NoWork:
    """Of a query that does all by itself."""

    def when_idle(self) -> None:
        pass

    def finish(self) -> None:
        pass


class Pipeline:
    """A pipeline that runs; it is left with `stop`, or by itself if it is to run once."""

    def __init__(self, book: ProgressBook, meter: LagMeter) -> None:
        self._book = book
        self._meter = meter
        self._closing = ExitStack()
        self._query: StreamingQuery | None = None
        #: Not a thread to join: a join that Ctrl-C interrupts takes the thread for ended.
        self._ended = threading.Event()
        self._stopped = False
        #: Held while a batch is worked on. Spark would interrupt it, and make of that an error
        #: whose text is so long that its own search for the cause overflows the stack.
        self._turn = threading.Lock()
        self._failure: UpriverError | None = None
        self._cause: Exception | None = None
        self._replays = 0

    def status(self) -> PipelineStatus:
        return self._book.status()

    def lag(self) -> int | None:
        """How many seqnos readers of the table are behind the bucket now; asks its nodes."""
        return self._meter.measure()

    def wait(self, timeout: float | None = None) -> bool:
        """Waits until it has ended, and says whether it has; UpriverError if it has failed."""
        ended = self._ended.wait(timeout)
        if self._failure is not None:
            raise self._failure
        return ended

    def stop(self) -> None:
        """Ends it after the batch that is under way."""
        self._stopped = True
        with self._turn:
            pass
        while self._query is not None and not self._ended.is_set():
            self._query.stop()
            self._ended.wait(_IDLE)

    # ---- for those who start it ----------------------------------------------------------

    def run(self, begin: Callable[[], StreamingQuery], work: Work, held: ExitStack) -> None:
        """Begins a query and watches it, and has the work done that is no batch.

        What is ``held`` is this pipeline's from then on, and closed when it ends.
        """
        self._query = begin()
        self._closing = held.pop_all()
        threading.Thread(
            target=self._watch, args=(begin, work), name="upriver pipeline", daemon=True
        ).start()

    @contextmanager
    def turn(self) -> Iterator[None]:
        """The time in which a batch is worked on."""
        with self._turn:
            if self._stopped:
                raise UpriverError("the pipeline is being stopped")
            try:
                yield
            except Exception as problem:
                self._cause = problem  # Spark keeps no more than a text of it
                raise

    def _watch(self, begin: Callable[[], StreamingQuery], work: Work) -> None:
        try:
            while not self._has_ended(work):
                _log.warning("a branch went while it was read; the batch is planned again")
                self._query = begin()
            if not self._stopped:
                self._book.state("finishing")
                work.finish()
            self._book.state("stopped" if self._stopped else "done")
        except Exception as problem:  # of Spark, of Java, of ours: whatever ended it
            if self._stopped:
                self._book.state("stopped")
            else:
                self._failure = _as_ours(self._cause or problem)
                self._book.state("failed")
        finally:
            self._closing.close()
            self._ended.set()

    def _has_ended(self, work: Work) -> bool:
        """Waits for the end of the query; false if it must begin again."""
        assert self._query is not None
        batches = self._book.status().batches
        try:
            while not self._query.awaitTermination(_IDLE):
                with self._turn:
                    if not self._stopped:
                        work.when_idle()
        except Exception as problem:
            # the replay asks which branches there are, so it cannot fail for the same reason
            self._replays = 0 if self._book.status().batches > batches else self._replays + 1
            if self._stopped or self._replays > _MOST_REPLAYS or _GONE not in str(problem):
                raise
            self._cause = None
            return False
        return True


def start_pipeline(
    spark: SparkSession,
    settings: PipelineSettings,
    place: TablePlace,
    *,
    on_step: Callable[[str], None] = lambda step: None,
) -> Pipeline:
    """Checks that table, checkpoint and source belong together, and starts."""
    register(spark)
    grouped_files.register(spark)
    first_load.register(spark)
    checkpoint = settings.checkpoint or place.checkpoint
    offsets = OffsetLog(checkpoint)
    with ExitStack() as stack:
        stack.enter_context(place.locked())
        driver = Driver(settings.read)
        meter = LagMeter(driver, offsets.end_of(offsets.newest_batch()))
        stack.callback(meter.close)
        identity = driver.identity()
        total = meter.measure() if settings.once else None
        book = ProgressBook(place.progress, uuid.uuid4().hex[:8], total)
        pipeline = Pipeline(book, meter)
        rows = _stream(spark, settings)
        writer: Any = rows.writeStream.option("checkpointLocation", str(checkpoint))
        if settings.once:
            writer = writer.trigger(availableNow=True)
        elif settings.trigger:
            writer = writer.trigger(processingTime=f"{round(settings.trigger * 1000)} milliseconds")
        work: Work = _NoWork()
        if settings.parquet:
            writer = writer.format("parquet").option("path", str(place.root))
        else:
            properties = identity_properties(settings, identity)
            batches = _Batches(spark, settings, place, offsets, pipeline, book, meter, on_step)
            batches.prepare(checkpoint, properties)
            writer, work = writer.foreachBatch(batches.run), batches
        pipeline.run(writer.start, work, stack)
        return pipeline


def _stream(spark: SparkSession, settings: PipelineSettings) -> DataFrame:
    return spark.readStream.format("dcp").options(**settings.source).load()


class _Batches:
    """What is done with each batch of a Delta table."""

    def __init__(
        self,
        spark: SparkSession,
        settings: PipelineSettings,
        place: TablePlace,
        offsets: OffsetLog,
        pipeline: Pipeline,
        book: ProgressBook,
        meter: LagMeter,
        on_step: Callable[[str], None],
    ) -> None:
        self._spark = spark
        self._settings = settings
        self._place = place
        self._offsets = offsets
        self._pipeline = pipeline
        self._book = book
        self._meter = meter
        self._on_step = on_step
        self._log: ChangeLog
        self._keeper: MirrorKeeper | None = None
        self._waiting = 0
        self._last_batch = time.monotonic()

    # ---- before the first batch ----------------------------------------------------------

    def prepare(self, checkpoint: Path, identity: Mapping[str, str]) -> None:
        settings, place = self._settings, self._place
        mirrored = settings.kind == "mirror"
        folder = DeltaFolder(place.history if mirrored else place.root)
        held = folder.properties() if folder.exists() else None
        if held is not None:
            require_same(place.root, held, identity)
        app = _pipeline_of(checkpoint, held, self._offsets, place.root)
        properties = {**identity, PIPELINE: app}
        self._log = ChangeLog(folder.path, app)
        shape = MirrorShape()
        if mirrored:
            shape = self._shape(held)
            properties |= {
                SHAPE: shape.to_json(),
                PER_COLLECTION: str(settings.table_per_collection).lower(),
            }
            if held is not None:
                require_same(place.root, held, properties)
        if held is None:
            self._log.create(spark_schema(settings.read.rows), properties)
        if mirrored:
            self._keeper = MirrorKeeper(
                place,
                self._log,
                shape,
                app=app,
                properties=properties,
                per_collection=settings.table_per_collection,
                on_step=self._on_step,
            )
            self._keeper.create(self._spark)
            self._bring_up(self._spark)

    def _shape(self, held: Mapping[str, str] | None) -> MirrorShape:
        """How rows look: as asked; what was inferred once stays."""
        from pyspark.sql.types import StructType

        settings = self._settings
        asked = settings.value_schema
        schema = ""
        if asked == "infer" and held is not None:
            schema = MirrorShape.of_json(held[SHAPE]).schema
        elif asked == "infer":
            options = {
                name: text for name, text in settings.source.items() if "PerTrigger" not in name
            }
            documents = self._spark.read.format("dcp").options(**options).load()
            schema = inferred_schema(documents.where("op = 'mutation'").limit(_SAMPLE)).json()
        elif asked:
            schema = StructType.fromDDL(asked).json()
        return MirrorShape(
            text=settings.text,
            schema=schema,
            keep_deleted=settings.keep_deleted,
            groups=settings.groups,
        )

    # ---- a batch -------------------------------------------------------------------------

    def run(self, rows: DataFrame, batch: int) -> None:
        with self._pipeline.turn():
            self._run(rows, batch)
            self._last_batch = time.monotonic()

    def _run(self, rows: DataFrame, batch: int) -> None:
        began = time.monotonic()
        steps: dict[str, float] = {}
        end = self._offsets.end_of(batch)
        if end is None or not end.progress:
            return  # the first batch only puts the start into Spark's log
        before = self._offsets.end_of(batch - 1)
        appended = self._log.append(rows, batch, positions_of(end))
        steps["log"] = time.monotonic() - began
        self._on_step("log")
        letters = 0
        self._waiting += 1
        if self._keeper is not None and not self._may_wait(before, end):
            started = time.monotonic()
            letters = self._bring_up(rows.sparkSession, end)
            steps["mirror"] = time.monotonic() - started
        if self._settings.compact_every and batch % self._settings.compact_every == 0 and batch:
            started = time.monotonic()
            maintenance.care_for(self._place, hours=self._settings.keep_versions)
            steps["care"] = time.monotonic() - started
        if self._keeper is None:
            self._meter.shown = end
        self._book.batch_done(
            advance=_advance(before, end),
            began=began,
            batch=batch,
            rows=appended.rows,
            bytes=appended.bytes,
            steps=steps,
            rollbacks=_rollbacks(before, end),
            dead_letters=letters,
            lag=self._meter.measure(),
            delay=None if appended.newest is None else max(0.0, time.time() - appended.newest),
        )

    def _may_wait(self, before: Offset | None, end: Offset) -> bool:
        """Whether more is coming at once, so that the mirror can take it together."""
        if self._settings.once:
            return True
        limit = self._settings.read.max_offsets_per_trigger
        cut = limit is not None and _advance(before, end) >= limit
        return cut and self._waiting < _MOST_WAITING

    def _bring_up(self, spark: SparkSession, end: Offset | None = None) -> int:
        assert self._keeper is not None
        if end is None:
            end = self._offsets.end_of(self._log.last_batch())
        self._waiting = 0
        if end is None:
            return 0
        letters = self._keeper.bring_up(spark, positions_of(end))
        self._meter.shown = end
        return letters

    def when_idle(self) -> None:
        """A backlog that was expected has not come: what waits is brought up without it."""
        idle = time.monotonic() - self._last_batch > _IDLE
        if self._keeper is not None and self._waiting and idle and not self._settings.once:
            self._book.add_dead_letters(self._bring_up(self._spark))

    def finish(self) -> None:
        if self._keeper is not None:
            self._book.add_dead_letters(self._bring_up(self._spark))


def _advance(before: Offset | None, end: Offset) -> int:
    """Over how many seqnos a batch goes."""
    return sum(
        progress.seqno - progress.start
        for vbucket, progress in end.progress.items()
        if before is None or progress != before.at(vbucket)
    )


def _rollbacks(before: Offset | None, end: Offset) -> int:
    return sum(
        progress.rolled_back and (before is None or progress != before.at(vbucket))
        for vbucket, progress in end.progress.items()
    )


def _pipeline_of(
    checkpoint: Path, held: Mapping[str, str] | None, offsets: OffsetLog, table: Path
) -> str:
    """The name under which batches are counted, if checkpoint and table belong together."""
    mark = checkpoint / _MARK
    marked = mark.read_text().strip() if mark.exists() else ""
    if held is not None:
        if marked != held.get(PIPELINE):
            raise ConfigError(
                f"{table} was written with another checkpoint than {checkpoint}; give that one, "
                "or a new table"
            )
        return marked
    if offsets.newest_batch() >= 0:
        raise ConfigError(
            f"the checkpoint {checkpoint} is of a table that is not at {table} any more; give a "
            "new checkpoint, or the table that it is of"
        )
    if not marked:
        marked = uuid.uuid4().hex
        checkpoint.mkdir(parents=True, exist_ok=True)
        mark.write_text(marked)
    return marked


def _as_ours(problem: Exception) -> UpriverError:
    """The error as one of ours: itself, or what Spark's wrapping says of one, or its text."""
    if isinstance(problem, UpriverError):
        return problem
    found = _OURS.findall(str(problem))
    ours = UpriverError(found[-1] if found else f"{type(problem).__name__}: {problem}")
    ours.__cause__ = problem
    return ours
