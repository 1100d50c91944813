"""The scopes and collections of a bucket, as one value, and the events that lead from one to next.

A manifest never edits itself: each change is another manifest with a higher uid. Ids are given
out once and never again, so an id alone says which collection is meant, dropped or not.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

from ..errors import Status, StoreRefusal
from ..wire import messages as m

__all__ = ["Collection", "Event", "Manifest", "Scope", "events_between"]

#: The first id that is not the default's and not kept by real servers for themselves.
FIRST_ID: Final = 8

_NAME = re.compile(r"[A-Za-z0-9-][A-Za-z0-9_%-]{0,250}")


@dataclass(frozen=True, slots=True)
class Scope:
    id: int
    name: str


@dataclass(frozen=True, slots=True)
class Collection:
    id: int
    name: str
    scope: int
    #: Seconds after which its documents expire at the latest; None for no such limit.
    max_ttl: int | None = None


@dataclass(frozen=True, slots=True)
class Manifest:
    """Every scope and collection that is there; the default ones have id 0."""

    uid: int = 0
    scopes: tuple[Scope, ...] = (Scope(0, "_default"),)
    collections: tuple[Collection, ...] = (Collection(0, "_default", 0),)
    next_id: int = FIRST_ID

    def scope(self, scope_id: int) -> Scope:
        for scope in self.scopes:
            if scope.id == scope_id:
                return scope
        raise StoreRefusal(Status.UNKNOWN_SCOPE, f"there is no scope with id {scope_id:#x}")

    def collection(self, collection_id: int) -> Collection:
        for collection in self.collections:
            if collection.id == collection_id:
                return collection
        raise StoreRefusal(
            Status.UNKNOWN_COLLECTION, f"there is no collection with id {collection_id:#x}"
        )

    def with_scope(self, name: str) -> Manifest:
        """With one more scope."""
        _check_name(name)
        if any(scope.name == name for scope in self.scopes):
            raise StoreRefusal(Status.EXISTS, f"there is a scope {name}")
        scope = Scope(self.next_id, name)
        return replace(
            self, uid=self.uid + 1, scopes=(*self.scopes, scope), next_id=self.next_id + 1
        )

    def with_collection(self, scope_id: int, name: str, max_ttl: int | None = None) -> Manifest:
        """With one more collection in a scope."""
        _check_name(name)
        self.scope(scope_id)
        if any(other.scope == scope_id and other.name == name for other in self.collections):
            raise StoreRefusal(Status.EXISTS, f"there is a collection {name} in that scope")
        if max_ttl is not None and not 0 <= max_ttl < 2**31:
            raise StoreRefusal(Status.INVALID, f"{max_ttl} is no number of seconds for max_ttl")
        collection = Collection(self.next_id, name, scope_id, max_ttl)
        return replace(
            self,
            uid=self.uid + 1,
            collections=(*self.collections, collection),
            next_id=self.next_id + 1,
        )

    def without_collection(self, collection_id: int) -> Manifest:
        """With one collection dropped; the default one can be, and never comes back."""
        gone = self.collection(collection_id)
        kept = tuple(collection for collection in self.collections if collection != gone)
        return replace(self, uid=self.uid + 1, collections=kept)

    def without_scope(self, scope_id: int) -> Manifest:
        """With one scope and all its collections dropped."""
        gone = self.scope(scope_id)
        if scope_id == 0:
            raise StoreRefusal(Status.INVALID, "the default scope cannot be dropped")
        return replace(
            self,
            uid=self.uid + 1,
            scopes=tuple(scope for scope in self.scopes if scope != gone),
            collections=tuple(other for other in self.collections if other.scope != scope_id),
        )

    def dump(self) -> bytes:
        return json.dumps(asdict(self)).encode()

    @classmethod
    def load(cls, raw: bytes) -> Manifest:
        """Reads `dump`; ValueError says what is wrong."""
        try:
            stored: dict[str, Any] = json.loads(raw)
            return cls(
                uid=stored["uid"],
                scopes=tuple(Scope(**scope) for scope in stored["scopes"]),
                collections=tuple(Collection(**other) for other in stored["collections"]),
                next_id=stored["next_id"],
            )
        except (KeyError, TypeError) as problem:
            raise ValueError(f"the manifest cannot be read: {problem!r}") from None


def _check_name(name: str) -> None:
    if not _NAME.fullmatch(name):
        raise StoreRefusal(
            Status.INVALID,
            f"{name!r} cannot name a scope or collection: 1 to 251 of A-Z a-z 0-9 _ - %, "
            "the first not _ or %",
        )


@dataclass(frozen=True, slots=True)
class Event:
    """A scope or collection that is created or dropped; which vbucket and seqno comes later."""

    message: m.CollectionCreated | m.CollectionDropped | m.ScopeCreated | m.ScopeDropped

    @property
    def created(self) -> bool:
        return isinstance(self.message, m.CollectionCreated | m.ScopeCreated)

    @property
    def scope(self) -> int:
        return self.message.scope

    @property
    def collection(self) -> int | None:
        """The collection, or None if it is about a scope."""
        if isinstance(self.message, m.CollectionCreated | m.CollectionDropped):
            return self.message.collection
        return None

    def applied_to(self, manifest: Manifest) -> Manifest:
        """The manifest after this event."""
        message = self.message
        scopes = tuple(other for other in manifest.scopes if other.id != message.scope)
        if isinstance(message, m.ScopeCreated):
            return replace(manifest, scopes=(*scopes, Scope(message.scope, message.name)))
        if isinstance(message, m.ScopeDropped):
            return replace(manifest, scopes=scopes)
        kept = tuple(other for other in manifest.collections if other.id != message.collection)
        if isinstance(message, m.CollectionDropped):
            return replace(manifest, collections=kept)
        created = Collection(message.collection, message.name, message.scope, message.max_ttl)
        return replace(manifest, collections=(*kept, created))


def events_between(old: Manifest, new: Manifest) -> Iterator[Event]:
    """What happened, in an order in which a collection never is without its scope.

    Only the last event carries the new uid: whoever has seen that has seen the whole manifest.
    """
    happened = list(_events_between(old, new))
    for event in happened[:-1]:
        yield Event(replace(event.message, manifest_uid=old.uid))
    yield from happened[-1:]


def _events_between(old: Manifest, new: Manifest) -> Iterator[Event]:
    for gone in old.collections:
        if gone not in new.collections:
            yield Event(
                m.CollectionDropped(
                    vbucket=0,
                    seqno=0,
                    manifest_uid=new.uid,
                    scope=gone.scope,
                    collection=gone.id,
                )
            )
    for empty in old.scopes:
        if empty not in new.scopes:
            yield Event(m.ScopeDropped(vbucket=0, seqno=0, manifest_uid=new.uid, scope=empty.id))
    for scope in new.scopes:
        if scope not in old.scopes:
            yield Event(
                m.ScopeCreated(
                    vbucket=0, seqno=0, manifest_uid=new.uid, scope=scope.id, name=scope.name
                )
            )
    for collection in new.collections:
        if collection not in old.collections:
            yield Event(
                m.CollectionCreated(
                    vbucket=0,
                    seqno=0,
                    manifest_uid=new.uid,
                    scope=collection.scope,
                    collection=collection.id,
                    name=collection.name,
                    max_ttl=collection.max_ttl,
                )
            )
