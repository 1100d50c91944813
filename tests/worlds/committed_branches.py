"""What really happened: the changes of every branch of every vbucket, as they reached a disk.

`Histories` sees each batch that a node writes. It keeps, per branch (vbuuid), the changes that an
active copy committed on it, and of what it held before. The oracles compare what clients and
readers were told with this.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from upriver.model import Op, VBucketState
from upriver.store.rocksdb import Batch
from upriver.store.vbucket import Standing, load
from upriver.wire import canonical
from upriver.wire.canonical import CanonicalChange
from upriver.wire.stored_prepares import is_hidden


class Violation(AssertionError):
    """A guarantee did not hold. ``rule`` is its name."""

    def __init__(self, rule: str, text: str) -> None:
        super().__init__(rule, text)  # both, so that it can be sent from another process
        self.rule = rule
        self.text = text

    def __str__(self) -> str:
        return f"{self.rule}: {self.text}"


class Version(NamedTuple):
    """One change of a document; ``value`` is None if it was deleted or expired."""

    key: bytes
    value: bytes | None
    cas: int
    rev: int


@dataclass(slots=True)
class Branch:
    """The changes of one branch of a vbucket, by seqno, including what it was based on."""

    vbuuid: int
    changes: dict[int, Version] = field(default_factory=dict)

    def newest(self, upto: int) -> dict[bytes, int]:
        """The seqno of the newest version of each key up to a seqno."""
        found: dict[bytes, int] = {}
        for seqno in sorted(self.changes):
            if seqno > upto:
                break
            found[self.changes[seqno].key] = seqno
        return found


@dataclass(slots=True)
class _Copy:
    """A node's copy of a vbucket."""

    state: VBucketState = VBucketState.DEAD
    vbuuid: int = 0
    changes: dict[int, Version] = field(default_factory=dict)


class Histories:
    """Everything that was ever committed."""

    def __init__(self) -> None:
        self._copies: dict[tuple[str, int], _Copy] = {}
        self.branches: dict[tuple[int, int], Branch] = {}
        #: How many changes were committed.
        self.committed = 0
        #: Called with a vbucket and a node whose copy becomes active, is flushed while it is
        #: active, or commits a change.
        self.on_promotion: Callable[[int, str], None] = lambda vbucket, node: None
        self.on_flush: Callable[[int, str], None] = lambda vbucket, node: None
        self.on_commit: Callable[[int, str], None] = lambda vbucket, node: None

    def saw(self, node: str, batch: Batch) -> None:
        """Notes a batch that a node has written."""
        for vbucket, raw in _standings(batch):
            self._saw_standing(node, vbucket, raw)
        for change in _changes(batch):
            self._saw_change(node, change)

    def emptied(self, node: str) -> None:
        """Notes that a node has another, empty disk."""
        for name, vbucket in list(self._copies):
            if name == node:
                del self._copies[name, vbucket]

    def reloaded(self, node: str, batch: Batch) -> None:
        """Notes that a power failure left a node with the entries in ``batch``.

        It may have taken back a whole branch: a failover and the changes after it.
        """
        self.emptied(node)
        for vbucket, raw in _standings(batch):
            standing, _ = load(raw)
            copy = self._copy(node, vbucket)
            copy.state, copy.vbuuid = standing.state, standing.failover.newest.vbuuid
        for change in _changes(batch):
            self._copy(node, change.vbucket).changes[change.seqno] = _version(change)

    def branch(self, vbucket: int, vbuuid: int) -> Branch | None:
        return self.branches.get((vbucket, vbuuid))

    def _copy(self, node: str, vbucket: int) -> _Copy:
        return self._copies.setdefault((node, vbucket), _Copy())

    def _saw_standing(self, node: str, vbucket: int, raw: bytes) -> None:
        standing, progress = load(raw)
        copy = self._copy(node, vbucket)
        newest = standing.failover.newest.vbuuid
        if any(seqno > progress.high for seqno in copy.changes):
            copy.changes = {s: v for s, v in copy.changes.items() if s <= progress.high}
        if standing.state is VBucketState.ACTIVE and copy.state is not VBucketState.ACTIVE:
            self.on_promotion(vbucket, node)
        elif standing.state is VBucketState.ACTIVE and _is_flushed(standing, copy.vbuuid):
            self.on_flush(vbucket, node)
            copy.changes = {}
        copy.state, copy.vbuuid = standing.state, newest
        if standing.state is VBucketState.ACTIVE and (vbucket, newest) not in self.branches:
            self.branches[vbucket, newest] = Branch(newest, self._base(vbucket, standing, copy))

    def _base(self, vbucket: int, standing: Standing, copy: _Copy) -> dict[int, Version]:
        """What a new branch is based on: what its copy has, and what was replaced before it came.

        A replica is not sent versions that newer ones have replaced. Readers may have them.
        """
        entries = standing.failover.entries
        before = self.branch(vbucket, entries[1].vbuuid) if len(entries) > 1 else None
        shared = {} if before is None else before.changes
        return {s: v for s, v in shared.items() if s <= entries[0].seqno} | copy.changes

    def _saw_change(self, node: str, change: CanonicalChange) -> None:
        copy = self._copy(node, change.vbucket)
        version = _version(change)
        copy.changes[change.seqno] = version
        if copy.state is not VBucketState.ACTIVE:
            return
        self.committed += 1
        branch = self.branches.setdefault(
            (change.vbucket, copy.vbuuid), Branch(copy.vbuuid, dict(copy.changes))
        )
        known = branch.changes.get(change.seqno)
        if known is not None and known != version:
            raise Violation(
                "one history per branch",
                f"vbucket {change.vbucket}: branch {copy.vbuuid:x} has {known} at seqno "
                f"{change.seqno}, and {node} commits {version} there",
            )
        branch.changes[change.seqno] = version
        self.on_commit(change.vbucket, node)


def _standings(batch: Batch) -> Iterator[tuple[int, bytes]]:
    for name, raw in batch.meta.items():
        if name.startswith(b"vbucket/") and raw is not None:
            yield int.from_bytes(name[-2:]), raw


def _changes(batch: Batch) -> Iterator[CanonicalChange]:
    for frame in batch.seqnos.values():
        if frame is not None and not canonical.is_event(frame) and not is_hidden(frame):
            yield canonical.parse(frame)


def _version(change: CanonicalChange) -> Version:
    value = change.value if change.op is Op.MUTATION else None
    return Version(change.key, value, change.cas, change.rev)


def _is_flushed(standing: Standing, vbuuid: int) -> bool:
    """Whether a copy began again, with a history of which nothing is known."""
    entries = standing.failover.entries
    return len(entries) == 1 and entries[0].seqno == 0 and entries[0].vbuuid != vbuuid
