"""Filter push-down of batch reads: which vbuckets, seqnos, collections and keys to read.

Spark's filters are AND-ed. The conditions that restrict reading are used. Filters that decide by
themselves which rows are read are Spark's no more, and its plan shows them as pushed; the others
Spark evaluates as well, on the rows that remain.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any, Final

from ...batches.row_conditions import LAST_SEQNO, RowConditions
from .filter_classes import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
)

_LAST_VBUCKET: Final = 2**16 - 1


def conditions_of(filters: Iterable[Filter]) -> RowConditions:
    """The conditions of Spark's filters that restrict what is read."""
    wanted = RowConditions()
    for one in filters:
        wanted = _narrowed(wanted, one)
    return wanted


def _narrowed(wanted: RowConditions, one: Filter) -> RowConditions:
    column: tuple[str, ...] = getattr(one, "attribute", ())
    if len(column) != 1:
        return wanted
    name = column[0].lower()
    if isinstance(one, EqualTo | EqualNullSafe):
        return _one_of(wanted, name, (one.value,))
    if isinstance(one, In):
        return _one_of(wanted, name, one.value)
    if name == "key" and isinstance(one, GreaterThan | GreaterThanOrEqual):
        return replace(wanted, first_key=max(wanted.first_key, _bytes(one.value)))
    if name == "key" and isinstance(one, LessThan | LessThanOrEqual):
        known = () if wanted.last_key is None else (wanted.last_key,)
        return replace(wanted, last_key=min((_bytes(one.value), *known)))
    if name not in ("seqno", "vbucket") or not isinstance(getattr(one, "value", None), int):
        return wanted
    return _range(wanted, name, one)


def _one_of(wanted: RowConditions, name: str, values: Iterable[Any]) -> RowConditions:
    chosen = [value for value in values if value is not None]
    if name == "vbucket":
        return replace(wanted, vbuckets=_both(wanted.vbuckets, chosen))
    if name == "key":
        return replace(wanted, keys=_both(wanted.keys, map(_bytes, chosen)))
    if name == "collection":
        return replace(wanted, collections=_both(wanted.collections, chosen))
    if name == "scope":
        return replace(wanted, scopes=_both(wanted.scopes, chosen))
    if name == "seqno" and chosen:
        after, until = max(wanted.after, min(chosen) - 1), min(wanted.until, max(chosen))
        return replace(wanted, after=after, until=until)
    return wanted


def _range(wanted: RowConditions, name: str, one: Any) -> RowConditions:
    low, high = 0, LAST_SEQNO
    if isinstance(one, GreaterThan):
        low = one.value + 1
    elif isinstance(one, GreaterThanOrEqual):
        low = one.value
    elif isinstance(one, LessThan):
        high = one.value - 1
    elif isinstance(one, LessThanOrEqual):
        high = one.value
    if name == "vbucket":
        chosen = range(max(0, low), min(high, _LAST_VBUCKET) + 1)
        return replace(wanted, vbuckets=_both(wanted.vbuckets, chosen))
    return replace(wanted, after=max(wanted.after, low - 1), until=min(wanted.until, high))


def decides(one: Filter) -> bool:
    """Whether exactly the rows are read that match a filter."""
    name = ".".join(getattr(one, "attribute", ())).lower()
    if name == "vbucket" and isinstance(one, EqualNullSafe | In):
        return True
    return (
        name in ("vbucket", "seqno")
        and isinstance(one, EqualTo | GreaterThan | GreaterThanOrEqual | LessThan | LessThanOrEqual)
        and isinstance(one.value, int)
    )


def _both(before: frozenset[Any] | None, now: Iterable[Any]) -> frozenset[Any]:
    chosen = frozenset(now)
    return chosen if before is None else before & chosen


def _bytes(value: Any) -> bytes:
    return value.encode() if isinstance(value, str) else bytes(value)
