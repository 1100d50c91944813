"""Servers that are not what they say, or break the rules: a clear error, and nothing wrong read."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from certificates import Certificates, write_certificates
from consumerkit import (
    LOG,
    PATIENCE,
    Conversation,
    Scripted,
    at,
    everything,
    fill,
    marker,
    mutation,
    places,
    streaming,
)
from serverkit import SECRET, users_file
from waiting import until

from upriver.consumer import Access, Consumer
from upriver.consumer.streaming.vbucket_fetch_state import VBucketFetchState
from upriver.consumer.topology.cluster_view import Backoff
from upriver.consumer.topology.seqno_survey import Survey
from upriver.consumer.transport.connection_string import Source
from upriver.errors import (
    AuthenticationFailed,
    BucketNotFound,
    ConfigError,
    ConnectionFailed,
    NotADcpServer,
    RemoteProtocolError,
    Status,
    StatusError,
    StreamEnded,
    StreamRuleBroken,
    UpriverError,
)
from upriver.model import StreamEndReason
from upriver.producer.bootstrap.users import Role
from upriver.producer.server_settings import ServerSettings
from upriver.session.requested_stream import MOST_EMPTY_SNAPSHOTS
from upriver.session.stray_messages import MOST_STRAYS
from upriver.session.stream_position import Position
from upriver.testing import TemporaryProducer
from upriver.wire import kv_messages as kv
from upriver.wire import messages as m
from upriver.wire.dialects import Draft001
from upriver.wire.protocol_enums import Feature

#: Quick to try again, so that a server that keeps lying is soon given up.
QUICK: dict[str, Any] = {
    "retry_first": 0.001,
    "retry_most": 0.005,
    "connect_timeout": 2.0,
    "answer_timeout": 2.0,
}


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    before = threading.active_count()
    yield
    until(lambda: threading.active_count() <= before)


def row(seqno: int, **more: Any) -> m.Mutation:
    more.setdefault("opaque", 0)
    return mutation(seqno, vbucket=more.pop("vbucket", 0), **more)


def mark(start: int, end: int) -> m.Message:
    return marker(start, end, opaque=0, vbucket=0)


def failure(source: str, **options: Any) -> UpriverError:
    with pytest.raises(UpriverError) as caught:
        everything(source, **{**QUICK, **options})
    return caught.value


# ---- who we are to them ------------------------------------------------------------------


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return write_certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TemporaryProducer]:
    roles = {"ann": tuple(Role)}
    users = users_file(tmp_path_factory.mktemp("users"), roles)
    settings = ServerSettings(users=users, authentication_delay=0)
    with TemporaryProducer(vbuckets=2, settings=settings) as running:
        fill(running, 4)
        yield running


def test_a_user_with_the_right_password_reads(guarded: TemporaryProducer) -> None:
    access = Access(user="ann", password=SECRET)
    assert len(everything(guarded.source, access=access)) == 4
    assert len(everything(guarded.source, access=access, dialect="dcp")) == 4


def test_a_wrong_password_is_final(guarded: TemporaryProducer) -> None:
    wrong = Access(user="ann", password="wrong")
    error = failure(guarded.source, access=wrong, wait_at_start=PATIENCE)
    assert isinstance(error, AuthenticationFailed)
    assert "authentication failed for user 'ann'" in str(error)
    assert "127.0.0.1" in str(error)


def test_a_password_that_is_changed_while_it_reads_is_final(tmp_path: Path) -> None:
    everybody = {"ann": tuple(Role)}
    settings = ServerSettings(users=users_file(tmp_path, everybody), authentication_delay=0)
    with TemporaryProducer(vbuckets=1, settings=settings) as producer:
        access = Access(user="ann", password=SECRET)
        with Consumer(producer.source, access=access, **QUICK) as consumer:
            until(lambda: consumer.status().is_whole)
            users_file(tmp_path, {"bob": tuple(Role)})
            producer.restart()
            with pytest.raises(AuthenticationFailed):
                list(consumer)


def test_no_user_and_no_such_bucket(guarded: TemporaryProducer) -> None:
    assert isinstance(failure(guarded.source), ConnectionFailed)
    with TemporaryProducer(vbuckets=1) as open_to_all:
        error = failure(open_to_all.source.replace("/default", "/other"))
    assert isinstance(error, BucketNotFound)
    assert "other" in str(error)


def test_tls_is_agreed_on_or_nothing_is(files: Certificates) -> None:
    settings = ServerSettings(certificate=files.certificate, key=files.key)
    with TemporaryProducer(vbuckets=2, settings=settings) as producer:
        fill(producer, 6)
        assert producer.source.startswith("couchbases://")
        trusted = Access(authority=files.authority)
        assert len(everything(producer.source, access=trusted)) == 6
        assert len(everything(producer.source, access=Access(insecure=True))) == 6
        error = failure(producer.source)
        assert isinstance(error, ConnectionFailed)
        assert "makes no TLS connection" in str(error)
        plain = producer.source.replace("couchbases://", "couchbase://")
        assert "TLS" in str(failure(plain))
        with Consumer(producer.source, access=trusted, **QUICK) as consumer:
            next(iter(consumer))  # and closing in the middle of everything leaves nothing open
    with TemporaryProducer(vbuckets=1) as producer:
        secret = producer.source.replace("couchbase://", "couchbases://")
        assert isinstance(failure(secret, access=Access(insecure=True)), ConnectionFailed)


# ---- what is no server of ours -----------------------------------------------------------


class Plain:
    """Whatever listens on a port and does one thing with each connection."""

    def __init__(self, act: Callable[[socket.socket], None]) -> None:
        self._act = act
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.source = f"couchbase://127.0.0.1:{self.listener.getsockname()[1]}/default"
        self._open: list[socket.socket] = []
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        try:
            while True:
                connection, _ = self.listener.accept()
                self._open.append(connection)
                self._act(connection)
        except OSError:
            return

    def __enter__(self) -> Plain:
        return self

    def __exit__(self, *_: object) -> None:
        self.listener.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        for connection in self._open:
            connection.close()
        self.listener.close()


def test_something_else_on_the_port_is_named() -> None:
    with Plain(lambda connection: connection.sendall(b"SSH-2.0-OpenSSH_9\r\n")) as server:
        error = failure(server.source)
    assert isinstance(error, NotADcpServer)
    assert "SSH-2.0" in str(error)


def test_one_that_closes_at_once_is_named() -> None:
    with Plain(lambda connection: connection.close()) as server:
        error = failure(server.source)
    assert isinstance(error, ConnectionFailed)
    assert "did not answer" in str(error)


def test_one_that_never_says_a_word_is_given_up() -> None:
    with Plain(lambda connection: None) as server:
        error = failure(server.source, connect_timeout=0.2, answer_timeout=0.2)
    assert isinstance(error, ConnectionFailed)
    assert "Hello was not answered for 0.2 s" in str(error)


# ---- streams that break a rule -----------------------------------------------------------


@pytest.mark.parametrize(
    ("said", "rule", "read"),
    [
        ([mark(0, 9), row(2), row(1)], "seqno order", [2]),
        ([mark(0, 9), row(2), row(2)], "seqno order", [2]),
        ([mark(0, 9), row(2), row(10)], "snapshot", [2]),
        ([row(2)], "snapshot", []),
        ([mark(5, 9), row(2)], "snapshot", []),
        ([mark(9, 5)], "marker range", []),
        ([mark(0, 9), row(1), *[row(2, opaque=4711)] * (MOST_STRAYS + 1)], "opaque", [1]),
        ([mark(0, 9), row(1), m.Mutation(vbucket=1, seqno=2, key=b"k")], "vbucket", [1]),
        ([m.StreamRollback(seqno=0)], "answer", []),
    ],
)
def test_a_broken_rule_is_named_counted_and_nothing_of_it_is_read(
    said: list[m.Message], rule: str, read: list[int]
) -> None:
    with Scripted(streaming(*said), vbuckets=1) as server:
        found, error, counts = until_it_fails(server)
    # A reader that comes again is told the same, and has had it: another rule may break first.
    assert found == read
    assert isinstance(error, StreamRuleBroken)
    assert error.rule in (rule, "seqno order", "marker order")
    assert counts[f"broken rule: {rule}"] >= 1
    assert server.connections >= 3


def until_it_fails(server: Scripted) -> tuple[list[int], UpriverError | None, Mapping[str, int]]:
    """What was read before the reading ended, why it ended, and what was counted."""
    found: list[int] = []
    with Consumer(server.source, **QUICK) as consumer:
        try:
            for change in consumer:
                found.append(change.seqno)
        except UpriverError as error:
            return found, error, consumer.status().counts
    return found, None, {}


def test_bytes_that_are_none_end_the_reading_after_what_was_good() -> None:
    def script(talk: Conversation, request: Any) -> bool:
        if not isinstance(request, m.StreamRequest):
            return False
        if request.start == 0:
            streaming(mark(0, 9), row(1))(talk, request)
        else:
            talk.send(m.StreamAccepted(opaque=request.opaque, failover_log=LOG.entries))
        talk.socket.sendall(b"\x80\x57" + bytes(6) + b"\xff\xff\xff\xff" + bytes(12))
        return True

    with Scripted(script, vbuckets=1) as server:
        found, error, counts = until_it_fails(server)
    assert found == [1]
    assert "more than the limit" in str(error)
    assert counts["broken rule: decoding"] >= 1


def test_one_lie_is_forgiven() -> None:
    lies = [1]

    def script(talk: Conversation, request: Any) -> bool:
        if not isinstance(request, m.StreamRequest):
            return False
        if lies:
            lies.pop()
            return streaming(mark(0, 5), row(1), row(9))(talk, request)
        rest = [mark(0, 5), row(3), row(5), m.StreamEnd(vbucket=0)]
        return streaming(*rest)(talk, request)

    with (
        Scripted(script, vbuckets=1) as server,
        Consumer(server.source, end="now", **QUICK) as consumer,
    ):
        assert places(consumer) == [(0, 1), (0, 3), (0, 5)]
        assert consumer.status().counts["broken rule: snapshot"] == 1


def test_a_server_that_always_wants_the_reader_back_is_given_up() -> None:
    def script(talk: Conversation, request: Any) -> bool:
        if isinstance(request, m.StreamRequest):
            talk.send(m.StreamRollback(opaque=request.opaque, seqno=0))
            return True
        return False

    with Scripted(script, vbuckets=1) as server:
        error = failure(server.source)
    assert isinstance(error, StreamRuleBroken)
    assert error.rule == "rollback"


def test_a_server_that_hangs_up_on_every_stream_is_given_up_by_who_has_no_patience() -> None:
    def script(talk: Conversation, request: Any) -> bool:
        if isinstance(request, m.StreamRequest):
            talk.hang_up()
            return True
        return False

    with Scripted(script, vbuckets=1) as server:
        error = failure(server.source, give_up_after=0.2)
        assert server.connections >= 2
    assert isinstance(error, ConnectionFailed)
    assert "was lost" in str(error)


@pytest.mark.parametrize(
    "said",
    [
        [m.StreamEnd(vbucket=0, reason=StreamEndReason.CLOSED)],
        [m.StreamEnd(vbucket=0, reason=StreamEndReason.TOO_SLOW)],
        [mark(0, 5)],
        [],
    ],
    ids=["closed", "too slow", "a marker", "silent"],
)
def test_a_server_that_accepts_streams_and_never_sends_what_it_has_is_given_up(
    said: list[m.Message],
) -> None:
    """It says that the vbucket has seqno 5. That it accepts a stream again is no progress."""
    with Scripted(streaming(*said), vbuckets=1) as server:
        error = failure(server.source, give_up_after=0.2, answer_timeout=0.02)
    assert isinstance(error, ConnectionFailed)
    assert "vbucket 0 after seqno 0" in str(error)


def test_a_server_that_hangs_up_on_accepted_streams_is_given_up() -> None:
    def script(talk: Conversation, request: Any) -> bool:
        if isinstance(request, m.StreamRequest):
            streaming()(talk, request)
            talk.hang_up()
            return True
        return False

    with Scripted(script, vbuckets=1) as server:
        error = failure(server.source, give_up_after=0.2)
    assert isinstance(error, ConnectionFailed)


@pytest.mark.parametrize(
    ("seqno", "seconds", "was_of_use"), [(0, 1.0, False), (0, 5.0, True), (1, 1.0, True)]
)
def test_pauses_grow_until_a_stream_is_of_use(seqno: int, seconds: float, was_of_use: bool) -> None:
    reader = VBucketFetchState(0, Position(), 9, Backoff(first=1.0, most=60.0, attempts=4))
    reader.flowed, reader.position = True, at(seqno)
    trouble = StreamEnded(vbucket=0, reason="closed")
    assert reader.leave(seconds, trouble, steady=5.0) is was_of_use
    assert (reader.backoff.attempts == 0) is was_of_use
    assert reader.idle_since == (seconds if was_of_use else 0.0)


def test_snapshots_that_never_have_anything_end_the_reading() -> None:
    endless = [mark(0, 5)] * (MOST_EMPTY_SNAPSHOTS + 1)
    with Scripted(streaming(*endless), vbuckets=1) as server:
        found, error, counts = until_it_fails(server)
    assert found == []
    assert "snapshots in a row have nothing" in str(error)
    assert counts["broken rule: empty snapshots"] >= 1


def test_snapshots_with_a_change_now_and_then_are_no_lie() -> None:
    several = [mark(0, 9)] * (MOST_EMPTY_SNAPSHOTS // 2 + 1)
    said = [*several, row(1), *several, row(2), m.StreamEnd(vbucket=0)]
    with Scripted(streaming(*said), vbuckets=1, seqno=2) as server:
        assert places(everything(server.source, **QUICK)) == [(0, 1), (0, 2)]


def test_a_stream_that_is_never_answered_is_asked_for_elsewhere() -> None:
    asked = threading.Semaphore(0)

    def script(talk: Conversation, request: Any) -> bool:
        if isinstance(request, m.StreamRequest):
            asked.release()
            return True
        return False

    with (
        Scripted(script, vbuckets=1) as server,
        Consumer(server.source, **{**QUICK, "answer_timeout": 0.2}) as consumer,
    ):
        for _ in range(2):
            assert asked.acquire(timeout=PATIENCE)
        assert consumer.status().counts["connections lost"] >= 1
        server.script = streaming(mark(0, 5), row(1))
        assert next(iter(consumer)).seqno == 1


def test_a_stream_that_is_accepted_and_has_nothing_is_idle_and_not_dead() -> None:
    with Scripted(vbuckets=1) as server, Consumer(server.source, **QUICK) as consumer:
        until(lambda: consumer.status().is_whole)
        assert consumer.poll(timeout=0.1) is not None  # it was opened
        assert consumer.poll(timeout=0.1) is None
        assert "connections lost" not in consumer.status().counts


@pytest.mark.parametrize("status", [Status.RANGE, Status.NOT_SUPPORTED, Status.NO_ACCESS])
def test_a_refusal_that_will_not_change_ends_the_reading(status: Status) -> None:
    def script(talk: Conversation, request: Any) -> bool:
        if isinstance(request, m.StreamRequest):
            talk.answer(request, status)
            return True
        return False

    with Scripted(script, vbuckets=1) as server:
        error = failure(server.source)
    assert f"vbucket 0 was refused with {status.name}" in str(error)


# ---- maps --------------------------------------------------------------------------------


def test_the_map_of_another_bucket_is_refused() -> None:
    with Scripted(bucket="other") as server:
        error = failure(server.source)
    assert isinstance(error, RemoteProtocolError)
    assert "map of the bucket 'other'" in str(error)


def test_nonsense_instead_of_a_map_is_refused() -> None:
    def script(talk: Conversation, request: Any) -> bool:
        if isinstance(request, kv.GetClusterConfig):
            talk.answer(request, value=b"{")
            return True
        return False

    with Scripted(script) as server:
        error = failure(server.source)
    assert "cluster map cannot be understood" in str(error)


@pytest.mark.parametrize("way", ["asked", "with a refusal"])
def test_a_bucket_whose_vbuckets_are_counted_anew_is_another_one(way: str) -> None:
    server: Scripted

    def script(talk: Conversation, request: Any) -> bool:
        if not isinstance(request, m.StreamRequest):
            return False
        server.vbuckets, server.revision = 4, 2
        value = server.map if way == "with a refusal" else b""
        talk.answer(request, Status.NOT_MY_VBUCKET, value)
        return True

    with Scripted(script, vbuckets=2) as server:
        error = failure(server.source)
    assert isinstance(error, ConfigError)
    assert "had 2 vbuckets and now has 4" in str(error)


def test_a_lost_connection_is_no_server_without_maps() -> None:
    def script(talk: Conversation, request: Any) -> bool:
        if isinstance(request, kv.GetClusterConfig):
            talk.hang_up()
            return True
        return False

    with Scripted(script) as server:
        error = failure(server.source, vbuckets=frozenset({0}))
    assert isinstance(error, ConnectionFailed)


def without_maps(talk: Conversation, request: Any) -> bool:
    if isinstance(request, kv.GetClusterConfig):
        talk.answer(request, Status.NO_ACCESS)
        return True
    return False


def test_a_node_without_a_map_does_not_hide_one_that_has_it() -> None:
    with Scripted(without_maps) as server, TemporaryProducer(vbuckets=2) as producer:
        fill(producer, 4)
        producer.bucket.create_collection(0, "fruit")
        source = f"couchbase://127.0.0.1:{server.port},127.0.0.1:{producer.port}/default"
        assert len(everything(source, collections=("_default._default",))) == 4
        assert isinstance(failure(server.source), StatusError)


@pytest.mark.parametrize(
    "question",
    [Survey.map, Survey.collections, Survey.high_seqnos, lambda survey: survey.failover_logs([])],
)
def test_a_survey_asks_again_while_a_node_has_no_map(question: Callable[[Survey], Any]) -> None:
    refusals = [Status.NOT_FOUND] * 3

    def script(talk: Conversation, request: Any) -> bool:
        if isinstance(request, kv.GetClusterConfig) and refusals:
            talk.answer(request, refusals.pop())
            return True
        return False

    with Scripted(script) as server:
        source = Source.parse(server.source)
        with Survey(source, Access(), timeout=PATIENCE, patience=PATIENCE) as survey:
            question(survey)
            assert (refusals, len(survey.nodes)) == ([], 1)


def test_the_only_node_without_a_map_is_found_behind_a_host_that_is_gone() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        gone = free.getsockname()[1]
    rows = streaming(mark(0, 2), row(1), row(2), m.StreamEnd(vbucket=0))

    def script(talk: Conversation, request: Any) -> bool:
        return without_maps(talk, request) or rows(talk, request)

    with Scripted(script, vbuckets=1) as server:
        source = f"couchbase://127.0.0.1:{gone},127.0.0.1:{server.port}/default"
        changes = everything(source, vbuckets=frozenset({0}), end={0: 2}, **QUICK)
    assert places(changes) == [(0, 1), (0, 2)]


# ---- servers of draft 001 ----------------------------------------------------------------


def servers_of_2014(talk: Conversation, request: Any) -> bool:
    """Knows Open and streams, and nothing that was invented later."""
    match request:
        case m.Open() | m.FailoverLogRequest() | m.CloseStream():
            return False
        case m.StreamRequest():
            opaque, vbucket = request.opaque, request.vbucket
            talk.send(m.StreamAccepted(opaque=opaque, failover_log=LOG.entries))
            mark = m.SnapshotMarker(vbucket=vbucket, opaque=opaque)
            rows = [
                mutation(seqno, opaque=opaque, vbucket=vbucket, nru=2)
                for seqno in range(request.start + 1, 4)
            ]
            talk.send(mark, *rows, mark)
            if request.end <= 3:
                talk.send(m.StreamEnd(vbucket=vbucket, opaque=opaque))
            return True
        case m.Control():
            talk.answer(request, Status.NOT_SUPPORTED)
            return True
    talk.answer(request, Status.UNKNOWN_COMMAND)
    return True


def test_the_draft_that_a_server_speaks_is_found_out() -> None:
    with Scripted(servers_of_2014, dialect=Draft001(nru=True)) as server:
        wanted = frozenset({0, 1})
        changes = everything(server.source, vbuckets=wanted, end={0: 3, 1: 3}, **QUICK)
        assert sorted(places(changes)) == [(vb, s) for vb in (0, 1) for s in (1, 2, 3)]
        with Consumer(server.source, vbuckets=wanted, **QUICK) as consumer:
            for number, _ in enumerate(consumer, 1):
                if number == 6:
                    break
            until(lambda: consumer.status().is_whole)


def test_what_only_dcp_has_is_not_asked_of_older_servers() -> None:
    with Scripted(servers_of_2014, dialect=Draft001(nru=True)) as server:
        for options in ({"xattrs": True}, {"values": False}, {"scope": "s"}):
            error = failure(server.source, vbuckets=frozenset({0}), end={0: 3}, **options)
            assert isinstance(error, UpriverError)


def test_features_that_nobody_offered_are_suspicious() -> None:
    with Scripted(features=(Feature.SELECT_BUCKET, Feature.SNAPPY)) as server:
        assert isinstance(failure(server.source), NotADcpServer)
