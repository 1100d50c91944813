"""Sub-document commands: parts of documents, read and written by path.

A mutation reads the document, edits it and writes it over the version it read; where another
writer came first and the client named no version, it is done again.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, Final

from ...errors import Status, StoreRefusal
from ...model import Datatype
from ...store import Add, Applied, Change, Delete, Replace
from ...wire import canonical, kv
from ...wire.canonical import CanonicalChange
from ...wire.messages import PlainResponse, Request
from ...wire.names import Command as C
from ...wire.names import Feature
from . import lookups
from .answers import Answer, Blocking, Now, Responses
from .call import Call, key_of
from .lookups import IN_XATTRS, check_order, status_number
from .mutations import MUTATIONS, Draft
from .writing import keeps_expiry, write_over

__all__ = ["HANDLERS"]

#: Document flags.
_MAKE_DOCUMENT: Final = 0x01
_ADD: Final = 0x02
_ACCESS_DELETED: Final = 0x04
_REPLICA_READ: Final = 0x20

#: Documents above this are searched in a thread: it takes up to a millisecond for each path.
_MAX_INLINE: Final = 16 * 1024

_LOOKUPS: Final = frozenset({C.GET, C.SUBDOC_GET, C.SUBDOC_EXISTS, C.SUBDOC_GET_COUNT})

_TOKEN = struct.Struct(
    ">"
    "Q"  # vbuuid
    "Q"  # seqno
)
_FAILED = struct.Struct(
    ">"
    "B"  # which path
    "H"  # its status
)
_TOLD = struct.Struct(
    ">"
    "B"  # which path
    "H"  # its status
    "I"  # length of what it tells
)


# ---- looking -----------------------------------------------------------------------------


def _one(call: Call, request: kv.SubdocOperation) -> Answer:
    if request.datatype & Datatype.SNAPPY:
        raise StoreRefusal(Status.INVALID, "a path and its value are not compressed")
    operation = kv.SubdocPath(
        command=request.command,
        path=request.path,
        value=request.value,
        path_flags=request.path_flags,
    )
    if request.command in _LOOKUPS:
        if request.value or request.expiry is not None:
            raise StoreRefusal(Status.INVALID, "a lookup has neither value nor expiry")
        return _look_up(call, request, (operation,), _one_found)
    return _mutate(call, request, (operation,))


def _one_found(
    call: Call, found: CanonicalChange, deleted: bool, results: list[tuple[Status, bytes]]
) -> PlainResponse:
    status, value = results[0]
    if status is not Status.SUCCESS:
        raise StoreRefusal(status, "the path leads nowhere, or to something else")
    done = Status.SUBDOC_SUCCESS_DELETED if deleted else Status.SUCCESS
    return call.plain(value, status=done, cas=found.cas)


def _multi_lookup(call: Call, request: kv.SubdocMultiLookup) -> Answer:
    check_order(request.paths, _LOOKUPS)
    return _look_up(call, request, request.paths, _several_found)


def _several_found(
    call: Call, found: CanonicalChange, deleted: bool, results: list[tuple[Status, bytes]]
) -> PlainResponse:
    if all(status is Status.SUCCESS for status, _ in results):
        done = Status.SUBDOC_SUCCESS_DELETED if deleted else Status.SUCCESS
    elif deleted:
        done = Status.SUBDOC_MULTI_PATH_FAILURE_DELETED
    else:
        done = Status.SUBDOC_MULTI_PATH_FAILURE
    return call.plain(lookups.multi_value(results), status=done, cas=found.cas)


def _look_up(
    call: Call,
    request: kv.SubdocOperation | kv.SubdocMultiLookup,
    paths: tuple[kv.SubdocPath, ...],
    respond: Callable[[Call, CanonicalChange, bool, list[tuple[Status, bytes]]], PlainResponse],
) -> Answer:
    flags = request.doc_flags or 0
    if flags & ~(_ACCESS_DELETED | _REPLICA_READ):
        raise StoreRefusal(Status.INVALID, f"{flags:#x} are no document flags of a lookup")
    _check_xattrs_negotiated(call, paths)
    found, deleted = _read(call, request, flags)
    cas = call.locks.shown_cas(request.vbucket, key_of(request), found.cas)
    found = found._replace(cas=cas)

    def search() -> Responses:
        parts = lookups.split(found.value, found.datatype)
        xattrs = parts.xattrs
        if any(path.path_flags & IN_XATTRS for path in paths):
            branch = call.bucket.failover_log(request.vbucket).newest
            xattrs = lookups.virtual(found, parts, branch)
        results: list[tuple[Status, bytes]] = []
        for path in paths:
            try:
                results.append((Status.SUCCESS, lookups.look_up(parts, xattrs, path)))
            except StoreRefusal as refusal:
                results.append((refusal.status, b""))
        return (respond(call, found, deleted, results),)

    return Blocking(search) if len(found.value) > _MAX_INLINE else Now(search())


def _read(call: Call, request: kv.DocumentRequest, flags: int) -> tuple[CanonicalChange, bool]:
    """The document, or its tombstone if that was asked for, and whether it is one."""
    vbucket, key, replica = request.vbucket, key_of(request), bool(flags & _REPLICA_READ)
    try:
        return call.bucket.get(vbucket, key, replica=replica), False
    except StoreRefusal as refusal:
        if refusal.status is not Status.NOT_FOUND or not flags & _ACCESS_DELETED:
            raise
    record = call.bucket.meta(vbucket, key, replica=replica)
    with call.bucket.open_reader(vbucket, record.seqno - 1) as reader:
        chunk = reader.read(1)
    if not record.is_tombstone or chunk is None or chunk.last_seqno != record.seqno:
        raise StoreRefusal(Status.NOT_FOUND, f"there is no document {request.key!r}")
    return canonical.parse(chunk.frames), True


# ---- changing ----------------------------------------------------------------------------


def _multi_mutation(call: Call, request: kv.SubdocMultiMutation) -> Answer:
    check_order(request.paths, MUTATIONS)
    return _mutate(call, request, request.paths)


def _mutate(
    call: Call,
    request: kv.SubdocOperation | kv.SubdocMultiMutation,
    paths: tuple[kv.SubdocPath, ...],
) -> Answer:
    flags = request.doc_flags or 0
    if flags & ~(_MAKE_DOCUMENT | _ADD) or flags == _MAKE_DOCUMENT | _ADD:
        raise StoreRefusal(
            Status.NOT_SUPPORTED, f"the document flags {flags:#x} of a mutation are not supported"
        )
    if flags & _ADD and request.cas:
        raise StoreRefusal(Status.INVALID, "a document that must not exist has no CAS")
    _check_xattrs_negotiated(call, paths)
    return Blocking(_Mutation(call, request, paths, flags).run)


class _Mutation:
    """One mutation from reading to the answer. A failing path is told by its position."""

    def __init__(
        self,
        call: Call,
        request: kv.SubdocOperation | kv.SubdocMultiMutation,
        paths: tuple[kv.SubdocPath, ...],
        flags: int,
    ) -> None:
        self.call = call
        self.request = request
        self.paths = paths
        self.flags = flags
        self.key = key_of(request)
        self.told: list[bytes] = []
        self.failed: tuple[int, StoreRefusal] | None = None

    def run(self) -> Responses:
        call, request = self.call, self.request
        try:
            done = write_over(call, self.attempt, retry=not request.cas)
        except StoreRefusal:
            if self.failed is None or isinstance(request, kv.SubdocOperation):
                raise
            position, refusal = self.failed
            value = _FAILED.pack(position, status_number(refusal.status))
            return (call.plain(value, status=Status.SUBDOC_MULTI_PATH_FAILURE),)
        if request.cas:
            call.locks.release(request.vbucket, self.key, request.cas)
        return (self.response(done),)

    def attempt(self) -> Change:
        """The change for the document as it is now."""
        call, request = self.call, self.request
        cas = call.locks.condition(request.vbucket, self.key, request.cas)
        found = self.found()
        if found is not None and cas and found.cas != cas:
            raise StoreRefusal(
                Status.EXISTS, f"the document {request.key!r} has another CAS than {cas}"
            )
        if any(path.command is C.DELETE for path in self.paths):
            return self.deletion(found)
        draft = Draft()
        if found is not None:
            parts = lookups.split(found.value, found.datatype)
            draft = Draft(parts.xattrs, parts.body, parts.is_json)
        self.edit(draft)
        return self.change(draft, found)

    def found(self) -> CanonicalChange | None:
        """The document that is edited; None where one is to be made."""
        request = self.request
        makes = bool(self.flags & (_MAKE_DOCUMENT | _ADD)) and not request.cas
        try:
            found = self.call.bucket.get(request.vbucket, self.key)
        except StoreRefusal as refusal:
            if refusal.status is not Status.NOT_FOUND or not makes:
                raise
            return None
        if self.flags & _ADD:
            raise StoreRefusal(Status.EXISTS, f"there is a document {request.key!r}")
        return found

    def edit(self, draft: Draft) -> None:
        self.told, self.failed = [], None
        for position, path in enumerate(self.paths):
            try:
                self.told.append(draft.apply(path))
            except StoreRefusal as refusal:
                self.failed = position, refusal
                raise

    def change(self, draft: Draft, found: CanonicalChange | None) -> Change:
        request = self.request
        vbucket, expiry = request.vbucket, request.expiry or 0
        parts = draft.parts
        value, datatype = parts.body, Datatype.JSON if parts.is_json else Datatype.RAW
        # A document that had attributes must say so even without: the store would keep the old.
        if parts.xattrs != "{}" or (found is not None and found.datatype & Datatype.XATTR):
            value, datatype = parts.joined(), datatype | Datatype.XATTR
        if found is None:
            return Add(vbucket, self.key, value, 0, expiry, int(datatype))
        if keeps_expiry(request):
            expiry = found.time
        return Replace(vbucket, self.key, value, found.flags, expiry, int(datatype), found.cas)

    def deletion(self, found: CanonicalChange | None) -> Change:
        if len(self.paths) > 1 or self.paths[0].path or found is None:
            raise StoreRefusal(
                Status.NOT_SUPPORTED, "a document is deleted whole, by a path of its own"
            )
        self.told = [b""]
        return Delete(self.request.vbucket, self.key, found.cas)

    def response(self, done: Applied) -> PlainResponse:
        vbuuid, seqno = self.call.token(done)
        extras = b"" if vbuuid is None else _TOKEN.pack(vbuuid, seqno)
        if isinstance(self.request, kv.SubdocOperation):
            value = self.told[0]
        else:
            number = status_number(Status.SUCCESS)
            value = b"".join(
                _TOLD.pack(position, number, len(told)) + told
                for position, told in enumerate(self.told)
                if told
            )
        return self.call.plain(value, extras=extras, cas=done.cas)


def _check_xattrs_negotiated(call: Call, paths: tuple[kv.SubdocPath, ...]) -> None:
    if not call.has(Feature.XATTR) and any(path.path_flags & IN_XATTRS for path in paths):
        raise StoreRefusal(Status.NOT_SUPPORTED, "extended attributes were not negotiated")


HANDLERS: dict[type[Request], Callable[[Call, Any], Answer]] = {
    kv.SubdocOperation: _one,
    kv.SubdocMultiLookup: _multi_lookup,
    kv.SubdocMultiMutation: _multi_mutation,
}
