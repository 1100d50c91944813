"""What a server lets nobody do: too much, too long, unknown, unseen, or in the clear."""

from __future__ import annotations

import json
import logging
import select
import socket
import ssl
import threading
import time
from base64 import b64encode
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest
from packets import Packets
from serverkit import SECRET, Certificates, users_file
from talk import PATIENCE, Talk
from waiting import until

from upriver.errors import ConfigError, Status
from upriver.model import VBucketState
from upriver.producer.bootstrap.http import HttpServer
from upriver.producer.bootstrap.users import Role
from upriver.producer.connections import deadlines
from upriver.producer.connections.connection import Connection
from upriver.producer.connections.connection_scheduler import TURN_PACKETS
from upriver.producer.server_settings import ServerSettings
from upriver.store import SetDocument
from upriver.testing import TemporaryProducer
from upriver.wire import kv_messages as kv
from upriver.wire import messages as m
from upriver.wire.protocol_enums import Command, OpenFlag

KIB = 1024
#: Everybody whom the guarded server knows, and the one role of each.
PEOPLE = {
    "streamer": (Role.READ_STREAM,),
    "reader": (Role.READ_DATA,),
    "writer": (Role.WRITE_DATA,),
    "admin": (Role.ADMINISTER,),
}


def plain(user: str, password: str = SECRET) -> kv.SaslAuth:
    return kv.SaslAuth(mechanism="PLAIN", payload=f"\0{user}\0{password}".encode())


def signed_in(producer: TemporaryProducer, user: str, bucket: str = "default") -> Talk:
    talk = Talk(producer)
    assert talk.ask(plain(user)).status is Status.SUCCESS
    assert talk.ask(kv.SelectBucket(bucket=bucket)).status is Status.SUCCESS
    return talk


def server_side(producer: TemporaryProducer, talk: Talk) -> Connection:
    """The server's end of a connection."""
    host, port = talk.socket.getsockname()
    (connection,) = (
        x for x in producer.producer.server.connections if x.client.peer == f"{host}:{port}"
    )
    return connection


