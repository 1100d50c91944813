"""Servers that clients reach at another address than the server's own."""

from __future__ import annotations

import json
import secrets
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner
from couchbase.auth import PasswordAuthenticator
from couchbase.cluster import Cluster
from couchbase.options import ClusterOptions
from serverkit import Certificates
from talk import Talk

from upriver.cli.main import cli
from upriver.consumer.transport.connection_string import Source
from upriver.errors import ConfigError
from upriver.producer.bootstrap.users import DEVELOPMENT_PASSWORD
from upriver.producer.server_context import ServerContext
from upriver.producer.server_settings import ServerSettings
from upriver.store import Store
from upriver.testing import ChaosProxy, TemporaryProducer
from upriver.wire import kv_messages as kv

pytestmark = pytest.mark.story


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store(tmp_path / "store") as store:
        yield store


@pytest.mark.parametrize(
    ("advertise", "host", "port"),
    [
        ("db.example.org", "db.example.org", 11210),
        ("db.example.org:4000", "db.example.org", 4000),
        ("10.0.0.5:1", "10.0.0.5", 1),
        ("[fe80::1]:4000", "fe80::1", 4000),
        ("[fe80::1]", "fe80::1", 11210),
    ],
)
def test_the_map_has_the_advertised_address(
    store: Store, advertise: str, host: str, port: int
) -> None:
    node = ServerContext(store, ServerSettings(advertise=advertise))
    node.listening("127.0.0.1", 11210)
    (entry,) = json.loads(node.config(None) or b"")["nodesExt"]
    assert (entry["hostname"], entry["services"]) == (host, {"kv": port})


def test_the_address_counts_for_tls_too(store: Store, tmp_path: Path) -> None:
    settings = Certificates.made_in(tmp_path).settings(advertise="db:4000")
    node = ServerContext(store, settings)
    node.listening("127.0.0.1", 11207, 8091)
    (entry,) = json.loads(node.config(None) or b"")["nodesExt"]
    assert (entry["hostname"], entry["services"]) == ("db", {"kvSSL": 4000, "mgmtSSL": 8091})


@pytest.mark.parametrize(
    "advertise",
    ["", ":4000", "db:0", "db:70000", "db:port", "fe80::1", "[fe80::1", "me@db", "db/x", "db?x=1"],
)
def test_what_is_no_address_is_refused(advertise: str) -> None:
    with pytest.raises(ConfigError, match="cannot be advertised"):
        ServerSettings(advertise=advertise)


def test_the_command_refuses_what_is_no_address() -> None:
    done = CliRunner().invoke(cli, ["serve", "--port", "0", "--advertise", "db:port"])
    assert isinstance(done.exception, ConfigError)
    assert "cannot be advertised" in str(done.exception)


def test_the_command_tells_clients_what_it_was_told() -> None:
    words = ["-m", "upriver", "serve", "--port", "0", "--vbuckets", "2", "--advertise", "db:4000"]
    with subprocess.Popen([sys.executable, *words], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            listens = Source.parse(process.stdout.readline().split()[1])
            assert (listens.host, listens.port != 4000) == ("127.0.0.1", True)
            with Talk(listens) as talk:
                answer = json.loads(talk.ask(kv.GetClusterConfig()).value)
            assert answer["vBucketServerMap"]["serverList"] == ["db:4000"]
        finally:
            process.kill()


def test_couchbase_clients_go_through_the_proxy_that_is_advertised() -> None:
    with (
        ChaosProxy() as proxy,
        TemporaryProducer(vbuckets=64, advertise=(proxy.host, proxy.port)) as producer,
    ):
        proxy.target = (producer.host, producer.port)
        cluster = Cluster(
            producer.source.removesuffix("/default"),
            ClusterOptions(PasswordAuthenticator("anybody", DEVELOPMENT_PASSWORD)),
        )
        try:
            document = {"text": secrets.token_hex(100_000)}  # it does not compress to nothing
            cluster.bucket("default").default_collection().upsert("key", document)
        finally:
            cluster.close()
        assert proxy.counts.bytes_to_server > 100_000
