"""``upriver tail --format``: lines with chosen fields, by kcat's names where it has them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Final

from ...consumer.changes import Change
from ...errors import ConfigError
from .change_text import PlainLines

_Field = Callable[[Change, Callable[[int], str]], bytes]

#: What each letter stands for, and how it is made.
_FIELDS: Final[dict[str, tuple[str, _Field]]] = {
    "k": ("key", lambda change, _: change.key),
    "s": ("value", lambda change, _: _body(change)),
    "K": ("length of the key", lambda change, _: b"%d" % len(change.key)),
    "S": ("length of the value", lambda change, _: b"%d" % len(_body(change))),
    "p": ("vbucket", lambda change, _: b"%d" % change.vbucket),
    "o": ("seqno", lambda change, _: b"%d" % change.seqno),
    "t": ("scope.collection", lambda change, name_of: name_of(change.collection).encode()),
    "T": ("time in milliseconds since 1970", lambda change, _: b"%d" % (change.cas // 10**6)),
    "x": ("what happened", lambda change, _: change.op.value.encode()),
    "c": ("CAS", lambda change, _: b"%d" % change.cas),
    "r": ("revision", lambda change, _: b"%d" % change.rev),
    "f": ("flags", lambda change, _: b"%d" % change.flags),
    "e": ("expiry", lambda change, _: b"%d" % change.expiry),
    "d": ("datatype", lambda change, _: b"%d" % change.datatype),
}
#: For help.
FIELDS: Final = ", ".join(f"%{letter} {meaning}" for letter, (meaning, _) in _FIELDS.items())
_ESCAPES: Final = {"n": b"\n", "t": b"\t", "r": b"\r", "0": b"\0", "\\": b"\\"}
_PARTS: Final = re.compile(r"%(.?)|\\(.?)|([^%\\]+)", re.DOTALL)


class FormattedLines(PlainLines):
    r"""Prints changes by a format such as ``%p:%o %k\n``, and incidents as for people."""

    def __init__(self, text: str, name_of: Callable[[int], str]) -> None:
        super().__init__(name_of)
        self._parts = [_part(*found) for found in _PARTS.findall(text)]

    def changes(self, changes: Iterable[Change]) -> str:
        # Surrogates stand for bytes that are no text; the output writes them as they were.
        return b"".join(
            part if isinstance(part, bytes) else part(change, self._name_of)
            for change in changes
            for part in self._parts
        ).decode(errors="surrogateescape")


def _part(letter: str, escape: str, text: str) -> bytes | _Field:
    if text:
        return text.encode()
    if escape in _ESCAPES:
        return _ESCAPES[escape]
    if letter == "%":
        return b"%"
    if letter in _FIELDS:
        return _FIELDS[letter][1]
    wrong = f"\\{escape}" if escape else f"%{letter}"
    raise ConfigError(f"--format has {wrong}, which is no field; there are {FIELDS}, and %%")


def _body(change: Change) -> bytes:
    try:
        return change.body
    except ValueError:  # a value that is not what its datatype says
        return change.value
