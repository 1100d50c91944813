"""Where a command reads from or writes to: ``couchbase://HOST[:PORT]/BUCKET``.

It only takes the text apart; it knows no sockets and no passwords.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Self
from urllib.parse import unquote, urlsplit

from ..errors import ConfigError
from ..producer.settings import DEFAULT_PORT

__all__ = ["Source"]

#: The schemes, and where Couchbase serves its data for each: plain sockets and TLS.
_DEFAULT_PORTS: Final = {"couchbase": DEFAULT_PORT, "couchbases": 11207}
_SHAPE: Final = "couchbase://HOST[:PORT]/BUCKET, or couchbases:// for TLS"


@dataclass(frozen=True, slots=True)
class Source:
    """A bucket of a server."""

    host: str
    port: int
    bucket: str
    tls: bool = False

    @classmethod
    def parse(cls, text: str) -> Self:
        """Reads the text that a person gave; `ConfigError` says what is wrong with it."""
        try:
            parts = urlsplit(text)
            port = parts.port
        except ValueError as problem:
            raise ConfigError(f"{text!r} is no source: {problem}; it must be {_SHAPE}") from None
        if parts.scheme not in _DEFAULT_PORTS or not parts.hostname or parts.query:
            raise ConfigError(f"{text!r} is no source; it must be {_SHAPE}")
        if parts.username is not None:
            # not quoted: a password may be in it
            raise ConfigError("a source names no user: a password there would be seen by others")
        bucket = unquote(parts.path.strip("/"))
        if not bucket or "/" in bucket:
            raise ConfigError(f"{text!r} names no bucket; it must be {_SHAPE}")
        return cls(
            host=parts.hostname,
            port=_DEFAULT_PORTS[parts.scheme] if port is None else port,
            bucket=bucket,
            tls=parts.scheme == "couchbases",
        )
