"""What every dialect can do. Sessions know this interface and no other detail of a draft."""

from __future__ import annotations

from typing import ClassVar, Protocol

from ..messages import Message
from ..names import Command

__all__ = ["Dialect"]


class Dialect(Protocol):
    """One draft of the protocol: packets to messages and back."""

    #: How the draft is called: ``002``, ``000``, ``001`` or ``dcp``.
    name: ClassVar[str]

    def encode(self, message: Message) -> bytes:
        """The packet for a message; `EncodeError` if the draft has no place for it."""

    def decode(self, packet: bytes) -> Message:
        """The message of one whole packet; `DecodeError` if it breaks a rule."""

    def command_of(self, message: Message) -> Command | int:
        """The name of a message's command, as answers to it must carry."""
