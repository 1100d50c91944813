"""What a commit says besides rows: where in the bucket the table is, and what is still to be done.

It is in the ``commitInfo`` of every commit of a pipeline, whole, so that a table can be continued
from its newest commit and nothing else:

    batch     how many batches the table has had
    offset    the complete offset of the source (`offsets`)
    versions  for each vbucket and boundary of the offset, a version of the table that has exactly
              the vbucket's rows at that boundary: what a rollback goes back to
    oldest    versions before this may be gone
    fence     the number of the lease under which the commit was made
    tables    with a table for each collection: the version of each before this batch
    pending   what follows from this commit for other tables, by their names: the actions
    collections  by id the scopes and names of collections that rows were read of: a stream that
              says that one was dropped gives its id only

Offset, versions and collections are compressed: they hardly change from commit to commit.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Self

from ..batches.collection_events import Name
from ..batches.offsets import Offset, SourceIdentity
from ..errors import ConfigError

#: The table of values that do not fit a schema.
DEAD_LETTERS: Final = "_upriver/dead_letters"
_FORMAT: Final = 1
#: Bytes of an offset of 65,536 vbuckets with long lines; more is no state of ours.
_MOST_BYTES: Final = 256 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class TableState:
    """The state that a commit leaves."""

    batch: int = 0
    offset: Offset | None = None
    #: By vbucket and seqno.
    versions: Mapping[int, Mapping[int, int]] = field(default_factory=dict)
    oldest: int = 0
    fence: int = 0
    tables: Mapping[str, int] = field(default_factory=dict)
    pending: Mapping[str, list[dict[str, Any]]] = field(default_factory=dict)
    #: None if it was written by a release that did not note them.
    collections: Mapping[int, Name] | None = field(default_factory=dict)

    def to_text(self) -> str:
        packed: dict[str, Any] = {
            "offset": self.offset.to_dict() if self.offset is not None else None,
            "versions": {
                str(vb): {str(seqno): version for seqno, version in sorted(places.items())}
                for vb, places in sorted(self.versions.items())
                if places
            },
        }
        if self.collections is not None:
            packed["collections"] = {
                str(id_): list(name) for id_, name in sorted(self.collections.items())
            }
        stored = {
            "format": _FORMAT,
            "batch": self.batch,
            "oldest": self.oldest,
            "fence": self.fence,
            "tables": dict(self.tables),
            "pending": dict(self.pending),
            "packed": base64.b64encode(
                zlib.compress(json.dumps(packed, separators=(",", ":")).encode(), 1)
            ).decode(),
        }
        return json.dumps(stored, separators=(",", ":"))

    @classmethod
    def of_text(cls, text: str, table: str) -> Self:
        """ConfigError if it is of a later release or damaged."""
        try:
            stored = json.loads(text)
            if stored["format"] != _FORMAT:
                raise ConfigError(
                    f"{table} was written by a later release of upriver (format "
                    f"{stored['format']}); use that release"
                )
            unpacking = zlib.decompressobj()
            packed = json.loads(
                unpacking.decompress(base64.b64decode(stored["packed"], validate=True), _MOST_BYTES)
            )
            return cls(
                batch=int(stored["batch"]),
                offset=_offset(packed["offset"]),
                versions={
                    int(vb): {int(seqno): int(version) for seqno, version in places.items()}
                    for vb, places in packed["versions"].items()
                },
                oldest=int(stored["oldest"]),
                fence=int(stored["fence"]),
                tables=dict(stored["tables"]),
                pending=dict(stored["pending"]),
                collections=_names(packed.get("collections")),
            )
        except (ValueError, TypeError, KeyError, zlib.error) as problem:
            raise ConfigError(
                f"{table}: the state in its newest commit is damaged ({problem}); make the table "
                "anew"
            ) from None


def _offset(stored: Mapping[str, Any] | None) -> Offset | None:
    if stored is None:
        return None
    source = SourceIdentity(stored["bucket"], stored["bucket_uuid"], int(stored["vbuckets"]))
    return Offset.of_dict(stored, source)


def _names(stored: Mapping[str, Any] | None) -> dict[int, Name] | None:
    if stored is None:
        return None
    return {int(id_): (scope, str(name)) for id_, (scope, name) in stored.items()}


def positions_of(offset: Offset) -> dict[int, tuple[int, int]]:
    """By vbucket its seqno and the vbuuid of its branch."""
    return {vb: (at.seqno, at.vbuuid) for vb, at in sorted(offset.progress.items())}
