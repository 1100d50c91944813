"""Edits that write versions with the CAS and revision of another bucket, their source."""

from __future__ import annotations

import struct
from functools import partial
from typing import Final

from ...errors import Status, StatusError
from ...wire.protocol_enums import WithMetaOption
from .document_checks import request_name
from .write_operations import (
    Ask,
    Edit,
    EditOutcome,
    EditSteps,
    Form,
    SteppedEdit,
    WantedDocument,
    get,
    get_meta,
    written,
)

#: The oldest version that there can be: any version of a document that is made later is newer.
_OLDEST: Final = 1
_NANOSECONDS: Final = 1_000_000_000
_U32_MAX: Final = 2**32 - 1

_WITH_META = struct.Struct(
    ">"
    "I"  # flags
    "I"  # expiry, or the time of the deletion
    "Q"  # revision
    "Q"  # CAS
)
_OPTIONS = struct.Struct(
    ">I"  # options
)
_ALWAYS: Final = _OPTIONS.pack(WithMetaOption.SKIP_CONFLICT_RESOLUTION)


def copied(
    key: bytes,
    value: bytes,
    *,
    cas: int,
    rev: int,
    restores: bool = False,
    overwrite: bool = False,
    collection: int = 0,
    flags: int = 0,
    expiry: int = 0,
    json: bool = False,
) -> SteppedEdit:
    """Writes a version with the CAS and revision of its source, unless a newer version exists.

    With ``restores`` it also replaces a newer version, which the source has lost by a rollback;
    with ``overwrite`` too, where that is rare.
    """
    document = WantedDocument.checked(key, value, flags, expiry, json)
    if restores:
        return SteppedEdit(key, collection, partial(_restored, document, cas, rev))
    return SteppedEdit(key, collection, partial(_copied, document, cas, rev, overwrite))


def _copied(document: WantedDocument, cas: int, rev: int, overwrite: bool) -> EditSteps:
    extras = _WITH_META.pack(document.flags, document.expiry, rev, cas)
    answer = yield Ask(Form.SET_META, extras, document.value, 0, document.datatype)
    if answer is None or answer.status is not Status.EXISTS:
        return written(answer, document.key)
    meta = yield from get_meta(document.key)
    if meta is not None and (meta.cas, meta.rev) == (cas, rev) and not meta.deleted:
        found = yield from get(document.key)
        if found is not None and found.cas == cas and not document.is_like(found):
            raise StatusError(
                Status.EXISTS,
                request=request_name(document.key),
                context="the bucket has another document with the same CAS and revision; to "
                "change a document that was read from it, write it without these columns",
            )
        return EditOutcome.UNCHANGED
    if overwrite:
        return (yield from _restored(document, cas, rev))
    return EditOutcome.UNCHANGED


def _restored(document: WantedDocument, cas: int, rev: int) -> EditSteps:
    meta = yield from get_meta(document.key)
    if meta is not None and (meta.cas, meta.rev) == (cas, rev) and not meta.deleted:
        return EditOutcome.UNCHANGED
    extras = _WITH_META.pack(document.flags, document.expiry, rev, cas) + _ALWAYS
    answer = yield Ask(Form.SET_META, extras, document.value, 0, document.datatype)
    return written(answer, document.key)


def copied_removal(
    key: bytes,
    *,
    cas: int,
    rev: int,
    collection: int = 0,
    expired: bool = False,
    overwrite: bool = False,
) -> SteppedEdit:
    """As `copied`, for the tombstone of a document that was deleted or expired at its source."""
    steps = partial(_copied_removal, key, cas, rev, expired, overwrite)
    return SteppedEdit(key, collection, steps)


def _copied_removal(key: bytes, cas: int, rev: int, expired: bool, overwrite: bool) -> EditSteps:
    # Servers compare the time of a deletion when they compare versions. So it must not depend on
    # when this client writes the tombstone. It is derived from the CAS, which is a time.
    extras = _WITH_META.pack(0, min(cas // _NANOSECONDS, _U32_MAX), rev, cas)
    option = WithMetaOption.EXPIRATION if expired else WithMetaOption.NONE
    answer = yield Ask(Form.DELETE_META, extras + (_OPTIONS.pack(option) if option else b""))
    if overwrite and answer is not None and answer.status is Status.EXISTS:
        meta = yield from get_meta(key)
        if meta is not None and not meta.deleted:
            forced = _OPTIONS.pack(option | WithMetaOption.SKIP_CONFLICT_RESOLUTION)
            answer = yield Ask(Form.DELETE_META, extras + forced)
    if answer is not None and answer.status in (Status.EXISTS, Status.NOT_FOUND):
        return EditOutcome.UNCHANGED
    return written(answer, key)


def restored_removal(key: bytes, *, now: int, collection: int = 0) -> Edit:
    """Removes a document that its source has lost, as if it had never been there.

    Its tombstone is older than any version that the source may create later, which a plain deletion
    would not be: its revision would be higher than that of a document that is new at the source.
    """
    return SteppedEdit(key, collection, partial(_restored_removal, key, now))


def _restored_removal(key: bytes, now: int) -> EditSteps:
    meta = yield from get_meta(key)
    if meta is None or meta.deleted:
        return EditOutcome.UNCHANGED
    answer = yield Ask(Form.DELETE_META, _WITH_META.pack(0, now, _OLDEST, _OLDEST) + _ALWAYS)
    if answer is not None and answer.status is Status.NOT_FOUND:
        return EditOutcome.UNCHANGED
    return written(answer, key)
