"""Names and ids of a bucket's scopes and collections, updated by events of the streams.

`Collections` is an immutable value. It starts as the manifest of a server, and `with_event` returns
a new value after each collection event of a stream. Vbuckets progress at different speeds: one may
announce that a collection was dropped while another still sends its documents. So a dropped name
stays known by its id, but can no longer be looked up by name. Servers never reuse an id. This
module does no I/O.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, Self, TypeAlias

from ...errors import ConfigError, RemoteProtocolError
from ...wire import messages as m

CollectionEvent: TypeAlias = (
    m.CollectionCreated
    | m.CollectionDropped
    | m.CollectionModified
    | m.ScopeCreated
    | m.ScopeDropped
)

#: The scope in which the database keeps its internal documents.
SYSTEM_SCOPE: Final = "_system"

_DEFAULT: Final = "_default"
#: Most characters of a manifest: about twice those of ``_MAX_COLLECTIONS`` with longest names.
_MAX_TEXT: Final = 32 * 1024 * 1024
#: Most scopes, and most collections. Couchbase allows 1200 of each; dropped ones count here too.
_MAX_COLLECTIONS: Final = 65_536
_MAX_NAME: Final = 251
_MAX_ID: Final = 2**32 - 1
#: No name has a number sign. Whether there is such an id is left to the server.
_BY_ID = re.compile(r"#([0-9a-f]{1,8})")
_UID = re.compile(r"[0-9a-fA-F]{1,16}")
#: Most names listed in the error for an unknown name that resembles none.
_LISTED: Final = 10


@dataclass(frozen=True, slots=True)
class Collections:
    """Scopes and collections by id and by name; by default the ``_default`` ones only."""

    #: The uid of the newest manifest seen.
    uid: int = 0
    #: Names of all scopes seen, by id.
    scopes: Mapping[int, str] = field(default_factory=lambda: {0: _DEFAULT})
    #: All collections seen, by id: the id of the scope, and the name.
    collections: Mapping[int, tuple[int, str]] = field(default_factory=lambda: {0: (0, _DEFAULT)})
    #: Ids of the dropped scopes, and of the dropped collections.
    dropped_scopes: frozenset[int] = frozenset()
    dropped: frozenset[int] = frozenset()

    @classmethod
    def parse(cls, text: bytes | str) -> Self:
        """Parses a manifest; raises `RemoteProtocolError` if it is invalid."""
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

    # ---- lookup --------------------------------------------------------------------------

    def id_of(self, name: str) -> int:
        """The id of ``scope.collection``, of a collection in the default scope, or of ``#id``."""
        if by_id := _BY_ID.fullmatch(name):
            return int(by_id[1], 16)
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

    def chosen(self, names: Iterable[str], scope: str) -> tuple[int, ...]:
        """The ids of the named collections, or of all in a scope; empty if neither is given."""
        if not scope:
            return tuple(self.id_of(name) for name in names)
        self.scope_id(scope)  # raises ConfigError if there is no such scope
        return tuple(sorted(self.of_scope(scope) - self.dropped))

    def live(self, names: Iterable[str], scope: str) -> tuple[int, ...]:
        """The ids that `chosen` returns; those of all live collections if neither is given."""
        wanted = tuple(names)
        if wanted or scope:
            return self.chosen(wanted, scope)
        return tuple(sorted(set(self._live().values())))

    def of_scope(self, scope: str) -> frozenset[int]:
        """The ids of the collections of a scope, including dropped ones."""
        ids = {id_ for id_, name in self.scopes.items() if name == scope}
        return frozenset(id_ for id_, (of, _) in self.collections.items() if of in ids)

    def names(self, collection_id: int) -> tuple[str, str]:
        """The names of the scope and of the collection, even if it was dropped."""
        try:
            scope_id, name = self.collections[collection_id]
        except KeyError:
            raise RemoteProtocolError(
                f"the collection {collection_id:#x} was never announced"
            ) from None
        return self._scope(scope_id), name

    def _scope(self, scope_id: int) -> str:
        # a stream that is filtered by collections carries no scope events
        return self.scopes.get(scope_id, f"{scope_id:#x}")

    def is_live(self, collection_id: int) -> bool:
        """Whether there is such a collection, which was not dropped."""
        if collection_id not in self.collections or collection_id in self.dropped:
            return False
        return self.collections[collection_id][0] not in self.dropped_scopes

    def live_names(self) -> dict[int, tuple[str, str]]:
        """By id the names of scope and collection of all that were not dropped."""
        return {
            collection_id: (self._scope(scope_id), name)
            for collection_id, (scope_id, name) in self.collections.items()
            if self.is_live(collection_id)
        }

    def _live(self) -> dict[str, int]:
        """Collection ids by every name under which a collection can be looked up."""
        live = {}
        for collection_id, (scope, name) in self.live_names().items():
            live[f"{scope}.{name}"] = collection_id
            if self.collections[collection_id][0] == 0:
                live[name] = collection_id
        return live

    # ---- events --------------------------------------------------------------------------

    def with_event(self, message: CollectionEvent) -> Self:
        """Returns the collections after an event of any vbucket; ``self`` if nothing changed."""
        # When one manifest makes several changes, all events but the last carry the uid of the
        # manifest before it. So an event with an equal uid may be new; only one with a lower uid
        # is certainly in the past.
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


# ---- parsing -----------------------------------------------------------------------------


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
