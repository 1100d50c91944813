"""Server side of SASL: PLAIN (RFC 4616) and SCRAM (RFC 5802, 7677), without I/O.

    start PLAIN ───────────────────────────────────────> Success or Failure
    start SCRAM ──> Continue (server-first) ── step ───> Success (server-final) or Failure
                └─> Failure

Every message of a client leads to one of these results, never to an exception. The reason of a
failure is for the log only; the client does not get it. This module knows no sockets and no
statuses.
"""

from __future__ import annotations

import binascii
import hmac
import secrets
from base64 import b64decode, b64encode
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeAlias

from ...session.saslprep import prepare
from .users import MAX_NAME, Digest, Users, Verifier

PLAIN: Final = "PLAIN"

#: Best mechanism first, under Couchbase's names.
_SCRAM: Final = {
    "SCRAM-SHA512": Digest.SHA512,
    "SCRAM-SHA256": Digest.SHA256,
    "SCRAM-SHA1": Digest.SHA1,
}

#: Bytes of one message, more than the longest names, passwords and nonces need.
MAX_PAYLOAD: Final = 4096
#: Characters of a client's nonce. Couchbase's C++ clients send about 90, others 10 to 70.
MAX_NONCE: Final = 256
_NONCE_BYTES: Final = 18


@dataclass(frozen=True, slots=True)
class Continue:
    """A challenge that the client has to answer."""

    challenge: bytes


@dataclass(frozen=True, slots=True)
class Success:
    """The client has authenticated as this user; the payload is sent with the response."""

    user: str
    payload: bytes = b""


@dataclass(frozen=True, slots=True)
class Failure:
    """The reason of a failure and the name that the client claimed, if known. For the log only."""

    reason: str
    user: str = ""


SaslOutcome: TypeAlias = Continue | Success | Failure


def mechanisms(*, tls: bool, plain_without_tls: bool = False) -> tuple[str, ...]:
    """Returns the mechanisms that a server offers, best first.

    PLAIN exposes the password to the network, so without TLS it is offered only if a setting allows
    it. SCRAM is always offered: Couchbase's clients start with it without asking.
    """
    return (*_SCRAM, PLAIN) if tls or plain_without_tls else tuple(_SCRAM)


def plain_name(payload: bytes) -> str:
    """Returns the name in a message of PLAIN; empty if it has none."""
    parts = payload.split(b"\0") if len(payload) <= MAX_PAYLOAD else []
    return parts[1].decode(errors="replace") if len(parts) == 3 else ""


