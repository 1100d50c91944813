"""Parses and validates the options of the source and the sink.

Options are parsed once, in the driver; the result is pickled to the tasks, so only the driver needs
the files and environment variables that they name.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final, Literal, Self

from ..consumer.checkpoints.checkpoint import MAX_CHECKPOINT_SIZE, Checkpoint
from ..consumer.checkpoints.position_json import parse_json
from ..consumer.transport.access import Access
from ..consumer.transport.connection_string import Address, Source
from ..errors import ConfigError
from ..settings.all_settings import COLUMN_ROLES, READ, WRITE
from ..settings.connection_from_settings import access_of, content_of, source_of
from ..settings.setting import Given, Use
from ..settings.vbucket_list import MAX_VBUCKETS
from ..wire.dialects.by_name import DIALECTS
from ..wire.protocol_enums import DialectName

_LAST_SEQNO: Final = 2**63 - 1
_FILE: Final = "file:"
#: Columns that are made of values.
_OF_VALUES: Final = frozenset({"value", "xattrs", "datatype"})
_TIMEOUTS: Final = ("connectTimeout", "requestTimeout", "retryTimeout")


@dataclass(frozen=True, slots=True, kw_only=True)
class RowFormat:
    """The optional columns of rows and the format of their values."""

    #: Whether rows have values.
    values: bool = True
    #: Whether values are strings instead of bytes.
    text: bool = False
    inflate: bool = True
    xattrs: bool = False
    #: Whether a value that cannot be decoded fails the task.
    fail_fast: bool = False
    #: The column for such values if ``value`` is text.
    corrupt_column: str | None = None
    #: The columns of rows, in this order; empty for all.
    columns: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class MuteServer:
    """A server that knows the commands of one draft and nothing else: one node without a map."""

    dialect: DialectName
    #: Those that were named, or for which it answers.
    vbuckets: frozenset[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    """The parsed options of a read."""

    source: Source
    access: Access
    collections: tuple[str, ...]
    scope: str
    #: None for all.
    vbuckets: frozenset[int] | None
    starting: Literal["earliest", "latest"] | Checkpoint
    #: End seqnos by vbucket; None for the current high seqnos.
    ending: Mapping[int, int] | None
    max_offsets_per_trigger: int | None
    max_bytes_per_trigger: int | None
    min_partitions: int | None
    num_partitions: int | None
    fail_on_data_loss: bool
    fail_on_rollback: bool
    #: Whether a vbucket is read anew after a rollback (see `restate`).
    restate_on_rollback: bool
    rows: RowFormat
    compression: bool
    #: The flow-control buffer per node, in bytes.
    buffer: int
    dialect: DialectName
    #: All times are in seconds.
    connect_timeout: float
    request_timeout: float
    retry_timeout: float
    long_poll: float
    #: Changes that the driver of a query reads ahead at most; 0 if it does not.
    read_ahead: int
    #: Whether filters of a batch restrict what is read.
    push_filters: bool
    #: The names of the options that the user gave.
    given: frozenset[str]
    #: What the driver has found out about a server that answers no questions.
    mute: MuteServer | None = None

    @classmethod
    def parse(cls, options: Mapping[str, str], environ: Mapping[str, str] = os.environ) -> Self:
        """Parses Spark's options; ConfigError names the option that is wrong."""
        given = Given(READ, options)
        _require_features(given)
        given.refuse_together("scope", "collections", "give one of them")
        source = source_of(given)
        least, most = given["minPartitions"], given["numPartitions"]
        if least is not None and most is not None and most < least:
            raise ConfigError(f"numPartitions is {most}, less than minPartitions, which is {least}")
        return cls(
            source=source,
            access=access_of(given, environ),
            collections=tuple(_collection("collections", name) for name in given["collections"]),
            starting=_starting(given, source.bucket),
            ending=_ending(given),
            fail_on_rollback=given["onRollback"] == "fail",
            restate_on_rollback=given["onRollback"] == "restate",
            rows=_row_format(given),
            buffer=given["flowControlBuffer"],
            given=given.names,
            **given.fields("scope", "vbuckets", "maxOffsetsPerTrigger", "maxBytesPerTrigger"),
            **given.fields("dialect"),
            **given.fields("minPartitions", "numPartitions", "failOnDataLoss", "compression"),
            **given.fields("longPoll", "readAhead", "pushFilters", *_TIMEOUTS),
        )

    def knowing(self, nodes: Iterable[Address]) -> Self:
        """The same for a reader that finds the cluster by these nodes if its named hosts died."""
        return replace(self, source=self.source.knowing(nodes))

    def for_batch(self) -> Self:
        """Validates the options for a batch read."""
        self._refuse(Use.STREAM, "a batch")
        if self.starting == "latest":
            raise ConfigError("startingOffsets: a batch read from latest has no rows")
        if self.restate_on_rollback and (self.starting != "earliest" or self.ending is not None):
            raise ConfigError(
                "onRollback: in a batch, restate gives all documents; leave startingOffsets and "
                "endingOffsets out"
            )
        return self

    def for_stream(self) -> Self:
        """Validates the options for a stream."""
        self._refuse(Use.BATCH, "a stream")
        if self.restate_on_rollback and self.starting == "latest":
            raise ConfigError(
                "onRollback: restate contradicts startingOffsets latest: what is restated are all "
                "documents, and the sink would remove those that the bucket does not have"
            )
        return self

    def _refuse(self, use: Use, what: str) -> None:
        for setting in READ:
            if setting.use is use and setting.name in self.given:
                raise ConfigError(f"{setting.name} has no meaning for {what}")


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteOptions:
    """The parsed options of a write."""

    source: Source
    access: Access
    #: The collection for rows that name none, as ``scope.collection``.
    collection: str
    #: Names of columns by role: key, value, op, expiry, flags, datatype, and so on.
    columns: Mapping[str, str]
    check_cas: bool
    #: Whether rows replace versions that are newer by CAS and revision.
    overwrite: bool
    #: Whether collections are created, and dropped ones passed over.
    create_collections: bool
    #: Connections per task and node.
    connections: int
    #: Writes in flight per connection.
    batch_size: int
    connect_timeout: float
    request_timeout: float
    retry_timeout: float
    #: The names of the options that the user gave.
    given: frozenset[str]

    @classmethod
    def parse(cls, options: Mapping[str, str], environ: Mapping[str, str] = os.environ) -> Self:
        """Parses Spark's options; ConfigError names the option that is wrong."""
        given = Given(WRITE, options)
        columns = {role: given[f"{role}Column"] for role in COLUMN_ROLES}
        for role, column in columns.items():
            if not column:
                raise ConfigError(f"{role}Column: the column name is empty")
        return cls(
            source=source_of(given),
            access=access_of(given, environ),
            collection=_collection("collection", given["collection"]),
            columns=columns,
            given=given.names,
            overwrite=given["onConflict"] == "source",
            **given.fields("checkCas", "createCollections", "connections", "batchSize"),
            **given.fields(*_TIMEOUTS),
        )

    def columns_in(self, frame: Collection[str]) -> dict[str, str]:
        """The columns of a DataFrame, by role; ConfigError for a missing column."""
        needed = {"key"} | {role for role in COLUMN_ROLES if f"{role}Column" in self.given}
        if self.columns["op"] not in frame:  # with an op column, a frame may have only deletions
            needed.add("value")
        if self.check_cas:
            needed.add("cas")
        for role, column in self.columns.items():
            if role in needed and column not in frame:
                has = ", ".join(frame)
                raise ConfigError(f"{role}Column: there is no column {column!r}, only {has}")
        return {role: column for role, column in self.columns.items() if column in frame}


