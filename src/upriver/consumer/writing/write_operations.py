"""Edits of one document (read, upsert, remove, ...) as sans-I/O generators.

Most edits wrap a generator that yields requests and is sent the response, or None if the server
sends none. All requests are quiet: a server responds to a write only if it refuses it, and to a
read only if the document exists. So the pipeline need not wait for each response, and thousands of
edits are in progress at once.

Every edit can be started again after a lost connection, although the client then does not know
which of its requests took effect. Edits for which that matters find out by reading the document.
This module knows no sockets, nodes or clocks.
"""

from __future__ import annotations

import struct
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator
from enum import Enum, auto
from functools import partial
from typing import Any, Final, NamedTuple, TypeAlias

from ...errors import Status, StatusError
from ...model import Datatype
from ...wire import kv_messages as kv
from ...wire import leb128
from ...wire.dialects import Dcp
from ...wire.header import parse_header
from ...wire.messages import Response
from .document_checks import WRITING, checked_key, checked_value, refused, request_name

_JSON: Final = int(Datatype.JSON)
_STORE = struct.Struct(
    ">"
    "I"  # flags
    "I"  # expiry
)
_PLAIN: Final = _STORE.pack(0, 0)


class Form(Enum):
    """The kinds of requests that edits send, all of them quiet."""

    GET = auto()
    META = auto()
    SET = auto()
    ADD = auto()
    DELETE = auto()
    SET_META = auto()
    DELETE_META = auto()

    opcode: int


def _learn_opcodes() -> None:
    """Takes the opcodes from packets that the dialect encodes.

    Opcodes are defined in the dialect only. Encoding each request with the dialect would be too
    slow for millions of edits.
    """
    examples: dict[Form, kv.DocumentRequest] = {
        Form.GET: kv.Get(key=b"k", quiet=True),
        Form.META: kv.GetMeta(key=b"k", quiet=True),
        Form.SET: kv.Set(key=b"k", quiet=True),
        Form.ADD: kv.Add(key=b"k", quiet=True),
        Form.DELETE: kv.Delete(key=b"k", quiet=True),
        Form.SET_META: kv.SetWithMeta(key=b"k", rev=1, new_cas=1, quiet=True),
        Form.DELETE_META: kv.DeleteWithMeta(key=b"k", rev=1, new_cas=1, quiet=True),
    }
    for form, example in examples.items():
        form.opcode = parse_header(Dcp().encode(example)).opcode


_learn_opcodes()


class Ask(NamedTuple):
    """The fields of one request, without key and vbucket, which are those of the edit."""

    form: Form
    extras: bytes = b""
    value: bytes = b""
    cas: int = 0
    datatype: int = 0


class EditOutcome(Enum):
    """Result of an edit."""

    WRITTEN = auto()
    #: Nothing was written: the document was in the wanted state, or there is a newer version.
    UNCHANGED = auto()


#: Generator that yields requests and is sent the responses; it returns the result of the edit.
EditSteps: TypeAlias = Generator[Ask, Response | None, Any]


class Edit(ABC):
    """One operation on one document. An edit object can be executed once."""

    __slots__ = ("ask", "key", "name", "result", "since", "vbucket")

    #: The next request to send.
    ask: Ask
    #: Whether a later edit of the same document may replace this one before it is sent.
    last_wins = False

    def __init__(self, key: bytes, collection: int) -> None:
        self.key = checked_key(key, collection)
        #: Collection id and key: unique among all documents of the bucket.
        self.name = (leb128.encode(collection) if collection else b"\0") + key
        self.vbucket = 0
        #: Time of the first failed attempt; None if there was none.
        self.since: float | None = None
        self.result: Any = None

    @abstractmethod
    def begin(self) -> None:
        """Starts again with the first request."""

    @abstractmethod
    def hear(self, answer: Response | None) -> bool:
        """Processes a response, None if there was none; returns whether the edit is done.

        Raises `StatusError` if the server refused the request.
        """


class SteppedEdit(Edit):
    """An edit that may need several requests, driven by a generator."""

    __slots__ = ("_steps", "last_wins", "plan")

    def __init__(
        self, key: bytes, collection: int, plan: Callable[[], EditSteps], *, last_wins: bool = False
    ) -> None:
        super().__init__(key, collection)
        self.last_wins = last_wins
        self.plan = plan
        self.begin()

    def begin(self) -> None:
        self._steps = self.plan()
        self.ask = next(self._steps)

    def hear(self, answer: Response | None) -> bool:
        try:
            self.ask = self._steps.send(answer)
        except StopIteration as done:
            self.result = done.value
            return True
        return False


class Overwrite(Edit):
    """Writes a document without reading it first: one request, for bulk loads."""

    __slots__ = ()

    last_wins = True

    def __init__(
        self, key: bytes, value: bytes, *, collection: int = 0, json: bool = False
    ) -> None:
        super().__init__(key, collection)
        self.ask = store(Form.SET, value, json=json)

    def begin(self) -> None:
        pass  # the only request is always the next one

    def hear(self, answer: Response | None) -> bool:
        self.result = written(answer, self.key)
        return True


# ---- writing -----------------------------------------------------------------------------


def upsert(
    key: bytes,
    value: bytes,
    *,
    collection: int = 0,
    flags: int = 0,
    expiry: int = 0,
    json: bool = False,
) -> Edit:
    """Writes a document, unless the stored one is identical."""
    document = WantedDocument.checked(key, value, flags, expiry, json)
    return SteppedEdit(key, collection, partial(_upsert, document), last_wins=True)


