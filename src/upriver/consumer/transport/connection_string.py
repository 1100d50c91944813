"""Connection strings: parses ``couchbase://HOST[:PORT][,...]/BUCKET`` into hosts and bucket.

It only parses text: it opens no sockets, and a connection string holds no password.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Final, Self
from urllib.parse import quote, unquote

from ...errors import ConfigError
from ...wire.limits import MAX_NAME

#: The schemes and the default data ports of Couchbase: for plain TCP and for TLS.
_DEFAULT_PORTS: Final = {"couchbase": 11210, "couchbases": 11207}
_SHAPE: Final = "couchbase://HOST[:PORT][,HOST[:PORT]...]/BUCKET, or couchbases:// for TLS"
#: Port numbers have 16 bits, and 0 is not a valid port.
MAX_PORT: Final = 65_535

#: An IPv6 address in brackets or a host without a colon, then an optional port.
_HOST_AND_PORT = re.compile(r"(?:\[(?P<ipv6>[^\[\]]+)\]|(?P<name>[^:\[\]]+))(?::(?P<port>[0-9]+))?")
#: Characters that are not allowed in a host.
_NOT_IN_A_HOST = re.compile(r"[\s/?#@,\\\x00-\x20]")


@dataclass(frozen=True, slots=True, order=True)
class Address:
    """A host, as a name or an IP address, and a port."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @classmethod
    def parse(cls, text: str, *, default_port: int | None = None) -> Self:
        """Parses HOST:PORT, with an IPv6 address in brackets; raises ValueError if invalid."""
        parts = _HOST_AND_PORT.fullmatch(text)
        if parts is None or _NOT_IN_A_HOST.search(text):
            brackets = ", and an IPv6 address needs brackets" if text.count(":") > 1 else ""
            raise ValueError(f"{text!r} is no host with a port{brackets}")
        if parts["ipv6"]:
            ipaddress.IPv6Address(parts["ipv6"])  # raises ValueError if invalid
        port = default_port if parts["port"] is None else int(parts["port"][:9])
        if port is None:
            raise ValueError(f"{text!r} has no port")
        if not 1 <= port <= MAX_PORT:
            raise ValueError(f"ports are 1 to {MAX_PORT}, not {parts['port']}")
        return cls((parts["ipv6"] or parts["name"]).lower(), port)


@dataclass(frozen=True, slots=True)
class Source:
    """A bucket, and some of its nodes; the cluster map of any node names the others."""

    hosts: tuple[Address, ...]
    bucket: str
    tls: bool = False
    #: Nodes of the newest known cluster map, tried after ``hosts``, which may have left the
    #: cluster meanwhile.
    also: tuple[Address, ...] = field(default=(), compare=False)

    @property
    def addresses(self) -> tuple[Address, ...]:
        """Addresses to try, in this order: the named hosts, then the nodes of the map."""
        return tuple(dict.fromkeys((*self.hosts, *self.also)))

    def knowing(self, nodes: Iterable[Address]) -> Source:
        """A copy of this source that also lists the nodes of a cluster map."""
        also = tuple(address for address in nodes if address not in self.hosts)
        return replace(self, also=also)

    @property
    def with_all_nodes(self) -> str:
        """The connection string that names the known nodes too, for who is told only a text."""
        nodes = (replace(address, host=address.host.lower()) for address in self.addresses)
        return str(replace(self, hosts=tuple(dict.fromkeys(nodes)), also=()))

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
        """Parses a connection string; raises `ConfigError` if it is invalid."""
        if "@" in text:
            # the message does not quote the text, because it may contain a password
            raise ConfigError(
                "the connection string has a user or password (@), which others could see there; "
                "give user and password as options"
            )
        scheme, _, rest = text.partition("://")
        scheme = scheme.lower()
        authority, _, path = rest.partition("/")
        if scheme not in _DEFAULT_PORTS or not authority or "?" in rest or "#" in rest:
            raise ConfigError(f"{text!r} is no connection string; it must be {_SHAPE}")
        try:
            hosts = tuple(
                Address.parse(host.strip(), default_port=_DEFAULT_PORTS[scheme])
                for host in authority.split(",")
            )
            bucket = unquote(path.strip("/"), errors="strict")
            too_long = len(bucket.encode()) > MAX_NAME
        except ValueError as problem:
            raise ConfigError(
                f"{text!r} is no connection string: {problem}; it must be {_SHAPE}"
            ) from None
        if len(set(hosts)) != len(hosts):
            raise ConfigError(f"{text!r} names a host twice; it must be {_SHAPE}")
        if not bucket or "/" in bucket:
            raise ConfigError(f"{text!r} names no bucket; it must be {_SHAPE}")
        if too_long:
            raise ConfigError(f"{text!r} names a bucket of more than {MAX_NAME} bytes")
        return cls(hosts, bucket, scheme == "couchbases")
