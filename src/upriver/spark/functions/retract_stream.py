"""Change rows as rows that take back: for each document its row before a change and after it.

A sum, a count or a join that only adds cannot follow updates, deletions and rollbacks. `retract`
keeps the current row of every document in Spark's state store and puts out what a change takes away
(sign -1) and what it adds (sign 1):

    change                      rows
    a new document              +1 the document
    an update                   -1 the document before, +1 after
    a deletion or expiration    -1 the document before
    a restated document         as an update, if it differs from what was there
    a document that was lost    -1 the document before

So ``sum(sign * amount)`` over all rows is the sum over the documents of the bucket, also after a
failover. It needs rows with ``onRollback=restate`` (see `restate`), so that the state need not hold
older versions. Of a document that changes several times in a batch, only the newest row counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias

from ...batches.row_schema import RESTATE, RESTATED, ROLLBACK
from ...errors import ConfigError, UpriverError
from ...model import Op
from ..runtime.internals import transform_with_state

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

#: The column that says whether a row is taken away (-1) or added (1).
SIGN: Final = "sign"

_PROVIDER: Final = "spark.sql.streaming.stateStore.providerClass"
_ROCKSDB: Final = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
_NEEDED: Final = ("op", "vbucket", "branch", "seqno", "scope", "collection", "key", "value")
_NAME: Final = ("scope", "collection", "key")
#: What is different in a row although its document is the same.
_PLACE: Final = frozenset({"op", "branch", "seqno", "vbuuid"})
_PLAIN: Final = frozenset(
    {"string", "binary", "tinyint", "smallint", "int", "bigint", "boolean", "double", "float"}
)

#: A scope, a collection and a key.
_Name: TypeAlias = tuple[str | None, str | None, bytes]
_Row: TypeAlias = Mapping[str, Any]


class HeldDocuments(Protocol):
    """The current rows of the documents of one vbucket."""

    def get(self, name: _Name) -> _Row | None: ...

    def put(self, name: _Name, row: _Row) -> None: ...

    def remove(self, name: _Name) -> None: ...

    def names(self) -> Iterable[_Name]: ...


def compensated(rows: Iterable[_Row], held: HeldDocuments) -> Iterator[tuple[int, _Row]]:
    """The rows of one vbucket in one batch, in any order, as rows with signs."""
    from ...batches.restate import Restated

    newest: dict[_Name, _Row] = {}
    restated: dict[tuple[str | None, str | None], list[Restated]] = {}
    for row in rows:
        if row["op"] == ROLLBACK:
            raise UpriverError(
                "DCP-BAD-ROW: a rollback row cannot be taken back, because older versions are not "
                "kept; set the source's option onRollback to restate"
            )
        if row["op"] == RESTATED:
            part = Restated.of_json(row["value"])
            restated.setdefault((row["scope"], row["collection"]), []).append(part)
            continue
        name = (row["scope"], row["collection"], bytes(row["key"]))
        known = newest.get(name)
        if known is None or _version(row) > _version(known):
            newest[name] = row
    for name, row in newest.items():
        # a row from before its collection began anew is of a document that is gone
        if all(row["seqno"] >= part.begun for part in restated.get(name[:2], ())):
            yield from _changed(name, row, held)
    gone = [
        name
        for name in (held.names() if restated else ())
        if any(part.excludes(name[2]) for part in restated.get(name[:2], ()))
    ]
    for name in gone:
        before = held.get(name)
        held.remove(name)
        if before is not None:
            yield -1, before


def _changed(name: _Name, row: _Row, held: HeldDocuments) -> Iterator[tuple[int, _Row]]:
    before = held.get(name)
    lives = row["op"] in (Op.MUTATION.value, RESTATE)
    if before is not None and _version(row) <= _version(before):
        return  # what a restated vbucket has covered already
    if lives:
        held.put(name, row)
    elif before is not None:
        held.remove(name)
    if before is not None and lives and _content(before) == _content(row):
        return
    if before is not None:
        yield -1, before
    if lives:
        yield 1, row


def _version(row: _Row) -> tuple[int, int]:
    return row["branch"], row["seqno"]


def _content(row: _Row) -> dict[str, Any]:
    return {column: value for column, value in row.items() if column not in _PLACE}


# ---- in Spark ----------------------------------------------------------------------------


def retract(rows: DataFrame) -> DataFrame:
    """The rows of a stream with ``onRollback=restate`` as rows that take back and add.

    The columns are ``sign``, -1 or 1, and those of ``rows`` without ``op``. Select and parse
    afterwards: ``key`` and ``value`` must be as the source has made them. The state store must be
    RocksDB's, which is in Spark, and the package protobuf must be installed.
    """
    from pyspark.sql import functions as f
    from pyspark.sql.types import IntegerType, StructField, StructType

    _require_usable(rows)
    times = [field.name for field in rows.schema if field.dataType.typeName() == "timestamp"]
    plain = rows.withColumns({name: f.unix_micros(name) for name in times}) if times else rows
    kept = [field for field in plain.schema if field.name != "op"]
    grouped = plain.groupBy("vbucket")
    signed = transform_with_state(
        grouped,
        _processor(StructType([field for field in kept if field.name not in _NAME])),
        StructType([StructField(SIGN, IntegerType()), *kept]),
    )
    if not times:
        return signed
    return signed.withColumns({name: f.timestamp_micros(name) for name in times})


def _require_usable(rows: DataFrame) -> None:
    missing = [name for name in _NEEDED if name not in rows.columns]
    if missing:
        raise ConfigError(f"retract: the rows have no column {missing[0]}; select it too")
    for field in rows.schema:
        kind = field.dataType.simpleString()
        if kind not in _PLAIN | {"timestamp"}:
            raise ConfigError(
                f"retract: the column {field.name} is {kind}; drop it, or parse it afterwards"
            )
    provider = rows.sparkSession.conf.get(_PROVIDER, "")
    if not rows.isStreaming:
        raise ConfigError("retract: the rows are not a stream; fold them (upriver.spark.fold)")
    if "RocksDB" not in (provider or ""):
        raise ConfigError(f"retract: set Spark's {_PROVIDER} to {_ROCKSDB}")


def _processor(schema: StructType) -> Any:
    """The processor of a vbucket's rows; Spark's class is imported only here."""
    from pyspark.sql import Row
    from pyspark.sql.streaming.stateful_processor import StatefulProcessor

    class Retraction(StatefulProcessor):
        def init(self, handle: Any) -> None:
            documents = handle.getMapState(
                "documents", "scope string, collection string, key binary", schema
            )
            self._held = _State(documents, schema.names)

        def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Any:  # noqa: N802, N803
            for sign, row in compensated((row.asDict() for row in rows), self._held):
                kept = {name: value for name, value in row.items() if name != "op"}
                yield Row(**{SIGN: sign, **kept})

        def close(self) -> None:
            pass

    return Retraction()


class _State:
    """A map in Spark's state store as `HeldDocuments`."""

    def __init__(self, documents: Any, columns: list[str]) -> None:
        self._documents = documents
        self._columns = columns

    def get(self, name: _Name) -> _Row | None:
        if not self._documents.containsKey(name):
            return None
        values = tuple(self._documents.getValue(name))
        return {
            **dict(zip(_NAME, name, strict=True)),
            **{
                column: bytes(value) if isinstance(value, bytearray) else value
                for column, value in zip(self._columns, values, strict=True)
            },
        }

    def put(self, name: _Name, row: _Row) -> None:
        self._documents.updateValue(name, tuple(row[column] for column in self._columns))

    def remove(self, name: _Name) -> None:
        self._documents.removeKey(name)

    def names(self) -> Iterable[_Name]:
        found = self._documents.keys()
        return [(scope, collection, bytes(key)) for scope, collection, key in found]
