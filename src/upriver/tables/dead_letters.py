"""The dead letters of a mirror: values that did not fit its schema, listed and tried again.

They lie in a table of their own beside the mirror, one row for each change that did not fit when it
was read, with the reason and the whole value. A letter is settled when its document has changed
since, or its value fits the schema that the mirror has now: a schema that is changed has the mirror
read anew, so the row is right by then. Letters that are settled are removed, the others stay. In
tables of earlier releases, a change that was read anew and still did not fit has several letters,
which count as one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ..errors import ConfigError
from ..files.storage import Storage
from .commit_state import DEAD_LETTERS
from .executors import ThisProcess
from .format.data_files import VALID_TO, load_index, read_rows
from .format.delta_log import DataFile
from .format.key_index import NAME_COLUMNS, hashes_of
from .format.open_table import OpenTable
from .lease import held_lease
from .letter_files import change_of
from .merge import collection_table
from .pipeline_settings import SHAPE
from .pipeline_start import held_properties
from .pipeline_tables import PipelineTables
from .places import TablePlace
from .rows.row_shape import LETTERS, MirrorShape
from .upkeep.compaction import Rewrite
from .upkeep.version_retention import Window


@dataclass(frozen=True, slots=True, kw_only=True)
class Letter:
    """A change whose value did not fit."""

    key: bytes
    scope: str | None
    collection: str | None
    vbucket: int
    seqno: int
    reason: str
    value: bytes | None
    #: The first that read the change; None if an earlier release did.
    batch: int | None


_SHOWN: Final = tuple(Letter.__dataclass_fields__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Replayed:
    """What became of letters that were tried again."""

    #: Those whose value fits the schema now; they are gone.
    fitting: int = 0
    #: Those whose document has changed or was deleted since; they are gone.
    replaced: int = 0
    #: Those that still do not fit.
    left: int = 0


def letters(place: TablePlace, key: bytes | None = None) -> Iterator[Letter]:
    """The letters of a mirror, or those of documents with a key; the table is not changed."""
    tables, _ = _opened(place)
    held = tables.others.get(DEAD_LETTERS)
    if held is None:
        return
    known: set[tuple[Any, ...]] = set()
    for file in held.files:
        for rows in read_rows(held.storage, file, LETTERS.names):
            chosen = rows
            if key is not None:
                chosen = rows.filter(pc.equal(rows.column("key"), pa.scalar(key)))
            for row in chosen.to_pylist():
                if (change := change_of(row)) in known:
                    continue
                known.add(change)
                told: dict[str, Any] = {name: row.get(name) for name in _SHOWN}
                yield Letter(**told)


def replay(place: TablePlace) -> Replayed:
    """Tries the letters again, and removes those that are settled; no pipeline may run."""
    held_properties(place)
    with held_lease(place.storage):
        tables, shape = _opened(place)
        tables.apply_pending()
        held = tables.others.get(DEAD_LETTERS)
        if held is None or not held.files:
            return Replayed()
        counts = [0, 0, 0]
        tasks = []
        known: set[tuple[Any, ...]] = set()
        for file in held.files:
            gone = _settled(tables, shape, held.storage, file, counts, known)
            if len(gone):
                tasks.append(Rewrite(held.storage, LETTERS, None, [file], {file.name: gone}))
        _remove(held, tasks)
        return Replayed(fitting=counts[0], replaced=counts[1], left=counts[2])


def _opened(place: TablePlace) -> tuple[PipelineTables, MirrorShape]:
    properties = held_properties(place)
    if properties is None or SHAPE not in properties:
        raise ConfigError(f"{place} is no mirror, so it has no dead letters")
    shape = MirrorShape.of_json(properties[SHAPE])
    tables = PipelineTables.open(place.storage, shape.arrow_schema, Window(0, 0), trusting=True)
    if tables is None:
        raise ConfigError(f"there is no table of a pipeline at {place}")
    return tables, shape


def _settled(
    tables: PipelineTables,
    shape: MirrorShape,
    storage: Storage,
    file: DataFile,
    counts: list[int],
    known: set[tuple[Any, ...]],
) -> npt.NDArray[np.int64]:
    """The numbers of rows of a file of letters that are settled; counts what they are.

    Further letters of changes that are ``known`` are settled too, and not counted.
    """
    # dead letters have no vectors, so rows have the numbers that they are read in
    found = []
    first = 0
    for rows in read_rows(storage, file, LETTERS.names):
        newest = _seqnos(tables, rows)
        reasons = _reasons(tables, shape, rows)
        names = rows.select([*NAME_COLUMNS, "seqno", "cas"]).to_pylist()
        for number, (row, reason) in enumerate(zip(names, reasons, strict=True), first):
            if (change := change_of(row)) in known:
                found.append(number)
                continue
            known.add(change)
            is_current = newest.get(_name(row)) == row["seqno"]
            kind = 1 if not is_current else 2 if reason is not None else 0
            counts[kind] += 1
            if kind != 2:
                found.append(number)
        first += rows.num_rows
    return np.array(found, np.int64)


def _reasons(tables: PipelineTables, shape: MirrorShape, rows: pa.RecordBatch) -> list[str | None]:
    """Why values do not fit the schemas of their tables now."""
    places = zip(*(rows.column(name).to_pylist() for name in ("scope", "collection")), strict=True)
    names = [collection_table(*place) if tables.per_collection else "" for place in places]
    reasons: list[str | None] = [None] * len(names)
    for table in sorted(set(names)):
        mine = [number for number, name in enumerate(names) if name == table]
        values: Any = rows.column("value").take(pa.array(mine))
        for number, reason in zip(mine, shape.of(table).reasons(values), strict=True):
            reasons[number] = reason
    return reasons


def _seqnos(tables: PipelineTables, wanted: pa.RecordBatch) -> dict[tuple[Any, ...], int]:
    """By name the seqnos of the mirror's rows of some documents."""
    key = tables.key
    assert key is not None
    hashes = hashes_of(wanted, key)
    names = pa.array(wanted.column("key").to_pylist(), pa.binary())
    found: dict[tuple[Any, ...], int] = {}
    for table in tables.data_tables().values():
        for file in table.files:
            if not len(load_index(table.storage, file, key).find(hashes)):
                continue
            for rows in read_rows(table.storage, file, [*NAME_COLUMNS, "seqno", VALID_TO]):
                if VALID_TO in rows.schema.names:
                    rows = rows.filter(rows.column(VALID_TO).is_null())
                chosen = rows.filter(pc.is_in(rows.column("key").cast(pa.binary()), names))
                at = chosen.schema.get_field_index("key")
                named = chosen.set_column(at, "key", chosen.column("key").cast(pa.binary()))
                found |= {_name(row): row["seqno"] for row in named.to_pylist()}
    return found


def _name(row: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(row[name] for name in NAME_COLUMNS)


def _remove(held: OpenTable, tasks: list[Rewrite]) -> None:
    actions: list[Any] = []
    for done in ThisProcess().run(tasks):
        actions += [file.remove_action() for file in done.before]
        actions += [new.file.add_action() for new in done.after]
    if actions:
        held.commit(actions, operation="UPRIVER REPLAY")
