"""Makes docs/reference/protocol: a page for each command of the change stream, in every draft.

Layouts, numbers and examples come from the tables of the dialects, by which packets are decoded and
encoded; what a command is for is in `protocol_notes`. `tools/reference.py` writes the pages.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import MISSING, fields
from enum import IntFlag
from itertools import takewhile
from typing import Any, Final

from protocol_notes import NOTES

from upriver.errors import Status
from upriver.model import FailoverEntry, StreamEndReason, VBucketState
from upriver.wire import messages as m
from upriver.wire.dialects import Dcp, Draft000, Draft001, Draft002
from upriver.wire.dialects.draft002 import BODIES, OPCODE_NAMES
from upriver.wire.dissect import dissect
from upriver.wire.enum_codes import Codes
from upriver.wire.layout import Cas, KeyRule, Layout, Record, Slot, datatype_name
from upriver.wire.protocol_enums import Command, DurabilityLevel, OsoFlag

__all__ = ["pages"]

#: The commands that have a page: the change stream's, in the order of their declaration.
COMMANDS: Final = list(takewhile(lambda command: command is not Command.GET, Command))
_DIALECTS: Final = (Draft002(), Draft000(), Draft001(), Dcp(collections=True))
_TITLES: Final = {
    "002": "Draft 002",
    "000": "Draft 000",
    "001": "Draft 001",
    "dcp": "DCP, as servers speak it today",
}
#: Where `docs/reference/seeds.md` begins with the demands of each document that has commands.
_DEMANDS: Final = {
    "002": "document-002-upr-protocol",
    "000": "document-000-upr-transport-specification",
    "001": "document-001-upr-transport-specification",
    "004": "document-004-stream-request-today",
}
_SIZES: Final = {"B": 1, "H": 2, "I": 4, "Q": 8}


def pages() -> dict[str, str]:
    """The pages by their names: one for each command, a list of them, and the document commands."""
    made = {_file(command): "\n".join(_page(command)) for command in COMMANDS}
    made["index.md"] = "\n".join(_index())
    made["key-value.md"] = "\n".join(_key_value())
    return made


def _file(command: Command) -> str:
    return f"{command.value.replace('_', '-')}.md"


def _title(command: Command) -> str:
    words = {"oso": "OSO"}
    return " ".join(words.get(word, word.capitalize()) for word in command.value.split("_"))


# ---- one page ----------------------------------------------------------------------------


def _page(command: Command) -> Iterator[str]:
    note = NOTES[command]
    yield f"# {_title(command)}\n"
    yield f"{note.what}\n"
    yield f"**Sent by** {note.sender}. {note.answer}\n"
    for rule in note.rules:
        yield f"- {rule}"
    if note.rules:
        yield ""
    yield from _demands(command)
    for dialect in _DIALECTS:
        found = _layouts(dialect, command)
        if found:
            yield f"## {_TITLES[dialect.name]}\n"
            for layout in found:
                yield from _layout(layout, dialect)
            yield from _example(found[0], dialect)
    missing = [_TITLES[one.name] for one in _DIALECTS if not _layouts(one, command)]
    if missing:
        yield f"Not in: {', '.join(missing)}.\n"


def _demands(command: Command) -> Iterator[str]:
    """Links to what the documents that have a command demand of it."""
    if command is Command.CONTROL:  # which clients of draft 001 send, and its document has not
        return
    documents = [one.name for one in _DIALECTS if one.name in _DEMANDS and _layouts(one, command)]
    if command is Command.STREAM_REQUEST:
        documents.append("004")
    links = ", ".join(f"[{name}](../seeds.md#{_DEMANDS[name]})" for name in documents)
    if links:
        yield f"What the documents demand, and what Upriver does: {links}.\n"


def _layouts(dialect: Any, command: Command) -> list[Layout]:
    """The layouts of a command, requests first."""
    if isinstance(dialect, Draft002):
        return [one for one in BODIES if one.command is command]
    table = dialect.table
    return [
        one
        for group in (table.requests, table.responses)
        for layouts in group.values()
        for one in layouts
        if one.command is command
    ]


def _layout(layout: Layout, dialect: Any) -> Iterator[str]:
    response = issubclass(layout.message, m.Response)
    kind = re.sub("([a-z])([A-Z])", r"\1 \2", layout.message.__name__).lower()
    if isinstance(dialect, Draft002):
        yield (
            f"**{OPCODE_NAMES[layout.opcode].capitalize()}** ({kind}), opcode `{layout.opcode}`:\n"
        )
    else:
        status = f", status {layout.status.name}" if response else ""
        side = "Response" if response else "Request"
        yield f"**{side}** ({kind}), opcode `{layout.opcode:#04x}`{status}:\n"
    yield "| part | bytes | field | rule |\n|---|---|---|---|"
    rows = list(_rows(layout, dialect))
    yield from rows or ["| body | 0 | | none |"]
    yield ""


def _rows(layout: Layout, dialect: Any) -> Iterator[str]:
    if isinstance(dialect, Draft002):
        yield from _record_rows("body", layout.extras)
    else:
        yield from _header_rows(layout)
        yield from _record_rows("extras", layout.extras)
    if layout.key is not KeyRule.NONE:
        rule = {
            KeyRule.DOCUMENT: "after the collection id (unsigned LEB128), if collections are on",
            KeyRule.RAW: "bytes",
            KeyRule.NAME: "text, required",
            KeyRule.OPTIONAL_NAME: "text, may be missing",
        }[layout.key]
        yield f"| key | any | {_words(layout.key_attribute)} | {rule} |"
    if layout.prefix:
        yield f"| body | any | {_words(layout.prefix)} | of the length above |"
    if layout.value is not None and layout.value.record is not None:
        yield from _record_rows("value", layout.value.record)
    elif layout.value is not None:
        yield f"| value | any | {_words(layout.value.attribute)} | |"
    if layout.suffix:
        yield f"| value | any | {_words(layout.suffix)} | the last bytes, of the length above |"


def _header_rows(layout: Layout) -> Iterator[str]:
    response = issubclass(layout.message, m.Response)
    if "vbucket" in layout.header and not response:
        yield "| header | 2 | vbucket | |"
    if layout.cas is not Cas.ANY:
        rule = "must be 0" if layout.cas is Cas.ZERO else "must not be 0"
        yield f"| header | 8 | CAS | {rule} |"
    elif "cas" in layout.header:
        yield "| header | 8 | CAS | |"
    if layout.datatypes and "datatype" in layout.header:
        names = ", ".join(datatype_name(number) for number in sorted(layout.datatypes))
        yield f"| header | 1 | datatype | {names if len(layout.datatypes) < 8 else 'any'} |"


def _record_rows(part: str, record: Record) -> Iterator[str]:
    for slot in record.slots:
        yield f"| {part} | {_SIZES[slot.letter]} | {slot.label} | {_rule(slot)} |"


def _rule(slot: Slot) -> str:
    if slot.required:
        return f"`{slot.constant}`"
    if not slot.attribute and not slot.measures:
        return "sent as 0, ignored"
    owner = getattr(slot.load, "__self__", None)
    if isinstance(owner, Codes):
        return ", ".join(f"`{number}` {_name(name)}" for number, name in owner.names.items())
    if isinstance(slot.load, type) and issubclass(slot.load, IntFlag):
        return ", ".join(f"`{flag.value:#x}` {_name(flag)}" for flag in slot.load if flag)
    return f"at least {slot.minimum}" if slot.minimum else ""


def _name(member: Any) -> str:
    return str(member.name).replace("_", " ").lower()


def _words(attribute: str) -> str:
    return attribute.replace("_", " ")


# ---- examples ----------------------------------------------------------------------------

#: What the fields of an example hold. Others have their defaults.
_SAMPLES: Final[dict[str, Any]] = {
    "opaque": 0x2D,
    "vbucket": 12,
    "seqno": 5,
    "start": 0,
    "end": 5,
    "vbuuid": 0xFEEDDECAFBAD,
    "key": b"order:1",
    "value": b'{"total":10}',
    "cas": 0x18A5D2F4C1B30000,
    "rev": 2,
    "collection": 8,
    "name": "orders",
    "group": "replication",
    "event": 7,
    "version": 0,
    "manifest_uid": 3,
    "scope": 8,
    "prepared_seqno": 4,
    "commit_seqno": 5,
    "abort_seqno": 5,
    "level": DurabilityLevel.MAJORITY,
    "state": VBucketState.ACTIVE,
    "size": 65536,
    "reason": StreamEndReason.OK,
    "stream_opaque": 0x2D,
    "text": "not a request",
    "failover_log": (FailoverEntry(0xFEEDDECAFBAD, 3), FailoverEntry(0xC0FFEE, 0)),
    "items": (m.CachedItem(seqno=5, key=b"\x08order:1", value=b"{}"),),
}


def _example(layout: Layout, dialect: Any) -> Iterator[str]:
    message = _sample(layout, dialect)
    packet = dialect.encode(message)
    yield "An example, as `upriver decode` explains it:\n"
    yield "```text"
    yield packet.hex()
    for view in dissect(packet, dialect):
        raw = packet[view.offset : view.offset + view.size]
        yield f"{view.offset:5}  {raw.hex():<34}{view.name:<26}{view.meaning}".rstrip()
    yield "```\n"


def _sample(layout: Layout, dialect: Any) -> m.Message:
    """A message that has this layout; fields that it does not carry keep their defaults."""
    carried = {name for name, _ in layout.not_carried}
    given: dict[str, Any] = {}
    for one in fields(layout.message):
        if one.name in carried or one.name in layout.constants:
            continue
        prefixed = layout.key is KeyRule.DOCUMENT and dialect.collections
        if one.name == "collection" and not prefixed and one.name not in _attributes(layout):
            continue
        sample = _special(layout, one.name)
        if sample is not None:
            given[one.name] = sample
        elif one.name in _SAMPLES and (one.default is MISSING or one.name in _WANTED):
            given[one.name] = _SAMPLES[one.name]
    if isinstance(dialect, Draft002) and "vbucket" not in layout.extras.attributes:
        given.update({"vbucket": m.VBUCKET_NOT_CARRIED} if "vbucket" in given else {})
    return layout.message(**given)


#: Fields with a default that an example shows nevertheless.
_WANTED: Final = frozenset(
    {
        *("opaque", "value", "cas", "rev", "vbuuid", "group", "collection", "failover_log"),
        *("start", "end"),
    }
)


def _attributes(layout: Layout) -> frozenset[str]:
    found = layout.extras.attributes
    if layout.value is not None and layout.value.record is not None:
        found |= layout.value.record.attributes
    return found


def _special(layout: Layout, name: str) -> Any:
    """What a field holds in the example of one message only."""
    if layout.message is m.Control:
        return {"key": "connection_buffer_size", "value": "16777216"}.get(name)
    if layout.message is m.Open and name == "value":
        return b""
    if layout.message is m.OsoSnapshot and name == "flags":
        return OsoFlag.START
    if layout.message is m.StreamRequest and name == "end":
        return 2**64 - 1
    if layout.message in (m.RequestError, m.ResponseError) and name == "reason":
        return 1
    if layout.message in (m.Deletion, m.Expiration) and name == "value":
        return b""
    return None


# ---- lists -------------------------------------------------------------------------------


def _index() -> Iterator[str]:
    yield "# The protocol, command by command\n"
    yield (
        "The change stream has a page for each command, with its layout in every draft that has "
        "it and an example. The [key-value commands](key-value.md) are in one table. All of it is "
        "made from the tables by which Upriver decodes and encodes packets. "
        "[The drafts and their mistakes](../../explanation/drafts-and-their-mistakes.md) says how "
        "the drafts differ and what their documents get wrong, and "
        "[the five documents](../seeds.md) what each of them demands and Upriver does.\n"
    )
    yield (
        "From draft 000 on, packets have memcached's header of 24 bytes: magic, opcode, key length "
        "(2), extras length, datatype, vbucket or status (2), total body length (4), opaque (4), "
        "CAS (8); then extras, key and value. Draft 002 has 12 bytes: opcode, 3 reserved, request "
        "id (4), length (4). Numbers are big-endian.\n"
    )
    yield "| command | 002 | 000 | 001 | DCP | what it is |\n|---|---|---|---|---|---|"
    for command in COMMANDS:
        cells = [f"[{_title(command)}]({_file(command)})"]
        for dialect in _DIALECTS:
            opcodes = {one.opcode for one in _layouts(dialect, command)}
            requests = {
                one.opcode
                for one in _layouts(dialect, command)
                if not issubclass(one.message, m.Response)
            }
            form = "{}" if isinstance(dialect, Draft002) else "{:#04x}"
            cells.append(", ".join(f"`{form.format(n)}`" for n in sorted(requests or opcodes)))
        first = NOTES[command].what.partition(". ")[0].rstrip(".")
        yield f"| {' | '.join(cells)} | {first} |"
    yield ""


def _key_value() -> Iterator[str]:
    yield "# Key-value commands\n"
    yield (
        "Commands on documents, vbuckets, collections and the connection, which the producer "
        "answers on the same port: memcached's binary protocol, as Couchbase's clients speak it.\n"
    )
    yield "| command | opcode | extras | key | value |\n|---|---|---|---|---|"
    table = Dcp().table
    seen: set[tuple[Command, int, int]] = set()
    rest = [one for group in table.requests.values() for one in group]
    for layout in sorted(rest, key=lambda one: (one.opcode, one.extras.size)):
        form = (layout.command, layout.opcode, layout.extras.size)
        if layout.command in COMMANDS or form in seen:
            continue
        seen.add(form)
        extras = ", ".join(f"{slot.label} ({_SIZES[slot.letter]})" for slot in layout.extras.slots)
        key = "" if layout.key is KeyRule.NONE else _words(layout.key_attribute)
        value = "" if layout.value is None else _words(layout.value.attribute)
        if layout.value is not None and layout.value.record is not None:
            value = ", ".join(f"{s.label} ({_SIZES[s.letter]})" for s in layout.value.record.slots)
        title = _title(layout.command)
        yield f"| {title} | `{layout.opcode:#04x}` | {extras} | {key} | {value} |"
    yield "\n## Statuses\n"
    yield "| status | number | may be tried again |\n|---|---|---|"
    for number, status in sorted(table.statuses.items()):
        if status is not Status.SUCCESS:
            yield f"| {status.name} | `{number:#04x}` | {'yes' if status.retriable else ''} |"
    yield ""
