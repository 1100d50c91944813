"""Users: their SCRAM verifiers and roles, and the users file.

A password is never stored, only the verifiers that SCRAM (RFC 5802) derives from it. PLAIN and HTTP
basic authentication are checked against the same verifiers. A name that is no user gets a stand-in:
it looks like a verifier and takes as long to check, so that a client cannot find out which users
exist.

Two states must not be confused. *Unrestricted*: no users were ever set up, and every client may do
everything. *Restricted*: only users can authenticate; if none is left, no client can. A cluster
without users is unrestricted except for the manager's name, which always requires its password.

The users file, readable by its owner only:

    format      1
    open        true if clients need no password unless they use the name of a user
    secret      base64; the key from which stand-ins are derived
    users       a list of
      name        after SASLprep
      grants      a list of {"role": read_stream | read_data | write_data | administer,
                  "bucket": a name, or "*" for all}
      verifiers   for each of sha1, sha256 and sha512
                  {"iterations": number, "salt", "stored_key", "server_key": base64}

This module knows no sockets and no messages: the SASL exchange is in `sasl`.
"""

from __future__ import annotations

import functools
import hashlib
import hmac
import json
import logging
import operator
import os
import secrets
import stat
from base64 import b64decode, b64encode
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Final, Self

from ..._files import replace_file
from ...errors import ConfigError
from ...session.saslprep import prepare

logger = logging.getLogger("upriver.producer")

#: In a grant: every bucket, including later ones. No bucket can have this name.
ALL_BUCKETS: Final = "*"

#: The password from which an unrestricted server derives its side of SCRAM. Most clients never
#: check the server's signature and authenticate with any password; those that do check need this
#: one.
DEVELOPMENT_PASSWORD: Final = "password"

#: A check costs the server about 8 ms of SHA-512. Couchbase uses 10,000 as well.
ITERATIONS: Final = 10_000
#: The minimum of RFC 7677; clients refuse fewer.
MIN_ITERATIONS: Final = 4096
#: Ten seconds of work for one PLAIN check. A file with more iterations must be a mistake.
MAX_ITERATIONS: Final = 10_000_000

#: Bytes of UTF-8. The limit of names is that of Couchbase; the limit of passwords is far above any
#: password in use.
MAX_NAME: Final = 128
MAX_PASSWORD: Final = 1024

_SALT_SIZE: Final = 16
_SECRET_SIZE: Final = 32
_FORMAT: Final = 1


class Digest(StrEnum):
    """A hash function that SCRAM is run with, by its name in hashlib."""

    SHA1 = "sha1"
    SHA256 = "sha256"
    SHA512 = "sha512"


class Role(StrEnum):
    """What a user may do with a bucket."""

    #: Open DCP streams, and read seqnos and failover logs.
    READ_STREAM = "read_stream"
    READ_DATA = "read_data"
    WRITE_DATA = "write_data"
    #: All other commands, such as vbucket states and flush. Includes the other roles.
    ADMINISTER = "administer"


_ALL_ROLES: Final = frozenset(Role)
_NO_ROLES: Final[frozenset[Role]] = frozenset()


@dataclass(frozen=True, slots=True)
class Grant:
    """A role in one bucket, or in all buckets."""

    role: Role
    bucket: str = ALL_BUCKETS


@dataclass(frozen=True, slots=True, repr=False)
class Verifier:
    """The keys that SCRAM stores instead of a password, for one digest. Never shown in a log."""

    digest: Digest
    iterations: int
    salt: bytes
    stored_key: bytes
    server_key: bytes

    def __post_init__(self) -> None:
        _check_iterations(self.iterations)
        size = hashlib.new(self.digest).digest_size
        if not self.salt or len(self.stored_key) != size or len(self.server_key) != size:
            raise ConfigError(f"a {self.digest} verifier has a salt and two keys of {size} bytes")

    @classmethod
    def of(cls, password: str, digest: Digest, iterations: int, salt: bytes) -> Self:
        """Derives a verifier from a password, which must be `prepare`d."""
        _check_iterations(iterations)  # before the work is done
        salted = hashlib.pbkdf2_hmac(digest, password.encode(), salt, iterations)
        client_key = hmac.digest(salted, b"Client Key", digest)
        return cls(
            digest=digest,
            iterations=iterations,
            salt=salt,
            stored_key=hashlib.new(digest, client_key).digest(),
            server_key=hmac.digest(salted, b"Server Key", digest),
        )

    def fits(self, password: str) -> bool:
        """Whether this verifier was derived from the password, which must be `prepare`d."""
        given = Verifier.of(password, self.digest, self.iterations, self.salt)
        return hmac.compare_digest(given.stored_key, self.stored_key)

    def is_proven(self, conversation: bytes, proof: bytes) -> bool:
        """Whether a client's proof over the exchanged messages shows that it knows the password."""
        signature = hmac.digest(self.stored_key, conversation, self.digest)
        if len(proof) != len(signature):
            return False
        client_key = bytes(a ^ b for a, b in zip(proof, signature, strict=True))
        return hmac.compare_digest(hashlib.new(self.digest, client_key).digest(), self.stored_key)

    def sign(self, conversation: bytes) -> bytes:
        """Returns the signature that proves to a client that the server has its verifier."""
        return hmac.digest(self.server_key, conversation, self.digest)


