"""The client's side of SCRAM (RFC 5802, 7677), without I/O.

    first ──> server's challenge ── answer ──> server's signature ── check

The password never travels, and the server has to show that it knows it too. ValueError says
what is wrong with a server's message. This module knows no sockets and no packets.
"""

from __future__ import annotations

import binascii
import hashlib
import hmac
import secrets
from base64 import b64decode, b64encode
from typing import Final

__all__ = ["SCRAM_DIGESTS", "ScramClient"]

#: Best first, under the names that Couchbase gives them, with their names in hashlib.
SCRAM_DIGESTS: Final = {
    "SCRAM-SHA512": "sha512",
    "SCRAM-SHA256": "sha256",
    "SCRAM-SHA1": "sha1",
}

#: "No channel binding, acting for nobody else", which the final message repeats in base64.
_GS2_HEADER: Final = "n,,"
#: A minute of hashing: a server that asks for more wants to keep us busy.
_MAX_ITERATIONS: Final = 10_000_000
_NONCE_BYTES: Final = 18


class ScramClient:
    """One exchange. Name and password must be prepared (SASLprep)."""

    def __init__(self, mechanism: str, name: str, password: str, *, nonce: str = "") -> None:
        self._digest = SCRAM_DIGESTS[mechanism]
        self._password = password
        self._nonce = nonce or secrets.token_urlsafe(_NONCE_BYTES)
        escaped = name.replace("=", "=3D").replace(",", "=2C")
        self._first = f"n={escaped},r={self._nonce}"
        self._signature = b""

    def first(self) -> bytes:
        """The message that begins the exchange."""
        return (_GS2_HEADER + self._first).encode()

    def answer(self, challenge: bytes) -> bytes:
        """The proof that we have the password, for a server's challenge."""
        fields = _fields(challenge)
        nonce, salt = fields.get("r", ""), _base64(fields.get("s", ""))
        iterations = fields.get("i", "")
        if not nonce.startswith(self._nonce) or len(nonce) == len(self._nonce):
            raise ValueError("the challenge is for somebody else")
        if not (salt and iterations.isdecimal() and 0 < int(iterations) <= _MAX_ITERATIONS):
            raise ValueError("the challenge has no salt or no sensible number of iterations")
        salted = hashlib.pbkdf2_hmac(self._digest, self._password.encode(), salt, int(iterations))
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
        """Makes sure that the server has the password's verifier."""
        given = _base64(_fields(final).get("v", ""))
        if not self._signature or not hmac.compare_digest(given, self._signature):
            raise ValueError("the server does not know the password")


def _fields(message: bytes) -> dict[str, str]:
    """The attributes of a message by their letters."""
    pairs = (field.partition("=") for field in message.decode().split(","))
    return {name: value for name, _, value in pairs}


def _base64(text: str) -> bytes:
    try:
        return b64decode(text.encode(), validate=True)
    except binascii.Error:
        raise ValueError("a part of the server's message is not base64") from None
