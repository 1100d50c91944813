"""Messages about the connection, the bucket and the cluster map."""

from __future__ import annotations

from dataclasses import dataclass

from ...model import Datatype
from ..messages.message import Request, Response
from ..protocol_enums import Command, Feature

__all__ = [
    "ClustermapChanged",
    "GetClusterConfig",
    "GetErrorMap",
    "Hello",
    "HelloResponse",
    "ListBuckets",
    "Noop",
    "Quit",
    "SaslAuth",
    "SaslListMechanisms",
    "SaslStep",
    "SelectBucket",
    "SetClusterConfig",
    "SetCtrlToken",
    "Stat",
    "StatResponse",
    "Verbosity",
    "Version",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Quit(Request):
    quiet: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Noop(Request):
    """Does nothing; is answered with SUCCESS."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Version(Request):
    """Asks for the server's version as text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verbosity(Request):
    level: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Stat(Request):
    """Requests a group of statistics, answered by a packet for each and an empty one at the end."""

    group: str = ""
    value: bytes = b""
    datatype: Datatype = Datatype.RAW


@dataclass(frozen=True, slots=True, kw_only=True)
class StatResponse(Response):
    """One statistic; the last of an answer has neither key nor value."""

    command: Command | int = Command.STAT
    key: str = ""
    value: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hello(Request):
    """Offers features; a number is a feature that is unknown here."""

    agent: str = ""
    features: tuple[Feature | int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class HelloResponse(Response):
    command: Command | int = Command.HELLO
    features: tuple[Feature | int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SaslListMechanisms(Request):
    """Requests the SASL mechanisms, answered as names separated by spaces."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SaslAuth(Request):
    mechanism: str
    payload: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class SaslStep(Request):
    mechanism: str
    payload: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class ListBuckets(Request):
    """Requests the names of the buckets, answered as names separated by spaces."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SelectBucket(Request):
    bucket: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GetClusterConfig(Request):
    """Requests the cluster map, or only one newer than ``(epoch, revision)``."""

    epoch: int | None = None
    revision: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SetClusterConfig(Request):
    """Sets the map of a bucket on a node, or the map of the cluster if ``bucket`` is empty."""

    bucket: str = ""
    epoch: int
    revision: int
    config: bytes
    datatype: Datatype = Datatype.RAW


@dataclass(frozen=True, slots=True, kw_only=True)
class ClustermapChanged(Request):
    """Notifies a client of a new map. Older servers send a revision without an epoch."""

    bucket: str = ""
    epoch: int | None = None
    revision: int = 0
    config: bytes = b""
    datatype: Datatype = Datatype.RAW


@dataclass(frozen=True, slots=True, kw_only=True)
class SetCtrlToken(Request):
    """Sets a cluster manager's session token; commands with a lower token are refused afterwards.

    ``value`` is JSON that only Upriver's nodes understand: manager and node authenticate each other
    with it, and it renews the node's lease.
    """

    token: int
    value: bytes = b""
    datatype: Datatype = Datatype.RAW


@dataclass(frozen=True, slots=True, kw_only=True)
class GetErrorMap(Request):
    version: int