@pytest.fixture(scope="module")
def users(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return users_file(tmp_path_factory.mktemp("users"), PEOPLE)


@pytest.fixture(scope="module")
def guarded(users: Path) -> Iterator[TemporaryProducer]:
    """A server with users, whose clients may send passwords as they are."""
    settings = ServerSettings(users=users, plain_without_tls=True, authentication_delay=0.01)
    with TemporaryProducer(vbuckets=4, settings=settings) as producer:
        producer.producer.store.create_bucket("secrets", producer.bucket.settings)
        producer.bucket.write(SetDocument(0, b"\0known", b"{}"))
        yield producer


# ---- who gets in -------------------------------------------------------------------------


@pytest.mark.parametrize(
    "request_",
    [
        kv.Get(key=b"known"),
        kv.Set(key=b"known"),
        kv.Stat(),
        kv.GetAllSeqnos(),
        kv.SelectBucket(bucket="default"),
        kv.ListBuckets(),
        kv.GetClusterConfig(),
        m.Open(name="early", flags=OpenFlag.PRODUCER),
        m.StreamRequest(vbucket=0, start=0, end=1),
        m.Control(key="enable_noop", value="true"),
        m.UnknownCommand(opcode=0xEE),
    ],
    ids=lambda request_: type(request_).__name__,
)
def test_nothing_is_answered_before_authentication(
    guarded: TemporaryProducer, request_: m.Request
) -> None:
    with Talk(guarded) as talk:
        answer = talk.ask(request_)
        assert answer.status is Status.NO_ACCESS
        # but a client may find out whom it talks to
        for question in (kv.Noop(), kv.Version(), kv.SaslListMechanisms(), kv.Hello()):
            assert talk.ask(question).status is Status.SUCCESS


READ = [kv.Get(key=b"known"), kv.GetMeta(key=b"known")]
LOOK_INSIDE = [
    kv.SubdocOperation(command=Command.SUBDOC_EXISTS, key=b"known", path=b"nothing"),
    kv.SubdocMultiLookup(key=b"known", paths=(kv.SubdocPath(command=Command.SUBDOC_GET),)),
]
WRITE = [
    kv.Set(key=b"own"),
    kv.Increment(key=b"counter"),
    kv.Touch(key=b"known", expiry=0),
    kv.GetAndTouch(key=b"known", expiry=0),
    kv.Delete(key=b"own"),
    kv.SubdocOperation(command=Command.SUBDOC_DICT_UPSERT, key=b"known", path=b"part", value=b"1"),
]
ADMINISTER = [kv.SetVBucket(vbucket=3, state=VBucketState.DEAD), kv.FlushAll()]
STREAM = [m.Open(name="reader", flags=OpenFlag.PRODUCER)]
ORIENTATION = [kv.GetAllSeqnos(), kv.GetFailoverLog(vbucket=0), kv.GetVBucket(vbucket=0)]
MAY: dict[str, list[Sequence[m.Request]]] = {
    "streamer": [STREAM, ORIENTATION],
    "reader": [READ, LOOK_INSIDE, ORIENTATION],
    "writer": [WRITE, ORIENTATION],
    "admin": [READ, LOOK_INSIDE, WRITE, ADMINISTER, STREAM, ORIENTATION],
}


@pytest.mark.parametrize("user", PEOPLE)
def test_a_role_opens_its_commands_and_no_others(guarded: TemporaryProducer, user: str) -> None:
    allowed = [request for group in MAY[user] for request in group]
    with signed_in(guarded, user) as talk:
        for request in [*READ, *LOOK_INSIDE, *WRITE, *STREAM, *ADMINISTER, *ORIENTATION]:
            answer = talk.ask(request)
            assert (answer.status is not Status.NO_ACCESS) == (request in allowed), request


def test_a_refused_write_changes_nothing(guarded: TemporaryProducer) -> None:
    """A write stands in the middle of others that are gathered for one commit."""
    with signed_in(guarded, "reader") as talk:
        before = guarded.bucket.vbucket_stats(0).high_seqno
        talk.send(*(kv.Set(key=b"k%d" % n, opaque=n) for n in range(10)))
        assert {talk.read().status for _ in range(10)} == {Status.NO_ACCESS}
        assert guarded.bucket.vbucket_stats(0).high_seqno == before


def test_a_bucket_of_others_cannot_be_seen(guarded: TemporaryProducer) -> None:
    with signed_in(guarded, "admin") as talk:  # of the default bucket, not of the server
        assert talk.ask(kv.ListBuckets()).value == b"default"
        there = talk.ask(kv.SelectBucket(bucket="secrets"))
        absent = talk.ask(kv.SelectBucket(bucket="imagined"))
        assert there.status is absent.status is Status.NO_ACCESS
        assert there.value.replace(b"secrets", b"imagined") == absent.value
        # and the refusal leaves the client where it was
        assert talk.ask(kv.GetVBucket(vbucket=0)).status is Status.SUCCESS


def test_a_user_without_a_bucket_works_on_none(tmp_path: Path) -> None:
    users = users_file(tmp_path, {"guest": (Role.READ_DATA,)}, bucket="elsewhere")
    settings = ServerSettings(users=users, plain_without_tls=True)
    with TemporaryProducer(vbuckets=1, settings=settings) as producer, Talk(producer) as talk:
        assert talk.ask(plain("guest")).status is Status.SUCCESS
        assert talk.ask(kv.ListBuckets()).value == b""
        assert talk.ask(kv.Get(key=b"known")).status is Status.NO_BUCKET


def test_another_user_does_not_keep_the_rights_of_the_one_before(
    guarded: TemporaryProducer,
) -> None:
    with signed_in(guarded, "writer") as talk:
        assert talk.ask(kv.Set(key=b"mine")).status is Status.SUCCESS
        assert talk.ask(plain("reader")).status is Status.SUCCESS
        assert talk.ask(kv.Set(key=b"mine")).status is Status.NO_ACCESS


def test_a_failed_authentication_takes_a_while(users: Path) -> None:
    """The answer waits, and so does everything behind it; other connections do not."""
    settings = ServerSettings(users=users, plain_without_tls=True, authentication_delay=0.2)
    with (
        TemporaryProducer(vbuckets=1, settings=settings) as producer,
        Talk(producer) as guessing,
        Talk(producer) as other,
    ):
        begun = time.monotonic()
        guesses = [plain("reader", f"guess {n}") for n in range(3)]
        guessing.send(*(replace(guess, opaque=n) for n, guess in enumerate(guesses)))
        assert other.ask(plain("reader")).status is Status.SUCCESS
        for number in range(3):
            answer = guessing.read()
            assert (answer.opaque, answer.status) == (number, Status.AUTH_ERROR)
        assert time.monotonic() - begun >= 3 * settings.authentication_delay


def test_who_does_not_say_who_it_is_must_go(users: Path) -> None:
    settings = ServerSettings(users=users, plain_without_tls=True, authentication_time=1)
    with (
        TemporaryProducer(vbuckets=1, settings=settings) as producer,
        signed_in(producer, "reader") as known,
        Talk(producer) as silent,
        Talk(producer) as chatty,
        Talk(producer) as half,
    ):
        half.socket.sendall(b"\x80\x0b\0\0")
        assert chatty.ask(kv.Version()).status is Status.SUCCESS
        for stranger in (silent, chatty, half):
            assert stranger.is_closed()
        until(lambda: len(producer.producer.server.connections) == 1)
        assert known.ask(kv.Noop()).status is Status.SUCCESS


def test_where_nobody_must_say_who_it_is_there_is_no_hurry() -> None:
    settings = ServerSettings(authentication_time=0)
    with TemporaryProducer(vbuckets=1, settings=settings) as producer, Talk(producer) as talk:
        talk.open()
        talk.control("enable_noop", "true")
        talk.control("set_noop_interval", "0.1")
        # noops come when the server looks after its connections, which is when it would be late
        assert isinstance(talk.read(), m.StreamNoop)


def test_passwords_are_never_logged(
    guarded: TemporaryProducer, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG), Talk(guarded) as talk:
        assert talk.ask(plain("reader", "a wrong password")).status is Status.AUTH_ERROR
        assert talk.ask(plain("a wrong password", "")).status is Status.AUTH_ERROR
        assert talk.ask(plain("reader")).status is Status.SUCCESS
        malformed = kv.SaslAuth(mechanism="PLAIN", payload=SECRET.encode())
        assert talk.ask(malformed).status is Status.AUTH_ERROR
        misplaced = m.UnknownCommand(opcode=0x21, key=b"PLAIN", extras=b"x", value=SECRET.encode())
        assert talk.ask(misplaced).status is Status.INVALID
    assert "failed to authenticate as 'reader'" in caplog.text
    assert SECRET not in caplog.text
    assert "a wrong password" not in caplog.text.replace("as 'a wrong password'", "")


# ---- where it listens, and what is encrypted ---------------------------------------------


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "example.org"])
def test_without_users_only_this_machine_is_served(host: str, users: Path) -> None:
    with pytest.raises(ConfigError, match="without users"):
        ServerSettings(host=host)
    assert ServerSettings(host=host, users=users).host == host
    assert ServerSettings(host=host, open_to_all=True).host == host


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates.made_in(tmp_path_factory.mktemp("certificates"))


