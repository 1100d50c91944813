"""Writes the parts of docs/reference that follow from the code; the rest of a page is its author's.

Pages below docs/reference/protocol are made as a whole, by `protocol_pages`.

    python tools/reference.py            renews them
    python tools/reference.py --check    says which are not up to date, and exits with 1

A part lies between ``<!-- NAME: made by tools/reference.py -->`` and ``<!-- end -->``.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import click
import column_types
import error_texts
import protocol_pages
import python_names

from upriver import errors
from upriver.batches import row_schema
from upriver.cli.common_options import COMMON_OPTIONS
from upriver.cli.main import cli
from upriver.session import stream_states
from upriver.settings.all_settings import CHANGELOG, MIRROR, PIPELINE, READ, TABLE_READ, WRITE
from upriver.settings.setting import Setting, Use, ValueKind

PAGES = Path(__file__).resolve().parent.parent / "docs" / "reference"
_PART = re.compile(
    r"(?P<begin><!-- (?P<name>[\w-]+): made by tools/reference\.py -->\n).*?(?P<end><!-- end -->)",
    re.DOTALL,
)

# ---- options -----------------------------------------------------------------------------


def option_table(options: Sequence[Setting]) -> Iterator[str]:
    yield "| option | what it is | default | meaning |"
    yield "|---|---|---|---|"
    for option in options:
        names = ", ".join(f"`{name}`" for name in (option.name, *option.aliases))
        default = "" if option.default is None else f"`{option.default}`"
        yield f"| {names} | {_what(option)} | {default} | {_cell(option.help)}{_only(option)} |"


def _what(option: Setting) -> str:
    if option.kind is ValueKind.CHOICE:
        return ", ".join(f"`{word}`" for word in option.choices)
    return str(option.kind.value)


def _only(option: Setting) -> str:
    return {Use.BATCH: "; batch reads only", Use.STREAM: "; streams only"}.get(option.use, "")


# ---- commands ----------------------------------------------------------------------------


def command_list() -> Iterator[str]:
    context = click.Context(cli, info_name="upriver")
    yield "Every command has these options:\n"
    yield "| option | meaning |\n|---|---|"
    yield from (_option(option, context) for option in COMMON_OPTIONS)
    yield ""
    for name in sorted(cli.list_commands(context)):
        command = cli.get_command(context, name)
        assert command is not None
        yield from _command(command, context, name, "##")


def _command(command: click.Command, parent: click.Context, name: str, level: str) -> Iterator[str]:
    context = click.Context(command, parent, info_name=name)
    yield f"{level} {context.command_path}\n"
    usage = " ".join(command.collect_usage_pieces(context))
    yield f"```text\n{context.command_path} {usage}\n```\n"
    yield _help(command) + "\n"
    own = [option for option in command.get_params(context) if option not in COMMON_OPTIONS]
    options = [_option(option, context) for option in own]
    if any(options):
        yield "| option | meaning |\n|---|---|"
        yield from filter(None, options)
        yield ""
    if isinstance(command, click.Group):
        for inner in sorted(command.commands):
            yield from _command(command.commands[inner], context, inner, level + "#")


def _help(command: click.Command) -> str:
    """Its docstring; paragraphs that click leaves as they are become code."""
    text = inspect.cleandoc(command.help or "")
    parts = []
    for paragraph in text.split("\n\n"):
        if paragraph.startswith("\b\n"):
            title, _, code = paragraph.removeprefix("\b\n").partition("\n")
            parts.append(f"{title}\n\n```text\n{inspect.cleandoc(code)}\n```")
        else:
            parts.append(python_names.prose(paragraph))
    return "\n\n".join(parts)


def _option(option: click.Parameter, context: click.Context) -> str:
    record = option.get_help_record(context)
    if record is None or "--help" in option.opts:
        return ""
    names, meaning = record
    return f"| `{_cell(names)}` | {_cell(meaning)} |"


# ---- rows and errors ---------------------------------------------------------------------


def row_table() -> Iterator[str]:
    yield "| column | type | meaning |"
    yield "|---|---|---|"
    for line in _indented(row_schema.__doc__ or ""):
        name, kind, *meaning = re.split(r"\s{2,}", line.strip(), maxsplit=2)
        yield f"| `{name}` | {kind} | {_cell(*meaning)} |"


def error_tree() -> Iterator[str]:
    yield "```text"
    yield from (line[4:] for line in _indented(errors.__doc__ or ""))
    yield "```"


def _indented(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.startswith("    ")]


# ---- states of streams -------------------------------------------------------------------


def state_table(table: Mapping[tuple[Any, Any], Any]) -> Iterator[str]:
    states, events = (type(one) for one in next(iter(table)))
    yield "| state | what it means |"
    yield "|---|---|"
    yield from (f"| {name} | {_cell(note)} |" for name, note in python_names.notes(states).items())
    yield ""
    yield "| in the state | the event | leads to | when |"
    yield "|---|---|---|---|"
    when = python_names.notes(events)
    for (state, event), following in table.items():
        yield f"| {state.name} | {event.name} | {following.name} | {_cell(when[event.name])} |"


# ---- text --------------------------------------------------------------------------------


def _cell(text: str = "") -> str:
    return python_names.prose(" ".join(text.split())).replace("|", "\\|")


PARTS: dict[str, Callable[[], Iterator[str]]] = {
    "read-options": lambda: option_table(READ),
    "write-options": lambda: option_table(WRITE),
    "pipeline-options": lambda: option_table(PIPELINE),
    "changelog-options": lambda: option_table(CHANGELOG[len(PIPELINE) :]),
    "mirror-options": lambda: option_table(MIRROR[len(PIPELINE) :]),
    "table-options": lambda: option_table(TABLE_READ),
    "commands": command_list,
    "rows": row_table,
    "column-values": column_types.value_table,
    "inferred-types": column_types.inferred_table,
    "errors": error_tree,
    "cures": error_texts.cure_table,
    "error-texts": error_texts.error_list,
    "python": python_names.python_names,
    "python-wire": python_names.wire_names,
    "fixtures": python_names.fixtures,
    "returned": python_names.returned_names,
    "producer-states": lambda: state_table(stream_states.PRODUCER),
    "consumer-states": lambda: state_table(stream_states.CONSUMER),
}


def renewed(page: str) -> str:
    def part(found: re.Match[str]) -> str:
        content = "\n".join(PARTS[found["name"]]()).strip("\n")
        return f"{found['begin']}\n{content}\n\n{found['end']}"

    return _PART.sub(part, page)


def wanted_pages() -> Iterator[tuple[Path, str]]:
    """Every page with generated parts, and what it should be."""
    for path in sorted(PAGES.glob("*.md")):
        yield path, renewed(path.read_text())
    for name, text in protocol_pages.pages().items():
        yield PAGES / "protocol" / name, text


def main() -> None:
    stale = []
    for path, wanted in wanted_pages():
        if not path.exists() or path.read_text() != wanted:
            stale.append(path)
            if "--check" not in sys.argv[1:]:
                path.parent.mkdir(exist_ok=True)
                path.write_text(wanted)
    for path in stale:
        print(f"{path.name} {'is not up to date' if '--check' in sys.argv[1:] else 'is renewed'}")
    if stale and "--check" in sys.argv[1:]:
        sys.exit("run python tools/reference.py")


if __name__ == "__main__":
    main()
