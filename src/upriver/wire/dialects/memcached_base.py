"""Base class of the dialects with the memcached header: table-driven encoding and decoding."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ..layout import Layout
from ..messages import BareHeader, Message, PlainResponse, Response, UnknownCommand
from ..protocol_enums import Command
from .interface import SnapshotStyle
from .layout_table import Table
from .packet_decoder import PacketReader
from .packet_encoder import PacketWriter, refuse


@dataclass(frozen=True, slots=True)
class MemcachedDialect:
    """Decodes and encodes by the table of its class. Instances hold the negotiated features."""

    name: ClassVar[str]
    table: ClassVar[Table]
    snapshot_style: ClassVar[SnapshotStyle]
    has_memcached_header: ClassVar[bool] = True
    opens_connections: ClassVar[bool] = True
    negotiates: ClassVar[bool] = False
    accepts_with_failover_log: ClassVar[bool] = True
    acknowledges_state: ClassVar[bool] = False
    has_flush: ClassVar[bool] = True
    has_columns: ClassVar[bool] = False
    #: Whether the draft has framing extras.
    flexible: ClassVar[bool] = False
    #: Whether byte 5 is the datatype in this draft; if not, it is ignored.
    has_datatypes: ClassVar[bool] = True
    #: Whether keys of documents carry their collection id.
    collections: bool = False

    @property
    def sends_nru(self) -> bool:
        return self.negotiates

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
        """The layout for encoding a message: the first that can carry all of its attributes."""
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
            refuse(self.name, message, misfit, "this draft cannot carry it, or requires it")
        return refuse(self.name, message, "message", "this draft has no such message")
