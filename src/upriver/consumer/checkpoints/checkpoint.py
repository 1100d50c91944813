"""`Checkpoint`: the positions of a consumer in all vbuckets of a bucket, and its JSON form.

The JSON is meant to be read by people and compared by tools: it has one line for each vbucket, in
order, and equal checkpoints have equal text.

    version         1
    bucket          its name
    bucket_uuid     distinguishes buckets of the same name; empty if the server sends none
    vbuckets        the number of vbuckets of the bucket
    positions       a list of objects: vbucket, and the members of `position_json`;
                    a vbucket that is not listed is at the beginning

Any other content is rejected, because a partial checkpoint would lose changes silently or read them
a second time. A `CheckpointStore` decides where checkpoints are kept; this module does no I/O.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, Final, Protocol, Self

from ...errors import ConfigError
from ...session.stream_position import Position
from ...wire.limits import MAX_NAME
from .position_json import check_position, dump_position, load_members, load_position, parse_json

#: The vbucket field has two bytes in every protocol draft.
MAX_VBUCKETS: Final = 65536

#: Most bytes of JSON. 1000 vbuckets with full failover logs need one hundredth of it.
MAX_CHECKPOINT_SIZE: Final = 64 * 1024 * 1024

_VERSION: Final = 1
_BUCKET_MEMBERS: Final = frozenset({"bucket", "bucket_uuid", "vbuckets"})
_MEMBERS: Final = _BUCKET_MEMBERS | {"version", "positions"}
_BEGINNING: Final = Position()


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """The positions of a consumer of a whole bucket: immutable, and validated on creation."""

    bucket: str
    #: Empty if the server sends none.
    bucket_uuid: str = ""
    #: The number of vbuckets of the bucket.
    vbuckets: int
    #: Positions by vbucket, in order; a vbucket that is missing is at the beginning.
    positions: Mapping[int, Position]

    def __post_init__(self) -> None:
        if not 1 <= len(self.bucket) <= MAX_NAME or not self.bucket.isprintable():
            raise ConfigError(f"bucket: a name has 1 to {MAX_NAME} characters that can be seen")
        if len(self.bucket_uuid) > MAX_NAME or not self.bucket_uuid.isprintable():
            raise ConfigError(f"bucket_uuid: it has at most {MAX_NAME} characters that can be seen")
        if not 1 <= self.vbuckets <= MAX_VBUCKETS:
            raise ConfigError(f"vbuckets: a bucket has 1 to {MAX_VBUCKETS} of them")
        for vbucket, position in self.positions.items():
            self._check_vbucket(vbucket)
            check_position(position, f"vbucket {vbucket}")
        # a missing position means the beginning, so positions at the beginning are removed: equal
        # checkpoints then compare equal
        kept = {
            vbucket: position
            for vbucket, position in sorted(self.positions.items())
            if position != _BEGINNING
        }
        object.__setattr__(self, "positions", MappingProxyType(kept))

    def position(self, vbucket: int) -> Position:
        """The position in one vbucket."""
        self._check_vbucket(vbucket)
        return self.positions.get(vbucket, _BEGINNING)

    def require_same_bucket(self, *, bucket: str, bucket_uuid: str, vbuckets: int) -> None:
        """Raises ConfigError if this checkpoint is of another bucket; an empty uuid fits any."""
        if self.bucket != bucket:
            raise ConfigError(
                f"the checkpoint is of the bucket {self.bucket!r}, not of {bucket!r}; "
                "use another checkpoint for it"
            )
        if self.bucket_uuid and bucket_uuid and self.bucket_uuid != bucket_uuid:
            raise ConfigError(
                f"the checkpoint is of another bucket that was named {bucket!r}: its uuid was "
                f"{self.bucket_uuid}, now it is {bucket_uuid}; its positions mean nothing here"
            )
        if self.vbuckets != vbuckets:
            raise ConfigError(
                f"the checkpoint is of a bucket {bucket!r} with {self.vbuckets} vbuckets; now it "
                f"has {vbuckets}, and its documents are in other ones than before"
            )

    def rewound(self, seqnos: Mapping[int, int] | int) -> Checkpoint:
        """Returns a checkpoint in which no vbucket is above its seqno in ``seqnos``.

        A vbucket above its seqno goes back to its newest boundary at or below it. A number applies
        to all vbuckets; vbuckets that are missing in a mapping keep their positions.
        """
        if isinstance(seqnos, int):
            seqnos = dict.fromkeys(self.positions, seqnos)
        positions = dict(self.positions)
        for vbucket, seqno in seqnos.items():
            if seqno < 0:
                raise ConfigError(f"vbucket {vbucket}: there is no seqno {seqno}")
            position = self.position(vbucket)
            if position.seqno > seqno:
                positions[vbucket] = position.rewound(seqno)
        return replace(self, positions=positions)

    def _check_vbucket(self, vbucket: int) -> None:
        if not 0 <= vbucket < self.vbuckets:
            raise ConfigError(
                f"vbucket {vbucket}: the bucket has only {self.vbuckets}, 0 to {self.vbuckets - 1}"
            )

    # ---- JSON ----------------------------------------------------------------------------

    def to_json(self) -> str:
        """The checkpoint as ASCII JSON, with one line for each vbucket."""
        head = json.dumps({"version": _VERSION, **self._bucket_members()}).removesuffix("}")
        lines = [
            json.dumps({"vbucket": vbucket, **dump_position(position)})
            for vbucket, position in self.positions.items()
        ]
        return f'{head}, "positions": [\n' + ",\n".join(lines) + "\n]}\n"

    @classmethod
    def from_json(cls, text: str | bytes) -> Self:
        """Parses the output of `to_json`; ConfigError names the mistake and the vbucket."""
        if len(text) > MAX_CHECKPOINT_SIZE:
            raise ConfigError(
                f"{len(text)} bytes are no checkpoint; at most {MAX_CHECKPOINT_SIZE} are allowed"
            )
        if not text.strip():
            raise ConfigError("it is empty")
        stored = parse_json(text)
        if not isinstance(stored, dict) or type(stored.get("version")) is not int:
            raise ConfigError("it is no checkpoint: a checkpoint has a version")
        if stored["version"] > _VERSION:
            raise ConfigError(
                f"a later release wrote it: version {stored['version']}, this one knows {_VERSION}"
            )
        if stored["version"] != _VERSION:
            raise ConfigError(f"there is no version {stored['version']} of checkpoints")
        head = load_members(stored, _MEMBERS, "the checkpoint")
        if not isinstance(head["positions"], list):
            raise ConfigError("positions: a list was expected")
        return cls._of_lines({name: head[name] for name in _BUCKET_MEMBERS}, head["positions"])

    def to_lines(self) -> list[str]:
        """One self-contained JSON object for each vbucket, including those at the beginning."""
        bucket = self._bucket_members()
        return [
            json.dumps({**bucket, "vbucket": vbucket, **dump_position(self.position(vbucket))})
            for vbucket in range(self.vbuckets)
        ]

    @classmethod
    def from_lines(cls, lines: list[str]) -> Self:
        """Parses lines of `to_lines`: any subset, in any order, but all of one bucket."""
        bucket: dict[str, Any] = {}
        positions = []
        for number, line in enumerate(lines, 1):
            try:
                stored = parse_json(line)
                if not isinstance(stored, dict):
                    raise ConfigError("an object was expected")
                of = {name: stored.pop(name, None) for name in _BUCKET_MEMBERS}
            except ConfigError as problem:
                raise ConfigError(f"line {number}: {problem}") from None
            bucket = bucket or of
            if of != bucket:
                raise ConfigError(f"line {number} is of another bucket than line 1")
            positions.append(stored)
        if not positions:
            raise ConfigError("there is not a single position")
        return cls._of_lines(bucket, positions)

    def _bucket_members(self) -> dict[str, Any]:
        return {"bucket": self.bucket, "bucket_uuid": self.bucket_uuid, "vbuckets": self.vbuckets}

    @classmethod
    def _of_lines(cls, bucket: dict[str, Any], lines: list[Any]) -> Self:
        for name, kind in (("bucket", str), ("bucket_uuid", str), ("vbuckets", int)):
            if type(bucket[name]) is not kind:
                raise ConfigError(f"{name}: {'text' if kind is str else 'a number'} was expected")
        positions: dict[int, Position] = {}
        for index, line in enumerate(lines):
            vbucket = line.pop("vbucket", None) if isinstance(line, dict) else None
            if type(vbucket) is not int:
                raise ConfigError(f"position {index + 1} of the list has no number of a vbucket")
            if vbucket in positions:
                raise ConfigError(f"vbucket {vbucket}: there are two positions")
            positions[vbucket] = load_position(line, f"vbucket {vbucket}")
        return cls(**bucket, positions=positions)


class CheckpointStore(Protocol):
    """Interface to the place where a consumer keeps its checkpoint.

    An application can implement these two methods to keep checkpoints elsewhere, for example in a
    database.
    """

    def load(self) -> Checkpoint | None:
        """Returns the checkpoint that was saved last; None if none was saved."""

    def save(self, checkpoint: Checkpoint) -> None:
        """Replaces the saved checkpoint. It must be durable when this method returns."""


class MemoryCheckpoint:
    """Keeps a checkpoint in memory only: for tests, and for consumers that run once."""

    def __init__(self, checkpoint: Checkpoint | None = None) -> None:
        self._checkpoint = checkpoint

    def load(self) -> Checkpoint | None:
        return self._checkpoint

    def save(self, checkpoint: Checkpoint) -> None:
        self._checkpoint = checkpoint
