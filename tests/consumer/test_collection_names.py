"""The names of collections: from a manifest, and along the events of several vbuckets."""

from __future__ import annotations

import json
import pickle
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from upriver.consumer.topology.collection_names import CollectionEvent, Collections
from upriver.errors import ConfigError, RemoteProtocolError
from upriver.store.manifest import Manifest, events_between
from upriver.wire import messages as m

MANIFEST = {
    "uid": "1F",
    "scopes": [
        {
            "name": "_default",
            "uid": "0",
            "collections": [{"name": "_default", "uid": "0"}, {"name": "users", "uid": "8"}],
        },
        {
            "name": "shop",
            "uid": "9",
            "collections": [
                {"name": "orders", "uid": "a", "maxTTL": 60},
                {"name": "users", "uid": "b"},
            ],
        },
        {"name": "empty", "uid": "c", "collections": []},
    ],
}
KNOWN = Collections.parse(json.dumps(MANIFEST))


def created(collection: int, name: str, *, scope: int = 0, uid: int) -> m.CollectionCreated:
    return m.CollectionCreated(
        vbucket=0, seqno=1, name=name, manifest_uid=uid, scope=scope, collection=collection
    )


def dropped(collection: int, *, scope: int = 0, uid: int) -> m.CollectionDropped:
    return m.CollectionDropped(
        vbucket=0, seqno=1, manifest_uid=uid, scope=scope, collection=collection
    )


# ---- a manifest --------------------------------------------------------------------------


def test_collections_by_name_and_by_id() -> None:
    assert KNOWN.uid == 0x1F
    assert KNOWN.id_of("_default") == KNOWN.id_of("_default._default") == 0
    assert KNOWN.id_of("users") == KNOWN.id_of("_default.users") == 8
    assert KNOWN.id_of("shop.users") == 0xB
    assert KNOWN.names(0xA) == ("shop", "orders")
    assert KNOWN.scope_id("empty") == 0xC
    assert pickle.loads(pickle.dumps(KNOWN)) == KNOWN


