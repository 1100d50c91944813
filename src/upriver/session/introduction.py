"""What is said first on every connection to a server: who we are, and which bucket is meant.

    HELLO ──> [mechanisms ──> SCRAM, or PLAIN where nobody listens] ──> SELECT_BUCKET

`introduce` is a generator: it yields one request at a time and is sent the answer to it. Which
opaque a request has, and which answer belongs to it, is the business of whoever has the
connection. So are the two ways of failing that need no message, for which the errors are made
here: `stranger` for bytes that are none of the protocol's, `hung_up` for no bytes at all.

SCRAM hashes for some milliseconds, or as long as the server asks within the limit of `scram`.
Nothing here knows sockets or clocks.
"""

from __future__ import annotations

import json
from collections.abc import Generator
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from ..errors import (
    AuthenticationFailed,
    BucketNotFound,
    ConfigError,
    ConnectionFailed,
    NotADcpServer,
    Status,
)
from ..wire import kv
from ..wire.messages import PlainResponse, Request, Response
from ..wire.names import Feature
from .saslprep import prepare
from .scram import SCRAM_DIGESTS, ScramClient

__all__ = [
    "FIRST_OPAQUE",
    "Credentials",
    "Introduced",
    "Introduction",
    "hung_up",
    "introduce",
    "refusal_context",
    "stranger",
]

#: A good opaque to begin with. It reads as two ends of lines, so that a server of a protocol made
#: of lines, such as HTTP, answers at once instead of waiting for the rest of the first.
FIRST_OPAQUE: Final = 0x0D0A0D0A

_PLAIN: Final = "PLAIN"
#: What servers say to a command from after their time.
_NEVER_HEARD_OF: Final = frozenset({Status.UNKNOWN_COMMAND, Status.NOT_SUPPORTED})
#: Characters of a server's own words that are shown: a sentence, not a page.
_MAX_CONTEXT: Final = 200
#: Bytes of a stranger's first words that are shown.
_SHOWN: Final = 24
#: How a TLS server begins to say that it was not greeted properly: alert, version 3.x.
_TLS_ALERT: Final = b"\x15\x03"
_LOOK_IN_ITS_LOG: Final = "see what its log says"


@dataclass(frozen=True, slots=True, kw_only=True)
class Credentials:
    """A user's name and password, as the user types them."""

    user: str
    password: str = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Introduction:
    """Who we are, what we can do, and which bucket we want."""

    agent: str
    bucket: str
    features: tuple[Feature, ...]
    #: None for servers without users.
    credentials: Credentials | None = None
    #: Whether the connection is encrypted, so that a password may be shown to the server.
    secret: bool = False


@dataclass(frozen=True, slots=True)
class Introduced:
    """What the server agreed to."""

    features: frozenset[Feature | int]


_Talk: TypeAlias = Generator[Request, Response, None]


def introduce(introduction: Introduction) -> Generator[Request, Response, Introduced]:
    """Leads a new connection into its bucket; `ConnectionFailed` says why it cannot be."""
    features = yield from _greet(introduction)
    if introduction.credentials is not None:
        yield from _authenticate(introduction.credentials, secret=introduction.secret)
    yield from _select(introduction, can_select=Feature.SELECT_BUCKET in features)
    return Introduced(features)


def _greet(
    introduction: Introduction,
) -> Generator[Request, Response, frozenset[Feature | int]]:
    answer = yield kv.Hello(agent=introduction.agent, features=introduction.features)
    if answer.status in _NEVER_HEARD_OF:
        return frozenset()
    if not isinstance(answer, kv.HelloResponse) or answer.status is not Status.SUCCESS:
        raise _refused("HELLO", answer)
    if not set(answer.features) <= set(introduction.features):
        # It will act on them, and we would misread what it says.
        raise NotADcpServer(
            "turns on features that were not offered to it",
            "is there a proxy in between that speaks for itself?",
        )
    return frozenset(answer.features)


# ---- who we are --------------------------------------------------------------------------


