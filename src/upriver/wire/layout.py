"""Packet layouts as data: records of fixed fields, and rules for key and value.

A dialect is a table of `Layout`. The same table decodes, encodes and explains a packet, so each
field is declared once. Conversions raise ValueError with the broken rule; callers know the packet
and add field and offset.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from enum import Enum, IntFlag, auto
from typing import Any

from ..errors import Status
from ..model import Datatype
from .enum_codes import Codes
from .messages import Message, Response
from .protocol_enums import Command


@dataclass(frozen=True, slots=True)
class Slot:
    """One fixed-size field of a record."""

    letter: str
    #: The message's attribute, or "" for a field without one.
    attribute: str
    label: str
    load: Callable[[int], Any] | None = None
    dump: Callable[[Any], int] | None = None
    #: The number that is sent if there is no attribute.
    constant: int = 0
    #: Whether any other number than the constant is an error.
    required: bool = False
    minimum: int = 0
    #: The attribute or the number to send if the attribute is None.
    absent: str | int | None = None
    #: The attribute whose length this field holds.
    measures: str = ""

    @property
    def size(self) -> int:
        return struct.calcsize(">" + self.letter)

    def number(self, message: Message) -> int:
        """The number of this field for a message."""
        if self.measures:
            return len(getattr(message, self.measures))
        if not self.attribute:
            return self.constant
        content = getattr(message, self.attribute)
        if content is None:
            content = getattr(message, self.absent) if isinstance(self.absent, str) else self.absent
        try:
            number = int(self.dump(content) if self.dump else content)
        except ValueError as problem:
            raise FieldError(self.attribute, 0, str(problem)) from None
        bits = 8 * self.size
        if not self.minimum <= number < 1 << bits:
            raise FieldError(self.attribute, 0, f"{number} is not an unsigned {bits}-bit number")
        return number


def _number(letter: str) -> Callable[..., Slot]:
    def make(
        attribute: str,
        codes: Codes | type[IntFlag] | type[bool] | None = None,
        *,
        label: str = "",
        minimum: int = 0,
        absent: str | int | None = None,
    ) -> Slot:
        load: Callable[[int], Any] | None = None
        dump: Callable[[Any], int] | None = None
        if isinstance(codes, Codes):
            load, dump = codes.load, codes.dump
        elif codes is not None:
            load, dump = codes, int
        return Slot(
            letter,
            attribute,
            label or attribute.replace("_", " "),
            load,
            dump,
            minimum=minimum,
            absent=absent,
        )

    return make


u8 = _number("B")
u16 = _number("H")
u32 = _number("I")
u64 = _number("Q")


def reserved(letter: str, label: str = "reserved") -> Slot:
    """A reserved field: sent as 0 and ignored on receipt."""
    return Slot(letter, "", label)


def const(letter: str, number: int, label: str) -> Slot:
    """A constant field; another number is another message, or an error."""
    return Slot(letter, "", label, constant=number, required=True)


def length_of(letter: str, attribute: str, label: str) -> Slot:
    """The length of an attribute at the beginning or end of the value."""
    return Slot(letter, "", label, measures=attribute)


class FieldError(ValueError):
    """A field that breaks a rule; ``offset`` counts from the start of the data."""

    def __init__(self, field: str, offset: int, rule: str) -> None:
        super().__init__(rule)
        self.field = field
        self.offset = offset
        self.rule = rule


class Record:
    """A sequence of fields of fixed size."""

    __slots__ = ("attributes", "plain", "size", "slots", "struct")

    def __init__(self, *slots: Slot) -> None:
        self.slots = slots
        self.struct = struct.Struct(">" + "".join(slot.letter for slot in slots))
        self.size = self.struct.size
        self.attributes = frozenset(slot.attribute for slot in slots if slot.attribute)
        #: The attribute names, if every field is a plain number with an attribute: the common case.
        self.plain = tuple(
            slot.attribute
            for slot in slots
            if slot.attribute and slot.load is None and not slot.minimum
        )
        if len(self.plain) != len(slots):
            self.plain = ()

    @property
    def has_constants(self) -> bool:
        """Whether a constant field distinguishes the record from others of the same size."""
        return any(slot.required for slot in self.slots)

    def offset(self, index: int) -> int:
        """The offset of a field from the record's first byte."""
        return sum(slot.size for slot in self.slots[:index])

    def load(self, data: bytes, at: int, values: dict[str, Any]) -> dict[str, int]:
        """Adds the attributes at ``at`` to ``values``; returns the lengths of other attributes."""
        lengths: dict[str, int] = {}
        if self.plain:
            values.update(zip(self.plain, self.struct.unpack_from(data, at), strict=True))
            return lengths
        for index, number in enumerate(self.struct.unpack_from(data, at)):
            slot = self.slots[index]
            if slot.attribute:
                if number < slot.minimum:
                    raise FieldError(slot.label, at + self.offset(index), f"must not be {number}")
                if slot.load is None:
                    values[slot.attribute] = number
                    continue
                try:
                    values[slot.attribute] = slot.load(number)
                except ValueError as problem:
                    where = at + self.offset(index)
                    raise FieldError(slot.label, where, str(problem)) from None
            elif slot.measures:
                lengths[slot.measures] = number
            elif slot.required and number != slot.constant:
                rule = f"must be {slot.constant}, not {number}"
                raise FieldError(slot.label, at + self.offset(index), rule)
        return lengths

    def dump(self, message: Message) -> bytes:
        """The bytes of a message's attributes; FieldError names the one that does not fit."""
        return self.struct.pack(*(slot.number(message) for slot in self.slots))

    def mismatch(self, data: bytes) -> int | None:
        """The index of the first constant field with another number; None if all match."""
        for index, number in enumerate(self.struct.unpack_from(data)):
            slot = self.slots[index]
            if slot.required and number != slot.constant:
                return index
        return None


