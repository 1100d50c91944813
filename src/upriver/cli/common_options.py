"""Options of every command: --quiet, --debug and --log-json; what an interrupted command prints.

`with_common_options` adds them to a command when it is loaded, so no command declares them.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import click

from ..logs import JSON_VARIABLE, configure_logging

#: The status of shells for a program that was ended by SIGINT: 128 plus the signal's number.
INTERRUPTED: Final = 130


def _choices() -> dict[str, Any]:
    context = click.get_current_context(silent=True)
    chosen = None if context is None else context.find_root().obj
    return chosen if isinstance(chosen, dict) else {}


def counted(count: int, one: str, more: str) -> str:
    """A count with its word."""
    return f"{count} {one if count == 1 else more}"


def is_quiet() -> bool:
    """Whether only results and errors are to be printed."""
    return bool(_choices().get("quiet"))


def is_debugging() -> bool:
    return bool(_choices().get("debug"))


def log_level(level: int) -> None:
    """Logs from this level on, unless --quiet or --debug says otherwise."""
    _choices()["level"] = level
    _configure()


def log_before(text: str) -> None:
    """Writes a text before each log line for people, such as one that erases a status line."""
    _choices()["before"] = text
    _configure()


def _remember(context: click.Context, parameter: click.Parameter, value: bool) -> bool:
    chosen = context.find_root().ensure_object(dict)
    chosen[parameter.name] = bool(value or chosen.get(parameter.name or ""))
    if chosen.get("log_json"):
        os.environ[JSON_VARIABLE] = "1"  # for the processes that the command starts
    _configure(chosen)
    return value


def _configure(chosen: dict[str, Any] | None = None) -> None:
    chosen = _choices() if chosen is None else chosen
    level = chosen.get("level", logging.WARNING)
    if chosen.get("quiet"):
        level = logging.ERROR
    if chosen.get("debug"):
        level = logging.DEBUG
    configure_logging(level, as_json=bool(chosen.get("log_json")), before=chosen.get("before", ""))


def _options() -> tuple[click.Option, ...]:
    def flag(*names: str, text: str, **more: Any) -> click.Option:
        return click.Option(
            names, is_flag=True, expose_value=False, callback=_remember, help=text, **more
        )

    return (
        flag("-q", "--quiet", text="Print results and errors only."),
        flag("--debug", text="Log everything; show the traceback of an error."),
        flag("--log-json", text="Log lines as JSON objects.", envvar=JSON_VARIABLE),
    )


#: The same objects for all commands, so that the reference can list them once.
COMMON_OPTIONS: Final = _options()


def with_common_options(command: click.Command) -> click.Command:
    """Adds the options to a command, or to all commands of a group, once."""
    if isinstance(command, click.Group):
        for inner in command.commands.values():
            with_common_options(inner)
    elif COMMON_OPTIONS[0] not in command.params:
        command.params = [*command.params, *COMMON_OPTIONS]
    return command


# ---- interruption ------------------------------------------------------------------------


@contextmanager
def interruptible(done: Callable[[], str]) -> Iterator[None]:
    """Says what to print if Ctrl-C ends the block: what was done so far, in a few words."""
    _choices()["done"] = done
    yield
    _choices().pop("done", None)


def interrupted_line() -> str:
    """The line that is printed after Ctrl-C."""
    done: Callable[[], str] | None = _choices().get("done")
    return f"interrupted: {done()}" if done is not None else "interrupted: nothing was finished"
