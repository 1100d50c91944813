"""Decodes a packet with the memcached header into its message, by a dialect's table.

Checks are made in the order of real servers: datatype, extras, key, value, CAS, allowed datatypes,
framing extras, and last the document key with its collection.
"""

from __future__ import annotations

from typing import Any, NoReturn, Protocol

from ...errors import DecodeError, Status
from ...model import Datatype
from .. import leb128, limits
from ..frameinfo import FrameInfo, FrameInfoError, decode_frame_infos
from ..header import HEADER_SIZE, MAGICS, parse_header
from ..layout import ALL_DATATYPES, Cas, FieldError, KeyRule, Layout, Record, closest, datatype_name
from ..messages import Message, PlainResponse, UnknownCommand
from ..protocol_enums import Command
from .layout_table import Table

#: Collection ids that are reserved for servers.
RESERVED_COLLECTIONS = range(1, 8)


class Rules(Protocol):
    """The properties of a dialect and its connection that decoding and encoding need."""

    @property
    def name(self) -> str: ...
    @property
    def table(self) -> Table: ...
    @property
    def flexible(self) -> bool: ...
    @property
    def has_datatypes(self) -> bool: ...
    @property
    def collections(self) -> bool: ...


class PacketReader:
    """Decodes one packet; the constructor checks that header and lengths fit its bytes."""

    __slots__ = ("data", "extras_at", "header", "is_response", "key_at", "rules", "value_at")

    def __init__(self, rules: Rules, data: bytes) -> None:
        self.rules = rules
        self.data = data
        if data and data[0] not in MAGICS:
            self.fail("magic", 0, f"{data[0]:#04x} is not a magic of this protocol", usable=False)
        if len(data) < HEADER_SIZE:
            rule = f"the header needs {HEADER_SIZE} bytes, the packet has {len(data)}"
            self.fail("header", len(data), rule, usable=False)
        self.header = header = parse_header(data)
        self.is_response = header.is_response
        if len(data) != HEADER_SIZE + header.body_length:
            rule = f"is {header.body_length}, but {len(data) - HEADER_SIZE} bytes follow"
            self.fail("total body length", 8, rule, usable=False)
        if header.is_flexible and not rules.flexible:
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

    def message(self) -> Message:
        """The message of the packet; `DecodeError` if it breaks a rule."""
        header, table = self.header, self.rules.table
        server = header.of_server
        command: Command | int = table.commands.get((server, header.opcode), header.opcode)
        status = table.status(command, header.vbucket) if self.is_response else Status.SUCCESS
        if self.is_response:
            layouts = table.responses.get((server, header.opcode, status))
        else:
            layouts = table.requests.get((server, header.opcode))
        if layouts is not None:
            return self._load(self._select(layouts))
        content: dict[str, Any] = {
            "opaque": header.opaque,
            "frames": self.frames(),
            "extras": self.extras,
            "key": self.key,
            "value": self.value,
            "cas": header.cas,
            "datatype": self.datatype(),
        }
        if not self.is_response:
            return UnknownCommand(
                opcode=header.opcode, vbucket=header.vbucket, from_server=server, **content
            )
        return PlainResponse(
            command=command,
            status=status,
            status_code=header.vbucket if status is Status.UNRECOGNISED else 0,
            from_server=server and not isinstance(command, Command),
            **content,
        )

    # ---- parts ---------------------------------------------------------------------------

    @property
    def extras(self) -> bytes:
        return self.data[self.extras_at : self.key_at]

    @property
    def key(self) -> bytes:
        return self.data[self.key_at : self.value_at]

    @property
    def value(self) -> bytes:
        return self.data[self.value_at :]

    def frames(self) -> tuple[FrameInfo, ...]:
        if not self.header.frames_length:
            return ()
        raw = self.data[HEADER_SIZE : self.extras_at]
        try:
            return decode_frame_infos(raw, response=self.is_response)
        except FrameInfoError as problem:
            where = HEADER_SIZE + problem.offset
            self.fail("framing extras", where, problem.rule, status=problem.status)

    def datatype(self) -> Datatype:
        number = self.header.datatype
        if not number or not self.rules.has_datatypes:
            return Datatype.RAW
        if number not in ALL_DATATYPES:
            self.fail("datatype", 5, f"{number:#04x} has unknown bits")
        return Datatype(number)

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
            dialect=self.rules.name,
            packet=self._name(),
            field=field,
            offset=offset,
            rule=rule,
            usable=usable,
            status=status,
        )

    def _name(self) -> str:
        """The packet's name in an error, as far as its header could be parsed."""
        if len(self.data) < HEADER_SIZE or self.data[0] not in MAGICS:
            return "packet"
        header = parse_header(self.data)
        command = self.rules.table.commands.get((header.of_server, header.opcode))
        side = "response" if header.is_response else "request"
        return f"{command or f'{header.opcode:#04x}'} {side}"

    # ---- by layout -----------------------------------------------------------------------

    def _select(self, layouts: list[Layout]) -> Layout:
        """The layout of this packet, by the length of its extras and its constants."""
        if len(layouts) == 1 and layouts[0].extras.size == self.header.extras_length:
            return layouts[0]
        layout = closest(layouts, self.extras, self.key, self.value)
        if layout is None:
            expected = " or ".join(map(str, sorted({x.extras.size for x in layouts})))
            length = self.header.extras_length
            return self.fail("extras length", 4, f"must be {expected}, not {length}")
        if layout.extras.mismatch(self.extras) is not None:
            self._explain_constant([x for x in layouts if x.extras.size == layout.extras.size])
        return layout

    def _explain_constant(self, layouts: list[Layout]) -> None:
        """Raises the error for a constant that no layout has, naming those that they have."""
        slots = {}
        for record in (x.extras for x in layouts):
            index = record.mismatch(self.extras)
            if index is not None:
                slots[record.slots[index].constant] = (index, record)
        index, record = next(iter(slots.values()))
        found = record.struct.unpack(self.extras)[index]
        expected = " or ".join(map(str, slots))
        at = self.extras_at + record.offset(index)
        self.fail(record.slots[index].label, at, f"must be {expected}, not {found}")

    def _load(self, layout: Layout) -> Message:
        header = self.header
        datatype = self.datatype()
        values: dict[str, Any] = {"opaque": header.opaque, **layout.constants}
        lengths = self._load_record(layout.extras, self.extras_at, values)
        self._check_key_length(layout)
        self._load_value(layout, lengths, values)
        if self.is_response:
            values["status"] = layout.status
        else:
            self._check_header(layout)
        if header.frames_length:
            values["frames"] = self.frames()
        self._load_key(layout, values)
        carried = layout.header
        if "vbucket" in carried:
            values["vbucket"] = header.vbucket
        if "cas" in carried:
            values["cas"] = header.cas
        if "datatype" in carried:
            values["datatype"] = datatype
        if layout.has_command:
            values["command"] = layout.command
        return layout.message(**values)

    def _check_header(self, layout: Layout) -> None:
        """Checks a request's CAS, datatype and vbucket."""
        header = self.header
        if layout.cas is Cas.ZERO and header.cas:
            self.fail("cas", 16, "must be 0")
        if layout.cas is Cas.SET and not header.cas:
            self.fail("cas", 16, "must not be 0")
        if layout.datatypes is not None and header.datatype not in layout.datatypes:
            self.fail("datatype", 5, f"{datatype_name(header.datatype)} is not allowed here")
        if layout.no_vbucket and header.vbucket:
            self.fail("vbucket", 6, "must be 0")

    def _load_record(self, record: Record, at: int, values: dict[str, Any]) -> dict[str, int]:
        try:
            return record.load(self.data, at, values)
        except FieldError as problem:
            self.fail(problem.field, problem.offset, problem.rule)

    def _check_key_length(self, layout: Layout) -> None:
        length = self.header.key_length
        if layout.key is KeyRule.NONE:
            if length:
                self.fail("key length", 2, f"must be 0, not {length}")
            return
        if not length and layout.key in (KeyRule.DOCUMENT, KeyRule.NAME):
            self.fail("key length", 2, "must not be 0")
        limit = limits.MAX_PREFIXED_KEY if self.rules.collections else limits.MAX_KEY
        if length > limit:
            self.fail("key length", 2, f"{length} bytes are more than the limit of {limit}")

    def _load_value(self, layout: Layout, lengths: dict[str, int], values: dict[str, Any]) -> None:
        raw, at = self.value, self.value_at
        for attribute, length in lengths.items():
            if length > len(raw):
                problem = f"is {length}, but {len(raw)} bytes are left of the value"
                self.fail(attribute.replace("_", " "), at, problem)
            if attribute == layout.prefix:
                values[attribute], raw, at = raw[:length], raw[length:], at + length
            else:
                cut = len(raw) - length
                raw, values[attribute] = raw[:cut], raw[cut:]
        rule = layout.value
        if rule is None:
            if raw:
                self.fail("value", at, f"must be empty, not {len(raw)} bytes")
            return
        if rule.record is not None:
            if len(raw) != rule.record.size:
                self.fail("value", at, f"must be {rule.record.size} bytes, not {len(raw)}")
            self._load_record(rule.record, at, values)
            return
        if rule.required and not raw:
            self.fail("value", at, "must not be empty")
        if rule.document and len(raw) > limits.MAX_STORED_VALUE:
            problem = f"{len(raw)} bytes are more than the limit of {limits.MAX_STORED_VALUE}"
            self.fail("value", at, problem, status=Status.TOO_BIG)
        try:
            values[rule.attribute] = rule.load(raw)
        except ValueError as error:
            self.fail(rule.label, at, str(error))

    def _load_key(self, layout: Layout, values: dict[str, Any]) -> None:
        key = self.key
        if layout.key is KeyRule.DOCUMENT:
            if self.rules.collections:
                values["collection"], key = self._split_key(key)
            values[layout.key_attribute] = key
        elif layout.key is KeyRule.RAW:
            values[layout.key_attribute] = key
        elif layout.key is not KeyRule.NONE:
            try:
                values[layout.key_attribute] = key.decode()
            except UnicodeDecodeError as problem:
                self.fail("key", self.key_at + problem.start, "is not UTF-8 text")

    def _split_key(self, key: bytes) -> tuple[int, bytes]:
        """Splits a key into collection id and document key."""
        at = self.key_at
        if len(key) < 2:
            self.fail("key", at, "a collection id and a key are at least 2 bytes")
        try:
            collection, size = leb128.decode(key)
        except ValueError as problem:
            self.fail("key", at, str(problem))
        key = key[size:]
        if not key:
            self.fail("key", at + size, "there is no key after the collection id")
        if collection in RESERVED_COLLECTIONS:
            self.fail("key", at, f"collection id {collection} is reserved")
        limit = limits.MAX_COLLECTION_KEY if collection else limits.MAX_KEY
        if len(key) > limit:
            self.fail("key", at + size, f"{len(key)} bytes are more than the limit of {limit}")
        return collection, key
