"""Rows in pieces of bounded size, so that a task's memory does not grow with the documents.

A document has up to 20 MiB, so a number of rows bounds nothing. Wherever rows are gathered, joined
or read, a piece has a limit of bytes; only one document alone may be above it. That also keeps
columns far below the 2 GiB that Arrow's offsets of 32 bits can count.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

#: Rows that are worked on at once: what is done for each piece costs more than for its rows.
_JOINED_ROWS: Final = 2048
#: Rows that are read at once.
_READ_ROWS: Final = 64 * 1024
#: Bytes that a task may need beside its process and one document, unless a setting says otherwise.
TASK_BYTES: Final = 256 * 1024 * 1024
#: The part of them that is a piece: making columns of a value takes several times its size.
PIECE_PART: Final = 32
#: Bytes of a piece.
PIECE_BYTES: Final = TASK_BYTES // PIECE_PART


def joined(pieces: Iterable[pa.RecordBatch], most: int = PIECE_BYTES) -> Iterator[pa.RecordBatch]:
    """The same rows in fewer and larger pieces, of ``most`` bytes."""
    waiting: list[pa.RecordBatch] = []
    count = size = 0
    for piece in pieces:
        alone = piece.num_rows >= _JOINED_ROWS  # copying it would cost more
        if waiting and (alone or size + piece.nbytes > most):
            yield _one(waiting)
            waiting, count, size = [], 0, 0
        waiting.append(piece)
        count += piece.num_rows
        size += piece.nbytes
        del piece
        if count >= _JOINED_ROWS or size >= most:
            yield _one(waiting)
            waiting, count, size = [], 0, 0
    if waiting:
        yield _one(waiting)


def _one(pieces: list[pa.RecordBatch]) -> pa.RecordBatch:
    if len(pieces) == 1:
        return pieces[0]
    columns: list[Any] = [
        pa.concat_arrays([piece.column(at) for piece in pieces])
        for at in range(pieces[0].num_columns)
    ]
    return pa.RecordBatch.from_arrays(columns, schema=pieces[0].schema)


def parquet_pieces(
    parquet: pq.ParquetFile, columns: Collection[str] | None = None
) -> Iterator[pa.RecordBatch]:
    """The rows of a Parquet file in their order.

    No piece reaches from one row group into the next: what a file has in few bytes, because values
    repeat, may be large in memory, but of our own files no row group is.
    """
    for number in range(parquet.num_row_groups):
        group = parquet.metadata.row_group(number)
        rows = max(1, group.num_rows * PIECE_BYTES // max(1, group.total_byte_size))
        yield from parquet.iter_batches(
            min(rows, _READ_ROWS),
            row_groups=[number],
            columns=list(columns) if columns is not None else None,
        )
