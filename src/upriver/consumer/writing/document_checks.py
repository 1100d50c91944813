"""Checks of keys and values before they are sent, and the errors of refused requests.

The edits of a writer (`write_operations`) and the single requests of `documents` share them.
"""

from __future__ import annotations

from typing import Final

from ...errors import ConfigError, RemoteProtocolError, Status, StatusError
from ...session.client_handshake import refusal_context
from ...wire.limits import MAX_COLLECTION_KEY, MAX_KEY, MAX_VALUE
from ...wire.messages import PlainResponse, Response

#: What edits do, in error messages.
WRITING: Final = "writing"
#: Most bytes of a key in an error message.
_KEY_SHOWN: Final = 100
#: Most bytes of a server's text in an error message.
_SAID_SHOWN: Final = 200

_HINTS: Final = {
    Status.EXISTS: "it has another CAS than the one that was given",
    Status.NO_ACCESS: "the user may not do this in this bucket or collection",
    Status.TOO_BIG: "it is larger than the bucket allows: shorten it, or raise the bucket's limit",
    Status.CAS_VALUE_INVALID: "its CAS is too far in the future",
    Status.UNKNOWN_COLLECTION: "its collection was dropped",
}
#: For lack of what a server refuses a request, and what to do. After a name of the server.
_NO_SPACE: Final = {
    Status.NO_MEMORY: "is out of memory: give the bucket more, or delete documents",
    Status.BUCKET_SIZE_LIMIT_EXCEEDED: (
        "has no space left for the bucket: raise its size limit, or delete documents"
    ),
    Status.BUCKET_RESIDENT_RATIO_TOO_LOW: (
        "has too little of the bucket in memory: give the bucket more memory, or delete documents"
    ),
    Status.BUCKET_DATA_SIZE_TOO_BIG: (
        "has too much data of the bucket: add a node, or delete documents"
    ),
    Status.BUCKET_DISK_SPACE_TOO_LOW: "has too little disk space left: free some, or add a node",
    # Its number, 0x23, is no answer to a write; servers that mean something else by it say so.
    Status.ROLLBACK: "has no space left: free disk space or memory, or delete documents",
}
#: Why a server cannot carry out a request now.
_NOT_NOW: Final = {
    Status.NOT_MY_VBUCKET: "does not have its vbucket, and there was no newer map",
    Status.LOCKED: "says that somebody has locked it",
    Status.TEMPORARY_FAILURE: (
        "cannot keep up, or its memory or disk is full: look at both, then try again more slowly"
    ),
    Status.BUSY: "cannot keep up: try again more slowly",
}


def excuse(status: Status, server: str = "the server") -> str:
    """Why a server refuses for now, or for lack of space, and what to do; "" if it is neither."""
    found = _NO_SPACE.get(status) or _NOT_NOW.get(status)
    return f"{server} {found}" if found else ""


def shown_key(key: bytes) -> str:
    """A key for an error message."""
    text = key[:_KEY_SHOWN].decode(errors="backslashreplace")
    return repr(text) + ("..." if len(key) > _KEY_SHOWN else "")


def checked_key(key: bytes, collection: int) -> bytes:
    """The key; ConfigError if servers allow no key of its length in the collection."""
    limit = MAX_COLLECTION_KEY if collection else MAX_KEY
    if not 1 <= len(key) <= limit:
        raise ConfigError(f"the key {shown_key(key)} has {len(key)} bytes; a key has 1 to {limit}")
    return key


def checked_value(key: bytes, value: bytes) -> bytes:
    """The value; ConfigError if it is too large: servers close the connection without an answer."""
    if len(value) > MAX_VALUE:
        raise ConfigError(
            f"the document {shown_key(key)} has {len(value)} bytes; {MAX_VALUE} are the most"
        )
    return value


def refused(doing: str, key: bytes, answer: Response) -> StatusError | RemoteProtocolError:
    """The error for a response that refuses a request or does not fit it."""
    if answer.status is Status.SUCCESS:
        return RemoteProtocolError(f"the answer about {shown_key(key)} is none to what was asked")
    hint = _HINTS.get(answer.status)
    if answer.status is Status.NO_ACCESS and doing == WRITING:
        hint = "the user may not write, or not with the CAS and revision of other clusters"
    said, why = _said(answer), excuse(answer.status)
    if answer.status is Status.ROLLBACK and "space" not in said.lower():
        why = ""
    if answer.status in _NO_SPACE:
        hint = "; ".join(filter(None, (said, why)))
    context = hint or said or why or "see what the server's log says"
    return StatusError(answer.status, request=request_name(key, doing), context=context)


def _said(answer: Response) -> str:
    """What the server says about a refusal: the context of an error, or else one line of text."""
    text = answer.value[:_SAID_SHOWN] if isinstance(answer, PlainResponse) else b""
    plain = " ".join(text.decode(errors="replace").split())
    is_text = plain.isprintable() and not plain.startswith("{")
    return refusal_context(answer) or (plain if is_text else "")


def request_name(key: bytes, doing: str = WRITING) -> str:
    return f"{doing} the document {shown_key(key)}"
