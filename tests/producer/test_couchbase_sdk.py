"""Couchbase's own Python SDK, unmodified, works on documents; their changes come on a stream."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from serverkit import SECRET, Certificates, users_file
from talk import Talk, everything

from upriver.model import NO_END, Datatype
from upriver.producer.bootstrap.users import DEVELOPMENT_PASSWORD, Role
from upriver.producer.server_settings import ServerSettings
from upriver.testing import TemporaryProducer
from upriver.wire import messages as m

pytest.importorskip("couchbase", reason="the couchbase package is not installed")

from couchbase import exceptions as errors
from couchbase import subdocument as sub
from couchbase.auth import PasswordAuthenticator
from couchbase.cluster import Cluster
from couchbase.collection import Collection
from couchbase.options import (
    ClusterOptions,
    DecrementOptions,
    GetOptions,
    IncrementOptions,
    RemoveOptions,
    ReplaceOptions,
    SignedInt64,
    UpsertOptions,
)

#: Never waited for: what is refused is refused at once.
PATIENCE = timedelta(seconds=300)
HOUR = 3600


class Clock:
    """The server's clock, which a test can put forward."""

    def __init__(self) -> None:
        self.ahead = 0

    def __call__(self) -> int:
        return time.time_ns() + self.ahead

    def advance(self, seconds: int) -> None:
        self.ahead += seconds * 1_000_000_000


@contextmanager
def connected(
    producer: TemporaryProducer,
    user: str = "anybody",
    password: str = DEVELOPMENT_PASSWORD,
    *,
    authority: Path | None = None,
) -> Iterator[Cluster]:
    """A client; over TLS if an authority is given that shall have signed for the server."""
    scheme = "couchbases" if authority else "couchbase"
    cluster = Cluster(
        f"{scheme}://{producer.host}:{producer.port}",
        ClusterOptions(
            PasswordAuthenticator(user, password, cert_path=str(authority) if authority else None)
        ),
    )
    try:
        yield cluster
    finally:
        cluster.close()  # its threads go on otherwise


@pytest.fixture(scope="module")
def clock() -> Clock:
    return Clock()


@pytest.fixture(scope="module")
def producer(clock: Clock) -> Iterator[TemporaryProducer]:
    with TemporaryProducer(vbuckets=64, wall=clock) as producer:
        yield producer


@pytest.fixture(scope="module")
def cluster(producer: TemporaryProducer) -> Iterator[Cluster]:
    with connected(producer) as cluster:
        yield cluster


@pytest.fixture
def documents(cluster: Cluster) -> Collection:
    return cluster.bucket("default").default_collection()


def place(result: Any) -> tuple[int, int]:
    """The vbucket and the seqno that a write was told."""
    token = result.mutation_token()
    assert token is not None
    return token.partition_id, token.sequence_number


@contextmanager
def tail(producer: TemporaryProducer, name: str, written: Any) -> Iterator[Talk]:
    """A stream of the vbucket of a document, behind what was written to it."""
    vbucket, seqno = place(written)
    with everything(producer, name) as talk:
        branch = producer.bucket.failover_log(vbucket).newest.vbuuid
        talk.send(m.StreamRequest(vbucket=vbucket, start=seqno, end=NO_END, vbuuid=branch))
        assert isinstance(talk.read(), m.StreamAccepted)
        yield talk


def test_the_cluster_is_ready(cluster: Cluster) -> None:
    cluster.wait_until_ready(PATIENCE)
    assert cluster.bucket("default").ping().endpoints


def test_a_document_is_written_read_and_removed(documents: Collection) -> None:
    first = documents.upsert("life", {"age": 1})
    found = documents.get("life")
    assert (found.content_as[dict], found.cas) == ({"age": 1}, first.cas)
    second = documents.replace("life", {"age": 2})
    assert second.cas != first.cas
    assert place(second) > place(first)
    documents.remove("life")
    with pytest.raises(errors.DocumentNotFoundException):
        documents.get("life")


def test_insert_wants_it_absent_and_replace_wants_it_there(documents: Collection) -> None:
    with pytest.raises(errors.DocumentNotFoundException):
        documents.replace("only once", 1)
    documents.insert("only once", 1)
    with pytest.raises(errors.DocumentExistsException):
        documents.insert("only once", 2)
    assert documents.get("only once").content_as[int] == 1


