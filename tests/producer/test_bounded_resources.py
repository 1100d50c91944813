"""Memory, descriptors and names: what clients together cannot use up, and no name can forge."""

from __future__ import annotations

import json
import logging
import os
import resource
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from serverkit import SECRET, ServerProcess, users_file
from talk import PATIENCE, Talk
from waiting import until

from upriver.errors import ConfigError, Status, StoreRefusal
from upriver.escaping import escaped
from upriver.model import VBucketState
from upriver.producer.bootstrap.users import Role
from upriver.producer.connections import file_descriptors, memory_limit
from upriver.producer.connections.file_descriptors import RESERVE, room_for_connections
from upriver.producer.connections.memory_limit import SMALL
from upriver.producer.connections.send_buffer import _without_value
from upriver.producer.server_settings import ServerSettings
from upriver.store import Bucket, BucketSettings, DeleteDocument, SetDocument, Store
from upriver.testing import TemporaryProducer
from upriver.testing.producer_base import settings_for_tests
from upriver.wire import kv_messages as kv
from upriver.wire import messages as m
from upriver.wire.dialects import Dcp
from upriver.wire.protocol_enums import Command, OpenFlag

pytestmark = pytest.mark.story

MIB = 1024 * 1024
BODY = 8 * MIB


def header(body: int, opaque: int = 0) -> bytes:
    """The beginning of a set of that many bytes."""
    return struct.pack(">BBHBBHIIQ", 0x80, 0x01, 3, 8, 0, 0, body, opaque, 0)


def plain(user: str, password: str = SECRET) -> kv.SaslAuth:
    return kv.SaslAuth(mechanism="PLAIN", payload=f"\0{user}\0{password}".encode())


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[TemporaryProducer]:
    users = users_file(tmp_path, {"reader": (Role.READ_DATA, Role.READ_STREAM, Role.WRITE_DATA)})
    settings = ServerSettings(users=users, plain_without_tls=True, authentication_delay=0.01)
    with TemporaryProducer(vbuckets=1, settings=settings) as producer:
        producer.bucket.write(SetDocument(0, b"\0known", b"{}"))
        yield producer


# ---- memory ------------------------------------------------------------------------------


def test_a_stranger_sends_small_packets_only(
    guarded: TemporaryProducer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "upriver.producer")
    with Talk(guarded) as talk:
        talk.socket.sendall(header(SMALL + 1))
        assert talk.is_closed()
    assert f"more than the limit of {SMALL}" in caplog.text


def test_a_large_packet_may_follow_in_the_same_breath_as_the_password(
    guarded: TemporaryProducer,
) -> None:
    with Talk(guarded) as talk:
        large = kv.Set(key=b"large", value=b"x" * (2 * SMALL), opaque=3)
        talk.send(plain("reader"), kv.SelectBucket(bucket="default"), large)
        assert [talk.read().status for _ in range(3)] == [Status.SUCCESS] * 3


def test_half_packets_of_strangers_hold_little(guarded: TemporaryProducer) -> None:
    held = guarded.producer.server.buffers
    with ExitStack() as stack:
        for _ in range(80):
            talk = stack.enter_context(Talk(guarded))
            talk.socket.sendall(header(SMALL) + b"x" * (SMALL - 1))
        until(lambda: held.total >= 80 * (SMALL - 1))
        assert held.peak <= 80 * 2 * SMALL
    until(lambda: held.total == 0)