@dataclass(frozen=True, slots=True)
class User:
    """One user: a name, a verifier for each digest, and grants."""

    name: str
    verifiers: Mapping[Digest, Verifier]
    grants: frozenset[Grant]

    def roles(self, bucket: str | None) -> frozenset[Role]:
        """Returns the roles of the user in a bucket; None means the server as a whole."""
        roles = {grant.role for grant in self.grants if grant.bucket in (ALL_BUCKETS, bucket)}
        return _ALL_ROLES if Role.ADMINISTER in roles else frozenset(roles)


class Users:
    """All users that may connect. Changed from one thread, read from any."""

    def __init__(self, users: Iterable[User] = (), *, secret: bytes | None = None) -> None:
        self._users = {user.name: user for user in users}
        # Stored in the file: a salt that changed with every start would reveal a stand-in.
        self._secret = secret or secrets.token_bytes(_SECRET_SIZE)
        self._unrestricted = False

    @classmethod
    def unrestricted(cls) -> Self:
        """Returns a set without users: every client may do everything, until a user is added."""
        users = cls()
        users._unrestricted = True
        return users

    def open_to_others(self) -> None:
        """Lets clients in without a password, unless they use the name of a user."""
        self._unrestricted = True

    @property
    def is_unrestricted(self) -> bool:
        return self._unrestricted

    def __iter__(self) -> Iterator[User]:
        return iter(self._users.values())

    def __len__(self) -> int:
        return len(self._users)

    def __contains__(self, name: object) -> bool:
        return name in self._users

    def get(self, name: str) -> User | None:
        return self._users.get(name)

    def add(self, name: str, password: str, *grants: Grant, iterations: int = ITERATIONS) -> User:
        """Adds a user, or replaces the one of this name. From then on clients must authenticate."""
        name = _prepared(name, "a user's name", MAX_NAME)
        password = _prepared(password, "a password", MAX_PASSWORD)
        user = User(
            name=name,
            verifiers={
                digest: Verifier.of(password, digest, iterations, secrets.token_bytes(_SALT_SIZE))
                for digest in Digest
            },
            grants=frozenset(grants),
        )
        self._users[name] = user
        self._unrestricted = False
        return user

    def remove(self, name: str) -> None:
        """Removes a user, if there is one of this name. The server does not become unrestricted."""
        self._users.pop(name, None)

    # ---- authentication and roles --------------------------------------------------------

    def roles(self, name: str | None, bucket: str | None) -> frozenset[Role]:
        """Returns the roles of a client in a bucket. Without any role it cannot select the bucket.

        ``name`` is None before authentication. A None ``bucket`` means the server as a whole, which
        requires a grant for all buckets.
        """
        if self._unrestricted:
            return _ALL_ROLES
        user = self._users.get(name) if name is not None else None
        return user.roles(bucket) if user else _NO_ROLES

    def may(self, name: str | None, bucket: str | None, role: Role) -> bool:
        return role in self.roles(name, bucket)

    def needs_proof(self, name: str) -> bool:
        """Whether a client of this name must prove that it knows a password."""
        return not self._unrestricted or name in self._users

    def costs_hashing(self, name: str) -> bool:
        """Whether a password of this name, as a client sent it, takes milliseconds to check."""
        if self._unrestricted and not self._users:
            return False
        try:
            return self.needs_proof(_prepared(name, "a user's name", MAX_NAME))
        except ConfigError:
            return False

    def verifier(self, name: str, digest: Digest) -> Verifier:
        """Returns a user's verifier, or a stand-in for which no proof exists."""
        if not self.needs_proof(name):
            return _development_verifier(digest)
        # Made for users as well, so that both cases take the same time.
        stand_in = self._stand_in(name, digest)
        user = self._users.get(name)
        return user.verifiers[digest] if user else stand_in

    def authenticate(self, name: str, password: str) -> str | None:
        """Returns the user's name if the password is right, else None.

        Takes milliseconds in either case if it `costs_hashing`, so it can run in a thread.
        """
        try:
            name = _prepared(name, "a user's name", MAX_NAME)
            if not self.needs_proof(name):
                return name
            password = _prepared(password, "a password", MAX_PASSWORD)
        except ConfigError:
            return None
        fits = self.verifier(name, Digest.SHA512).fits(password)
        return name if fits and name in self._users else None

    def _stand_in(self, name: str, digest: Digest) -> Verifier:
        def derived(what: str) -> bytes:
            return hmac.digest(self._secret, f"{what} {digest} {name}".encode(), digest)

        # If users differ in iterations, a stand-in uses those of one of them. The list is a copy,
        # because checks may run in threads while users are added.
        users = list(self._users.values())
        counts = [user.verifiers[digest].iterations for user in users] or [ITERATIONS]
        return Verifier(
            digest=digest,
            iterations=counts[int.from_bytes(derived("iterations")) % len(counts)],
            salt=derived("salt")[:_SALT_SIZE],
            stored_key=derived("stored key"),
            server_key=derived("server key"),
        )

    # ---- the file ------------------------------------------------------------------------

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Reads a users file. If it has no users, no client can authenticate."""
        path = Path(path)
        try:
            with open(path, "rb") as file:
                mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
                content = file.read()
        except OSError as problem:
            raise ConfigError(f"the users file {path} cannot be read: {problem.strerror}") from None
        if mode & 0o077:
            logger.warning("the users file %s can be read by others (mode %03o)", path, mode)
        try:
            stored = json.loads(content)
            if stored["format"] != _FORMAT:
                raise ValueError(f"format {stored['format']!r} is not known")
            users = [_load_user(entry) for entry in stored["users"]]
            if len({user.name for user in users}) != len(users):
                raise ValueError("a name occurs twice")
            found = cls(users, secret=_load_bytes(stored["secret"]))
            found._unrestricted = stored.get("open", False) is True
            return found
        except (ValueError, KeyError, TypeError, AttributeError, ConfigError) as problem:
            raise ConfigError(f"the users file {path} is damaged: {problem!r}") from None

    def save(self, path: str | Path) -> None:
        """Writes the users file atomically: after a crash it has the old content or the new."""
        path = Path(path)
        stored = {
            "format": _FORMAT,
            **({"open": True} if self._unrestricted else {}),
            "secret": _dump_bytes(self._secret),
            "users": [_dump_user(user) for user in self],
        }
        try:
            replace_file(path, json.dumps(stored, indent=2).encode(), unique=True)
        except OSError as problem:
            raise ConfigError(
                f"the users file {path} cannot be written: {problem.strerror}"
            ) from None


@functools.cache
def _development_verifier(digest: Digest) -> Verifier:
    salt = secrets.token_bytes(_SALT_SIZE)
    return Verifier.of(DEVELOPMENT_PASSWORD, digest, MIN_ITERATIONS, salt)


def _check_iterations(count: int) -> None:
    if not MIN_ITERATIONS <= count <= MAX_ITERATIONS:
        raise ConfigError(
            f"a verifier takes {MIN_ITERATIONS} to {MAX_ITERATIONS} iterations, not {count}"
        )


def _prepared(text: str, what: str, limit: int) -> str:
    if len(text) > 4 * limit:  # preparing takes long for a long text
        raise ConfigError(f"{what} has 1 to {limit} bytes")
    try:
        prepared = prepare(text)
    except ValueError as problem:
        raise ConfigError(f"{what} has {problem}") from None
    if not 1 <= len(prepared.encode()) <= limit:
        raise ConfigError(f"{what} has 1 to {limit} bytes")
    return prepared


def _dump_user(user: User) -> dict[str, Any]:
    return {
        "name": user.name,
        "grants": sorted(
            ({"role": grant.role, "bucket": grant.bucket} for grant in user.grants),
            key=lambda grant: (grant["bucket"], grant["role"]),
        ),
        "verifiers": {
            digest: {
                "iterations": verifier.iterations,
                "salt": _dump_bytes(verifier.salt),
                "stored_key": _dump_bytes(verifier.stored_key),
                "server_key": _dump_bytes(verifier.server_key),
            }
            for digest, verifier in user.verifiers.items()
        },
    }


def _load_user(stored: dict[str, Any]) -> User:
    return User(
        name=_prepared(stored["name"], "a user's name", MAX_NAME),
        grants=frozenset(Grant(Role(grant["role"]), grant["bucket"]) for grant in stored["grants"]),
        verifiers={
            digest: Verifier(
                digest=digest,
                iterations=operator.index(stored["verifiers"][digest]["iterations"]),
                salt=_load_bytes(stored["verifiers"][digest]["salt"]),
                stored_key=_load_bytes(stored["verifiers"][digest]["stored_key"]),
                server_key=_load_bytes(stored["verifiers"][digest]["server_key"]),
            )
            for digest in Digest
        },
    )


def _dump_bytes(value: bytes) -> str:
    return b64encode(value).decode()


def _load_bytes(value: str) -> bytes:
    return b64decode(value, validate=True)
