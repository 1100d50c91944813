"""Which management port collections are created at: the cluster map's, for the network in use."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterator
from typing import Any

import pytest
from certificates import Certificates, write_certificates
from peer import Peer, cluster

from upriver.consumer.transport.access import Access
from upriver.consumer.transport.collection_manager import CollectionManager
from upriver.consumer.transport.connection_string import Address, Source
from upriver.errors import ConfigError, ConnectionFailed
from upriver.producer.server_settings import ServerSettings
from upriver.testing import TemporaryProducer

#: A port at which nothing answers: a manager that uses it fails.
NOBODY = 1


@pytest.fixture
def producer() -> Iterator[TemporaryProducer]:
    with TemporaryProducer(vbuckets=2) as running:
        yield running


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return write_certificates(tmp_path_factory.mktemp("certificates"))


def gone() -> Address:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return Address("127.0.0.1", free.getsockname()[1])


def inner(outer_ports: dict[str, int], *, this: bool = False, **services: int) -> dict[str, Any]:
    """A node of an inner network, with the ports by which outsiders reach it."""
    outer = {"hostname": "127.0.0.1", "ports": outer_ports}
    return {
        "hostname": "inner.invalid",
        "services": services,
        "alternateAddresses": {"external": outer},
        **({"thisNode": True} if this else {}),
    }


def management_port(producer: TemporaryProducer) -> int:
    port = producer.producer.server.http_port
    assert port is not None
    return port


def create(source: Source, producer: TemporaryProducer, access: Access | None = None) -> None:
    CollectionManager(source, access, timeout=5).create_collection("_default", "fruit")
    assert [c.name for c in producer.bucket.manifest.collections if c.name == "fruit"] == ["fruit"]


def test_the_next_host_names_the_port_if_the_first_is_gone(producer: TemporaryProducer) -> None:
    here = Address(producer.host, producer.port)
    create(Source((gone(), here), "default"), producer)


def test_a_node_of_the_last_map_names_the_port_if_no_host_answers(
    producer: TemporaryProducer,
) -> None:
    source = Source((gone(),), "default").knowing([Address(producer.host, producer.port)])
    create(source, producer)


def test_outsiders_use_the_external_port_of_the_only_node(producer: TemporaryProducer) -> None:
    port = management_port(producer)
    with Peer() as peer:
        node = inner({"kv": peer.port, "mgmt": port}, this=True, kv=11210, mgmt=NOBODY)
        peer.map = {**cluster([peer], peer, [0]), "nodesExt": [node]}
        create(Source((gone(), peer.address), "default"), producer)


def test_outsiders_use_the_external_port_of_the_node_that_answers(
    producer: TemporaryProducer,
) -> None:
    port = management_port(producer)
    with Peer() as peer:
        peer.map = cluster([peer, peer], peer, [0, 1])
        peer.map["nodesExt"] = [
            inner({"kv": NOBODY, "mgmt": NOBODY}, kv=11210, mgmt=NOBODY),
            inner({"kv": peer.port, "mgmt": port}, this=True, kv=11211, mgmt=NOBODY),
        ]
        create(Source((peer.address,), "default"), producer)


def test_another_node_is_used_if_the_one_that_answers_has_no_port_for_outsiders(
    producer: TemporaryProducer,
) -> None:
    port = management_port(producer)
    with Peer() as peer:
        peer.map = cluster([peer, peer], peer, [0, 1])
        peer.map["nodesExt"] = [
            inner({"kv": peer.port}, this=True, kv=11210, mgmt=NOBODY),
            inner({"kv": NOBODY, "mgmt": port}, kv=11211, mgmt=NOBODY),
        ]
        create(Source((peer.address,), "default"), producer)


def test_over_tls_the_port_for_tls_is_used(files: Certificates) -> None:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(files.certificate, files.key)
    settings = ServerSettings(certificate=files.certificate, key=files.key)
    access = Access(authority=files.authority)
    with (
        TemporaryProducer(vbuckets=2, settings=settings) as producer,
        Peer(tls=context) as peer,
    ):
        port = management_port(producer)
        ports = {"kvSSL": peer.port, "mgmt": NOBODY, "mgmtSSL": port}
        node = inner(ports, this=True, kvSSL=11207, mgmtSSL=NOBODY)
        peer.map = {**cluster([peer], peer, [0]), "nodesExt": [node]}
        create(Source((gone(), peer.address), "default", tls=True), producer, access)


def test_a_cluster_without_a_management_port() -> None:
    with Peer() as peer:
        peer.map = cluster([peer], peer, [0])
        with pytest.raises(ConfigError, match=rf"{peer.address} names no management port \(mgmt\)"):
            CollectionManager(Source((peer.address,), "default"))


def test_if_no_node_answers_all_are_named() -> None:
    first, second = gone(), gone()
    with pytest.raises(ConnectionFailed, match=f"before it, {first} cannot be reached") as caught:
        CollectionManager(Source((first, second), "default"))
    assert caught.value.where == str(second)


def names(producer: TemporaryProducer) -> list[str]:
    return [collection.name for collection in producer.bucket.manifest.collections]


def test_a_collection_is_ensured_with_its_scope_as_often_as_asked(
    producer: TemporaryProducer,
) -> None:
    manager = CollectionManager(Source((Address(producer.host, producer.port),), "default"))
    for _ in range(2):
        manager.ensure_collection("shop.orders")
    assert names(producer).count("orders") == 1


def test_a_scope_that_is_known_is_not_created(producer: TemporaryProducer) -> None:
    manager = CollectionManager(Source((Address(producer.host, producer.port),), "default"))
    with pytest.raises(ConfigError, match=r"creating the collection shop\.orders was refused"):
        manager.ensure_collection("shop.orders", known_scopes=["shop"])
    manager.create_scope("shop")
    manager.ensure_collection("shop.orders", known_scopes=["shop"])
    assert "orders" in names(producer)
