"""The names of a bucket's scopes and collections, as a value that follows the change stream.

It begins as the manifest that a server tells, and each event of a stream may lead to another
one. Vbuckets are not equally far: one tells that a collection is dropped while another still
sends its documents. So names are never forgotten, only no longer found; an id is given out once
and means the same for ever. This module knows no connections.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, Self, TypeAlias

from ..errors import ConfigError, RemoteProtocolError
from ..wire import messages as m

__all__ = ["CollectionEvent", "Collections"]

CollectionEvent: TypeAlias = (
    m.CollectionCreated | m.CollectionDropped | m.ScopeCreated | m.ScopeDropped
)

_DEFAULT: Final = "_default"
#: Characters of a manifest: the limit below, at the longest names, is about half of it.
_MAX_TEXT: Final = 32 * 1024 * 1024
#: Couchbase allows 1200 of each; dropped ones that are remembered count too.
_MAX_COLLECTIONS: Final = 65_536
_MAX_NAME: Final = 251
_MAX_ID: Final = 2**32 - 1
_UID = re.compile(r"[0-9a-fA-F]{1,16}")
#: Names that are listed where none is near to the one that was asked for.
_LISTED: Final = 10


@dataclass(frozen=True, slots=True)
class Collections:
    """Scopes and collections by id and by name; without arguments, those that always are there."""

    #: The newest manifest that was heard of.
    uid: int = 0
    #: Every scope that was heard of, by id.
    scopes: Mapping[int, str] = field(default_factory=lambda: {0: _DEFAULT})
    #: Every collection that was heard of, by id: the id of its scope, and its name.
    collections: Mapping[int, tuple[int, str]] = field(default_factory=lambda: {0: (0, _DEFAULT)})
    #: Those of them that are no more.
    dropped_scopes: frozenset[int] = frozenset()
    dropped: frozenset[int] = frozenset()

    @classmethod
    def parse(cls, text: bytes | str) -> Self:
        """Reads a manifest; `RemoteProtocolError` says what is wrong with it."""
        if len(text) > _MAX_TEXT:
            raise _nonsense(f"it is longer than {_MAX_TEXT}")
        try:
            document = json.loads(text)
        except (ValueError, RecursionError) as problem:
            raise _nonsense(f"it is no JSON: {problem}") from None
        scopes: dict[int, str] = {}
        collections: dict[int, tuple[int, str]] = {}
        for scope in _members(document, "scopes"):
            scope_id = _id(scope)
            if scope_id in scopes:
                raise _nonsense(f"the scope {scope_id:#x} is twice in it")
            scopes[scope_id] = _name(scope)
            for collection in _members(scope, "collections"):
                collection_id = _id(collection)
                if collection_id in collections:
                    raise _nonsense(f"the collection {collection_id:#x} is twice in it")
                collections[collection_id] = scope_id, _name(collection)
        if max(len(scopes), len(collections)) > _MAX_COLLECTIONS:
            raise _nonsense(f"it has more than {_MAX_COLLECTIONS} scopes or collections")
        return cls(_uid(document), scopes, collections)

    # ---- looking up ----------------------------------------------------------------------

    def id_of(self, name: str) -> int:
        """The id of ``scope.collection``, or of a collection in the default scope."""
        live = self._live()
        if name not in live:
            raise _unknown("collection", name, live)
        return live[name]

    def scope_id(self, name: str) -> int:
        """The id of a scope."""
        live = {
            scope: scope_id
            for scope_id, scope in self.scopes.items()
            if scope_id not in self.dropped_scopes
        }
        if name not in live:
            raise _unknown("scope", name, live)
        return live[name]

    def names(self, collection_id: int) -> tuple[str, str]:
        """The names of a collection's scope and of itself, even if it was dropped."""
        try:
            scope_id, name = self.collections[collection_id]
        except KeyError:
            raise RemoteProtocolError(
                f"the collection {collection_id:#x} was never announced"
            ) from None
        return self._scope(scope_id), name

    def _scope(self, scope_id: int) -> str:
        # a stream of chosen collections does not tell of scopes
        return self.scopes.get(scope_id, f"{scope_id:#x}")

    def _live(self) -> dict[str, int]:
        """Every name that a collection can be asked for by."""
        live = {}
        for collection_id, (scope_id, name) in self.collections.items():
            if collection_id not in self.dropped and scope_id not in self.dropped_scopes:
                live[f"{self._scope(scope_id)}.{name}"] = collection_id
                if scope_id == 0:
                    live[name] = collection_id
        return live

    # ---- following -----------------------------------------------------------------------

    def with_event(self, message: CollectionEvent) -> Self:
        """What is known after an event of any vbucket; itself if that is nothing new."""
        # Several changes at once carry the old manifest's uid, but for the last of them: so
        # what is as old as this one may be news, and only what is older cannot.
        is_past = message.manifest_uid < self.uid
        known = replace(self, uid=max(self.uid, message.manifest_uid))
        match message:
            case m.ScopeCreated(scope=scope, name=name) if scope not in self.scopes:
                known = replace(
                    known,
                    scopes=_more(self.scopes, scope, name),
                    dropped_scopes=self.dropped_scopes | ({scope} if is_past else set()),
                )
            case m.CollectionCreated(collection=collection) if collection not in self.collections:
                entry = message.scope, message.name
                known = replace(
                    known,
                    collections=_more(self.collections, collection, entry),
                    dropped=self.dropped | ({collection} if is_past else set()),
                )
            case m.ScopeDropped(scope=scope) if scope in self.scopes:
                known = replace(known, dropped_scopes=self.dropped_scopes | {scope})
            case m.CollectionDropped(collection=collection) if collection in self.collections:
                known = replace(known, dropped=self.dropped | {collection})
        return self if known == self else known


