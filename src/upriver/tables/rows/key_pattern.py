"""The columns that a mirror makes of document keys: the key itself, and its parts by a pattern.

A pattern such as ``{kind}::{number}`` has a column of text for each name in braces; what is between
them must be in the key as it is. A part is as short as it can be, the last one takes the rest. A
key that does not look like the pattern has null in these columns.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from ...errors import ConfigError, UpriverError

_PART: Final = re.compile(r"\{(\w+)\}", re.ASCII)
_LONGEST: Final = 1_000
_MOST_PARTS: Final = 20


@dataclass(frozen=True)
class KeyColumns:
    """How keys become columns."""

    #: Whether keys are text.
    text: bool = False
    pattern: str = ""

    def __post_init__(self) -> None:
        if not self.pattern:
            return
        rest = _PART.sub("", self.pattern)
        lower = [name.lower() for name in self.parts]
        if not lower or "{" in rest or "}" in rest or "}{" in self.pattern:
            raise ConfigError(
                f"keyPattern: {self.pattern[:100]!r} is no pattern such as {{kind}}::{{number}}, "
                "with names in braces and text between them"
            )
        if len(set(lower)) < len(lower) or len(lower) > _MOST_PARTS:
            raise ConfigError(
                f"keyPattern: name up to {_MOST_PARTS} parts, each of them once, whatever the case"
            )
        if len(self.pattern) > _LONGEST:
            raise ConfigError(f"keyPattern has at most {_LONGEST} characters")

    @property
    def parts(self) -> list[str]:
        return _PART.findall(self.pattern)

    @property
    def columns(self) -> list[tuple[str, Any]]:
        kind = pa.string() if self.text else pa.binary()
        return [("key", kind), *((name, pa.string()) for name in self.parts)]

    @cached_property
    def _expression(self) -> str:
        pieces = _PART.split(self.pattern)  # text, name, text, name, ... text
        made = [re.escape(pieces[0])]
        for name, between in zip(pieces[1::2], pieces[2::2], strict=True):
            is_last = name == self.parts[-1]
            made.append(f"(?P<{name}>{'.+' if is_last else '.+?'}){re.escape(between)}")
        return f"(?s)^{''.join(made)}$"

    def of(self, keys: Any) -> dict[str, Any]:
        """The columns of some keys; UpriverError if a key must be text and is none."""
        found: dict[str, Any] = {"key": keys}
        if self.text or self.pattern:
            texts = _texts(keys)
            if self.text:
                if texts.null_count > keys.null_count:
                    bad = next(k for k, t in zip(keys, texts, strict=True) if not t.is_valid)
                    raise UpriverError(
                        f"keyFormat: the key {bad.as_py()!r} is no UTF-8 text; make the table "
                        "with keyFormat binary"
                    )
                found["key"] = texts
            if self.pattern:
                matched: Any = pc.extract_regex(texts, pattern=self._expression)
                found |= {name: pc.struct_field(matched, [name]) for name in self.parts}
        return found


def _texts(keys: Any) -> Any:
    """Keys as text; null where a key is none."""
    try:
        return keys.cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array([_text(key) for key in keys.to_pylist()], pa.string())


def _text(key: bytes | None) -> str | None:
    try:
        return None if key is None else key.decode()
    except UnicodeDecodeError:
        return None
