"""Rows of a data file by their numbers: what a history needs to write a version again as ended.

Parquet can only be decoded in large pieces, so finding one row in it costs as much as the file is
large. Of a large file that rows are wanted of, a copy in Arrow's format is made beside the table,
once, not compressed: it is mapped into memory, and only what the wanted rows need is looked at. It
is a cache that can be deleted at any time. Small files, and files in object stores, are decoded.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from ... import _entropy
from ...files.storage import Storage
from .data_files import cast_rows
from .delta_log import DataFile
from .row_pieces import parquet_pieces

FOLDER: Final = "_upriver/rows"
#: Bytes of a file that is decoded at every look, which takes milliseconds.
_SMALL: Final = 256 * 1024
_NAME: Final = b"upriver.file"


def cache_path(data_file: str) -> str:
    """Where the copy of a data file is, relative to the table."""
    return f"{FOLDER}/{data_file.rpartition('/')[2].removesuffix('.parquet')}.arrow"


def rows_at(
    storage: Storage, file: DataFile, numbers: npt.NDArray[Any], schema: pa.Schema
) -> Iterator[tuple[pa.RecordBatch, slice]]:
    """The rows with these numbers, which ascend, with the columns of a schema.

    They come in pieces, each with the part of ``numbers`` that its rows have.
    """
    if not len(numbers):
        return
    cached = storage.is_local and file.size >= _SMALL
    first = 0
    for batch in _copied(storage, file) if cached else _decoded(storage, file):
        low, high = np.searchsorted(numbers, [first, first + batch.num_rows])
        if high > low:
            chosen = numbers[low:high].astype(np.int64) - first
            rows = cast_rows(batch, schema).take(pa.array(chosen, pa.int64()))
            yield rows, slice(int(low), int(high))
        first += batch.num_rows


def _decoded(storage: Storage, file: DataFile) -> Any:
    with storage.source(file.path) as source:
        yield from parquet_pieces(pq.ParquetFile(source))


def _copied(storage: Storage, file: DataFile) -> Any:
    place = storage.path / cache_path(file.path)
    name = file.name.encode()
    try:
        yield from _batches(str(place), name)
        return
    except (FileNotFoundError, pa.ArrowInvalid):  # there is none, or it is damaged
        pass
    place.parent.mkdir(parents=True, exist_ok=True)
    draft = place.with_suffix(f".{_entropy.uuid4().hex}")
    with storage.source(file.path) as source:
        parquet = pq.ParquetFile(source)
        schema = parquet.schema_arrow.with_metadata({_NAME: name})
        with pa.ipc.new_file(str(draft), schema) as copy:
            for batch in parquet_pieces(parquet):
                copy.write_batch(batch.replace_schema_metadata({_NAME: name}))
    os.replace(draft, place)
    yield from _batches(str(place), name)


def _batches(path: str, name: bytes) -> Any:
    """The batches of a copy, without reading them; ArrowInvalid if it is of another file."""
    with pa.memory_map(path) as source:
        reader = pa.ipc.open_file(source)
        if (reader.schema.metadata or {}).get(_NAME) != name:
            raise pa.ArrowInvalid("it is a copy of another file")
        batches = [reader.get_batch(number) for number in range(reader.num_record_batches)]
    yield from batches
