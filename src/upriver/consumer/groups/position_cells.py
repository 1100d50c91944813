"""The saved positions of a group: fenced by generation, and never going back without a rollback.

Positions of 64 vbuckets are one cell, ``positions-NUMBER``, as JSON:

    {"VBUCKET": [generation, owner, rollbacks, position], ...}

``generation`` is that of the last owner that has claimed the vbucket. An owner claims a vbucket
before it reads it. Whoever claims later has a higher generation, and what an earlier owner saves
after that is refused. The name of the owner matters only in a store that has lost writes, so that
a generation was given twice: then the later claim counts. ``rollbacks`` counts the rollbacks of the
vbucket: a position with a lower seqno than the saved one is accepted only with a higher count. This
module does no I/O.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from ...errors import ConfigError, InternalError, UpriverError
from ...session.stream_position import Position
from ..checkpoints.checkpoint import MAX_VBUCKETS
from ..checkpoints.position_json import dump_position, load_position, parse_json
from .cells import CellSteps, CellWrite, Read

#: Vbuckets in one cell: members rarely write the same cell, and an object store few objects.
_PER_CELL: Final = 64
#: A write is repeated this often if another member was faster each time.
_ATTEMPTS: Final = 200


@dataclass(frozen=True, slots=True)
class Saved:
    """The saved position of a vbucket, and who may replace it."""

    generation: int
    rollbacks: int
    position: Position
    #: The member that has claimed it.
    owner: str = ""


class PositionCells:
    """Claims vbuckets and saves their positions; keeps the cells that it has written last."""

    def __init__(self, group: str, *, may_vanish: bool = False) -> None:
        """``may_vanish``: the store can lose a cell, as a bucket does in a failover."""
        self._group = group
        self._may_vanish = may_vanish
        #: Cells that were there.
        self._met: set[str] = set()
        #: The version and the content of cells.
        self._known: dict[str, tuple[int, dict[int, Saved]]] = {}

    def load(self, vbuckets: Iterable[int]) -> CellSteps[dict[int, Saved]]:
        """The saved positions of those vbuckets that have one."""
        found: dict[int, Saved] = {}
        for cell, its in self._cells(vbuckets).items():
            _, saved = yield from self._newest(cell)
            found |= {vb: saved[vb] for vb in its if vb in saved}
        return found

    def claim(
        self, generations: Mapping[int, int], first: Callable[[int], Position], owner: str = ""
    ) -> CellSteps[dict[int, Saved]]:
        """Takes vbuckets over; returns where to read on, without those that a later owner has.

        ``first`` is the position of a vbucket that nobody has read.
        """
        claimed: dict[int, Saved] = {}

        def take(saved: dict[int, Saved], its: Collection[int]) -> None:
            for vbucket in its:
                before = saved.get(vbucket) or Saved(0, 0, first(vbucket))
                claimed.pop(vbucket, None)
                if before.generation <= generations[vbucket]:
                    generation = generations[vbucket]
                    claimed[vbucket] = replace(before, generation=generation, owner=owner)
                    saved[vbucket] = claimed[vbucket]

        for cell, its in self._cells(generations).items():
            yield from self._change(cell, its, take)
        return claimed

    def save(self, positions: Mapping[int, Saved]) -> CellSteps[frozenset[int]]:
        """Saves positions; returns the vbuckets that a later owner has, whose are not saved."""
        refused: set[int] = set()

        def put(saved: dict[int, Saved], its: Collection[int]) -> None:
            for vbucket in its:
                before, after = saved.get(vbucket), positions[vbucket]
                refused.discard(vbucket)
                if before is not None and not _may_replace(after, before):
                    refused.add(vbucket)
                    continue
                if before is not None:
                    _check_order(vbucket, before, after)
                saved[vbucket] = after

        for cell, its in self._cells(positions).items():
            yield from self._change(cell, its, put)
        return frozenset(refused)

    def _change(
        self,
        cell: str,
        vbuckets: Collection[int],
        change: Callable[[dict[int, Saved], Collection[int]], None],
    ) -> CellSteps[None]:
        """Applies a change to the newest content of a cell; begins again if that has changed."""
        known = self._known.pop(cell, None)
        if known is None:
            known = yield from self._newest(cell)
        for _ in range(_ATTEMPTS):
            version, before = known
            after = dict(before)
            change(after, vbuckets)
            if after == before:  # but what is remembered may be old, and hide a later owner
                known = yield from self._newest(cell)
                if known[0] == version:
                    self._known[cell] = known
                    return
                continue
            written = yield CellWrite(cell, _dump(after), version)
            if written is not None:
                self._met.add(cell)
                self._known[cell] = written, after
                return
            known = yield from self._newest(cell)
        raise UpriverError(
            f"{cell} could not be written: other members were faster {_ATTEMPTS} times; "
            "save less often"
        )

    def require_kept(self) -> CellSteps[None]:
        """Raises ConfigError if positions are gone that were there."""
        for cell in sorted(self._met):
            yield from self._newest(cell)

    def _newest(self, cell: str) -> CellSteps[tuple[int, dict[int, Saved]]]:
        stored = yield Read(cell)
        if stored is not None:
            self._met.add(cell)
            return stored.version, _parse(cell, stored.content)
        if cell in self._met and not self._may_vanish:
            raise ConfigError(
                f"{cell} is gone, where the group {self._group!r} had positions: was the place "
                "where members meet unmounted or deleted? Put it back and start again; with "
                "another group everything is read anew"
            )
        return 0, {}

    def _cells(self, vbuckets: Iterable[int]) -> dict[str, list[int]]:
        cells: dict[str, list[int]] = {}
        for vbucket in sorted(vbuckets):
            name = f"{self._group}/positions-{vbucket // _PER_CELL:04}"
            cells.setdefault(name, []).append(vbucket)
        return cells


def _may_replace(after: Saved, before: Saved) -> bool:
    if before.generation == after.generation:
        return before.owner == after.owner
    return before.generation < after.generation


def _check_order(vbucket: int, before: Saved, after: Saved) -> None:
    if (after.rollbacks, after.position.seqno) < (before.rollbacks, before.position.seqno):
        raise InternalError(
            f"vbucket {vbucket} would go back from seqno {before.position.seqno} to "
            f"{after.position.seqno} without a rollback"
        )


def _dump(saved: Mapping[int, Saved]) -> bytes:
    lines = [
        f'"{vbucket}": '
        + json.dumps([one.generation, one.owner, one.rollbacks, dump_position(one.position)])
        for vbucket, one in sorted(saved.items())
    ]
    return ("{\n" + ",\n".join(lines) + "\n}\n").encode()


def _parse(cell: str, content: bytes) -> dict[int, Saved]:
    stored = parse_json(content)
    try:
        return {
            _vbucket(name): Saved(
                _whole(generation),
                _whole(rollbacks),
                load_position(position, f"vbucket {name}"),
                str(owner),
            )
            for name, (generation, owner, rollbacks, position) in stored.items()
        }
    except (AttributeError, TypeError, ValueError, ConfigError) as problem:
        raise ConfigError(f"{cell} is damaged: {problem}") from None


def _vbucket(name: str) -> int:
    number = int(name)
    if not 0 <= number < MAX_VBUCKETS:
        raise ValueError(f"there is no vbucket {name}")
    return number


def _whole(value: object) -> int:
    if type(value) is not int or value < 0:
        raise ValueError(f"{value!r} is no number that fits here")
    return value
