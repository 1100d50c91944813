"""Rows of the dlt source: change rows as upserts and deletes by key, and what else is deleted.

    scope, collection, key   identify a document
    deleted                  dlt removes the document, and keeps no such row
    seqno                    of the rows of a document in one load the highest counts

The other columns are those of Spark's rows (`spark.source.row_schema`). In one load all rows of a
vbucket are of one branch, so seqnos can be compared.
"""

from __future__ import annotations

import tempfile
from collections.abc import Collection, Iterable, Iterator
from typing import Any, Final, Self, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from ..batches.options import RowFormat
from ..batches.row_schema import RESTATED, arrow_schema
from ..errors import UpriverError
from ..model import Op

#: What identifies a document in the table; and with it the place and the age of a row.
DOCUMENT: Final = ("scope", "collection", "key")
PLACES: Final = ("vbucket", "seqno", *DOCUMENT)
#: Columns of Spark's rows that mean nothing in a table of documents.
_LEFT_OUT: Final = frozenset({"op", "branch", "vbuuid"})
_GONE: Final = (Op.DELETION.value, Op.EXPIRATION.value)

_Document: TypeAlias = tuple[str, str, Any]


class TableRows:
    """Makes rows of the table; its schema is the same in every batch."""

    def __init__(self, rows: RowFormat, *, binary_keys: bool) -> None:
        self._key = pa.binary() if binary_keys else pa.string()
        kept = {cell.name: cell for cell in arrow_schema(rows) if cell.name not in _LEFT_OUT}
        kept["key"] = pa.field("key", self._key)
        for name in DOCUMENT:  # dlt would warn of a primary key that may be null
            kept[name] = kept[name].with_nullable(False)
        self.schema = pa.schema([*kept.values(), pa.field("deleted", pa.bool_())])
        #: The schema of `PLACES`.
        self.places = pa.schema([kept[name] for name in PLACES])

    def of_changes(self, batch: pa.RecordBatch) -> pa.Table:
        """The rows of changes; the lists of what was restated are not among them."""
        batch = batch.filter(pc.not_equal(batch.column("op"), pa.scalar(RESTATED)))
        ops: Any = batch.column("op")
        gone: Any = pc.is_in(ops, pa.array(_GONE))
        columns: dict[str, Any] = {name: batch.column(name) for name in batch.schema.names}
        columns |= {"deleted": gone, "key": self._keys(columns["key"])}
        # a document of a collection that nobody knows any more has a number as its collection
        columns["scope"] = pc.fill_null(columns["scope"], "")
        return pa.Table.from_arrays(
            [columns[cell.name] for cell in self.schema], schema=self.schema
        )

    def _keys(self, keys: Any) -> Any:
        try:
            return keys.cast(self._key)
        except pa.ArrowInvalid:
            raise UpriverError(
                "a document has a key that is no text: set key_format to binary, and load the "
                "table anew (refresh='drop_resources')"
            ) from None

    def deletes(self, rows: pa.Table) -> pa.Table:
        """Deletes the documents of older rows; newer rows of these documents have precedence."""
        columns: dict[str, Any] = {name: rows.column(name) for name in PLACES}
        columns["seqno"] = pc.add(columns["seqno"], 1)
        columns["deleted"] = pa.repeat(True, rows.num_rows)
        nothing = {cell.name: pa.nulls(rows.num_rows, cell.type) for cell in self.schema}
        cells = [(nothing | columns)[cell.name] for cell in self.schema]
        return pa.Table.from_arrays(cells, self.schema.names).cast(self.schema)


class Leftovers:
    """Rows that the table has of vbuckets that are read from the beginning.

    Those whose documents do not come again are gone.
    """

    def __init__(self, loaded: Iterable[pa.Table]) -> None:
        self._rows: dict[_Document, tuple[int, int]] = {}
        for rows in loaded:
            places = zip(*(rows.column(name).to_pylist() for name in PLACES), strict=True)
            for vbucket, seqno, *document in places:
                self._rows[tuple(document)] = vbucket, seqno

    def came(self, rows: pa.Table) -> None:
        """Notes the documents of rows that are no deletes."""
        if self._rows:
            live = rows.filter(pc.invert(rows.column("deleted")))
            names = (live.column(name).to_pylist() for name in DOCUMENT)
            for document in zip(*names, strict=True):
                self._rows.pop(document, None)

    def left(self, places: pa.Schema, unfinished: Collection[int]) -> pa.Table:
        """The rows that are gone, but for those of vbuckets that were not read to their end."""
        gone = [
            (*place, *document)
            for document, place in self._rows.items()
            if place[0] not in unfinished
        ]
        return pa.Table.from_pylist(
            [dict(zip(PLACES, row, strict=True)) for row in gone], schema=places
        )


class SeenRows:
    """What rows a run has had, in a temporary file.

    It is read again only if a collection was dropped while the run read it.
    """

    def __init__(self, places: pa.Schema) -> None:
        self._file = tempfile.TemporaryFile(prefix="upriver-dlt-")  # noqa: SIM115 - closed by __exit__
        self._writer = pa.ipc.new_stream(self._file, places)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self._file.close()

    def add(self, rows: pa.Table) -> None:
        self._writer.write_table(rows.select(list(PLACES)))

    def __iter__(self) -> Iterator[pa.Table]:
        self._writer.close()
        self._file.seek(0)
        for batch in pa.ipc.open_stream(self._file):
            yield pa.Table.from_batches([batch])
