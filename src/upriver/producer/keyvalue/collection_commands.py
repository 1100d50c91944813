"""Commands on scopes and collections: the manifest as JSON, and ids by name.

{"uid": hex, "scopes": [{"name", "uid": hex,
                         "collections": [{"name", "uid": hex, "maxTTL"?: seconds}]}]}
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any, Final
from weakref import WeakKeyDictionary

from ...errors import Status, StoreRefusal
from ...store import Bucket, Collection, Manifest, Scope
from ...wire import kv_messages as kv
from ...wire.messages import Request
from .handler_results import Answer, BackgroundWork, Blocking, Now, Responses
from .request_context import Call

_DEFAULT: Final = "_default"
#: Names of scopes and collections allowed in a manifest or a path. The names that this node creates
#: itself follow a stricter rule.
_NAME: Final = re.compile(r"[A-Za-z0-9_%-][A-Za-z0-9_%$-]{0,250}")
_MAX_ID: Final = 0xFFFFFFFF
_MAX_UID: Final = 2**64 - 1
#: Upper bound of the JSON bytes of one scope or collection: the longest name with every character
#: escaped, plus the other members.
_MAX_BYTES_EACH: Final = 2048

#: The manifest of each bucket as JSON, cached until the manifest changes.
_texts: WeakKeyDictionary[Bucket, tuple[Manifest, bytes]] = WeakKeyDictionary()


# ---- the manifest ------------------------------------------------------------------------


def describe(manifest: Manifest) -> dict[str, Any]:
    """Returns a manifest as the object that is encoded as JSON."""
    inside: dict[int, list[dict[str, Any]]] = {scope.id: [] for scope in manifest.scopes}
    for collection in manifest.collections:
        inside[collection.scope].append(_describe_collection(collection))
    return {
        "uid": f"{manifest.uid:x}",
        "scopes": [
            {
                "name": scope.name,
                "uid": f"{scope.id:x}",
                "collections": inside[scope.id],
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
    """Parses the manifest that a client sent. Ids below ``next_id`` were assigned already."""
    try:
        manifest = json.loads(raw)
        scopes, collections = [], []
        for scope in manifest["scopes"]:
            scope_id = _number(scope["uid"], _MAX_ID)
            scopes.append(Scope(scope_id, _name(scope["name"], scope_id)))
            for one in scope["collections"]:
                collections.append(_parse_collection(one, scope_id))
        uid = _number(manifest["uid"], _MAX_UID)
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


def _parse_collection(entry: dict[str, Any], scope_id: int) -> Collection:
    collection_id = _number(entry["uid"], _MAX_ID)
    max_ttl = entry.get("maxTTL")
    if max_ttl is not None and (type(max_ttl) is not int or not 0 <= max_ttl < 2**31):
        raise ValueError(f"{max_ttl!r} is no maxTTL")
    return Collection(collection_id, _name(entry["name"], collection_id), scope_id, max_ttl)


def _number(text: Any, highest: int) -> int:
    number = int(text, 16)
    if not 0 <= number <= highest:
        raise ValueError(f"{text} is out of range")
    return number


def _name(name: Any, id_: int) -> str:
    """Returns a checked name. The name ``_default`` is reserved for id 0."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ValueError(f"{name!r} is no name")
    if (name == _DEFAULT) is not (id_ == 0):
        raise ValueError(f"{name} cannot have id {id_:#x}")
    return name


def _check_unique(things: list[Any], what: str) -> None:
    if len(set(things)) < len(things):
        raise StoreRefusal(Status.INVALID, f"two {what} of the manifest are the same")


def _get_manifest(call: Call, request: kv.GetManifest) -> Answer:
    manifest = call.bucket.manifest
    known = _texts.get(call.bucket)
    if known is None or known[0] is not manifest:
        text = json.dumps(describe(manifest), separators=(",", ":")).encode()
        known = _texts[call.bucket] = (manifest, text)
    return Now((call.plain(known[1], datatype=call.json_datatype),))


def _set_manifest(call: Call, request: kv.SetManifest) -> Answer:
    most = call.bucket.settings.max_collections + call.bucket.settings.max_scopes
    # Check the size before parsing: parsing a far too large manifest would take seconds.
    uids = request.manifest.count(b'"uid"')
    if len(request.manifest) > _MAX_BYTES_EACH * (most + 1) or uids > most + 1:
        raise StoreRefusal(
            Status.TOO_BIG,
            f"a bucket has up to {call.bucket.settings.max_collections} collections and "
            f"{call.bucket.settings.max_scopes} scopes, and this manifest has more",
        )

    def take() -> Responses:
        ours = call.bucket.manifest
        manifest = parse(request.manifest, ours.next_id)
        if manifest != ours:  # sending the current manifest again is not an error
            call.bucket.set_manifest(manifest)
        return (call.plain(),)

    return Blocking(BackgroundWork.ADMINISTERING, take)


# ---- ids by name -------------------------------------------------------------------------


def _get_collection_id(call: Call, request: kv.GetCollectionId) -> Answer:
    scope_name, dot, name = request.path.partition(".")
    if not dot or "." in name:
        raise StoreRefusal(Status.INVALID, "a collection is named scope.collection")
    _check_path(scope_name, name)
    manifest = call.bucket.manifest
    scope = _scope(manifest, scope_name)
    for collection in manifest.collections:
        if collection.scope == scope.id and collection.name == (name or _DEFAULT):
            return _id(call, manifest, collection.id)
    raise StoreRefusal(Status.UNKNOWN_COLLECTION, f"there is no collection {request.path}")


def _get_scope_id(call: Call, request: kv.GetScopeId) -> Answer:
    scope_name, _, rest = request.path.partition(".")
    if "." in rest:
        raise StoreRefusal(Status.INVALID, "a path has a scope and at most a collection behind it")
    _check_path(scope_name)
    manifest = call.bucket.manifest
    return _id(call, manifest, _scope(manifest, scope_name).id)


def _check_path(*names: str) -> None:
    """Refuses names that no scope or collection can have. An empty name means the default one."""
    for name in names:
        if name and not _NAME.fullmatch(name):
            raise StoreRefusal(
                Status.INVALID,
                f"{name!r} cannot name a scope or collection: 1 to 251 of A-Z a-z 0-9 _ - % $",
            )


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
