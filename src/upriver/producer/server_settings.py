"""Settings of a server, each with its default and the reason for it."""

from __future__ import annotations

import contextlib
import socket
import ssl
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from urllib.parse import urlsplit

from .._hosts import is_loopback
from ..errors import ConfigError
from ..session.keepalive import IDLE_TIMEOUT
from ..session.stream_request_checks import Policy
from ..wire.limits import MAX_BODY
from .write_lease import NodeIdentity

#: The data port of Couchbase Server, which clients use by default.
DEFAULT_PORT = 11210
#: The management ports that belong to Couchbase's data ports, without and with TLS.
_USUAL_HTTP_PORTS = {DEFAULT_PORT: 8091, 11207: 18091}

_MIB = 1024 * 1024


def usual_http_port(host: str, port: int) -> int:
    """Returns the management port to listen on beside a data port; 0 for any.

    Beside one of Couchbase's data ports it is Couchbase's management port, if nobody listens there:
    change-stream clients built on gocbcore look for it there before they have a map.
    """
    usual = _USUAL_HTTP_PORTS.get(port)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    if usual is not None:
        with contextlib.suppress(OSError), socket.create_server((host, usual), family=family):
            return usual
    return 0


class PeerRelease(Enum):
    """Release of the nodes that a server replicates with, where they cannot negotiate the form.

    Which draft a node speaks is found out, and no setting.
    """

    TODAY = "today"
    #: Up to 3.0, vbucket states on a stream have the numbers of the drafts: 2 is pending, 3
    #: replica.
    RELEASE_3_0 = "3.0"
    #: Consumers of April 2014 want mutations of draft 001 with 31 bytes of extras.
    APRIL_2014 = "2014"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings:
    """The settings of one server."""

    host: str = "127.0.0.1"
    #: 0 takes any free port.
    port: int = DEFAULT_PORT
    #: HOST or HOST:PORT that clients are to connect to, if the server cannot know it: behind a
    #: proxy, an address translation or a container. None: the address on which it listens.
    advertise: str | None = None
    #: The port of the HTTP server for maps and management, with TLS if ``port`` has it. 0 takes any
    #: free one: java-dcp-client and gocbcore refuse a map without it. None disables HTTP.
    http_port: int | None = 0
    #: Certificate and key for TLS on ``port``; None serves without TLS.
    certificate: Path | None = None
    key: Path | None = None
    #: Authorities that must have signed the certificates of clients; None requires no certificates.
    client_authority: Path | None = None
    #: File of users with their verifiers and roles; None allows every client everything.
    users: Path | None = None
    #: Accept passwords without TLS also on addresses that other hosts can reach, which exposes them
    #: to the network: PLAIN on ``port``, and basic authentication on ``http_port``. For clients
    #: that support nothing else. On loopback addresses, and without users, they are always
    #: accepted.
    plain_without_tls: bool = False
    #: Allow addresses that other hosts can reach although there are no users.
    open_to_all: bool = False

    #: Connections at once. Fewer if the process may not open that many files.
    max_connections: int = 5000
    #: Bytes that all connections together may hold, received or to be sent, above the 64 KiB that
    #: each may always hold. At this limit connections wait; if one waits too long, the connection
    #: that holds the most is closed.
    buffer_memory: int = 256 * _MIB
    #: Streams of one connection: several for every vbucket of a large bucket.
    max_streams: int = 8192
    #: Seconds within which a connection must authenticate, if there are users.
    authentication_time: float = 30.0
    #: Seconds by which a failed authentication is delayed, so that guessing is slow.
    authentication_delay: float = 0.25
    #: The longest packet body. A longer one closes the connection.
    max_body: int = MAX_BODY
    #: Bytes received and not yet handled, above which the server stops reading from a connection.
    max_backlog: int = 4 * _MIB
    #: Bytes not yet sent, above which the server produces nothing more for a connection.
    connection_memory: int = 2 * _MIB
    #: Seconds without a byte from a peer that enabled noops, after which it is disconnected.
    idle_timeout: float = IDLE_TIMEOUT
    #: Seconds for which writes may keep a takeover from finishing. After that, writes get a
    #: temporary failure until the takeover is over. Couchbase Server waits a minute.
    takeover_time: float = 60.0
    #: The node's identity in a cluster; None for a server outside of a cluster. The manager sends a
    #: node its map and its vbuckets. Until it has done so after a start, documents and streams are
    #: refused, because another node may have them by now. Writes require the manager's lease.
    member: NodeIdentity | None = None
    #: The numbers of vbucket states on a stream, and the form of mutations of draft 001.
    peers: PeerRelease = PeerRelease.TODAY
    #: Whether clients may flush a bucket.
    flush_allowed: bool = True
    policy: Policy = field(default_factory=Policy)

    def __post_init__(self) -> None:
        if not 0 <= self.port <= 0xFFFF:
            raise ConfigError(f"port is {self.port}; it must be 0 to 65535")
        self.address(self.port)  # raises if the advertised address is invalid
        if self.buffer_memory < self.max_body:
            raise ConfigError(
                f"buffer_memory is {self.buffer_memory} bytes; it must be at least the largest "
                f"packet, {self.max_body} bytes"
            )
        if self.certificate is None and self.key is not None:
            raise ConfigError("key is given, but no certificate: TLS needs both")
        if self.key is None and self.certificate is not None:
            raise ConfigError("certificate is given, but no key: TLS needs both")
        if self.client_authority is not None and self.certificate is None:
            raise ConfigError(
                "client_authority is given, but no certificate and key: client certificates need "
                "TLS"
            )
        if self.users is None and not self.open_to_all and not is_loopback(self.host):
            raise ConfigError(
                f"without users, a server on {self.host} would let anybody read and write: "
                "give it users, listen on 127.0.0.1, or say --open-to-all"
            )

    @property
    def takes_plain(self) -> bool:
        """Whether passwords are accepted without TLS."""
        return self.plain_without_tls or self.users is None or is_loopback(self.host)

    def warnings(self) -> Iterator[str]:
        """Yields a sentence for the log about each risk of these settings."""
        exposed = self.users is not None and not is_loopback(self.host)
        if self.plain_without_tls and exposed and self.certificate is None:
            yield "passwords are taken without TLS (plain_without_tls): the network can read them"
        if self.users is None and not is_loopback(self.host):
            yield f"everybody who reaches {self.host} may read and write everything (open_to_all)"
        elif self.certificate is None and not is_loopback(self.host):
            yield f"documents travel without TLS on {self.host}: the network can read them"

    def tls_context(self) -> ssl.SSLContext | None:
        """The context for TLS with the certificate; None without one."""
        if self.certificate is None or self.key is None:
            return None
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.load_cert_chain(self.certificate, self.key)
        if self.client_authority is not None:
            context.load_verify_locations(self.client_authority)
            context.verify_mode = ssl.CERT_REQUIRED
        return context

    def address(self, port: int) -> tuple[str, int]:
        """Returns the address by which clients reach a server that listens on ``port``."""
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
