"""What a pipeline was asked for, and what of it a table remembers.

Options are the source's own and some more. A table remembers which bucket it is of, which part of
it, and how rows look; a pipeline that wants anything else of it is refused.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, Self

from ...errors import ConfigError
from ..offsets import SourceIdentity
from ..option_table import Given, Kind, Option
from ..options import ReadOptions

__all__ = [
    "CHANGELOG_OPTIONS",
    "MIRROR_OPTIONS",
    "PIPELINE_OPTIONS",
    "PipelineSettings",
    "identity_properties",
    "require_same",
]

TableKind = Literal["changelog", "mirror"]

#: Changes of a batch: enough to make its fixed cost small, and few enough to see progress.
_BATCH: Final = "1000000"

#: What every pipeline takes besides the options of the source.
PIPELINE_OPTIONS: Final = (
    Option("once", Kind.FLAG, "false", "catch up with what is there now, and stop"),
    Option("checkpoint", Kind.TEXT, None, "where Spark keeps positions; inside the table if not"),
    Option("trigger", Kind.DURATION, "0s", "start batches no faster than this apart", most=86_400),
    Option(
        "compactEvery",
        Kind.NUMBER,
        "100",
        "make small files into larger ones every so many batches; 0 for never",
        most=10**9,
    ),
    Option(
        "keepVersions",
        Kind.DURATION,
        "168h",
        "how long files that no version needs any more stay for readers of older versions",
        most=10**9,
    ),
)
CHANGELOG_OPTIONS: Final = (
    *PIPELINE_OPTIONS,
    Option("format", Kind.CHOICE, "delta", "how the table is kept", choices=("delta", "parquet")),
)
MIRROR_OPTIONS: Final = (
    *PIPELINE_OPTIONS,
    Option(
        "valueFormat",
        Kind.CHOICE,
        "binary",
        "values as bytes, or as text",
        choices=("binary", "string"),
    ),
    Option(
        "valueSchema",
        Kind.TEXT,
        None,
        "values as columns: a schema such as 'name string, age int', or infer",
    ),
    Option("keepDeleted", Kind.FLAG, "false", "mark deleted documents instead of leaving them out"),
    Option("tablePerCollection", Kind.FLAG, "false", "a table for each collection, TABLE/S.C"),
    Option(
        "groups",
        Kind.NUMBER,
        "64",
        "into how many groups of vbuckets files are divided",
        least=1,
        most=1024,
    ),
)

#: What makes no sense for a table that is kept equal to a whole bucket.
_NOT_FOR_MIRRORS: Final = ("startingOffsets", "xattrs", "mode", "columnNameOfCorruptRecord")

_SOURCE: Final = "upriver.source"
_BUCKET: Final = "upriver.bucket"
_BUCKET_UUID: Final = "upriver.bucket_uuid"
_VBUCKETS: Final = "upriver.vbuckets"
_SELECTION: Final = "upriver.selection"
KIND: Final = "upriver.kind"
PIPELINE: Final = "upriver.pipeline"
SHAPE: Final = "upriver.shape"
PER_COLLECTION: Final = "upriver.table_per_collection"


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineSettings:
    """What the options of a pipeline come to."""

    kind: TableKind
    #: For the format ``dcp``, as they were given.
    source: Mapping[str, str]
    read: ReadOptions
    once: bool
    checkpoint: Path | None
    #: Seconds.
    trigger: float
    compact_every: int
    #: Hours.
    keep_versions: float
    parquet: bool = False
    text: bool = False
    #: DDL, or "infer", or nothing.
    value_schema: str = ""
    keep_deleted: bool = False
    table_per_collection: bool = False
    groups: int = 64

    @classmethod
    def parse(cls, kind: TableKind, source: str, options: Mapping[str, Any]) -> Self:
        """Reads options in any spelling of Python or Spark; ConfigError names what is wrong."""
        table = MIRROR_OPTIONS if kind == "mirror" else CHANGELOG_OPTIONS
        mine: dict[str, str] = {}
        theirs = {"connectionString": source}
        known = {option.name.lower() for option in table}
        for name, value in options.items():
            if value is None:
                continue
            spelled = re.sub(r"_([a-z])", lambda found: found[1].upper(), name)
            (mine if spelled.lower() in known else theirs)[spelled] = _text(value)
        if "maxbytespertrigger" not in map(str.lower, theirs):
            theirs.setdefault("maxOffsetsPerTrigger", _BATCH)
        given = Given(table, mine)
        read = ReadOptions.parse(theirs).for_stream()
        for name in _NOT_FOR_MIRRORS if kind == "mirror" else ():
            if name in read.given:
                raise ConfigError(f"{name} has no meaning for a mirror")
        checkpoint = given.text("checkpoint")
        common: dict[str, Any] = {
            "kind": kind,
            "source": theirs,
            "read": read,
            "once": given.flag("once"),
            "checkpoint": Path(checkpoint).absolute() if checkpoint else None,
            "trigger": given.seconds("trigger"),
            "compact_every": given.number("compactEvery") or 0,
            "keep_versions": given.seconds("keepVersions") / 3600,
        }
        if kind == "changelog":
            return cls(**common, parquet=given.choice("format") == "parquet")
        return cls(
            **common,
            text=given.choice("valueFormat") == "string",
            value_schema=given.text("valueSchema"),
            keep_deleted=given.flag("keepDeleted"),
            table_per_collection=given.flag("tablePerCollection"),
            groups=given.number("groups") or 1,
        )


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def identity_properties(settings: PipelineSettings, source: SourceIdentity) -> dict[str, str]:
    """What a table remembers of its source."""
    read = settings.read
    selection = {
        "collections": sorted(read.collections),
        "scope": read.scope,
        "vbuckets": sorted(read.vbuckets) if read.vbuckets is not None else None,
        "noValue": not read.rows.values,
    }
    return {
        KIND: settings.kind,
        _SOURCE: str(read.source),
        _BUCKET: source.bucket,
        _BUCKET_UUID: source.bucket_uuid,
        _VBUCKETS: str(source.vbuckets),
        _SELECTION: json.dumps(selection),
    }


def require_same(path: Path, table: Mapping[str, str], wanted: Mapping[str, str]) -> None:
    """ConfigError if a table is of something else; its address alone may change."""
    if KIND not in table:
        raise ConfigError(f"{path} is a table that no pipeline of ours has made")
    for name, value in wanted.items():
        held = table.get(name, "")
        if name != _SOURCE and held != value:
            what = name.removeprefix("upriver.")
            raise ConfigError(
                f"{path} is a table of something else: its {what} is {held or 'none'} and here it "
                f"is {value or 'none'}; give a new table, or what this one was made with"
            )
