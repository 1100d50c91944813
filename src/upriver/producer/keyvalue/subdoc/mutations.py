"""Sub-document mutations: edit one draft of a document, path by path.

Either every edit succeeds or the draft is discarded. Nothing here reads or writes a store.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Final

from ....errors import Status, StoreRefusal
from ....wire import kv_messages as kv
from ....wire.json_check import is_json
from ....wire.protocol_enums import Command as C
from ....wire.protocol_enums import PathFlag
from . import json_edits
from .json_paths import Path, entries, parse_path
from .lookups import Parts
from .macros import Macros

# As an integer: the complement of a flag set has no unknown bits.
_KNOWN_FLAGS: Final = int(~PathFlag.NONE)

_Edit = Callable[[str, Path, bytes, bool], str]


def _add(text: str, path: Path, value: bytes, parents: bool) -> str:
    return json_edits.add_member(text, path, json_edits.checked_value(value, path), parents=parents)


def _upsert(text: str, path: Path, value: bytes, parents: bool) -> str:
    return json_edits.upsert_member(
        text, path, json_edits.checked_value(value, path), parents=parents
    )


def _replace(text: str, path: Path, value: bytes, parents: bool) -> str:
    return json_edits.replace(text, path, json_edits.checked_value(value, path))


def _remove(text: str, path: Path, value: bytes, parents: bool) -> str:
    return json_edits.remove(text, path)


def _push_last(text: str, path: Path, value: bytes, parents: bool) -> str:
    values = json_edits.checked_value(value, path, several=True)
    return json_edits.push(text, path, values, first=False, parents=parents)


def _push_first(text: str, path: Path, value: bytes, parents: bool) -> str:
    values = json_edits.checked_value(value, path, several=True)
    return json_edits.push(text, path, values, first=True, parents=parents)


def _insert(text: str, path: Path, value: bytes, parents: bool) -> str:
    return json_edits.insert_element(
        text, path, json_edits.checked_value(value, path, several=True)
    )


def _add_unique(text: str, path: Path, value: bytes, parents: bool) -> str:
    return json_edits.add_unique(text, path, json_edits.checked_value(value, path), parents=parents)


_EDITS: Final[dict[C, _Edit]] = {
    C.SUBDOC_DICT_ADD: _add,
    C.SUBDOC_DICT_UPSERT: _upsert,
    C.SUBDOC_REPLACE: _replace,
    C.SUBDOC_DELETE: _remove,
    C.SUBDOC_ARRAY_PUSH_LAST: _push_last,
    C.SUBDOC_ARRAY_PUSH_FIRST: _push_first,
    C.SUBDOC_ARRAY_INSERT: _insert,
    C.SUBDOC_ARRAY_ADD_UNIQUE: _add_unique,
}
_WHOLE: Final = frozenset({C.SET, C.ADD})
#: Operations that a multi-path mutation may contain.
MUTATIONS: Final = (
    frozenset(_EDITS) | _WHOLE | {C.DELETE, C.SUBDOC_COUNTER, C.SUBDOC_REPLACE_BODY_WITH_XATTR}
)
#: Operations that accept an empty path: the whole document is the array.
_AT_ROOT: Final = frozenset(
    {C.SUBDOC_ARRAY_PUSH_LAST, C.SUBDOC_ARRAY_PUSH_FIRST, C.SUBDOC_ARRAY_ADD_UNIQUE}
)


@dataclass(slots=True)
class Draft:
    """A document while it is edited. Its body is None if there is no document yet."""

    xattrs: str = "{}"
    body: bytes | None = None
    is_json: bool = True
    macros: Macros = field(default_factory=Macros)

    @property
    def parts(self) -> Parts:
        """Returns the value to store; the body is an empty object if only attributes were set."""
        if self.body is None:
            return Parts(self.xattrs, b"{}", True)
        return Parts(self.xattrs, self.body, self.is_json)

    @property
    def remains(self) -> Parts:
        """Returns the value to store for a tombstone, which has attributes only."""
        if self.body:
            raise StoreRefusal(
                Status.SUBDOC_DELETED_CANNOT_HAVE_VALUE, "a deleted document has no value"
            )
        return Parts(self.xattrs, b"", False)

    def bury(self) -> None:
        """Removes what a tombstone does not keep: all but attributes with a leading underscore."""
        text = self.xattrs
        kept = (
            text[entry.start : entry.end]
            for entry in entries(text, 0)
            if entry.name is not None and entry.name.startswith("_")
        )
        self.xattrs, self.body = f"{{{','.join(kept)}}}", None

    def apply(self, operation: kv.SubdocPath) -> bytes:
        """Makes one edit and returns its result: the new number of a counter, else nothing."""
        command = operation.command
        if operation.path_flags & ~_KNOWN_FLAGS:
            raise StoreRefusal(Status.INVALID, f"{operation.path_flags:#x} are no flags of a path")
        if operation.path_flags & PathFlag.EXPAND_MACROS:
            if not operation.path_flags & PathFlag.IN_XATTRS:
                raise StoreRefusal(
                    Status.SUBDOC_XATTR_INVALID_FLAGS, "macros are for attributes only"
                )
            operation = replace(operation, value=self.macros.expand(operation.value))
        if command in _WHOLE:
            if operation.path or operation.path_flags:
                raise StoreRefusal(Status.INVALID, "a whole document has neither path nor flags")
            if command is C.ADD and self.body is not None:
                raise StoreRefusal(Status.EXISTS, "there is a document")
            self.body, self.is_json = operation.value, is_json(operation.value)
            return b""
        path = parse_path(operation.path)
        if operation.path_flags & PathFlag.IN_XATTRS:
            return self._edit_xattrs(operation, path)
        if command is C.SUBDOC_REPLACE_BODY_WITH_XATTR:
            raise StoreRefusal(Status.INVALID, "the body comes from an attribute")
        if not path and command not in _AT_ROOT:
            raise StoreRefusal(Status.INVALID, "the path is empty")
        if self.body is None:  # the first path decides the type of the new document
            self.body = b"[]" if not path or isinstance(path[0], int) else b"{}"
        text, result = _edited(self.parts.text(), operation, path)
        self.body, self.is_json = text.encode(), True
        return result

    def _edit_xattrs(self, operation: kv.SubdocPath, path: Path) -> bytes:
        if not path or not isinstance(path[0], str) or not path[0] or "\0" in path[0]:
            raise StoreRefusal(Status.XATTR_INVALID, "the path names no attribute")
        if path[0].startswith("$"):
            raise StoreRefusal(
                Status.SUBDOC_XATTR_CANNOT_MODIFY_VATTR, f"{path[0]} cannot be changed"
            )
        if operation.command is C.SUBDOC_REPLACE_BODY_WITH_XATTR:
            self.body, self.is_json = json_edits.look_up(self.xattrs, path).encode(), True
            return b""
        self.xattrs, result = _edited(self.xattrs, operation, path)
        return result


def _edited(text: str, operation: kv.SubdocPath, path: Path) -> tuple[str, bytes]:
    parents = bool(operation.path_flags & PathFlag.MAKE_PARENTS)
    if operation.command is C.SUBDOC_COUNTER:
        text, number = json_edits.count_up(text, path, operation.value, parents=parents)
        return text, str(number).encode()
    return _EDITS[operation.command](text, path, operation.value, parents), b""