class KeyRule(Enum):
    """What the key of a packet holds."""

    NONE = auto()
    #: A document's key, after its collection id if collections are negotiated.
    DOCUMENT = auto()
    #: As `DOCUMENT`, but may be missing (responses that repeat a key on request).
    RAW = auto()
    #: Text; required.
    NAME = auto()
    #: Text; optional.
    OPTIONAL_NAME = auto()


@dataclass(frozen=True, slots=True)
class Value:
    """What the value of a packet holds. The default is any bytes."""

    attribute: str = "value"
    load: Callable[[bytes], Any] = bytes
    dump: Callable[[Any], bytes] = bytes
    required: bool = False
    #: Fixed fields instead of a single attribute; the value is exactly these.
    record: Record | None = None
    #: Whether the size limit of documents applies, and not only that of packets.
    document: bool = False
    label: str = "value"


NO_VALUE = None

ALL_DATATYPES = frozenset(range(8))
ONLY_RAW = frozenset({0})


class Cas(Enum):
    """Whether a request's CAS must, may or must not be set."""

    ANY = auto()
    ZERO = auto()
    SET = auto()


_ENVELOPE = frozenset({"opaque", "frames", "command", "status", "status_code"})


@dataclass(frozen=True, slots=True, eq=False)
class Layout:
    """The position of each attribute of a message in one form of its packet."""

    command: Command
    opcode: int
    message: type[Message]
    extras: Record = field(default_factory=Record)
    key: KeyRule = KeyRule.NONE
    key_attribute: str = "key"
    value: Value | None = NO_VALUE
    #: Attributes at the beginning and the end of the value, whose lengths are in the extras.
    prefix: str = ""
    suffix: str = ""
    cas: Cas = Cas.ANY
    #: Whether the vbucket field must be 0: the command is about a whole bucket or the server.
    no_vbucket: bool = False
    #: Allowed datatypes; None ignores the byte and sends 0.
    datatypes: frozenset[int] | None = ONLY_RAW
    #: Attributes whose values follow from the opcode.
    constants: Mapping[str, Any] = field(default_factory=dict)
    #: Responses only: the status that has this layout.
    status: Status = Status.SUCCESS
    #: Computed: the header fields that the message has, and defaults of attributes not carried.
    header: frozenset[str] = field(init=False)
    has_command: bool = field(init=False)
    not_carried: tuple[tuple[str, Any], ...] = field(init=False)

    def __post_init__(self) -> None:
        known = {f.name: f for f in fields(self.message)}
        header = {name for name in ("vbucket", "cas", "datatype") if name in known}
        if self.datatypes is None:
            header.discard("datatype")
        if issubclass(self.message, Response):  # responses have the status instead of the vbucket
            header.discard("vbucket")
        places = set(header) | self.extras.attributes | set(self.constants) | _ENVELOPE
        if self.key is KeyRule.DOCUMENT:
            places |= {self.key_attribute, "collection"}
        elif self.key is not KeyRule.NONE:
            places.add(self.key_attribute)
        if self.value is not None:
            places |= self.value.record.attributes if self.value.record else {self.value.attribute}
        places |= {self.prefix, self.suffix} - {""}
        not_carried = []
        for name, info in known.items():
            if name not in places:
                if info.default is MISSING:
                    raise TypeError(
                        f"{self.message.__name__}.{name} has no place in {self.command}"
                    )
                not_carried.append((name, info.default))
        unknown = places - set(known) - _ENVELOPE - {"collection"}
        if unknown:
            raise TypeError(f"{self.message.__name__} has no {sorted(unknown)}")
        object.__setattr__(self, "header", frozenset(header))
        object.__setattr__(self, "has_command", "command" in known)
        object.__setattr__(self, "not_carried", tuple(not_carried))

    def accepts(self, key: bytes, value: bytes) -> bool:
        """Whether a packet with the right extras has this layout rather than another."""
        if (bool(key) and self.key is KeyRule.NONE) or (not key and self.key is KeyRule.NAME):
            return False
        record = self.value.record if self.value else None
        return record is None or (len(value) == record.size and record.mismatch(value) is None)

    def misfit(self, message: Message) -> str:
        """The attribute that this layout cannot carry for a message; "" if there is none."""
        for name, constant in self.constants.items():
            if getattr(message, name) != constant:
                return name
        for name, default in self.not_carried:
            if getattr(message, name) != default:
                return name
        slots = self.extras.slots
        if self.value is not None and self.value.record is not None:
            slots += self.value.record.slots
        for slot in slots:
            name = slot.attribute or slot.measures
            if name and slot.absent is None and getattr(message, name) is None:
                return name
        return ""


def closest(layouts: Sequence[Layout], extras: bytes, key: bytes, value: bytes) -> Layout | None:
    """The layout of a packet, or the closest one; None if no layout has extras of that length."""
    fitting = [x for x in layouts if x.extras.size == len(extras)]
    told_apart = [x for x in fitting if x.extras.has_constants]
    candidates = (
        [x for x in told_apart if x.extras.mismatch(extras) is None]
        or [x for x in fitting if x not in told_apart]
        or fitting
    )
    fallback = candidates[0] if candidates else None
    return next((x for x in candidates if x.accepts(key, value)), fallback)


def datatype_name(number: int) -> str:
    """``JSON|XATTR`` for 5."""
    return "|".join(flag.name or "" for flag in Datatype(number)) or "RAW"
