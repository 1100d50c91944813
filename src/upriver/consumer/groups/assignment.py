"""Roster: the members of a group and which vbucket is whose; an immutable value with its JSON.

Every change of owner gives the vbucket a higher generation, so that a vbucket never has two owners
at one generation. A vbucket that is to move keeps its owner, and names the next one, until the
owner has let it go:

    owner ""  ──balanced──> owner A ──balanced──> owner A, next B ──released by A──> owner B
                               │                       │
                               └── A left or is dead ──┴──> owner "", or at once B

`balanced` moves as few vbuckets as possible: it takes only from members that have too many, and
after it the numbers of two members differ by at most one. This module does no I/O and knows no
time.

    version      1
    reads        what the group reads: bucket, bucket_uuid, vbuckets, collections, scope
    lease        seconds after which a silent member is replaced
    generation   the highest generation given so far
    members      their names, in order
    holdings     for each vbucket [owner, generation, next]; members by index, -1 for nobody
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from typing import Any, Final, Self

from ...errors import ConfigError
from ..checkpoints.position_json import load_members, parse_json

_VERSION: Final = 1
#: More members than vbuckets have nothing to read; more than these would make the roster large.
MAX_MEMBERS: Final = 1024
_MAX_GENERATION: Final = 2**63
_MEMBERS: Final = frozenset({"version", "reads", "lease", "generation", "members", "holdings"})
_READS: Final = frozenset({"bucket", "bucket_uuid", "vbuckets", "collections", "scope"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Reads:
    """What all members of a group read."""

    bucket: str
    bucket_uuid: str
    vbuckets: int
    collections: tuple[str, ...] = ()
    scope: str = ""

    def check(self, own: Reads, group: str) -> None:
        """Raises ConfigError if a member would read something else than the group does."""
        for what, theirs, ours in (
            ("the bucket", self.bucket, own.bucket),
            ("the bucket with the uuid", self.bucket_uuid, own.bucket_uuid or self.bucket_uuid),
            ("a bucket with the vbuckets", str(self.vbuckets), str(own.vbuckets)),
            ("the collections", ", ".join(self.collections), ", ".join(own.collections)),
            ("the scope", self.scope, own.scope),
        ):
            if theirs != ours and not (what.endswith("uuid") and not theirs):
                raise ConfigError(
                    f"the group {group!r} reads {what} {theirs or '(all)'}, and this member "
                    f"{ours or '(all)'}; give this member another group"
                )


@dataclass(frozen=True, slots=True)
class Holding:
    """Who has a vbucket, since which generation, and who is to have it next ("" for nobody)."""

    owner: str = ""
    generation: int = 0
    next: str = ""

    @property
    def heir(self) -> str:
        """Who has it, or will have it, if all goes on as planned."""
        return self.next or self.owner


@dataclass(frozen=True, slots=True, kw_only=True)
class Roster:
    """The members of a group and their vbuckets."""

    reads: Reads
    lease: float
    generation: int = 0
    members: tuple[str, ...] = ()
    #: By vbucket.
    holdings: tuple[Holding, ...]

    @classmethod
    def new(cls, reads: Reads, lease: float) -> Self:
        return cls(reads=reads, lease=lease, holdings=(Holding(),) * reads.vbuckets)

    def owned_by(self, member: str) -> dict[int, int]:
        """The vbuckets of a member, with their generations."""
        return {vb: h.generation for vb, h in enumerate(self.holdings) if h.owner == member}

    def leaving(self, member: str) -> frozenset[int]:
        """The vbuckets that a member has and should let go."""
        return frozenset(
            vb
            for vb, h in enumerate(self.holdings)
            if h.owner == member and h.next not in ("", member)
        )

    # ---- changes -------------------------------------------------------------------------

    def joined(self, member: str) -> Roster:
        if member in self.members:
            return self
        if len(self.members) >= MAX_MEMBERS:
            raise ConfigError(f"a group has at most {MAX_MEMBERS} members")
        return replace(self, members=tuple(sorted((*self.members, member))))

    def without(self, members: Collection[str]) -> Roster:
        """Removes members; their vbuckets go to the next owner, or are nobody's."""
        if not set(members) & set(self.members):
            return self

        def left(holding: Holding) -> Holding:
            coming = "" if holding.next in members else holding.next
            if holding.owner in members:
                return replace(holding, owner=coming, next="")
            return replace(holding, next=coming)

        kept = tuple(member for member in self.members if member not in members)
        return replace(self, members=kept)._with(map(left, self.holdings))

    def released(self, member: str, vbuckets: Collection[int]) -> Roster:
        """A member lets vbuckets go: the next owner has them from now on."""
        holdings = list(self.holdings)
        for vbucket in vbuckets:
            if holdings[vbucket].owner == member:
                holdings[vbucket] = replace(
                    holdings[vbucket], owner=holdings[vbucket].next, next=""
                )
        return self._with(holdings)

    def balanced(self) -> Roster:
        """Gives every vbucket to a member, evenly, and moves as few as possible."""
        if not self.members:
            return self
        held: dict[str, list[int]] = {member: [] for member in self.members}
        free: list[int] = []
        for vbucket, holding in enumerate(self.holdings):
            held.get(holding.heir, free).append(vbucket)
        share, rest = divmod(len(self.holdings), len(self.members))
        fullest = sorted(self.members, key=lambda member: (-len(held[member]), member))
        quota = {member: share + (rank < rest) for rank, member in enumerate(fullest)}
        for member, its in held.items():
            # those that have not arrived yet are given away first: nobody reads them here
            its.sort(key=lambda vb: (self.holdings[vb].owner != member, vb))
            while len(its) > quota[member]:
                free.append(its.pop())
        homeless = []
        for vbucket in sorted(free):
            owner = self.holdings[vbucket].owner
            if owner in held and len(held[owner]) < quota[owner]:
                held[owner].append(vbucket)  # it stays where it is after all
            else:
                homeless.append(vbucket)
        for member in self.members:
            while len(held[member]) < quota[member]:
                held[member].append(homeless.pop(0))
        holdings = list(self.holdings)
        for member, its in held.items():
            for vbucket in its:
                holding = holdings[vbucket]
                if not holding.owner:
                    holdings[vbucket] = replace(holding, owner=member, next="")
                else:
                    coming = "" if holding.owner == member else member
                    holdings[vbucket] = replace(holding, next=coming)
        return self._with(holdings)

    def _with(self, holdings: Iterable[Holding]) -> Roster:
        """The roster with other holdings; each new owner gets the next generation."""
        generation = self.generation + 1
        after = []
        for before, holding in zip(self.holdings, holdings, strict=True):
            if holding.owner and holding.owner != before.owner:
                holding = replace(holding, generation=generation)
            after.append(holding)
        given = any(holding.generation == generation for holding in after)
        return replace(
            self,
            holdings=tuple(after),
            generation=generation if given else self.generation,
        )

    # ---- JSON ----------------------------------------------------------------------------

    def to_json(self) -> bytes:
        index = {member: number for number, member in enumerate(self.members)} | {"": -1}
        reads = self.reads
        return json.dumps(
            {
                "version": _VERSION,
                "reads": {
                    "bucket": reads.bucket,
                    "bucket_uuid": reads.bucket_uuid,
                    "vbuckets": reads.vbuckets,
                    "collections": list(reads.collections),
                    "scope": reads.scope,
                },
                "lease": self.lease,
                "generation": self.generation,
                "members": list(self.members),
                "holdings": [
                    [index[holding.owner], holding.generation, index[holding.next]]
                    for holding in self.holdings
                ],
            }
        ).encode()

    @classmethod
    def from_json(cls, text: bytes) -> Self:
        """Parses `to_json`; ConfigError says what is wrong."""
        try:
            return cls._parsed(text)
        except (TypeError, ValueError, KeyError, IndexError) as problem:
            raise ConfigError(f"the roster of the group is damaged: {problem!r}") from None

    @classmethod
    def _parsed(cls, text: bytes) -> Self:
        stored = load_members(parse_json(text), _MEMBERS, "the roster of the group")
        if stored["version"] != _VERSION:
            raise ConfigError(
                f"another release wrote the roster of the group: version {stored['version']!r}, "
                f"this one knows {_VERSION}"
            )
        reads = load_members(stored["reads"], _READS, "the roster of the group, reads")
        members: list[str] = stored["members"]
        named = dict(enumerate(members)) | {-1: ""}
        if len(members) > MAX_MEMBERS or len(stored["holdings"]) != reads["vbuckets"]:
            raise ConfigError("the roster of the group contradicts itself")
        holdings = tuple(
            Holding(named[owner], _number(generation, _MAX_GENERATION), named[following])
            for owner, generation, following in stored["holdings"]
        )
        return cls(
            reads=Reads(**{**reads, "collections": tuple(reads["collections"])}),
            lease=float(stored["lease"]),
            generation=_number(stored["generation"], _MAX_GENERATION),
            members=tuple(members),
            holdings=holdings,
        )


def _number(value: Any, most: int) -> int:
    if type(value) is not int or not 0 <= value < most:
        raise ValueError(f"{value!r} is no number that fits here")
    return value
