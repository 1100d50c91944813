"""The bases of all messages, and messages without a layout of their own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from ...errors import Status
from ...model import Datatype
from ..frameinfo import FrameInfo, StreamId
from ..protocol_enums import Command

__all__ = [
    "VBUCKET_NOT_CARRIED",
    "BareHeader",
    "Message",
    "PlainResponse",
    "Request",
    "Response",
    "UnknownCommand",
]


#: The vbucket of a message whose draft has no vbucket field (002 identifies streams by request id
#: alone). No dialect with such a field can encode it, so it is never sent by accident.
VBUCKET_NOT_CARRIED: Final = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """Base class of all messages. ``opaque`` is the drafts' "request id"."""

    opaque: int = 0
    frames: tuple[FrameInfo, ...] = ()

    @property
    def stream_id(self) -> int | None:
        """The stream id, if any, which identifies one of several streams of a vbucket."""
        for info in self.frames:
            if isinstance(info, StreamId):
                return info.id
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Request(Message):
    """A message that is not a response; in a change stream both sides send requests."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Response(Message):
    """The response to a request. ``command`` is the request's name, or its opcode if unknown."""

    command: Command | int
    status: Status = Status.SUCCESS
    #: The number of an unrecognised status; 0 otherwise.
    status_code: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainResponse(Response):
    """A response without a layout of its own: errors, acknowledgements, raw payloads."""

    extras: bytes = b""
    key: bytes = b""
    value: bytes = b""
    cas: int = 0
    datatype: Datatype = Datatype.RAW
    #: Whether it answers an unknown request from a server.
    from_server: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class UnknownCommand(Request):
    """A request with an opcode that its dialect does not know; answered with UNKNOWN_COMMAND."""

    opcode: int
    vbucket: int = 0
    extras: bytes = b""
    key: bytes = b""
    value: bytes = b""
    cas: int = 0
    datatype: Datatype = Datatype.RAW
    #: Whether it was sent by a server to a client.
    from_server: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class BareHeader(Request):
    """A header without a body, as the drafts print one to explain its layout.

    It is never sent on a connection: strict decoding refuses it.
    """

    command: Command
    vbucket: int = 0
