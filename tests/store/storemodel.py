"""The store as a plain dictionary: what a bucket should hold, without any disk.

It keeps the whole state of a vbucket at every seqno, so that going back is looking it up.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

HISTORY_AGE = 1000
PURGE_AGE = 3000
MAX_LOG = 25

#: A document by collection and name, the event of a collection, or a document's prepare.
Path = tuple[int | str, bytes | int]


def prepared(path: Path) -> Path:
    """Where the prepare or the abort of a document is."""
    assert isinstance(path[0], int)
    assert isinstance(path[1], bytes)
    return "prepare", bytes([path[0]]) + path[1]


class Version(NamedTuple):
    """What is at a path: M, D or X for documents, + or - for a collection that came or went.

    P and Q are prepares of a mutation and of a deletion, A is an abort and has the prepare's seqno
    as its value.
    """

    op: str
    seqno: int
    rev: int = 0
    cas: int = 0
    flags: int = 0
    time: int = 0
    value: bytes = b""


def is_live(version: Version | None, now: int) -> bool:
    return version is not None and version.op == "M" and not 0 < version.time <= now


@dataclass
class VBucketModel:
    """One vbucket."""

    active: bool = True
    here: dict[Path, Version] = field(default_factory=dict)
    high: int = 0
    purge: int = 0
    floor: int = 0
    purged_rev: int = 0
    log: list[int] = field(default_factory=lambda: [0])
    snapshot_end: int = 0
    whole_before: int = 0
    states: dict[int, dict[Path, Version]] = field(default_factory=lambda: {0: {}})
    #: The last seqno of each collection, now and at every seqno; nothing takes one away.
    highs: dict[int, int] = field(default_factory=dict)
    highs_at: dict[int, dict[int, int]] = field(default_factory=lambda: {0: {}})
    #: Which seqnos replaced something, and when.
    replaced: list[tuple[int, int]] = field(default_factory=list)
    #: Dropped collections whose documents are still there.
    dropped: dict[int, int] = field(default_factory=dict)
    #: Prepares whose documents cannot be read: another node may have committed them.
    doubted: set[Path] = field(default_factory=set)
    #: By the seqno of an abort, the time of its prepare.
    aborted_at: dict[int, int] = field(default_factory=dict)

    # ---- what clients do -----------------------------------------------------------------

    def write(self, path: Path, version: Version, now: int) -> None:
        completes = version.op in "MDX" and self.is_pending(path)
        if path in self.here or completes:
            self.replaced.append((version.seqno, now))
        self.here = {**self.here, path: version}
        if completes:
            del self.here[prepared(path)]
        if completes or version.op in "PQA":
            self.doubted.discard(prepared(path) if completes else path)
        self.high = version.seqno
        self.states[self.high] = self.here
        if path[0] == "prepare":
            self.highs_at[self.high] = self.highs
            return
        collection = path[1] if path[0] == "event" else path[0]
        assert isinstance(collection, int)
        self.highs = self.highs_at[self.high] = {**self.highs, collection: self.high}
        if version.op == "-":
            assert isinstance(path[1], int)
            self.dropped[path[1]] = version.seqno

    def is_pending(self, path: Path) -> bool:
        """Whether a durable write of a document is under way."""
        return self.pending(path) is not None

    def pending(self, path: Path) -> Version | None:
        version = self.here.get(prepared(path)) if isinstance(path[0], int) else None
        return version if version is not None and version.op in "PQ" else None

    def prepares(self) -> list[tuple[Path, Version]]:
        """The documents with durable writes under way, and these."""
        return [
            ((path[1][0], path[1][1:]), version)
            for path, version in self.here.items()
            if version.op in "PQ" and isinstance(path[1], bytes)
        ]

    def doubt(self) -> None:
        self.doubted = {prepared(path) for path, _ in self.prepares()}

    def next_rev(self, path: Path) -> int:
        old = self.here.get(path)
        return (old.rev if old is not None else self.purged_rev) + 1

    def bury(self, path: Path, op: str, cas: int, now: int) -> None:
        version = Version(op, self.high + 1, self.next_rev(path), cas, 0, now)
        self.write(path, version, now)

    def due(self, now: int, manifest: list[int]) -> list[Path]:
        """The documents whose time has come, in the order of that; dropped ones do not expire."""
        found = [
            (version.time, version.seqno, path)
            for path, version in self.here.items()
            if version.op == "M"
            and 0 < version.time <= now
            and path[0] in (0, *manifest)
            and not self.is_pending(path)
        ]
        return [path for _, _, path in sorted(found, key=lambda one: one[:2])]

    # ---- states --------------------------------------------------------------------------

    def branch(self, seqno: int) -> None:
        self.log = [seqno, *(other for other in self.log if other <= seqno)][:MAX_LOG]

    def promote(self) -> None:
        """Begins a branch at the last whole snapshot; a log without changes begins anew."""
        if self.high:
            self.branch(self.whole())
        else:
            self.log = [0]

    def whole(self) -> int:
        return self.snapshot_end if self.high >= self.snapshot_end else self.whole_before

    def settle(self, seqno: int) -> None:
        self.snapshot_end = self.whole_before = seqno

    def align(self, manifest: list[int], now: int) -> None:
        """Gives an active vbucket the events that it lacks."""
        known = {
            path[1]: version.op == "+" for path, version in self.here.items() if path[0] == "event"
        }
        for collection in sorted(one for one, there in known.items() if there):
            if collection not in manifest:
                self.write(("event", collection), Version("-", self.high + 1), now)
        for collection in manifest:
            if not known.get(collection):
                self.write(("event", collection), Version("+", self.high + 1), now)

    def roll_back(self, seqno: int, manifest: list[int], now: int) -> int:
        if seqno >= self.high:
            return self.high
        if seqno < max(self.floor, self.purge):
            seqno = 0
        if seqno == 0:
            self.states, self.highs_at = {0: {}}, {0: {}}
            self.purge = self.floor = self.purged_rev = 0
            self.replaced = []
            self.dropped = {}
        at = max(other for other in self.states if other <= seqno)
        before = self.here
        self.here = self.states[at]
        self.doubted = {
            prepared(path)
            for path, version in self.prepares()
            if before.get(prepared(path)) != version or prepared(path) in self.doubted
        }
        self.states = {other: state for other, state in self.states.items() if other <= seqno}
        self.states[seqno] = self.here
        self.highs = self.highs_at[max(other for other in self.highs_at if other <= seqno)]
        self.highs_at = {other: highs for other, highs in self.highs_at.items() if other <= seqno}
        self.high = seqno
        self.replaced = [one for one in self.replaced if one[0] <= seqno]
        self.dropped = {one: at for one, at in self.dropped.items() if at <= seqno}
        self.log = [other for other in self.log if other <= seqno] or [seqno]
        self.settle(seqno)
        if self.active:
            self.branch(seqno)
            self.align(manifest, now)
        return seqno

    # ---- maintenance, without expiry -----------------------------------------------------

    def _forget(self, path: Path) -> None:
        """Takes a version out of every state that it is in."""
        version = self.here[path]
        self.here = {other: one for other, one in self.here.items() if other != path}
        for seqno, state in self.states.items():
            if state.get(path) == version:
                self.states[seqno] = {other: one for other, one in state.items() if other != path}

    def compact(self, now: int) -> None:
        for collection, seqno in self.dropped.items():
            gone = [
                path
                for path, version in self.here.items()
                if path[0] == collection and version.seqno < seqno
            ]
            for path in gone:
                self._forget(path)
            if gone:
                self.floor = max(self.floor, seqno)
        self.dropped = {}
        for path, version in list(self.here.items()):
            time = self.aborted_at[version.seqno] if version.op == "A" else version.time
            old = version.op in "DXA" and time <= now - PURGE_AGE
            if old and version.seqno != self.high:
                self._forget(path)
                self.purge = max(self.purge, version.seqno)
                self.purged_rev = max(self.purged_rev, version.rev)
        floor = max(self.floor, self.purge)
        for seqno, written in sorted(self.replaced):
            if seqno > floor and written >= now - HISTORY_AGE:
                break
            self.floor = max(floor, seqno)
            floor = self.floor
        self.replaced = [one for one in self.replaced if one[0] > floor]
