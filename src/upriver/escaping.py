"""Escapes names from the network for log lines, against log injection.

A name from a peer may contain line ends, terminal escape sequences or bidirectional overrides, or
be a megabyte long; each could forge or flood log lines. `escape_record` is a filter for a package's
logger and escapes every argument, so that no single log call can forget it.
"""

from __future__ import annotations

from typing import Any, Final

#: Characters of one argument that a log line shows: longer than any sensible name.
_SHOWN: Final = 400


def escaped(text: str, limit: int = _SHOWN) -> str:
    """The text with unprintable characters as backslash escapes, truncated to ``limit``."""
    cut = text[:limit]
    if not cut.isprintable():
        cut = "".join(
            one if one.isprintable() else one.encode("unicode_escape", "backslashreplace").decode()
            for one in cut
        )
    return cut if len(text) <= limit else f"{cut}... ({len(text)} characters)"


def quoted(name: bytes) -> str:
    """A name of any bytes as messages show it: in quotes, with escapes where it is no text."""
    return repr(name.decode("utf-8", "backslashreplace"))


def escape_record(record: Any) -> bool:
    """Escapes the arguments of a log record; for `logging.Logger.addFilter`."""
    if isinstance(record.args, tuple):
        record.args = tuple(
            argument if isinstance(argument, int | float) else escaped(str(argument))
            for argument in record.args
        )
    return True
