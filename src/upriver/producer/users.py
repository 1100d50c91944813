"""Who may connect, and what each may do: users, their verifiers and their roles.

A password is never kept, only what SCRAM (RFC 5802) derives from it; PLAIN and HTTP's basic
authentication are checked against the same. A name that is no user gets a stand-in, which
looks like a user's verifier and takes as long to check, so that nobody can find out who exists.

Two states must not be mixed up. *Unrestricted*: no users were ever set up, every client may do
everything. *Restricted*: only users get in, and with none left nobody does.

The users file, readable by its owner only:

    format      1
    secret      base64; what stand-ins are made from
    users       a list of
      name        after SASLprep
      grants      a list of {"role": read_stream | read_data | write_data | administer,
                  "bucket": a name, or "*" for all}
      verifiers   for each of sha1, sha256 and sha512
                  {"iterations": number, "salt", "stored_key", "server_key": base64}

This module knows no sockets and no messages: the conversation of SASL is in `sasl`.
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
import tempfile
from base64 import b64decode, b64encode
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Final, Self

from ..errors import ConfigError
from ..session.saslprep import prepare

__all__ = [
    "ALL_BUCKETS",
    "DEVELOPMENT_PASSWORD",
    "Digest",
    "Grant",
    "Role",
    "User",
    "Users",
    "Verifier",
]

logger = logging.getLogger("upriver.producer")

#: In a grant: every bucket, those to come included. No bucket can have this name.
ALL_BUCKETS: Final = "*"

#: What an unrestricted server derives its side of SCRAM from. Most clients never check that the
#: server knows their password and get in with any; those that do check get in with this one.
DEVELOPMENT_PASSWORD: Final = "password"

#: A check costs the server about 8 ms of SHA-512; Couchbase has 10,000 as well.
ITERATIONS: Final = 10_000
#: RFC 7677 asks for as many at least, and clients refuse fewer.
MIN_ITERATIONS: Final = 4096
#: Ten seconds of work for one PLAIN check; a file that asks for more is a mistake.
MAX_ITERATIONS: Final = 10_000_000

#: Bytes of UTF-8. Couchbase has the same limit for names; a password ten times the length of a
#: long sentence is no password.
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

    #: Open change streams and read positions and failover logs.
    READ_STREAM = "read_stream"
    READ_DATA = "read_data"
    WRITE_DATA = "write_data"
    #: Everything else, such as vbucket states and flushing; includes the other roles.
    ADMINISTER = "administer"


_ALL_ROLES: Final = frozenset(Role)
_NO_ROLES: Final[frozenset[Role]] = frozenset()


@dataclass(frozen=True, slots=True)
class Grant:
    """A role in one bucket, or in all."""

    role: Role
    bucket: str = ALL_BUCKETS


@dataclass(frozen=True, slots=True, repr=False)
class Verifier:
    """What SCRAM keeps instead of a password, for one digest. It never shows in a log."""

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
        """Derives it from a password, which must be `prepare`d."""
        _check_iterations(iterations)  # before they are done
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
        """Whether it was derived from this password, which must be `prepare`d."""
        given = Verifier.of(password, self.digest, self.iterations, self.salt)
        return hmac.compare_digest(given.stored_key, self.stored_key)

    def is_proven(self, conversation: bytes, proof: bytes) -> bool:
        """Whether a client's proof over the messages exchanged shows that it has the password."""
        signature = hmac.digest(self.stored_key, conversation, self.digest)
        if len(proof) != len(signature):
            return False
        client_key = bytes(a ^ b for a, b in zip(proof, signature, strict=True))
        return hmac.compare_digest(hashlib.new(self.digest, client_key).digest(), self.stored_key)

    def sign(self, conversation: bytes) -> bytes:
        """Shows a client that the server has its verifier."""
        return hmac.digest(self.server_key, conversation, self.digest)


