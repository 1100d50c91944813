"""Scopes and collections as clients see them: the manifest as JSON, and ids by name.

{"uid": hex, "scopes": [{"name", "uid": hex,
                         "collections": [{"name", "uid": hex, "maxTTL"?: seconds}]}]}
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Final

from ...errors import Status, StoreRefusal
from ...store import Collection, Manifest, Scope
from ...wire import kv
from ...wire.messages import Request
from .answers import Answer, Blocking, Now, Responses
from .call import Call

__all__ = ["HANDLERS", "describe", "parse"]

_DEFAULT: Final = "_default"
#: The longest name of a scope or collection.
_MAX_NAME: Final = 251
_MAX_ID: Final = 0xFFFFFFFF
_MAX_UID: Final = 2**64 - 1


# ---- the manifest ------------------------------------------------------------------------


def describe(manifest: Manifest) -> dict[str, Any]:
    """A manifest in the form of its JSON."""
    return {
        "uid": f"{manifest.uid:x}",
        "scopes": [
            {
                "name": scope.name,
                "uid": f"{scope.id:x}",
                "collections": [
                    _describe_collection(collection)
                    for collection in manifest.collections
                    if collection.scope == scope.id
                ],
            }
            for scope in manifest.scopes
        ],
    }


def _describe_collection(collection: Collection) -> dict[str, Any]:
    about: dict[str, Any] = {"name": collection.name, "uid": f"{collection.id:x}"}
    if collection.max_ttl is not None:
        about["maxTTL"] = collection.max_ttl
    return about


def parse(raw: bytes, next_id: int) -> Manifest:
    """The manifest that a client wrote; ids below ``next_id`` were given out already."""
    try:
        told = json.loads(raw)
        scopes, collections = [], []
        for scope in told["scopes"]:
            scope_id = _number(scope["uid"], _MAX_ID)
            scopes.append(Scope(scope_id, _name(scope["name"], scope_id)))
            for one in scope["collections"]:
                collections.append(_parse_collection(one, scope_id))
        uid = _number(told["uid"], _MAX_UID)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as problem:
        raise StoreRefusal(Status.INVALID, f"the manifest cannot be read: {problem!r}") from None
    _check_unique([scope.id for scope in scopes], "scope ids")
    _check_unique([scope.name for scope in scopes], "names of scopes")
    _check_unique([one.id for one in collections], "collection ids")
    _check_unique([(one.scope, one.name) for one in collections], "names of collections")
    if 0 not in [scope.id for scope in scopes]:
        raise StoreRefusal(Status.INVALID, "the default scope is missing")
    used = [scope.id for scope in scopes] + [one.id for one in collections]
    return Manifest(uid, tuple(scopes), tuple(collections), max(next_id, max(used) + 1))


def _parse_collection(told: dict[str, Any], scope_id: int) -> Collection:
    collection_id = _number(told["uid"], _MAX_ID)
    max_ttl = told.get("maxTTL")
    if max_ttl is not None and (type(max_ttl) is not int or not 0 <= max_ttl < 2**31):
        raise ValueError(f"{max_ttl!r} is no maxTTL")
    return Collection(collection_id, _name(told["name"], collection_id), scope_id, max_ttl)


def _number(text: Any, highest: int) -> int:
    number = int(text, 16)
    if not 0 <= number <= highest:
        raise ValueError(f"{text} is out of range")
    return number


def _name(name: Any, id_: int) -> str:
    """A name; the default one belongs to id 0, and to no other."""
    if not isinstance(name, str) or not 0 < len(name) <= _MAX_NAME or "." in name:
        raise ValueError(f"{name!r} is no name")
    if (name == _DEFAULT) is not (id_ == 0):
        raise ValueError(f"{name} cannot have id {id_:#x}")
    return name


def _check_unique(things: list[Any], what: str) -> None:
    if len(set(things)) < len(things):
        raise StoreRefusal(Status.INVALID, f"two {what} of the manifest are the same")


def _get_manifest(call: Call, request: kv.GetManifest) -> Answer:
    return Now((call.json(describe(call.bucket.manifest)),))


def _set_manifest(call: Call, request: kv.SetManifest) -> Answer:
    ours = call.bucket.manifest
    manifest = parse(request.manifest, ours.next_id)

    def take() -> Responses:
        if manifest != ours:  # telling a node again what it knows is no mistake
            call.bucket.set_manifest(manifest)
        return (call.plain(),)

    return Blocking(take)


# ---- ids by name -------------------------------------------------------------------------


def _get_collection_id(call: Call, request: kv.GetCollectionId) -> Answer:
    scope_name, dot, name = request.path.partition(".")
    if not dot or "." in name:
        raise StoreRefusal(Status.INVALID, "a collection is named scope.collection")
    manifest = call.bucket.manifest
    scope = _scope(manifest, scope_name)
    for collection in manifest.collections:
        if collection.scope == scope.id and collection.name == (name or _DEFAULT):
            return _id(call, manifest, collection.id)
    raise StoreRefusal(Status.UNKNOWN_COLLECTION, f"there is no collection {request.path}")


def _get_scope_id(call: Call, request: kv.GetScopeId) -> Answer:
    manifest = call.bucket.manifest
    return _id(call, manifest, _scope(manifest, request.path.partition(".")[0]).id)


def _scope(manifest: Manifest, name: str) -> Scope:
    for scope in manifest.scopes:
        if scope.name == (name or _DEFAULT):
            return scope
    raise StoreRefusal(Status.UNKNOWN_SCOPE, f"there is no scope {name}")


def _id(call: Call, manifest: Manifest, id_: int) -> Answer:
    response = kv.CollectionIdResponse(
        opaque=call.request.opaque, command=call.command, manifest_uid=manifest.uid, id=id_
    )
    return Now((response,))


HANDLERS: dict[type[Request], Callable[[Call, Any], Answer]] = {
    kv.GetManifest: _get_manifest,
    kv.SetManifest: _set_manifest,
    kv.GetCollectionId: _get_collection_id,
    kv.GetScopeId: _get_scope_id,
}
