"""Client handshake: HELLO, authentication and bucket selection on a new connection.

    HELLO ──> [mechanisms ──> SCRAM, else CRAM-MD5, else PLAIN] ──> [SELECT_BUCKET]

Servers before 4.0 do not know HELLO, and servers before 5.0 do not know SELECT_BUCKET: they serve
one bucket per port or per user. So the bucket is selected only if HELLO granted that feature.
PLAIN reveals the password to the server. It is used over TLS, or if the user allows it.

`introduce` is a conversation (see `conversation`). Two failures happen without any message from
the server, and their errors are created here: `stranger` for bytes that are not this protocol,
`hung_up` for a connection that was closed. SCRAM's hashing is yielded as a `Compute` step, so that
a driver can run it outside its event loop.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Final

from ..errors import (
    AuthenticationFailed,
    BucketNotFound,
    ConfigError,
    ConnectionFailed,
    NotADcpServer,
    Status,
)
from ..wire import kv_messages as kv
from ..wire.messages import PlainResponse, Response
from ..wire.protocol_enums import Feature
from .conversation import Compute, Conversation
from .sasl_client import SCRAM_DIGESTS, ScramClient, cram_md5
from .saslprep import prepare

#: The opaque of the first request. Its bytes are two line ends, so that a server of a line-based
#: protocol, such as HTTP, answers at once instead of waiting for the rest of a line.
FIRST_OPAQUE: Final = 0x0D0A0D0A

#: The role that a user needs to stream changes, as Couchbase names it.
STREAM_ROLE: Final = "the role Data DCP Reader"

_PLAIN: Final = "PLAIN"
_CRAM_MD5: Final = "CRAM-MD5"
#: Statuses that servers answer to a command newer than their release.
_NEVER_HEARD_OF: Final = frozenset({Status.UNKNOWN_COMMAND, Status.NOT_SUPPORTED})
#: The most characters of a server's error context that a message shows: a sentence, not a page.
_MAX_CONTEXT: Final = 200
#: How many of the first received bytes an error shows if they are not this protocol.
_SHOWN: Final = 24
#: The first bytes of a TLS alert (version 3.x), which a TLS server sends to a plain client.
_TLS_ALERT: Final = b"\x15\x03"
_LOOK_IN_ITS_LOG: Final = "see what its log says"


@dataclass(frozen=True, slots=True, kw_only=True)
class Credentials:
    """A user's name and password, as the user types them."""

    user: str
    password: str = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Introduction:
    """The client's name, features and credentials, and the bucket it wants."""

    agent: str
    bucket: str
    features: tuple[Feature, ...]
    #: None for servers without authentication.
    credentials: Credentials | None = None
    #: Whether the connection is encrypted, so that the password may be sent to the server.
    secret: bool = False
    #: Whether the password may be sent unencrypted, to a server that offers nothing but PLAIN.
    allow_plain: bool = False


@dataclass(frozen=True, slots=True)
class Introduced:
    """The features that the server granted."""

    features: frozenset[Feature | int]


def introduce(introduction: Introduction) -> Conversation[Introduced]:
    """Runs the handshake of a new connection. Raises `ConnectionFailed` if the server refuses."""
    features = yield from _greet(introduction)
    if introduction.credentials is not None:
        yield from _authenticate(introduction, introduction.credentials)
    if Feature.SELECT_BUCKET in features:
        yield from _select(introduction)
    return Introduced(features)


def _greet(introduction: Introduction) -> Conversation[frozenset[Feature | int]]:
    answer: Response = yield kv.Hello(agent=introduction.agent, features=introduction.features)
    if answer.status in _NEVER_HEARD_OF:
        return frozenset()
    if not isinstance(answer, kv.HelloResponse) or answer.status is not Status.SUCCESS:
        raise _refused("HELLO", answer)
    if not set(answer.features) <= set(introduction.features):
        # The server will use these features, and its messages would be misread.
        raise NotADcpServer(
            "turns on features that were not offered to it",
            "is there a proxy in between that speaks for itself?",
        )
    return frozenset(answer.features)


# ---- authentication ----------------------------------------------------------------------


def _authenticate(introduction: Introduction, credentials: Credentials) -> Conversation[None]:
    try:
        user, password = prepare(credentials.user), prepare(credentials.password)
    except ValueError as problem:
        raise ConfigError(f"the user's name or password has {problem}") from None
    answer: Response = yield kv.SaslListMechanisms()
    if answer.status in _NEVER_HEARD_OF:
        raise _not_authenticated(user, "the server has no users", "connect without one")
    if answer.status is not Status.SUCCESS:
        raise _refused("to list its mechanisms", answer)
    offered = _value(answer).decode(errors="replace").split()
    mechanism = next((m for m in (*SCRAM_DIGESTS, _CRAM_MD5) if m in offered), None)
    has_plain = _PLAIN in offered
    if mechanism is not None:
        exchange = _cram_md5 if mechanism == _CRAM_MD5 else _scram
        judged = yield from exchange(mechanism, user, password)
        if judged.status is not Status.AUTH_ERROR or not (introduction.secret and has_plain):
            _believed(judged, user, Status.SUCCESS)
            return
    elif not (has_plain and (introduction.secret or introduction.allow_plain)):
        listed = " ".join(offered)[:_MAX_CONTEXT] or "none"
        raise _not_authenticated(
            user,
            f"the server offers no mechanism that keeps the password secret (it offers {listed})",
            "connect with couchbases://, or allow PLAIN without TLS (--allow-plain)",
        )
    # A server that checks passwords in a directory such as LDAP needs the password itself.
    payload = f"\0{user}\0{password}".encode()
    _believed((yield kv.SaslAuth(mechanism=_PLAIN, payload=payload)), user, Status.SUCCESS)


