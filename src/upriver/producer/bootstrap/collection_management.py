"""HTTP requests that create, change or drop scopes and collections.

Error texts are those of Couchbase Server where clients search for them: the SDKs distinguish
"exists" and "not found" by the words of the error.
"""

from __future__ import annotations

from http import HTTPStatus

from ...errors import Status, StoreRefusal
from ...store import Bucket, Collection, Scope
from .http_messages import HttpRefusal, HttpRequest


class CollectionChanges:
    """Makes one change to a bucket's manifest and returns the new manifest uid."""

    def __init__(self, bucket: Bucket) -> None:
        self._bucket = bucket

    def apply(self, method: str, names: tuple[str, ...], request: HttpRequest) -> int:
        """``names`` is the path below ``scopes``."""
        match method, names:
            case "POST", ():
                form = _form(request, "name")
                self._create_scope(form["name"])
            case "DELETE", (scope,):
                self._bucket.drop_scope(self._scope(scope).id)
            case "POST", (scope, "collections"):
                form = _form(request, "name", "maxTTL", "history")
                self._create_collection(scope, form["name"], _max_ttl(form))
            case "DELETE", (scope, "collections", name):
                self._bucket.drop_collection(self._collection(scope, name).id)
            case "PATCH", (scope, "collections", name):
                collection = self._collection(scope, name)
                form = _form(request, "maxTTL", "history", needed=())
                if "maxTTL" in form:
                    self._bucket.change_collection(collection.id, max_ttl=_max_ttl(form))
            case _:
                path = "/".join(("scopes", *names))[:200]
                raise HttpRefusal(HTTPStatus.NOT_FOUND, f"there is no {method} {path}")
        return self._bucket.manifest.uid

    def _create_scope(self, name: str) -> None:
        try:
            self._bucket.create_scope(name)
        except StoreRefusal as refusal:
            if refusal.status is not Status.EXISTS:
                raise
            raise _invalid(f'Scope with name "{name}" already exists') from None

    def _create_collection(self, scope: str, name: str, max_ttl: int | None) -> None:
        scope_id = self._scope(scope).id
        try:
            self._bucket.create_collection(scope_id, name, max_ttl=max_ttl)
        except StoreRefusal as refusal:
            if refusal.status is not Status.EXISTS:
                raise
            raise _invalid(
                f'Collection with name "{name}" in scope "{scope}" already exists'
            ) from None

    def _scope(self, name: str) -> Scope:
        for scope in self._bucket.manifest.scopes:
            if scope.name == name:
                return scope
        raise _not_found(f'Scope with name "{name[:300]}" is not found')

    def _collection(self, scope: str, name: str) -> Collection:
        scope_id = self._scope(scope).id
        for collection in self._bucket.manifest.collections:
            if (collection.scope, collection.name) == (scope_id, name):
                return collection
        raise _not_found(f'Collection with name "{name[:300]}" in scope "{scope}" is not found')


def _form(request: HttpRequest, *known: str, needed: tuple[str, ...] = ("name",)) -> dict[str, str]:
    form = request.form()
    for name in needed:
        if name not in form:
            raise _invalid(f"{name} is missing", name)
    for name in form:
        if name not in known:
            raise _invalid(f"{name[:100]} is not known here", name[:100])
    if form.get("history", "false") != "false":
        # Couchbase answers the same for a bucket whose storage keeps no history.
        raise _invalid("history can only be false: no history of versions is kept", "history")
    return form


def _max_ttl(form: dict[str, str]) -> int | None:
    """Returns seconds; None for no limit, which clients request by -1 or by 0."""
    text = form.get("maxTTL", "0")
    if text in ("0", "-1"):
        return None
    if not (text.isascii() and text.isdigit() and len(text) <= 10 and int(text) < 2**31):
        raise _invalid(f"maxTTL must be a number from -1 to {2**31 - 1}", "maxTTL")
    return int(text)


def _invalid(rule: str, field: str = "_") -> HttpRefusal:
    return HttpRefusal(HTTPStatus.BAD_REQUEST, rule, errors={field: rule})


def _not_found(rule: str) -> HttpRefusal:
    return HttpRefusal(HTTPStatus.NOT_FOUND, rule, errors={"_": rule})
