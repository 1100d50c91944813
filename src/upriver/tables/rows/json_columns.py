"""JSON values as columns, in the tasks that read them: what Spark's ``from_json`` would make.

A value that is no JSON object is null in all columns and keeps its bytes apart. A member that does
not fit its type is null in its column and kept as JSON with the others that do not fit (rescued);
in tables that do not rescue, it makes the whole value one that does not fit. As in Spark, a column
of text takes any JSON as its text, a missing member is null, and members without a column are left
out. Dates and timestamps are ISO 8601; one without a zone is UTC.

Columns that follow documents leave nothing out: members that could be a column, and types that
would have to be wider, are reported (`Parsed.seen`); members that cannot be a column are rescued,
also those inside of structs. Of a member that is there several times, the column has the last one,
and all of them are rescued.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from ...errors import ConfigError
from .json_numbers import (
    WrittenNumber,
    as_decimal,
    is_double,
    is_float,
    parse_exact,
    parse_fraction,
    parse_whole,
)
from .json_types import (
    DEPTH,
    SURE,
    VOID,
    Type,
    can_be_column,
    is_empty,
    is_exact,
    merged,
    settled,
    type_of,
)
from .rescued_members import (
    column_text,
    doubled_in,
    has_doubled_members,
    left_over,
    members_of_pairs,
    rescued_text,
)

_Convert = Callable[[Any], Any]
_INTEGERS: Final = {"byte": 8, "short": 16, "integer": 32, "long": 64}
#: A part of a second that a timestamp does not hold.
_TOO_FINE: Final = re.compile(r"[.,][0-9]{6}[0-9]*[1-9]", re.ASCII)
_ARROW_INTEGERS: Final = {8: pa.int8(), 16: pa.int16(), 32: pa.int32(), 64: pa.int64()}

NOT_JSON: Final = "it is no JSON"
TOO_DEEP: Final = "it is nested too deeply"
#: Of a whole number that Python's own parser does not read; `parse_whole` does.
_LONG_NUMBER: Final = "a number in it has too many digits"
NOT_FITTING: Final = "it does not fit the schema"
DOUBLED: Final = "it is there several times"
#: Levels of a value. Far below what ends Python's parser, which depends on who calls it.
_DEEPEST: Final = 200
#: Characters of names of members in a reason.
_MOST_NAMES: Final = 200


class _Misfit(ValueError):
    """A member that does not fit its type."""


@dataclass(slots=True)
class Parsed:
    """What became of some values."""

    #: By name.
    columns: dict[str, Any]
    #: The bytes of values that are no JSON objects.
    corrupt: Any
    #: The members that did not fit, as a JSON object.
    rescued: Any
    #: Why a value does not fit, or null.
    reasons: list[str | None]
    #: By name the types that columns need for these values, where they lack them.
    seen: dict[str, Type] = field(default_factory=dict)


@dataclass(slots=True)
class _Row:
    members: dict[str, Any] = field(default_factory=dict)
    rescued: dict[str, Any] = field(default_factory=dict)
    #: Of what is rescued.
    text: str | None = None
    reason: str | None = None
    is_corrupt: bool = False


class JsonColumns:
    """The columns of one schema."""

    def __init__(
        self,
        types: Mapping[str, Type],
        *,
        rescues: bool = True,
        follows: bool = False,
        to_text: bool = False,
        fixed: Collection[str] = (),
        depth: int = DEPTH,
        full: bool = False,
        sources: Mapping[str, str] | None = None,
    ) -> None:
        #: As far as they are known.
        self._found = types
        self._types = {name: settled(kind) for name, kind in types.items()}
        self._members = {name: _type(kind, name) for name, kind in self._types.items()}
        #: By column the names that lead to its member.
        self._paths = {name: path.split(".") for name, path in (sources or {}).items()}
        self._lower = {name.lower(): name for name in types}
        self._rescues = rescues
        self._follows = follows
        self._to_text = to_text
        self._depth = depth
        #: Whether there are as many columns as there may be.
        self._full = full
        #: Columns whose members can be more than their type has, which no conversion notices.
        self._open = [name for name, kind in types.items() if isinstance(kind, Mapping)]
        #: Columns whose types documents can change.
        self._widens = types.keys() - set(fixed)
        #: Columns of whole numbers, as long as doubles hold them all.
        self._exact = [name for name in self._widens if follows and is_exact(types[name])]
        self.schema = pa.schema([(name, kind) for name, (kind, _) in self._members.items()])

    def parse(
        self,
        values: Any,
        taken: frozenset[str] = frozenset(),
        seen: dict[str, Type] | None = None,
    ) -> Parsed:
        """The columns of values; the names ``taken`` (in lower case) cannot be columns.

        What was ``seen`` before in the same batch goes on.
        """
        if (done := self._parse_plain(values)) is not None:
            return done
        found: dict[str, list[Any]] = {name: [] for name in self._members}
        corrupt: list[bytes | None] = []
        rescued: list[str | None] = []
        reasons: list[str | None] = []
        seen = {} if seen is None else seen
        for value in values.to_pylist():
            row = self._row(value, taken, seen)
            for name, column in found.items():
                column.append(row.members.get(name))
            corrupt.append(value if row.is_corrupt else None)
            rescued.append(row.text)
            reasons.append(row.reason)
        columns = {name: pa.array(column, self._members[name][0]) for name, column in found.items()}
        return Parsed(
            columns, pa.array(corrupt, pa.binary()), pa.array(rescued, pa.string()), reasons, seen
        )

    def _parse_plain(self, values: Any) -> Parsed | None:
        """The same for values whose members have their types as they are, which most have.

        It converts a column at once instead of a value; None if a member needs converting.
        """
        if (
            self._paths
            or self._open
            or not all(kind in _PLAIN for kind, _ in self._members.values())
        ):
            return None
        rows: list[dict[str, Any]] = []
        corrupt: list[bytes | None] = []
        reasons: list[str | None] = []
        has_fractions = any(pa.types.is_floating(kind) for kind, _ in self._members.values())
        decode = _decode_carefully if has_fractions else _decode
        for value in values.to_pylist():
            found, reason = _object_in(value, decode)
            if reason is _LONG_NUMBER:
                return None
            if value is not None and reason is None and self._needs_care(value, found):
                return None
            rows.append(found)
            corrupt.append(value if reason else None)
            reasons.append(reason)
        columns = {}
        for name, (kind, _) in self._members.items():
            members = [row.get(name) for row in rows]
            if not _PLAIN[kind].issuperset(map(type, members)):
                return None
            try:
                columns[name] = pa.array(members, kind)
            except (pa.ArrowInvalid, OverflowError, UnicodeError):  # too large, or no text
                return None
            if name in self._exact and _is_large(columns[name]):
                return None
        none = pa.nulls(len(rows), pa.string())
        return Parsed(columns, pa.array(corrupt, pa.binary()), none, reasons)

    def _needs_care(self, value: bytes, members: dict[str, Any]) -> bool:
        """Whether an object has more than columns take from it."""
        try:
            return (self._follows and not members.keys() <= self._members.keys()) or (
                self._rescues and has_doubled_members(value, members)
            )
        except RecursionError:
            return True

    def _row(self, value: bytes | None, taken: frozenset[str], seen: dict[str, Type]) -> _Row:
        members, reason = _object_in(value, _decode_exactly)
        if reason is not None:
            return _Row(reason=reason, is_corrupt=True)
        new: dict[str, Type] = {}
        try:
            row = self._row_of(members, taken, new)
        except RecursionError:
            return _Row(reason=TOO_DEEP, is_corrupt=True)
        for name, kind in new.items():
            held = seen.get(name, self._found.get(name, VOID))
            wider = merged(held, kind, to_text=self._to_text)
            if name not in self._found or wider != held:
                seen[name] = wider
        return row

    def _row_of(
        self, content: dict[str, Any], taken: frozenset[str], seen: dict[str, Type]
    ) -> _Row:
        row = _Row()
        doubled = {} if not self._rescues else self._doubled(content)
        if self._paths:
            content |= {name: _at(content, path) for name, path in self._paths.items()}
        for name, (_, convert) in self._members.items():
            if (member := content.get(name)) is None:
                continue
            try:
                row.members[name] = convert(member)
            except (_Misfit, OverflowError):
                row.rescued[name] = member
        if row.rescued and not self._rescues:
            return _Row(reason=NOT_FITTING, is_corrupt=True)
        if row.rescued:
            row.reason = f"{_listed(row.rescued)}: {NOT_FITTING}"
        if self._rescues:
            self._rescue_leftovers(content, doubled, row)
        if self._follows:
            self._follow(content, row, taken, seen)
        if row.rescued:
            row.text = rescued_text(row.rescued)
        return row

    def _doubled(self, content: dict[str, Any]) -> dict[str, list[Any]]:
        """By column, or by member without a column, all values of what is there several times."""
        found = {
            name: values
            for name, values in doubled_in(content).items()
            if self._follows or (name in self._members and name not in self._paths)
        }
        for name, path in self._paths.items():
            inside: Any = content
            for one in path:
                if one in (doubled := doubled_in(inside)):
                    found[name] = doubled[one]
                inside = inside.get(one) if isinstance(inside, dict) else None
        return found

    def _rescue_leftovers(
        self, content: dict[str, Any], doubled: Mapping[str, list[Any]], row: _Row
    ) -> None:
        """Rescues what columns do not hold of members that fit."""
        for name in row.members:
            rest = left_over(content[name], self._types[name], follows=self._follows)
            if rest is not None:
                row.rescued[name] = rest
        if doubled:
            row.rescued |= doubled
            row.reason = row.reason or f"{_listed(doubled)}: {DOUBLED}"

    def _follow(
        self, content: dict[str, Any], row: _Row, taken: frozenset[str], seen: dict[str, Type]
    ) -> None:
        for name, member in content.items():
            if member is None or name in self._members:
                continue
            lower = name.lower()
            is_free = lower not in taken and lower not in self._lower
            if self._full or not is_free or not can_be_column(name):
                row.rescued.setdefault(name, member)
                continue
            seen[name] = type_of(member, self._depth)
            if is_empty(seen[name]):  # a history has no column for it yet
                row.rescued.setdefault(name, member)
        for name in (*row.rescued, *self._open, *self._exact):
            if name in self._widens and content.get(name) is not None:
                seen[name] = type_of(content[name], self._depth)


def _is_large(numbers: Any) -> bool:
    """Whether there is one that a double may not hold."""
    bounds: Any = pc.min_max(numbers).as_py()
    return any(bound is not None and abs(bound) > SURE for bound in bounds.values())


def _at(value: Any, path: list[str]) -> Any:
    """The member that a path leads to; None if there is none."""
    for name in path:
        value = value.get(name) if isinstance(value, dict) else None
    return value


def _listed(names: Iterable[str]) -> str:
    """Names of members in the text of a reason; names can have any length and any characters."""
    text = ", ".join(names).encode(errors="backslashreplace").decode()
    return text if len(text) <= _MOST_NAMES else f"{text[:_MOST_NAMES]}..."


def _object_in(
    value: bytes | None, decode: Callable[[str], Any]
) -> tuple[dict[str, Any], str | None]:
    """The members of an object, or why a value is none; no bytes make it raise."""
    if value is None:
        return {}, None
    try:
        found = decode(value.decode())
    except (json.JSONDecodeError, UnicodeDecodeError):
        return {}, NOT_JSON
    except ValueError:
        return {}, _LONG_NUMBER
    except RecursionError:
        return {}, TOO_DEEP
    if value.count(b"[") + value.count(b"{") > _DEEPEST and _is_deep(found):
        return {}, TOO_DEEP
    return (found, None) if isinstance(found, dict) else ({}, NOT_FITTING)


def _is_deep(value: Any) -> bool:
    level = [value]
    for _ in range(_DEEPEST):
        inside = [one.values() if isinstance(one, dict) else one for one in level]
        level = [one for some in inside for one in some if isinstance(one, (dict, list))]
    return bool(level)


def _no(text: str) -> Any:
    raise json.JSONDecodeError(f"{text} is no JSON", text, 0)


_decode: Final = json.JSONDecoder(parse_constant=_no).decode
#: Numbers that no double holds are no plain doubles: their column is not a plain one.
_decode_carefully: Final = json.JSONDecoder(parse_float=parse_exact, parse_constant=_no).decode
_decode_exactly: Final = json.JSONDecoder(
    parse_float=parse_fraction,
    parse_int=parse_whole,
    parse_constant=_no,
    object_pairs_hook=members_of_pairs,
).decode
_NULL: Final = type(None)
#: What members are in Python that become a column of a type as they are.
_PLAIN: Final[dict[pa.DataType, frozenset[type]]] = {
    pa.string(): frozenset({str, _NULL}),
    pa.bool_(): frozenset({bool, _NULL}),
    pa.float64(): frozenset({float, int, _NULL}),
    **{kind: frozenset({int, _NULL}) for kind in _ARROW_INTEGERS.values()},
}


def _type(declared: Any, name: str) -> tuple[pa.DataType, _Convert]:
    if isinstance(declared, Mapping):
        return _nested(declared, name)
    if declared in _INTEGERS:
        bits = _INTEGERS[declared]
        return _ARROW_INTEGERS[bits], _integer(bits)
    if declared.startswith("decimal"):
        precision, scale = map(int, declared[8:-1].split(",")) if "(" in declared else (10, 0)
        return pa.decimal128(precision, scale), _decimal(precision, scale)
    plain: dict[str, tuple[pa.DataType, _Convert]] = {
        "string": (pa.string(), _text),
        "boolean": (pa.bool_(), _boolean),
        "double": (pa.float64(), _fraction(is_double)),
        "float": (pa.float32(), _fraction(is_float)),
        "date": (pa.date32(), _date),
        "timestamp": (pa.timestamp("us", tz="UTC"), _timestamp),
    }
    if declared not in plain:
        raise ConfigError(
            f"valueSchema: the member {name} has the type {declared}, which JSON has not"
        )
    return plain[declared]


def _nested(declared: Mapping[str, Any], name: str) -> tuple[pa.DataType, _Convert]:
    if declared["type"] == "array":
        kind, convert = _type(declared["elementType"], name)
        return pa.list_(kind), lambda value: [
            None if one is None else convert(one) for one in _of(list, value)
        ]
    if declared["type"] == "struct":
        members = {one["name"]: _type(one["type"], one["name"]) for one in declared["fields"]}
        fields = [(one, kind) for one, (kind, _) in members.items()]
        return pa.struct(fields), lambda value: {
            one: None if _of(dict, value).get(one) is None else convert(value[one])
            for one, (_, convert) in members.items()
        }
    if declared["type"] == "map" and declared["keyType"] == "string":
        kind, convert = _type(declared["valueType"], name)
        return pa.map_(pa.string(), kind), lambda value: [
            (_text(key), None if one is None else convert(one))
            for key, one in _of(dict, value).items()
        ]
    raise ConfigError(
        f"valueSchema: the member {name} has a type that JSON has not: {dict(declared)}"
    )


def _of(kind: type, value: Any) -> Any:
    if not isinstance(value, kind):
        raise _Misfit
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str):
        value = column_text(value)
    try:
        value.encode()
    except UnicodeEncodeError:  # half of a surrogate pair, which no text has
        raise _Misfit from None
    return str(value)


def _boolean(value: Any) -> bool:
    if value is True or value is False:
        return bool(value)
    raise _Misfit


def _integer(bits: int) -> _Convert:
    least, most = -(1 << (bits - 1)), (1 << (bits - 1)) - 1

    def convert(value: Any) -> int:
        if type(value) is int and least <= value <= most:
            return value
        raise _Misfit

    return convert


_NO_NUMBERS: Final = ("NaN", "Infinity", "-Infinity", "+INF", "INF", "-INF")


def _fraction(holds: Callable[[WrittenNumber], bool]) -> _Convert:
    def convert(value: Any) -> float:
        if type(value) is int:
            value = parse_fraction(str(value))
        if isinstance(value, WrittenNumber) and holds(value):
            return float(value)
        if value in _NO_NUMBERS:
            return float(value.replace("INF", "Infinity"))
        raise _Misfit

    return convert


def _decimal(precision: int, scale: int) -> _Convert:
    def convert(value: Any) -> Decimal:
        text = value.text if isinstance(value, WrittenNumber) else str(value)
        number = as_decimal(text, precision, scale) if type(value) is not bool else None
        if number is None:
            raise _Misfit
        return number

    return convert


def _date(value: Any) -> date:
    try:
        return date.fromisoformat(_of(str, value))
    except ValueError:
        raise _Misfit from None


def _timestamp(value: Any) -> datetime:
    if _TOO_FINE.search(_of(str, value)):
        raise _Misfit
    try:
        moment = datetime.fromisoformat(value)
    except ValueError:
        raise _Misfit from None
    if moment.tzinfo is None:
        return moment.replace(tzinfo=UTC)
    return moment.astimezone(UTC)  # OverflowError where UTC has no such moment
