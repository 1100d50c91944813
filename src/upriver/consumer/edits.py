"""What is done to one document: a short conversation with its server, one request at a time.

Most are generators in disguise, like the introduction of a connection: such a one yields a request
and is sent the answer, or None where the server says nothing. All requests are quiet: a write is
answered only if it is refused, a read only if there is something to read. So none of them is
waited for, and thousands of these conversations take place at once.

Every edit can be begun again after a lost connection, when nobody knows how far it came: it then
finds out. Nothing here knows sockets, nodes or clocks.
"""

from __future__ import annotations

import struct
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator
from enum import Enum, auto
from functools import partial
from typing import Any, Final, NamedTuple, TypeAlias

from ..errors import ConfigError, RemoteProtocolError, Status, StatusError
from ..model import Datatype
from ..session.introduction import refusal_context
from ..wire import kv, leb128
from ..wire.dialects import Dcp
from ..wire.header import parse_header
from ..wire.limits import MAX_COLLECTION_KEY, MAX_KEY, MAX_VALUE
from ..wire.messages import Response

__all__ = [
    "Ask",
    "Conversation",
    "Edit",
    "Form",
    "Outcome",
    "Overwrite",
    "Steps",
    "checked_removal",
    "checked_upsert",
    "copied",
    "copied_removal",
    "get",
    "refused",
    "removal",
    "shown_key",
    "store",
    "upsert",
]

#: As much of a key as an error shows.
_KEY_SHOWN: Final = 100
#: An option of a deletion that was made elsewhere: the document had come to its time.
_IS_EXPIRATION: Final = 0x10
_NANOSECONDS: Final = 1_000_000_000
_U32_MAX: Final = 2**32 - 1

_JSON: Final = int(Datatype.JSON)
_STORE = struct.Struct(
    ">"
    "I"  # flags
    "I"  # expiry
)
_PLAIN: Final = _STORE.pack(0, 0)
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


class Form(Enum):
    """The requests that edits are made of, all of them quiet."""

    GET = auto()
    META = auto()
    SET = auto()
    ADD = auto()
    DELETE = auto()
    SET_META = auto()
    DELETE_META = auto()

    opcode: int


def _learn_opcodes() -> None:
    """Numbers are the dialect's business, and encoding a million messages is too slow."""
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
    """One request about a document, but for the document's name."""

    form: Form
    extras: bytes = b""
    value: bytes = b""
    cas: int = 0
    datatype: int = 0


class Outcome(Enum):
    """What became of a document."""

    WRITTEN = auto()
    #: It was as it shall be, or is a newer version of the same history.
    UNCHANGED = auto()


#: Requests, and the answers to them; what it returns is the edit's result.
Steps: TypeAlias = Generator[Ask, Response | None, Any]


class Edit(ABC):
    """What is to be done to one document. It is used up by being done."""

    __slots__ = ("ask", "key", "name", "result", "since", "vbucket")

    #: What it asks next.
    ask: Ask
    #: Whether a later edit of the document may take its place before it is sent.
    last_wins = False

    def __init__(self, key: bytes, collection: int) -> None:
        limit = MAX_COLLECTION_KEY if collection else MAX_KEY
        if not 1 <= len(key) <= limit:
            raise ConfigError(
                f"the key {shown_key(key)} has {len(key)} bytes; a key has 1 to {limit}"
            )
        self.key = key
        #: The key with its collection: what tells it from all other documents of the bucket.
        self.name = (leb128.encode(collection) if collection else b"\0") + key
        self.vbucket = 0
        #: Since when it cannot go on, if it cannot.
        self.since: float | None = None
        self.result: Any = None

    @abstractmethod
    def begin(self) -> None:
        """Begins again."""

    @abstractmethod
    def hear(self, answer: Response | None) -> bool:
        """Goes on after an answer; whether it is done. `StatusError` if that was a refusal."""


class Conversation(Edit):
    """An edit that needs several requests, or may need them."""

    __slots__ = ("_plan", "_steps", "last_wins")

    def __init__(
        self, key: bytes, collection: int, plan: Callable[[], Steps], *, last_wins: bool = False
    ) -> None:
        super().__init__(key, collection)
        self.last_wins = last_wins
        self._plan = plan
        self.begin()

    def begin(self) -> None:
        self._steps = self._plan()
        self.ask = next(self._steps)

    def hear(self, answer: Response | None) -> bool:
        try:
            self.ask = self._steps.send(answer)
        except StopIteration as done:
            self.result = done.value
            return True
        return False


