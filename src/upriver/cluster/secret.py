"""Who the manager is to its nodes, where these have users: a name and a password of its own.

Both files are readable by their owner only; the users file holds verifiers and no passwords.
"""

from __future__ import annotations

import json
import os
import secrets
from pathlib import Path
from typing import Final

from ..consumer.access import Access
from ..errors import ConfigError
from ..producer.users import ALL_BUCKETS, Grant, Role, Users

__all__ = ["MANAGER", "make", "read"]

#: No user of Couchbase begins with this sign, so none is in the way.
MANAGER: Final = "@manager"
_USERS: Final = "users.json"
_SECRET: Final = "secret.json"


def make(directory: Path, users: Path) -> None:
    """Gives a cluster the users of a file, and its manager."""
    known = Users.load(users)
    password = secrets.token_hex(32)
    known.add(MANAGER, password, Grant(Role.ADMINISTER, ALL_BUCKETS))
    descriptor = os.open(directory / _SECRET, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w") as file:
        json.dump({"password": password}, file)
    known.save(directory / _USERS)


def read(directory: Path) -> tuple[Path | None, Access | None]:
    """The users file of the nodes and the manager's access; neither where there are no users."""
    path = directory / _SECRET
    if not path.exists():
        return None, None
    try:
        password = json.loads(path.read_text())["password"]
    except (OSError, ValueError, KeyError, TypeError) as problem:
        raise ConfigError(f"{path} cannot be read: {problem!r}") from None
    return directory / _USERS, Access(user=MANAGER, password=password)
