"""A setting: its name, its type, its limits, and the parser from text to value.

Spark passes options as strings by case-insensitive name; the command line converts its flags to the
same form. Every error names its setting. This module is independent of what the settings mean.
"""

from __future__ import annotations

import difflib
import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

from ..errors import ConfigError
from .vbucket_list import parse_vbuckets

#: Options that Spark itself adds (to a table created with this format) or that it handles itself
#: (in a stream); they are ignored.
_PROPERTIES_OF_TABLES: Final = frozenset(
    {
        *("checkpointlocation", "collation", "comment", "external", "is_managed_location"),
        *("location", "owner", "provider", "table_type"),
    }
)
#: In such a table each option is repeated with this prefix.
_REPEATED: Final = "option."

_NUMBER: Final = re.compile(r"([0-9]{1,19})(?:\.([0-9]{1,9}))?\s*([a-z]*)", re.ASCII)
_SIZES: Final = {"": 1, "b": 1} | {
    f"{letter}{tail}": 1024**power for power, letter in enumerate("kmg", 1) for tail in ("", "b")
}
_DURATIONS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86_400.0}
_FLAGS: Final = {"true": True, "false": False}

#: The most characters of a wrong value that an error repeats.
_SHOWN: Final = 60


class ValueKind(Enum):
    """The type of a setting's value."""

    TEXT = "text"
    #: A text that must not appear in an error, log or repr.
    SECRET = "secret text"
    FILE = "path of a file"
    LIST = "list with commas"
    #: Names and types as in SQL. A program can give a list of them, or a mapping.
    COLUMNS = "columns with their types"
    VBUCKETS = "list such as 0-15,17"
    FLAG = "true or false"
    CHOICE = "one of some words"
    NUMBER = "number"
    SIZE = "bytes, or with k, m or g"
    #: A number without a unit is in the setting's default unit.
    DURATION = "duration with ms, s, m, h or d"


