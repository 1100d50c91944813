"""A blocking connection against real servers, and against what is none."""

from __future__ import annotations

import http.server
import json
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from certificates import Certificates, write_certificates
from hypothesis import given
from hypothesis import strategies as st
from peer import Peer, Said
from serverkit import SECRET, users_file

from upriver.consumer.topology.cluster_map import ClusterMap
from upriver.consumer.topology.collection_names import Collections
from upriver.consumer.topology.questions import cluster_map
from upriver.consumer.transport.access import Access
from upriver.consumer.transport.blocking_connection import BlockingConnection
from upriver.consumer.transport.connection_string import Address, Source
from upriver.errors import (
    AuthenticationFailed,
    BucketNotFound,
    ConfigError,
    ConnectionFailed,
    NotADcpServer,
    Status,
    StatusError,
)
from upriver.producer.bootstrap.users import Role
from upriver.producer.server_settings import ServerSettings
from upriver.testing import TemporaryProducer
from upriver.wire import kv_messages as kv
from upriver.wire.dialects import Dcp
from upriver.wire.fast_stat_response import quick_statistic
from upriver.wire.limits import MAX_KEY
from upriver.wire.messages import PlainResponse, Request
from upriver.wire.protocol_enums import Feature

NOBODY = Access()
#: Seconds after which a test gives up a peer that says nothing, as it must.
SHORT = 0.2


def source_of(server: TemporaryProducer, *, bucket: str = "default", tls: bool = False) -> Source:
    return Source((Address(server.host, server.port),), bucket, tls)


def at(port: int, *, tls: bool = False) -> Source:
    return Source((Address("127.0.0.1", port),), "default", tls)


@pytest.fixture(scope="module")
def producer() -> Iterator[TemporaryProducer]:
    with TemporaryProducer(vbuckets=4) as running:
        yield running


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return write_certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def guarded(
    tmp_path_factory: pytest.TempPathFactory, files: Certificates
) -> Iterator[TemporaryProducer]:
    users = users_file(tmp_path_factory.mktemp("users"), {"ann": (Role.WRITE_DATA,)})
    settings = ServerSettings(
        users=users, authentication_delay=0, certificate=files.certificate, key=files.key
    )
    with TemporaryProducer(vbuckets=4, settings=settings) as running:
        yield running


def link_to(source: Source, access: Access = NOBODY, **options: Any) -> BlockingConnection:
    return BlockingConnection(source.hosts[0], source, access, **options)


def map_of(link: BlockingConnection) -> bytes:
    found = link.run(cluster_map())
    assert isinstance(found, bytes)
    return found


def failure(source: Source, access: Access = NOBODY, timeout: float = 30.0) -> ConnectionFailed:
    with pytest.raises(ConnectionFailed) as caught:
        link_to(source, access, timeout=timeout)
    assert caught.value.where == str(source.hosts[0])
    return caught.value


# ---- it goes well ------------------------------------------------------------------------


def test_a_link_is_in_its_bucket_and_knows_where_everything_is(producer: TemporaryProducer) -> None:
    source = source_of(producer)
    with link_to(source, NOBODY) as link:
        assert Feature.JSON in link.features
        assert link.ask(kv.Set(key=b"k", value=b"{}")).status is Status.SUCCESS
        cluster = ClusterMap.parse(map_of(link), reached=link.address, tls=False)
        assert cluster.bucket == "default"
        assert len(cluster.vbuckets) == 4
        assert cluster.owner(3) == cluster.sender
        assert cluster.sender is not None
        assert cluster.sender.address == source.hosts[0]


def test_collections_are_spoken_when_they_are_agreed_on(producer: TemporaryProducer) -> None:
    features = (Feature.SELECT_BUCKET, Feature.COLLECTIONS)
    with link_to(source_of(producer), NOBODY, features=features) as link:
        written = link.ask(kv.Set(key=b"collected", value=b"v", collection=0))
        assert written.status is Status.SUCCESS
        manifest = link.ask(kv.GetManifest())
        assert isinstance(manifest, PlainResponse)
        assert Collections.parse(manifest.value).id_of("_default._default") == 0