def test_before_any_manifest_there_is_the_default() -> None:
    assert Collections().id_of("_default") == 0
    assert Collections().names(0) == ("_default", "_default")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("shop.order", "did you mean 'shop.orders'?"),
        ("user", "did you mean 'users'?"),
        ("xyzzy", "there are _default, _default._default, _default.users, shop.orders"),
        ("orders", "shop.orders"),
    ],
)
def test_a_collection_that_is_not_there(name: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        KNOWN.id_of(name)
    assert str(caught.value).startswith(f"there is no collection {name!r}; ")
    assert said in str(caught.value)


def test_a_scope_that_is_not_there() -> None:
    with pytest.raises(ConfigError, match="there is no scope 'shpo'; did you mean 'shop'"):
        KNOWN.scope_id("shpo")


def test_an_id_that_was_never_announced() -> None:
    with pytest.raises(RemoteProtocolError, match="the collection 0x77 was never announced"):
        KNOWN.names(0x77)


def scope(**members: Any) -> dict[str, Any]:
    return {"uid": "1", "scopes": [{"name": "s", "uid": "8", "collections": [], **members}]}


@pytest.mark.parametrize(
    "manifest",
    [
        None,
        [],
        {},
        {"uid": "1"},
        {"uid": 1, "scopes": []},
        {"uid": "0x1", "scopes": []},
        {"uid": "", "scopes": []},
        {"uid": "1" * 17, "scopes": []},
        {"uid": "1", "scopes": [3]},
        {"uid": "1", "scopes": [*MANIFEST["scopes"], *MANIFEST["scopes"]]},
        scope(uid="100000000"),
        scope(name=""),
        scope(name="n" * 252),
        scope(name=7),
        scope(collections={}),
        scope(collections=[{"name": "a", "uid": "8"}] * 2),
        scope(collections=[{"name": "a", "uid": f"{n:x}"} for n in range(65_537)]),
    ],
)
def test_a_manifest_that_makes_no_sense(manifest: Any) -> None:
    with pytest.raises(RemoteProtocolError, match="manifest cannot be understood"):
        Collections.parse(json.dumps(manifest))


@pytest.mark.parametrize(
    "text",
    [b"", b"\xff", b"[" * 100_000, b" " * (33 << 20)],
    ids=["empty", "no text", "deep", "large"],
)
def test_a_manifest_that_is_no_json(text: bytes) -> None:
    with pytest.raises(RemoteProtocolError, match="manifest cannot be understood"):
        Collections.parse(text)


# ---- events ------------------------------------------------------------------------------


def test_a_collection_that_comes_and_goes() -> None:
    with_it = KNOWN.with_event(created(0x20, "new", scope=9, uid=0x20))
    assert with_it.uid == 0x20
    assert with_it.id_of("shop.new") == 0x20
    without = with_it.with_event(dropped(0x20, scope=9, uid=0x21))
    with pytest.raises(ConfigError):
        without.id_of("shop.new")
    # a vbucket that is behind still sends its documents
    assert without.names(0x20) == ("shop", "new")
    again = without.with_event(created(0x22, "new", scope=9, uid=0x22))
    assert again.id_of("shop.new") == 0x22
    assert KNOWN.uid == 0x1F


def test_what_every_vbucket_says_is_heard_once() -> None:
    event = created(0x20, "new", uid=0x20)
    known = KNOWN.with_event(event)
    assert known.with_event(event) is known
    gone = known.with_event(dropped(0x20, uid=0x21))
    assert gone.with_event(event) is gone
    assert gone.with_event(dropped(0x20, uid=0x21)) is gone


def test_a_collection_of_the_past_has_a_name_but_cannot_be_chosen() -> None:
    known = KNOWN.with_event(created(0x10, "old", uid=0x10))
    assert known.names(0x10) == ("_default", "old")
    with pytest.raises(ConfigError):
        known.id_of("old")


def test_the_first_of_several_changes_carries_the_uid_of_the_manifest_before() -> None:
    known = KNOWN.with_event(created(0x20, "one", uid=0x1F)).with_event(
        created(0x21, "two", uid=0x20)
    )
    assert (known.id_of("one"), known.id_of("two")) == (0x20, 0x21)


def test_scopes_come_and_go_too() -> None:
    made = m.ScopeCreated(vbucket=0, seqno=1, name="new", manifest_uid=0x20, scope=0x30)
    gone = m.ScopeDropped(vbucket=0, seqno=2, manifest_uid=0x22, scope=0x30)
    known = KNOWN.with_event(made).with_event(created(0x31, "c", scope=0x30, uid=0x21))
    assert (known.scope_id("new"), known.id_of("new.c")) == (0x30, 0x31)
    known = known.with_event(gone)
    with pytest.raises(ConfigError):
        known.scope_id("new")
    with pytest.raises(ConfigError):
        known.id_of("new.c")
    assert known.names(0x31) == ("new", "c")
    old = KNOWN.with_event(
        m.ScopeCreated(vbucket=0, seqno=1, name="past", manifest_uid=1, scope=0x40)
    )
    with pytest.raises(ConfigError):
        old.scope_id("past")


def test_a_scope_that_was_not_told_of_goes_by_its_number() -> None:
    known = KNOWN.with_event(created(0x20, "new", scope=0x33, uid=0x20))
    assert known.names(0x20) == ("0x33", "new")
    assert known.id_of("0x33.new") == 0x20


# ---- many vbuckets, many manifests -------------------------------------------------------


@st.composite
def histories(draw: st.DrawFn) -> list[Manifest]:
    """Manifests one after the other, each with one or several changes."""
    history = [Manifest()]
    for step in range(draw(st.integers(1, 6))):
        manifest = history[-1]
        for part in range(draw(st.integers(1, 3))):
            scopes = [s.id for s in manifest.scopes]
            dropable = [c.id for c in manifest.collections]
            match draw(st.sampled_from(["scope", "collection", "drop", "drop scope"])):
                case "scope":
                    manifest = manifest.with_scope(f"s{step}-{part}")
                case "collection":
                    where = draw(st.sampled_from(scopes))
                    manifest = manifest.with_collection(where, f"c{step}-{part}")
                case "drop" if dropable:
                    manifest = manifest.without_collection(draw(st.sampled_from(dropable)))
                case "drop scope" if len(scopes) > 1:
                    manifest = manifest.without_scope(draw(st.sampled_from(scopes[1:])))
        if list(events_between(history[-1], manifest)):  # what came and went leaves no trace
            history.append(manifest)
    return history


def told(manifest: Manifest) -> bytes:
    return json.dumps(
        {
            "uid": f"{manifest.uid:x}",
            "scopes": [
                {
                    "name": scope.name,
                    "uid": f"{scope.id:x}",
                    "collections": [
                        {"name": c.name, "uid": f"{c.id:x}"}
                        for c in manifest.collections
                        if c.scope == scope.id
                    ],
                }
                for scope in manifest.scopes
            ],
        }
    ).encode()


@given(histories(), st.data())
def test_whatever_order_vbuckets_tell_it_in_the_end_is_the_last_manifest(
    history: list[Manifest], data: st.DataObject
) -> None:
    events: list[CollectionEvent] = [
        event.message for old, new in pairwise(history) for event in events_between(old, new)
    ]
    began = data.draw(st.integers(0, len(history) - 1), label="the manifest that was asked for")
    known = Collections.parse(told(history[began]))
    lagging = [list(events) for _ in range(3)]  # the vbuckets, each at its own pace
    while any(lagging):
        queue = data.draw(st.sampled_from([queue for queue in lagging if queue]))
        event = queue.pop(0)
        known = known.with_event(event)
        if isinstance(event, m.CollectionCreated):
            assert known.names(event.collection)[1] == event.name
    last = history[-1]
    assert known.uid == last.uid
    scopes = {scope.id: scope.name for scope in last.scopes}
    for scope_id, name in scopes.items():
        assert known.scope_id(name) == scope_id
    alive = {f"{scopes[c.scope]}.{c.name}": c.id for c in last.collections}
    assert {name: known.id_of(name) for name in alive} == alive
    for collection in {c.id for manifest in history for c in manifest.collections}:
        if collection not in alive.values() and collection in known.collections:
            with pytest.raises(ConfigError):
                known.id_of(".".join(known.names(collection)))