class Use(Enum):
    """Which kind of read an option of Spark applies to."""

    ANY = "any"
    BATCH = "batch"
    STREAM = "stream"


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting: a row of the table."""

    name: str
    kind: ValueKind
    #: As a user would write it; None for no default.
    default: str | None
    help: str
    aliases: tuple[str, ...] = ()
    choices: tuple[str, ...] = ()
    #: The limits of a number, a size in bytes, or a duration in seconds.
    least: float = 0
    most: float = float("inf")
    #: The unit of a duration without a unit.
    unit: str = "s"
    use: Use = Use.ANY
    #: The flag on the command line; empty if there is none.
    flag: str = ""
    #: Whether its value may be a JSON object with a text for each collection.
    by_collection: bool = False

    def parse(self, text: str) -> Any:
        """The value of a text; ConfigError names the setting."""
        text = text if self.kind is ValueKind.SECRET else text.strip()
        if self.kind is ValueKind.FLAG:
            return self._among(_FLAGS, text)
        if self.kind is ValueKind.CHOICE:
            return self._among({word.lower(): word for word in self.choices}, text)
        if self.kind is ValueKind.LIST:
            return self._listed(text)
        if self.kind is ValueKind.VBUCKETS:
            try:
                return frozenset(parse_vbuckets(text)) if text else None
            except ConfigError as problem:
                raise ConfigError(f"{self.name}: {problem}") from None
        if self.kind is ValueKind.DURATION:
            return float(self._number(text, _DURATIONS, self.unit))
        if self.kind in (ValueKind.NUMBER, ValueKind.SIZE):
            number = self._number(text, _SIZES if self.kind is ValueKind.SIZE else {"": 1}, "")
            if number != int(number):
                raise self.wrong(text)
            return int(number)
        return text

    def wrong(self, text: str) -> ConfigError:
        expected = ", ".join(self.choices) or self.kind.value
        return ConfigError(f"{self.name}: {text[:_SHOWN]!r} is wrong; expected: {expected}")

    def _among(self, known: Mapping[str, Any], text: str) -> Any:
        if text.lower() not in known:
            raise self.wrong(text)
        return known[text.lower()]

    def _listed(self, text: str) -> tuple[str, ...]:
        parts = tuple(part.strip() for part in text.split(",")) if text else ()
        if not all(parts):
            raise self.wrong(text)
        for part, times in Counter(parts).items():
            if times > 1:
                raise ConfigError(f"{self.name}: {part} is given twice")
        return parts

    def _number(self, text: str, units: Mapping[str, float], unit: str) -> float:
        found = _NUMBER.fullmatch(text.lower())
        if found is None or (found[3] or unit) not in units:
            raise self.wrong(text)
        scale = units[found[3] or unit]
        # Integers stay integers: a float would round large seqnos and sizes.
        whole = found[2] is None
        number = int(found[1]) * scale if whole else float(f"{found[1]}.{found[2]}") * scale
        if not self.least <= number <= self.most:
            of = {ValueKind.SIZE: " bytes", ValueKind.DURATION: " seconds"}.get(self.kind, "")
            limits = f"{self.least:.12g} to {self.most:.12g}{of}"
            raise ConfigError(f"{self.name}: {text} is not within {limits}")
        return number


class Given:
    """Parsed values of a table of settings: those that the user gave, defaults for the others."""

    __slots__ = ("_settings", "_texts", "names")

    def __init__(self, table: Iterable[Setting], texts: Mapping[str, str]) -> None:
        self._settings = {setting.name: setting for setting in table}
        self._texts: dict[str, str] = {}
        known = _by_name(self._settings.values())
        require_known(texts, self._settings.values())
        for name, text in texts.items():
            if (setting := known.get(name.lower())) is None:
                continue
            if self._texts.setdefault(setting.name, text) != text:
                names = ", ".join((setting.name, *setting.aliases))
                raise ConfigError(f"{setting.name} is given twice with different values: {names}")
        #: The names of the settings that the user gave.
        self.names = frozenset(self._texts)

    def __getitem__(self, name: str) -> Any:
        """The value of a setting: the given one, the default, or the empty value of its type."""
        setting = self._settings[name]
        text = self._texts.get(name, setting.default)
        if text is not None:
            return setting.parse(text)
        numeric = setting.kind in (ValueKind.NUMBER, ValueKind.SIZE, ValueKind.DURATION)
        return None if numeric else setting.parse("")

    def fields(self, *names: str) -> dict[str, Any]:
        """The values of some settings, by their names in snake case."""
        return {snake(name): self[name] for name in names}

    def refuse_together(self, first: str, second: str, why: str) -> None:
        if first in self.names and second in self.names:
            raise ConfigError(f"{first} and {second} contradict each other: {why}")


def require_known(names: Iterable[str], table: Iterable[Setting]) -> None:
    """ConfigError, with the nearest name, for a name that is of no setting."""
    known = _by_name(table)
    for name in names:
        lowered = name.lower()
        if lowered in _PROPERTIES_OF_TABLES or lowered.startswith(_REPEATED):
            continue
        if lowered not in known:
            raise _unknown(name, known)


def _by_name(table: Iterable[Setting]) -> dict[str, Setting]:
    """By all its names in lower case each setting."""
    return {name.lower(): setting for setting in table for name in (setting.name, *setting.aliases)}


def snake(name: str) -> str:
    """A camel-case name in snake case."""
    return re.sub(r"[A-Z]", lambda found: f"_{found[0].lower()}", name)


def camel(name: str) -> str:
    """A snake-case name in camel case."""
    return re.sub(r"_([a-z])", lambda found: found[1].upper(), name)


def text_of(value: object) -> str:
    """A value of a program as a user would write it."""
    if isinstance(value, Mapping):
        return json.dumps({str(name): str(one) for name, one in value.items()})
    if isinstance(value, list | tuple):
        return ",".join(map(str, value))
    return str(value).lower() if isinstance(value, bool) else str(value)


def _unknown(name: str, known: Mapping[str, Setting]) -> ConfigError:
    if name.lower() == "paths":
        return ConfigError(f"load(...) takes one {known['path'].name}; several were given")
    near = difflib.get_close_matches(name.lower(), known, n=1)
    if not near:
        return ConfigError(f"there is no option {name[:_SHOWN]!r}")
    setting = known[near[0]]
    meant = next(n for n in (setting.name, *setting.aliases) if n.lower() == near[0])
    return ConfigError(f"there is no option {name[:_SHOWN]!r}; did you mean {meant}?")
