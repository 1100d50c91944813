"""Scopes and collections: who is where, by id and by name."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kvkit import Desk, open_desk

from upriver.errors import Status
from upriver.model import Datatype
from upriver.wire import kv_messages as kv
from upriver.wire.protocol_enums import Command, Feature

DEFAULT = {"name": "_default", "uid": "0", "collections": [{"name": "_default", "uid": "0"}]}


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    with open_desk(tmp_path) as desk:
        yield desk


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Desk]:
    """A desk for tests that change nothing: a scope 8 with a collection 9, and a collection 10."""
    with open_desk(tmp_path_factory.mktemp("collections")) as desk:
        shop = desk.bucket.create_scope("shop").id
        desk.bucket.create_collection(shop, "c")
        desk.bucket.create_collection(0, "plain")
        yield desk


def manifest(uid: str, *scopes: dict[str, Any]) -> kv.SetManifest:
    return kv.SetManifest(manifest=json.dumps({"uid": uid, "scopes": scopes}).encode())


def test_a_key_lives_in_its_collection(desk: Desk) -> None:
    collection = desk.bucket.create_collection(0, "c").id
    desk.set(b"default")
    desk.set(b"other", collection=collection)
    assert desk.get().value == b"default"
    assert desk.get(collection=collection).value == b"other"
    desk.without(Feature.COLLECTIONS)
    assert desk.get().value == b"default"


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        (kv.Get, {}),
        (kv.Set, {}),
        (kv.GetMeta, {}),
        (kv.SubdocMultiMutation, {"paths": (kv.SubdocPath(command=Command.SET, value=b"1"),)}),
        (kv.Delete, {"quiet": True}),
    ],
)
def test_an_unknown_collection_is_refused_with_the_manifest(
    shared: Desk, kind: type, fields: dict[str, Any]
) -> None:
    refused = shared.document(kind, collection=0x99, **fields)
    assert refused.status is Status.UNKNOWN_COLLECTION
    told = json.loads(refused.value)
    assert told["manifest_uid"] == "3"
    assert "0x99" in told["error"]["context"]


def test_the_manifest_goes_out_as_it_came_in(desk: Desk) -> None:
    collections = [{"name": "c", "uid": "a"}, {"name": "d", "uid": "1f", "maxTTL": 60}]
    shop = {"name": "shop", "uid": "9", "collections": collections}
    assert desk.ask(manifest("2c", DEFAULT, shop)).status is Status.SUCCESS
    got = desk.ask(kv.GetManifest())
    assert got.datatype is Datatype.JSON
    assert json.loads(got.value) == {"uid": "2c", "scopes": [DEFAULT, shop]}
    assert desk.set(collection=0x1F).status is Status.SUCCESS
    assert desk.document(kv.GetMeta, collection=0x1F).expiry == int(desk.node.seconds) + 60
    # again the same, then an older one, then ids that were never given out
    assert desk.ask(manifest("2c", DEFAULT, shop)).status is Status.SUCCESS
    assert desk.ask(manifest("2b", DEFAULT)).status is Status.RANGE
    assert desk.ask(manifest("2d", DEFAULT)).status is Status.SUCCESS
    assert desk.bucket.create_scope("new").id == 0x20


def scope(**fields: Any) -> dict[str, Any]:
    return {"name": "s", "uid": "8", "collections": [], **fields}


@pytest.mark.parametrize(
    "scopes",
    [
        [],
        [scope()],
        [DEFAULT, scope(), scope(uid="9")],
        [DEFAULT, scope(), scope(name="t")],
        [DEFAULT, scope(uid="not hex")],
        [DEFAULT, scope(uid=8)],
        [DEFAULT, scope(uid="100000000")],
        [DEFAULT, scope(uid="-1")],
        [DEFAULT, scope(name="")],
        [DEFAULT, scope(name="a.b")],
        [DEFAULT, scope(name="_default")],
        [DEFAULT, scope(name="x" * 252)],
        [DEFAULT, scope(collections=[{"name": "c"}])],
        [DEFAULT, scope(collections=[{"name": "c", "uid": "9", "maxTTL": -1}])],
        [DEFAULT, scope(collections=[{"name": "c", "uid": "9", "maxTTL": True}])],
        [DEFAULT, scope(collections=[{"name": "c", "uid": "0"}])],
        [DEFAULT, scope(collections=[{"name": "c", "uid": x} for x in "9a"])],
        [DEFAULT, "s"],
    ],
)
def test_a_manifest_that_contradicts_itself_is_refused(shared: Desk, scopes: list[Any]) -> None:
    assert shared.ask(manifest("5", *scopes)).status is Status.INVALID
    assert shared.bucket.manifest.uid == 3


@pytest.mark.parametrize("text", [b"{", b"[]", b'{"uid":"1"}', b"\xff", b"[" * 100_000])
def test_a_manifest_must_be_one(shared: Desk, text: bytes) -> None:
    assert shared.ask(kv.SetManifest(manifest=text)).status is Status.INVALID


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        (".", 0),
        ("_default._default", 0),
        ("._default", 0),
        ("_default.", 0),
        ("shop.c", 9),
        (".plain", 10),
        ("shop.", Status.UNKNOWN_COLLECTION),
        ("shop.d", Status.UNKNOWN_COLLECTION),
        ("none.c", Status.UNKNOWN_SCOPE),
        ("shop", Status.INVALID),
        ("shop.c.d", Status.INVALID),
    ],
)
def test_a_collection_has_an_id(shared: Desk, path: str, expected: int | Status) -> None:
    found = shared.ask(kv.GetCollectionId(path=path))
    if isinstance(expected, Status):
        assert found.status is expected
    else:
        assert (found.manifest_uid, found.id) == (3, expected)


@pytest.mark.parametrize(
    ("path", "expected"),
    [(".", 0), ("_default", 0), ("shop", 8), ("shop.c", 8), ("none", Status.UNKNOWN_SCOPE)],
)
def test_a_scope_has_an_id(shared: Desk, path: str, expected: int | Status) -> None:
    found = shared.ask(kv.GetScopeId(path=path))
    if isinstance(expected, Status):
        assert found.status is expected
        assert json.loads(found.value)["manifest_uid"] == "3"
    else:
        assert (found.manifest_uid, found.id) == (3, expected)
