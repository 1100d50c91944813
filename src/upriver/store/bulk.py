"""The short way for what most changes of a bulk load are: new, plain documents that never expire.

It writes them as `operations` and `Group.install` would, in one loop over local names, which
takes half the time of the calls it does without; every other change is left to them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from ..errors import StoreRefusal
from ..wire.canonical import mutation
from ..wire.limits import MAX_PREFIXED_KEY
from .changes import Applied, Change, Outcome, Set
from .group import UNCHANGED, Group
from .layout import Kind, pack_record, seqno_key, vbucket_key

__all__ = ["insert_plain"]

_MAX_FLAGS: Final = 0xFFFFFFFF
_MUTATION: Final = Kind.MUTATION
#: A named tuple's own constructor takes twice as long.
_new_tuple = tuple.__new__


def insert_plain(
    group: Group, changes: Iterable[Change], outcomes: list[Outcome]
) -> Iterator[Change]:
    """Writes the plain inserts among ``changes``; yields each other one in its turn.

    Its outcome has to be in ``outcomes`` before the next one is asked for.
    """
    active, seqnos, keys = group.active, group.batch.seqnos, group.batch.keys
    look_up, next_cas, max_value = group.look_up, group.clock.next, group.max_value
    can_be_plain = group.collections.get(0, -1) in (None, 0)  # open, with no limit to its lives
    for change in changes:
        if not can_be_plain or type(change) is not Set:
            yield change
            continue
        vbucket, key, value, flags, expiry, datatype, cas = change
        if (
            expiry
            or datatype
            or cas
            or key[:1] != b"\0"
            or not 1 < len(key) <= MAX_PREFIXED_KEY
            or len(value) > max_value
            or not 0 <= flags <= _MAX_FLAGS
        ):
            yield change
            continue
        try:
            progress = active[vbucket]
        except StoreRefusal as refusal:
            outcomes.append(refusal)
            continue
        path = vbucket_key(vbucket) + key
        old = keys.get(path, UNCHANGED)
        if (look_up(path) if old is UNCHANGED else old) is not None:
            yield change
            continue
        seqno = progress.high + 1
        rev = progress.purged_rev + 1
        items = progress.items + 1
        cas = next_cas()
        seqnos[seqno_key(vbucket, seqno)] = mutation(
            vbucket, seqno, rev, cas, flags, 0, 0, key, value
        )
        keys[path] = pack_record(
            seqno,
            rev,
            cas,
            flags,
            0,
            _MUTATION,
            0,
            items,
            progress.tombstones,
            progress.history_bytes,
        )
        progress.high = seqno
        progress.items = items
        outcomes.append(_new_tuple(Applied, (vbucket, seqno, cas, None)))
