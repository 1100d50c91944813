"""Restated vbuckets: a rollback as rows for a sink that keeps no history.

After a rollback a document may have an older version again, which the server does not send a second
time, and a document that only the lost branch had is never mentioned again. A sink that holds only
the newest version of each document cannot undo that from a rollback row. With the option
``onRollback=restate`` the source therefore reads the whole vbucket again, on the branch that is
served now, in one batch. There is no rollback row; these rows come instead:

    restate     a document: write it, whatever version of it there is
    restated    these are all documents of a collection from one key to another: remove any other

Deletions and expirations come as such. A ``restated`` row is complete in itself, so it does not
matter which task gets it: its columns scope and collection name the collection, and its value is
JSON with the vbucket, how many vbuckets the bucket has, and the keys as base64. Long lists are
divided into several rows, each for the keys above ``after`` and up to ``until``, and of one
remainder (`spilled_keys`), so that neither side holds more than a part of them in memory.

A collection that is created in a vbucket, or emptied, is restated there in the same way, because a
collection of its name from before is gone. Its ``restated`` rows have the seqno (``begun``): rows
of the batch with a lower one do not count. Nothing is said of collections that stay dropped: the
stream has only the number of a dropped collection.

If the branch is left behind while a vbucket is being read, its ``restated`` rows are missing; the
next batch restates the vbucket again.
"""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from ..consumer.topology.cluster_map import vbucket_of
from ..errors import UpriverError
from ..model import Op
from .offset_ranges import ReadStep
from .options import RowFormat
from .row_schema import RESTATE, RESTATED, arrow_schema
from .spilled_keys import KeyPart, LiveKeys, remainder

#: The bytes of keys in one row; and of a row that is read, which has them as base64 with quotes.
_MOST_KEYS: Final = 1024 * 1024
_MOST_TEXT: Final = 4 * 1024 * 1024
_MAX_VBUCKETS: Final = 1 << 16

_PLACE: Final = ("vbucket", "scope", "collection")
#: A vbucket, a scope and a collection.
_Place: TypeAlias = tuple[int, str, str]


@dataclass(frozen=True, slots=True)
class Restated:
    """What a ``restated`` row says: the documents of a part of a vbucket's collection."""

    vbucket: int
    #: How many vbuckets the source has: they decide which keys belong to the vbucket.
    vbuckets: int
    keys: frozenset[bytes]
    #: The part of the keys that is covered: above ``after``, up to ``until``; None for all.
    after: bytes | None = None
    until: bytes | None = None
    #: And with this remainder.
    part: int = 0
    parts: int = 1
    #: The seqno at which the collection was created or emptied meanwhile; rows below are dead.
    begun: int = 0
    #: Whether the whole vbucket is restated, and not only a collection that began.
    whole: bool = True

    def excludes(self, key: bytes) -> bool:
        """Whether a document with this key does not exist at the source."""
        if self.parts > 1 and remainder(key, self.parts) != self.part:
            return False
        if self.after is not None and key <= self.after:
            return False
        if self.until is not None and key > self.until:
            return False
        return key not in self.keys and vbucket_of(key, self.vbuckets) == self.vbucket

    def to_json(self) -> str:
        return json.dumps(
            {
                "vbucket": self.vbucket,
                "vbuckets": self.vbuckets,
                "after": _text(self.after),
                "until": _text(self.until),
                "part": self.part,
                "parts": self.parts,
                "begun": self.begun,
                "whole": self.whole,
                "keys": [_text(key) for key in sorted(self.keys)],
            }
        )

    @classmethod
    def of_json(cls, value: bytes | str | None) -> Restated:
        """Reads the value of a row; UpriverError if it is not as the source has made it."""
        try:
            if value is None or len(value) > _MOST_TEXT:
                raise ValueError("it has no value" if value is None else "it is too long")
            content = json.loads(value)
            vbucket, vbuckets = content["vbucket"], content["vbuckets"]
            if type(vbucket) is not int or type(vbuckets) is not int:
                raise ValueError("a number is missing")
            if not 0 <= vbucket < vbuckets <= _MAX_VBUCKETS:
                raise ValueError(f"there is no vbucket {vbucket} of {vbuckets}")
            keys = frozenset(b64decode(key, validate=True) for key in content["keys"])
            after, until = _key(content["after"]), _key(content["until"])
            part, parts, begun = content["part"], content["parts"], content["begun"]
            if {type(part), type(parts), type(begun)} != {int} or not 0 <= part < parts:
                raise ValueError(f"there is no part {part} of {parts}")
        except (ValueError, KeyError, TypeError, RecursionError) as problem:
            raise UpriverError(
                f"DCP-BAD-ROW: a row with op restated cannot be read ({problem}); leave the "
                "values of such rows as the source has made them"
            ) from None
        whole = content["whole"] is True
        return cls(vbucket, vbuckets, keys, after, until, part, parts, begun, whole)