class Overwrite(Edit):
    """Writes a document whatever is there: the edit that comes by the million."""

    __slots__ = ()

    last_wins = True

    def __init__(self, key: bytes, value: bytes, *, json: bool = False) -> None:
        super().__init__(key, 0)
        self.ask = store(Form.SET, value, json=json)

    def begin(self) -> None:
        pass  # there is one request, and it has not changed

    def hear(self, answer: Response | None) -> bool:
        self.result = _written(answer, self.key)
        return True


def shown_key(key: bytes) -> str:
    """A key for an error message."""
    text = key[:_KEY_SHOWN].decode(errors="backslashreplace")
    return repr(text) + ("..." if len(key) > _KEY_SHOWN else "")


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
    """Makes a document be so; it is not written if it is so already."""
    document = _document(key, value, flags, expiry, json)
    return Conversation(key, collection, partial(_upsert, document), last_wins=True)


def _upsert(document: _Document) -> Steps:
    if (yield from document.is_there()).same:
        return Outcome.UNCHANGED
    return _written((yield store(Form.SET, *document[1:])), document.key)


def removal(key: bytes, *, collection: int = 0) -> Edit:
    """Makes a document not be there."""
    return Conversation(key, collection, partial(_removal, key), last_wins=True)


def _removal(key: bytes) -> Steps:
    answer = yield Ask(Form.DELETE)
    if answer is not None and answer.status is Status.NOT_FOUND:
        return Outcome.UNCHANGED
    return _written(answer, key)


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
    """Writes a document that still has this CAS, or with 0 one that is not there yet.

    If it has another one but is what would be written, that was us: before a lost connection, or
    in a task that Spark ran again.
    """
    document = _document(key, value, flags, expiry, json)
    return Conversation(key, collection, partial(_checked_upsert, document, cas))


def _checked_upsert(document: _Document, cas: int) -> Steps:
    form = Form.SET if cas else Form.ADD
    answer = yield store(form, *document[1:], cas=cas)
    if answer is None or answer.status not in (Status.EXISTS, Status.NOT_FOUND):
        return _written(answer, document.key)
    found = yield from document.is_there()
    if found.same:
        return Outcome.UNCHANGED
    raise _mismatch(document.key, expected=cas, found=found.cas)


def checked_removal(key: bytes, *, cas: int, collection: int = 0) -> Edit:
    """Removes a document that still has this CAS; one that is gone is fine."""
    return Conversation(key, collection, partial(_checked_removal, key, cas))


def _checked_removal(key: bytes, cas: int) -> Steps:
    answer = yield Ask(Form.DELETE, cas=cas)
    if answer is not None and answer.status is Status.EXISTS:
        found = yield from get(key)
        if found is not None:
            raise _mismatch(key, expected=cas, found=found.cas)
        return Outcome.UNCHANGED
    if answer is not None and answer.status is Status.NOT_FOUND:
        return Outcome.UNCHANGED
    return _written(answer, key)


# ---- versions that were made elsewhere ---------------------------------------------------


def copied(
    key: bytes,
    value: bytes,
    *,
    cas: int,
    rev: int,
    collection: int = 0,
    flags: int = 0,
    expiry: int = 0,
    json: bool = False,
) -> Edit:
    """Writes a version with the CAS and revision it has elsewhere, unless a newer one is there."""
    document = _document(key, value, flags, expiry, json)
    return Conversation(key, collection, partial(_copied, document, cas, rev))


def _copied(document: _Document, cas: int, rev: int) -> Steps:
    extras = _WITH_META.pack(document.flags, document.expiry, rev, cas)
    datatype = _JSON if document.json else 0
    answer = yield Ask(Form.SET_META, extras, document.value, 0, datatype)
    if answer is None or answer.status is not Status.EXISTS:
        return _written(answer, document.key)
    meta = yield from _meta(document.key)
    if meta is not None and (meta.cas, meta.rev) == (cas, rev) and not meta.deleted:
        found = yield from get(document.key)
        if found is not None and found.cas == cas and not document.is_like(found):
            raise StatusError(
                Status.EXISTS,
                request=_request(document.key),
                context="the bucket has another document with the same CAS and revision; to "
                "change a document that was read from it, write it without these columns",
            )
    return Outcome.UNCHANGED


def copied_removal(
    key: bytes, *, cas: int, rev: int, collection: int = 0, expired: bool = False
) -> Edit:
    """As `copied`, for the tombstone of a document that was deleted or expired elsewhere."""
    return Conversation(key, collection, partial(_copied_removal, key, cas, rev, expired))


