"""The dead letters that a task writes: one for each change, however often the change is read.

Vbuckets that go back are read again, as all are for a table with other columns. Their changes may
have letters of earlier batches, which stay; so the task looks up which ones do.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from ..files.storage import Storage
from .format.data_files import Gathered, RowFiles, read_rows
from .format.delta_log import DataFile
from .format.key_index import NAME_COLUMNS
from .rows.row_shape import LETTERS

#: What is the same of all letters of one change; the branch counts our own rollbacks.
_CHANGE: Final = (*NAME_COLUMNS, "seqno", "cas")


def change_of(letter: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(letter[name] for name in _CHANGE)


class LetterFiles(RowFiles):
    """The files of one task."""

    def __init__(
        self,
        storage: Storage,
        batch: int,
        held: Sequence[DataFile],
        vbuckets: Collection[int],
        gathered: Gathered,
    ) -> None:
        """The files ``held`` may have letters of ``vbuckets`` that are read again."""
        super().__init__(storage, LETTERS, gathered=gathered)
        self._batch = pa.scalar(batch, LETTERS.field("batch").type)
        wanted = pa.array(sorted(vbuckets), LETTERS.field("vbucket").type)
        self._known = {
            change_of(row)
            for file in held
            if vbuckets
            for rows in read_rows(storage, file, _CHANGE)
            for row in rows.filter(pc.is_in(rows.column("vbucket"), wanted)).to_pylist()
        }

    def add_new(self, letters: pa.RecordBatch) -> None:
        """Adds those of a batch of letters that are not held."""
        if self._known:
            rows = letters.select(_CHANGE).to_pylist()
            letters = letters.filter(pa.array([change_of(row) not in self._known for row in rows]))
        if letters.num_rows:
            batch: Any = pa.repeat(self._batch, letters.num_rows)
            columns = [*letters.columns, batch]
            self.add(pa.RecordBatch.from_arrays(columns, schema=LETTERS))
