"""A blocking connection to one node: reached, authenticated, and in its bucket.

One question is asked at a time. What is done with the connection afterwards, such as sending
without waiting for answers, is its user's business: the socket and the framer are public.
"""

from __future__ import annotations

import json
import socket
import ssl
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from .. import __version__
from ..errors import ConfigError, Status, UpriverError
from ..producer.users import prepare
from ..wire import kv
from ..wire.dialects import Dcp
from ..wire.framing import Framer
from ..wire.messages import PlainResponse, Request, Response
from ..wire.names import Feature
from .scram import SCRAM_DIGESTS, ScramClient
from .source import Source

__all__ = ["Access", "Link", "LinkFailed", "refusal_context"]

#: Seconds to reach a node: long enough for a lost packet or two to be sent again.
_CONNECT_SECONDS: Final = 10.0
#: Seconds for one answer; a failed authentication is slow on purpose.
_ANSWER_SECONDS: Final = 30.0
#: Bytes asked of a socket at once.
RECEIVE_BYTES: Final = 256 * 1024

_PLAIN: Final = "PLAIN"
_FEATURES: Final = (Feature.SELECT_BUCKET, Feature.XERROR, Feature.JSON)


class LinkFailed(UpriverError):
    """A node cannot be reached, or refuses; ``hint`` says what a person can do about it."""

    def __init__(self, problem: str, hint: str) -> None:
        super().__init__(f"{problem}; {hint}")
        self.problem = problem
        self.hint = hint


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """Who we are, and whom we believe."""

    #: Empty for servers without users.
    user: str = ""
    password: str = field(default="", repr=False)
    #: Certificates that a server's must come from; None for those of the system.
    authority: Path | None = None
    #: Believe any certificate, which protects from nobody who can stand in between.
    insecure: bool = False

    def __post_init__(self) -> None:
        if self.user and not self.password:
            raise ConfigError(f"there is no password for {self.user}")
        if self.authority is not None and self.insecure:
            raise ConfigError("an authority is of no use where any certificate is believed")

    def tls_context(self) -> ssl.SSLContext:
        try:
            context = ssl.create_default_context(cafile=self.authority)
        except (OSError, ssl.SSLError):
            raise ConfigError(f"{self.authority} holds no certificates") from None
        if self.insecure:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        return context


