"""What one connection has told of itself and negotiated; every part of the server reads it."""

from __future__ import annotations

from dataclasses import dataclass, field

from ..session.options import ProducerOptions
from ..store import Bucket
from ..wire.names import Feature

__all__ = ["Client"]


@dataclass(slots=True, kw_only=True)
class Client:
    """One connection. It holds no socket."""

    #: Where it comes from, for logs.
    peer: str
    #: Whether the connection is encrypted.
    tls: bool = False
    #: What HELLO agreed on, and who said it.
    features: frozenset[Feature] = field(default_factory=frozenset)
    agent: str = ""
    #: Who it is; None before authentication.
    user: str | None = None
    #: The bucket it works on, and whether it chose that itself.
    bucket: Bucket | None = None
    selected: bool = False
    #: Set once the connection was opened for change streams.
    options: ProducerOptions | None = None
    #: Set once it was opened for this node to be the consumer.
    consumes: bool = False

    @property
    def is_open(self) -> bool:
        """Whether it was opened for change streams, in either direction."""
        return self.consumes or self.options is not None

    def has(self, feature: Feature) -> bool:
        return feature in self.features
