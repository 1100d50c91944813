"""What a row of a mirror looks like, and how tasks make such rows of changes.

    key, parts of the key, value | one column for each member of a schema, cas, seqno, rev, flags,
    expiry, datatype, vbucket, scope, collection, event_time, branch, vbucket_group

Values are bytes, text, or columns. What is no text, or no JSON object, is null there and keeps its
bytes in ``_corrupt_record``; members that do not fit their columns are in ``_rescued``, as JSON.
With `keep_deleted` there is ``deleted``. A history has, besides,

    _valid_from_seqno, _valid_to_seqno, _valid_from, _valid_to, _ended_by

of which all but the first and the third are null in current versions (see `versions`).

The columns of a schema may follow the documents: what tasks have seen that the schema lacks makes
a wider shape (`MirrorShape.grown`). With a table for each collection, each of these tables can have
a shape of its own (`MirrorShape.of`).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import cached_property
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ...batches.options import ReadOptions
from ...errors import ConfigError
from ...model import Op
from ...settings.all_settings import GROUPS
from ..format.data_files import GROUP, VALID_TO
from .json_columns import JsonColumns
from .json_types import DEPTH, VOID, Type, count, is_empty, merged, settled
from .key_pattern import KeyColumns

CORRUPT: Final = "_corrupt_record"
RESCUED: Final = "_rescued"
#: The schema from which columns that follow documents begin.
NO_COLUMNS: Final = '{"type":"struct","fields":[]}'
#: Columns, with the members of structs, that follow documents; further members are rescued.
_MOST_COLUMNS: Final = 2_000
_TIMESTAMP: Final = pa.timestamp("us", tz="UTC")
_METADATA: Final[dict[str, Any]] = {
    "cas": pa.int64(),
    "seqno": pa.int64(),
    "rev": pa.int64(),
    "flags": pa.int64(),
    "expiry": _TIMESTAMP,
    "datatype": pa.int32(),
    "vbucket": pa.int32(),
    "scope": pa.string(),
    "collection": pa.string(),
    "event_time": _TIMESTAMP,
    "branch": pa.int32(),
}
#: How a version ended: the ``op`` of the change that did it, or that its collection was dropped.
ENDED_BY: Final = "_ended_by"
#: What a history has besides.
VERSION_COLUMNS: Final[dict[str, Any]] = {
    "_valid_from_seqno": pa.int64(),
    VALID_TO: pa.int64(),
    "_valid_from": _TIMESTAMP,
    "_valid_to": _TIMESTAMP,
    ENDED_BY: pa.string(),
}
_OURS: Final = frozenset({"key", *_METADATA, GROUP, CORRUPT, RESCUED, "gone", "change", "deleted"})
_TAKEN: Final = _OURS | VERSION_COLUMNS.keys() | {"value"}
#: What is put aside of a change whose value does not fit the schema.
LETTERS: Final = pa.schema(
    [
        ("key", pa.binary()),
        *((name, _METADATA[name]) for name in ("vbucket", "seqno", "branch", "cas")),
        *((name, pa.string()) for name in ("scope", "collection", "reason")),
        ("value", pa.binary()),
        ("batch", pa.int64()),
    ]
)


@dataclass(slots=True)
class ShapedRows:
    """The rows of some changes."""

    rows: pa.RecordBatch
    #: Which of them the table has.
    is_row: npt.NDArray[np.bool_]
    #: What does not fit the schema; the task knows of which batch it is.
    letters: pa.RecordBatch | None = None


@dataclass(frozen=True, kw_only=True)
class MirrorShape:
    """How documents become rows."""

    #: Whether values are text.
    text: bool = False
    #: The members that values have, as Spark's JSON of a schema; empty if values stay whole.
    schema: str = ""
    keep_deleted: bool = False
    #: How many numbers `vbucket_group` has.
    groups: int = GROUPS
    #: Whether members that do not fit are rescued; tables of earlier releases have no such column.
    rescues: bool = False
    #: Whether there are as many columns as there may be, so that further members are rescued.
    full: bool = False
    #: Whether columns follow documents, and may become text where documents disagree.
    follows: bool = False
    to_text: bool = False
    #: The columns that do not follow documents although others do, as JSON like the schema.
    hints: str = ""
    #: Levels of arrays and structs in columns that follow documents.
    depth: int = DEPTH
    keys: KeyColumns = field(default_factory=KeyColumns)
    #: By column the member that it is taken from, if that has another name: a path with dots.
    sources: tuple[tuple[str, str], ...] = ()
    #: Whether rows are versions, of a history. Then columns that are there keep their types.
    versions: bool = False
    #: By table the shapes of those collections whose rows look different.
    own: tuple[tuple[str, MirrorShape], ...] = ()

    def __post_init__(self) -> None:
        if self.text and self.schema:
            raise ConfigError("valueFormat and valueSchema contradict each other: give one of them")
        for member in json.loads(self.schema)["fields"] if self.schema else ():
            name = member["name"]
            if name.lower() in self._taken:
                raise ConfigError(
                    f"valueSchema: a mirror has a column {name} already; leave that member out"
                )
        for part in self.keys.parts:
            if part.lower() in _TAKEN:
                raise ConfigError(f"keyPattern: a mirror has a column {part} already")
        if self.sources and (self.follows or not self.schema):
            raise ConfigError("rename needs columns that valueSchema names, such as 'who string'")
        for column, _ in self.sources:
            if column not in self._types:
                raise ConfigError(f"rename: valueSchema has no column {column}")

    def to_property(self) -> str:
        """What a table remembers."""
        stored: dict[str, Any] = {
            "valueFormat": "string" if self.text else "binary",
            "valueSchema": self.schema,
            "keepDeleted": self.keep_deleted,
            "groups": self.groups,
        }
        stored |= {"rescues": True} if self.rescues else {}
        stored |= {"follows": True} if self.follows else {}
        stored |= {"keyFormat": "string"} if self.keys.text else {}
        stored |= {"keyPattern": self.keys.pattern} if self.keys.pattern else {}
        stored |= {"rename": dict(self.sources)} if self.sources else {}
        stored |= {"versions": True} if self.versions else {}
        stored |= {"full": True} if self.full else {}
        stored |= {"columnTypes": self.hints} if self.hints else {}
        stored |= {"inferDepth": self.depth} if self.depth != DEPTH else {}
        if self.own:
            stored["collections"] = {name: json.loads(one.to_property()) for name, one in self.own}
        return json.dumps(stored)

    def to_json(self) -> str:
        return json.dumps(json.loads(self.to_property()) | {"toText": self.to_text})

    @classmethod
    def of_json(cls, text: str) -> MirrorShape:
        stored = json.loads(text)
        return cls(
            text=stored["valueFormat"] == "string",
            schema=stored["valueSchema"],
            keep_deleted=stored["keepDeleted"],
            groups=stored["groups"],
            rescues=stored.get("rescues", False),
            full=stored.get("full", False),
            follows=stored.get("follows", False),
            to_text=stored.get("toText", False),
            hints=stored.get("columnTypes", ""),
            depth=stored.get("inferDepth", DEPTH),
            keys=KeyColumns(stored.get("keyFormat") == "string", stored.get("keyPattern", "")),
            sources=tuple(stored.get("rename", {}).items()),
            versions=stored.get("versions", False),
            own=tuple(
                (name, cls.of_json(json.dumps(one | {"toText": stored.get("toText", False)})))
                for name, one in stored.get("collections", {}).items()
            ),
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return MirrorShape.of_json, (self.to_json(),)

    def of(self, table: str) -> MirrorShape:
        """How the rows of a table look."""
        return self._own.get(table, self)

    @cached_property
    def _own(self) -> dict[str, MirrorShape]:
        return dict(self.own)

    @property
    def follows_any(self) -> bool:
        return any(shape.follows for shape in (self, *self._own.values()))

    @property
    def own_schemas(self) -> dict[str, pa.Schema]:
        return {table: shape.arrow_schema for table, shape in self.own}

    def read_options(self, options: ReadOptions) -> ReadOptions:
        """The source's options, so that it gives values as this shape wants them."""
        corrupt = CORRUPT if self.text else None
        return replace(options, rows=replace(options.rows, text=self.text, corrupt_column=corrupt))

    @cached_property
    def _members(self) -> JsonColumns | None:
        if not self.schema:
            return None
        return JsonColumns(
            self._types,
            rescues=self.rescues,
            follows=self.follows,
            to_text=self.to_text,
            # older versions cannot be read again with a wider column
            fixed=self._types if self.versions else _columns(self.hints),
            depth=self.depth,
            full=self.full,
            sources=dict(self.sources),
        )

    @property
    def _taken(self) -> frozenset[str]:
        """Names that no member can have as a column, in lower case."""
        return _TAKEN | {part.lower() for part in self.keys.parts}

    @cached_property
    def _types(self) -> dict[str, Type]:
        return _columns(self.schema)

    @cached_property
    def arrow_schema(self) -> pa.Schema:
        """The columns of the table."""
        columns: list[tuple[str, Any]] = self.keys.columns
        if self._members is not None:
            columns += [(member.name, member.type) for member in self._members.schema]
        else:
            columns.append(("value", pa.string() if self.text else pa.binary()))
        if self.text or self.schema:
            columns.append((CORRUPT, pa.binary()))
        if self.rescues:
            columns.append((RESCUED, pa.string()))
        columns += _METADATA.items()
        columns.append((GROUP, pa.int32()))
        if self.keep_deleted:
            columns.append(("deleted", pa.bool_()))
        if self.versions:
            columns += VERSION_COLUMNS.items()
        return pa.schema(columns)

    def grown(self, found: Iterable[Mapping[str, Mapping[str, Type]]]) -> MirrorShape | None:
        """The shape with columns for what was seen, by table; None if that is this one."""
        by_table: dict[str, list[Mapping[str, Type]]] = {}
        for tables in found:
            for table, seen in tables.items():
                by_table.setdefault(table, []).append(seen)
        made, own = self, dict(self.own)
        for table, several in sorted(by_table.items()):
            wider = self.of(table)._wider(several)
            if not table:
                made = wider
            elif wider != self.of(table):
                own[table] = replace(wider, own=())
        made = replace(made, own=tuple(sorted(own.items())))
        return made if made != self else None

    def _wider(self, found: Iterable[Mapping[str, Type]]) -> MirrorShape:
        new: dict[str, Type] = {}
        wider = dict(self._types)
        for seen in found:
            for name, kind in seen.items():
                if name in wider:
                    wider[name] = merged(wider[name], kind, to_text=self.to_text)
                else:
                    new[name] = merged(new.get(name, VOID), kind, to_text=self.to_text)
        if self.versions:  # whose columns stay what they are
            new = {name: settled(kind) for name, kind in new.items() if not is_empty(kind)}
        new = _without_doubles(new)
        types = dict(self._types)
        size = sum(map(count, types.values()))
        full = self.full
        for name in (*self._types, *sorted(new)):
            kind = wider.get(name) or new[name]
            growth = count(kind) - (count(types[name]) if name in types else 0)
            if growth > 0 and size + growth > _MOST_COLUMNS:
                full = True
                continue
            types[name] = kind
            size += growth
        if types == self._types and full == self.full:
            return self
        fields = [
            {"name": name, "type": kind, "nullable": True, "metadata": {}}
            for name, kind in types.items()
        ]
        return replace(self, schema=json.dumps({"type": "struct", "fields": fields}), full=full)

    def only_adds_to(self, before: MirrorShape) -> bool:
        """Whether rows of the shape before are rows of this one, with nulls in new columns."""
        return all(
            self.of(table)._has_columns_of(before.of(table))
            for table in ("", *self._own, *before._own)
        )

    def _has_columns_of(self, before: MirrorShape) -> bool:
        same = replace(self, schema=before.schema, full=before.full, own=()) == replace(
            before, own=()
        )
        types = {name: settled(kind) for name, kind in self._types.items()}
        return same and all(
            types.get(name) == settled(kind) for name, kind in before._types.items()
        )

    def reasons(self, values: Any) -> list[str | None]:
        """Why values do not fit; None for those that do."""
        if self._members is None:
            return [None] * len(values)
        return self._members.parse(values, self._taken).reasons

    def rows(self, changes: pa.RecordBatch, seen: dict[str, Type] | None = None) -> ShapedRows:
        """The rows of changes; adds the types that columns need for them to what was ``seen``."""
        lives = pc.equal(changes.column("op"), pa.scalar(Op.MUTATION.value))
        columns = {name: changes.column(name) for name in _METADATA}
        columns |= self.keys.of(changes.column("key"))
        vbuckets = changes.column("vbucket").to_numpy()
        columns[GROUP] = pa.array((vbuckets % self.groups).astype(np.int32))
        made = ShapedRows(changes, np.ones(changes.num_rows, bool))
        if self._members is not None:
            values = pc.if_else(lives, changes.column("value"), pa.scalar(None, pa.binary()))
            parsed = self._members.parse(values, self._taken, seen)
            columns |= parsed.columns
            columns[CORRUPT] = parsed.corrupt
            columns[RESCUED] = parsed.rescued
            made.letters = _letters(changes, parsed.reasons)
        else:
            columns["value"] = changes.column("value")
            if self.text:
                columns[CORRUPT] = changes.column(CORRUPT)
        if self.keep_deleted:
            columns["deleted"] = pc.invert(lives)
        else:
            made.is_row = lives.to_numpy(zero_copy_only=False)
        if self.versions:
            columns |= _current(changes)
        schema = self.arrow_schema
        made.rows = pa.RecordBatch.from_arrays(
            [columns[name] for name in schema.names], schema=schema
        )
        return made


