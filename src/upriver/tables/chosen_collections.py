"""The collections that a table is of: chosen by name, read by id, and followed as they change.

A name can be dropped and made again, and then it has another id. So a table of some collections
notes which ids it has, and compares them with the bucket's manifest, now and then and whenever a
server refuses an id. What is new is read up to where the table is, what is no longer there leaves
it, both in one commit (`CollectionChange`). A table of the whole bucket needs none of this: its
streams say what happens to collections (`collection_events`), unless it was of something else
before.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from ..batches.collection_events import Name
from ..batches.offset_ranges import ReadStep
from ..batches.offsets import Offset, VBucketProgress
from ..batches.options import ReadOptions
from ..batches.stream_driver import Driver
from ..consumer.topology.collection_names import Collections
from ..errors import ConfigError, UpriverError
from ..model import StreamOffset
from .commit_state import TableState

_log = logging.getLogger(__name__)

#: Seconds between two looks at the manifest.
_EVERY: Final = 2.0


@dataclass(frozen=True, slots=True)
class CollectionChange:
    """What makes a table one of other collections than it was."""

    #: By id the collections that it is of then.
    covered: Mapping[int, Name]
    new: frozenset[int] = frozenset()
    leaving: frozenset[Name] = frozenset()


class ChosenCollections:
    """Follows the collections of one table."""

    def __init__(self, options: ReadOptions, *, was_other: bool = False) -> None:
        self._asked = options
        #: Whether the table was of other collections when the pipeline began.
        self._was_other = was_other
        self._looked = -_EVERY
        #: How the source is read now; None while none of the collections exists.
        self.options: ReadOptions | None = options
        #: By id those that the table is of; None if it is of the whole bucket.
        self.covered: Mapping[int, Name] | None = None

    @property
    def _is_everything(self) -> bool:
        return not (self._asked.collections or self._asked.scope)

    def look_again(self) -> None:
        """Has the manifest asked for at the next turn: a server has refused a collection."""
        self._looked = -_EVERY

    def change(self, driver: Driver, state: TableState) -> CollectionChange | None:
        """What must become of the table before it is read on; None if nothing."""
        if self._is_everything and not self._was_other:
            return None
        now = time.monotonic()
        if now - self._looked < _EVERY:
            return None
        found = driver.collections()
        self._looked = now
        wanted = self._wanted(found)
        if state.offset is None:
            self.take(wanted)
            return None
        covered = wanted if state.collections is None else state.collections
        if wanted.keys() == covered.keys() and not self._was_other:
            self.take(wanted)
            return None
        stays = {name for id_, name in wanted.items() if id_ in covered}
        gone = {name for id_, name in covered.items() if id_ not in wanted}
        return CollectionChange(
            wanted, frozenset(wanted.keys() - covered.keys()), frozenset(gone - stays)
        )

    def take(self, covered: Mapping[int, Name]) -> None:
        """The table is of these now."""
        self._was_other = False
        if self.covered is not None and self.covered == dict(covered):
            return
        if self._is_everything:
            self.options, self.covered = self._asked, None
            return
        self.covered = dict(covered)
        self.options = self.reading(frozenset(covered)) if covered else None

    def reading(self, ids: frozenset[int]) -> ReadOptions:
        """The options to read some collections by id."""
        return replace(self._asked, collections=tuple(f"#{id_:x}" for id_ in sorted(ids)), scope="")

    def _wanted(self, found: Collections) -> dict[int, Name]:
        live: dict[int, Name] = dict(found.live_names())
        if self._is_everything:
            return live
        if self._asked.scope:
            return {id_: name for id_, name in live.items() if name[0] == self._asked.scope}
        names = set(self._asked.collections)
        return {id_: name for id_, name in live.items() if f"{name[0]}.{name[1]}" in names}

    def require_there(self, driver: Driver) -> None:
        """ConfigError if one is missing: in a new table, a name that is not there is a mistake."""
        if self._is_everything:
            return
        wanted = self._wanted(driver.collections())
        there = {f"{scope}.{name}" for scope, name in wanted.values()}
        missing = [name for name in self._asked.collections if name not in there]
        if missing or (self._asked.scope and not wanted):
            what = f"collection {missing[0]}" if missing else f"scope {self._asked.scope}"
            raise ConfigError(
                f"there is no {what} with anything to read; create it before its table, or give "
                "another name"
            )


def steps_of(
    change: CollectionChange, before: Offset, driver: Driver, chosen: ChosenCollections
) -> tuple[ReadStep, ...]:
    """Reads what is new of each vbucket up to where the table is.

    Not of one that is on another branch now: its position has no boundary left (`offset_after`),
    so the next plan reads all of it anew.
    """
    highs = driver.high_seqnos_of(chosen.reading(change.new)) if change.new else {}
    branches = driver.newest_branches(before.progress) if change.new else {}
    if missing := sorted(before.progress.keys() - branches.keys()) if change.new else []:
        raise UpriverError(
            f"{len(missing)} vbuckets have no server now, the first is {missing[0]}, and what the "
            "table lacks of new collections must be read of all; start again when all are served"
        )
    steps = []
    for vbucket, at in sorted(before.progress.items()):
        is_read = highs.get(vbucket, 0) and branches[vbucket] == at.vbuuid
        start = 0 if is_read else at.seqno
        claim = StreamOffset.at(at.vbuuid, start)
        steps.append(ReadStep(vbucket=vbucket, branch=at.branch, offset=claim, end=at.seqno))
    return tuple(steps)


def read_anew(before: Offset, end: Offset) -> Offset:
    """The same end, with every vbucket read from 0: for rows that look different from now on."""
    return Offset(
        end.source,
        {
            vb: VBucketProgress(
                seqno=at.seqno, branch=before.at(vb).branch + 1, log=at.log, rolled_back=True
            )
            for vb, at in end.progress.items()
        },
    )


def offset_after(before: Offset) -> Offset:
    """The same place without boundaries: older versions of the table are of other collections."""
    return Offset(
        before.source,
        {
            vb: VBucketProgress(seqno=at.seqno, branch=at.branch, log=at.log)
            for vb, at in before.progress.items()
        },
    )
