"""``upriver decode``: explains packets of any draft field by field, with their mistakes."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, fields
from enum import Enum, Flag
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.text import Text

from ...errors import DecodeError
from ...wire.dialects import Dcp, Dialect, Draft002
from ...wire.dialects.by_name import DIALECTS
from ...wire.dissect import FieldView, dissect
from ...wire.framing import Framer
from ...wire.messages import Message, Response
from ...wire.misprint_repairs import LenientReading, read_as, readings
from ...wire.protocol_enums import DIALECT_NAMES, Command
from ..decode.hex_dump_parser import pieces_of_file, pieces_of_text
from ..decode.packet_captures import is_capture, pieces_of_capture
from ..setting_options import json_option

_HEX_SHOWN = 16


@dataclass(frozen=True, slots=True)
class _Packet:
    """One packet of the input, decoded as far as possible."""

    data: bytes
    reading: LenientReading | None
    #: Other drafts in which the packet is equally valid.
    alternatives: tuple[LenientReading, ...]
    error: str

    @property
    def wrong(self) -> bool:
        return self.reading is None or not self.reading.exact


@click.command()
@click.argument("packets", nargs=-1, metavar="[HEX]...")
@click.option(
    "-f",
    "--file",
    type=click.Path(exists=True, dir_okay=False, allow_dash=True, path_type=Path),
    help="Read packets from a file: raw bytes, a pcap capture, or hex in any form. - is stdin.",
)
@click.option(
    "-d",
    "--draft",
    type=click.Choice(DIALECT_NAMES),
    default="auto",
    show_default=True,
    help="The draft to read in; 004's stream request is part of dcp.",
)
@click.option(
    "--from",
    "sender",
    type=click.Choice(["auto", "client", "server"]),
    default="auto",
    show_default=True,
    help="The side that sent the packets; helps where drafts use one opcode for two messages.",
)
@click.option("--collections", is_flag=True, help="Keys begin with their collection id.")
@json_option("One JSON object for each packet.")
def decode(
    packets: tuple[str, ...],
    file: Path | None,
    draft: str,
    sender: str,
    collections: bool,
    as_json: bool,
) -> None:
    """Explain packets of any draft, field by field, and say what is wrong with them.

    HEX may have spaces, colons or 0x; without HEX and --file, packets are read from stdin. Hex
    dumps (xxd, hexdump -C, tcpdump -x, Wireshark) and the box diagrams of protocol documents can
    be pasted as they are.

    \b
    Examples:
      upriver decode 805c00000000000000000000000000050000000000000000
      upriver decode --draft 001 --file packet.hex
      upriver decode --collections --file capture.pcap
      xxd packet.bin | upriver decode

    Exits with 1 if a packet is wrong or cannot be read.
    """
    try:
        pieces = list(_input(packets, file))
    except ValueError as problem:
        raise click.UsageError(f"the input cannot be read: {problem}") from None
    if not pieces:
        raise click.UsageError("no packet given: pass HEX, --file FILE, or pipe packets to stdin")
    cut = [_cut(piece) for piece in pieces]
    leftovers = [leftover for _, leftover in cut if leftover]
    packets_found = [packet for parts, _ in cut for packet in parts]
    dialect = _dialect(draft, collections) if draft != "auto" else None
    found = _explain([_read(packet, dialect, collections, sender) for packet in packets_found])
    if as_json:
        _show_json(found, leftovers)
    else:
        _show(found, leftovers)
    if leftovers or any(packet.wrong for packet in found):
        raise SystemExit(1)


def _input(packets: tuple[str, ...], file: Path | None) -> Iterable[bytes]:
    if packets:
        if file is not None:
            raise click.UsageError("give HEX or --file, not both")
        return pieces_of_text(" ".join(packets))
    if file is None or str(file) == "-":
        if sys.stdin.isatty() and file is None:
            return []
        raw = sys.stdin.buffer.read()
    else:
        raw = file.read_bytes()
    return pieces_of_capture(raw) if is_capture(raw) else pieces_of_file(raw)


def _dialect(draft: str, collections: bool) -> Dialect:
    kind = DIALECTS[draft]
    return Dcp(collections=collections) if kind.negotiates else kind()


def _cut(piece: bytes) -> tuple[list[bytes], bytes]:
    """The packets of a piece of input and an incomplete rest.

    A piece whose lengths are wrong is one packet: a misprint to be explained.
    """
    framer = Framer()
    try:
        packets = list(framer.feed(piece))
    except DecodeError:
        return [piece], b""
    return (packets, piece[len(piece) - framer.pending :]) if packets else ([piece], b"")


def _read(
    packet: bytes, dialect: Dialect | None, collections: bool, sender: str
) -> tuple[bytes, list[LenientReading], str]:
    """A packet, its readings in all drafts, and the error if there is none."""
    try:
        if dialect is not None:
            return packet, [read_as(packet, dialect)], ""
        return packet, _sent_by(sender, readings(packet, collections=collections)), ""
    except DecodeError as refusal:
        return packet, [], str(refusal)


def _explain(read: list[tuple[bytes, list[LenientReading], str]]) -> list[_Packet]:
    """Chooses the draft in which most packets of the input are valid."""
    best = _best_draft([choices for _, choices, _ in read])
    packets = []
    for packet, choices, error in read:
        ranked = sorted(choices, key=lambda reading: type(reading.dialect) is not best)
        alternatives = tuple(
            other
            for other in ranked[1:]
            if len(read) == 1
            and other.exact
            and isinstance(other.dialect.command_of(other.message), Command)
            and type(other.message) is not type(ranked[0].message)
        )
        packets.append(_Packet(packet, ranked[0] if ranked else None, alternatives, error))
    return packets


def _sent_by(sender: str, choices: list[LenientReading]) -> list[LenientReading]:
    if sender == "auto":
        return choices
    fitting = [x for x in choices if _from_server(x) is (sender == "server")]
    return fitting or choices


def _best_draft(options: list[list[LenientReading]]) -> type[Dialect] | None:
    """The draft in which most packets of a piece are valid."""
    scores: Counter[type[Dialect]] = Counter()
    for choices in options:
        for rank, reading in enumerate(choices):
            scores[type(reading.dialect)] += 10 - rank
    return max(scores, key=scores.__getitem__, default=None)


def _from_server(reading: LenientReading) -> bool:
    message = reading.message
    command = reading.dialect.command_of(message)
    asked_by_server = isinstance(command, Command) and command.from_server
    return asked_by_server is not isinstance(message, Response)


# ---- output ------------------------------------------------------------------------------


def _show(packets: list[_Packet], leftovers: list[bytes]) -> None:
    console = Console(highlight=False, soft_wrap=True)
    for index, packet in enumerate(packets):
        if index:
            console.print()
        console.print(_title(packet))
        dialect = packet.reading.dialect if packet.reading else Dcp()
        if packet.reading is None and packet.data[:1] and 0 < packet.data[0] < 8:
            dialect = Draft002()
        for view in dissect(packet.data, dialect):
            console.print(_row(packet.data, view))
        if packet.error:
            console.print(Text(f"  wrong: {packet.error}", style="red"))
        for problem in packet.reading.problems if packet.reading else ():
            console.print(Text(f"  wrong: {problem}", style="yellow"))
        if packet.reading and packet.reading.repaired != packet.data:
            console.print(Text(f"  right: {packet.reading.repaired.hex()}", style="green"))
        for other in packet.alternatives:
            name = _command_name(other)
            console.print(Text(f"  also: {name} in {other.dialect.name}", style="dim"))
    for leftover in leftovers:
        text = f"{len(leftover)} bytes are left of an incomplete packet: {leftover[:16].hex()}"
        console.print(Text(text, style="yellow"))


def _title(packet: _Packet) -> Text:
    if packet.reading is None:
        return Text(f"not a packet of any draft ({len(packet.data)} bytes)", style="bold red")
    message = packet.reading.message
    direction = "server to client" if _from_server(packet.reading) else "client to server"
    kind = " response" if isinstance(message, Response) else ""
    title = Text(f"{_command_name(packet.reading)}{kind}", style="bold")
    title.append(f"  {_draft_name(packet.reading)}, {direction}, {len(packet.data)} bytes", "dim")
    return title


def _draft_name(reading: LenientReading) -> str:
    dialect = reading.dialect
    return dialect.name if dialect.negotiates else f"draft {dialect.name}"


def _command_name(reading: LenientReading) -> str:
    command = reading.dialect.command_of(reading.message)
    return command.replace("_", " ") if isinstance(command, Command) else f"{command:#04x}"


def _row(packet: bytes, view: FieldView) -> Text:
    raw = packet[view.offset : view.offset + view.size]
    shown = raw[:_HEX_SHOWN].hex(" ", 4 if len(raw) > 4 else -4)
    if len(raw) > _HEX_SHOWN:
        shown += f" +{len(raw) - _HEX_SHOWN}"
    row = Text(f"{view.offset:5}  ", style="dim")
    row.append(f"{shown:<42}", "cyan")
    row.append(f"{view.name:<26}", "default")
    row.append(view.meaning, "bold")
    return row


def _show_json(packets: list[_Packet], leftovers: list[bytes]) -> None:
    for packet in packets:
        reading = packet.reading
        shown: dict[str, Any] = {"bytes": packet.data.hex()}
        if reading is None:
            shown["error"] = packet.error
        else:
            shown |= {
                "draft": reading.dialect.name,
                "command": _command_name(reading).replace(" ", "_"),
                "from": "server" if _from_server(reading) else "client",
                "message": _plain(reading.message),
                "problems": list(reading.problems),
                "corrected": reading.repaired.hex(),
            }
        click.echo(json.dumps(shown))
    for leftover in leftovers:
        click.echo(json.dumps({"bytes": leftover.hex(), "error": "an incomplete packet"}))


def _plain(value: Any) -> Any:
    """A message as JSON values: enums by name, bytes as text, or as hex if they are not text."""
    if isinstance(value, Flag):
        return [flag.name.lower() for flag in type(value) if flag in value and flag.name]
    if isinstance(value, Enum):
        return value.name.lower()
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return {"hex": value.hex()}
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    if hasattr(value, "__dataclass_fields__"):
        content = {f.name: _plain(getattr(value, f.name)) for f in fields(value)}
        is_message = isinstance(value, Message)
        return content if is_message else {"type": type(value).__name__, **content}
    return value