def _more(known: Mapping[int, Any], key: int, value: Any) -> dict[int, Any]:
    if len(known) >= _MAX_COLLECTIONS:
        raise RemoteProtocolError(f"more than {_MAX_COLLECTIONS} collections were announced")
    return {**known, key: value}


# ---- reading -----------------------------------------------------------------------------


def _members(holder: Any, name: str) -> list[dict[str, Any]]:
    found = holder.get(name) if isinstance(holder, dict) else None
    if not isinstance(found, list) or not all(isinstance(member, dict) for member in found):
        raise _nonsense(f"it has no list of {name} where there must be one")
    return found


def _name(holder: dict[str, Any]) -> str:
    name = holder.get("name")
    if not isinstance(name, str) or not 1 <= len(name) <= _MAX_NAME:
        raise _nonsense(f"a name is no text of 1 to {_MAX_NAME} characters")
    return name


def _uid(holder: dict[str, Any]) -> int:
    uid = holder.get("uid")
    if not isinstance(uid, str) or not _UID.fullmatch(uid):
        raise _nonsense("a uid is no text of 1 to 16 hexadecimal digits")
    return int(uid, 16)


def _id(holder: dict[str, Any]) -> int:
    number = _uid(holder)
    if number > _MAX_ID:
        raise _nonsense(f"{number:#x} is no id of 32 bits")
    return number


def _nonsense(problem: str) -> RemoteProtocolError:
    return RemoteProtocolError(f"the collections' manifest cannot be understood: {problem}")


def _unknown(kind: str, name: str, live: Iterable[str]) -> ConfigError:
    names = sorted(live)
    near = difflib.get_close_matches(name, names, n=1)
    if near:
        return ConfigError(f"there is no {kind} {name!r}; did you mean {near[0]!r}?")
    some = ", ".join(names[:_LISTED]) + (", ..." if len(names) > _LISTED else "")
    return ConfigError(f"there is no {kind} {name!r}; there are {some or 'none'}")
