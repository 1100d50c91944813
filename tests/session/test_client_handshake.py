"""What is said first on a connection, question by question, and every way in which it can end."""

from __future__ import annotations

import json
import re
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
from upriver.producer.bootstrap.sasl import Continue, SaslExchange, Success
from upriver.producer.bootstrap.users import Grant, Role, Users
from upriver.session.client_handshake import (
    Credentials,
    Introduced,
    Introduction,
    hung_up,
    introduce,
    refusal_context,
    stranger,
)
from upriver.session.conversation import Compute
from upriver.wire import kv_messages as kv
from upriver.wire.messages import PlainResponse, Request, Response
from upriver.wire.protocol_enums import Command, Feature

OFFERED = (Feature.SELECT_BUCKET, Feature.XERROR, Feature.JSON)
ME = Credentials(user="jürgen", password="IX a b")

#: The same, typed in another way.
USERS = Users()
USERS.add("ju\u0308rgen", "\u2168 a\u00a0b", Grant(Role.READ_DATA), iterations=4096)


def introduction(
    *, credentials: Credentials | None = ME, secret: bool = False, allow_plain: bool = False
) -> Introduction:
    return Introduction(
        agent="test",
        bucket="b",
        features=OFFERED,
        credentials=credentials,
        secret=secret,
        allow_plain=allow_plain,
    )


def plain(status: Status = Status.SUCCESS, value: bytes = b"") -> PlainResponse:
    return PlainResponse(command=Command.NOOP, status=status, value=value)


class Server:
    """Answers as a server does, but for what a test wants otherwise; keeps what it was asked."""

    def __init__(self, **otherwise: Response) -> None:
        self.asked: list[Request] = []
        self._otherwise = otherwise
        self._exchange = SaslExchange(USERS, tls=True)

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
    step = next(conversation)
    while True:
        reply = step.work() if isinstance(step, Compute) else server(step)  # type: ignore[arg-type]
        try:
            step = conversation.send(reply)
        except StopIteration as done:
            assert isinstance(done.value, Introduced)
            return done.value


def failure(said: Introduction, **otherwise: Response) -> ConnectionFailed:
    with pytest.raises(ConnectionFailed) as caught:
        talk(said, Server(**otherwise))
    assert "IX a b" not in str(caught.value)
    assert "the server" in str(caught.value)
    caught.value.where = "db:11210"
    assert "db:11210" in str(caught.value)
    assert "{" not in str(caught.value)
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
    assert "SelectBucket" not in server.names


def test_a_bucket_is_selected_only_where_hello_granted_that() -> None:
    """Release 4.1.2 knows Hello, does not grant the feature, and refuses the command."""
    granted = (Feature.XERROR,)
    server = Server(Hello=kv.HelloResponse(features=granted), SelectBucket=plain(Status.NO_ACCESS))
    assert talk(introduction(credentials=None), server).features == frozenset(granted)
    assert server.names == ["Hello"]


class CramMd5:
    """A server of release 4.1.2: offers CRAM-MD5 and PLAIN, with the example of RFC 2195."""

    challenge = b"<1896.697170952@postoffice.reston.mci.net>"
    proof = b"tim b913a602c7eda7a495b4e6e7334d3890"

    def __init__(self) -> None:
        self.asked: list[str] = []

    def __call__(self, request: Request) -> Response:
        match request:
            case kv.SaslListMechanisms():
                return plain(value=b"CRAM-MD5 PLAIN")
            case kv.SaslAuth():
                self.asked.append(request.mechanism)
                if request.mechanism == "PLAIN":
                    return plain(Status.AUTH_ERROR)
                assert request.payload == b""
                return plain(Status.AUTH_CONTINUE, self.challenge)
            case kv.SaslStep():
                believed = request.payload == self.proof
                return plain(Status.SUCCESS if believed else Status.AUTH_ERROR)
        return plain(Status.UNKNOWN_COMMAND)


TIM = Credentials(user="tim", password="tanstaaftanstaaf")


def test_cram_md5_with_the_example_of_its_rfc() -> None:
    server = CramMd5()
    talk(introduction(credentials=TIM), server)
    assert server.asked == ["CRAM-MD5"]


@pytest.mark.parametrize(("secret", "asked"), [(False, 1), (True, 2)])
def test_a_wrong_password_in_cram_md5(secret: bool, asked: int) -> None:
    server = CramMd5()
    wrong = introduction(
        credentials=Credentials(user="tim", password="x"), secret=secret, allow_plain=True
    )
    with pytest.raises(AuthenticationFailed, match="authentication failed for user 'tim'"):
        talk(wrong, server)
    assert server.asked == ["CRAM-MD5", "PLAIN"][:asked]


def test_a_cram_md5_challenge_must_not_be_empty() -> None:
    server = CramMd5()
    server.challenge = b""
    with pytest.raises(AuthenticationFailed, match="empty challenge"):
        talk(introduction(credentials=TIM), server)


def test_plain_without_tls_needs_an_option() -> None:
    offered = plain(value=b"PLAIN")
    error = failure(introduction(), SaslListMechanisms=offered)
    assert isinstance(error, AuthenticationFailed)
    assert "couchbases://" in error.hint
    assert "--allow-plain" in error.hint
    server = Server(SaslListMechanisms=offered)
    talk(introduction(allow_plain=True), server)
    (shown,) = (asked for asked in server.asked if isinstance(asked, kv.SaslAuth))
    assert shown.mechanism == "PLAIN"


# ---- it does not -------------------------------------------------------------------------


def test_a_wrong_password_is_the_user_s_problem() -> None:
    wrong = Credentials(user="jürgen", password="wrong")
    error = failure(introduction(credentials=wrong))
    assert isinstance(error, AuthenticationFailed)
    assert str(error) == (
        "authentication failed for user 'jürgen' at db:11210; check the user and the password"
    )
    assert "wrong" not in repr(wrong)


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
        (Status.NO_ACCESS, ME, "has the user the role Data DCP Reader?"),
        (Status.NO_ACCESS, None, "give a user and a password"),
    ],
)
def test_a_bucket_that_is_not_there_or_not_for_us(
    status: Status, credentials: Credentials | None, hint: str
) -> None:
    error = failure(introduction(credentials=credentials), SelectBucket=plain(status))
    assert isinstance(error, BucketNotFound)
    assert re.search(" bucket '?b\\b", error.problem)
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
