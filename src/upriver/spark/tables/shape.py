"""What a row of a mirror looks like: the same for what is written and for what is compared.

    key, value | one column for each member of a schema, cas, seqno, rev, flags, expiry, datatype,
    vbucket, scope, collection, event_time, branch, vbucket_group

Values are bytes, text, or columns. What is no text, or does not fit the schema, is null there and
keeps its bytes in ``_corrupt_record``. With `keep_deleted` there is ``deleted``.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from ...errors import ConfigError
from ...model import Op
from ..parse import parse
from .states import CHANGE

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import StructType

__all__ = ["CORRUPT", "GONE", "GROUP", "MirrorShape", "inferred_schema"]

#: Rows of vbuckets with the same number here share files, so a few changes touch few files.
GROUP: Final = "vbucket_group"
#: Says of a state that the mirror has no row for it; never part of the mirror.
GONE: Final = "gone"
CORRUPT: Final = "_corrupt_record"

_METADATA: Final = (
    "cas",
    "seqno",
    "rev",
    "flags",
    "expiry",
    "datatype",
    "vbucket",
    "scope",
    "collection",
    "event_time",
    "branch",
)
_OURS: Final = frozenset({"key", *_METADATA, GROUP, GONE, CORRUPT, CHANGE, "deleted"})


@dataclass(frozen=True, slots=True, kw_only=True)
class MirrorShape:
    """How documents become rows. It is fixed when a mirror is made."""

    #: Whether values are text.
    text: bool = False
    #: The members that values have, as Spark's JSON of a schema; empty if values stay whole.
    schema: str = ""
    keep_deleted: bool = False
    #: How many numbers `GROUP` has.
    groups: int = 64

    def __post_init__(self) -> None:
        if self.text and self.schema:
            raise ConfigError("valueFormat and valueSchema contradict each other: give one of them")
        for name in self._members().names if self.schema else ():
            if name.lower() in _OURS or name == "value":
                raise ConfigError(
                    f"valueSchema: a mirror has a column {name} already; leave that member out"
                )

    def _members(self) -> StructType:
        from pyspark.sql.types import StructType

        return StructType.fromJson(json.loads(self.schema))

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

    @property
    def is_plain(self) -> bool:
        """Whether rows are changes as they are, of the documents that live."""
        return not (self.text or self.schema or self.keep_deleted)

    @property
    def plain_columns(self) -> list[str]:
        return ["key", "value", *_METADATA]

    def group(self) -> Column:
        from pyspark.sql import functions as f

        return f.pmod(f.col("vbucket"), f.lit(self.groups)).cast("int")

    def rows(self, states: DataFrame) -> DataFrame:
        """The rows for final states, with `GONE` for those that shall not be in the table."""
        from pyspark.sql import functions as f

        lives = f.col(CHANGE) == Op.MUTATION.value
        shaped, values = self._valued(states)
        columns: list[Column | str] = ["key", *values, *_METADATA, self.group().alias(GROUP)]
        if self.keep_deleted:
            columns.append((~lives).alias("deleted"))
            gone = f.col(CHANGE).isNull()
        else:
            gone = ~f.coalesce(lives, f.lit(False))
        return shaped.select(*columns, gone.alias(GONE))

    def unreadable(self, changes: DataFrame) -> DataFrame:
        """The changes of which the value does not fit, with the reason."""
        from pyspark.sql import functions as f

        parsed = parse(
            changes.where(f.col("op") == Op.MUTATION.value), self._members(), corrupt=CORRUPT
        )
        is_json = f.try_parse_json(f.col(CORRUPT).cast("string")).isNotNull()
        reason = f.when(is_json, "it does not fit the schema").otherwise("it is no JSON")
        return parsed.where(f.col(CORRUPT).isNotNull()).select(
            "key",
            "vbucket",
            "seqno",
            "branch",
            "cas",
            "scope",
            "collection",
            reason.alias("reason"),
            f.col(CORRUPT).alias("value"),
        )

    def _valued(self, states: DataFrame) -> tuple[DataFrame, list[Column | str]]:
        from pyspark.sql import functions as f

        if self.text:
            text = f.col("value").cast("string")
            good = f.is_valid_utf8(text)
            return states, [
                f.when(good, text).alias("value"),
                f.when(~good, f.col("value")).alias(CORRUPT),
            ]
        if not self.schema:
            return states, ["value"]
        members = self._members()
        parsed = parse(states, members, corrupt=CORRUPT)
        return parsed, [*(f.col("value")[name].alias(name) for name in members.names), CORRUPT]


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
