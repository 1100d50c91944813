"""The short way for what most changes of a bulk load are: new, plain documents that never expire.

It writes them as `operations` and `Group.install` would, in one loop over local names, which
takes half the time of the calls it does without; every other change is left to them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import repeat
from typing import Final

from ..errors import StoreRefusal
from ..model import Datatype
from ..wire.canonical import mutation
from ..wire.limits import MAX_PREFIXED_KEY
from .changes import Applied, Change, Outcome, Set
from .group import UNCHANGED, Group
from .layout import Kind, pack_record, seqno_key, vbucket_key

__all__ = ["insert_plain"]

_MAX_FLAGS: Final = 0xFFFFFFFF
_MUTATION: Final = Kind.MUTATION
#: Bodies without attributes and uncompressed: raw or JSON.
_JSON: Final = int(Datatype.JSON)
#: From this many on, looking up all keys at once takes half the time.
_MANY: Final = 16
#: A named tuple's own constructor takes twice as long.
_new_tuple = tuple.__new__


def insert_plain(
    group: Group, changes: Sequence[Change], outcomes: list[Outcome]
) -> Iterator[Change]:
    """Writes the plain inserts among ``changes``; yields each other one in its turn.

    Its outcome has to be in ``outcomes`` before the next one is asked for.
    """
    active, seqnos, keys = group.active, group.batch.seqnos, group.batch.keys
    look_up, max_value = group.look_up, group.max_value
    can_be_plain = group.collections.get(0, -1) in (None, 0)  # open, with no limit to its lives
    take, left = group.clock.take, len(changes)
    new_cas = 0  # taken for all that are left at once, because asking a clock costs more
    for change, path, found in _looked_up(group, changes):
        left -= 1
        if not can_be_plain or type(change) is not Set:
            yield change
            new_cas = 0  # it was given one above those that were taken
            continue
        vbucket, key, value, flags, expiry, datatype, cas = change
        if (
            expiry
            or not 0 <= datatype <= _JSON
            or cas
            or key[:1] != b"\0"
            or not 1 < len(key) <= MAX_PREFIXED_KEY
            or len(value) > max_value
            or not 0 <= flags <= _MAX_FLAGS
        ):
            yield change
            new_cas = 0  # it was given one above those that were taken
            continue
        try:
            progress = active[vbucket]
        except StoreRefusal as refusal:
            outcomes.append(refusal)
            continue
        path = path or vbucket_key(vbucket) + key
        old = keys.get(path, found)
        if (look_up(path) if old is UNCHANGED else old) is not None:
            yield change
            new_cas = 0
            continue
        seqno = progress.high + 1
        rev = progress.purged_rev + 1
        items = progress.items + 1
        new_cas = new_cas + 1 if new_cas else take(left + 1)
        seqnos[seqno_key(vbucket, seqno)] = mutation(
            vbucket, seqno, rev, new_cas, flags, 0, datatype, key, value
        )
        keys[path] = pack_record(
            seqno,
            rev,
            new_cas,
            flags,
            0,
            _MUTATION,
            datatype,
            items,
            progress.tombstones,
            progress.history_bytes,
        )
        if progress.last_collection:  # and not the default one
            group.turn_to(vbucket, progress, 0)
        progress.high = seqno
        progress.items = items
        outcomes.append(_new_tuple(Applied, (vbucket, seqno, new_cas, None)))


def _looked_up(
    group: Group, changes: Sequence[Change]
) -> Iterable[tuple[Change, bytes, bytes | None]]:
    """Each change with its path and what is stored there, as far as that was asked for at once."""
    if len(changes) >= _MANY:
        known = len(group.vbuckets)  # others are refused before anybody asks what is there
        paths = [vbucket_key(x.vbucket % known) + x.key for x in changes if type(x) is Set]
        if len(paths) == len(changes):
            return zip(changes, paths, group.look_up_many(paths), strict=True)
    return zip(changes, repeat(b""), repeat(UNCHANGED), strict=False)