def _require_features(given: Given) -> None:
    """ConfigError if the draft that is named lacks what other options need."""
    draft = DIALECTS.get(given["dialect"])
    if draft is None or draft.negotiates:
        return
    for name in ("collections", "scope", "xattrs"):
        if given[name]:
            raise ConfigError(
                f"dialect is {draft.name}, a draft that has no collections and no xattrs; leave "
                f"{name} out, or dialect"
            )


def _collection(option: str, text: str) -> str:
    if [bool(part) for part in text.split(".")] != [True, True]:
        raise ConfigError(f"{option}: {text!r} is not of the form scope.collection")
    return text


def _starting(given: Given, bucket: str) -> Literal["earliest", "latest"] | Checkpoint:
    name = "startingOffsets"
    text = given[name]
    if text.lower() == "earliest":
        return "earliest"
    if text.lower() == "latest":
        return "latest"
    if text.startswith(_FILE):
        text = content_of(name, text.removeprefix(_FILE), MAX_CHECKPOINT_SIZE)
    elif not text.startswith("{"):
        raise ConfigError(f"{name} must be earliest, latest, a checkpoint as JSON, or file:PATH")
    try:
        checkpoint = Checkpoint.from_json(text)
    except ConfigError as problem:
        raise ConfigError(f"{name}: {problem}") from None
    if checkpoint.bucket != bucket:
        raise ConfigError(f"{name}: the checkpoint is for the bucket {checkpoint.bucket!r}")
    return checkpoint