def _upsert(document: WantedDocument) -> EditSteps:
    if (yield from document.is_there()).same:
        return EditOutcome.UNCHANGED
    return written((yield store(Form.SET, *document[1:])), document.key)


def removal(key: bytes, *, collection: int = 0) -> Edit:
    """Deletes a document; it may be missing already."""
    return SteppedEdit(key, collection, partial(_removal, key), last_wins=True)


def _removal(key: bytes) -> EditSteps:
    answer = yield Ask(Form.DELETE)
    if answer is not None and answer.status is Status.NOT_FOUND:
        return EditOutcome.UNCHANGED
    return written(answer, key)


def checked_upsert(
    key: bytes,
    value: bytes,
    *,
    cas: int,
    collection: int = 0,
    flags: int = 0,
    expiry: int = 0,
    json: bool = False,
) -> Edit:
    """Writes a document only if it still has this CAS, or with CAS 0 only if it does not exist.

    If the CAS differs but the stored document is identical, the edit counts as done: this client
    wrote it, before a lost connection or in an earlier attempt of a Spark task.
    """
    document = WantedDocument.checked(key, value, flags, expiry, json)
    return SteppedEdit(key, collection, partial(_checked_upsert, document, cas))


def _checked_upsert(document: WantedDocument, cas: int) -> EditSteps:
    form = Form.SET if cas else Form.ADD
    answer = yield store(form, *document[1:], cas=cas)
    if answer is None or answer.status not in (Status.EXISTS, Status.NOT_FOUND):
        return written(answer, document.key)
    found = yield from document.is_there()
    if found.same:
        return EditOutcome.UNCHANGED
    raise _mismatch(document.key, expected=cas, found=found.cas)


def checked_removal(key: bytes, *, cas: int, collection: int = 0) -> Edit:
    """Deletes a document only if it still has this CAS; it may be missing already."""
    return SteppedEdit(key, collection, partial(_checked_removal, key, cas))


def _checked_removal(key: bytes, cas: int) -> EditSteps:
    answer = yield Ask(Form.DELETE, cas=cas)
    if answer is not None and answer.status is Status.EXISTS:
        found = yield from get(key)
        if found is not None:
            raise _mismatch(key, expected=cas, found=found.cas)
        return EditOutcome.UNCHANGED
    if answer is not None and answer.status is Status.NOT_FOUND:
        return EditOutcome.UNCHANGED
    return written(answer, key)


def unless_dropped(edit: SteppedEdit) -> SteppedEdit:
    """The edit, which does nothing if its collection was dropped."""
    plan = edit.plan

    def steps() -> EditSteps:
        try:
            return (yield from plan())
        except StatusError as problem:
            if problem.status is not Status.UNKNOWN_COLLECTION:
                raise
            return EditOutcome.UNCHANGED

    edit.plan = steps
    edit.begin()
    return edit


# ---- steps that several edits share ------------------------------------------------------


class _Found(NamedTuple):
    """Result of reading a document: whether it is identical, and its CAS, 0 if it is missing."""

    same: bool
    cas: int


class WantedDocument(NamedTuple):
    """The wanted state of a document."""

    key: bytes
    value: bytes
    flags: int
    expiry: int
    json: bool

    @classmethod
    def checked(
        cls, key: bytes, value: bytes, flags: int, expiry: int, json: bool
    ) -> WantedDocument:
        return cls(key, checked_value(key, value), flags, expiry, json)

    @property
    def datatype(self) -> int:
        return _JSON if self.json else 0

    def is_like(self, found: kv.DocumentResponse) -> bool:
        return found.value == self.value and found.flags == self.flags

    def is_there(self) -> Generator[Ask, Response | None, _Found]:
        """Reads the stored document and compares it with this one."""
        found = yield from get(self.key)
        if found is None or not self.is_like(found):
            return _Found(False, 0 if found is None else found.cas)
        meta = yield from get_meta(self.key)
        same = meta is not None and not meta.deleted and meta.expiry == self.expiry
        # if the CAS differs, another client wrote the document between the two reads
        return _Found(same and meta is not None and meta.cas == found.cas, found.cas)


def store(
    form: Form, value: bytes, flags: int = 0, expiry: int = 0, json: bool = False, *, cas: int = 0
) -> Ask:
    """The request that sets or adds a document."""
    extras = _STORE.pack(flags, expiry) if flags or expiry else _PLAIN
    return Ask(form, extras, value, cas, _JSON if json else 0)


def get(key: bytes) -> Generator[Ask, Response | None, kv.DocumentResponse | None]:
    """Reads the document; None if it does not exist."""
    answer = yield Ask(Form.GET)
    if answer is None or isinstance(answer, kv.DocumentResponse):
        return answer
    if answer.status is Status.NOT_FOUND:
        return None
    raise refused(WRITING, key, answer)


def get_meta(key: bytes) -> Generator[Ask, Response | None, kv.MetaResponse | None]:
    answer = yield Ask(Form.META)
    if answer is None or isinstance(answer, kv.MetaResponse):
        return answer
    if answer.status is Status.NOT_FOUND:
        return None
    raise refused(WRITING, key, answer)


def written(answer: Response | None, key: bytes) -> EditOutcome:
    if answer is not None and answer.status is not Status.SUCCESS:
        raise refused(WRITING, key, answer)
    return EditOutcome.WRITTEN  # some servers answer although the request is quiet


def _mismatch(key: bytes, *, expected: int, found: int) -> StatusError:
    has = f"it has CAS {found}" if found else "it is not there"
    wants = f"expected was CAS {expected}" if expected else "expected was that it is not there"
    status = Status.EXISTS if found else Status.NOT_FOUND
    return StatusError(status, request=request_name(key), context=f"{has}, {wants}")
