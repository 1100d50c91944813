"""A consumer for tests that keeps what a consumer must keep, and goes on however it was cut off."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from serverkit import ServerProcess
from talk import Talk

from upriver.model import NO_END, Snapshot
from upriver.wire import kv_messages as kv
from upriver.wire import messages as m


class Follower:
    """The documents of some vbuckets as their changes make them, and how far that is.

    It checks what every stream has to keep: seqnos go up, stay within their snapshot, and belong
    to one change for ever; the branch of history stays the same and nothing is rolled back.
    """

    def __init__(self, vbuckets: int) -> None:
        #: Seqno, CAS and value of every document; None for the value of one that was deleted.
        self.documents: dict[tuple[int, bytes], tuple[int, int, bytes | None]] = {}
        #: Which key each seqno was seen with.
        self.owners: dict[tuple[int, int], bytes] = {}
        self.branches: dict[int, int] = {}
        self.seqnos = dict.fromkeys(range(vbuckets), 0)
        self.snapshots = {vbucket: Snapshot(0, 0) for vbucket in range(vbuckets)}
        #: Announced, but without a change so far; not to be resumed from.
        self._pending: dict[int, Snapshot] = {}

    def connect(self, server: ServerProcess, name: str = "follower") -> Talk:
        """Asks for every vbucket from where it is; the answers come among the changes."""
        self._pending.clear()
        talk = Talk(server)
        talk.open(name)
        talk.send(*(self._request(vbucket) for vbucket in self.seqnos))
        return talk

    def _request(self, vbucket: int) -> m.StreamRequest:
        return m.StreamRequest(
            vbucket=vbucket,
            start=self.seqnos[vbucket],
            end=NO_END,
            vbuuid=self.branches.get(vbucket, 0),
            snapshot_start=self.snapshots[vbucket].start,
            snapshot_end=self.snapshots[vbucket].end,
            opaque=vbucket,
        )

    def follow(self, talk: Talk, enough: Callable[[], bool] = lambda: False) -> None:
        """Takes changes until there are enough, or the connection ends."""
        try:
            while not enough():
                self.take(talk.read())
        except ConnectionError:
            pass

    def has(self, seqnos: dict[int, int]) -> bool:
        """Whether it is as far as these."""
        return all(self.seqnos[vbucket] >= seqno for vbucket, seqno in seqnos.items())

    @property
    def is_within_a_snapshot(self) -> bool:
        return any(self.seqnos[vbucket] < seen.end for vbucket, seen in self.snapshots.items())

    def take(self, message: Any) -> None:
        match message:
            case m.StreamAccepted():
                branch = message.failover_log[0].vbuuid
                assert self.branches.setdefault(message.opaque, branch) == branch
            case m.SnapshotMarker():
                assert message.start is not None
                assert message.end is not None
                self._pending[message.vbucket] = Snapshot(message.start, message.end)
            case m.Mutation() | m.Deletion():
                self._changed(message)
            case _:
                raise AssertionError(f"no stream has this, or it was refused: {message}")

    def _changed(self, change: m.Mutation | m.Deletion) -> None:
        vbucket, seqno = change.vbucket, change.seqno
        if vbucket in self._pending:
            self.snapshots[vbucket] = self._pending.pop(vbucket)
        assert self.seqnos[vbucket] < seqno <= self.snapshots[vbucket].end
        assert self.owners.setdefault((vbucket, seqno), change.key) == change.key
        self.seqnos[vbucket] = seqno
        value = change.value if isinstance(change, m.Mutation) else None
        self.documents[vbucket, change.key] = (seqno, change.cas, value)


def high_seqnos(server: ServerProcess) -> dict[int, int]:
    with Talk(server) as talk:
        return dict(talk.ask(kv.GetAllSeqnos()).seqnos)


def everything_in(server: ServerProcess, seqnos: dict[int, int]) -> Follower:
    """What a new reader gets from the beginning up to these seqnos."""
    follower = Follower(len(seqnos))
    with follower.connect(server, "new") as talk:
        follower.follow(talk, lambda: follower.has(seqnos))
    assert follower.has(seqnos)
    return follower
