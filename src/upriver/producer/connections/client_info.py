"""The identity and negotiated features of one connection, read by every part of the server."""

from __future__ import annotations

from dataclasses import dataclass, field

from ...session.producer_options import ProducerOptions
from ...store import Bucket
from ...wire.protocol_enums import Feature


@dataclass(slots=True, kw_only=True)
class ClientInfo:
    """The state of one connection that does not concern its socket."""

    #: Address of the peer, for logs.
    peer: str
    #: Whether the connection is encrypted.
    tls: bool = False
    #: Features that HELLO negotiated, and the agent and connection id that it named.
    features: frozenset[Feature] = field(default_factory=frozenset)
    agent: str = ""
    connection_id: str = ""
    #: The authenticated user; None before authentication.
    user: str | None = None
    #: The epoch of a connection of the cluster's manager; 0 for all others.
    epoch: int = 0
    #: The current bucket, and whether the client selected it itself.
    bucket: Bucket | None = None
    selected: bool = False
    #: Set once the connection was opened for DCP with this node as the producer.
    options: ProducerOptions | None = None
    #: Set once the connection was opened for DCP with this node as the consumer.
    consumes: bool = False

    @property
    def is_open(self) -> bool:
        """Whether the connection was opened for DCP, in either direction."""
        return self.consumes or self.options is not None

    @property
    def host(self) -> str:
        """The address of the peer without its port."""
        return self.peer.rpartition(":")[0]

    def has(self, feature: Feature) -> bool:
        return feature in self.features
