"""Encodes a message as a packet with the memcached header, by a layout."""

from __future__ import annotations

import struct
from typing import Any, NoReturn

from ...errors import EncodeError, Status
from .. import header as h
from .. import leb128, limits
from ..frameinfo import encode_frame_infos
from ..header import Header, pack_header
from ..layout import Cas, FieldError, KeyRule, Layout, Record, datatype_name
from ..messages import BareHeader, Message, PlainResponse, Request, Response, UnknownCommand
from ..protocol_enums import Command
from .layout_table import SERVER_COMMANDS
from .packet_decoder import RESERVED_COLLECTIONS, Rules


def refuse(dialect: str, message: Message, field: str, rule: str) -> NoReturn:
    """Raises `EncodeError` for a message that a dialect cannot carry."""
    raise EncodeError(dialect=dialect, message=type(message).__name__, field=field, rule=rule)


class PacketWriter:
    """Encodes one message."""

    __slots__ = ("message", "rules")

    def __init__(self, rules: Rules, message: Message) -> None:
        self.rules = rules
        self.message = message

    def refuse(self, field: str, rule: str) -> NoReturn:
        refuse(self.rules.name, self.message, field, rule)

    def without_layout(self, message: UnknownCommand | PlainResponse | BareHeader) -> bytes:
        """The packet of a message whose extras, key and value are raw bytes."""
        if isinstance(message, BareHeader):
            return self._pack(message.command, b"", b"", b"")
        command = message.opcode if isinstance(message, UnknownCommand) else message.command
        return self._pack(
            command,
            message.extras,
            message.key,
            message.value,
            cas=message.cas,
            datatype=message.datatype,
        )

    def with_layout(self, layout: Layout) -> bytes:
        """The packet of a message in one layout."""
        message: Any = self.message
        extras = self._dump_record(layout.extras)
        key = self._dump_key(layout)
        value = self._dump_value(layout)
        cas: int = message.cas if "cas" in layout.header else 0
        datatype = int(message.datatype) if "datatype" in layout.header else 0
        if isinstance(message, Request):
            if layout.cas is Cas.SET and not cas:
                self.refuse("cas", "must not be 0")
            if layout.cas is Cas.ZERO and cas:
                self.refuse("cas", "must be 0")
            if layout.datatypes is not None and datatype not in layout.datatypes:
                self.refuse("datatype", f"{datatype_name(datatype)} is not allowed here")
        return self._pack(layout.command, extras, key, value, cas=cas, datatype=datatype)

    def _dump_record(self, record: Record) -> bytes:
        try:
            return record.dump(self.message)
        except FieldError as problem:
            self.refuse(problem.field, problem.rule)

    def _dump_key(self, layout: Layout) -> bytes:
        if layout.key is KeyRule.NONE:
            return b""
        content = getattr(self.message, layout.key_attribute)
        key: bytes = content.encode() if isinstance(content, str) else content
        if not key and layout.key in (KeyRule.DOCUMENT, KeyRule.NAME):
            self.refuse(layout.key_attribute, "must not be empty")
        prefix, limit = b"", limits.MAX_KEY
        if layout.key is KeyRule.DOCUMENT:
            prefix, limit = self._collection_prefix()
        elif layout.key is KeyRule.RAW:
            limit = limits.MAX_PREFIXED_KEY
        if len(key) > limit:
            self.refuse(layout.key_attribute, f"{len(key)} bytes are more than {limit}")
        return prefix + key

    def _collection_prefix(self) -> tuple[bytes, int]:
        """The collection id before a document's key, and the limit of the key's length."""
        collection: int | None = self.message.collection  # type: ignore[attr-defined]
        if not self.rules.collections:
            if collection is not None:
                self.refuse("collection", "collections were not negotiated")
            return b"", limits.MAX_KEY
        if collection is None:
            self.refuse("collection", "collections were negotiated")
        if collection in RESERVED_COLLECTIONS:
            self.refuse("collection", f"{collection} is reserved")
        try:
            prefix = leb128.encode(collection)
        except ValueError as problem:
            self.refuse("collection", str(problem))
        return prefix, limits.MAX_COLLECTION_KEY if collection else limits.MAX_KEY

    def _dump_value(self, layout: Layout) -> bytes:
        rule = layout.value
        value = b""
        if rule is not None and rule.record is not None:
            value = self._dump_record(rule.record)
        elif rule is not None:
            try:
                value = rule.dump(getattr(self.message, rule.attribute))
            except (ValueError, struct.error) as problem:
                self.refuse(rule.attribute, str(problem))
            if rule.required and not value:
                self.refuse(rule.attribute, "must not be empty")
            if rule.document and len(value) > limits.MAX_STORED_VALUE:
                what = f"{len(value)} bytes are more than {limits.MAX_STORED_VALUE}"
                self.refuse(rule.attribute, what)
        if layout.prefix:
            value = getattr(self.message, layout.prefix) + value
        if layout.suffix:
            value += getattr(self.message, layout.suffix) or b""
        return value

    def _pack(
        self,
        command: Command | int,
        extras: bytes,
        key: bytes,
        value: bytes,
        *,
        cas: int = 0,
        datatype: int = 0,
    ) -> bytes:
        message = self.message
        response = isinstance(message, Response)
        number = self._status() if response else getattr(message, "vbucket", 0)
        server = getattr(message, "from_server", False) or command in SERVER_COMMANDS
        try:
            frames = encode_frame_infos(message.frames, response=response)
        except ValueError as problem:
            self.refuse("frames", str(problem))
        if frames and (not self.rules.flexible or server):
            self.refuse("frames", "this draft has no framing extras")
        body_length = len(frames) + len(extras) + len(key) + len(value)
        for name, what, most in (
            ("vbucket", number, 0xFFFF),
            ("opaque", message.opaque, 0xFFFFFFFF),
            ("cas", cas, 2**64 - 1),
            ("extras", len(extras), 0xFF),
            ("key", len(key), 0xFF if frames else 0xFFFF),
            ("body", body_length, limits.MAX_BODY),
        ):
            if not 0 <= what <= most:
                self.refuse(name, f"{what} is not within 0..{most}")
        header = Header(
            _magic(response, server, bool(frames)),
            self._opcode(command),
            len(frames),
            len(key),
            len(extras),
            datatype,
            number,
            body_length,
            message.opaque,
            cas,
        )
        return b"".join((pack_header(header), frames, extras, key, value))

    def _opcode(self, command: Command | int) -> int:
        if not isinstance(command, Command):
            return command
        opcode = self.rules.table.opcodes.get(command)
        if opcode is None:
            self.refuse("command", f"this draft has no {command}")
        return opcode

    def _status(self) -> int:
        message = self.message
        assert isinstance(message, Response)
        if message.status is Status.UNRECOGNISED:
            return message.status_code
        number = self.rules.table.status_numbers.get(message.status)
        if number is None:
            self.refuse("status", f"this draft has no {message.status.name}")
        return number


def _magic(response: bool, server: bool, flexible: bool) -> int:
    if server:
        return h.SERVER_RESPONSE if response else h.SERVER_REQUEST
    if flexible:
        return h.FLEX_RESPONSE if response else h.FLEX_REQUEST
    return h.RESPONSE if response else h.REQUEST