def test_half_packets_of_clients_are_bounded_together_and_freed() -> None:
    settings = ServerSettings(buffer_memory=4 * BODY, max_body=BODY)
    with TemporaryProducer(vbuckets=1, settings=settings) as producer:
        held = producer.producer.server.buffers
        with ExitStack() as stack:
            talks = [stack.enter_context(Talk(producer)) for _ in range(12)]
            for talk in talks:
                talk.socket.settimeout(0.2)
                with suppress(TimeoutError):  # from most of them it is not read
                    talk.socket.sendall(header(BODY) + b"x" * (BODY // 2))
            until(lambda: held.total >= 3 * BODY and bool(held._waiting))
            assert 3 * BODY <= held.total <= held.limit + 12 * 2 * SMALL
            with Talk(producer) as other:  # small requests never wait for room
                assert other.ask(kv.Noop()).status is Status.SUCCESS
        until(lambda: held.total == 0)


def test_who_waits_for_room_gets_it_when_another_is_done() -> None:
    settings = ServerSettings(buffer_memory=BODY + MIB, max_body=BODY)
    with (
        TemporaryProducer(vbuckets=1, settings=settings) as producer,
        Talk(producer) as first,
        Talk(producer) as second,
    ):
        held = producer.producer.server.buffers
        body = BODY - MIB
        first.socket.sendall(header(body, 1) + bytes(8) + b"one")
        until(lambda: held.total >= body)
        second.socket.sendall(header(body, 2) + bytes(8) + b"two")
        until(lambda: bool(held._waiting))
        first.socket.sendall(b"1" * (body - 11))
        assert first.read().status is Status.SUCCESS
        second.socket.sendall(b"2" * (body - 11))
        assert second.read().status is Status.SUCCESS
        assert producer.bucket.get(0, b"\0two").value == b"2" * (body - 11)


def test_who_holds_room_and_does_not_use_it_has_to_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_limit, "_PATIENCE", 0.3)
    settings = ServerSettings(buffer_memory=BODY + MIB, max_body=BODY)
    with (
        TemporaryProducer(vbuckets=1, settings=settings) as producer,
        Talk(producer) as holding,
        Talk(producer) as second,
    ):
        holding.socket.sendall(header(BODY - MIB))
        until(lambda: producer.producer.server.buffers.total >= BODY - MIB)
        body = BODY - 2 * MIB
        second.socket.sendall(header(body) + bytes(8) + b"two" + b"2" * (body - 11))
        assert second.read().status is Status.SUCCESS
        assert holding.is_closed()


def test_memory_goes_back_to_the_system_when_half_packets_are_gone(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "data", vbuckets=1) as server:
        with Talk(server) as talk:
            assert talk.ask(kv.Noop()).status is Status.SUCCESS
        before = server.resident()
        with ExitStack() as stack:
            for _ in range(10):
                talk = stack.enter_context(Talk(server))
                talk.socket.sendall(header(20 * MIB) + b"x" * (15 * MIB))
            until(lambda: server.resident() - before >= 120 * MIB)
        until(lambda: server.resident() - before < 40 * MIB)


def test_a_setting_that_no_packet_would_fit_is_refused() -> None:
    with pytest.raises(ConfigError, match="buffer_memory"):
        ServerSettings(buffer_memory=MIB)


def test_streams_with_a_tiny_window_hold_little() -> None:
    with TemporaryProducer(vbuckets=16) as producer:
        for vbucket in range(16):
            for number in range(40):
                producer.bucket.submit((SetDocument(vbucket, b"\0k%d" % number, b"x" * 10_000),))
        producer.bucket.write(SetDocument(0, b"\0last", b"{}"))
        with Talk(producer) as talk:
            talk.open("narrow", OpenFlag.PRODUCER)
            talk.control("connection_buffer_size", "1")
            for vbucket in range(16):
                talk.send(
                    m.StreamRequest(vbucket=vbucket, start=0, end=2**64 - 1, opaque=vbucket + 1)
                )
            got = 0
            while got < 64:  # one packet at a time, so every stream has had several turns
                packet = talk.packet()
                if packet[0] == 0x80:
                    got += 1
                    talk.send(m.BufferAck(size=len(packet)))
            (connection,) = producer.producer.server.connections
            pending = [len(stream._pending) for stream in connection.streams.streams.values()]
            assert sum(pending) < 16 * 32 * 1024


def test_a_large_document_is_given_to_the_socket_as_its_client_reads() -> None:
    """Beside the document itself, a client that does not read costs what it may always cost."""
    large = b"x" * BODY
    with TemporaryProducer(vbuckets=1) as producer, Talk(producer) as talk:
        producer.bucket.write(SetDocument(0, b"\0large", large))
        talk.send(*[kv.Get(key=b"large", opaque=number) for number in range(3)], kv.Noop(opaque=9))
        held = producer.producer.server.buffers
        until(lambda: held.total > BODY // 2)
        (connection,) = producer.producer.server.connections
        assert connection._transport is not None
        limit = producer.producer.server.settings.connection_memory
        assert connection._transport.get_write_buffer_size() <= limit + 256 * 1024
        assert held.total <= BODY + MIB
        for number in range(3):
            answer = talk.read()
            assert (answer.opaque, answer.value) == (number, large)
        assert talk.read().opaque == 9
        until(lambda: held.total == 0)


@given(
    st.binary(min_size=0, max_size=40),
    st.integers(0, 2**32 - 1),
    st.integers(0, 2**64 - 1),
    st.binary(max_size=250),
)
def test_a_response_without_its_value_is_the_beginning_of_the_whole(
    value: bytes, opaque: int, cas: int, key: bytes
) -> None:
    response = kv.DocumentResponse(
        command=Command.GETK, opaque=opaque, cas=cas, flags=opaque, key=key, value=value
    )
    for dialect in (Dcp(), Dcp(collections=True)):
        assert _without_value(dialect, response) + value == dialect.encode(response)


def test_what_was_sent_is_not_held_against_an_idle_client() -> None:
    """Nothing tells when the last bytes have left, so that is found out without a request."""
    with TemporaryProducer(vbuckets=1) as producer, Talk(producer) as talk:
        producer.bucket.write(SetDocument(0, b"\0known", b"x" * (200 * 1024)))
        held = producer.producer.server.buffers
        talk.send(*[kv.Get(key=b"known")] * 100)
        until(lambda: held.total > MIB)
        for _ in range(100):
            talk.read()
        until(lambda: held.total == 0)


def test_streams_do_not_come_between_the_pieces_of_a_document() -> None:
    with TemporaryProducer(vbuckets=1) as producer, Talk(producer) as talk:
        producer.bucket.write(SetDocument(0, b"\0large", b"x" * BODY))
        talk.open("both", OpenFlag.PRODUCER)
        talk.send(m.StreamRequest(vbucket=0, start=0, end=2**64 - 1, opaque=1))
        talk.read_until(m.Mutation)
        talk.send(kv.Get(key=b"large", opaque=2))
        for number in range(50):
            producer.bucket.write(SetDocument(0, b"\0small%d" % number, b"{}"))
        seen = talk.read_until(lambda x: isinstance(x, m.Mutation) and x.key == b"small49")
        (document,) = [x for x in seen if isinstance(x, kv.DocumentResponse)]
        assert document.value == b"x" * BODY


# ---- manifests ---------------------------------------------------------------------------


def manifest(count: int) -> bytes:
    collections = [{"name": f"c{n}", "uid": f"{n:x}"} for n in range(8, 8 + count)]
    scope = {"name": "_default", "uid": "0", "collections": collections}
    return json.dumps({"uid": "1000", "scopes": [scope]}).encode()


def test_a_manifest_of_half_a_million_collections_is_refused_with_a_reason() -> None:
    with TemporaryProducer(vbuckets=1) as producer, Talk(producer) as talk:
        answer = talk.ask(kv.SetManifest(manifest=manifest(500_000)))
        assert answer.status is Status.TOO_BIG
        assert b"up to 1200 collections" in answer.value
        assert producer.bucket.manifest.uid == 0
        assert talk.ask(kv.SetManifest(manifest=manifest(1200))).status is Status.SUCCESS
        assert len(producer.bucket.manifest.collections) == 1200


def test_a_bucket_has_as_many_collections_and_scopes_as_its_settings_allow(tmp_path: Path) -> None:
    settings = BucketSettings(vbuckets=1, max_collections=2, max_scopes=2)
    with Store(tmp_path) as store:
        bucket = store.create_bucket("default", settings)
        first = bucket.create_collection(0, "first")
        with pytest.raises(StoreRefusal, match="up to 2 collections"):
            bucket.create_collection(0, "second")
        bucket.create_scope("another")
        with pytest.raises(StoreRefusal, match="up to 2 scopes"):
            bucket.create_scope("third")
        bucket.drop_collection(first.id)
        bucket.create_collection(0, "second")


def test_a_manifest_in_disguise_is_counted_all_the_same() -> None:
    disguised = manifest(1300).replace(b'"uid"', b'"\\u0075id"')
    with TemporaryProducer(vbuckets=1) as producer, Talk(producer) as talk:
        assert talk.ask(kv.SetManifest(manifest=disguised)).status is Status.TOO_BIG


# ---- statistics are counters -------------------------------------------------------------


def test_the_counts_of_a_bucket_are_those_of_its_vbuckets(tmp_path: Path) -> None:
    def check(bucket: Bucket) -> None:
        stats = bucket.stats()
        parts = [bucket.vbucket_stats(vbucket) for vbucket in range(4)]
        assert stats.items == sum(part.items for part in parts)
        assert stats.tombstones == sum(part.tombstones for part in parts)
        assert stats.history_bytes == sum(part.history_bytes for part in parts)
        for state in VBucketState:
            assert stats.states.get(state, 0) == sum(part.state is state for part in parts)

    with Store(tmp_path) as store:
        bucket = store.create_bucket("default", settings_for_tests(4))
        for number in range(40):
            bucket.write(SetDocument(number % 4, b"\0k%d" % (number % 20), b"{}"))
        check(bucket)
        bucket.write(DeleteDocument(0, b"\0k0"))
        bucket.set_state(3, VBucketState.DEAD)
        check(bucket)
        bucket.rollback(1, 2)
        bucket.compact()
        check(bucket)
        bucket.flush()
        check(bucket)
        bucket.write(SetDocument(0, b"\0again", b"{}"))
    with Store(tmp_path) as store:
        check(store.bucket("default"))


# ---- descriptors -------------------------------------------------------------------------


def test_the_limit_of_open_files_is_raised_and_leaves_a_reserve(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    limits = {"now": (256, 4096)}
    monkeypatch.setattr(resource, "getrlimit", lambda what: limits["now"])
    monkeypatch.setattr(resource, "setrlimit", lambda what, both: limits.update(now=both))
    assert room_for_connections(1000) == 1000
    assert limits["now"] == (1000 + RESERVE, 4096)
    assert room_for_connections(5000) == 4096 - RESERVE
    limits["now"] = (256, 256)
    assert room_for_connections(5000) == 128
    assert file_descriptors.RESERVE > 0


def test_a_server_with_few_descriptors_refuses_connections_and_goes_on(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "upriver", "serve", "--port", "0", "--vbuckets", "1"]
    process = subprocess.Popen(
        ["sh", "-c", 'ulimit -n 200; exec "$@"', "sh", *command, "--data", str(tmp_path / "data")],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        port = int(process.stdout.readline().split()[1].split("/")[2].rpartition(":")[2])
        with ExitStack() as stack:
            sockets = [
                stack.enter_context(socket.create_connection(("127.0.0.1", port), PATIENCE))
                for _ in range(150)
            ]
            noop = struct.pack(">BBHBBHIIQ", 0x80, 0x0A, 0, 0, 0, 0, 0, 7, 0)
            served = 0
            for one in sockets:
                try:
                    one.sendall(noop)
                    served += bool(one.recv(24))
                except ConnectionError:
                    pass
            assert served == 100
            written = kv.Set(key=b"known", value=b"{}")
            sockets[0].sendall(Dcp().encode(written))
            assert sockets[0].recv(24)[6:8] == b"\0\0"
    finally:
        process.terminate()
        log = process.communicate()[1]
    assert "up to 100 connections instead of 5000" in log
    assert "Traceback" not in log
    assert log.count("refused") <= 10  # a line a second, not one for each


def test_without_descriptors_accepting_waits_and_then_goes_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    with TemporaryProducer(vbuckets=1) as producer:
        listener = producer.producer.server._listener
        assert listener is not None
        client = socket.socket()
        client.settimeout(PATIENCE)
        raised = resource.getrlimit(resource.RLIMIT_NOFILE)
        highest = os.dup(0)
        os.close(highest)  # the lowest free number: no other can be had below the limit
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (highest, hard))
            client.connect((producer.host, producer.port))
            until(lambda: listener.exhausted > 0)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, raised)
        client.sendall(struct.pack(">BBHBBHIIQ", 0x80, 0x0A, 0, 0, 0, 0, 0, 7, 0))
        assert len(client.recv(24)) == 24
        client.close()
        told = [record for record in caplog.records if "cannot be accepted" in record.message]
        assert len(told) == listener.exhausted


# ---- who is signed in --------------------------------------------------------------------


def test_a_failed_authentication_leaves_nobody_signed_in(guarded: TemporaryProducer) -> None:
    with Talk(guarded) as talk:
        assert talk.ask(plain("reader")).status is Status.SUCCESS
        assert talk.ask(kv.SelectBucket(bucket="default")).status is Status.SUCCESS
        assert talk.ask(kv.Get(key=b"known")).status is Status.SUCCESS
        assert talk.ask(plain("reader", "wrong")).status is Status.AUTH_ERROR
        assert talk.ask(kv.Get(key=b"known")).status is Status.NO_ACCESS
        assert talk.ask(kv.Set(key=b"known")).status is Status.NO_ACCESS
        assert talk.ask(kv.SelectBucket(bucket="default")).status is Status.NO_ACCESS
        talk.socket.sendall(header(SMALL + 1))
        assert talk.is_closed()


def test_a_connection_with_streams_keeps_its_user(guarded: TemporaryProducer) -> None:
    """As on Couchbase Server: it cannot authenticate again, rightly or wrongly."""
    with Talk(guarded) as talk:
        assert talk.ask(plain("reader")).status is Status.SUCCESS
        assert talk.ask(kv.SelectBucket(bucket="default")).status is Status.SUCCESS
        assert talk.open("stream").status is Status.SUCCESS
        for password in ("wrong", "reader"):
            assert talk.ask(plain("reader", password)).status is Status.NOT_SUPPORTED
        assert talk.ask(kv.Noop()).status is Status.SUCCESS


# ---- names in logs -----------------------------------------------------------------------


def test_a_name_cannot_forge_a_log_line(
    guarded: TemporaryProducer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "upriver")
    forged = "agent\n2026 INFO all is well \x1b[31m‮\0"
    with Talk(guarded) as talk:
        talk.ask(kv.Hello(agent=forged))
        talk.ask(plain(forged.replace("\0", ""), "wrong"))
    lines = [record.getMessage() for record in caplog.records]
    assert any("agent\\n2026" in line for line in lines)
    assert not [line for line in lines if not line.isprintable()]


def test_a_long_name_is_cut() -> None:
    assert escaped("x" * 1000, 10) == "x" * 10 + "... (1000 characters)"
    assert escaped("caf\u00e9\t") == "café\\t"