def _cram_md5(mechanism: str, user: str, password: str) -> Conversation[Response]:
    """Runs a CRAM-MD5 exchange (RFC 2195) and returns its last answer: success or a refusal."""
    challenge: Response = yield kv.SaslAuth(mechanism=mechanism, payload=b"")
    if challenge.status is Status.AUTH_ERROR:
        return challenge
    _believed(challenge, user, Status.AUTH_CONTINUE)
    try:
        payload = cram_md5(user, password, _value(challenge))
    except ValueError as problem:
        raise _not_authenticated(user, str(problem), "connect with couchbases://") from None
    final: Response = yield kv.SaslStep(mechanism=mechanism, payload=payload)
    return final


def _scram(mechanism: str, user: str, password: str) -> Conversation[Response]:
    """Runs a SCRAM exchange and returns its last answer: success or a refusal."""
    exchange = ScramClient(mechanism, user, password)
    challenge: Response = yield kv.SaslAuth(mechanism=mechanism, payload=exchange.first())
    if challenge.status is Status.AUTH_ERROR:
        return challenge
    _believed(challenge, user, Status.AUTH_CONTINUE)
    try:
        salted: bytes = yield Compute(exchange.hashing(_value(challenge)))
        proof = exchange.answer(_value(challenge), salted)
        final: Response = yield kv.SaslStep(mechanism=mechanism, payload=proof)
        if final.status is Status.SUCCESS:
            exchange.check(_value(final))
        return final
    except ValueError as problem:
        hint = "check the address; a server without users knows no passwords: name no user to it"
        raise _not_authenticated(user, str(problem), hint) from None


def _believed(answer: Response, user: str, expected: Status) -> None:
    if answer.status is expected:
        return
    if answer.status.retriable:
        raise _refused(f"for now to authenticate the user {user!r},", answer)
    why = "" if answer.status is Status.AUTH_ERROR else f"it answers {answer.status.name}"
    raise _not_authenticated(user, why, "check the user and the password")


def _not_authenticated(user: str, why: str, hint: str) -> AuthenticationFailed:
    reason = f": {why}" if why else ""
    return AuthenticationFailed(
        f"authentication failed for user {user!r} at {{where}}{reason}", hint
    )


# ---- bucket selection --------------------------------------------------------------------


def _select(introduction: Introduction) -> Conversation[None]:
    bucket = introduction.bucket
    answer: Response = yield kv.SelectBucket(bucket=bucket)
    if answer.status is Status.SUCCESS:
        return
    if answer.status is Status.NOT_FOUND:
        raise BucketNotFound(f"has no bucket {bucket}", "check the name at the end of the source")
    if answer.status is Status.NO_ACCESS:
        known = introduction.credentials is not None
        hint = (
            f"does it exist, and has the user {STREAM_ROLE}?"
            if known
            else "give a user and a password"
        )
        raise BucketNotFound(f"access to bucket {bucket!r} denied at {{where}}", hint)
    raise _refused(f"the bucket {bucket}", answer)


# ---- errors ------------------------------------------------------------------------------


def stranger(received: bytes | bytearray | memoryview) -> NotADcpServer:
    """Returns the error for a peer whose first bytes are not this protocol."""
    first = bytes(received[:_SHOWN])
    if first.startswith(_TLS_ALERT):
        return NotADcpServer("wants TLS", "connect with couchbases://")
    return NotADcpServer(
        f"is no server of this protocol: it says {first!r}",
        "is it the port for data? Couchbase's are 11210, and 11207 for TLS",
    )


def hung_up(problem: str, *, secret: bool) -> ConnectionFailed:
    """Returns the error for a peer that closed the connection, or sent nothing, before it answered.

    ``problem`` describes the failure. ``secret`` says whether the connection uses TLS.
    """
    if secret:
        likely = "is it the TLS port for data (11207)? "
    else:
        likely = "is it the port for data (11210), and does it want TLS, that is couchbases://? "
    return ConnectionFailed(f"did not answer: {problem}", likely + f"Or {_LOOK_IN_ITS_LOG}")


def refusal_context(answer: Response) -> str:
    """Returns the error context that a server sent with a refusal, or "" if it sent none."""
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
