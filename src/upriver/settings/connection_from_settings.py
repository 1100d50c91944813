"""The connection string and the credentials that the settings give.

Files and environment variables are read here, once, in the process of the command or of Spark's
driver.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import combinations
from pathlib import Path
from typing import Final
from urllib.parse import quote, unquote

from ..consumer.transport.access import Access
from ..consumer.transport.connection_string import Source
from ..errors import ConfigError
from .all_settings import USER_VARIABLE
from .setting import Given

#: The most bytes of a password file; a longer file cannot be one.
_MAX_PASSWORD: Final = 64 * 1024


def source_of(given: Given) -> Source:
    """The hosts and the bucket to connect to."""
    text, bucket = given["connectionString"], given["bucket"]
    if not text:
        raise ConfigError("connectionString is missing: give couchbase://HOST/BUCKET")
    scheme, separator, rest = text.partition("://")
    hosts, _, named = rest.partition("/")
    if bucket and not named.strip("/"):
        text = f"{scheme}{separator}{hosts}/{quote(bucket, safe='')}"
    elif bucket and unquote(named.strip("/")) != bucket:
        raise ConfigError(f"bucket is {bucket!r}, but the connection string names another bucket")
    return Source.parse(text)


def access_of(given: Given, environ: Mapping[str, str]) -> Access:
    """The credentials, and how the server's certificate is verified."""
    for first, second in combinations(("password", "passwordFile", "passwordEnv"), 2):
        given.refuse_together(first, second, "there is one password")
    user, authority = given["user"] or environ.get(USER_VARIABLE, ""), given["caFile"]
    return Access(
        user=user,
        password=_password(given, environ, user),
        authority=Path(authority) if authority else None,
        insecure=given["insecure"],
        allow_plain=given["allowPlain"],
    )


def _password(given: Given, environ: Mapping[str, str], user: str) -> str:
    if "password" in given.names:
        return str(given["password"])
    if "passwordFile" in given.names:
        return content_of("passwordFile", given["passwordFile"], _MAX_PASSWORD).removesuffix("\n")
    variable = given["passwordEnv"]
    if "passwordEnv" in given.names and variable not in environ:
        raise ConfigError(f"passwordEnv: the environment variable {variable!r} is not set")
    # Without a user the default variable is not ours: it may be set for another program.
    return environ.get(variable, "") if user or "passwordEnv" in given.names else ""


def content_of(name: str, path: str, most: int) -> str:
    """The text of a file that a setting names."""
    try:
        with open(path, "rb") as file:
            content = file.read(most + 1)
        if len(content) > most:
            raise ConfigError(f"{name}: {path} has more than {most} bytes")
        return content.decode()
    except (OSError, ValueError) as problem:
        raise ConfigError(f"{name}: {path} cannot be read: {problem}") from None
