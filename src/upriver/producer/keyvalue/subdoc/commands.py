"""Sub-document commands: read and write parts of documents by path.

A mutation reads the document, edits it and writes the result on condition that the version it read
is still current. If another writer came first and the client gave no CAS, the mutation is retried.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

from ....errors import Status, StoreRefusal
from ....escaping import quoted
from ....model import Datatype
from ....store import Applied, ChangeRequest, DeleteDocument, EditDocument
from ....wire import canonical
from ....wire import kv_messages as kv
from ....wire.canonical import CanonicalChange
from ....wire.messages import PlainResponse, Request
from ....wire.protocol_enums import Command as C
from ....wire.protocol_enums import Feature, PathFlag, SubdocFlag
from ..document_writes import keeps_expiry, write_over
from ..handler_results import MUTATION_TOKEN, Answer, BackgroundWork, Blocking, Now, Responses
from ..request_context import Call, key_of
from . import lookups
from .lookups import (
    check_order,
    status_number,
)
from .macros import Macros
from .mutations import MUTATIONS, Draft

# As integers: the complement of a flag set has no unknown bits.
_OF_LOOKUPS: Final = int(SubdocFlag.ACCESS_DELETED | SubdocFlag.REPLICA_READ)
_OF_MUTATIONS: Final = int(~SubdocFlag.REPLICA_READ)
_MAKES: Final = SubdocFlag.MAKE_DOCUMENT | SubdocFlag.ADD

#: Larger documents are searched in a thread: each path takes up to a millisecond.
_MAX_INLINE: Final = 16 * 1024

_LOOKUPS: Final = frozenset({C.GET, C.SUBDOC_GET, C.SUBDOC_EXISTS, C.SUBDOC_GET_COUNT})

_FAILED = struct.Struct(
    ">"
    "B"  # index of the path
    "H"  # its status
)
_RESULT = struct.Struct(
    ">"
    "B"  # index of the path
    "H"  # its status
    "I"  # length of its value
)


# ---- lookups -----------------------------------------------------------------------------


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
    if flags & ~_OF_LOOKUPS:
        raise StoreRefusal(Status.INVALID, f"{flags:#x} are no document flags of a lookup")
    _check_xattrs_negotiated(call, paths)
    found, deleted = _read(call, request, flags)
    cas = call.locks.shown_cas(request.vbucket, key_of(request), found.cas)
    if request.cas not in (0, cas):
        raise StoreRefusal(
            Status.EXISTS, f"the document {quoted(request.key)} has CAS {cas}, not {request.cas}"
        )
    found = found._replace(cas=cas)

    def search() -> Responses:
        parts = lookups.split(found.value, found.datatype)
        xattrs = parts.xattrs
        if wanted := lookups.wanted_virtual(paths):
            branch = call.bucket.failover_log(request.vbucket).newest
            xattrs = lookups.virtual(wanted, found, parts, branch, call.node.now())
        results: list[tuple[Status, bytes]] = []
        for path in paths:
            try:
                results.append((Status.SUCCESS, lookups.look_up(parts, xattrs, path)))
            except StoreRefusal as refusal:
                results.append((refusal.status, b""))
        return (respond(call, found, deleted, results),)

    return (
        Blocking(BackgroundWork.SEARCHING, search)
        if len(found.value) > _MAX_INLINE
        else Now(search())
    )


def _read(call: Call, request: kv.DocumentRequest, flags: int) -> tuple[CanonicalChange, bool]:
    """Returns the document, or its tombstone if requested, and whether it is a tombstone."""
    vbucket, key, replica = request.vbucket, key_of(request), bool(flags & SubdocFlag.REPLICA_READ)
    try:
        return call.bucket.get(vbucket, key, replica=replica), False
    except StoreRefusal as refusal:
        if refusal.status is not Status.NOT_FOUND or not flags & SubdocFlag.ACCESS_DELETED:
            raise
    record = call.bucket.meta(vbucket, key, replica=replica)
    with call.bucket.open_reader(vbucket, record.seqno - 1) as reader:
        chunk = reader.read(1)
    if not record.is_tombstone or chunk is None or chunk.last_seqno != record.seqno:
        raise StoreRefusal(Status.NOT_FOUND, f"there is no document {quoted(request.key)}")
    return canonical.parse(chunk.frames), True


# ---- mutations ---------------------------------------------------------------------------


def _multi_mutation(call: Call, request: kv.SubdocMultiMutation) -> Answer:
    check_order(request.paths, MUTATIONS)
    return _mutate(call, request, request.paths)


def _mutate(
    call: Call,
    request: kv.SubdocOperation | kv.SubdocMultiMutation,
    paths: tuple[kv.SubdocPath, ...],
) -> Answer:
    flags = request.doc_flags or 0
    _check_flags(request, paths, flags)
    _check_xattrs_negotiated(call, paths)
    return Blocking(BackgroundWork.EDITING, _Mutation(call, request, paths, flags).run)


def _check_flags(
    request: kv.SubdocOperation | kv.SubdocMultiMutation,
    paths: tuple[kv.SubdocPath, ...],
    flags: int,
) -> None:
    """Refuses document flags that are unknown, or contradict each other or the paths."""
    problem = ""
    # Couchbase Server refuses this only for a single path: transactions set the flag for documents
    # that exist, too.
    creates_deleted = flags & SubdocFlag.CREATE_AS_DELETED and isinstance(
        request, kv.SubdocOperation
    )
    if flags & ~_OF_MUTATIONS:
        problem = f"{flags:#x} are no document flags of a mutation"
    elif flags & SubdocFlag.MAKE_DOCUMENT and flags & SubdocFlag.ADD:
        problem = "a document is added or made, not both"
    elif flags & SubdocFlag.ADD and request.cas:
        problem = "a document that must not exist has no CAS"
    elif creates_deleted and not flags & _MAKES:
        problem = "what is created as deleted must be added or made"
    elif creates_deleted and not all(x.path_flags & PathFlag.IN_XATTRS for x in paths):
        problem = "what is created as deleted has attributes only"
    elif flags & SubdocFlag.REVIVE and not flags & SubdocFlag.ACCESS_DELETED:
        problem = "only who can see deleted documents can revive them"
    elif flags & SubdocFlag.REVIVE and flags & SubdocFlag.CREATE_AS_DELETED:
        problem = "a document is revived or created as deleted, not both"
    if problem:
        raise StoreRefusal(Status.INVALID, problem)


class _Mutation:
    """One mutation from the read to the response. A failing path is reported by its index."""

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
        #: Whether the edited version is a tombstone, or the new version is to be one.
        self.deleted = False
        self.results: list[bytes] = []
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

    def attempt(self) -> ChangeRequest:
        """Reads the document and returns the change to make."""
        call, request = self.call, self.request
        cas = call.locks.condition(request.vbucket, self.key, request.cas)
        found = self.found()
        if found is not None and cas and found.cas != cas:
            raise StoreRefusal(
                Status.EXISTS, f"the document {quoted(request.key)} has another CAS than {cas}"
            )
        *paths, last = self.paths
        deletes = last.command is C.DELETE
        if deletes and not paths and not last.path and found is not None and not self.deleted:
            self.results = [b""]
            return DeleteDocument(request.vbucket, self.key, found.cas)
        draft = self.draft(found)
        self.edit(draft, tuple(paths) if deletes else self.paths)
        if deletes:
            self.delete(draft, found, last)
        return self.change(draft, found, deletes)

    def found(self) -> CanonicalChange | None:
        """Returns the version to edit; None if a document is to be created."""
        request = self.request
        makes = bool(self.flags & _MAKES) and not request.cas
        try:
            found, self.deleted = _read(self.call, request, self.flags)
        except StoreRefusal as refusal:
            if refusal.status is not Status.NOT_FOUND or not makes:
                raise
            self.deleted = bool(self.flags & SubdocFlag.CREATE_AS_DELETED)
            return None
        if self.flags & SubdocFlag.ADD:
            raise StoreRefusal(Status.EXISTS, f"there is a document {quoted(request.key)}")
        if self.flags & SubdocFlag.REVIVE and not self.deleted:
            raise StoreRefusal(
                Status.SUBDOC_CAN_ONLY_REVIVE_DELETED, f"{quoted(request.key)} is not deleted"
            )
        return found

    def draft(self, found: CanonicalChange | None) -> Draft:
        if found is None:
            return Draft()
        parts = lookups.split(found.value, found.datatype)
        document = None
        if any(path.path_flags & PathFlag.EXPAND_MACROS for path in self.paths):
            branch = self.call.bucket.failover_log(self.request.vbucket).newest
            document = lookups.document_attribute(found, parts, branch)
        body = None if self.deleted and not parts.body else parts.body
        return Draft(parts.xattrs, body, parts.is_json or body is None, Macros(document))

    def edit(self, draft: Draft, paths: tuple[kv.SubdocPath, ...]) -> None:
        self.results, self.failed = [], None
        # A request that creates the document also creates the parents of its paths.
        implied = PathFlag.MAKE_PARENTS if self.flags & _MAKES else 0
        for position, path in enumerate(paths):
            try:
                if path.path:
                    path = replace(path, path_flags=path.path_flags | implied)
                self.results.append(draft.apply(path))
            except StoreRefusal as refusal:
                self.failed = position, refusal
                raise

    def delete(self, draft: Draft, found: CanonicalChange | None, operation: kv.SubdocPath) -> None:
        """Reduces a document to what its tombstone keeps: the system attributes."""
        attributes_only = all(path.path_flags & PathFlag.IN_XATTRS for path in self.paths[:-1])
        if operation.path or found is None or self.deleted or not attributes_only:
            raise StoreRefusal(
                Status.SUBDOC_INVALID_COMBINATION,
                "a document that is there is deleted whole, behind edits of its attributes",
            )
        self.results.append(b"")
        draft.bury()

    def change(self, draft: Draft, found: CanonicalChange | None, deletes: bool) -> ChangeRequest:
        request = self.request
        deleted = (self.deleted and not self.flags & SubdocFlag.REVIVE) or deletes
        parts = draft.remains if deleted else draft.parts
        parts = parts._replace(xattrs=draft.macros.finish(parts.xattrs, parts.body))
        value, datatype = parts.body, Datatype.JSON if parts.is_json else Datatype.RAW
        if parts.xattrs != "{}":
            value, datatype = parts.joined(), datatype | Datatype.XATTR
        expiry, flags = request.expiry or 0, 0
        if found is not None and not self.deleted:
            flags = found.flags
            if keeps_expiry(request):
                expiry = found.time
        return EditDocument(
            request.vbucket,
            self.key,
            value,
            flags,
            expiry,
            int(datatype),
            0 if found is None else found.seqno,
            deleted,
            draft.macros.cas_text,
            draft.macros.seqno_text,
        )

    def response(self, done: Applied) -> PlainResponse:
        vbuuid, seqno = self.call.token(done)
        extras = b"" if vbuuid is None else MUTATION_TOKEN.pack(vbuuid, seqno)
        if isinstance(self.request, kv.SubdocOperation):
            value = self.results[0]
        else:
            number = status_number(Status.SUCCESS)
            value = b"".join(
                _RESULT.pack(position, number, len(result)) + result
                for position, result in enumerate(self.results)
                if result
            )
        dead = self.deleted and not self.flags & SubdocFlag.REVIVE
        status = Status.SUBDOC_SUCCESS_DELETED if dead else Status.SUCCESS
        return self.call.plain(value, extras=extras, cas=done.cas, status=status)


def _check_xattrs_negotiated(call: Call, paths: tuple[kv.SubdocPath, ...]) -> None:
    if not call.has(Feature.XATTR) and any(path.path_flags & PathFlag.IN_XATTRS for path in paths):
        raise StoreRefusal(Status.NOT_SUPPORTED, "extended attributes were not negotiated")


HANDLERS: dict[type[Request], Callable[[Call, Any], Answer]] = {
    kv.SubdocOperation: _one,
    kv.SubdocMultiLookup: _multi_lookup,
    kv.SubdocMultiMutation: _multi_mutation,
}