def test_a_write_with_an_old_cas_is_refused(documents: Collection) -> None:
    old = documents.upsert("contended", "mine")
    new = documents.upsert("contended", "theirs")
    with pytest.raises(errors.CasMismatchException):
        documents.replace("contended", "mine again", ReplaceOptions(cas=old.cas))
    with pytest.raises(errors.CasMismatchException):
        documents.remove("contended", RemoveOptions(cas=old.cas))
    documents.replace("contended", "agreed", ReplaceOptions(cas=new.cas))
    assert documents.get("contended").content_as[str] == "agreed"


def test_existence(documents: Collection) -> None:
    documents.upsert("here", {})
    assert documents.exists("here").exists
    assert not documents.exists("never").exists
    documents.remove("here")
    assert not documents.exists("here").exists


def test_counters(documents: Collection) -> None:
    binary = documents.binary()
    start = IncrementOptions(initial=SignedInt64(10))
    assert binary.increment("visits", start).content == 10
    assert binary.increment("visits", start).content == 11
    assert binary.decrement("visits", DecrementOptions()).content == 10
    assert documents.get("visits").content_as[int] == 10


def test_appending_and_prepending(documents: Collection) -> None:
    documents.upsert("text", "middle")
    documents.binary().append("text", b"-end")
    documents.binary().prepend("text", b"start-")
    # JSON no longer, so it is read as the server has it
    assert documents.get("text", GetOptions(transcoder=AsItIs())).value == b'start-"middle"-end'


class AsItIs:
    """Hands over the bytes of a value, whatever its flags say."""

    def decode_value(self, value: bytes, flags: int) -> bytes:
        return value


def test_a_touched_document_lives_on_and_then_expires(
    producer: TemporaryProducer, documents: Collection, clock: Clock
) -> None:
    written = documents.upsert("fleeting", 1, UpsertOptions(expiry=timedelta(seconds=HOUR)))
    with tail(producer, "expiry", written) as talk:
        touched = documents.touch("fleeting", timedelta(seconds=3 * HOUR))
        clock.advance(2 * HOUR)
        got = documents.get_and_touch("fleeting", timedelta(seconds=2 * HOUR))
        assert got.content_as[int] == 1
        assert got.cas != touched.cas
        clock.advance(3 * HOUR)
        with pytest.raises(errors.DocumentNotFoundException):
            documents.get("fleeting")
        producer.bucket.compact()
        changes = [x for x in talk.read_until(m.Expiration) if not isinstance(x, m.SnapshotMarker)]
    kinds: list[type[m.Message]] = [m.Mutation, m.Mutation, m.Expiration]
    assert [type(x) for x in changes] == kinds
    assert {x.key for x in changes} == {b"fleeting"}


def test_a_document_is_read_with_its_expiry(documents: Collection, clock: Clock) -> None:
    documents.upsert("dated", {"a": 1}, UpsertOptions(expiry=timedelta(seconds=HOUR)))
    found = documents.get("dated", GetOptions(with_expiry=True))
    assert found.content_as[dict] == {"a": 1}
    assert found.expiry_time is not None
    left = found.expiry_time.timestamp() - clock() / 1e9
    assert HOUR - 60 < left <= HOUR + 1


def test_projections_read_parts_of_a_document(documents: Collection) -> None:
    documents.upsert("person", {"name": {"first": "Ada", "last": "L"}, "age": 36, "more": [1, 2]})
    found = documents.get("person", GetOptions(project=["name.first", "age"]))
    assert found.content_as[dict] == {"name": {"first": "Ada"}, "age": 36}


def test_looking_into_and_editing_a_document(documents: Collection) -> None:
    documents.upsert("tree", {"a": {"b": 1}, "list": [1]})
    documents.mutate_in(
        "tree",
        [
            sub.upsert("a.c", 2),
            sub.increment("a.b", 5),
            sub.array_append("list", 2, 3),
            sub.upsert("meta.by", "me", xattr=True, create_parents=True),
        ],
    )
    found = documents.lookup_in(
        "tree",
        [
            sub.get("a.b"),
            sub.exists("a.z"),
            sub.count("list"),
            sub.get("meta.by", xattr=True),
            sub.get("nowhere"),
        ],
    )
    assert found.content_as[int](0) == 6
    assert not found.exists(1)
    assert found.content_as[int](2) == 3
    assert found.content_as[str](3) == "me"
    with pytest.raises(errors.PathNotFoundException):
        found.content_as[str](4)
    assert documents.get("tree").content_as[dict] == {"a": {"b": 6, "c": 2}, "list": [1, 2, 3]}


