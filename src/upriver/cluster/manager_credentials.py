"""The credentials of a cluster's manager: an internal user with a random password.

Nodes accept management commands from this user only. By SCRAM a node proves that it knows the
password's verifier before the manager sends anything else, so neither takes another process for
its peer. Both files are readable by their owner only; the users file holds no passwords.
"""

from __future__ import annotations

import json
import secrets
from pathlib import Path
from typing import Final

from .._files import replace_file
from ..consumer.transport.access import Access
from ..errors import ConfigError
from ..producer.bootstrap.users import ALL_BUCKETS, MIN_ITERATIONS, Grant, Role, Users
from ..producer.write_lease import MANAGER

_USERS: Final = "users.json"
_SECRET: Final = "secret.json"


def exists(directory: Path) -> bool:
    """Whether a cluster has its secret; those of the first release have one only with users."""
    return (directory / _SECRET).exists()


def make(directory: Path, users: Path | None) -> None:
    """Creates the manager's credentials, and copies the users of a file; without one, anyone may
    connect."""
    known = Users() if users is None else Users.load(users)
    # Nobody guesses 32 random bytes, so few iterations will do for them.
    password = secrets.token_hex(32)
    grant = Grant(Role.ADMINISTER, ALL_BUCKETS)
    known.add(MANAGER, password, grant, iterations=MIN_ITERATIONS)
    if users is None:
        known.open_to_others()
    known.save(directory / _USERS)
    replace_file(directory / _SECRET, json.dumps({"password": password}).encode())


def read(directory: Path) -> tuple[Path, Access]:
    """The users file of the nodes and the manager's access."""
    path = directory / _SECRET
    try:
        password = json.loads(path.read_text())["password"]
    except (OSError, ValueError, KeyError, TypeError) as problem:
        raise ConfigError(f"{path} cannot be read: {problem!r}") from None
    return directory / _USERS, Access(user=MANAGER, password=password)
