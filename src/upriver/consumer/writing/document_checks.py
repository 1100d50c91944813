"""Checks of keys and values before they are sent, and the errors of refused requests.

The edits of a writer (`write_operations`) and the single requests of `documents` share them.
"""

from __future__ import annotations

from typing import Final

from ...errors import ConfigError, RemoteProtocolError, Status, StatusError
from ...session.client_handshake import refusal_context
from ...wire.limits import MAX_COLLECTION_KEY, MAX_KEY, MAX_VALUE
from ...wire.messages import Response

#: What edits do, in error messages.
WRITING: Final = "writing"
#: Most bytes of a key in an error message.
_KEY_SHOWN: Final = 100

_HINTS: Final = {
    Status.EXISTS: "it has another CAS than the one that was given",
    Status.NO_ACCESS: "the user may not do this in this bucket or collection",
    Status.TOO_BIG: "it is larger than the bucket allows",
    Status.CAS_VALUE_INVALID: "its CAS is too far in the future",
    Status.UNKNOWN_COLLECTION: "its collection was dropped",
}


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
    context = hint or refusal_context(answer) or "see what the server's log says"
    return StatusError(answer.status, request=request_name(key, doing), context=context)


def request_name(key: bytes, doing: str = WRITING) -> str:
    return f"{doing} the document {shown_key(key)}"
