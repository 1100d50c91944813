"""REST API of the management port: its paths, and the role that each requires.

    GET    /                                        200, by which SDKs see that the port is alive
    GET    /whoami                                  the client's user name and roles
    GET    /pools, /pools/default                   the version, the nodes
    GET    /pools/default/nodeServices              the nodes and their ports
    GET    /pools/default/b/BUCKET                  the terse map
    GET    /pools/default/buckets, .../BUCKET       detailed buckets
    POST   /pools/default/buckets                   creates one (form: name, ramQuotaMB, ...)
    POST   /pools/default/buckets/BUCKET            changes one (flushEnabled, ...)
    DELETE /pools/default/buckets/BUCKET
    POST   /pools/default/buckets/BUCKET/controller/doFlush
    GET    /pools/default/buckets/BUCKET/scopes     the manifest
    POST   .../scopes                               creates a scope (form: name)
    DELETE .../scopes/SCOPE
    POST   .../scopes/SCOPE/collections             creates a collection (form: name, maxTTL)
    PATCH  .../scopes/SCOPE/collections/COLLECTION  changes its maxTTL
    DELETE .../scopes/SCOPE/collections/COLLECTION

A client without a role in a bucket is refused with 403, whether the bucket exists or not.
"""

from __future__ import annotations

import contextlib
import json
import logging
from collections.abc import Callable
from http import HTTPStatus
from typing import Any, Final

from ...errors import ConfigError, Status, StoreError, StoreRefusal
from ...store import Bucket
from ..keyvalue.collection_commands import describe, parse
from ..server_context import ServerContext
from . import node_relay, pool_documents
from .bucket_settings_form import changed_settings, new_settings
from .collection_management import CollectionChanges
from .http_messages import HttpRefusal, HttpRequest, HttpResponse, json_response
from .users import Role

logger = logging.getLogger("upriver.producer")

_DEFAULT: Final = ("pools", "default")
_BUCKETS: Final = (*_DEFAULT, "buckets")
#: Path below the scopes by which nodes send each other the manifest. No scope can have this name.
_MANIFEST: Final = "@manifest"
_OTHER_NODES: Final = "in a cluster, its manager decides which buckets there are"


