"""What the owner of a server may choose, each choice with its default and its reason."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from ..errors import ConfigError
from ..session.keepalive import IDLE_TIMEOUT
from ..session.stream_request import Policy
from ..wire.limits import MAX_BODY

__all__ = ["DEFAULT_PORT", "ServerSettings"]

#: Where Couchbase serves its data, and so where clients look.
DEFAULT_PORT = 11210

_MIB = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings:
    """One server's choices."""

    host: str = "127.0.0.1"
    #: 0 takes any free port.
    port: int = DEFAULT_PORT
    #: HOST or HOST:PORT that clients are told to come to, where the server cannot know it: behind
    #: a proxy, an address translation, a container. None tells them where it listens.
    advertise: str | None = None
    #: The port of the configuration over HTTP; None serves none.
    http_port: int | None = None
    #: Certificate and key for TLS on ``port``; None serves plain sockets.
    certificate: Path | None = None
    key: Path | None = None
    #: Certificates that clients must have one of; None asks them for none.
    client_authority: Path | None = None
    #: Users with their verifiers and roles; None lets everybody do everything.
    users: Path | None = None
    #: Offer PLAIN without TLS, which shows passwords to the network; for clients with nothing else.
    plain_without_tls: bool = False
    #: Allow addresses that others can reach although there are no users.
    open_to_all: bool = False

    #: Connections at once; each costs up to ``connection_memory``.
    max_connections: int = 5000
    #: Streams of one connection: every vbucket of a large bucket, a few times over.
    max_streams: int = 8192
    #: Seconds within which a connection must have said who it is, where there are users.
    authentication_time: float = 30.0
    #: Seconds that a failed authentication waits, so that guessing is slow.
    authentication_delay: float = 0.25
    #: The longest packet body; what is longer ends the connection.
    max_body: int = MAX_BODY
    #: Bytes read and not yet worked on, above which nothing more is read from a connection.
    max_backlog: int = 4 * _MIB
    #: Bytes written and not yet sent, above which nothing more is produced for a connection.
    connection_memory: int = 2 * _MIB
    #: Seconds without a byte from a peer that asked for noops.
    idle_timeout: float = IDLE_TIMEOUT
    #: Seconds for which writers may keep a takeover from its end; then they are asked to come back
    #: later until it is over. Real servers wait a minute.
    takeover_time: float = 60.0
    #: Whether a cluster's manager tells the node its map and which vbuckets it has. Until it has
    #: done so after a start, documents and streams are refused: they may be another node's by now.
    managed: bool = False
    #: Whether clients may flush a bucket.
    flush_allowed: bool = True
    policy: Policy = field(default_factory=Policy)

    def __post_init__(self) -> None:
        if not 0 <= self.port <= 0xFFFF:
            raise ConfigError(f"port {self.port} is not within 0..65535")
        self.address(self.port)  # says what is wrong with what is advertised
        if (self.certificate is None) != (self.key is None):
            raise ConfigError("TLS needs a certificate and a key, one of them is missing")
        if self.client_authority is not None and self.certificate is None:
            raise ConfigError("client certificates need TLS: give a certificate and a key")
        if self.users is None and not self.open_to_all and not _is_loopback(self.host):
            raise ConfigError(
                f"without users, a server on {self.host} would let anybody read and write: "
                "give it users, listen on 127.0.0.1, or say --open-to-all"
            )

    def address(self, port: int) -> tuple[str, int]:
        """Where clients find a server that listens on ``port``."""
        if self.advertise is None:
            return self.host, port
        try:
            parts = urlsplit(f"//{self.advertise}")
            host, advertised = parts.hostname, parts.port
        except ValueError as problem:
            raise ConfigError(f"{self.advertise!r} cannot be advertised: {problem}") from None
        if not host or parts.netloc != self.advertise or "@" in self.advertise or advertised == 0:
            raise ConfigError(
                f"{self.advertise!r} cannot be advertised: give HOST, HOST:PORT or [IPV6]:PORT"
            )
        return host, advertised or port


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