def test_a_user_over_tls(guarded: TemporaryProducer, files: Certificates) -> None:
    access = Access(user="ann", password=SECRET, authority=files.authority)
    source = source_of(guarded, tls=True)
    with link_to(source, access) as link:
        assert link.ask(kv.Set(key=b"k", value=b"v")).status is Status.SUCCESS
        cluster = ClusterMap.parse(map_of(link), reached=link.address, tls=True)
        assert [node.address for node in cluster.nodes] == list(source.hosts)
    anybody = Access(user="ann", password=SECRET, insecure=True)
    link_to(source, anybody).close()


class Chatty(Peer):
    """Answers a question that nobody asked before each that somebody did."""

    def _packet(self, dialect: Dcp, request: Request) -> bytes:
        stray = PlainResponse(command=0xEE, opaque=request.opaque ^ 1, status=Status.BUSY)
        return dialect.encode(stray) + super()._packet(dialect, request)


def test_answers_to_other_questions_are_passed_over() -> None:
    with Chatty() as peer, link_to(peer.source, NOBODY) as link:
        assert link.ask(kv.Noop()).status is Status.SUCCESS
        assert json.loads(map_of(link)) == {}


def test_a_server_that_goes_away() -> None:
    with TemporaryProducer(vbuckets=4) as producer:
        link = link_to(source_of(producer), NOBODY)
    with link, pytest.raises(ConnectionFailed, match="was lost: "):
        link.ask(kv.Noop())


# ---- it does not -------------------------------------------------------------------------


@pytest.mark.parametrize(("user", "password"), [("ann", "wrong"), ("bob", SECRET)])
def test_a_user_who_is_not_believed(
    guarded: TemporaryProducer, files: Certificates, user: str, password: str
) -> None:
    access = Access(user=user, password=password, authority=files.authority)
    error = failure(source_of(guarded, tls=True), access)
    assert isinstance(error, AuthenticationFailed)
    assert str(error).startswith(f"authentication failed for user '{user}' at 127.0.0.1:")
    assert password not in str(error)


def test_a_bucket_that_is_not_there(producer: TemporaryProducer) -> None:
    error = failure(source_of(producer, bucket="other"))
    assert isinstance(error, BucketNotFound)
    assert "has no bucket other" in str(error)


def test_a_bucket_that_wants_a_user(guarded: TemporaryProducer, files: Certificates) -> None:
    error = failure(source_of(guarded, tls=True), Access(authority=files.authority))
    assert isinstance(error, BucketNotFound)
    assert error.hint == "give a user and a password"


def test_a_certificate_of_somebody_else(guarded: TemporaryProducer) -> None:
    error = failure(source_of(guarded, tls=True))
    assert "unable to get local issuer certificate" in error.problem
    assert "is its authority known here" in error.hint


def test_tls_at_a_plain_port(producer: TemporaryProducer) -> None:
    error = failure(source_of(producer, tls=True))
    assert str(error) == (
        f"127.0.0.1:{producer.port} does not speak TLS; use couchbase:// for plain ports"
    )


def test_a_plain_connection_to_a_tls_port(guarded: TemporaryProducer) -> None:
    assert "couchbases://" in failure(source_of(guarded)).hint