@dataclass(frozen=True, slots=True)
class User:
    """One user: a name, a verifier for each digest, and what it was granted."""

    name: str
    verifiers: Mapping[Digest, Verifier]
    grants: frozenset[Grant]

    def roles(self, bucket: str | None) -> frozenset[Role]:
        """What it may do in a bucket; None stands for the server as a whole."""
        roles = {grant.role for grant in self.grants if grant.bucket in (ALL_BUCKETS, bucket)}
        return _ALL_ROLES if Role.ADMINISTER in roles else frozenset(roles)


class Users:
    """Everybody who may connect. Changed from one thread, asked from any."""

    def __init__(self, users: Iterable[User] = (), *, secret: bytes | None = None) -> None:
        self._users = {user.name: user for user in users}
        # It is kept in the file: a salt that changes with every start would give a stand-in away.
        self._secret = secret or secrets.token_bytes(_SECRET_SIZE)
        self._unrestricted = False

    @classmethod
    def unrestricted(cls) -> Self:
        """No users are set up: every client may do everything, until one is added."""
        users = cls()
        users._unrestricted = True
        return users

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
        """Adds a user, or replaces the one of this name. From now on only users get in."""
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
        """Removes a user, if there is one of this name. Nobody becomes unrestricted by it."""
        self._users.pop(name, None)

    # ---- deciding ------------------------------------------------------------------------

    def roles(self, name: str | None, bucket: str | None) -> frozenset[Role]:
        """What a client may do in a bucket; an empty set also keeps it from selecting it.

        ``name`` is None before authentication. ``bucket`` None stands for the server as a whole,
        which takes a grant for all buckets.
        """
        if self._unrestricted:
            return _ALL_ROLES
        user = self._users.get(name) if name is not None else None
        return user.roles(bucket) if user else _NO_ROLES

    def may(self, name: str | None, bucket: str | None, role: Role) -> bool:
        return role in self.roles(name, bucket)

    def verifier(self, name: str, digest: Digest) -> Verifier:
        """A user's verifier, or a stand-in that nothing can prove."""
        if self._unrestricted:
            return _development_verifier(digest)
        # made for users as well, so that both take as long
        stand_in = self._stand_in(name, digest)
        user = self._users.get(name)
        return user.verifiers[digest] if user else stand_in

    def authenticate(self, name: str, password: str) -> str | None:
        """The name of the user whose name and password these are, or None.

        Takes milliseconds whatever the answer, and can run in a thread.
        """
        try:
            name = _prepared(name, "a user's name", MAX_NAME)
            password = _prepared(password, "a password", MAX_PASSWORD)
        except ConfigError:
            return None
        if self._unrestricted:
            return name
        fits = self.verifier(name, Digest.SHA512).fits(password)
        return name if fits and name in self._users else None

    def _stand_in(self, name: str, digest: Digest) -> Verifier:
        def derived(what: str) -> bytes:
            return hmac.digest(self._secret, f"{what} {digest} {name}".encode(), digest)

        # Where users differ in iterations, a stand-in takes those of one of them. The list is
        # made at once, because checks may run in threads while users are added.
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
        """Reads a users file; without any user in it, nobody gets in."""
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
            return cls(users, secret=_load_bytes(stored["secret"]))
        except (ValueError, KeyError, TypeError, AttributeError, ConfigError) as problem:
            raise ConfigError(f"the users file {path} is damaged: {problem!r}") from None

    def save(self, path: str | Path) -> None:
        """Writes the users file, so that after a crash it has the old content or the new."""
        path = Path(path)
        stored = {
            "format": _FORMAT,
            "secret": _dump_bytes(self._secret),
            "users": [_dump_user(user) for user in self],
        }
        try:
            # a new file, and from the beginning only its owner's
            descriptor, passing = tempfile.mkstemp(prefix=path.name, dir=path.parent)
            try:
                with open(descriptor, "w") as file:
                    json.dump(stored, file, indent=2)
                    file.flush()
                    os.fsync(descriptor)
                os.replace(passing, path)
            except BaseException:
                os.unlink(passing)
                raise
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
