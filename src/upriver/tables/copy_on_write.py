"""What a batch does to a table without deletion vectors: files that lose rows are written anew."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from .executors import Executors
from .format.data_files import NewFile
from .format.open_table import OpenTable
from .upkeep.compaction import Rewrite


def copy_actions(
    table: OpenTable,
    schema: pa.Schema,
    key: bytes,
    gone: Mapping[str, Sequence[npt.NDArray[np.uint32]]],
    new: Sequence[NewFile],
    executors: Executors,
) -> list[dict[str, Any]]:
    """Takes new files in, and copies the rows that stay of those that lose some."""
    actions: list[dict[str, Any]] = []
    tasks = []
    for name, (rows, _) in table.new_rows_gone(gone).items():
        file = table.snapshot.files[name]
        actions.append(file.remove_action())
        if len(rows) < file.rows:
            dead = {name: np.array(rows.to_array(), np.int64)}
            tasks.append(Rewrite(table.storage, schema, key, [file], dead))
    for one in new:
        if not len(one.dead):
            actions.append(one.file.add_action())
        elif len(one.dead) < one.file.rows:
            tasks.append(Rewrite(table.storage, schema, key, [one.file], {one.file.name: one.dead}))
    for rewritten in executors.run(tasks):
        actions += [after.file.add_action() for after in rewritten.after]
    return actions
