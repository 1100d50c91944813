"""`Access`: user, password and TLS settings of a client; and how it introduces itself to a node.

It opens no connections.
"""

from __future__ import annotations

import platform
import secrets
import ssl
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from ... import __version__
from ...errors import ConfigError
from ...session.client_handshake import Credentials, Introduction
from ...wire.agent_names import AgentName
from ...wire.protocol_enums import Feature
from .connection_string import Source

#: The name of the client in server logs.
_AGENT: Final = f"upriver/{__version__} (python/{platform.python_version()})"
#: The same for all connections of this process, so that server logs show them as one client.
_CLIENT_ID: Final = secrets.token_hex(8)


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """Credentials of the client, and the certificate authorities that it trusts."""

    #: Empty to connect without authentication.
    user: str = ""
    password: str = field(default="", repr=False)
    #: File of trusted CA certificates (PEM); None for those of the system.
    authority: Path | None = None
    #: Accept any certificate. This gives no protection against a man in the middle.
    insecure: bool = False
    #: Send the password unencrypted if the connection has no TLS and the server offers only PLAIN.
    allow_plain: bool = False

    def __post_init__(self) -> None:
        if self.user and not self.password:
            raise ConfigError(
                f"there is no password for {self.user}: give password, a password file, or set "
                "UPRIVER_PASSWORD"
            )
        if self.password and not self.user:
            raise ConfigError(
                "there is a password, but no user: give user, or leave the password out"
            )
        if self.authority is not None and self.insecure:
            raise ConfigError(
                f"the CA certificates (authority, caFile, --ca) are {self.authority}, but insecure "
                "accepts any certificate: give one of the two"
            )

    def credentials(self) -> Credentials | None:
        """User and password for SASL; None to connect without authentication."""
        return Credentials(user=self.user, password=self.password) if self.user else None

    def tls_context(self) -> ssl.SSLContext:
        try:
            context = ssl.create_default_context(cafile=self.authority)
        except (OSError, ssl.SSLError):
            raise ConfigError(f"{self.authority} has no CA certificates in PEM format") from None
        if self.insecure:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        return context


def introduction(access: Access, source: Source, features: Iterable[Feature]) -> Introduction:
    """What a client says first on a new connection: who it is, and what it wants.

    The agent is the client's name and version, and a unique id of the connection.
    """
    return Introduction(
        agent=AgentName(_AGENT, f"{_CLIENT_ID}/{secrets.token_hex(8)}").key,
        bucket=source.bucket,
        features=tuple(features),
        credentials=access.credentials(),
        secret=source.tls,
        allow_plain=access.allow_plain,
    )
