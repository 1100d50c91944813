"""Users that a server knows by their password alone, because a directory keeps them."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from upriver.errors import AuthenticationFailed, Status
from upriver.session.client_handshake import Credentials, Introduction, introduce
from upriver.session.conversation import Compute
from upriver.wire import kv_messages as kv
from upriver.wire.messages import PlainResponse, Request, Response
from upriver.wire.protocol_enums import Command

OFFERED = b"SCRAM-SHA512 SCRAM-SHA1 PLAIN OAUTHBEARER"


def said(status: Status, value: bytes = b"") -> PlainResponse:
    return PlainResponse(command=Command.SASL_AUTH, status=status, value=value)


class Server:
    """Believes those whose password it sees; of others it says so at one of two moments."""

    def __init__(self, *, at_once: bool, offers: bytes = OFFERED, password: str = "secret") -> None:
        self.asked: list[str] = []
        self._at_once = at_once
        self._offers = offers
        self._password = password

    def __call__(self, request: Request) -> Response:
        match request:
            case kv.Hello():
                return kv.HelloResponse(features=())
            case kv.SaslListMechanisms():
                return said(Status.SUCCESS, self._offers)
            case kv.SaslAuth(mechanism="PLAIN"):
                self.asked.append("PLAIN")
                good = request.payload == f"\0ann\0{self._password}".encode()
                return said(Status.SUCCESS if good else Status.AUTH_ERROR)
            case kv.SaslAuth():
                self.asked.append(request.mechanism)
                if self._at_once:
                    return said(Status.AUTH_ERROR)
                nonce = dict(part.split(b"=", 1) for part in request.payload[3:].split(b","))[b"r"]
                return said(Status.AUTH_CONTINUE, b"r=" + nonce + b"x,s=c2FsdA==,i=4096")
            case kv.SaslStep():
                return said(Status.AUTH_ERROR)
        return said(Status.SUCCESS)


def sign_in(server: Callable[[Request], Response], *, secret: bool) -> None:
    who = Credentials(user="ann", password="secret")
    talk = introduce(
        Introduction(agent="test", bucket="b", features=(), credentials=who, secret=secret)
    )
    step = next(talk)
    while True:
        reply = step.work() if isinstance(step, Compute) else server(step)  # type: ignore[arg-type]
        try:
            step = talk.send(reply)
        except StopIteration:
            return


@pytest.mark.parametrize("at_once", [True, False])
def test_where_nobody_listens_the_password_is_shown_in_the_end(at_once: bool) -> None:
    server = Server(at_once=at_once)
    sign_in(server, secret=True)
    assert server.asked == ["SCRAM-SHA512", "PLAIN"]


@pytest.mark.parametrize("at_once", [True, False])
@pytest.mark.parametrize(("secret", "offers"), [(False, OFFERED), (True, b"SCRAM-SHA512")])
def test_it_is_shown_nowhere_else(at_once: bool, secret: bool, offers: bytes) -> None:
    server = Server(at_once=at_once, offers=offers)
    with pytest.raises(AuthenticationFailed, match="authentication failed for user 'ann'"):
        sign_in(server, secret=secret)
    assert server.asked == ["SCRAM-SHA512"]


def test_a_wrong_password_is_wrong_in_both_ways() -> None:
    with pytest.raises(AuthenticationFailed, match="authentication failed for user 'ann'"):
        sign_in(Server(at_once=False, password="other"), secret=True)


def test_a_server_that_pretends_to_believe_sees_no_password() -> None:
    """It says that all is well without having proved that it knows the password."""
    server = Server(at_once=False)

    def pretender(request: Request) -> Response:
        if isinstance(request, kv.SaslStep):
            return said(Status.SUCCESS, b"v=c2FsdA==")
        return server(request)

    with pytest.raises(AuthenticationFailed, match=r"does not know the password.*name no user"):
        sign_in(pretender, secret=True)
    assert server.asked == ["SCRAM-SHA512"]
