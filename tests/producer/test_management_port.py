"""The management port of a real server: what clients read there, who may change what."""

from __future__ import annotations

import asyncio
import json
import socket
import urllib.request
from base64 import b64encode
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urlencode

import pytest
from serverkit import SECRET, users_file
from talk import Talk, everything

from upriver.errors import ConfigError, Status
from upriver.model import NO_END
from upriver.producer.bootstrap.users import Role
from upriver.producer.embedded import Producer
from upriver.producer.server_settings import ServerSettings, usual_http_port
from upriver.testing import TemporaryProducer
from upriver.wire import kv_messages as kv
from upriver.wire import messages as m
from upriver.wire.protocol_enums import Feature

BUCKET = "/pools/default/buckets/default"


class Management:
    """Asks a server's management port as one user, or as nobody."""

    def __init__(self, producer: TemporaryProducer, user: str = "", password: str = "") -> None:
        port = producer.producer.server.http_port
        self.base = f"http://127.0.0.1:{port}"
        self.headers = {}
        if user:
            secret = b64encode(f"{user}:{password}".encode()).decode()
            self.headers["Authorization"] = f"Basic {secret}"

    def ask(self, method: str, path: str, **form: Any) -> tuple[int, Any]:
        """Status and document; an error's is its sentence."""
        body = urlencode(form).encode() if form else None
        request = urllib.request.Request(self.base + path, body, self.headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                text = answer.read()
                return answer.status, json.loads(text) if text else None
        except HTTPError as refused:
            with refused:
                return refused.code, json.loads(refused.read())["error"]

    def get(self, path: str) -> Any:
        status, document = self.ask("GET", path)
        assert status == 200, document
        return document


@pytest.fixture
def producer() -> Iterator[TemporaryProducer]:
    with TemporaryProducer(vbuckets=4) as producer:
        yield producer


@pytest.fixture
def management(producer: TemporaryProducer) -> Management:
    return Management(producer)


# ---- reading ---------------------------------------------------------------------------------


def test_the_map_names_the_port(producer: TemporaryProducer, management: Management) -> None:
    terse = management.get("/pools/default/b/default")
    (node,) = terse["nodesExt"]
    port = producer.producer.server.http_port
    assert node["services"] == {"kv": producer.port, "mgmt": port}
    with Talk(producer) as talk:
        assert json.loads(talk.ask(kv.GetClusterConfig()).value) == terse
    assert management.get("/pools/default/nodeServices")["nodesExt"] == terse["nodesExt"]


def test_a_restarted_server_has_a_newer_map(tmp_path: Path) -> None:
    """It may have another management port, and clients keep a map that is not newer."""
    seconds = iter(range(1_700_000_000, 1_700_100_000))
    wall = lambda: next(seconds) * 1_000_000_000  # noqa: E731
    with TemporaryProducer(vbuckets=1, data=tmp_path, wall=wall) as producer:
        first = Management(producer).get("/pools/default/b/default")
        producer.restart()
        second = Management(producer).get("/pools/default/b/default")
    assert second["rev"] > first["rev"]


def test_what_go_dcp_reads(management: Management) -> None:
    version = management.get("/pools")["implementationVersion"]
    assert [int(part) for part in version.split("-")[0].split(".")] >= [7, 0, 0]
    bucket = management.get(BUCKET)
    assert (bucket["bucketType"], bucket["storageBackend"]) == ("membase", "couchstore")


def test_what_sdks_read_of_a_bucket(producer: TemporaryProducer, management: Management) -> None:
    bucket = management.get(BUCKET)
    assert bucket["quota"]["rawRAM"] > 0
    assert bucket["uuid"] == producer.bucket.uuid
    assert (bucket["replicaNumber"], bucket["numVBuckets"]) == (0, 4)
    for name in ("evictionPolicy", "conflictResolutionType", "durabilityMinLevel", "maxTTL"):
        assert name in bucket
    assert "flush" in bucket["controllers"]
    assert bucket["vBucketServerMap"]["vBucketMap"] == [[0]] * 4
    (node,) = bucket["nodes"]
    assert (node["status"], node["services"]) == ("healthy", ["kv"])
    assert node["ports"]["direct"] == producer.port
    assert management.get("/pools/default/buckets") == [bucket]
    (pool_node,) = management.get("/pools/default")["nodes"]
    assert pool_node == node


def test_whoami_without_users(producer: TemporaryProducer, management: Management) -> None:
    everybody = [{"role": "admin"}]
    assert management.get("/whoami") == {"roles": everybody, "id": "", "domain": "anonymous"}
    named = Management(producer, "ann", "anything").get("/whoami")
    assert named == {"roles": everybody, "id": "ann", "domain": "local"}


def test_what_is_not_there(management: Management) -> None:
    assert management.ask("GET", "/elsewhere")[0] == 404
    assert management.ask("GET", "/pools/default/buckets/other")[0] == 404
    assert management.ask("GET", "/pools/default/buckets/..%2fdefault")[0] == 404
    assert management.ask("GET", "/pools/default/b/other")[0] == 404
    assert management.ask("POST", "/pools")[0] == 405
    assert management.ask("DELETE", "/pools/default/buckets")[0] == 405
    assert management.ask("PATCH", BUCKET)[0] == 404


def test_a_port_that_is_taken_is_named(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        producer = Producer(tmp_path, ServerSettings(port=0, http_port=port))
        with pytest.raises(ConfigError, match=f"127.0.0.1:{port} for HTTP"):
            asyncio.run(producer.start())


# ---- scopes and collections ------------------------------------------------------------------


def test_couchbases_management_port_belongs_to_its_data_port() -> None:
    """gocbcore's change streams look for HTTP on 8091 if they are given port 11210."""
    host = "127.77.80.91"  # loopback, and nobody else's
    assert usual_http_port(host, 11210) == 8091
    assert usual_http_port(host, 11207) == 18091
    with socket.create_server((host, 8091)):
        assert usual_http_port(host, 11210) == 0
    assert usual_http_port(host, 0) == 0
    assert usual_http_port(host, 21210) == 0


def test_collections_come_and_go(producer: TemporaryProducer, management: Management) -> None:
    scopes = f"{BUCKET}/scopes"
    assert management.ask("POST", scopes, name="shop") == (200, {"uid": "1"})
    again = management.ask("POST", scopes, name="shop")
    assert again == (400, 'Scope with name "shop" already exists')
    made = management.ask("POST", f"{scopes}/shop/collections", name="items", maxTTL=60)
    assert made == (200, {"uid": "2"})
    shop = management.get(scopes)["scopes"][1]
    assert (shop["name"], shop["collections"][0]["maxTTL"]) == ("shop", 60)
    with Talk(producer) as talk:
        talk.hello(Feature.COLLECTIONS)
        assert talk.ask(kv.GetCollectionId(path="shop.items")).manifest_uid == 2
    dropped = management.ask("DELETE", f"{scopes}/shop/collections/items")
    assert dropped == (200, {"uid": "3"})
    assert management.ask("DELETE", f"{scopes}/shop") == (200, {"uid": "4"})
    assert [scope["name"] for scope in management.get(scopes)["scopes"]] == ["_default"]


def test_a_changed_max_ttl_keeps_documents(
    producer: TemporaryProducer, management: Management
) -> None:
    path = f"{BUCKET}/scopes/_default/collections"
    assert management.ask("POST", path, name="items")[0] == 200
    (_, items) = producer.bucket.manifest.collections
    with everything(producer) as talk:
        written = talk.ask(kv.Set(key=b"k", value=b"v", collection=items.id))
        assert written.status is Status.SUCCESS
        assert management.ask("PATCH", f"{path}/items", maxTTL=100) == (200, {"uid": "2"})
        assert talk.ask(kv.Get(key=b"k", collection=items.id)).value == b"v"
        talk.ask(m.StreamRequest(vbucket=0, start=0, end=NO_END))
        kinds = [type(message) for message in talk.read_until(m.Mutation)]
        assert m.CollectionDropped not in kinds
    assert producer.bucket.manifest.collections[1].max_ttl == 100
    assert management.ask("PATCH", f"{path}/items", maxTTL=-1)[0] == 200
    assert producer.bucket.manifest.collections[1].max_ttl is None


@pytest.mark.parametrize(
    ("method", "path", "form", "status", "words"),
    [
        ("POST", "", {"name": "_x"}, 400, "cannot name a scope"),
        ("POST", "", {"name": ""}, 400, "cannot name a scope"),
        ("POST", "", {"nom": "x"}, 400, "name is missing"),
        ("POST", "", {"name": "x", "colour": "red"}, 400, "colour is not known"),
        ("DELETE", "/none", {}, 404, 'Scope with name "none" is not found'),
        ("DELETE", "/_default", {}, 400, "default scope"),
        ("POST", "/none/collections", {"name": "x"}, 404, "is not found"),
        ("POST", "/_default/collections", {"name": "x", "maxTTL": "1d"}, 400, "maxTTL"),
        ("POST", "/_default/collections", {"name": "x", "maxTTL": 2**31}, 400, "maxTTL"),
        ("POST", "/_default/collections", {"name": "x", "history": "true"}, 400, "history"),
        ("POST", "/_default/collections", {"name": "_default"}, 400, "cannot name"),
        ("DELETE", "/_default/collections/none", {}, 404, "Collection with name"),
        ("PATCH", "/_default/collections/none", {"maxTTL": 1}, 404, "Collection with name"),
        ("PUT", "/_default/collections/none", {}, 404, "PUT"),
    ],
)
def test_collections_that_are_refused(
    management: Management, method: str, path: str, form: dict[str, Any], status: int, words: str
) -> None:
    answered, told = management.ask(method, f"{BUCKET}/scopes{path}", **form)
    assert answered == status
    assert words in told


# ---- buckets ---------------------------------------------------------------------------------


def test_buckets_come_and_go(producer: TemporaryProducer, management: Management) -> None:
    form = {"name": "two", "ramQuotaMB": 100, "replicaNumber": 0, "flushEnabled": 1}
    assert management.ask("POST", "/pools/default/buckets", **form)[0] == 202
    assert management.ask("POST", "/pools/default/buckets", **form)[0] == 400
    made = management.get("/pools/default/buckets/two")
    assert made["quota"]["rawRAM"] == 100 * 1024 * 1024
    with Talk(producer) as talk:
        assert talk.ask(kv.SelectBucket(bucket="two")).status is Status.SUCCESS
        assert talk.ask(kv.Set(key=b"k", value=b"v")).status is Status.SUCCESS
        flush = "/pools/default/buckets/two/controller/doFlush"
        assert management.ask("POST", flush)[0] == 200
        assert talk.ask(kv.Get(key=b"k")).status is Status.NOT_FOUND
        assert management.ask("POST", "/pools/default/buckets/two", flushEnabled=0)[0] == 200
        assert management.ask("POST", flush) == (400, "Flush is disabled for the bucket")
        assert talk.ask(kv.FlushAll()).status is Status.NOT_SUPPORTED
        assert management.ask("DELETE", "/pools/default/buckets/two")[0] == 200
        assert talk.is_closed()
    assert management.ask("GET", "/pools/default/buckets/two")[0] == 404


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("ramQuotaMB", "much"),
        ("ramQuotaMB", "1"),
        ("replicaNumber", "1"),
        ("bucketType", "memcached"),
        ("maxTTL", "7"),
        ("storageBackend", "magma"),
        ("numVBuckets", "1025"),
        ("flushEnabled", "yes"),
        ("colour", "red"),
    ],
)
def test_settings_that_cannot_be_honoured_are_refused(
    management: Management, field: str, value: str
) -> None:
    form = {"name": "two", field: value}
    status, told = management.ask("POST", "/pools/default/buckets", **form)
    assert status == 400
    assert field in told
    assert len(management.get("/pools/default/buckets")) == 1


