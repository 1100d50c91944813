"""Who we are to a server, and which servers we believe. It knows no addresses and opens nothing."""

from __future__ import annotations

import ssl
from dataclasses import dataclass, field
from pathlib import Path

from ..errors import ConfigError
from ..session.introduction import Credentials

__all__ = ["Access"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """Who we are, and whom we believe."""

    #: Empty for servers without users.
    user: str = ""
    password: str = field(default="", repr=False)
    #: Certificates that a server's must come from; None for those of the system.
    authority: Path | None = None
    #: Believe any certificate, which protects from nobody who can stand in between.
    insecure: bool = False

    def __post_init__(self) -> None:
        if self.user and not self.password:
            raise ConfigError(f"there is no password for {self.user}")
        if self.password and not self.user:
            raise ConfigError("there is a password, but no user whose it is")
        if self.authority is not None and self.insecure:
            raise ConfigError("an authority is of no use where any certificate is believed")

    def credentials(self) -> Credentials | None:
        """What to introduce ourselves with; None as nobody."""
        return Credentials(user=self.user, password=self.password) if self.user else None

    def tls_context(self) -> ssl.SSLContext:
        try:
            context = ssl.create_default_context(cafile=self.authority)
        except (OSError, ssl.SSLError):
            raise ConfigError(f"{self.authority} holds no certificates") from None
        if self.insecure:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        return context
