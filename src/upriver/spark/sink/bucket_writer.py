"""The sink: writes DataFrames into a bucket, as a batch or a stream: ``write.format("dcp")``.

Writes are idempotent (see `row_edits` for the edit of each row), so a task or a batch that Spark
repeats has no effect.

A stream also has a fence: a document ``_upriver:sink:<query id>`` in the default collection with
the number of the last batch that was completely written. Spark repeats a batch if it failed between
the sink's commit and its own. The tasks of such a batch see the fence and write nothing, even if
other clients have changed the documents since. After rewinding a checkpoint by hand, delete the
fence. A stream whose tasks are not told their query and batch fails before it writes. What a
function of ``foreachBatch`` writes is a batch, and has no fence.

The save mode ``append`` upserts: a row is written over the document with its key, and documents
without a row stay. So do the output modes append, update and complete of a stream. The save mode
``overwrite`` is refused. Spark itself refuses a batch without ``mode("append")``.

Rows of one document should be in one partition. Within a task the last of them is written; the
order of two tasks is undefined (``repartition`` by the key if there can be several).

A collection with a maximum expiry sets the expiry of documents that have none, so a document there
differs from its row and a repeated row is written again.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage

from ...batches.options import WriteOptions
from ...consumer.writing.document_checks import WRITING, refused
from ...consumer.writing.write_operations import (
    Edit,
    EditOutcome,
    EditSteps,
    Form,
    SteppedEdit,
    get,
    store,
)
from ...consumer.writing.writer import Writer, WriterSettings
from ...errors import ConfigError, Status
from ..runtime.internals import micro_batch
from .arrow_stream_writer import ArrowStreamWriter
from .create_collections import created_collection
from .removed_at_source import remove_others
from .row_edits import FENCE_PREFIX, Edits, roles_of

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

#: Digits of a batch's number, which has 64 bits in Spark.
_MAX_FENCE: Final = 100
#: Keys of the source in memory, while the target is looked through for others: about 100 MB.
_MOST_RESTATED: Final = 1_000_000


def writer(options: WriteOptions, schema: StructType, overwrite: bool) -> DcpWriter:
    """The writer of a batch. It connects once, so that a refusal fails before the tasks start."""
    if overwrite:
        raise ConfigError(
            "mode('overwrite') is not supported, because it would empty the bucket; "
            "mode('append') writes each row over the document with its key, and keeps the others"
        )
    roles = roles_of(options, schema)
    with _open(options, wait_at_start=0.0) as opened:
        opened.collections.id_of(options.collection)
    return DcpWriter(options, roles)


def stream_writer(options: WriteOptions, schema: StructType, overwrite: bool) -> DcpStreamWriter:
    """The writer of a stream. In output mode complete, documents that left the result stay."""
    return DcpStreamWriter(options, roles_of(options, schema), schema)


@dataclass(frozen=True, slots=True)
class TaskWritten(WriterCommitMessage):
    """The commit message of a task."""

    written: int = 0
    #: Documents that already had the wanted content.
    unchanged: int = 0
    #: Rows that were followed by another row of the same document.
    superseded: int = 0
    #: The query of a stream.
    query: str | None = None

    @property
    def rows(self) -> int:
        return self.written + self.unchanged + self.superseded


class DcpWriter(DataSourceArrowWriter):
    """The writer of a batch, pickled to the tasks."""

    def __init__(self, options: WriteOptions, roles: Mapping[str, str]) -> None:
        self._options = options
        self._roles = roles

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskWritten:  # type: ignore[override]
        with _open(self._options) as opened:
            return _write(self._options, self._roles, opened, iterator)


class DcpStreamWriter(ArrowStreamWriter):
    """The writer of a stream's micro-batches, pickled to the tasks."""

    def __init__(self, options: WriteOptions, roles: Mapping[str, str], schema: StructType) -> None:
        super().__init__(schema)
        self._options = options
        self._roles = roles

    def write_batches(self, iterator: Iterator[pa.RecordBatch]) -> TaskWritten:
        query, batch = micro_batch()
        with _open(self._options) as opened:
            if opened.do(_fence(query)) >= batch:
                for _ in iterator:  # consumes the input, so that Spark can reuse this process
                    pass
                return TaskWritten(query=query)
            return _write(self._options, self._roles, opened, iterator, query)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Raises the fence, if there was anything to write."""
        reports = [message for message in messages if isinstance(message, TaskWritten)]
        query = next((message.query for message in reports if message.rows), None)
        if query is not None:
            with _open(self._options) as opened:
                opened.do(_raised_fence(query, batchId))

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Does nothing: the batch will be written again, which is idempotent."""


def _open(options: WriteOptions, *, wait_at_start: float | None = None) -> Writer:
    settings = WriterSettings(
        connections=options.connections,
        batch_size=options.batch_size,
        connect_timeout=options.connect_timeout,
        request_timeout=options.request_timeout,
        retry_timeout=options.retry_timeout,
        wait_at_start=options.retry_timeout if wait_at_start is None else wait_at_start,
    )
    return Writer(options.source, options.access, settings)


def _write(
    options: WriteOptions,
    roles: Mapping[str, str],
    opened: Writer,
    batches: Iterator[pa.RecordBatch],
    query: str | None = None,
) -> TaskWritten:
    def find(scope: str, collection: str) -> int:
        name = f"{scope}.{collection}"
        try:
            return opened.collections.id_of(name)
        except ConfigError:
            opened.renew()  # the collection may be newer than the known manifest
            if options.create_collections:
                return created_collection(options, opened, scope, collection)
            return opened.collections.id_of(name)

    edits = Edits(options, roles, find)

    def remove() -> None:
        opened.flush()
        if edits.restated:
            remove_others(options, opened, edits.restated, has_metadata="cas" in roles)
            edits.restated, edits.restated_keys = {}, 0

    for batch in batches:
        for edit in edits.of(batch):
            opened.put(edit)
        if edits.restated_keys >= _MOST_RESTATED:
            remove()
    remove()
    counts = opened.counts
    return TaskWritten(counts.written, counts.unchanged, counts.superseded, query)


# ---- the fence ---------------------------------------------------------------------------


def _fence(query: str) -> Edit:
    """Reads the fence: the last batch of a query that was completely written, or -1."""
    key = FENCE_PREFIX + query.encode()

    def steps() -> EditSteps:
        found = yield from get(key)
        return -1 if found is None else _batch_of(key, found.value)

    return SteppedEdit(key, 0, steps)


def _raised_fence(query: str, batch: int) -> Edit:
    """Raises the fence to a batch that was completely written; it is never lowered."""
    key = FENCE_PREFIX + query.encode()
    value = json.dumps({"batch": batch}).encode()

    def steps() -> EditSteps:
        while True:
            found = yield from get(key)
            if found is not None and _batch_of(key, found.value) >= batch:
                return EditOutcome.UNCHANGED
            form, cas = (Form.ADD, 0) if found is None else (Form.SET, found.cas)
            answer = yield store(form, value, cas=cas)
            if answer is None or answer.status is Status.SUCCESS:
                return EditOutcome.WRITTEN
            if answer.status not in (Status.EXISTS, Status.NOT_FOUND):
                raise refused(WRITING, key, answer)

    return SteppedEdit(key, 0, steps)


def _batch_of(key: bytes, value: bytes) -> int:
    try:
        batch = json.loads(value[:_MAX_FENCE])["batch"]
    except (ValueError, KeyError, TypeError):
        batch = None
    if type(batch) is not int:
        raise ConfigError(f"the document {key.decode()} is not a fence of a stream: delete it")
    return batch
