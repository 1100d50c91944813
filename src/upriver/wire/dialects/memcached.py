"""The engine behind every draft with the memcached header: packets by tables of layouts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ..layout import Layout
from ..messages import BareHeader, Message, PlainResponse, Response, UnknownCommand
from ..names import Command
from .reading import PacketReader
from .table import Table
from .writing import PacketWriter, refuse

__all__ = ["MemcachedDialect"]


@dataclass(frozen=True, slots=True)
class MemcachedDialect:
    """Decodes and encodes by its class's table. Instances hold what a connection negotiated."""

    name: ClassVar[str]
    table: ClassVar[Table]
    #: Whether the draft has framing extras.
    flexible: ClassVar[bool] = False
    #: Whether the draft gives byte 5 a meaning; where not, it is ignored.
    has_datatypes: ClassVar[bool] = True
    #: Whether keys of documents carry their collection id.
    collections: bool = False

    def decode(self, packet: bytes) -> Message:
        return PacketReader(self, packet).message()

    def encode(self, message: Message) -> bytes:
        writer = PacketWriter(self, message)
        if isinstance(message, UnknownCommand | PlainResponse | BareHeader):
            return writer.without_layout(message)
        return writer.with_layout(self.layout_for(message))

    def command_of(self, message: Message) -> Command | int:
        if isinstance(message, Response | BareHeader):
            return message.command
        if isinstance(message, UnknownCommand):
            return message.opcode
        return self.layout_for(message).command

    def layout_for(self, message: Message) -> Layout:
        """The form in which a message is sent: the first that has a place for all it says."""
        layouts = self.table.of_message.get(type(message), [])
        command = getattr(message, "command", None)
        if command is not None:
            layouts = [x for x in layouts if x.command == command]
        misfit = ""
        for layout in layouts:
            misfit = layout.misfit(message)
            if not misfit:
                return layout
        if misfit:
            refuse(self.name, message, misfit, "this draft has no place for it, or needs it")
        return refuse(self.name, message, "message", "this draft has no such message")
