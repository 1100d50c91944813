"""What is said first on a connection, question by question, and every way in which it can end."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from upriver.errors import (
    AuthenticationFailed,
    BucketNotFound,
    ConfigError,
    ConnectionFailed,
    NotADcpServer,
    Status,
)
from upriver.producer.sasl import Continue, Exchange, Success
from upriver.producer.users import Grant, Role, Users
from upriver.session.introduction import (
    Credentials,
    Introduced,
    Introduction,
    hung_up,
    introduce,
    refusal_context,
    stranger,
)
from upriver.wire import kv
from upriver.wire.messages import PlainResponse, Request, Response
from upriver.wire.names import Command, Feature

OFFERED = (Feature.SELECT_BUCKET, Feature.XERROR, Feature.JSON)
ME = Credentials(user="jürgen", password="IX a b")

#: The same, typed in another way.
USERS = Users()
USERS.add("ju\u0308rgen", "\u2168 a\u00a0b", Grant(Role.READ_DATA), iterations=4096)


def introduction(*, credentials: Credentials | None = ME, secret: bool = False) -> Introduction:
    return Introduction(
        agent="test", bucket="b", features=OFFERED, credentials=credentials, secret=secret
    )


def plain(status: Status = Status.SUCCESS, value: bytes = b"") -> PlainResponse:
    return PlainResponse(command=Command.NOOP, status=status, value=value)


class Server:
    """Answers as a server does, but for what a test wants otherwise; keeps what it was asked."""

    def __init__(self, **otherwise: Response) -> None:
        self.asked: list[Request] = []
        self._otherwise = otherwise
        self._exchange = Exchange(USERS, tls=True)

    def __call__(self, request: Request) -> Response:
        self.asked.append(request)
        if type(request).__name__ in self._otherwise:
            return self._otherwise[type(request).__name__]
        match request:
            case kv.Hello():
                return kv.HelloResponse(features=request.features)
            case kv.SaslListMechanisms():
                return plain(value=b"SCRAM-SHA512 SCRAM-SHA256 SCRAM-SHA1 PLAIN")
            case kv.SaslAuth():
                return self._judged(self._exchange.start(request.mechanism, request.payload))
            case kv.SaslStep():
                return self._judged(self._exchange.step(request.payload))
        return plain()

    @staticmethod
    def _judged(outcome: object) -> Response:
        match outcome:
            case Continue():
                return plain(Status.AUTH_CONTINUE, outcome.challenge)
            case Success():
                return plain(value=outcome.payload)
        return plain(Status.AUTH_ERROR)

    @property
    def names(self) -> list[str]:
        return [type(request).__name__ for request in self.asked]


def talk(said: Introduction, server: Callable[[Request], Response]) -> Introduced:
    conversation = introduce(said)
    request = next(conversation)
    while True:
        try:
            request = conversation.send(server(request))
        except StopIteration as done:
            assert isinstance(done.value, Introduced)
            return done.value


def failure(said: Introduction, **otherwise: Response) -> ConnectionFailed:
    with pytest.raises(ConnectionFailed) as caught:
        talk(said, Server(**otherwise))
    assert "IX a b" not in str(caught.value)
    assert str(caught.value).startswith("the server ")
    caught.value.where = "db:11210"
    assert str(caught.value).startswith(f"db:11210 {caught.value.problem}; ")
    return caught.value


# ---- it goes well ------------------------------------------------------------------------


def test_without_users() -> None:
    server = Server()
    assert talk(introduction(credentials=None), server).features == frozenset(OFFERED)
    assert server.names == ["Hello", "SelectBucket"]


def test_a_user_is_believed_without_showing_the_password() -> None:
    server = Server()
    talk(introduction(), server)
    assert server.names == ["Hello", "SaslListMechanisms", "SaslAuth", "SaslStep", "SelectBucket"]
    assert all(b"IX a b" not in getattr(asked, "payload", b"") for asked in server.asked)


def test_the_best_mechanism_that_is_offered_is_taken() -> None:
    server = Server(SaslListMechanisms=plain(value=b"CRAM-MD5 PLAIN SCRAM-SHA1 SCRAM-SHA256"))
    talk(introduction(secret=True), server)
    assert [a.mechanism for a in server.asked if isinstance(a, kv.SaslAuth)] == ["SCRAM-SHA256"]


def test_a_server_may_see_the_password_where_nobody_else_can() -> None:
    server = Server(SaslListMechanisms=plain(value=b"PLAIN"))
    talk(introduction(secret=True), server)
    (shown,) = (asked for asked in server.asked if isinstance(asked, kv.SaslAuth))
    assert (shown.mechanism, shown.payload) == ("PLAIN", "\0jürgen\0IX a b".encode())


@pytest.mark.parametrize("status", [Status.UNKNOWN_COMMAND, Status.NOT_SUPPORTED])
def test_an_old_server_has_no_features_and_one_bucket(status: Status) -> None:
    server = Server(Hello=plain(status), SelectBucket=plain(status))
    assert talk(introduction(), server).features == frozenset()
    assert server.names[-1] == "SelectBucket"


# ---- it does not -------------------------------------------------------------------------


def test_a_wrong_password_is_the_user_s_problem() -> None:
    wrong = Credentials(user="jürgen", password="wrong")
    error = failure(introduction(credentials=wrong))
    assert isinstance(error, AuthenticationFailed)
    assert "does not believe that we are jürgen (AUTH_ERROR)" in error.problem
    assert "wrong" not in repr(wrong)


def test_a_password_is_not_shown_where_others_can_see_it() -> None:
    error = failure(introduction(), SaslListMechanisms=plain(value=b"PLAIN CRAM-MD5"))
    assert isinstance(error, AuthenticationFailed)
    assert "couchbases://" in error.hint


@pytest.mark.parametrize(
    ("message", "answer"),
    [
        ("SaslStep", plain(value=b"v=AAAA")),
        ("SaslStep", plain()),
        ("SaslAuth", plain(Status.AUTH_CONTINUE, b"r=somebody,s=AAAA,i=4096")),
        ("SaslAuth", plain()),
        ("SaslAuth", plain(Status.AUTH_CONTINUE, b"\xff")),
    ],
)
def test_a_server_that_does_not_know_the_password_is_not_believed(
    message: str, answer: Response
) -> None:
    assert isinstance(failure(introduction(), **{message: answer}), AuthenticationFailed)


def test_a_server_without_users() -> None:
    error = failure(introduction(), SaslListMechanisms=plain(Status.UNKNOWN_COMMAND))
    assert isinstance(error, AuthenticationFailed)
    assert error.hint == "connect without one"


@pytest.mark.parametrize("message", ["Hello", "SaslListMechanisms", "SaslAuth", "SelectBucket"])
def test_a_server_that_is_busy_may_be_asked_again(message: str) -> None:
    said = json.dumps({"error": {"context": "warming  up\n"}}).encode()
    error = failure(introduction(), **{message: plain(Status.TEMPORARY_FAILURE, said)})
    assert type(error) is ConnectionFailed
    assert error.problem.endswith(" with TEMPORARY_FAILURE")
    assert error.hint == "warming up"


@pytest.mark.parametrize(
    ("status", "credentials", "hint"),
    [
        (Status.NOT_FOUND, ME, "check the name"),
        (Status.NO_ACCESS, ME, "may the user use it?"),
        (Status.NO_ACCESS, None, "give a user and a password"),
    ],
)
def test_a_bucket_that_is_not_there_or_not_for_us(
    status: Status, credentials: Credentials | None, hint: str
) -> None:
    error = failure(introduction(credentials=credentials), SelectBucket=plain(status))
    assert isinstance(error, BucketNotFound)
    assert " bucket b" in error.problem
    assert hint in error.hint


def test_a_server_that_can_select_buckets_must() -> None:
    error = failure(introduction(), SelectBucket=plain(Status.NOT_SUPPORTED))
    assert "refused the bucket b with NOT_SUPPORTED" in error.problem


def test_a_status_without_a_name_is_shown_as_its_number() -> None:
    odd = PlainResponse(command=Command.HELLO, status=Status.UNRECOGNISED, status_code=0x7777)
    assert failure(introduction(), Hello=odd).problem == "refused HELLO with UNRECOGNISED 0x7777"


def test_features_that_were_not_offered_would_be_misread() -> None:
    more = kv.HelloResponse(features=(*OFFERED, Feature.COLLECTIONS))
    assert isinstance(failure(introduction(), Hello=more), NotADcpServer)


def test_a_password_that_nobody_can_type() -> None:
    bad = Credentials(user="me", password="\x07")
    with pytest.raises(ConfigError, match="name or password has a character"):
        talk(introduction(credentials=bad), Server())


# ---- no answers at all -------------------------------------------------------------------


def test_strangers_are_told_by_their_first_bytes() -> None:
    assert "couchbases://" in stranger(bytes.fromhex("15030100020246")).hint
    web = stranger(b"HTTP/1.1 400 Bad Request\r\n" + b"x" * 1000)
    assert "b'HTTP/1.1 400 Bad Request'" in web.problem
    assert "11210" in web.hint


def test_silence_on_a_plain_connection_may_be_tls() -> None:
    assert "couchbases://" in hung_up("it closed the connection", secret=False).hint
    assert "couchbases://" not in hung_up("it closed the connection", secret=True).hint


@given(st.binary(max_size=60) | st.recursive(st.none() | st.text(), st.lists).map(json.dumps))
def test_whatever_a_server_says_of_a_refusal_is_one_short_line(said: bytes | str) -> None:
    value = said.encode(errors="replace") if isinstance(said, str) else said
    wrapped = json.dumps({"error": {"context": value.decode(errors="replace") * 20}}).encode()
    for text in (refusal_context(plain(value=value)), refusal_context(plain(value=wrapped))):
        assert len(text) <= 200
        assert "\n" not in text