def _copied_removal(key: bytes, cas: int, rev: int, expired: bool) -> Steps:
    # The time of a deletion counts where versions are compared. So it must not depend on when
    # we write: the CAS is made of it.
    extras = _WITH_META.pack(0, min(cas // _NANOSECONDS, _U32_MAX), rev, cas)
    if expired:
        extras += _OPTIONS.pack(_IS_EXPIRATION)
    answer = yield Ask(Form.DELETE_META, extras)
    if answer is not None and answer.status in (Status.EXISTS, Status.NOT_FOUND):
        return Outcome.UNCHANGED
    return _written(answer, key)


# ---- steps that several edits share ------------------------------------------------------


class _Found(NamedTuple):
    """What a look at a document told: the CAS is 0 where there is none."""

    same: bool
    cas: int


class _Document(NamedTuple):
    """A document as it shall be."""

    key: bytes
    value: bytes
    flags: int
    expiry: int
    json: bool

    def is_like(self, found: kv.DocumentResponse) -> bool:
        return found.value == self.value and found.flags == self.flags

    def is_there(self) -> Generator[Ask, Response | None, _Found]:
        """Whether the document is this one already."""
        found = yield from get(self.key)
        if found is None or not self.is_like(found):
            return _Found(False, 0 if found is None else found.cas)
        meta = yield from _meta(self.key)
        same = meta is not None and not meta.deleted and meta.expiry == self.expiry
        # if another writer came in between, what was compared is not what is there
        return _Found(same and meta is not None and meta.cas == found.cas, found.cas)


def _document(key: bytes, value: bytes, flags: int, expiry: int, json: bool) -> _Document:
    if len(value) > MAX_VALUE:  # servers hang up instead of answering
        raise ConfigError(
            f"the document {shown_key(key)} has {len(value)} bytes; {MAX_VALUE} are the most"
        )
    return _Document(key, value, flags, expiry, json)


def store(
    form: Form, value: bytes, flags: int = 0, expiry: int = 0, json: bool = False, *, cas: int = 0
) -> Ask:
    """The request that sets or adds a document."""
    extras = _STORE.pack(flags, expiry) if flags or expiry else _PLAIN
    return Ask(form, extras, value, cas, _JSON if json else 0)


def get(key: bytes) -> Generator[Ask, Response | None, kv.DocumentResponse | None]:
    """Reads the document, if there is one."""
    answer = yield Ask(Form.GET)
    if answer is None or isinstance(answer, kv.DocumentResponse):
        return answer
    if answer.status is Status.NOT_FOUND:
        return None
    raise refused(key, answer)


def _meta(key: bytes) -> Generator[Ask, Response | None, kv.MetaResponse | None]:
    answer = yield Ask(Form.META)
    if answer is None or isinstance(answer, kv.MetaResponse):
        return answer
    if answer.status is Status.NOT_FOUND:
        return None
    raise refused(key, answer)


def _written(answer: Response | None, key: bytes) -> Outcome:
    if answer is not None and answer.status is not Status.SUCCESS:
        raise refused(key, answer)
    return Outcome.WRITTEN  # some servers answer although the request is quiet


# ---- refusals ----------------------------------------------------------------------------


def refused(key: bytes, answer: Response) -> StatusError | RemoteProtocolError:
    """The error for an answer that ends an edit."""
    if answer.status is Status.SUCCESS:
        return RemoteProtocolError(f"the answer about {shown_key(key)} is none to what was asked")
    context = (
        _HINTS.get(answer.status) or refusal_context(answer) or "see what the server's log says"
    )
    return StatusError(answer.status, request=_request(key), context=context)


def _request(key: bytes) -> str:
    return f"writing the document {shown_key(key)}"


def _mismatch(key: bytes, *, expected: int, found: int) -> StatusError:
    has = f"it has CAS {found}" if found else "it is not there"
    wants = f"expected was CAS {expected}" if expected else "expected was that it is not there"
    status = Status.EXISTS if found else Status.NOT_FOUND
    return StatusError(status, request=_request(key), context=f"{has}, {wants}")


_HINTS: Final = {
    Status.NO_ACCESS: "the user may not write, or not with the CAS and revision of other clusters",
    Status.TOO_BIG: "it is larger than the bucket allows",
    Status.CAS_VALUE_INVALID: "its CAS is too far in the future",
    Status.UNKNOWN_COLLECTION: "its collection was dropped",
}
