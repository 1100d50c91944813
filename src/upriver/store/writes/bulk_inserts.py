"""Fast path for bulk loads: inserts new, plain documents without expiry.

It writes the same entries as `operations` and `WriteGroup.install`, but in one loop over local
names. That takes half the time, because it saves the function calls. Every other change goes
through those two modules.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import repeat
from typing import Final

from ...errors import StoreRefusal
from ...model import Datatype
from ...wire.canonical import mutation
from ...wire.limits import MAX_PREFIXED_KEY
from ..rocksdb_layout import RecordKind, pack_record, seqno_key, vbucket_key
from .change_requests import Applied, ChangeRequest, Outcome, SetDocument
from .write_group import UNCHANGED, WriteGroup

_MAX_FLAGS: Final = 0xFFFFFFFF
_MUTATION: Final = RecordKind.MUTATION
#: The highest plain datatype: raw or JSON, with neither xattrs nor compression.
_JSON: Final = int(Datatype.JSON)
#: From this many changes on, one lookup of all keys takes half the time of single lookups.
_MANY: Final = 16
#: The constructor of a named tuple takes twice as long.
_new_tuple = tuple.__new__


def insert_plain(
    group: WriteGroup, changes: Sequence[ChangeRequest], outcomes: list[Outcome]
) -> Iterator[ChangeRequest]:
    """Writes the plain inserts among ``changes``, and yields every other change in order.

    The caller must append the outcome of a yielded change to ``outcomes`` before the next one.
    """
    active, seqnos, keys = group.active, group.batch.seqnos, group.batch.keys
    look_up, max_value = group.look_up, group.max_value
    can_be_plain = group.collections.get(0, -1) in (None, 0)  # it exists and has no max_ttl
    take, left = group.clock.take, len(changes)
    new_cas = 0  # a range of CAS values is taken at once, because reading a clock costs more
    for change, path, found in _looked_up(group, changes):
        left -= 1
        if not can_be_plain or type(change) is not SetDocument:
            yield change
            new_cas = 0  # the yielded change may have taken a CAS above the range
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
            new_cas = 0  # the yielded change may have taken a CAS above the range
            continue
        try:
            progress = active[vbucket]
        except StoreRefusal as refusal:
            outcomes.append(refusal)
            continue
        if progress.prepares:  # the key may have a pending prepare
            yield change
            new_cas = 0
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
        if progress.last_collection:  # not the default collection
            group.turn_to(vbucket, progress, 0)
        progress.high = seqno
        progress.items = items
        outcomes.append(_new_tuple(Applied, (vbucket, seqno, new_cas, None)))


def _looked_up(
    group: WriteGroup, changes: Sequence[ChangeRequest]
) -> Iterable[tuple[ChangeRequest, bytes, bytes | None]]:
    """Pairs each change with its path and stored record, if they were looked up at once."""
    if len(changes) >= _MANY:
        known = len(group.vbuckets)  # other vbuckets are refused before the record is used
        paths = [vbucket_key(x.vbucket % known) + x.key for x in changes if type(x) is SetDocument]
        if len(paths) == len(changes):
            return zip(changes, paths, group.look_up_many(paths), strict=True)
    return zip(changes, repeat(b""), repeat(UNCHANGED), strict=False)