def _text(key: bytes | None) -> str | None:
    return None if key is None else b64encode(key).decode()


def _key(text: str | None) -> bytes | None:
    return None if text is None else b64decode(text, validate=True)


@dataclass(slots=True)
class Restatement:
    """The vbuckets that one task restates: changes the ops of their rows and gathers their keys."""

    rows: RowFormat
    #: By vbucket.
    steps: Mapping[int, ReadStep]
    _live: LiveKeys = field(default_factory=LiveKeys)
    #: Collections that began in a vbucket, and at which seqno.
    _begun: dict[_Place, int] = field(default_factory=dict)
    #: Those of which rows were read.
    _met: set[_Place] = field(default_factory=set)

    def begin(self, vbucket: int, scope: str, collection: str, seqno: int, *, first: bool) -> None:
        """A collection was created or emptied: documents of its name from before are gone.

        ``first``: nothing of the vbucket was read before this batch.
        """
        place = vbucket, scope, collection
        if not first or place in self._met:
            self._begun[place] = seqno
            self._live.forget(place)

    @property
    def has_any(self) -> bool:
        return bool(self.steps or self._begun)

    def _is_mine(self, changes: pa.RecordBatch) -> Any:
        whole = pa.array(list(self.steps), pa.int32())
        mine: Any = pc.is_in(changes.column("vbucket"), whole)
        by_name: dict[tuple[str, str], list[int]] = {}
        for vbucket, *name in self._begun:
            by_name.setdefault((name[0], name[1]), []).append(vbucket)
        for (scope, collection), vbuckets in by_name.items():
            there: Any = pc.is_in(changes.column("vbucket"), pa.array(vbuckets, pa.int32()))
            named: Any = pc.and_(
                pc.equal(changes.column("scope"), pa.scalar(scope)),
                pc.equal(changes.column("collection"), pa.scalar(collection)),
            )
            mine = pc.or_(mine, pc.fill_null(pc.and_(there, named), False))
        return mine

    def restate(self, changes: pa.RecordBatch) -> pa.RecordBatch:
        """The rows, with those of documents of the vbuckets as ``restate``."""
        columns = pa.table({name: changes.column(name) for name in _PLACE})
        places = columns.group_by(list(_PLACE)).aggregate([]).to_pydict()
        self._met.update(zip(*(places[name] for name in _PLACE), strict=True))
        if not self.has_any:
            return changes
        mine = self._is_mine(changes)
        if not pc.any(mine).as_py():
            return changes
        for vbucket, op, scope, collection, key in zip(
            *(
                changes.filter(mine).column(name).to_pylist()
                for name in ("vbucket", "op", "scope", "collection", "key")
            ),
            strict=True,
        ):
            place = vbucket, scope, collection
            self._live.add(place, key, lives=op == Op.MUTATION.value)
        op = changes.column("op")
        chosen: Any = pc.and_(mine, pc.equal(op, pa.scalar(Op.MUTATION.value)))
        content: Any = pc.if_else(chosen, pa.scalar(RESTATE), op)
        return changes.set_column(changes.schema.get_field_index("op"), "op", content)

    def finished(
        self,
        vbuckets: Mapping[int, ReadStep],
        count: int,
        collections: Collection[tuple[str, str]],
    ) -> Iterator[pa.RecordBatch]:
        """The ``restated`` rows of vbuckets that were read completely.

        ``count`` is the number of the bucket's vbuckets, and ``collections`` are all that were
        read, by the names of their scopes and their own.
        """
        schema = arrow_schema(self.rows)
        for vbucket, step in sorted(vbuckets.items()):
            for scope, collection in sorted(collections):
                place = vbucket, scope, collection
                if vbucket not in self.steps and place not in self._begun:
                    continue
                blank = Restated(
                    *(vbucket, count, frozenset()),
                    begun=self._begun.get(place, 0),
                    whole=vbucket in self.steps,
                )
                for part in self._live.take(place):
                    for told in _divided(blank, part):
                        text = told.to_json()
                        row = {
                            "op": RESTATED,
                            "vbucket": vbucket,
                            "seqno": step.end,
                            "branch": step.branch,
                            "value": text if self.rows.text else text.encode(),
                            "scope": scope,
                            "collection": collection,
                        }
                        yield pa.RecordBatch.from_pylist([row], schema=schema)
        self._live.close()


def _divided(blank: Restated, live: KeyPart) -> Iterator[Restated]:
    """A part of the keys in rows that are not too large."""
    blank = replace(blank, part=live.part, parts=live.parts)
    after: bytes | None = None
    keys: list[bytes] = []
    size = 0
    for key in sorted(live.keys):
        if size + len(key) > _MOST_KEYS:
            yield replace(blank, keys=frozenset(keys), after=after, until=keys[-1])
            after, keys, size = keys[-1], [], 0
        keys.append(key)
        size += len(key)
    yield replace(blank, keys=frozenset(keys), after=after)
