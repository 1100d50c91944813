"""The offset of a micro-batch: where every vbucket is, how it got there, and where it could return.

Spark stores an offset as JSON and compares it as text. Ours is one object:

    format          1
    bucket          the bucket's name
    bucket_uuid     its identity, or "" if the server has none
    vbuckets        how many vbuckets it has
    at              {"7": "1042 b2 c0ffee@900,beef -12+15 -130~9 rollback", ...}

A vbucket that was never read is left out. The others are one line each, of these words:

    1042            the seqno at which the newest step ended: the offset proper
    b2              the branch number of the rows of that step (left out: 0)
    c0ffee@900,...  the branches of the history that was read, newest first: vbuuid in hex, and the
                    seqno at which it began (left out: 0)
    -12+15          the newest boundary, where the newest step began, is 12 below its end; after it
                    had been read, the vbucket's high seqno was 15 above it (left out: at the end);
                    -0+15 where the end is a boundary already, because it is known which snapshots
                    were seen
    -130~9          the next older boundary is 130 below the end, and its high seqno was 9 lower
    from:40         the reader holds nothing up to here, because it was set to start here (not 0)
    purge:900       the purge seqno that was in force when reading began at 0, until that is passed
    rollback        the newest step begins with a rollback row for the seqno at which it begins

So an offset is the whole plan of the batch that ends at it, and a replay asks for the same again.
Numbers are exact up to 64 bits, and equal offsets have equal texts. Nothing here knows Spark.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import pairwise
from typing import Any, Final

from ..errors import ConfigError
from ..model import NO_END, FailoverEntry, FailoverLog, Snapshot, StreamOffset
from ..session.stream_position import Position

_FORMAT: Final = 1

#: Boundaries of all vbuckets together: more would not fit an offset into 100 KiB, fewer go back
#: further than needed. Each of 1024 vbuckets has 5; those of smaller buckets have more.
_ALL_BOUNDARIES: Final = 5 * 1024
_LEAST_BOUNDARIES: Final = 5
_MOST_BOUNDARIES: Final = 32
#: The branch that is read, and the one before it: enough for a failover in the middle of another.
MAX_BRANCHES: Final = 2
#: A boundary may go if its neighbours' distances from the newest differ by at most this factor.
_SPACING: Final = 32
#: The field of a packet that names a vbucket has 16 bits.
_MAX_VBUCKETS: Final = 2**16

_MEMBERS: Final = frozenset({"format", "bucket", "bucket_uuid", "vbuckets", "at"})
_LINE: Final = re.compile(
    r"(?P<seqno>\d{1,20})(?: b(?P<branch>\d{1,20}))?"
    r" (?P<log>[0-9a-f]{1,16}(?:@\d{1,20})?(?:,[0-9a-f]{1,16}(?:@\d{1,20})?){0,9})"
    r"(?: -(?P<back>\d{1,20})(?:\+(?P<over>\d{1,20}))?(?P<older>(?: -\d{1,20}~\d{1,20}){0,99}))?"
    r"(?: from:(?P<origin>\d{1,20}))?(?: purge:(?P<purge>\d{1,20}))?(?P<rollback> rollback)?",
    re.ASCII,
)
_NAME: Final = re.compile(r"0|[1-9]\d{0,4}", re.ASCII)
_NEW_START: Final = "start the query with a new checkpoint location"


@dataclass(frozen=True, slots=True)
class SourceIdentity:
    """Which history of changes offsets belong to; those of another one mean nothing here."""

    bucket: str
    bucket_uuid: str
    vbuckets: int

    def __post_init__(self) -> None:
        if not 1 <= self.vbuckets <= _MAX_VBUCKETS:
            raise ConfigError(f"a bucket has 1 to {_MAX_VBUCKETS} vbuckets, not {self.vbuckets}")


@dataclass(frozen=True, slots=True)
class Boundary:
    """A seqno up to which everything was read, and a bound of every snapshot seen up to there.

    ``bound`` is a high seqno that was sampled after the reading, or the highest end of a snapshot
    that was seen, so a newer version that hid one of the changes up to ``seqno`` is not above it.
    `NO_END` if nobody can tell: then it is no place to go back to from another branch.
    """

    seqno: int
    bound: int


@dataclass(frozen=True, slots=True)
class VBucketProgress:
    """One vbucket in an offset: what is held of it, and the step that led there."""

    #: Where the newest step ends.
    seqno: int = 0
    #: Grows with every rollback.
    branch: int = 0
    #: The branches of the history that is read, newest first; empty if it was never read.
    log: FailoverLog = field(default_factory=lambda: FailoverLog(()))
    #: Seqnos and bounds rise; the newest is where the newest step begins.
    boundaries: tuple[Boundary, ...] = ()
    #: The reader holds nothing up to here: a boundary that cannot be wrong.
    origin: int = 0
    #: The purge seqno that was in force when reading began at 0, while that matters.
    purge_seqno: int = 0
    #: Whether the newest step begins with a rollback row.
    rolled_back: bool = False
    #: Its line, once somebody has asked: most vbuckets of two offsets are the same.
    _line: str = field(default="", init=False, repr=False, compare=False)

    @property
    def vbuuid(self) -> int:
        return self.log.newest.vbuuid if len(self.log) else 0

    @property
    def start(self) -> int:
        """Where the newest step begins; where it ends too, if there was nothing to read."""
        return self.boundaries[-1].seqno if self.boundaries else self.origin

    @property
    def request(self) -> StreamOffset:
        """What the newest step asks the producer for: an honest claim of the snapshots seen."""
        if not self.boundaries:
            return StreamOffset.at(self.vbuuid, self.origin)
        newest = self.boundaries[-1]
        if newest.bound == NO_END:  # the step keeps to its branch, and claims nothing
            return StreamOffset.at(self.vbuuid, newest.seqno)
        before = self.boundaries[-2].seqno if len(self.boundaries) > 1 else self.origin
        return StreamOffset(self.vbuuid, newest.seqno, Snapshot(before, newest.bound))

    @property
    def end_position(self) -> Position:
        """Where the newest step ends, for a consumer that keeps to the branch."""
        boundaries = (self.seqno,) if self.seqno else ()
        return Position(StreamOffset.at(self.vbuuid, self.seqno), self.log, boundaries)

    def line(self) -> str:
        if not self._line:
            object.__setattr__(self, "_line", self._written())
        return self._line

    def _written(self) -> str:
        words = [str(self.seqno)]
        if self.branch:
            words.append(f"b{self.branch}")
        words.append(",".join(map(_branch_word, self.log)))
        if self.boundaries:
            newest = self.boundaries[-1]
            over = "" if newest.bound == self.seqno else f"+{newest.bound - newest.seqno}"
            words.append(f"-{self.seqno - newest.seqno}{over}")
        words += [
            f"-{self.seqno - older.seqno}~{newer.bound - older.bound}"
            for older, newer in reversed(list(pairwise(self.boundaries)))
        ]
        if self.origin:
            words.append(f"from:{self.origin}")
        if self.purge_seqno:
            words.append(f"purge:{self.purge_seqno}")
        if self.rolled_back:
            words.append("rollback")
        return " ".join(words)

    @classmethod
    def of_line(cls, line: str) -> VBucketProgress:
        """The progress of such a line; ValueError says what is wrong with it."""
        match = _LINE.fullmatch(line)
        if match is None:
            raise ValueError("it is no line of an offset")
        pairs = [word.partition("@") for word in match["log"].split(",")]
        entries = (FailoverEntry(int(vbuuid, 16), int(began or 0)) for vbuuid, _, began in pairs)
        progress = cls(
            seqno=int(match["seqno"]),
            branch=int(match["branch"] or 0),
            log=FailoverLog(tuple(entries)),
            boundaries=_boundaries(match),
            origin=int(match["origin"] or 0),
            purge_seqno=int(match["purge"] or 0),
            rolled_back=match["rollback"] is not None,
        )
        progress._check()
        if progress.line() != line:
            raise ValueError("its numbers are not written as they should be")
        return progress

    def _check(self) -> None:
        numbers = [self.seqno, self.branch, self.origin, self.purge_seqno]
        numbers += [boundary.bound for boundary in self.boundaries]
        numbers += [entry.seqno for entry in self.log]
        if max(numbers) > NO_END:
            raise ValueError("a number does not fit 64 bits")
        if any(newer.seqno < older.seqno for newer, older in pairwise(self.log)):
            raise ValueError("a branch begins above a newer one")
        places = [self.origin, *(boundary.seqno for boundary in self.boundaries)]
        if any(below >= above for below, above in pairwise(places)):
            raise ValueError("its boundaries do not rise")
        if any(not b.seqno <= b.bound for b in self.boundaries):
            raise ValueError("a high seqno is below its boundary")
        if places[-1] > self.seqno:
            raise ValueError("a boundary is above its seqno")


def _branch_word(entry: FailoverEntry) -> str:
    return f"{entry.vbuuid:x}@{entry.seqno}" if entry.seqno else f"{entry.vbuuid:x}"


def _boundaries(match: re.Match[str]) -> tuple[Boundary, ...]:
    if match["back"] is None:
        return ()
    end = int(match["seqno"])
    seqno = end - int(match["back"])
    bound = seqno + int(match["over"]) if match["over"] else end
    found = [Boundary(seqno, bound)]
    for word in match["older"].split():
        back, lower = word[1:].split("~")
        bound -= int(lower)
        found.append(Boundary(end - int(back), bound))
    return tuple(reversed(found))


#: Spark gives every offset back several times, and most lines of two offsets are the same.
_progress_of: Final = lru_cache(maxsize=4096)(VBucketProgress.of_line)

UNTOUCHED: Final = VBucketProgress()


@dataclass(frozen=True, slots=True)
class Offset:
    """Where every vbucket of a bucket is; one that is not listed was never read."""

    source: SourceIdentity
    progress: Mapping[int, VBucketProgress] = field(default_factory=dict)

    def at(self, vbucket: int) -> VBucketProgress:
        return self.progress.get(vbucket, UNTOUCHED)

    def to_dict(self) -> dict[str, Any]:
        return {
            "format": _FORMAT,
            "bucket": self.source.bucket,
            "bucket_uuid": self.source.bucket_uuid,
            "vbuckets": self.source.vbuckets,
            "at": {
                str(vbucket): self.progress[vbucket].line() for vbucket in sorted(self.progress)
            },
        }

    @classmethod
    def of_dict(cls, stored: object, source: SourceIdentity) -> Offset | None:
        """The offset that Spark gives back, or None for ``{}``: nothing was decided yet.

        ConfigError if it is damaged, or of another source, or of a later release.
        """
        if stored == {}:
            return None
        if not isinstance(stored, dict) or "format" not in stored:
            raise _damaged("it is no offset of this source")
        found = stored["format"]
        if isinstance(found, int) and found > _FORMAT:
            raise ConfigError(
                f"the checkpoint has offsets of format {found}, written by a later release;"
                f" this one knows format {_FORMAT}: use that release, or {_NEW_START}"
            )
        if found != _FORMAT or isinstance(found, bool):
            raise _damaged(f"its format is {found!r}")
        if stored.keys() != _MEMBERS:
            raise _damaged(f"its members are {', '.join(sorted(map(str, stored)))}")
        _check_source(stored, source)
        if not isinstance(stored["at"], dict):
            raise _damaged("its vbuckets are no object")
        if len(stored["at"]) > source.vbuckets:
            raise _damaged(f"it has more than {source.vbuckets} vbuckets")
        return cls(source, dict(_vbuckets(stored["at"], source.vbuckets)))


def _check_source(stored: Mapping[str, Any], source: SourceIdentity) -> None:
    for member, mine in (
        ("bucket", source.bucket),
        ("bucket_uuid", source.bucket_uuid),
        ("vbuckets", source.vbuckets),
    ):
        theirs = stored[member]
        if theirs != mine or type(theirs) is not type(mine):
            raise ConfigError(
                f"the checkpoint belongs to another source: its {member} is {theirs!r} and here it"
                f" is {mine!r}; read the source that it belongs to, or {_NEW_START}"
            )


def _vbuckets(lines: Mapping[Any, Any], count: int) -> list[tuple[int, VBucketProgress]]:
    found = []
    for name, line in lines.items():
        if not (isinstance(name, str) and _NAME.fullmatch(name)):
            raise _damaged(f"{name!r} is no vbucket")
        vbucket = int(name)
        if vbucket >= count:
            raise _damaged(f"vbucket {vbucket} is not one of {count}")
        try:
            found.append((vbucket, _progress_of(line if isinstance(line, str) else "")))
        except ValueError as problem:
            raise _damaged(f"vbucket {vbucket}: {problem}") from None
    return sorted(found, key=lambda pair: pair[0])


def _damaged(problem: str) -> ConfigError:
    return ConfigError(f"the checkpoint's offset is damaged: {problem}; {_NEW_START}")


def most_boundaries(vbuckets: int) -> int:
    """How many boundaries are kept of each vbucket, so that an offset stays small."""
    return min(_MOST_BOUNDARIES, max(_LEAST_BOUNDARIES, _ALL_BOUNDARIES // vbuckets))


def thinned(boundaries: Sequence[Boundary], most: int) -> tuple[Boundary, ...]:
    """At most so many of them: the two newest, and ever sparser ones before.

    Every boundary is right by itself, so any of them may go: fewer only mean that a rollback goes
    back further. What a failover leaves is derived from the bounds, so they are what is spread. The
    one goes first that is closest to its neighbours, as seen from the newest; the oldest if all are
    far apart; and any older one with the bound of a newer one, since it could never be the better
    choice.
    """
    kept = [older for older, newer in pairwise(boundaries) if older.bound < newer.bound]
    kept += boundaries[-1:]
    while len(kept) > most:
        newest = kept[-1].bound
        factors = [
            ((newest - kept[i - 1].bound) / (newest - kept[i + 1].bound), i)
            for i in range(len(kept) - 3, 0, -1)
        ]
        factor, index = min(factors, default=(_SPACING + 1.0, 0))
        del kept[index if factor <= _SPACING else 0]
    return tuple(kept)
