"""What sub-document commands change at paths of a document: one draft, edited path by path.

Either every edit succeeds or the draft is thrown away; nothing here reads or writes a store.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from ...errors import Status, StoreRefusal
from ...wire import kv
from ...wire.names import Command as C
from . import jsonedit
from .bodies import is_json
from .jsonpath import Path, parse_path
from .lookups import IN_XATTRS, MAKE_PARENTS, Parts

__all__ = ["MUTATIONS", "Draft"]

_Edit = Callable[[str, Path, bytes, bool], str]


def _add(text: str, path: Path, value: bytes, parents: bool) -> str:
    return jsonedit.add_member(text, path, jsonedit.checked_value(value, path), parents=parents)


def _upsert(text: str, path: Path, value: bytes, parents: bool) -> str:
    return jsonedit.upsert_member(text, path, jsonedit.checked_value(value, path), parents=parents)


def _replace(text: str, path: Path, value: bytes, parents: bool) -> str:
    return jsonedit.replace(text, path, jsonedit.checked_value(value, path))


def _remove(text: str, path: Path, value: bytes, parents: bool) -> str:
    return jsonedit.remove(text, path)


def _push_last(text: str, path: Path, value: bytes, parents: bool) -> str:
    values = jsonedit.checked_value(value, path, several=True)
    return jsonedit.push(text, path, values, first=False, parents=parents)


def _push_first(text: str, path: Path, value: bytes, parents: bool) -> str:
    values = jsonedit.checked_value(value, path, several=True)
    return jsonedit.push(text, path, values, first=True, parents=parents)


def _insert(text: str, path: Path, value: bytes, parents: bool) -> str:
    return jsonedit.insert_element(text, path, jsonedit.checked_value(value, path, several=True))


def _add_unique(text: str, path: Path, value: bytes, parents: bool) -> str:
    return jsonedit.add_unique(text, path, jsonedit.checked_value(value, path), parents=parents)


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
#: What may stand among the paths of a mutation.
MUTATIONS: Final = (
    frozenset(_EDITS) | _WHOLE | {C.DELETE, C.SUBDOC_COUNTER, C.SUBDOC_REPLACE_BODY_WITH_XATTR}
)
#: Those whose path may be empty: the whole document is the array.
_AT_ROOT: Final = frozenset(
    {C.SUBDOC_ARRAY_PUSH_LAST, C.SUBDOC_ARRAY_PUSH_FIRST, C.SUBDOC_ARRAY_ADD_UNIQUE}
)


@dataclass(slots=True)
class Draft:
    """A document while it is edited; its body is None where there is none yet."""

    xattrs: str = "{}"
    body: bytes | None = None
    is_json: bool = True

    @property
    def parts(self) -> Parts:
        """As it is stored: a document that was only given attributes is an empty object."""
        if self.body is None:
            return Parts(self.xattrs, b"{}", True)
        return Parts(self.xattrs, self.body, self.is_json)

    def apply(self, operation: kv.SubdocPath) -> bytes:
        """Makes one edit; returns what is told of it: the number of a counter, else nothing."""
        command = operation.command
        if operation.path_flags & ~(MAKE_PARENTS | IN_XATTRS):
            # Macros stand for the CAS and seqno of the write itself, which only the store gives.
            raise StoreRefusal(
                Status.SUBDOC_XATTR_UNKNOWN_MACRO, "there is no support for macros or binary values"
            )
        if command in _WHOLE:
            if operation.path or operation.path_flags:
                raise StoreRefusal(Status.INVALID, "a whole document has neither path nor flags")
            if command is C.ADD and self.body is not None:
                raise StoreRefusal(Status.EXISTS, "there is a document")
            self.body, self.is_json = operation.value, is_json(operation.value)
            return b""
        path = parse_path(operation.path)
        if operation.path_flags & IN_XATTRS:
            return self._edit_xattrs(operation, path)
        if command is C.SUBDOC_REPLACE_BODY_WITH_XATTR:
            raise StoreRefusal(Status.INVALID, "the body comes from an attribute")
        if not path and command not in _AT_ROOT:
            raise StoreRefusal(Status.INVALID, "the path is empty")
        if self.body is None:  # its first path decides what the new document is
            self.body = b"[]" if not path or isinstance(path[0], int) else b"{}"
        text, told = _edited(self.parts.text(), operation, path)
        self.body, self.is_json = text.encode(), True
        return told

    def _edit_xattrs(self, operation: kv.SubdocPath, path: Path) -> bytes:
        if not path or not isinstance(path[0], str) or not path[0] or "\0" in path[0]:
            raise StoreRefusal(Status.XATTR_INVALID, "the path names no attribute")
        if path[0].startswith("$"):
            raise StoreRefusal(
                Status.SUBDOC_XATTR_CANNOT_MODIFY_VATTR, f"{path[0]} cannot be changed"
            )
        if operation.command is C.SUBDOC_REPLACE_BODY_WITH_XATTR:
            self.body, self.is_json = jsonedit.look_up(self.xattrs, path).encode(), True
            return b""
        self.xattrs, told = _edited(self.xattrs, operation, path)
        return told


def _edited(text: str, operation: kv.SubdocPath, path: Path) -> tuple[str, bytes]:
    parents = bool(operation.path_flags & MAKE_PARENTS)
    if operation.command is C.SUBDOC_COUNTER:
        text, number = jsonedit.count_up(text, path, operation.value, parents=parents)
        return text, str(number).encode()
    return _EDITS[operation.command](text, path, operation.value, parents), b""