@contextmanager
def speaker(say: Callable[[socket.socket], None]) -> Iterator[int]:
    """The port of a server that does one thing to one connection."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            connection, _ = listener.accept()
            with connection:
                say(connection)
                connection.settimeout(20)
                try:
                    while connection.recv(1 << 16):
                        pass
                except ConnectionError:
                    pass

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield listener.getsockname()[1]
        finally:
            thread.join()


def test_a_tls_server_that_says_why() -> None:
    alert = bytes.fromhex("15 0303 0002 02 46")  # fatal: no version of TLS that I speak
    with speaker(lambda connection: connection.sendall(alert)) as port:
        error = failure(at(port), timeout=20)
    assert isinstance(error, NotADcpServer)
    assert error.hint == "connect with couchbases://"


@pytest.mark.parametrize("tls", [False, True])
def test_a_server_that_says_nothing_is_given_up(tls: bool) -> None:
    with speaker(lambda connection: None) as port:
        error = failure(at(port, tls=tls), timeout=SHORT)
    assert type(error) is ConnectionFailed
    waited_for = "the TLS handshake" if tls else "Hello was not answered"
    assert waited_for in error.problem
    assert f"{SHORT:g} s" in error.problem
    assert "couchbase" in error.hint


def test_a_web_server_is_told_from_a_dcp_server() -> None:
    class Quiet(http.server.BaseHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Quiet) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            error = failure(at(server.server_port), timeout=20)
        finally:
            server.shutdown()
            thread.join()
    assert isinstance(error, NotADcpServer)
    assert "11210" in error.hint


@pytest.mark.parametrize(
    "said",
    [
        b"SSH-2.0-OpenSSH_9.6\r\n",
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
        b"\x05" + bytes(30),
        b"\x81\x1f" + bytes(6) + b"\xff\xff\xff\xff" + bytes(12),
        b"\x81\x1f\x00\x00\x00\x00\x00\x00\x00\x00\x00\x01\x0d\x0a\x0d\x0a" + bytes(9),
    ],
)
def test_other_servers_are_no_dcp_servers(said: bytes) -> None:
    with speaker(lambda connection: connection.sendall(said)) as port:
        assert isinstance(failure(at(port), timeout=20), NotADcpServer)


def test_a_host_that_does_not_exist() -> None:
    error = failure(Source((Address("a..b", 1),), "default"))
    assert "cannot be reached" in error.problem


def test_a_server_without_a_map() -> None:
    context = json.dumps({"error": {"context": "no map yet"}}).encode()

    def answer(request: Request) -> Said:
        if not isinstance(request, kv.GetClusterConfig):
            return None
        return PlainResponse(
            command=0xB5, opaque=request.opaque, status=Status.NOT_FOUND, value=context
        )

    with Peer(answer) as peer, link_to(peer.source, NOBODY) as link:
        with pytest.raises(StatusError) as caught:
            link.run(cluster_map())
        assert "the cluster map was refused with NOT_FOUND: no map yet" in str(caught.value)


# ---- access ------------------------------------------------------------------------------


def test_access_that_makes_no_sense(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"authority.*insecure accepts any certificate"):
        Access(authority=tmp_path, insecure=True)
    with pytest.raises(ConfigError, match="no password for me"):
        Access(user="me")
    with pytest.raises(ConfigError, match="a password, but no user: give user"):
        Access(password="secret")
    with pytest.raises(ConfigError, match="has no CA certificates"):
        Access(authority=tmp_path / "nothing").tls_context()


def test_a_password_is_not_shown() -> None:
    access = Access(user="me", password="secret")
    assert "secret" not in repr(access)
    assert "secret" not in repr(access.credentials())
    assert NOBODY.credentials() is None


# ---- statistics --------------------------------------------------------------------------


@given(
    key=st.binary(max_size=260),
    value=st.binary(max_size=20),
    opaque=st.integers(0, 2**32 - 1),
    changed=st.dictionaries(st.integers(0, 23), st.integers(0, 255), max_size=2),
)
def test_a_statistic_is_read_as_the_dialect_reads_it_or_left_to_it(
    key: bytes, value: bytes, opaque: int, changed: dict[int, int]
) -> None:
    packet = bytearray(struct.pack(">BBHBBHIIQ", 0x81, 0x10, len(key), 0, 0, 0, 0, opaque, 0))
    packet += key + value
    packet[8:12] = (len(key) + len(value)).to_bytes(4)
    for at, byte in changed.items():
        if at not in range(8, 12):  # packets are cut by this length before anybody reads them
            packet[at] = byte
    read = quick_statistic(bytes(packet))
    if read is not None:
        assert read == Dcp(collections=True).decode(bytes(packet))
    elif not changed and key.isascii() and value.isascii():
        assert len(key) > MAX_KEY