def _authenticate(credentials: Credentials, *, secret: bool) -> _Talk:
    try:
        user, password = prepare(credentials.user), prepare(credentials.password)
    except ValueError as problem:
        raise ConfigError(f"the user's name or password has {problem}") from None
    answer = yield kv.SaslListMechanisms()
    if answer.status in _NEVER_HEARD_OF:
        raise AuthenticationFailed("knows no users", "connect without one")
    if answer.status is not Status.SUCCESS:
        raise _refused("to list its mechanisms", answer)
    offered = _value(answer).decode(errors="replace").split()
    mechanism = next((mechanism for mechanism in SCRAM_DIGESTS if mechanism in offered), None)
    may_show = secret and _PLAIN in offered
    if mechanism is not None:
        judged = yield from _scram(mechanism, user, password)
        if judged.status is not Status.AUTH_ERROR or not may_show:
            _believed(judged, user, Status.SUCCESS)
            return
    elif not may_show:
        raise AuthenticationFailed(
            "offers no mechanism that keeps the password secret", "connect with couchbases://"
        )
    # a server that asks a directory such as LDAP who somebody is needs the password itself
    payload = f"\0{user}\0{password}".encode()
    _believed((yield kv.SaslAuth(mechanism=_PLAIN, payload=payload)), user, Status.SUCCESS)


def _scram(mechanism: str, user: str, password: str) -> Generator[Request, Response, Response]:
    """The last answer of an exchange: that the server believes us, or that it does not."""
    exchange = ScramClient(mechanism, user, password)
    challenge = yield kv.SaslAuth(mechanism=mechanism, payload=exchange.first())
    if challenge.status is Status.AUTH_ERROR:
        return challenge
    _believed(challenge, user, Status.AUTH_CONTINUE)
    try:
        proof = exchange.answer(_value(challenge))
        final = yield kv.SaslStep(mechanism=mechanism, payload=proof)
        if final.status is Status.SUCCESS:
            exchange.check(_value(final))
        return final
    except ValueError as problem:
        raise AuthenticationFailed(
            f"is not to be trusted: {problem}", "check the address"
        ) from None


def _believed(answer: Response, user: str, expected: Status) -> None:
    if answer.status is expected:
        return
    if answer.status.retriable:
        raise _refused(f"for now to say whether we are {user},", answer)
    raise AuthenticationFailed(
        f"does not believe that we are {user} ({answer.status.name})",
        "check the user and the password",
    )


# ---- which bucket ------------------------------------------------------------------------


def _select(introduction: Introduction, *, can_select: bool) -> _Talk:
    bucket = introduction.bucket
    answer = yield kv.SelectBucket(bucket=bucket)
    if answer.status is Status.SUCCESS:
        return
    if answer.status in _NEVER_HEARD_OF and not can_select:
        return  # such a server has one bucket, or one for each user
    if answer.status is Status.NOT_FOUND:
        raise BucketNotFound(f"has no bucket {bucket}", "check the name at the end of the source")
    if answer.status is Status.NO_ACCESS:
        known = introduction.credentials is not None
        hint = "does it exist, and may the user use it?" if known else "give a user and a password"
        raise BucketNotFound(f"keeps us out of the bucket {bucket}", hint)
    raise _refused(f"the bucket {bucket}", answer)


# ---- failing -----------------------------------------------------------------------------


def stranger(received: bytes | bytearray | memoryview) -> NotADcpServer:
    """The error for a peer whose first bytes are none of the protocol's."""
    first = bytes(received[:_SHOWN])
    if first.startswith(_TLS_ALERT):
        return NotADcpServer("wants TLS", "connect with couchbases://")
    return NotADcpServer(
        f"is no server of this protocol: it says {first!r}",
        "is it the port for data? Couchbase's are 11210, and 11207 for TLS",
    )


def hung_up(reason: str, *, secret: bool) -> ConnectionFailed:
    """The error for a peer that went away, or never spoke, before it answered anything."""
    likely = "is it the port for data?" if secret else "does it want TLS, that is couchbases://?"
    return ConnectionFailed(f"did not answer: {reason}", f"{likely} Or {_LOOK_IN_ITS_LOG}")


def refusal_context(answer: Response) -> str:
    """What a server says about a refusal in its own words, if it says anything."""
    try:
        said = json.loads(_value(answer))["error"]["context"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return ""
    return " ".join(str(said).split())[:_MAX_CONTEXT]


def _refused(what: str, answer: Response) -> ConnectionFailed:
    number = f" {answer.status_code:#x}" if answer.status is Status.UNRECOGNISED else ""
    return ConnectionFailed(
        f"refused {what} with {answer.status.name}{number}",
        refusal_context(answer) or _LOOK_IN_ITS_LOG,
    )


def _value(answer: Response) -> bytes:
    return answer.value if isinstance(answer, PlainResponse) else b""
