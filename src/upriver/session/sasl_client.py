"""Client side of SCRAM (RFC 5802, 7677) and CRAM-MD5 (RFC 2195), without I/O.

    first ──> server's challenge ── hashing, answer ──> server's signature ── check

SCRAM never sends the password, and the server must prove that it has the password's verifier.
ValueError describes an invalid message of the server. This module knows no sockets and no packets.
"""

from __future__ import annotations

import binascii
import hashlib
import hmac
import secrets
from base64 import b64decode, b64encode
from collections.abc import Callable
from functools import partial
from typing import Final

#: Mechanisms by Couchbase's names, strongest first, with the hashlib names of their digests.
SCRAM_DIGESTS: Final = {
    "SCRAM-SHA512": "sha512",
    "SCRAM-SHA256": "sha256",
    "SCRAM-SHA1": "sha1",
}

#: GS2 header: no channel binding, no authorization identity. The final message repeats it.
_GS2_HEADER: Final = "n,,"
#: The most iterations that a server may request. Couchbase uses 15,000 and OWASP recommends
#: 600,000. This many take some seconds on a slow machine, which is within the connection timeout.
#: The limit keeps a server from exhausting the client's processor.
MAX_ITERATIONS: Final = 1_000_000
_NONCE_BYTES: Final = 18


class ScramClient:
    """One SCRAM exchange. Name and password must be prepared with SASLprep."""

    def __init__(self, mechanism: str, name: str, password: str, *, nonce: str = "") -> None:
        self._digest = SCRAM_DIGESTS[mechanism]
        self._password = password
        self._nonce = nonce or secrets.token_urlsafe(_NONCE_BYTES)
        escaped = name.replace("=", "=3D").replace(",", "=2C")
        self._first = f"n={escaped},r={self._nonce}"
        self._signature = b""

    def first(self) -> bytes:
        """Returns the client's first message."""
        return (_GS2_HEADER + self._first).encode()

    def hashing(self, challenge: bytes) -> Callable[[], bytes]:
        """Checks a challenge and returns the slow hashing function, for the caller to run."""
        fields = _fields(challenge)
        nonce, salt = fields.get("r", ""), _base64(fields.get("s", ""))
        iterations = fields.get("i", "")
        if not nonce.startswith(self._nonce) or len(nonce) == len(self._nonce):
            raise ValueError("the challenge does not begin with the nonce of this client")
        if not (salt and iterations.isdecimal() and int(iterations[:20])):
            raise ValueError("the challenge has no salt or no number of iterations")
        if int(iterations[:20]) > MAX_ITERATIONS:
            raise ValueError(
                f"it wants {iterations[:20]} iterations of hashing; {MAX_ITERATIONS} are the most"
            )
        return partial(
            hashlib.pbkdf2_hmac, self._digest, self._password.encode(), salt, int(iterations)
        )

    def answer(self, challenge: bytes, salted: bytes) -> bytes:
        """Returns the client proof for a challenge. ``salted`` is the result of `hashing`."""
        nonce = _fields(challenge)["r"]
        client_key = hmac.digest(salted, b"Client Key", self._digest)
        server_key = hmac.digest(salted, b"Server Key", self._digest)
        without_proof = f"c={b64encode(_GS2_HEADER.encode()).decode()},r={nonce}"
        conversation = f"{self._first},{challenge.decode()},{without_proof}".encode()
        stored_key = hashlib.new(self._digest, client_key).digest()
        mask = hmac.digest(stored_key, conversation, self._digest)
        proof = bytes(a ^ b for a, b in zip(client_key, mask, strict=True))
        self._signature = hmac.digest(server_key, conversation, self._digest)
        return f"{without_proof},p={b64encode(proof).decode()}".encode()

    def check(self, final: bytes) -> None:
        """Verifies the server's signature, which proves that it has the password's verifier."""
        given = _base64(_fields(final).get("v", ""))
        if not self._signature or not hmac.compare_digest(given, self._signature):
            raise ValueError("the server does not know the password")


def cram_md5(user: str, password: str, challenge: bytes) -> bytes:
    """Returns the response to a CRAM-MD5 challenge, as servers before release 4.5 send it."""
    if not challenge:
        raise ValueError("the server sent an empty challenge")
    try:
        proof = hmac.new(password.encode(), challenge, "md5").hexdigest()
    except ValueError as problem:  # a build of OpenSSL without MD5
        raise ValueError(f"CRAM-MD5 cannot be computed here: {problem}") from None
    return f"{user} {proof}".encode()


def _fields(message: bytes) -> dict[str, str]:
    """Returns the attributes of a message by their letters."""
    pairs = (field.partition("=") for field in message.decode().split(","))
    return {name: value for name, _, value in pairs}


def _base64(text: str) -> bytes:
    try:
        return b64decode(text.encode(), validate=True)
    except binascii.Error:
        raise ValueError("a part of the server's message is not base64") from None