def _ending(given: Given) -> Mapping[int, int] | None:
    name = "endingOffsets"
    text = given[name]
    if text.lower() == "latest":
        return None
    if not text.startswith("{") or len(text) > MAX_CHECKPOINT_SIZE:
        raise ConfigError(f'{name} must be latest, or seqnos by vbucket, such as {{"0": 120}}')
    try:
        stored = parse_json(text)
    except ConfigError as problem:
        raise ConfigError(f"{name}: {problem}") from None
    ending: dict[int, int] = {}
    for vbucket, seqno in stored.items():
        if not (vbucket.isascii() and vbucket.isdecimal() and int(vbucket[:6]) < MAX_VBUCKETS):
            raise ConfigError(f"{name}: {vbucket[:20]!r} is not a vbucket")
        if type(seqno) is not int or not 0 <= seqno <= _LAST_SEQNO:
            raise ConfigError(f"{name}: vbucket {vbucket} needs a seqno from 0 to {_LAST_SEQNO}")
        ending[int(vbucket)] = seqno
    return ending


def _row_format(given: Given) -> RowFormat:
    text, fail_fast = given["valueFormat"] == "string", given["mode"] == "FAILFAST"
    columns = tuple(name.lower() for name in given["columns"])
    if len(set(columns)) < len(columns):
        raise ConfigError("columns: a column is named twice")
    rows = RowFormat(
        values=not given["noValue"] and (not columns or not _OF_VALUES.isdisjoint(columns)),
        text=text,
        inflate=given["decompress"],
        xattrs=given["xattrs"],
        fail_fast=fail_fast,
        corrupt_column=given["columnNameOfCorruptRecord"] if text and not fail_fast else None,
        columns=columns,
    )
    for contradicts, first, second, why in (
        (given["noValue"] and text, "noValue", "valueFormat", "there are no values"),
        (given["noValue"] and "value" in columns, "noValue", "columns", "value is a column"),
        (not rows.inflate and text, "decompress", "valueFormat", "text must be decompressed"),
        (not rows.inflate and rows.xattrs, "decompress", "xattrs", "xattrs are compressed too"),
    ):
        if contradicts:
            raise ConfigError(f"{first} and {second} contradict each other: {why}")
    if "columnNameOfCorruptRecord" in given.names and not rows.corrupt_column:
        raise ConfigError("columnNameOfCorruptRecord needs valueFormat text and mode PERMISSIVE")
    return rows