class SaslExchange:
    """Authenticates one client. It may be started again, before and after it ended.

    PLAIN takes milliseconds of hashing, so a caller can run it in a thread.
    """

    def __init__(
        self,
        users: Users,
        *,
        tls: bool = False,
        plain_without_tls: bool = False,
        nonce: Callable[[], str] = lambda: secrets.token_urlsafe(_NONCE_BYTES),
    ) -> None:
        self._users = users
        self._offered = mechanisms(tls=tls, plain_without_tls=plain_without_tls)
        self._nonce = nonce
        self._scram: _Scram | None = None

    def start(self, mechanism: str, payload: bytes) -> SaslOutcome:
        """Starts a mechanism with the client's first message."""
        self._scram = None
        if mechanism not in self._offered:
            return Failure("a mechanism that is not offered")
        try:
            if mechanism == PLAIN:
                return self._plain(payload)
            self._scram = self._scram_first(payload, _SCRAM[mechanism])
        except _Malformed as problem:
            return Failure(str(problem))
        return Continue(self._scram.server_first.encode())

    def step(self, payload: bytes) -> SaslOutcome:
        """Handles the client's answer to the challenge. There is at most one challenge."""
        scram, self._scram = self._scram, None
        if scram is None:
            return Failure("an answer without a challenge")
        try:
            return self._scram_final(scram, payload)
        except _Malformed as problem:
            return Failure(str(problem), scram.name)

    # ---- PLAIN ---------------------------------------------------------------------------

    def _plain(self, payload: bytes) -> SaslOutcome:
        parts = _text(payload).split("\0")
        if len(parts) != 3:
            raise _Malformed("not three parts with NUL between")
        acting_for, name, password = parts
        if acting_for not in ("", name):
            return Failure("acting for somebody else", name)
        user = self._users.authenticate(name, password)
        return Success(user) if user is not None else self._refused(name)

    def _refused(self, name: str) -> Failure:
        return Failure("wrong password" if name in self._users else "no such user", name)

    # ---- SCRAM ---------------------------------------------------------------------------

    def _scram_first(self, payload: bytes, digest: Digest) -> _Scram:
        """Parses ``n,,n=NAME,r=NONCE`` and makes the challenge."""
        binding, acting_for, bare = _split(_text(payload), 3)
        if binding.startswith("p="):
            raise _Malformed("channel binding is not supported")
        if binding not in ("n", "y"):
            raise _Malformed("not a GS2 header")
        if bare.startswith("m="):
            raise _Malformed("an extension that is mandatory and not known")
        fields = bare.split(",")
        if len(fields) < 2:
            raise _Malformed("a part is missing")
        name = _name(_unescape(_value(fields[0], "n")))
        if acting_for and _name(_unescape(_value(acting_for, "a"))) != name:
            raise _Malformed("acting for somebody else")
        nonce = _value(fields[1], "r")
        # RFC 5802 excludes the space, but Couchbase's C++ clients send hexadecimal with spaces.
        if not (1 <= len(nonce) <= MAX_NONCE and nonce.isascii() and nonce.isprintable()):
            raise _Malformed("not a nonce")
        return _Scram(
            name=name,
            verifier=self._users.verifier(name, digest),
            header=f"{binding},{acting_for},",
            client_first=bare,
            nonce=nonce + self._nonce(),
        )

    def _scram_final(self, scram: _Scram, payload: bytes) -> SaslOutcome:
        """Parses ``c=HEADER,r=NONCE,p=PROOF`` and checks the proof."""
        without_proof, comma, proof = _text(payload).rpartition(",p=")
        fields = without_proof.split(",")
        if not comma or len(fields) < 2:
            raise _Malformed("a part is missing")
        if _base64(_value(fields[0], "c")) != scram.header.encode():
            raise _Malformed("another GS2 header than at first")
        if not hmac.compare_digest(_value(fields[1], "r").encode(), scram.nonce.encode()):
            raise _Malformed("another nonce than at first")
        conversation = f"{scram.client_first},{scram.server_first},{without_proof}".encode()
        proven = scram.verifier.is_proven(conversation, _base64(proof))
        needs_proof = self._users.needs_proof(scram.name)
        if needs_proof and not (proven and scram.name in self._users):
            return self._refused(scram.name)
        return Success(scram.name, b"v=" + b64encode(scram.verifier.sign(conversation)))


@dataclass(frozen=True, slots=True)
class _Scram:
    """A SCRAM exchange that waits for the client's final message."""

    name: str
    verifier: Verifier
    #: The GS2 header, which the final message has to repeat.
    header: str
    client_first: str
    nonce: str

    @property
    def server_first(self) -> str:
        salt = b64encode(self.verifier.salt).decode()
        return f"r={self.nonce},s={salt},i={self.verifier.iterations}"


class _Malformed(Exception):
    """A message that breaks a rule. The text names the rule and quotes nothing of the message."""


def _text(payload: bytes) -> str:
    if len(payload) > MAX_PAYLOAD:
        raise _Malformed("a very long message")
    try:
        return payload.decode()
    except UnicodeDecodeError:
        raise _Malformed("not UTF-8") from None


def _split(text: str, count: int) -> list[str]:
    parts = text.split(",", count - 1)
    if len(parts) != count:
        raise _Malformed("a part is missing")
    return parts


def _value(field: str, attribute: str) -> str:
    if not field.startswith(f"{attribute}="):
        raise _Malformed(f"no attribute {attribute} where it must be")
    return field[2:]


def _base64(text: str) -> bytes:
    try:
        return b64decode(text.encode(), validate=True)
    except binascii.Error:
        raise _Malformed("not base64") from None


def _unescape(name: str) -> str:
    """Decodes =2C as a comma and =3D as an equals sign; no other use of = is allowed."""
    head, *tails = name.split("=")
    for tail in tails:
        if tail[:2] not in _ESCAPES:
            raise _Malformed("an equals sign in a name")
    return head + "".join(_ESCAPES[tail[:2]] + tail[2:] for tail in tails)


_ESCAPES: Final = {"2C": ",", "3D": "="}


def _name(text: str) -> str:
    if len(text) > 4 * MAX_NAME:  # preparing takes long for a long text
        raise _Malformed("an empty or very long name")
    try:
        name = prepare(text)
    except ValueError as problem:
        raise _Malformed(str(problem)) from None
    if not 1 <= len(name.encode()) <= MAX_NAME:
        raise _Malformed("an empty or very long name")
    return name
