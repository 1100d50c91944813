"""Collections manifest: the scopes and collections of a bucket, and the events between versions.

A manifest is immutable: each change returns a new manifest with a higher uid. An id is never used
again, so it identifies one collection, even after that was dropped.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

from ..errors import Status, StoreRefusal
from ..wire import messages as m

#: The first id for new scopes and collections. Couchbase servers reserve the ids below it.
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
    #: The longest expiry of its documents in seconds; None for no limit.
    max_ttl: int | None = None


@dataclass(frozen=True, slots=True)
class Manifest:
    """All existing scopes and collections. The default scope and collection have id 0."""

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
        """Returns the manifest with a new scope."""
        _check_name(name)
        if any(scope.name == name for scope in self.scopes):
            raise StoreRefusal(Status.EXISTS, f"there is a scope {name}")
        scope = Scope(self.next_id, name)
        return replace(
            self, uid=self.uid + 1, scopes=(*self.scopes, scope), next_id=self.next_id + 1
        )

    def with_collection(self, scope_id: int, name: str, max_ttl: int | None = None) -> Manifest:
        """Returns the manifest with a new collection in a scope."""
        _check_name(name)
        self.scope(scope_id)
        if any(other.scope == scope_id and other.name == name for other in self.collections):
            raise StoreRefusal(Status.EXISTS, f"there is a collection {name} in that scope")
        _check_max_ttl(max_ttl)
        collection = Collection(self.next_id, name, scope_id, max_ttl)
        return replace(
            self,
            uid=self.uid + 1,
            collections=(*self.collections, collection),
            next_id=self.next_id + 1,
        )

    def with_max_ttl(self, collection_id: int, max_ttl: int | None) -> Manifest:
        """Returns the manifest with another longest expiry for one collection."""
        _check_max_ttl(max_ttl)
        changed = replace(self.collection(collection_id), max_ttl=max_ttl)
        collections = tuple(
            changed if other.id == collection_id else other for other in self.collections
        )
        return replace(self, uid=self.uid + 1, collections=collections)

    def without_collection(self, collection_id: int) -> Manifest:
        """Returns the manifest without a collection. A dropped default collection stays dropped."""
        gone = self.collection(collection_id)
        kept = tuple(collection for collection in self.collections if collection != gone)
        return replace(self, uid=self.uid + 1, collections=kept)

    def without_scope(self, scope_id: int) -> Manifest:
        """Returns the manifest without a scope and its collections."""
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
        """Parses `dump`. Raises ValueError if it is invalid."""
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


def _check_max_ttl(max_ttl: int | None) -> None:
    if max_ttl is not None and not 0 <= max_ttl < 2**31:
        raise StoreRefusal(Status.INVALID, f"{max_ttl} is no number of seconds for max_ttl")


@dataclass(frozen=True, slots=True)
class ManifestEvent:
    """A scope or collection is created or dropped. Its vbucket and seqno are set when stored."""

    message: m.CollectionCreated | m.CollectionDropped | m.ScopeCreated | m.ScopeDropped

    @property
    def created(self) -> bool:
        return isinstance(self.message, m.CollectionCreated | m.ScopeCreated)

    @property
    def scope(self) -> int:
        return self.message.scope

    @property
    def collection(self) -> int | None:
        """The id of the collection, or None for the event of a scope."""
        if isinstance(self.message, m.CollectionCreated | m.CollectionDropped):
            return self.message.collection
        return None

    def applied_to(self, manifest: Manifest) -> Manifest:
        """Returns the manifest after this event."""
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


def events_between(old: Manifest, new: Manifest) -> Iterator[ManifestEvent]:
    """Yields the events from one manifest to another; a collection's scope always exists.

    Only the last event carries the new uid, so a consumer that received this uid has received the
    complete manifest.
    """
    happened = list(_events_between(old, new))
    for event in happened[:-1]:
        yield ManifestEvent(replace(event.message, manifest_uid=old.uid))
    yield from happened[-1:]


def _events_between(old: Manifest, new: Manifest) -> Iterator[ManifestEvent]:
    # A changed max_ttl has no event: to drop and create the collection would lose its documents.
    before = {(other.id, other.name, other.scope) for other in old.collections}
    after = {(other.id, other.name, other.scope) for other in new.collections}
    for gone in old.collections:
        if (gone.id, gone.name, gone.scope) not in after:
            yield ManifestEvent(
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
            yield ManifestEvent(
                m.ScopeDropped(vbucket=0, seqno=0, manifest_uid=new.uid, scope=empty.id)
            )
    for scope in new.scopes:
        if scope not in old.scopes:
            yield ManifestEvent(
                m.ScopeCreated(
                    vbucket=0, seqno=0, manifest_uid=new.uid, scope=scope.id, name=scope.name
                )
            )
    for collection in new.collections:
        if (collection.id, collection.name, collection.scope) not in before:
            yield ManifestEvent(
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