def test_a_locked_document_can_only_be_written_with_its_cas(documents: Collection) -> None:
    documents.upsert("locked", 1)
    held = documents.get_and_lock("locked", timedelta(seconds=25))
    with pytest.raises(errors.DocumentLockedException):
        documents.get_and_lock("locked", timedelta(seconds=25), timeout=timedelta(seconds=1))
    documents.unlock("locked", held.cas)
    documents.upsert("locked", 2)
    held = documents.get_and_lock("locked", timedelta(seconds=25))
    documents.replace("locked", 3, ReplaceOptions(cas=held.cas))
    assert documents.get("locked").content_as[int] == 3


def test_a_large_document_travels_compressed_both_ways(
    producer: TemporaryProducer, documents: Collection
) -> None:
    content = {"words": ["river"] * 2000}
    written = documents.upsert("large", {})
    with tail(producer, "large", written) as talk:
        documents.upsert("large", content)
        assert documents.get("large").content_as[dict] == content
        change = talk.read_until(m.Mutation)[-1]
    assert change.datatype & Datatype.SNAPPY
    assert len(change.value) < 2000


def test_a_named_collection_has_documents_of_its_own(
    producer: TemporaryProducer, cluster: Cluster, documents: Collection
) -> None:
    scope = producer.bucket.create_scope("shop")
    collection = producer.bucket.create_collection(scope.id, "orders")
    orders = cluster.bucket("default").scope("shop").collection("orders")
    documents.upsert("same key", "default")
    written = orders.upsert("same key", {"item": 1})
    with tail(producer, "collections", written) as talk:
        orders.upsert("same key", {"item": 2})
        change = talk.read_until(m.Mutation)[-1]
    assert documents.get("same key").content_as[str] == "default"
    assert orders.get("same key").content_as[dict] == {"item": 2}
    assert (change.key, change.collection) == (b"same key", collection.id)


def test_every_kind_of_change_comes_on_the_stream(
    producer: TemporaryProducer, documents: Collection
) -> None:
    written = documents.upsert("seen", 0)
    with tail(producer, "changes", written) as talk:
        for change in (documents.upsert, documents.replace):
            told = change("seen", {"by": change.__name__})
            seen = talk.read_until(m.Mutation)[-1]
            assert (seen.vbucket, seen.seqno, seen.cas) == (*place(told), told.cas)
            assert json.loads(seen.value) == {"by": change.__name__}
        told = documents.remove("seen")
        seen = talk.read_until(m.Deletion)[-1]
        assert (seen.key, seen.seqno) == (b"seen", place(told)[1])


READER_AND_WRITER = {"writer": (Role.READ_DATA, Role.WRITE_DATA), "reader": (Role.READ_DATA,)}


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TemporaryProducer]:
    """A server with a user who writes and one who only reads."""
    users = users_file(tmp_path_factory.mktemp("users"), READER_AND_WRITER)
    settings = ServerSettings(users=users, authentication_delay=0.01)
    with TemporaryProducer(vbuckets=64, settings=settings) as producer:
        yield producer


def test_users_may_do_what_they_were_granted(guarded: TemporaryProducer) -> None:
    with connected(guarded, "writer", SECRET) as cluster:
        cluster.bucket("default").default_collection().upsert("shared", "text")
    with connected(guarded, "reader", SECRET) as cluster:
        documents = cluster.bucket("default").default_collection()
        assert documents.get("shared").content_as[str] == "text"
        with pytest.raises(errors.AuthenticationException):
            documents.upsert("shared", "other text")


@pytest.mark.parametrize(("user", "password"), [("writer", "a guess"), ("nobody", SECRET)])
def test_a_wrong_name_or_password_is_refused(
    guarded: TemporaryProducer, user: str, password: str
) -> None:
    """At once: the SDK raises another error if it has to give up waiting."""
    with (
        pytest.raises(errors.AuthenticationException),
        connected(guarded, user, password),
    ):
        pass


def test_users_are_known_over_tls(tmp_path: Path) -> None:
    certificates = Certificates.made_in(tmp_path)
    settings = certificates.settings(users=users_file(tmp_path, READER_AND_WRITER))
    with (
        TemporaryProducer(vbuckets=64, settings=settings) as producer,
        connected(producer, "writer", SECRET, authority=certificates.authority) as cluster,
    ):
        documents = cluster.bucket("default").default_collection()
        documents.upsert("secret", {"text": "x" * 100_000})
        assert documents.get("secret").content_as[dict] == {"text": "x" * 100_000}
