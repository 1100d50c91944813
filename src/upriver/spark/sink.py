"""Writes frames into a bucket, as a batch or as a stream: ``write.format("dcp")``.

Writing again what was written changes nothing: see `sink_rows` for what each row does. So a task
that Spark repeats does no harm, and neither does a batch.

A stream has a fence besides: a document ``_upriver:sink:<query id>`` in the default collection,
with the number of the last batch that was completely written. Spark repeats a batch if it died
after the sink was done and before it took note of that. The tasks of such a batch see the fence
and write nothing, whatever others have done to the documents since. Who rewinds a checkpoint by
hand must delete the fence.

Rows of one document should be in one partition. Within a task the last of them wins; of two tasks
nobody knows which is first (``repartition`` by the key if there can be several).

A collection that limits how long documents live sets the expiry of those that have none, so a
document there differs from its row and a repeated row is written again.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

from ..consumer.edits import Conversation, Edit, Form, Outcome, Steps, get, refused, store
from ..consumer.writer import Writer, WriterSettings
from ..errors import ConfigError, Status
from .options import WriteOptions
from .sink_rows import FENCE_PREFIX, Edits, roles_of

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

__all__ = ["DcpStreamWriter", "DcpWriter", "Written", "stream_writer", "writer"]

_QUERY: Final = "sql.streaming.queryId"
_BATCH: Final = "streaming.sql.batchId"
#: Digits of a batch's number; Spark's are 64 bits wide.
_MAX_FENCE: Final = 100


def writer(options: WriteOptions, schema: StructType, overwrite: bool) -> DcpWriter:
    """What writes a batch. The server is asked once whether it will have us at all."""
    if overwrite:
        raise ConfigError("a bucket is not emptied; use mode('append'), which overwrites documents")
    roles = roles_of(options, schema)
    with _open(options, wait_at_start=0.0) as opened:
        opened.collections.id_of(options.collection)
    return DcpWriter(options, roles)


def stream_writer(options: WriteOptions, schema: StructType, overwrite: bool) -> DcpStreamWriter:
    """What writes a stream. In output mode complete, what is no longer in the result stays."""
    return DcpStreamWriter(options, roles_of(options, schema))


@dataclass(frozen=True, slots=True)
class Written(WriterCommitMessage):
    """What a task tells of itself."""

    written: int = 0
    #: Documents that were as they shall be.
    unchanged: int = 0
    #: Rows after which came another one of the same document.
    superseded: int = 0
    #: The query of a stream.
    query: str | None = None

    @property
    def rows(self) -> int:
        return self.written + self.unchanged + self.superseded


class DcpWriter(DataSourceArrowWriter):
    """Writes a batch. It is pickled to the tasks."""

    def __init__(self, options: WriteOptions, roles: Mapping[str, str]) -> None:
        self._options = options
        self._roles = roles

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:  # type: ignore[override]
        with _open(self._options) as opened:
            return _write(self._options, self._roles, opened, iterator)


class DcpStreamWriter(DataSourceStreamArrowWriter):
    """Writes the micro-batches of a stream. It is pickled to the tasks."""

    def __init__(self, options: WriteOptions, roles: Mapping[str, str]) -> None:
        self._options = options
        self._roles = roles

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:  # type: ignore[override]
        query, batch = _place_in_stream()
        with _open(self._options) as opened:
            if query is not None and opened.do(_fence(query)) >= batch:
                for _ in iterator:  # so that Spark need not throw this process away
                    pass
                return Written(query=query)
            return _write(self._options, self._roles, opened, iterator, query)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Raises the fence, if there was anything to write."""
        told = [message for message in messages if isinstance(message, Written)]
        query = next((message.query for message in told if message.rows), None)
        if query is not None:
            with _open(self._options) as opened:
                opened.do(_raised_fence(query, batchId))

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Nothing is taken back: the batch will be written again, which changes nothing."""


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
) -> Written:
    def find(scope: str, collection: str) -> int:
        name = f"{scope}.{collection}"
        try:
            return opened.collections.id_of(name)
        except ConfigError:
            opened.renew()  # it may be younger than what we know
            return opened.collections.id_of(name)

    edits = Edits(options, roles, find)
    for batch in batches:
        for edit in edits.of(batch):
            opened.put(edit)
    opened.flush()
    counts = opened.counts
    return Written(counts.written, counts.unchanged, counts.superseded, query)


# ---- the fence ---------------------------------------------------------------------------


def _place_in_stream() -> tuple[str | None, int]:
    """The query and the batch that a task works for."""
    context = TaskContext.get()
    if context is None:
        return None, 0
    query, batch = context.getLocalProperty(_QUERY), context.getLocalProperty(_BATCH)
    if query is None or batch is None:
        return None, 0
    return query, int(batch)


def _fence(query: str) -> Edit:
    """Reads the number of the last batch of a query that was completely written, or -1."""
    key = FENCE_PREFIX + query.encode()

    def steps() -> Steps:
        found = yield from get(key)
        return -1 if found is None else _batch_of(key, found.value)

    return Conversation(key, 0, steps)


def _raised_fence(query: str, batch: int) -> Edit:
    """Notes that a batch was completely written; the fence is never lowered."""
    key = FENCE_PREFIX + query.encode()
    value = json.dumps({"batch": batch}).encode()

    def steps() -> Steps:
        while True:
            found = yield from get(key)
            if found is not None and _batch_of(key, found.value) >= batch:
                return Outcome.UNCHANGED
            form, cas = (Form.ADD, 0) if found is None else (Form.SET, found.cas)
            answer = yield store(form, value, cas=cas)
            if answer is None or answer.status is Status.SUCCESS:
                return Outcome.WRITTEN
            if answer.status not in (Status.EXISTS, Status.NOT_FOUND):
                raise refused(key, answer)

    return Conversation(key, 0, steps)


def _batch_of(key: bytes, value: bytes) -> int:
    try:
        batch = json.loads(value[:_MAX_FENCE])["batch"]
    except (ValueError, KeyError, TypeError):
        batch = None
    if type(batch) is not int:
        raise ConfigError(f"the document {key.decode()} is no fence of a stream; delete it")
    return batch
