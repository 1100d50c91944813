"""What a pipeline was asked for, and what of it a table remembers.

Options are the source's own and some more. A table remembers which bucket it is of, which part of
it, and how rows look; a pipeline that wants anything else of it is refused.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, Self

from ..batches.offsets import SourceIdentity
from ..batches.options import ReadOptions
from ..consumer.transport.connection_string import Address
from ..errors import ConfigError
from ..settings.all_settings import GROUPS, READ
from ..settings.setting import Given, camel, require_known, text_of
from .kinds import HISTORY_TABLE, KINDS, TableKind
from .rows.ddl import schema_json
from .rows.json_types import DEPTH, require_column_names
from .upkeep.version_retention import Window

#: Changes of a batch: enough to make its fixed cost small, and few enough to see progress.
_BATCH: Final = "1000000"

#: The schema whose columns follow the documents.
INFER: Final = "infer"

#: What makes no sense for a table that is kept equal to a whole bucket.
_NOT_FOR_MIRRORS: Final = ("startingOffsets", "xattrs", "mode", "columnNameOfCorruptRecord")

#: Options of earlier releases.
_GONE: Final = {
    "format": "every table is a Delta table, and its data files are Parquet",
    "checkpoint": "a table keeps its position in its own commits",
}

_SOURCE: Final = "upriver.source"
_BUCKET: Final = "upriver.bucket"
_BUCKET_UUID: Final = "upriver.bucket_uuid"
_VBUCKETS: Final = "upriver.vbuckets"
SELECTION: Final = "upriver.selection"
KIND: Final = "upriver.kind"
PIPELINE: Final = "upriver.pipeline"
SHAPE: Final = "upriver.shape"
#: Members of it that no option sets.
_OUR_OWN: Final = frozenset({"rescues", "full", "versions"})
#: Characters of a value in an error.
_MOST_SHOWN: Final = 200
PER_COLLECTION: Final = "upriver.table_per_collection"
MERGE_ON_READ: Final = "upriver.merge_on_read"
#: The key of the hashes by which documents are found.
HASH_KEY: Final = "upriver.hash_key"
#: How tables are kept; tables of version 0.1 do not say it.
FORMAT: Final = "upriver.format"
NEWEST_FORMAT: Final = "2"


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineSettings:
    """What the options of a pipeline come to."""

    kind: TableKind
    #: For the format ``dcp``, as they were given.
    source: Mapping[str, str]
    read: ReadOptions
    once: bool
    #: Seconds.
    trigger: float
    compact_every: int
    window: Window
    #: Bytes of a task.
    task_memory: int
    #: As `deltalake` takes them.
    storage: Mapping[str, str] = field(repr=False)
    #: Whether a table that is there may become what is asked for.
    allow_change: bool = False
    merge_on_read: bool = True
    text: bool = False
    #: By collection, and empty for all others: DDL, or "infer", or nothing.
    value_schemas: Mapping[str, str] = field(default_factory=dict)
    key_text: bool = False
    key_patterns: Mapping[str, str] = field(default_factory=dict)
    #: By column the member that it is taken from.
    renames: Mapping[str, tuple[tuple[str, str], ...]] = field(default_factory=dict)
    #: Columns that do not follow documents although others do: as JSON of a schema, or nothing.
    column_types: str = ""
    #: Levels of arrays and structs in columns that follow documents.
    infer_depth: int = DEPTH
    #: Whether columns that follow documents may become text.
    widen_to_text: bool = False
    keep_deleted: bool = False
    table_per_collection: bool = False
    groups: int = GROUPS

    def knowing(self, nodes: Iterable[Address]) -> Self:
        """The same for readers that find the cluster by these nodes if its named hosts died."""
        read = self.read.knowing(nodes)
        given = {**self.source, "connectionString": read.source.with_all_nodes}
        return replace(self, read=read, source=given)

    @classmethod
    def parse(cls, name: str, source: str, options: Mapping[str, Any]) -> Self:
        """Reads options in any spelling of Python or Spark; ConfigError names what is wrong.

        ``name`` is that of the kind of table.
        """
        kind = KINDS[name]
        table = kind.settings
        mine: dict[str, str] = {}
        theirs = {"connectionString": source}
        known = {setting.name.lower() for setting in table}
        for name, value in options.items():
            if value is None:
                continue
            spelled = camel(name)
            if spelled in _GONE:
                raise ConfigError(f"{spelled}: {_GONE[spelled]}; leave it out")
            (mine if spelled.lower() in known else theirs)[spelled] = text_of(value)
        if "maxbytespertrigger" not in map(str.lower, theirs):
            theirs.setdefault("maxOffsetsPerTrigger", _BATCH)
        require_known(theirs, (*READ, *table))
        given = Given(table, mine)
        read = ReadOptions.parse(theirs).for_stream()
        if read.restate_on_rollback:
            raise ConfigError("onRollback: restate is for sinks; tables undo rollbacks themselves")
        for name in ("columns", *(_NOT_FOR_MIRRORS if kind.documents else ())):
            if name in read.given:
                raise ConfigError(f"{name} has no meaning for a {kind.name}")
        common: dict[str, Any] = {
            "kind": kind,
            "source": theirs,
            "read": read,
            "window": Window(given["keepVersions"], given["keepVersionsSize"]),
            "storage": storage_options(given["storageOptions"]),
            **given.fields("once", "trigger", "compactEvery", "taskMemory", "allowChange"),
        }
        if not kind.documents:
            return cls(**common)
        made = cls(
            **common,
            text=given["valueFormat"] == "string",
            key_text=given["keyFormat"] == "string",
            key_patterns=by_collection("keyPattern", given["keyPattern"]),
            renames={
                name: _renamed(text)
                for name, text in by_collection("rename", given["rename"]).items()
            },
            column_types=_column_types(given["columnTypes"]),
            value_schemas=by_collection("valueSchema", given["valueSchema"]),
            **given.fields("inferDepth", "tablePerCollection", "groups", "mergeOnRead"),
            **({} if kind.versions else given.fields("widenToText", "keepDeleted")),
        )
        made._require_collections()
        if made.column_types and INFER not in made.value_schemas.values():
            raise ConfigError(
                "columnTypes needs columns that follow the documents: set valueSchema to infer "
                "(--schema infer), or name the types in the schema"
            )
        for written in {*made.value_schemas.values()} - {"", INFER}:
            schema_json(written)  # what is wrong with it is said before anything is started
        return made

    @property
    def collections_with_columns(self) -> list[str]:
        """The collections that were given columns of their own."""
        return sorted({*self.value_schemas, *self.renames, *self.key_patterns} - {""})

    def columns_of(self, collection: str) -> AskedColumns:
        """What was asked for a collection; its own, or else that for all others."""
        own = collection if collection in self.value_schemas else ""
        return AskedColumns(
            self.value_schemas.get(own, ""),
            self.renames.get(collection, self.renames.get(own, ())),
            self.key_patterns.get(collection, self.key_patterns.get("", "")),
        )

    def _require_collections(self) -> None:
        names = self.collections_with_columns
        if names and not self.table_per_collection:
            raise ConfigError(
                f"{names[0]} is to have columns of its own, which needs a table for each "
                "collection: set tablePerCollection (--table-per-collection)"
            )
        chosen, scope = self.read.collections, self.read.scope
        for name in names:
            if (chosen and name not in chosen) or (scope and not name.startswith(f"{scope}.")):
                raise ConfigError(
                    f"{name} is to have columns of its own, but it is none of the collections "
                    "that are read; leave it out, or read it"
                )


@dataclass(frozen=True, slots=True)
class AskedColumns:
    """Which columns were asked for."""

    #: DDL, or `INFER`, or nothing.
    schema: str = ""
    #: By column the member that it is taken from.
    rename: tuple[tuple[str, str], ...] = ()
    key_pattern: str = ""


def by_collection(setting: str, text: str | None) -> dict[str, str]:
    """A setting by collection: a text is for all of them, a JSON object for those it names."""
    if not text:
        return {}
    try:
        told = json.loads(text)
    except ValueError:
        return {"": text}
    if not isinstance(told, dict) or not all(isinstance(one, str) for one in told.values()):
        raise ConfigError(f"{setting}: give a text, or a JSON object with a text by collection")
    for name in told:
        scope, dot, collection = name.partition(".")
        if name != "*" and not (scope and dot and collection and "." not in collection):
            raise ConfigError(
                f"{setting}: {name[:100]!r} is no collection, such as shop.orders, and not * for "
                "all others"
            )
    return {"" if name == "*" else name: one for name, one in told.items()}


def _column_types(text: str | None) -> str:
    """The JSON of a schema: of a text, or of a JSON object with a type by column."""
    if not text:
        return ""
    if text.startswith("{"):
        try:
            told = json.loads(text)
        except ValueError:
            raise ConfigError("columnTypes: give columns, or a JSON object by column") from None
        text = ", ".join(f"`{name.replace('`', '``')}` {kind}" for name, kind in told.items())
    schema = schema_json(text)
    require_column_names(json.loads(schema))
    return schema


def _renamed(given: str) -> tuple[tuple[str, str], ...]:
    pairs = []
    for text in filter(None, map(str.strip, given.split(","))):
        column, is_pair, member = text.partition("=")
        if not (is_pair and column.strip() and all(member.strip().split("."))):
            raise ConfigError(
                f"rename: {text[:100]!r} is no column and member, such as city=address.city"
            )
        pairs.append((column.strip(), member.strip()))
    return tuple(sorted(dict(pairs).items()))


def storage_options(text: str | None) -> dict[str, str]:
    """Options of an object store, from a JSON object; its values are never repeated."""
    if not text:
        return {}
    try:
        parsed = json.loads(text)
    except ValueError:
        parsed = None
    if not isinstance(parsed, dict) or not all(isinstance(one, str) for one in parsed.values()):
        raise ConfigError(
            'storageOptions: give a JSON object of texts, such as {"AWS_REGION": "eu-west-1"}'
        )
    return parsed


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
        FORMAT: NEWEST_FORMAT,
        KIND: settings.kind.name,
        _SOURCE: str(read.source),
        _BUCKET: source.bucket,
        _BUCKET_UUID: source.bucket_uuid,
        _VBUCKETS: str(source.vbuckets),
        SELECTION: json.dumps(selection),
    }


class ForeignTable(ConfigError):
    """A Delta table that no pipeline has made."""


def require_readable(url: str, table: Mapping[str, str]) -> None:
    """ConfigError if a table is not one that this release keeps."""
    if KIND not in table:
        raise ForeignTable(
            f"{url} is a Delta table that no pipeline of ours has made; give another path"
        )
    found = table.get(FORMAT)
    if found is None:
        raise ConfigError(
            f"{url} was made by upriver 0.1, which kept tables in another way. Give a new TABLE: "
            "it is loaded from the bucket once. Readers can use the old one until then; delete it "
            "afterwards"
        )
    if found != NEWEST_FORMAT:
        raise ConfigError(
            f"{url} was made by a later release of upriver (format {found}); use that release"
        )


def require_same(
    url: str, table: Mapping[str, str], wanted: Mapping[str, str], *, may_change: bool = False
) -> dict[str, str]:
    """What a table must change to be as wanted; ConfigError if it is of something else.

    Its address may always change, and what it has of documents if it ``may_change``.
    """
    require_readable(url, table)
    changed: dict[str, str] = {}
    for name, value in wanted.items():
        held = table.get(name, "")
        if name == _SOURCE or held == value:
            continue
        changeable = (name == SELECTION and _same_members(held, value, "vbuckets", "noValue")) or (
            # other columns have all rows read anew, and older versions cannot be
            name == SHAPE
            and _same_members(held, value, "groups")
            and wanted.get(KIND) != HISTORY_TABLE.name
        )
        if may_change and changeable:
            changed[name] = value
            continue
        what = _difference(name.removeprefix("upriver."), held, value)
        raise ConfigError(
            f"{url} is a table of something else: its {what}; give a new table, or what this one "
            "was made with" + (", or allow the change (--allow-change)" if changeable else "")
        )
    return changed


def _difference(name: str, held: str, wanted: str) -> str:
    """What is different in two values of a property, in the words of options."""
    try:
        one, other = _as_options(json.loads(held)), _as_options(json.loads(wanted))
    except (ValueError, AttributeError):
        return f"{name} is {held or 'none'} and here it is {wanted or 'none'}"
    return ", its ".join(
        f"{option} is {one.get(option) or 'none'} and here it is {other.get(option) or 'none'}"
        for option in {**one, **other}
        if one.get(option) != other.get(option)
    )


def _as_options(stored: dict[str, Any]) -> dict[str, str]:
    """The members of a property that users can set, as they would write them."""
    if stored.pop("follows", False):
        stored["valueSchema"] = INFER
    for option in ("valueSchema", "columnTypes"):
        schema = stored.get(option)
        if not schema or schema == INFER:
            continue
        columns = ((one["name"], one["type"]) for one in json.loads(schema)["fields"])
        stored[option] = ", ".join(
            f"{name} {kind if isinstance(kind, str) else kind['type']}" for name, kind in columns
        )
    texts = {
        name: text_of(value)
        for name, value in stored.items()
        if name not in _OUR_OWN and value is not None
    }
    return {
        name: text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}..."
        for name, text in texts.items()
    }


def _same_members(held: str, wanted: str, *names: str) -> bool:
    try:
        one, other = json.loads(held), json.loads(wanted)
    except ValueError:
        return False
    return all(one.get(name) == other.get(name) for name in names)
