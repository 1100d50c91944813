"""The rules of a change stream, checked on its lines: what `upriver validate` knows.

Lines are those of ``upriver tail --json``, in their order, or rows of a change log as JSON, in any
order. A line of a change log has a member "branch". Nothing here reads or writes.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from typing import Any, Final

from ..consumer.topology.cluster_map import vbucket_of

_CHANGES: Final = frozenset({"mutation", "deletion", "expiration"})
_U64: Final = 2**64
#: The field of a packet that names a vbucket has 16 bits.
_MAX_VBUCKETS: Final = 2**16
#: Keys of which the newest revision is remembered; more would fill the memory.
MAX_KEYS: Final = 1_000_000


class _Wrong(Exception):
    """A line breaks a rule."""


class StreamRules:
    """Takes one line after the other, and says what is wrong with each."""

    def __init__(self, vbuckets: int | None = None) -> None:
        """``vbuckets`` is how many the bucket has, to check that keys are in the right ones."""
        self._vbuckets = vbuckets
        #: By vbucket: the last seqno, and whether its stream has ended.
        self._seqnos: dict[int, int] = {}
        self._ended: set[int] = set()
        self._is_over = False
        #: The newest revision of a key with its seqno, by vbucket and key.
        self._revisions: dict[tuple[int, str], tuple[int, int]] = {}
        #: Of change logs: the keys of rows by vbucket, branch and seqno; where branches begin.
        self._rows: dict[tuple[int, int, int], str] = {}
        self._begins: dict[tuple[int, int], int] = {}
        self._lowest: dict[tuple[int, int], int] = {}
        #: How many lines there were of each type.
        self.counts: Counter[str] = Counter()

    def take(self, line: str) -> Iterator[str]:
        """Takes a line; yields what is wrong with it."""
        try:
            self._take(_parsed(line))
        except _Wrong as wrong:
            yield str(wrong)

    def end(self) -> Iterator[str]:
        """Yields what is wrong with all lines together."""
        for (vbucket, branch), seqno in sorted(self._begins.items()):
            lowest = self._lowest.get((vbucket, branch))
            if lowest is not None and lowest <= seqno:
                yield (
                    f"vbucket {vbucket}: branch {branch} begins after seqno {seqno}, and has a row "
                    f"at {lowest}"
                )

    def _take(self, record: dict[str, Any]) -> None:
        kind = record.get("type", record.get("op"))
        if kind not in (*_CHANGES, "rollback", "flush", "end"):
            raise _Wrong(f"{kind!r} is no type of a line")
        self.counts[kind] += 1
        if "branch" in record:
            self._take_row(kind, record)
            return
        if self._is_over:
            raise _Wrong("a line follows the end of everything")
        if kind == "end":
            self._take_end(record)
            return
        vbucket = _number(record, "vbucket", _MAX_VBUCKETS)
        if vbucket in self._ended:
            raise _Wrong(f"vbucket {vbucket}: a line follows the end of its stream")
        if kind == "rollback":
            self._take_rollback(vbucket, record)
        elif kind == "flush":
            self._forget(vbucket, 0)
        else:
            self._take_change(vbucket, record)

    # ---- what tail prints ----------------------------------------------------------------

    def _take_change(self, vbucket: int, record: dict[str, Any]) -> None:
        seqno, key = _number(record, "seqno"), self._key(vbucket, record)
        before = self._seqnos.get(vbucket, 0)
        if seqno <= before:
            raise _Wrong(f"vbucket {vbucket}: seqno {seqno} follows {before}; seqnos must rise")
        self._seqnos[vbucket] = seqno
        rev = _number(record, "rev")
        known = self._revisions.get((vbucket, key))
        if known is not None or len(self._revisions) < MAX_KEYS:
            self._revisions[vbucket, key] = (seqno, rev)
        if known is not None and rev <= known[1]:
            raise _Wrong(
                f"vbucket {vbucket}: {key!r} has revision {rev} at seqno {seqno} and had "
                f"{known[1]} at {known[0]}; revisions of a key must rise"
            )

    def _take_rollback(self, vbucket: int, record: dict[str, Any]) -> None:
        start, to = _number(record, "from_seqno"), _number(record, "to_seqno")
        last = self._seqnos.get(vbucket, 0)
        self._forget(vbucket, to)
        if to > start:
            raise _Wrong(f"vbucket {vbucket}: a rollback goes up, from {start} to {to}")
        if start < last:
            raise _Wrong(f"vbucket {vbucket}: a rollback is from {start}, and {last} was printed")

    def _forget(self, vbucket: int, above: int) -> None:
        self._seqnos[vbucket] = min(self._seqnos.get(vbucket, 0), above)
        gone = [
            place
            for place, (seqno, _) in self._revisions.items()
            if place[0] == vbucket and seqno > above
        ]
        for place in gone:
            del self._revisions[place]

    def _take_end(self, record: dict[str, Any]) -> None:
        if record.get("vbucket") is not None:
            self._ended.add(_number(record, "vbucket", _MAX_VBUCKETS))
            return
        self._is_over = True
        stated, counted = _number(record, "changes"), sum(self.counts[kind] for kind in _CHANGES)
        if stated != counted:
            raise _Wrong(f"the end counts {stated} changes, and there are {counted}")

    # ---- rows of a change log ------------------------------------------------------------

    def _take_row(self, kind: str, record: dict[str, Any]) -> None:
        vbucket = _number(record, "vbucket", _MAX_VBUCKETS)
        seqno, branch = _number(record, "seqno"), _number(record, "branch")
        if kind == "rollback":
            known = self._begins.setdefault((vbucket, branch), seqno)
            if known != seqno:
                raise _Wrong(
                    f"vbucket {vbucket}: branch {branch} begins after seqno {seqno} and {known}"
                )
            return
        key = self._key(vbucket, record)
        self._lowest[vbucket, branch] = min(seqno, self._lowest.get((vbucket, branch), seqno))
        other = self._rows.get((vbucket, branch, seqno))
        if other is not None:
            raise _Wrong(
                f"vbucket {vbucket}: seqno {seqno} of branch {branch} is there twice, for {other!r}"
                f" and {key!r}"
            )
        if len(self._rows) < MAX_KEYS:
            self._rows[vbucket, branch, seqno] = key

    def _key(self, vbucket: int, record: dict[str, Any]) -> str:
        key = record.get("key")
        if not isinstance(key, str):
            raise _Wrong(f"vbucket {vbucket}: a change has no key")
        form = record.get("key_format", "base64" if "branch" in record else "text")
        if self._vbuckets is not None and form == "text":
            right = vbucket_of(key.encode(), self._vbuckets)
            if right != vbucket:
                raise _Wrong(f"{key!r} is in vbucket {vbucket}; of {self._vbuckets} it is {right}")
        return f"{record.get('collection', '')}/{key}"


def _parsed(line: str) -> dict[str, Any]:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as problem:
        raise _Wrong(f"it is no JSON: {problem}") from None
    if not isinstance(record, dict):
        raise _Wrong("it is no JSON object")
    return record


def _number(record: dict[str, Any], name: str, limit: int = _U64) -> int:
    found = record.get(name)
    if not isinstance(found, int) or isinstance(found, bool) or not 0 <= found < limit:
        raise _Wrong(f"its {name} is {found!r}, and no number from 0 to {limit - 1}")
    return found