class RestApi:
    """Answers HTTP requests. All methods but `terse_map` run in threads."""

    def __init__(
        self,
        node: ServerContext,
        let_go: Callable[[Bucket], None],
        rename: Callable[[str], None],
    ) -> None:
        """``let_go`` closes every connection that uses a bucket; ``rename`` names the server."""
        self._node = node
        self._rename_server = rename
        self._let_go = let_go

    def terse_map(self, bucket: str, user: str | None) -> bytes:
        self._check(user, bucket, None)
        config = self._node.config_of(bucket)
        if config is None:
            raise _no_bucket(bucket)
        return config

    def answer(self, request: HttpRequest, user: str | None) -> HttpResponse:
        path, method = request.path, request.method
        if path[:3] == _BUCKETS and len(path) > 3:
            return self._about_bucket(request, user, path[3], path[4:])
        if path[:-1] == (*_DEFAULT, "b") and method == "GET":
            return HttpResponse(HTTPStatus.OK, self.terse_map(path[-1], user))
        if path == _BUCKETS and method == "POST":
            return self._create(request, user)
        if path == _DEFAULT and method == "POST":
            return self._rename(request, user)
        pages: dict[tuple[str, ...], Callable[[str | None], Any]] = {
            ("",): lambda user: {},
            ("whoami",): self._whoami,
            ("pools",): self._pools,
            _DEFAULT: self._pool,
            (*_DEFAULT, "nodeServices"): lambda user: pool_documents.node_services(self._nodes()),
            _BUCKETS: self._buckets,
        }
        page = pages.get(path)
        if page is None:
            raise HttpRefusal(HTTPStatus.NOT_FOUND, f"there is no /{'/'.join(path)[:200]}")
        if method != "GET":
            allowed = "GET, POST" if path in (_DEFAULT, _BUCKETS) else "GET"
            raise HttpRefusal(
                HTTPStatus.METHOD_NOT_ALLOWED, f"{method} is not served here", {"Allow": allowed}
            )
        return json_response(page(user))

    # ---- the server ----------------------------------------------------------------------

    def _whoami(self, user: str | None) -> Any:
        return pool_documents.whoami(user, self._node.users.get(user) if user else None)

    def _pools(self, user: str | None) -> Any:
        administers = Role.ADMINISTER in self._node.users.roles(user, None)
        return pool_documents.pools(
            self._node.version, self._node.cluster_uuid, administers=administers
        )

    def _pool(self, user: str | None) -> Any:
        node = self._node
        return pool_documents.pool(
            node.version, node.cluster_name, self._nodes(), self._visible(user)
        )

    def _rename(self, request: HttpRequest, user: str | None) -> HttpResponse:
        """Gives a single server a name, as Couchbase clusters are named; nothing else is set."""
        self._check(user, None, Role.ADMINISTER)
        form = request.form()
        errors = {field: f"{field} is not known here" for field in form if field != "clusterName"}
        if "clusterName" not in form:
            errors["clusterName"] = "clusterName is missing"
        elif self._node.membership is not None:
            errors["clusterName"] = "the manager of a cluster names it"
        if errors:
            raise HttpRefusal(HTTPStatus.BAD_REQUEST, "; ".join(errors.values()), errors=errors)
        try:
            self._rename_server(form["clusterName"])
        except StoreRefusal as refusal:
            rule = refusal.rule
            raise HttpRefusal(HTTPStatus.BAD_REQUEST, rule, errors={"clusterName": rule}) from None
        return HttpResponse(HTTPStatus.OK)

    def _nodes(self) -> dict[str, Any]:
        """Returns the map without a bucket."""
        return self._terse(None)

    def _visible(self, user: str | None) -> list[str]:
        node = self._node
        return [name for name in node.store.buckets() if node.users.roles(user, name)]

    def _buckets(self, user: str | None) -> Any:
        found = (self._node.bucket(name) for name in self._visible(user))
        return [self._document(bucket) for bucket in found if bucket is not None]

    # ---- one bucket ----------------------------------------------------------------------

    def _about_bucket(
        self, request: HttpRequest, user: str | None, name: str, rest: tuple[str, ...]
    ) -> HttpResponse:
        reads = request.method == "GET"
        self._check(user, name, None if reads else Role.ADMINISTER)
        bucket = self._node.bucket(name)
        if bucket is None:
            raise _no_bucket(name)
        try:
            match request.method, rest:
                case "GET", ():
                    return json_response(self._document(bucket))
                case "POST", ():
                    return self._change(bucket, request)
                case "DELETE", ():
                    return self._drop(bucket, user)
                case "POST", ("controller", "doFlush"):
                    return self._flush(bucket, request)
                case "GET", ("scopes",):
                    return self._manifest(bucket, request)
                case "PUT", ("scopes", name) if name == _MANIFEST and self._is_from_node(request):
                    return self._take_manifest(bucket, request)
                case method, ("scopes", *names):
                    if not self._decides(bucket, request):
                        return node_relay.pass_to_first(request, self._terse(bucket))
                    uid = CollectionChanges(bucket).apply(method, tuple(names), request)
                    self._share_manifest(bucket, request)
                    return json_response({"uid": f"{uid:x}"})
        except StoreRefusal as refusal:
            raise HttpRefusal(
                HTTPStatus.BAD_REQUEST, refusal.rule, errors={"_": refusal.rule}
            ) from None
        except StoreError as problem:
            logger.error("HTTP %s of %s failed: %s", request.method, name, problem)
            rule = "the bucket cannot do this now: the server's log has the details"
            raise HttpRefusal(HTTPStatus.SERVICE_UNAVAILABLE, rule) from None
        where = "/".join(request.path)[:200]
        raise HttpRefusal(HTTPStatus.NOT_FOUND, f"there is no {request.method} /{where}")

    def _document(self, bucket: Bucket) -> Any:
        return pool_documents.bucket_document(
            bucket,
            self._terse(bucket),
            self._node.version,
            flush=self._node.may_flush(bucket),
        )

    def _manifest(self, bucket: Bucket, request: HttpRequest) -> HttpResponse:
        """Returns the newest manifest. The first node has it, possibly before this node."""
        if not self._decides(bucket, request):
            with contextlib.suppress(HttpRefusal):  # it is down: return this node's manifest
                return node_relay.pass_to_first(request, self._terse(bucket))
        return json_response(describe(bucket.manifest))

    def _flush(self, bucket: Bucket, request: HttpRequest) -> HttpResponse:
        if not self._node.may_flush(bucket):
            rule = "Flush is disabled for the bucket"
            raise HttpRefusal(HTTPStatus.BAD_REQUEST, rule, errors={"_": rule})
        if not self._node.leased:
            rule = "this node has had no word of its manager for too long to answer writes"
            raise HttpRefusal(HTTPStatus.SERVICE_UNAVAILABLE, rule)
        bucket.flush(copies=False)
        self._tell_others(bucket, request)
        return HttpResponse(HTTPStatus.OK)

    # ---- other nodes ---------------------------------------------------------------------

    def _terse(self, bucket: Bucket | None) -> dict[str, Any]:
        """Returns the terse map of a bucket; without one, of the cluster."""
        config = self._node.config(bucket)
        if config is None:
            raise _no_map()
        document: dict[str, Any] = json.loads(config)
        return document

    def _is_from_node(self, request: HttpRequest) -> bool:
        """Whether another node of the cluster relayed the request."""
        return self._node.membership is not None and node_relay.was_passed_on(request)

    def _decides(self, bucket: Bucket, request: HttpRequest) -> bool:
        """Whether this node changes the manifest: in a cluster one node assigns the ids."""
        alone = self._node.membership is None or node_relay.was_passed_on(request)
        return alone or node_relay.is_first(self._terse(bucket))

    def _share_manifest(self, bucket: Bucket, request: HttpRequest) -> None:
        """Sends a new manifest to the other nodes.

        A client's next request may use a new collection. The manager would send the manifest too,
        but later.
        """
        if self._node.membership is not None:
            path = (*_BUCKETS, bucket.name, "scopes", _MANIFEST)
            body = json.dumps(describe(bucket.manifest)).encode()
            relayed = HttpRequest("PUT", path, request.headers, body)
            node_relay.share(relayed, self._terse(bucket))

    def _take_manifest(self, bucket: Bucket, request: HttpRequest) -> HttpResponse:
        ours = bucket.manifest
        manifest = parse(request.body, ours.next_id)
        if manifest.uid > ours.uid:
            bucket.set_manifest(manifest)
        return HttpResponse(HTTPStatus.OK)

    def _tell_others(self, bucket: Bucket, request: HttpRequest) -> None:
        if self._node.membership is not None and not self._is_from_node(request):
            node_relay.pass_on(request, self._terse(bucket))

    # ---- creating and dropping buckets ---------------------------------------------------

    def _create(self, request: HttpRequest, user: str | None) -> HttpResponse:
        self._check(user, None, Role.ADMINISTER)
        self._check_alone()
        form = request.form()
        name = form.get("name", "")
        settings = new_settings(form, self._node.store.bucket_settings(self._node.main_bucket))
        try:
            self._node.store.create_bucket(name, settings)
        except StoreRefusal as refusal:
            rule = refusal.rule
            if refusal.status is Status.EXISTS:
                rule = "Bucket with given name already exists"
            raise HttpRefusal(HTTPStatus.BAD_REQUEST, rule, errors={"name": rule}) from None
        logger.info("%s created the bucket %s", user or "a client", name)
        return HttpResponse(HTTPStatus.ACCEPTED)

    def _change(self, bucket: Bucket, request: HttpRequest) -> HttpResponse:
        replicas = self._terse(bucket)["vBucketServerMap"]["numReplicas"]
        changes = changed_settings(request.form(), replicas)
        try:
            self._node.store.change_bucket(bucket.name, **changes)
        except ConfigError as problem:
            raise HttpRefusal(HTTPStatus.BAD_REQUEST, str(problem)) from None
        self._tell_others(bucket, request)
        return HttpResponse(HTTPStatus.OK)

    def _drop(self, bucket: Bucket, user: str | None) -> HttpResponse:
        self._check(user, None, Role.ADMINISTER)
        self._check_alone()
        if bucket.name == self._node.main_bucket:
            rule = f"{bucket.name} is the bucket that the server was started with: it stays"
            raise HttpRefusal(HTTPStatus.BAD_REQUEST, rule, errors={"_": rule})
        self._let_go(bucket)
        self._node.store.drop_bucket(bucket.name)
        logger.info("%s dropped the bucket %s", user or "a client", bucket.name)
        return HttpResponse(HTTPStatus.OK)

    def _check_alone(self) -> None:
        if self._node.membership is not None:
            raise HttpRefusal(HTTPStatus.BAD_REQUEST, _OTHER_NODES, errors={"_": _OTHER_NODES})

    # ---- access control ------------------------------------------------------------------

    def _check(self, user: str | None, bucket: str | None, role: Role | None) -> None:
        """Refuses a user without the role. None stands for any role, or for all buckets."""
        roles = self._node.users.roles(user, bucket)
        if role in roles if role is not None else roles:
            return
        needed = f"the role {role}" if role is not None else "a role"
        where = "all buckets" if bucket is None else f"the bucket {bucket[:100]!r}"
        raise HttpRefusal(HTTPStatus.FORBIDDEN, f"{user or 'nobody'} needs {needed} in {where}")


def _no_bucket(name: str) -> HttpRefusal:
    return HttpRefusal(HTTPStatus.NOT_FOUND, f"there is no bucket {name[:100]!r}")


def _no_map() -> HttpRefusal:
    rule = "the manager of the cluster has not given this node a map yet"
    return HttpRefusal(HTTPStatus.SERVICE_UNAVAILABLE, rule)
