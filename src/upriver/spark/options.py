"""What the options of a read or a write come to.

Options are read where the driver plans, once; what comes out is pickled to the tasks, so files and
environment variables are needed by the driver only. Nothing here connects to anything.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, Self
from urllib.parse import quote, unquote

from ..consumer.access import Access
from ..consumer.checkpoint import MAX_CHECKPOINT_SIZE, MAX_VBUCKETS, Checkpoint
from ..consumer.position_json import parse_json
from ..consumer.source import Source
from ..errors import ConfigError
from .known_options import (
    COLUMN_ROLES,
    READ_OPTIONS,
    USER_VARIABLE,
    WRITE_OPTIONS,
)
from .option_table import Given, Use

__all__ = ["ReadOptions", "RowFormat", "WriteOptions"]

#: Bytes of a password file; longer ones hold something else.
_MAX_PASSWORD: Final = 64 * 1024
_LAST_SEQNO: Final = 2**63 - 1
_FILE: Final = "file:"

_RANGE: Final = re.compile(r"([0-9]{1,5})(?:-([0-9]{1,5}))?", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class RowFormat:
    """Which columns rows have, and what their values are."""

    #: Whether documents come with their bodies.
    values: bool = True
    #: Whether bodies are strings and not bytes.
    text: bool = False
    inflate: bool = True
    xattrs: bool = False
    #: Whether a value that cannot be read fails the task.
    fail_fast: bool = False
    #: Where such a value goes if it must not be in its own column.
    corrupt_column: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    """What a read was asked for."""

    source: Source
    access: Access
    collections: tuple[str, ...]
    scope: str
    #: None for all.
    vbuckets: frozenset[int] | None
    starting: Literal["earliest", "latest"] | Checkpoint
    #: Seqnos by vbucket; None for what is there.
    ending: Mapping[int, int] | None
    max_offsets_per_trigger: int | None
    max_bytes_per_trigger: int | None
    min_partitions: int | None
    num_partitions: int | None
    fail_on_data_loss: bool
    fail_on_rollback: bool
    rows: RowFormat
    compression: bool
    #: Bytes that a node may have under way.
    buffer: int
    #: All times are in seconds.
    connect_timeout: float
    request_timeout: float
    retry_timeout: float
    long_poll: float
    #: The names of the options that somebody gave.
    given: frozenset[str]

    @classmethod
    def parse(cls, options: Mapping[str, str], environ: Mapping[str, str] = os.environ) -> Self:
        """Reads what Spark hands over; ConfigError names the option that is wrong."""
        given = Given(READ_OPTIONS, options)
        given.refuse_together("scope", "collections", "give one of them")
        source = _source(given)
        least, most = given.number("minPartitions"), given.number("numPartitions")
        if least is not None and most is not None and most < least:
            raise ConfigError(f"numPartitions is {most}, less than minPartitions, which is {least}")
        return cls(
            source=source,
            access=_access(given, environ),
            collections=tuple(_collection("collections", n) for n in given.listed("collections")),
            scope=given.text("scope"),
            vbuckets=_vbuckets(given),
            starting=_starting(given, source.bucket),
            ending=_ending(given),
            max_offsets_per_trigger=given.number("maxOffsetsPerTrigger"),
            max_bytes_per_trigger=given.size("maxBytesPerTrigger"),
            min_partitions=least,
            num_partitions=most,
            fail_on_data_loss=given.flag("failOnDataLoss"),
            fail_on_rollback=given.choice("onRollback") == "fail",
            rows=_row_format(given),
            compression=given.flag("compression"),
            buffer=given.size("flowControlBuffer") or 0,
            long_poll=given.seconds("longPoll"),
            given=given.names,
            **_timeouts(given),
        )

    def for_batch(self) -> Self:
        """These options, if they can be those of a batch."""
        self._refuse(Use.STREAM, "a batch")
        if self.starting == "latest":
            raise ConfigError("startingOffsets: a batch from latest on would hold nothing")
        return self

    def for_stream(self) -> Self:
        """These options, if they can be those of a stream."""
        self._refuse(Use.BATCH, "a stream")
        return self

    def _refuse(self, use: Use, what: str) -> None:
        for option in READ_OPTIONS:
            if option.use is use and option.name in self.given:
                raise ConfigError(f"{option.name} has no meaning for {what}")


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteOptions:
    """What a write was asked for."""

    source: Source
    access: Access
    #: Where documents go whose row names no collection, as ``scope.collection``.
    collection: str
    #: Names of columns by role: key, value, op, expiry, flags, cas, rev, scope, collection.
    columns: Mapping[str, str]
    check_cas: bool
    #: Of a task to a node.
    connections: int
    #: How many writes may be under way on one connection.
    batch_size: int
    connect_timeout: float
    request_timeout: float
    retry_timeout: float
    #: The names of the options that somebody gave.
    given: frozenset[str]

    @classmethod
    def parse(cls, options: Mapping[str, str], environ: Mapping[str, str] = os.environ) -> Self:
        """Reads what Spark hands over; ConfigError names the option that is wrong."""
        given = Given(WRITE_OPTIONS, options)
        columns = {role: given.text(f"{role}Column") for role in COLUMN_ROLES}
        for role, column in columns.items():
            if not column:
                raise ConfigError(f"{role}Column: a column has a name")
        return cls(
            source=_source(given),
            access=_access(given, environ),
            collection=_collection("collection", given.text("collection")),
            columns=columns,
            check_cas=given.flag("checkCas"),
            connections=given.number("connections") or 1,
            batch_size=given.number("batchSize") or 1,
            given=given.names,
            **_timeouts(given),
        )

    def columns_in(self, frame: Collection[str]) -> dict[str, str]:
        """The columns that a frame has, by role; ConfigError for one that must be there."""
        needed = {"key"} | {role for role in COLUMN_ROLES if f"{role}Column" in self.given}
        if self.columns["op"] not in frame:  # with it, a frame may be of deletions only
            needed.add("value")
        if self.check_cas:
            needed.add("cas")
        for role, column in self.columns.items():
            if role in needed and column not in frame:
                has = ", ".join(frame)
                raise ConfigError(f"{role}Column: the frame has no column {column!r}, but {has}")
        return {role: column for role, column in self.columns.items() if column in frame}


def _timeouts(given: Given) -> dict[str, float]:
    return {
        "connect_timeout": given.seconds("connectTimeout"),
        "request_timeout": given.seconds("requestTimeout"),
        "retry_timeout": given.seconds("retryTimeout"),
    }


def _source(given: Given) -> Source:
    text, bucket = given.text("connectionString"), given.text("bucket")
    if not text:
        raise ConfigError("connectionString: where to connect must be given")
    scheme, separator, rest = text.partition("://")
    hosts, _, named = rest.partition("/")
    if bucket and not named.strip("/"):
        text = f"{scheme}{separator}{hosts}/{quote(bucket, safe='')}"
    elif bucket and unquote(named.strip("/")) != bucket:
        raise ConfigError(f"bucket is {bucket!r}, but the connection string names another one")
    return Source.parse(text)


def _access(given: Given, environ: Mapping[str, str]) -> Access:
    for first, second in (
        ("password", "passwordFile"),
        ("password", "passwordEnv"),
        ("passwordFile", "passwordEnv"),
    ):
        given.refuse_together(first, second, "there is one password")
    user = given.text("user") or environ.get(USER_VARIABLE, "")
    authority = given.text("caFile")
    return Access(
        user=user,
        password=_password(given, environ, user),
        authority=Path(authority) if authority else None,
        insecure=given.flag("insecure"),
    )


def _password(given: Given, environ: Mapping[str, str], user: str) -> str:
    if "password" in given.names:
        return given.secret("password")
    if "passwordFile" in given.names:
        file = given.text("passwordFile")
        return _file("passwordFile", file, _MAX_PASSWORD).removesuffix("\n")
    variable = given.text("passwordEnv")
    if "passwordEnv" in given.names and variable not in environ:
        raise ConfigError(f"passwordEnv: the driver has no environment variable {variable!r}")
    # without a user the default variable is meant for somebody else
    return environ.get(variable, "") if user or "passwordEnv" in given.names else ""


def _file(name: str, path: str, most: int) -> str:
    try:
        with open(path, "rb") as file:
            content = file.read(most + 1)
        if len(content) > most:
            raise ConfigError(f"{name}: {path} has more than {most} bytes")
        return content.decode()
    except (OSError, ValueError) as problem:
        raise ConfigError(f"{name}: {path} cannot be read: {problem}") from None


def _collection(option: str, text: str) -> str:
    if [bool(part) for part in text.split(".")] != [True, True]:
        raise ConfigError(f"{option}: {text!r} is not of the form scope.collection")
    return text


def _vbuckets(given: Given) -> frozenset[int] | None:
    chosen: set[int] = set()
    for part in given.listed("vbuckets"):
        found = _RANGE.fullmatch(part)
        if found is None:
            raise ConfigError(f"vbuckets: {part!r} is no vbucket and no range, such as 0-15")
        first, last = int(found[1]), int(found[2] or found[1])
        if not first <= last < MAX_VBUCKETS:
            raise ConfigError(f"vbuckets: {part} is no range within 0-{MAX_VBUCKETS - 1}")
        if not chosen.isdisjoint(range(first, last + 1)):
            raise ConfigError(f"vbuckets: {part} names a vbucket for the second time")
        chosen.update(range(first, last + 1))
    return frozenset(chosen) or None


def _starting(given: Given, bucket: str) -> Literal["earliest", "latest"] | Checkpoint:
    name = "startingOffsets"
    text = given.text(name)
    if text.lower() == "earliest":
        return "earliest"
    if text.lower() == "latest":
        return "latest"
    if text.startswith(_FILE):
        text = _file(name, text.removeprefix(_FILE), MAX_CHECKPOINT_SIZE)
    elif not text.startswith("{"):
        raise ConfigError(f"{name}: it is earliest, latest, a checkpoint as JSON, or file:PATH")
    try:
        checkpoint = Checkpoint.from_json(text)
    except ConfigError as problem:
        raise ConfigError(f"{name}: {problem}") from None
    if checkpoint.bucket != bucket:
        raise ConfigError(f"{name}: the checkpoint is of the bucket {checkpoint.bucket!r}")
    return checkpoint


def _ending(given: Given) -> Mapping[int, int] | None:
    name = "endingOffsets"
    text = given.text(name)
    if text.lower() == "latest":
        return None
    if not text.startswith("{") or len(text) > MAX_CHECKPOINT_SIZE:
        raise ConfigError(f'{name}: it is latest, or seqnos by vbucket, such as {{"0": 120}}')
    try:
        stored = parse_json(text)
    except ConfigError as problem:
        raise ConfigError(f"{name}: {problem}") from None
    ending: dict[int, int] = {}
    for vbucket, seqno in stored.items():
        if not (vbucket.isascii() and vbucket.isdecimal() and int(vbucket[:6]) < MAX_VBUCKETS):
            raise ConfigError(f"{name}: {vbucket[:20]!r} is no vbucket")
        if type(seqno) is not int or not 0 <= seqno <= _LAST_SEQNO:
            raise ConfigError(f"{name}: vbucket {vbucket} has no seqno from 0 to {_LAST_SEQNO}")
        ending[int(vbucket)] = seqno
    return ending


def _row_format(given: Given) -> RowFormat:
    text = given.choice("valueFormat") == "string"
    fail_fast = given.choice("mode") == "FAILFAST"
    corrupt = given.text("columnNameOfCorruptRecord")
    rows = RowFormat(
        values=not given.flag("noValue"),
        text=text,
        inflate=given.flag("decompress"),
        xattrs=given.flag("xattrs"),
        fail_fast=fail_fast,
        corrupt_column=corrupt if text and not fail_fast else None,
    )
    if not rows.values and text:
        raise ConfigError("noValue and valueFormat contradict each other: there is no value")
    if not rows.inflate and text:
        raise ConfigError("decompress and valueFormat contradict each other: text is unpacked")
    if not rows.inflate and rows.xattrs:
        raise ConfigError("decompress and xattrs contradict each other: attributes are packed too")
    if "columnNameOfCorruptRecord" in given.names and (not rows.corrupt_column):
        raise ConfigError("columnNameOfCorruptRecord is of use with text and mode PERMISSIVE only")
    return rows