class SecretTalk(Talk):
    """A conversation over TLS."""

    def __init__(
        self, producer: TemporaryProducer, certificates: Certificates, own: Path | None = None
    ) -> None:
        super().__init__(producer)
        context = ssl.create_default_context(cafile=certificates.authority)
        if own is not None:
            context.load_cert_chain(own)
        self.socket = context.wrap_socket(self.socket, server_hostname=producer.host)
        self._packets = Packets(self.socket)


def test_passwords_travel_as_they_are_only_when_encrypted(
    certificates: Certificates, users: Path
) -> None:
    settings = certificates.settings(users=users)
    with (
        TemporaryProducer(vbuckets=1, settings=settings) as producer,
        SecretTalk(producer, certificates) as talk,
    ):
        assert b"PLAIN" in talk.ask(kv.SaslListMechanisms()).value.split()
        assert talk.ask(plain("reader")).status is Status.SUCCESS
        talk.ask(kv.SelectBucket(bucket="default"))
        config = json.loads(talk.ask(kv.GetClusterConfig()).value)
        services = config["nodesExt"][0]["services"]
        assert services == {"kvSSL": producer.port, "mgmtSSL": producer.producer.server.http_port}
    settings = ServerSettings(users=users, authentication_delay=0, host="0.0.0.0")
    with TemporaryProducer(vbuckets=1, settings=settings) as producer, Talk(producer) as talk:
        assert b"PLAIN" not in talk.ask(kv.SaslListMechanisms()).value.split()
        assert talk.ask(plain("reader")).status is Status.AUTH_ERROR


