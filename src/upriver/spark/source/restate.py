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
divided into several rows, each for the keys above ``after`` and up to ``until``.

If the branch is left behind while a vbucket is being read, its ``restated`` rows are missing; the
next batch restates the vbucket again.
"""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from ...consumer.topology.cluster_map import vbucket_of
from ...errors import UpriverError
from ...model import Op
from ..functions.fold import RESTATE, RESTATED
from ..options import RowFormat
from .row_schema import arrow_schema
from .task_steps import ReadStep

__all__ = ["Restated", "Restatement"]

#: The bytes of keys in one row; and of a row that is read, which has them as base64 with quotes.
_MOST_KEYS: Final = 1024 * 1024
_MOST_TEXT: Final = 4 * 1024 * 1024
_MAX_VBUCKETS: Final = 1 << 16

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

    def excludes(self, key: bytes) -> bool:
        """Whether a document with this key does not exist at the source."""
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
        except (ValueError, KeyError, TypeError, RecursionError) as problem:
            raise UpriverError(
                f"DCP-BAD-ROW: a row with op restated cannot be read ({problem}); leave the "
                "values of such rows as the source has made them"
            ) from None
        return cls(vbucket, vbuckets, keys, after, until)


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
    _live: dict[_Place, set[bytes]] = field(default_factory=dict)

    def restate(self, changes: pa.RecordBatch) -> pa.RecordBatch:
        """The rows, with those of documents of the vbuckets as ``restate``."""
        vbuckets = pa.array(list(self.steps), pa.int32())
        mine: Any = pc.is_in(changes.column("vbucket"), vbuckets)
        if not pc.any(mine).as_py():
            return changes
        for vbucket, op, scope, collection, key in zip(
            *(
                changes.filter(mine).column(name).to_pylist()
                for name in ("vbucket", "op", "scope", "collection", "key")
            ),
            strict=True,
        ):
            live = self._live.setdefault((vbucket, scope, collection), set())
            live.add(key) if op == Op.MUTATION.value else live.discard(key)
        op = changes.column("op")
        chosen: Any = pc.and_(mine, pc.equal(op, pa.scalar(Op.MUTATION.value)))
        content: Any = pc.if_else(chosen, pa.scalar(RESTATE), op)
        return changes.set_column(changes.schema.get_field_index("op"), "op", content)

    def finished(
        self,
        vbuckets: Collection[int],
        count: int,
        collections: Collection[tuple[str, str]],
    ) -> Iterator[pa.RecordBatch]:
        """The ``restated`` rows of vbuckets that were read completely.

        ``count`` is the number of the bucket's vbuckets, and ``collections`` are all that were
        read, by the names of their scopes and their own.
        """
        schema = arrow_schema(self.rows)
        for vbucket in sorted(vbuckets):
            step = self.steps[vbucket]
            for scope, collection in sorted(collections):
                live = self._live.pop((vbucket, scope, collection), set())
                for part in _parts(vbucket, count, live):
                    text = part.to_json()
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


def _parts(vbucket: int, count: int, live: Collection[bytes]) -> Iterator[Restated]:
    after: bytes | None = None
    keys: list[bytes] = []
    size = 0
    for key in sorted(live):
        if size + len(key) > _MOST_KEYS:
            yield Restated(vbucket, count, frozenset(keys), after, keys[-1])
            after, keys, size = keys[-1], [], 0
        keys.append(key)
        size += len(key)
    yield Restated(vbucket, count, frozenset(keys), after, None)