class Link:
    """A connection, ready for the documents of its bucket."""

    def __init__(self, source: Source, access: Access) -> None:
        self.source = source
        self.where = f"{source.host}:{source.port}"
        self.dialect = Dcp()
        self.framer = Framer()
        self.features: frozenset[Feature | int] = frozenset()
        self.socket = self._connect(access)
        try:
            self._bootstrap(access)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        self.socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    # ---- asking --------------------------------------------------------------------------

    def ask(self, request: Request) -> Response:
        """Sends a request and waits for its answer, whatever its status."""
        try:
            self.socket.sendall(self.dialect.encode(request))
            while True:
                chunk = self.socket.recv(RECEIVE_BYTES)
                for packet in self.framer.feed(chunk):
                    answer = self.dialect.decode(packet)
                    if isinstance(answer, Response):
                        return answer
                if not chunk:
                    raise self.lost("it closed the connection")
        except OSError as problem:
            raise self.lost(_reason(problem)) from None

    def _ask_for_text(self, request: Request) -> str:
        answer = self.ask(request)
        if answer.status is not Status.SUCCESS or not isinstance(answer, PlainResponse):
            raise LinkFailed(
                f"{self.where} refused {type(request).__name__} with {answer.status.name}",
                f"is it a server of Couchbase's protocol? {refusal_context(answer)}".rstrip(),
            )
        return answer.value.decode(errors="replace")

    def cluster_config(self) -> str:
        """The map of the bucket as JSON."""
        return self._ask_for_text(kv.GetClusterConfig())

    def lost(self, reason: str) -> LinkFailed:
        """The error for a connection that cannot go on."""
        return LinkFailed(f"lost {self.where}: {reason}", "see what its log says, then run again")

    # ---- beginning -----------------------------------------------------------------------

    def _connect(self, access: Access) -> socket.socket:
        context = access.tls_context() if self.source.tls else None
        address = self.source.host, self.source.port
        try:
            plain = socket.create_connection(address, timeout=_CONNECT_SECONDS)
        except OSError as problem:
            raise LinkFailed(
                f"cannot connect to {self.where}: {_reason(problem)}",
                "is a server running there? upriver serve starts one",
            ) from None
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            plain.settimeout(_ANSWER_SECONDS)
            if context is None:
                return plain
            return context.wrap_socket(plain, server_hostname=self.source.host)
        except OSError as problem:
            plain.close()
            hint = "is it a TLS port? --ca names the file of its authority"
            raise LinkFailed(f"no TLS with {self.where}: {_reason(problem)}", hint) from None

    def _bootstrap(self, access: Access) -> None:
        hello = self.ask(kv.Hello(agent=f"upriver/{__version__}", features=_FEATURES))
        if isinstance(hello, kv.HelloResponse):
            self.features = frozenset(hello.features)
        if access.user:
            self._authenticate(access)
        self._select(self.source.bucket, access.user)

    def _authenticate(self, access: Access) -> None:
        offered = self._ask_for_text(kv.SaslListMechanisms()).split()
        try:
            user, password = prepare(access.user), prepare(access.password)
        except ValueError as problem:
            raise ConfigError(f"the user's name or password has {problem}") from None
        for mechanism in SCRAM_DIGESTS:
            if mechanism in offered:
                return self._scram(mechanism, user, password)
        if _PLAIN not in offered or not self.source.tls:
            raise LinkFailed(
                f"{self.where} offers no mechanism that keeps the password secret",
                "connect with couchbases://",
            )
        payload = f"\0{user}\0{password}".encode()
        return self._believed(self.ask(kv.SaslAuth(mechanism=_PLAIN, payload=payload)), user)

    def _scram(self, mechanism: str, user: str, password: str) -> None:
        exchange = ScramClient(mechanism, user, password)
        challenge = self.ask(kv.SaslAuth(mechanism=mechanism, payload=exchange.first()))
        self._believed(challenge, user, Status.AUTH_CONTINUE)
        assert isinstance(challenge, PlainResponse)
        try:
            payload = exchange.answer(challenge.value)
            final = self.ask(kv.SaslStep(mechanism=mechanism, payload=payload))
            self._believed(final, user)
            assert isinstance(final, PlainResponse)
            exchange.check(final.value)
        except ValueError as problem:
            raise LinkFailed(
                f"{self.where} is not to be trusted: {problem}", "check the address"
            ) from None

    def _believed(self, answer: Response, user: str, status: Status = Status.SUCCESS) -> None:
        if answer.status is not status:
            raise LinkFailed(
                f"{self.where} does not believe that we are {user} ({answer.status.name})",
                "check --user and the password",
            )

    def _select(self, bucket: str, user: str) -> None:
        answer = self.ask(kv.SelectBucket(bucket=bucket))
        if answer.status is Status.SUCCESS:
            return
        if answer.status is Status.NOT_FOUND:
            raise LinkFailed(f"{self.where} has no bucket {bucket}", "check the end of the source")
        if answer.status is Status.NO_ACCESS:
            hint = "does it exist, and may the user write?" if user else "give --user"
            raise LinkFailed(f"{self.where} keeps us out of the bucket {bucket}", hint)
        raise LinkFailed(
            f"{self.where} refused the bucket {bucket} with {answer.status.name}",
            refusal_context(answer) or "see what its log says",
        )


def refusal_context(answer: Response) -> str:
    """What a server says about a refusal, if it says anything."""
    try:
        said = json.loads(getattr(answer, "value", b""))["error"]["context"]
    except (ValueError, KeyError, TypeError):
        return ""
    return str(said)


def _reason(problem: OSError) -> str:
    if isinstance(problem, ssl.SSLCertVerificationError):
        return problem.verify_message
    return problem.strerror or str(problem)
