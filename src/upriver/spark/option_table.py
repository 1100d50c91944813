"""Options as Spark hands them over (texts by name, in any case) and the table of what they are.

One table is what is parsed, what an error message offers instead of a slip of the hand, and what
the reference page lists. Every error names its option. Nothing here knows what an option is for.
"""

from __future__ import annotations

import difflib
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final

from ..errors import ConfigError

__all__ = ["Given", "Kind", "Option", "Use"]

#: What Spark adds where a table was created with this format, and what is its own of a stream's
#: options; such names mean nothing to us.
_PROPERTIES_OF_TABLES: Final = frozenset(
    {
        "checkpointlocation",
        "collation",
        "comment",
        "external",
        "is_managed_location",
        "location",
        "owner",
        "provider",
        "table_type",
    }
)
#: In such a table each option comes a second time, with this before its name.
_REPEATED: Final = "option."

_NUMBER: Final = re.compile(r"([0-9]{1,19})(?:\.([0-9]{1,9}))?\s*([a-z]*)", re.ASCII)
_SIZES: Final = {
    "": 1,
    "b": 1,
    **{
        f"{letter}{tail}": 1024**power
        for power, letter in enumerate("kmg", 1)
        for tail in ("", "b")
    },
}
_DURATIONS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}
_FLAGS: Final = {"true": True, "false": False}

#: As much of a wrong text as an error repeats.
_SHOWN: Final = 60


class Kind(Enum):
    """What the text of an option is."""

    TEXT = "text"
    #: A text that no error, log or repr may repeat.
    SECRET = "secret text"
    LIST = "list with commas"
    FLAG = "true or false"
    CHOICE = "one of some words"
    NUMBER = "number"
    SIZE = "bytes, or with k, m or g"
    #: Without a unit it is in the option's own.
    DURATION = "duration with ms, s, m or h"


class Use(Enum):
    """Which reads an option is for."""

    ANY = "any"
    BATCH = "batch"
    STREAM = "stream"


@dataclass(frozen=True, slots=True)
class Option:
    """One option: a row of the table."""

    name: str
    kind: Kind
    #: As a user would write it; None if there is none.
    default: str | None
    help: str
    aliases: tuple[str, ...] = ()
    choices: tuple[str, ...] = ()
    #: The limits of a number, a size in bytes, or a duration in seconds.
    least: float = 0
    most: float = float("inf")
    #: The unit of a duration that names none.
    unit: str = "s"
    use: Use = Use.ANY

    def number(self, text: str, units: Mapping[str, float]) -> float:
        """The number that a text stands for, within the limits."""
        found = _NUMBER.fullmatch(text.strip().lower())
        unit = (found[3] or (self.unit if self.kind is Kind.DURATION else "")) if found else ""
        if found is None or unit not in units:
            raise self.wrong(text)
        whole, scale = int(found[1]), units[unit]
        # a fraction only where there is one: seqnos and sizes are not rounded
        number = whole * scale if found[2] is None else float(f"{found[1]}.{found[2]}") * scale
        if not self.least <= number <= self.most:
            raise ConfigError(f"{self.name}: {text.strip()} is not within {self._limits()}")
        return number

    def wrong(self, text: str) -> ConfigError:
        expected = ", ".join(self.choices) or self.kind.value
        return ConfigError(f"{self.name}: {text[:_SHOWN]!r} is wrong; expected: {expected}")

    def _limits(self) -> str:
        unit = {Kind.SIZE: " bytes", Kind.DURATION: " seconds"}.get(self.kind, "")
        return f"{self.least:.12g} to {self.most:.12g}{unit}"


class Given:
    """The options of one read or write, checked against a table."""

    __slots__ = ("_options", "_texts", "names")

    def __init__(self, table: Sequence[Option], options: Mapping[str, str]) -> None:
        self._options = {option.name: option for option in table}
        self._texts: dict[str, str] = {}
        known = {
            name.lower(): option for option in table for name in (option.name, *option.aliases)
        }
        for name, text in options.items():
            lowered = name.lower()
            if lowered in _PROPERTIES_OF_TABLES or lowered.startswith(_REPEATED):
                continue
            if lowered not in known:
                raise _unknown(name, known)
            option = known[lowered]
            if self._texts.setdefault(option.name, text) != text:
                names = ", ".join((option.name, *option.aliases))
                raise ConfigError(f"{option.name} is given twice, with two meanings: {names}")
        #: The names of those that somebody gave.
        self.names = frozenset(self._texts)

    def text(self, name: str) -> str:
        """What was given, or the default, or nothing."""
        return self._texts.get(name, self._options[name].default or "").strip()

    def secret(self, name: str) -> str:
        """A text of which every blank counts."""
        return self._texts.get(name, "")

    def listed(self, name: str) -> tuple[str, ...]:
        """The parts of a list; none of them is empty or there twice."""
        text = self.text(name)
        parts = tuple(part.strip() for part in text.split(",")) if text else ()
        if not all(parts):
            raise self._options[name].wrong(text)
        for part, times in Counter(parts).items():
            if times > 1:
                raise ConfigError(f"{name}: {part} is there twice")
        return parts

    def flag(self, name: str) -> bool:
        text = self.text(name)
        if text.lower() not in _FLAGS:
            raise self._options[name].wrong(text)
        return _FLAGS[text.lower()]

    def choice(self, name: str) -> str:
        """One of the words of the table, as it is written there."""
        text = self.text(name)
        for word in self._options[name].choices:
            if word.lower() == text.lower():
                return word
        raise self._options[name].wrong(text)

    def number(self, name: str) -> int | None:
        """A whole number; None where none is given and there is no default."""
        return self._whole(name, {"": 1})

    def size(self, name: str) -> int | None:
        """A number of bytes; None where none is given and there is no default."""
        return self._whole(name, _SIZES)

    def seconds(self, name: str) -> float:
        return float(self._options[name].number(self.text(name), _DURATIONS))

    def refuse_together(self, first: str, second: str, why: str) -> None:
        if first in self.names and second in self.names:
            raise ConfigError(f"{first} and {second} contradict each other: {why}")

    def _whole(self, name: str, units: Mapping[str, float]) -> int | None:
        text, option = self.text(name), self._options[name]
        if not text and name not in self.names:
            return None
        number = option.number(text, units)
        if number != int(number):
            raise option.wrong(text)
        return int(number)


def _unknown(name: str, known: Mapping[str, Option]) -> ConfigError:
    if name.lower() == "paths":
        return ConfigError("only one source can be loaded at a time; several were given")
    near = difflib.get_close_matches(name.lower(), known, n=1)
    if not near:
        return ConfigError(f"there is no option {name[:_SHOWN]!r}")
    option = known[near[0]]
    meant = next(n for n in (option.name, *option.aliases) if n.lower() == near[0])
    return ConfigError(f"there is no option {name[:_SHOWN]!r}; did you mean {meant}?")
