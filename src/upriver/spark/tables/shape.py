"""What a row of a mirror looks like, and how tasks make such rows of changes.

    key, value | one column for each member of a schema, cas, seqno, rev, flags, expiry, datatype,
    vbucket, scope, collection, event_time, branch, vbucket_group

Values are bytes, text, or columns. What is no text, or does not fit the schema, is null there and
keeps its bytes in ``_corrupt_record``. With `keep_deleted` there is ``deleted``.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ...errors import ConfigError
from ...model import Op
from ..source_options import ReadOptions
from .data_files import GROUP
from .json_columns import JsonColumns

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

__all__ = ["CORRUPT", "LETTERS", "MirrorShape", "inferred_schema"]

CORRUPT: Final = "_corrupt_record"
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
_OURS: Final = frozenset({"key", *_METADATA, GROUP, CORRUPT, "gone", "change", "deleted"})
#: What is put aside of a change whose value does not fit the schema.
LETTERS: Final = pa.schema(
    [
        ("key", pa.binary()),
        *((name, _METADATA[name]) for name in ("vbucket", "seqno", "branch", "cas")),
        *((name, pa.string()) for name in ("scope", "collection", "reason")),
        ("value", pa.binary()),
    ]
)


@dataclass(frozen=True, kw_only=True)
class MirrorShape:
    """How documents become rows. It is fixed when a mirror is made."""

    #: Whether values are text.
    text: bool = False
    #: The members that values have, as Spark's JSON of a schema; empty if values stay whole.
    schema: str = ""
    keep_deleted: bool = False
    #: How many numbers `vbucket_group` has.
    groups: int = 64

    def __post_init__(self) -> None:
        if self.text and self.schema:
            raise ConfigError("valueFormat and valueSchema contradict each other: give one of them")
        for member in json.loads(self.schema)["fields"] if self.schema else ():
            name = member["name"]
            if name.lower() in _OURS or name == "value":
                raise ConfigError(
                    f"valueSchema: a mirror has a column {name} already; leave that member out"
                )

    def to_json(self) -> str:
        told: dict[str, Any] = {
            "valueFormat": "string" if self.text else "binary",
            "valueSchema": self.schema,
            "keepDeleted": self.keep_deleted,
            "groups": self.groups,
        }
        return json.dumps(told)

    @classmethod
    def of_json(cls, text: str) -> MirrorShape:
        told = json.loads(text)
        return cls(
            text=told["valueFormat"] == "string",
            schema=told["valueSchema"],
            keep_deleted=told["keepDeleted"],
            groups=told["groups"],
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return MirrorShape.of_json, (self.to_json(),)

    def read_options(self, options: ReadOptions) -> ReadOptions:
        """The source's options, so that it gives values as this shape wants them."""
        corrupt = CORRUPT if self.text else None
        return replace(options, rows=replace(options.rows, text=self.text, corrupt_column=corrupt))

    @cached_property
    def _members(self) -> JsonColumns | None:
        return JsonColumns.of_spark(self.schema) if self.schema else None

    @cached_property
    def arrow_schema(self) -> pa.Schema:
        """The columns of the table."""
        columns: list[tuple[str, Any]] = [("key", pa.binary())]
        if self._members is not None:
            columns += [(member.name, member.type) for member in self._members.schema]
        else:
            columns.append(("value", pa.string() if self.text else pa.binary()))
        if self.text or self.schema:
            columns.append((CORRUPT, pa.binary()))
        columns += _METADATA.items()
        columns.append((GROUP, pa.int32()))
        if self.keep_deleted:
            columns.append(("deleted", pa.bool_()))
        return pa.schema(columns)

    def rows(
        self, changes: pa.RecordBatch
    ) -> tuple[pa.RecordBatch, npt.NDArray[np.bool_], pa.RecordBatch | None]:
        """The rows of changes, which of them the table has, and what does not fit the schema."""
        lives = pc.equal(changes.column("op"), pa.scalar(Op.MUTATION.value))
        columns = {name: changes.column(name) for name in ("key", *_METADATA)}
        vbuckets = changes.column("vbucket").to_numpy()
        columns[GROUP] = pa.array((vbuckets % self.groups).astype(np.int32))
        letters = None
        if self._members is not None:
            values = pc.if_else(lives, changes.column("value"), pa.scalar(None, pa.binary()))
            members, corrupt, reasons = self._members.parse(values)
            columns |= members
            columns[CORRUPT] = corrupt
            letters = _letters(changes, corrupt, reasons)
        else:
            columns["value"] = changes.column("value")
            if self.text:
                columns[CORRUPT] = changes.column(CORRUPT)
        if self.keep_deleted:
            columns["deleted"] = pc.invert(lives)
            is_row = np.ones(changes.num_rows, bool)
        else:
            is_row = lives.to_numpy(zero_copy_only=False)
        schema = self.arrow_schema
        made = pa.RecordBatch.from_arrays([columns[name] for name in schema.names], schema=schema)
        return made, is_row, letters


def _letters(
    changes: pa.RecordBatch, corrupt: Any, reasons: list[str | None]
) -> pa.RecordBatch | None:
    if corrupt.null_count == len(corrupt):
        return None
    told = {
        **{name: changes.column(name) for name in LETTERS.names if name != "reason"},
        "reason": pa.array(reasons, pa.string()),
        "value": corrupt,
    }
    rows = pa.RecordBatch.from_arrays([told[name] for name in LETTERS.names], schema=LETTERS)
    return rows.filter(pc.is_valid(corrupt))


def inferred_schema(documents: DataFrame) -> StructType:
    """A schema that the values of some documents fit, found by Spark."""
    from pyspark.sql import functions as f
    from pyspark.sql.types import StructType

    parsed = f.try_parse_json(f.col("value").cast("string"))
    row = documents.select(f.schema_of_variant_agg(parsed)).first()
    found = row[0] if row is not None else ""
    if not isinstance(found, str) or not found.startswith("OBJECT<"):
        raise ConfigError(
            "valueSchema: no schema can be inferred, since documents are no JSON objects "
            "or there are none yet; give the schema, such as 'name string, age int'"
        )
    # numbers with a fraction come with the digits that were seen; others will have more
    found = re.sub(r"DECIMAL\(\d+,\d+\)", "DOUBLE", found)
    found = re.sub(r"\b(VOID|VARIANT)\b", "STRING", found).replace("OBJECT<", "STRUCT<")
    described = StructType.fromDDL(f"value {found}")
    assert isinstance(described, StructType)
    members = described["value"].dataType
    assert isinstance(members, StructType)
    return members