def test_a_stream_over_tls(certificates: Certificates) -> None:
    documents = 200
    with (
        TemporaryProducer(vbuckets=1, settings=certificates.settings()) as producer,
        SecretTalk(producer, certificates) as talk,
    ):
        producer.bucket.write_many(
            [SetDocument(0, b"\0k%d" % n, b"x" * 5000) for n in range(documents)]
        )
        talk.open()
        talk.send(m.StreamRequest(vbucket=0, start=0, end=documents, opaque=1))
        seen = [x.seqno for x in talk.read_until(m.StreamEnd) if isinstance(x, m.Mutation)]
        assert seen == list(range(1, documents + 1))


def test_a_client_without_a_certificate_is_refused_where_one_is_asked_for(
    certificates: Certificates, tmp_path: Path
) -> None:
    foreign = Certificates.made_in(tmp_path).client
    settings = certificates.settings(client_authority=certificates.authority)
    with TemporaryProducer(vbuckets=1, settings=settings) as producer:
        with SecretTalk(producer, certificates, certificates.client) as talk:
            assert talk.ask(kv.Noop()).status is Status.SUCCESS
        for own in (None, foreign):
            with (
                pytest.raises((ssl.SSLError, ConnectionError)),
                # TLS 1.3 lets a client believe it is connected until it reads
                SecretTalk(producer, certificates, own) as talk,
            ):
                talk.ask(kv.Noop())


def test_nonsense_instead_of_tls_costs_only_its_sender(certificates: Certificates) -> None:
    settings = certificates.settings(authentication_time=1)
    with TemporaryProducer(vbuckets=1, settings=settings) as producer:
        with Talk(producer) as unencrypted, Talk(producer) as silent:
            unencrypted.send(kv.Noop())
            assert unencrypted.is_closed()
            assert silent.is_closed()  # a handshake has its time, too
        with SecretTalk(producer, certificates) as talk:
            assert talk.ask(kv.Noop()).status is Status.SUCCESS


def test_what_came_before_the_end_of_a_tls_connection_is_worked_on_in_turns(
    certificates: Certificates,
) -> None:
    count = 20_000
    with TemporaryProducer(vbuckets=1, settings=certificates.settings()) as producer:
        server = producer.producer.server
        before = server.turns.taken
        with SecretTalk(producer, certificates) as talk:
            sets = [kv.Set(key=b"k%d" % n, value=b"{}", quiet=True) for n in range(count)]
            talk.send(*sets)
            cast("ssl.SSLSocket", talk.socket).unwrap()
        until(lambda: producer.bucket.vbucket_stats(0).items == count)
        until(lambda: not server.connections)
        assert server.turns.taken - before >= count // TURN_PACKETS


# ---- how much ----------------------------------------------------------------------------


@pytest.mark.parametrize("http", [False, True], ids=["data", "HTTP"])
def test_connections_that_begin_no_handshake_count(
    certificates: Certificates, monkeypatch: pytest.MonkeyPatch, http: bool
) -> None:
    """Each of them has a descriptor: without a limit the store would have none left."""
    defaults = HttpServer.__init__.__kwdefaults__
    assert defaults is not None
    monkeypatch.setitem(defaults, "max_connections", 3)
    settings = certificates.settings(max_connections=3, http_port=0 if http else None)
    with TemporaryProducer(vbuckets=1, settings=settings) as producer:
        port = producer.producer.server.http_port if http else producer.port
        assert port is not None
        with ExitStack() as stack:
            silent = [
                stack.enter_context(socket.create_connection(("127.0.0.1", port), PATIENCE))
                for _ in range(23)
            ]
            for dropped in silent[:20]:
                with suppress(ConnectionError):
                    assert dropped.recv(1) == b""
            left = silent[20:]
            assert not select.select(left, (), (), 0)[0]


