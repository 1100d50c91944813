"""Where changes are read from or documents written to: ``couchbase://HOST[:PORT][,...]/BUCKET``.

It only takes text apart; it knows no sockets and no passwords.
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from typing import Final, Self
from urllib.parse import quote, unquote

from ..errors import ConfigError
from ..wire.limits import MAX_NAME

__all__ = ["Address", "Source"]

#: The schemes, and where Couchbase serves its data for each: plain sockets and TLS.
_DEFAULT_PORTS: Final = {"couchbase": 11210, "couchbases": 11207}
_SHAPE: Final = "couchbase://HOST[:PORT][,HOST[:PORT]...]/BUCKET, or couchbases:// for TLS"
#: Ports have 16 bits, and 0 is none.
MAX_PORT: Final = 65_535

#: A host in brackets or without a colon, and perhaps a port.
_HOST_AND_PORT = re.compile(r"(?:\[(?P<ipv6>[^\[\]]+)\]|(?P<name>[^:\[\]]+))(?::(?P<port>[0-9]+))?")
#: What no name or address of a host contains.
_NOT_IN_A_HOST = re.compile(r"[\s/?#@,\\\x00-\x20]")


@dataclass(frozen=True, slots=True, order=True)
class Address:
    """A host, by name or number, and a port of it."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @classmethod
    def parse(cls, text: str, *, default_port: int | None = None) -> Self:
        """Reads HOST:PORT, with an IPv6 address in brackets; ValueError says what is wrong."""
        parts = _HOST_AND_PORT.fullmatch(text)
        if parts is None or _NOT_IN_A_HOST.search(text):
            brackets = ", and an IPv6 address needs brackets" if text.count(":") > 1 else ""
            raise ValueError(f"{text!r} is no host with a port{brackets}")
        if parts["ipv6"]:
            ipaddress.IPv6Address(parts["ipv6"])  # says what is wrong with it
        port = default_port if parts["port"] is None else int(parts["port"][:9])
        if port is None:
            raise ValueError(f"{text!r} has no port")
        if not 1 <= port <= MAX_PORT:
            raise ValueError(f"ports are 1 to {MAX_PORT}, not {parts['port']}")
        return cls((parts["ipv6"] or parts["name"]).lower(), port)


@dataclass(frozen=True, slots=True)
class Source:
    """A bucket, and some of the nodes that have it: any of them knows the others."""

    hosts: tuple[Address, ...]
    bucket: str
    tls: bool = False

    def __str__(self) -> str:
        scheme = "couchbases" if self.tls else "couchbase"
        return f"{scheme}://{','.join(map(str, self.hosts))}/{quote(self.bucket, safe='')}"

    @property
    def host(self) -> str:
        """The host of the first node."""
        return self.hosts[0].host

    @property
    def port(self) -> int:
        """The port of the first node."""
        return self.hosts[0].port

    @classmethod
    def parse(cls, text: str) -> Self:
        """Reads the text that a person gave; `ConfigError` says what is wrong with it."""
        if "@" in text:
            # not quoted: a password may be in it
            raise ConfigError("a source names no user: a password there would be seen by others")
        scheme, _, rest = text.partition("://")
        scheme = scheme.lower()
        authority, _, path = rest.partition("/")
        if scheme not in _DEFAULT_PORTS or not authority or "?" in rest or "#" in rest:
            raise ConfigError(f"{text!r} is no source; it must be {_SHAPE}")
        try:
            hosts = tuple(
                Address.parse(host.strip(), default_port=_DEFAULT_PORTS[scheme])
                for host in authority.split(",")
            )
            bucket = unquote(path.strip("/"), errors="strict")
            too_long = len(bucket.encode()) > MAX_NAME
        except ValueError as problem:
            raise ConfigError(f"{text!r} is no source: {problem}; it must be {_SHAPE}") from None
        if len(set(hosts)) != len(hosts):
            raise ConfigError(f"{text!r} names a host twice; it must be {_SHAPE}")
        if not bucket or "/" in bucket:
            raise ConfigError(f"{text!r} names no bucket; it must be {_SHAPE}")
        if too_long:
            raise ConfigError(f"{text!r} names a bucket of more than {MAX_NAME} bytes")
        return cls(hosts, bucket, scheme == "couchbases")
