"""Converts the rows that the sink writes into edits of documents.

    row                            edit
    cas and rev                    set with metadata, unless the document is newer (as in XDCR)
    checkCas                       replaces the version with the row's CAS; without a CAS, inserts
    otherwise                      written unless the document already has this content
    op restate                     written whatever version there is: the source has lost that one
    op restated                    gathered in `Edits.restated`, for `removed_at_source`
    op deletion or expiration      the same rules, for removing the document
    an expiry in the past          removes the document

A struct, a map or an array as value is written as JSON (`json_values`). Unsigned numbers keep their
bits as Spark's bigint, as in the rows of the source.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import pyarrow as pa

from ...batches.options import WriteOptions
from ...batches.restate import Restated
from ...batches.row_schema import RESTATE, RESTATED, ROLLBACK
from ...consumer.writing.document_checks import shown_key
from ...consumer.writing.version_copies import copied, copied_removal
from ...consumer.writing.write_operations import (
    Edit,
    SteppedEdit,
    checked_removal,
    checked_upsert,
    removal,
    unless_dropped,
    upsert,
)
from ...errors import ConfigError, UpriverError
from ...model import Datatype, Op
from ...settings.all_settings import COLUMN_ROLES
from ...wire.values import inflate
from .json_values import json_texts

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

#: The prefix of the keys of the sink's own documents. Rows with such a key are skipped: a stream
#: that reads the bucket that it writes to would never end, and a copied fence has no meaning.
FENCE_PREFIX: Final = b"_upriver:sink:"

#: The number of rows that are converted to Python objects at a time.
_SLICE: Final = 1024
#: Up to this size every server detects JSON itself; above it, some use the datatype of the request.
_LOOKED_AT: Final = 256 * 1024
_U32_MAX: Final = 2**32 - 1
_U64_MAX: Final = 2**64 - 1
_MICROSECONDS: Final = 1_000_000

_Row: TypeAlias = tuple[Any, ...]
#: Returns the id of a collection, by the names of its scope and of itself.
FindCollection: TypeAlias = Callable[[str, str], int]

_TEXT: Final = frozenset({"string"})
_BYTES: Final = frozenset({"string", "binary"})
_NESTED: Final = frozenset({"struct", "map", "array"})
_WHOLE: Final = frozenset({"tinyint", "smallint", "int", "bigint"})
_TYPES: Final = {
    "key": _BYTES,
    "value": _BYTES | _NESTED,
    "op": _TEXT,
    "expiry": _WHOLE | {"timestamp"},
    "flags": _WHOLE,
    "datatype": _WHOLE,
    "cas": _WHOLE,
    "rev": _WHOLE,
    "scope": _TEXT,
    "collection": _TEXT,
}


def roles_of(options: WriteOptions, schema: StructType) -> dict[str, str]:
    """The columns of a DataFrame by role; `ConfigError` for types that cannot be written."""
    roles = options.columns_in(schema.fieldNames())
    for role, column in roles.items():
        kind = re.split(r"[(<]", schema[column].dataType.simpleString())[0]
        if kind not in _TYPES[role]:
            wanted = " or ".join(sorted(_TYPES[role]))
            raise ConfigError(f"{role}Column: the column {column!r} is {kind}; it must be {wanted}")
    return roles


class Edits:
    """Converts the batches of one task into edits."""

    def __init__(
        self, options: WriteOptions, roles: Mapping[str, str], find: FindCollection
    ) -> None:
        self._roles = roles
        self._check_cas = options.check_cas
        self._overwrite = options.overwrite
        self._skips_dropped = options.create_collections
        self._scope, self._collection = options.collection.split(".")
        self._find = find
        self._ids: dict[tuple[str | None, str | None], int] = {}
        self._now = 0
        #: By collection id, what ``restated`` rows have said.
        self.restated: dict[int, list[Restated]] = {}
        #: How many keys they name.
        self.restated_keys = 0

    def of(self, batch: pa.RecordBatch) -> Iterator[Edit]:
        """The edits of the rows of a batch, in their order."""
        for start in range(0, batch.num_rows, _SLICE):
            self._now = int(time.time())
            for row in zip(*self._cells(batch.slice(start, _SLICE)), strict=True):
                edit = self._edit(row)
                if edit is not None:
                    yield edit

    def _cells(self, batch: pa.RecordBatch) -> list[list[Any]]:
        """The columns in the order of the roles, with nulls for missing ones."""
        nothing = [None] * batch.num_rows
        return [
            _listed(role, batch.column(self._roles[role])) if role in self._roles else nothing
            for role in COLUMN_ROLES
        ]

    def _edit(self, row: _Row) -> Edit | None:
        key, value, op, expiry, flags, datatype, cas, rev, scope, collection = row
        if op == ROLLBACK:
            raise UpriverError(
                "DCP-BAD-ROW: a rollback row cannot be written, because it does not say what the "
                "documents were before; set the source's option onRollback to restate, and start "
                "the query again with the same checkpoint"
            )
        if op == RESTATED:
            place = self._id(b"", scope, collection)
            told = Restated.of_json(value)
            self.restated.setdefault(place, []).append(told)
            self.restated_keys += len(told.keys)
            return None
        if key is None:
            raise UpriverError("DCP-BAD-ROW: a row has no key")
        if isinstance(key, str):
            key = key.encode()
        if key.startswith(FENCE_PREFIX):
            return None
        place = self._id(key, scope, collection)
        cas = _unsigned(cas)
        if op == RESTATE and self._check_cas:
            raise _bad(key, "checkCas contradicts onRollback=restate: a lost version has no CAS")
        if op in (None, Op.MUTATION.value, RESTATE):
            expiry = _expiry(key, expiry)
            details: dict[str, Any] = {
                "collection": place,
                "flags": _within(key, "flags", flags),
                "expiry": expiry,
            }
            value, details["json"] = _body(key, value, datatype)
            if op == RESTATE and cas and rev:
                restored = copied(key, value, cas=cas, rev=_unsigned(rev), restores=True, **details)
                return self._passing(restored)
            return self._writing(key, value, cas, _unsigned(rev), details)
        if op not in (Op.DELETION.value, Op.EXPIRATION.value):
            known = ", ".join(each.value for each in Op)
            raise _bad(key, f"{op!r} is not an op; the ops are {known}")
        if not self._check_cas and cas and rev:
            expired = op == Op.EXPIRATION.value
            return self._passing(
                copied_removal(
                    key,
                    cas=cas,
                    rev=_unsigned(rev),
                    collection=place,
                    expired=expired,
                    overwrite=self._overwrite,
                )
            )
        return self._removing(key, cas, place)

    def _passing(self, edit: SteppedEdit) -> Edit:
        return unless_dropped(edit) if self._skips_dropped else edit

    def _writing(self, key: bytes, value: bytes, cas: int, rev: int, details: Any) -> Edit:
        if not self._check_cas and cas and rev:
            edit = copied(key, value, cas=cas, rev=rev, overwrite=self._overwrite, **details)
            return self._passing(edit)
        if 0 < details["expiry"] <= self._now:
            return self._removing(key, cas, details["collection"])
        if self._check_cas:
            return checked_upsert(key, value, cas=cas, **details)
        return upsert(key, value, **details)

    def _removing(self, key: bytes, cas: int, place: int) -> Edit:
        if not self._check_cas:
            return removal(key, collection=place)
        if not cas:
            raise _bad(key, "with checkCas, a row that removes its document needs a CAS")
        return checked_removal(key, cas=cas, collection=place)

    def _id(self, key: bytes, scope: str | None, collection: str | None) -> int:
        found = self._ids.get((scope, collection))
        if found is None:
            try:
                found = self._find(scope or self._scope, collection or self._collection)
            except ConfigError as problem:
                raise _bad(key, str(problem)) from None
            self._ids[scope, collection] = found
        return found


def _body(key: bytes, value: Any, datatype: int | None) -> tuple[bytes, bool]:
    """The bytes of a value, and whether the request must say that they are JSON."""
    if value is None:
        raise _bad(key, "a mutation needs a value; set op to deletion to remove a document")
    if isinstance(value, ValueError):
        raise _bad(key, str(value))
    body: bytes = value.encode() if isinstance(value, str) else value
    if datatype is None:
        return body, len(body) > _LOOKED_AT and _is_json(body)
    if datatype & ~int(Datatype.JSON | Datatype.SNAPPY):
        raise _bad(key, f"the datatype {datatype} cannot be written; it must be 0 to 3")
    if datatype & Datatype.SNAPPY:
        try:
            body = inflate(body)
        except ValueError as problem:
            raise _bad(key, str(problem)) from None
    return body, len(body) > _LOOKED_AT and bool(datatype & Datatype.JSON)


def _listed(role: str, column: pa.Array[Any]) -> list[Any]:
    if role == "value" and pa.types.is_nested(column.type):
        return json_texts(column)
    if role == "expiry" and pa.types.is_timestamp(column.type):
        moments = column.cast(pa.timestamp("us", tz=column.type.tz)).cast(pa.int64()).to_pylist()
        # never 0, which means no expiry; any time in the past has the same effect
        return [None if at is None else max(1, at // _MICROSECONDS) for at in moments]
    return column.to_pylist()


def _unsigned(number: int | None) -> int:
    return 0 if number is None else number & _U64_MAX


def _within(key: bytes, what: str, number: int | None) -> int:
    if number is None:
        return 0
    if not 0 <= number <= _U32_MAX:
        raise _bad(key, f"{what} {number} is not within 0 to {_U32_MAX}")
    return number


def _expiry(key: bytes, seconds: int | None) -> int:
    if seconds is not None and not 0 <= seconds <= _U32_MAX:
        raise _bad(key, f"the expiry, {seconds} s since 1970, is not within 0 to {_U32_MAX}")
    return seconds or 0


def _is_json(value: bytes) -> bool:
    try:
        json.loads(value)
    except (ValueError, RecursionError):
        return False
    return True


def _bad(key: bytes, problem: str) -> UpriverError:
    # a token to search for, because Spark keeps only the text of an error
    return UpriverError(f"DCP-BAD-ROW key={shown_key(key)}: {problem}")