def test_the_bucket_of_the_server_stays(management: Management) -> None:
    status, told = management.ask("DELETE", BUCKET)
    assert (status, "started with" in told) == (400, True)


# ---- rights ----------------------------------------------------------------------------------

PEOPLE = {"reader": (Role.READ_STREAM,), "owner": (Role.ADMINISTER,)}


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TemporaryProducer]:
    users = users_file(tmp_path_factory.mktemp("users"), PEOPLE)
    with TemporaryProducer(vbuckets=4, settings=ServerSettings(users=users)) as producer:
        yield producer


@pytest.mark.parametrize(
    ("method", "path", "form", "nobody", "reader", "owner"),
    [
        ("GET", "/whoami", {}, 401, 200, 200),
        ("GET", "/pools", {}, 401, 200, 200),
        ("GET", "/pools/default/buckets", {}, 401, 200, 200),
        ("GET", BUCKET, {}, 401, 200, 200),
        ("GET", "/pools/default/b/default", {}, 401, 200, 200),
        # of buckets without a role nobody learns whether they are there
        ("GET", "/pools/default/b/other", {}, 401, 403, 403),
        ("GET", "/pools/default/buckets/other", {}, 401, 403, 403),
        ("GET", "/pools/default/buckets/other/scopes", {}, 401, 403, 403),
        ("GET", "/pools/default/bs/other", {}, 401, 403, 403),
        ("POST", f"{BUCKET}/scopes", {"name": "_no"}, 401, 403, 400),
        ("DELETE", f"{BUCKET}/scopes/none", {}, 401, 403, 404),
        ("POST", f"{BUCKET}/controller/doFlush", {}, 401, 403, 200),
        ("POST", BUCKET, {"flushEnabled": 1}, 401, 403, 200),
        # these need the role in all buckets
        ("DELETE", BUCKET, {}, 401, 403, 403),
        ("POST", "/pools/default/buckets", {"name": "two"}, 401, 403, 403),
    ],
)
def test_who_may_do_what(
    guarded: TemporaryProducer,
    method: str,
    path: str,
    form: dict[str, Any],
    nobody: int,
    reader: int,
    owner: int,
) -> None:
    assert Management(guarded).ask(method, path, **form)[0] == nobody
    assert Management(guarded, "reader", SECRET).ask(method, path, **form)[0] == reader
    assert Management(guarded, "owner", SECRET).ask(method, path, **form)[0] == owner


def test_whoami_tells_the_roles(guarded: TemporaryProducer) -> None:
    told = Management(guarded, "reader", SECRET).get("/whoami")
    roles = [{"role": "data_dcp_reader", "bucket_name": "default"}]
    assert told == {"roles": roles, "id": "reader", "domain": "local"}
