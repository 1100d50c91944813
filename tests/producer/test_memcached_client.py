"""A memcached client that knows nothing of Couchbase works through the same port."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from serverkit import SECRET, users_file
from talk import Talk

from upriver.errors import Status
from upriver.producer.bootstrap.users import Role
from upriver.producer.server_settings import ServerSettings
from upriver.testing import TemporaryProducer
from upriver.wire import kv_messages as kv

bmemcached = pytest.importorskip(
    "bmemcached", reason="the python-binary-memcached package is not installed"
)


@pytest.fixture(scope="module")
def producer() -> Iterator[TemporaryProducer]:
    with TemporaryProducer(vbuckets=4) as producer:
        yield producer


def address(producer: TemporaryProducer) -> tuple[str]:
    return (f"{producer.host}:{producer.port}",)


@pytest.fixture
def client(producer: TemporaryProducer) -> Iterator[Any]:
    client = bmemcached.Client(address(producer))
    yield client
    client.disconnect_all()


def test_storing_and_reading(client: Any) -> None:
    assert client.set("text", "some text")
    assert client.get("text") == "some text"
    assert not client.add("text", "other text")
    assert not client.replace("absent", "text")
    assert client.replace("text", "third text")
    assert client.get("text") == "third text"
    assert client.get("absent") is None


def test_many_at_once_are_pipelined_quietly(client: Any) -> None:
    items = {f"many{n}": b"v%d" % n for n in range(500)}
    assert client.set_multi(items) == []
    assert client.get_multi([*items, "absent"]) == items
    assert client.delete_multi(list(items))
    assert client.get_multi(list(items)) == {}


def test_deleting(client: Any) -> None:
    client.set("short-lived", "x")
    assert client.delete("short-lived")
    assert client.get("short-lived") is None


def test_counting(client: Any) -> None:
    assert client.incr("count", 5, default=10) == 10
    assert client.incr("count", 5) == 15
    assert client.decr("count", 1) == 14
    assert client.decr("count", 100) == 0


def test_comparing_and_swapping(client: Any) -> None:
    client.set("swapped", "old")
    value, cas = client.gets("swapped")
    assert value == "old"
    assert client.cas("swapped", "new", cas)
    assert not client.cas("swapped", "newer", cas)
    assert client.get("swapped") == "new"


def test_statistics(producer: TemporaryProducer, client: Any) -> None:
    client.set("counted", "x")
    (statistics,) = client.stats().values()
    assert int(statistics["curr_items"]) == producer.bucket.stats().items


def test_flushing_empties_the_bucket(producer: TemporaryProducer, client: Any) -> None:
    client.set("flushed", "x")
    assert client.flush_all()
    assert client.get("flushed") is None
    assert producer.bucket.stats().items == 0


@pytest.mark.parametrize(
    ("host", "allowed"), [("127.0.0.1", False), ("0.0.0.0", True), ("0.0.0.0", False)]
)
def test_passwords_without_tls_are_taken_on_loopback_or_by_a_setting(
    tmp_path: Path, host: str, allowed: bool
) -> None:
    users = users_file(tmp_path, {"old": (Role.READ_DATA, Role.WRITE_DATA)})
    settings = ServerSettings(users=users, host=host, plain_without_tls=allowed)
    with TemporaryProducer(vbuckets=1, settings=settings) as producer:
        client = bmemcached.Client(f"127.0.0.1:{producer.port}", "old", SECRET)
        if allowed or host == "127.0.0.1":
            assert client.set("a", "text")
            assert client.get("a") == "text"
        else:
            with pytest.raises(bmemcached.exceptions.AuthenticationNotSupported):
                client.set("a", "text")
        client.disconnect_all()


def test_a_server_without_users_takes_any_password() -> None:
    with TemporaryProducer(vbuckets=1) as producer:
        for password in ("anything", ""):
            with Talk(producer) as talk:
                payload = f"\0anybody\0{password}".encode()
                told = talk.ask(kv.SaslAuth(mechanism="PLAIN", payload=payload))
                assert told.status is Status.SUCCESS
        client = bmemcached.Client(address(producer), "anybody", "anything")
        assert client.set("a", "text")
        client.disconnect_all()
