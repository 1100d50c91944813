"""The engine behind every draft with the memcached header: packets by tables of layouts.

Checks come in the order of real servers: datatype, extras, key, value, CAS, allowed datatypes,
framing extras, and at last the document key with its collection.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NoReturn

from ...errors import DecodeError, EncodeError, Status
from ...model import Datatype
from .. import header as h
from .. import leb128, limits
from ..frameinfo import FrameInfo, FrameInfoError, decode_frame_infos, encode_frame_infos
from ..header import HEADER_SIZE, Header, pack_header, parse_header
from ..layout import (
    ALL_DATATYPES,
    Cas,
    FieldError,
    KeyRule,
    Layout,
    Record,
    datatype_name,
)
from ..messages import BareHeader, Message, PlainResponse, Request, Response, UnknownCommand
from ..names import Command

__all__ = ["MemcachedDialect", "Table"]

#: Collection ids that servers keep to themselves.
_RESERVED_COLLECTIONS = range(1, 8)

#: Commands that servers send to clients; they have magics and opcodes of their own.
_SERVER_COMMANDS = frozenset({Command.CLUSTERMAP_CHANGED})


class Table:
    """The layouts of a dialect, indexed for decoding and for encoding."""

    def __init__(
        self,
        requests: Iterable[Layout],
        responses: Iterable[Layout],
        statuses: Mapping[int, Status],
        *,
        status_aliases: Mapping[tuple[Command, int], Status] | None = None,
    ) -> None:
        self.requests: dict[tuple[bool, int], list[Layout]] = {}
        self.responses: dict[tuple[bool, int, Status], list[Layout]] = {}
        self.of_message: dict[type[Message], list[Layout]] = {}
        self.commands: dict[tuple[bool, int], Command] = {}
        self.opcodes: dict[Command, int] = {}
        self.statuses = statuses
        self.status_numbers = {status: number for number, status in statuses.items()}
        self.status_aliases = status_aliases or {}
        for layout in requests:
            key = (layout.command in _SERVER_COMMANDS, layout.opcode)
            self.requests.setdefault(key, []).append(layout)
            self.of_message.setdefault(layout.message, []).append(layout)
            self.commands[key] = layout.command
            self.opcodes[layout.command] = layout.opcode
        for layout in responses:
            server = layout.command in _SERVER_COMMANDS
            self.responses.setdefault((server, layout.opcode, layout.status), []).append(layout)
            self.of_message.setdefault(layout.message, []).append(layout)

    def status(self, command: Command | int, number: int) -> Status:
        if isinstance(command, Command) and (command, number) in self.status_aliases:
            return self.status_aliases[command, number]
        return self.statuses.get(number, Status.UNRECOGNISED)


class _Packet:
    """A packet whose header was read and whose parts lie inside its body."""

    __slots__ = ("data", "dialect", "extras_at", "header", "key_at", "name", "value_at")

    def __init__(self, dialect: MemcachedDialect, data: bytes) -> None:
        self.dialect = dialect
        self.data = data
        self.name = "packet"
        if len(data) < HEADER_SIZE:
            self.fail(
                "header", len(data), f"24 bytes are needed, {len(data)} are there", usable=False
            )
        if data[0] not in h.MAGICS:
            self.fail("magic", 0, f"{data[0]:#04x} is no magic of this protocol", usable=False)
        self.header = header = parse_header(data)
        side = "response" if header.is_response else "request"
        command = dialect.table.commands.get((header.of_server, header.opcode))
        self.name = f"{command or f'{header.opcode:#04x}'} {side}"
        if len(data) != HEADER_SIZE + header.body_length:
            self.fail(
                "total body length",
                8,
                f"says {header.body_length} bytes, {len(data) - HEADER_SIZE} are there",
                usable=False,
            )
        if header.is_flexible and not dialect.flexible:
            self.fail("magic", 0, f"{header.magic:#04x} does not exist in this draft")
        self.extras_at = HEADER_SIZE + header.frames_length
        self.key_at = self.extras_at + header.extras_length
        self.value_at = self.key_at + header.key_length
        if self.value_at > len(data):
            self.fail(
                "total body length",
                8,
                f"{header.body_length} bytes are less than framing extras, extras and key together "
                f"({self.value_at - HEADER_SIZE})",
            )

    @property
    def extras(self) -> bytes:
        return self.data[self.extras_at : self.key_at]

    @property
    def key(self) -> bytes:
        return self.data[self.key_at : self.value_at]

    @property
    def value(self) -> bytes:
        return self.data[self.value_at :]

    def fail(
        self,
        field: str,
        offset: int,
        rule: str,
        *,
        usable: bool = True,
        status: Status = Status.INVALID,
    ) -> NoReturn:
        raise DecodeError(
            dialect=self.dialect.name,
            packet=self.name,
            field=field,
            offset=offset,
            rule=rule,
            usable=usable,
            status=status,
        )

    def frames(self) -> tuple[FrameInfo, ...]:
        if not self.header.frames_length:
            return ()
        raw = self.data[HEADER_SIZE : self.extras_at]
        try:
            return decode_frame_infos(raw, response=self.header.is_response)
        except FrameInfoError as problem:
            self.fail(
                "framing extras", HEADER_SIZE + problem.offset, problem.rule, status=problem.status
            )

    def datatype(self) -> Datatype:
        if not self.dialect.has_datatypes:
            return Datatype.RAW
        if self.header.datatype not in ALL_DATATYPES:
            self.fail("datatype", 5, f"{self.header.datatype:#04x} is no combination of known bits")
        return Datatype(self.header.datatype)


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

    # ---- decoding ------------------------------------------------------------------------

    def decode(self, packet: bytes) -> Message:
        view = _Packet(self, packet)
        header = view.header
        if header.is_response:
            return self._decode_response(view)
        layouts = self.table.requests.get((header.of_server, header.opcode))
        if layouts is None:
            return UnknownCommand(
                opcode=header.opcode,
                opaque=header.opaque,
                frames=view.frames(),
                vbucket=header.vbucket,
                extras=view.extras,
                key=view.key,
                value=view.value,
                cas=header.cas,
                datatype=view.datatype(),
                from_server=header.of_server,
            )
        return self._load(view, self._select(view, layouts))

    def _decode_response(self, view: _Packet) -> Message:
        header = view.header
        server = header.of_server
        command: Command | int = self.table.commands.get((server, header.opcode), header.opcode)
        status = self.table.status(command, header.vbucket)
        layouts = self.table.responses.get((server, header.opcode, status))
        if layouts is not None:
            return self._load(view, self._select(view, layouts))
        return PlainResponse(
            command=command,
            status=status,
            status_code=header.vbucket if status is Status.UNRECOGNISED else 0,
            opaque=header.opaque,
            frames=view.frames(),
            extras=view.extras,
            key=view.key,
            value=view.value,
            cas=header.cas,
            datatype=view.datatype(),
        )

    def _select(self, view: _Packet, layouts: list[Layout]) -> Layout:
        """The layout of this packet's form, by the length of its extras and its constants."""
        length = view.header.extras_length
        fitting = [x for x in layouts if 0 <= length - x.extras.size <= x.surplus]
        if not fitting:
            sizes = sorted({x.extras.size for x in layouts})
            expected = " or ".join(map(str, sizes))
            view.fail("extras length", 4, f"must be {expected}, not {length}")
        if len(fitting) == 1:
            return fitting[0]
        for layout in fitting:
            if layout.accepts(view.extras, view.key, view.value):
                return layout
        self._explain_constant(view, fitting)
        return fitting[0]

    def _explain_constant(self, view: _Packet, layouts: list[Layout]) -> None:
        """Refuses a packet whose constants belong to none of several forms, naming them all."""
        misses = [(x.extras, x.extras.mismatch(view.extras)) for x in layouts]
        places = {record.offset(index) for record, index in misses if index is not None}
        if len(places) == 1 and all(index is not None for _, index in misses):
            slots = [record.slots[index] for record, index in misses if index is not None]
            expected = " or ".join(str(slot.constant) for slot in slots)
            view.fail(slots[0].label, view.extras_at + places.pop(), f"must be {expected}")

    def _load(self, view: _Packet, layout: Layout) -> Message:
        header = view.header
        view.datatype()
        values: dict[str, Any] = dict(layout.constants)
        lengths = self._load_record(view, layout.extras, view.extras_at, values)
        self._check_key_length(view, layout)
        self._load_value(view, layout, lengths, values)
        if not header.is_response:
            if layout.cas is Cas.ZERO and header.cas:
                view.fail("cas", 16, "must be 0")
            if layout.cas is Cas.SET and not header.cas:
                view.fail("cas", 16, "must not be 0")
            if layout.datatypes is not None and header.datatype not in layout.datatypes:
                view.fail("datatype", 5, f"{datatype_name(header.datatype)} is not allowed here")
        values["frames"] = view.frames()
        self._load_key(view, layout, values)
        values["opaque"] = header.opaque
        if "vbucket" in layout.header:
            values["vbucket"] = header.vbucket
        if "cas" in layout.header:
            values["cas"] = header.cas
        if "datatype" in layout.header:
            values["datatype"] = Datatype(header.datatype)
        if layout.has_command:
            values["command"] = layout.command
        if header.is_response:
            values["status"] = layout.status
        return layout.message(**values)

    def _load_record(
        self, view: _Packet, record: Record, at: int, values: dict[str, Any]
    ) -> dict[str, int]:
        try:
            return record.load(view.data, at, values)
        except FieldError as problem:
            view.fail(problem.field, problem.offset, problem.rule)

    def _check_key_length(self, view: _Packet, layout: Layout) -> None:
        length = view.header.key_length
        if layout.key is KeyRule.NONE:
            if length:
                view.fail("key length", 2, f"must be 0, not {length}")
            return
        if not length and layout.key in (KeyRule.DOCUMENT, KeyRule.NAME):
            view.fail("key length", 2, "must not be 0")
        limit = limits.MAX_PREFIXED_KEY if self.collections else limits.MAX_KEY
        if length > limit:
            view.fail("key length", 2, f"{length} bytes are more than the limit of {limit}")

    def _load_value(
        self, view: _Packet, layout: Layout, lengths: dict[str, int], values: dict[str, Any]
    ) -> None:
        raw = view.value
        at = view.value_at
        for attribute, length in lengths.items():
            if length > len(raw):
                view.fail(
                    attribute.replace("_", " "),
                    at,
                    f"says {length} bytes, {len(raw)} are left of the value",
                )
            if attribute == layout.prefix:
                values[attribute], raw, at = raw[:length], raw[length:], at + length
            else:
                cut = len(raw) - length
                raw, values[attribute] = raw[:cut], raw[cut:]
        rule = layout.value
        if rule is None:
            if raw:
                view.fail("value", at, f"must be empty, not {len(raw)} bytes")
            return
        if rule.record is not None:
            if len(raw) != rule.record.size:
                view.fail("value", at, f"must be {rule.record.size} bytes, not {len(raw)}")
            self._load_record(view, rule.record, at, values)
            return
        if rule.required and not raw:
            view.fail("value", at, "must not be empty")
        limit = limits.MAX_VALUE + limits.MAX_SYSTEM_XATTRS
        if rule.document and len(raw) > limit:
            view.fail(
                "value",
                at,
                f"{len(raw)} bytes are more than the limit of {limit}",
                status=Status.TOO_BIG,
            )
        try:
            values[rule.attribute] = rule.load(raw)
        except ValueError as problem:
            view.fail(rule.label, at, str(problem))

    def _load_key(self, view: _Packet, layout: Layout, values: dict[str, Any]) -> None:
        key = view.key
        if layout.key is KeyRule.DOCUMENT:
            if self.collections:
                values["collection"], key = self._split_key(view, key)
            values[layout.key_attribute] = key
        elif layout.key is KeyRule.RAW:
            values[layout.key_attribute] = key
        elif layout.key is not KeyRule.NONE:
            try:
                values[layout.key_attribute] = key.decode()
            except UnicodeDecodeError as problem:
                view.fail("key", view.key_at + problem.start, "is not UTF-8 text")

    def _split_key(self, view: _Packet, key: bytes) -> tuple[int, bytes]:
        """The collection id before a key, and the key behind it."""
        if len(key) < 2:
            view.fail("key", view.key_at, "a collection id and a key are at least 2 bytes")
        try:
            collection, size = leb128.decode(key)
        except ValueError as problem:
            view.fail("key", view.key_at, str(problem))
        key = key[size:]
        if not key:
            view.fail("key", view.key_at + size, "there is no key behind the collection id")
        if collection in _RESERVED_COLLECTIONS:
            view.fail("key", view.key_at, f"collection id {collection} is reserved")
        limit = limits.MAX_COLLECTION_KEY if collection else limits.MAX_KEY
        if len(key) > limit:
            view.fail(
                "key", view.key_at + size, f"{len(key)} bytes are more than the limit of {limit}"
            )
        return collection, key

    # ---- encoding ------------------------------------------------------------------------

    def command_of(self, message: Message) -> Command | int:
        if isinstance(message, Response | BareHeader):
            return message.command
        if isinstance(message, UnknownCommand):
            return message.opcode
        return self._layout_for(message).command

    def encode(self, message: Message) -> bytes:
        if isinstance(message, UnknownCommand | PlainResponse):
            return self._pack(
                message,
                self._opcode(message),
                message.extras,
                message.key,
                message.value,
                cas=message.cas,
                datatype=message.datatype,
            )
        if isinstance(message, BareHeader):
            return self._pack(message, self._opcode(message), b"", b"", b"")
        layout = self._layout_for(message)
        extras = self._dump_record(message, layout.extras)
        key = self._dump_key(message, layout)
        value = self._dump_value(message, layout)
        cas = message.cas if "cas" in layout.header else 0  # type: ignore[attr-defined]
        datatype = message.datatype if "datatype" in layout.header else 0  # type: ignore[attr-defined]
        if isinstance(message, Request):
            if layout.cas is Cas.SET and not cas:
                self._refuse(message, "cas", "must not be 0")
            if layout.cas is Cas.ZERO and cas:
                self._refuse(message, "cas", "must be 0")
            if layout.datatypes is not None and int(datatype) not in layout.datatypes:
                self._refuse(message, "datatype", f"{datatype_name(datatype)} is not allowed here")
        return self._pack(message, layout.opcode, extras, key, value, cas=cas, datatype=datatype)

    def _layout_for(self, message: Message) -> Layout:
        layouts = self.table.of_message.get(type(message), ())
        if isinstance(message, Response) or hasattr(message, "command"):
            layouts = [x for x in layouts if x.command == message.command]
        misfits = []
        for layout in layouts:
            misfit = layout.misfit(message)
            if not misfit:
                return layout
            misfits.append(misfit)
        if misfits:
            return self._refuse(message, misfits[-1], "this draft has no place for it, or needs it")
        return self._refuse(message, "message", "this draft has no such message")

    def _opcode(self, message: UnknownCommand | PlainResponse | BareHeader) -> int:
        if isinstance(message, UnknownCommand):
            return message.opcode
        command = message.command
        if isinstance(command, Command):
            opcode = self.table.opcodes.get(command)
            if opcode is None:
                self._refuse(message, "command", f"this draft has no {command}")
            return opcode
        return command

    def _dump_record(self, message: Message, record: Record) -> bytes:
        try:
            return record.dump(message)
        except FieldError as problem:
            self._refuse(message, problem.field, problem.rule)

    def _dump_key(self, message: Message, layout: Layout) -> bytes:
        if layout.key is KeyRule.NONE:
            return b""
        content = getattr(message, layout.key_attribute)
        if layout.key in (KeyRule.NAME, KeyRule.OPTIONAL_NAME):
            content = content.encode()
        if not content and layout.key in (KeyRule.DOCUMENT, KeyRule.NAME):
            self._refuse(message, layout.key_attribute, "must not be empty")
        limit = limits.MAX_PREFIXED_KEY if layout.key is KeyRule.RAW else limits.MAX_KEY
        if layout.key is KeyRule.DOCUMENT:
            collection: int | None = message.collection  # type: ignore[attr-defined]
            if self.collections:
                if collection is None:
                    self._refuse(message, "collection", "collections were negotiated")
                if collection in _RESERVED_COLLECTIONS:
                    self._refuse(message, "collection", f"{collection} is reserved")
                if collection:
                    limit = limits.MAX_COLLECTION_KEY
            elif collection is not None:
                self._refuse(message, "collection", "collections were not negotiated")
        if len(content) > limit:
            self._refuse(
                message, layout.key_attribute, f"{len(content)} bytes are more than {limit}"
            )
        if layout.key is KeyRule.DOCUMENT and self.collections:
            try:
                return leb128.encode(message.collection) + bytes(content)  # type: ignore[attr-defined]
            except ValueError as problem:
                self._refuse(message, "collection", str(problem))
        return bytes(content)

    def _dump_value(self, message: Message, layout: Layout) -> bytes:
        rule = layout.value
        value = b""
        if rule is not None:
            if rule.record is not None:
                value = self._dump_record(message, rule.record)
            else:
                try:
                    value = rule.dump(getattr(message, rule.attribute))
                except (ValueError, struct.error) as problem:
                    self._refuse(message, rule.attribute, str(problem))
                if rule.required and not value:
                    self._refuse(message, rule.attribute, "must not be empty")
                limit = limits.MAX_VALUE + limits.MAX_SYSTEM_XATTRS
                if rule.document and len(value) > limit:
                    self._refuse(
                        message, rule.attribute, f"{len(value)} bytes are more than {limit}"
                    )
        if layout.prefix:
            value = getattr(message, layout.prefix) + value
        if layout.suffix:
            value += getattr(message, layout.suffix) or b""
        return value

    def _pack(
        self,
        message: Message,
        opcode: int,
        extras: bytes,
        key: bytes,
        value: bytes,
        *,
        cas: int = 0,
        datatype: int = 0,
    ) -> bytes:
        response = isinstance(message, Response)
        if isinstance(message, Response):
            number = self._status_number(message)
            server = message.command in _SERVER_COMMANDS
        else:
            number = getattr(message, "vbucket", 0)
            server = getattr(message, "from_server", False) or (
                not isinstance(message, UnknownCommand)
                and self.command_of(message) in _SERVER_COMMANDS
            )
        try:
            frames = encode_frame_infos(message.frames, response=response)
        except ValueError as problem:
            self._refuse(message, "frames", str(problem))
        if frames and (not self.flexible or server):
            self._refuse(message, "frames", "this draft has no framing extras")
        if server:
            magic = h.SERVER_RESPONSE if response else h.SERVER_REQUEST
        elif frames:
            magic = h.FLEX_RESPONSE if response else h.FLEX_REQUEST
        else:
            magic = h.RESPONSE if response else h.REQUEST
        body_length = len(frames) + len(extras) + len(key) + len(value)
        if body_length > limits.MAX_BODY:
            self._refuse(message, "body", f"{body_length} bytes are more than {limits.MAX_BODY}")
        for name, what, most in (
            ("vbucket", number, 0xFFFF),
            ("opaque", message.opaque, 0xFFFFFFFF),
            ("cas", cas, 2**64 - 1),
            ("extras", len(extras), 0xFF),
            ("key", len(key), 0xFF if frames else 0xFFFF),
        ):
            if not 0 <= what <= most:
                self._refuse(message, name, f"{what} is not within 0..{most}")
        packed = pack_header(
            Header(
                magic,
                opcode,
                len(frames),
                len(key),
                len(extras),
                int(datatype),
                number,
                body_length,
                message.opaque,
                cas,
            )
        )
        return b"".join((packed, frames, extras, key, value))

    def _status_number(self, message: Response) -> int:
        if message.status is Status.UNRECOGNISED:
            return message.status_code
        number = self.table.status_numbers.get(message.status)
        if number is None:
            self._refuse(message, "status", f"this draft has no {message.status.name}")
        return number

    def _refuse(self, message: Message, field: str, rule: str) -> NoReturn:
        raise EncodeError(dialect=self.name, message=type(message).__name__, field=field, rule=rule)