def test_silent_handshakes_keep_nobody_out(
    certificates: Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("upriver.producer.connections.listener._MAX_HANDSHAKES", 20)
    with (
        TemporaryProducer(vbuckets=1, settings=certificates.settings()) as producer,
        ExitStack() as stack,
    ):
        silent = [stack.enter_context(Talk(producer)) for _ in range(50)]
        with SecretTalk(producer, certificates) as talk:
            assert talk.ask(kv.Noop()).status is Status.SUCCESS
        assert silent[0].is_closed()  # the oldest of them made room


@pytest.mark.parametrize("secret", [False, True], ids=["plain", "TLS"])
def test_strangers_keep_nobody_out(users: Path, certificates: Certificates, secret: bool) -> None:
    """Whoever has authenticated stays; of the others, the oldest makes room for a new one."""
    settings = ServerSettings(users=users, max_connections=3)
    if secret:
        settings = replace(settings, certificate=certificates.server, key=certificates.server)

    def open_talk(producer: TemporaryProducer) -> Talk:
        return SecretTalk(producer, certificates) if secret else Talk(producer)

    with (
        TemporaryProducer(vbuckets=1, settings=settings) as producer,
        ExitStack() as stack,
    ):
        known = stack.enter_context(open_talk(producer))
        assert known.ask(plain("admin")).status is Status.SUCCESS
        strangers = [stack.enter_context(open_talk(producer)) for _ in range(10)]
        for stranger in strangers[:8]:
            assert stranger.is_closed()
        assert strangers[9].ask(kv.Noop()).status is Status.SUCCESS  # which tells nothing of it
        second = stack.enter_context(open_talk(producer))
        assert second.ask(plain("reader")).status is Status.SUCCESS
        third = stack.enter_context(open_talk(producer))
        assert third.ask(plain("reader")).status is Status.SUCCESS
        assert strangers[8].is_closed()
        assert strangers[9].is_closed()
        for _ in range(5):
            with suppress(OSError):  # while its TLS handshake is made
                assert stack.enter_context(open_talk(producer)).is_closed()
        for talk in (known, second, third):
            assert talk.ask(kv.Noop()).status is Status.SUCCESS


def test_who_failed_to_authenticate_again_is_a_stranger(users: Path) -> None:
    settings = ServerSettings(users=users, max_connections=2, authentication_delay=0)
    with (
        TemporaryProducer(vbuckets=1, settings=settings) as producer,
        Talk(producer) as first,
        Talk(producer) as second,
    ):
        for talk in (first, second):
            assert talk.ask(plain("admin")).status is Status.SUCCESS
        assert second.ask(plain("admin", "wrong")).status is Status.AUTH_ERROR
        with Talk(producer) as third:
            assert third.ask(plain("admin")).status is Status.SUCCESS
            assert second.is_closed()
            assert first.ask(kv.Noop()).status is Status.SUCCESS


def test_silent_connections_keep_nobody_out_where_nobody_must_say_who_it_is() -> None:
    settings = ServerSettings(max_connections=3)
    with (
        TemporaryProducer(vbuckets=1, settings=settings) as producer,
        ExitStack() as stack,
    ):
        known = stack.enter_context(Talk(producer))
        assert known.ask(kv.Noop()).status is Status.SUCCESS
        silent = [stack.enter_context(Talk(producer)) for _ in range(10)]
        with Talk(producer) as talk:
            assert talk.ask(kv.Set(key=b"key")).status is Status.SUCCESS
        assert all(stranger.is_closed() for stranger in silent[:9])
        assert known.ask(kv.Noop()).status is Status.SUCCESS


def is_open(link: socket.socket) -> bool:
    link.settimeout(0)
    try:
        while link.recv(4096):
            pass
    except BlockingIOError:
        return True
    return False


@pytest.mark.parametrize(
    ("beginning", "with_users"),
    [
        pytest.param(beginning, with_users, id=f"{name}, {'with' if with_users else 'no'} users")
        for name, beginning in {
            "silent": b"",
            "slow head": b"GET /pools HTTP/1.1\r\nX-Slow: ",
            "slow body": b"POST /pools HTTP/1.1\r\nContent-Length: 10\r\n\r\n",
            "wrong password": b"GET /pools HTTP/1.1\r\nAuthorization: Basic YW5uOndyb25n\r\n\r\n",
        }.items()
        for with_users in (False, True)
        # without users no password is wrong: the requests are served, and have their places
        if with_users or name != "wrong password"
    ],
)
def test_slow_requests_keep_nobody_from_the_management_port(
    users: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    beginning: bytes,
    with_users: bool,
) -> None:
    defaults = HttpServer.__init__.__kwdefaults__
    assert defaults is not None
    for name, value in {
        "max_connections": 3,
        "head_time": PATIENCE,
        "refusal_delay": PATIENCE,
    }.items():
        monkeypatch.setitem(defaults, name, value)
    settings = ServerSettings(users=users if with_users else None)
    streams = b"GET /pools/default/bs/default HTTP/1.1\r\n"
    asks = b"GET /pools HTTP/1.1\r\n"
    admin = b"Authorization: Basic " + b64encode(f"admin:{SECRET}".encode()) + b"\r\n\r\n"
    with (
        TemporaryProducer(vbuckets=1, settings=settings) as producer,
        ExitStack() as stack,
    ):
        port = producer.producer.server.http_port
        assert port is not None

        def connected(request: bytes) -> socket.socket:
            link = socket.create_connection(("127.0.0.1", port), PATIENCE)
            link.sendall(request)
            return stack.enter_context(link)

        stream = connected(streams + admin)
        assert stream.recv(12) == b"HTTP/1.1 200"
        slow = [connected(beginning) for _ in range(10)]
        asked = connected(asks + admin)
        assert asked.recv(12) == b"HTTP/1.1 200"
        for dropped in slow[:7]:
            with suppress(ConnectionError):
                while dropped.recv(4096):
                    pass
        assert is_open(stream)  # whoever has said who it is keeps its place
    assert not [record for record in caplog.records if record.levelno > logging.WARNING]


def test_more_connections_than_allowed_are_turned_away() -> None:
    settings = ServerSettings(max_connections=3)
    with TemporaryProducer(vbuckets=1, settings=settings) as producer:
        admitted = [Talk(producer) for _ in range(3)]
        for talk in admitted:
            assert talk.ask(kv.Noop()).status is Status.SUCCESS
        for _ in range(20):
            with Talk(producer) as refused:
                assert refused.is_closed()
        assert admitted[0].ask(kv.Noop()).status is Status.SUCCESS
        admitted.pop().socket.close()  # and its place is free for another
        until(lambda: len(producer.producer.server.connections) == 2)
        admitted.append(Talk(producer))
        for talk in admitted:
            assert talk.ask(kv.Noop()).status is Status.SUCCESS
            talk.socket.close()


def test_more_streams_than_allowed_are_refused() -> None:
    settings = ServerSettings(max_streams=2)
    with TemporaryProducer(vbuckets=4, settings=settings) as producer, Talk(producer) as talk:
        talk.open()
        answers = [
            talk.ask(m.StreamRequest(vbucket=vbucket, start=0, end=5)) for vbucket in range(3)
        ]
        assert [x.status for x in answers] == [Status.SUCCESS, Status.SUCCESS, Status.NO_MEMORY]


def test_a_packet_that_is_too_long_ends_only_its_connection() -> None:
    settings = ServerSettings(max_body=64 * KIB)
    with (
        TemporaryProducer(vbuckets=1, settings=settings) as producer,
        Talk(producer) as greedy,
        Talk(producer) as modest,
    ):
        fitting = kv.Set(key=b"k", value=b"x" * (60 * KIB))
        assert modest.ask(fitting).status is Status.SUCCESS
        # what came before the packet is still answered; of the packet itself a header is enough
        long = greedy.dialect.encode(kv.Set(key=b"k", value=b"x" * (64 * KIB), opaque=3))
        greedy.send(kv.Set(key=b"k", opaque=1), kv.Noop(opaque=2))
        greedy.socket.sendall(long[:24])
        assert [greedy.read().opaque for _ in range(2)] == [1, 2]
        assert greedy.is_closed()
        assert modest.ask(kv.Noop()).status is Status.SUCCESS


def test_half_a_header_waits_for_the_other_half() -> None:
    with TemporaryProducer(vbuckets=1) as producer, Talk(producer) as slow, Talk(producer) as other:
        packet = slow.dialect.encode(kv.Version(opaque=7))
        for byte in packet[:-1]:
            slow.socket.sendall(bytes([byte]))
            assert other.ask(kv.Noop()).status is Status.SUCCESS
        slow.socket.sendall(packet[-1:])
        assert slow.read().opaque == 7


def test_thousands_of_pipelined_requests_are_answered_in_order() -> None:
    """Of every kind: at once, after a commit, from a thread, refused, malformed, unknown."""
    rounds = 400
    kinds: list[m.Request] = [
        kv.Set(key=b"document", value=b'{"n":0}'),
        kv.Set(key=b"other", value=b"x"),
        kv.Get(key=b"document"),
        kv.SubdocOperation(command=Command.SUBDOC_COUNTER, key=b"document", path=b"n", value=b"1"),
        kv.Add(key=b"other"),
        kv.Noop(),
        m.UnknownCommand(opcode=0xEE),
        m.UnknownCommand(opcode=0x00, extras=b"GET has none", key=b"k"),
        kv.Get(key=b"elsewhere", vbucket=99),
        kv.Delete(key=b"other"),
    ]
    with TemporaryProducer(vbuckets=1) as producer, Talk(producer) as talk:
        requests = [
            replace(kind, opaque=number * len(kinds) + place)
            for number in range(rounds)
            for place, kind in enumerate(kinds)
        ]
        sender = threading.Thread(target=talk.send, args=requests)
        sender.start()
        answers = [talk.read() for _ in requests]
        sender.join()
    assert [x.opaque for x in answers] == list(range(len(requests)))
    per_kind = [{x.status for x in answers[place :: len(kinds)]} for place in range(len(kinds))]
    assert per_kind == [
        {Status.SUCCESS},
        {Status.SUCCESS},
        {Status.SUCCESS},
        {Status.SUCCESS},
        {Status.EXISTS},
        {Status.SUCCESS},
        {Status.UNKNOWN_COMMAND},
        {Status.INVALID},
        {Status.NOT_MY_VBUCKET},
        {Status.SUCCESS},
    ]


#: The key of a document so large that a few of them fill every buffer on the way to a client.
LARGE = b"large".ljust(200, b"-")
FLOOD = 200


@pytest.fixture
def thrifty() -> Iterator[TemporaryProducer]:
    """A server that gives little memory to each connection."""
    settings = ServerSettings(max_backlog=8 * KIB, connection_memory=64 * KIB)
    with TemporaryProducer(vbuckets=1, settings=settings) as producer:
        producer.bucket.write(SetDocument(0, b"\0" + LARGE, b"x" * (256 * KIB)))
        yield producer


def flood(producer: TemporaryProducer, talk: Talk) -> Connection:
    """Asks for more than can be sent and reads nothing, until the server listens no more."""
    assert talk.ask(kv.Noop()).status is Status.SUCCESS
    end = server_side(producer, talk)
    talk.send(*(kv.Get(key=LARGE, opaque=number) for number in range(FLOOD)))
    until(lambda: end._transport is not None and not end._transport.is_reading())
    return end


def test_who_asks_and_never_reads_is_no_longer_read(thrifty: TemporaryProducer) -> None:
    settings = thrifty.producer.settings
    with Talk(thrifty) as flooding, Talk(thrifty) as other:
        end = flood(thrifty, flooding)
        assert end._transport is not None
        # one answer and one read of the socket may come on top of what is allowed
        assert end._transport.get_write_buffer_size() <= settings.connection_memory + 257 * KIB
        assert end._inbox.held <= settings.max_backlog + 256 * KIB
        assert other.ask(kv.Get(key=LARGE)).status is Status.SUCCESS
        # it has lost nothing, should it change its mind
        assert [flooding.read().opaque for _ in range(FLOOD)] == list(range(FLOOD))


def test_who_never_reads_cannot_stay_after_it_is_closed(
    thrifty: TemporaryProducer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deadlines, "_FAREWELL_SECONDS", 0.1)
    with Talk(thrifty) as stalled, Talk(thrifty) as rival:
        stalled.open("name")
        flood(thrifty, stalled)
        rival.open("name")  # which closes the older connection
        until(lambda: len(thrifty.producer.server.connections) == 1)


def test_a_server_stops_although_somebody_never_reads(thrifty: TemporaryProducer) -> None:
    with Talk(thrifty) as stalled:
        flood(thrifty, stalled)
        thrifty.stop()
        assert stalled.is_closed()