def _columns(schema: str) -> dict[str, Type]:
    fields = json.loads(schema)["fields"] if schema else ()
    return {one["name"]: one["type"] for one in fields}


def _without_doubles(found: dict[str, Type]) -> dict[str, Type]:
    """Of members that differ only by case, those that were seen first."""
    first = {name.lower(): name for name in reversed(found)}
    return {name: kind for name, kind in found.items() if first[name.lower()] == name}


def _current(changes: pa.RecordBatch) -> dict[str, Any]:
    """The columns of versions that begin now; ``_ended_by`` says how each ends the one before."""
    nothing = {name: pa.nulls(changes.num_rows, kind) for name, kind in VERSION_COLUMNS.items()}
    read_now = pa.scalar(datetime.now(UTC), _TIMESTAMP)
    return nothing | {
        "_valid_from_seqno": changes.column("seqno"),
        "_valid_from": pc.fill_null(changes.column("event_time"), read_now),
        ENDED_BY: changes.column("op"),
    }


def _letters(changes: pa.RecordBatch, reasons: list[str | None]) -> pa.RecordBatch | None:
    if not any(reasons):
        return None
    why = pa.array(reasons, pa.string())
    schema = LETTERS.remove(LETTERS.get_field_index("batch"))
    stored = {name: changes.column(name) for name in schema.names if name != "reason"}
    stored["reason"] = why
    rows = pa.RecordBatch.from_arrays([stored[name] for name in schema.names], schema=schema)
    return rows.filter(pc.is_valid(why))
