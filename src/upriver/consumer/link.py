"""A blocking connection to one node: reached, authenticated, and in its bucket.

One question is asked at a time. What is done with the connection afterwards, such as sending
without waiting for answers, is its user's business: the socket and the framer are public.
"""

from __future__ import annotations

import socket
import ssl
import time
from collections.abc import Iterable, Iterator
from dataclasses import replace
from types import TracebackType
from typing import Final, Self

from .. import __version__
from ..errors import ConnectionFailed, DecodeError, Status, StatusError
from ..session.introduction import (
    FIRST_OPAQUE,
    Introduction,
    hung_up,
    introduce,
    refusal_context,
    stranger,
)
from ..wire import kv
from ..wire.dialects import Dcp
from ..wire.framing import Framer
from ..wire.header import HEADER_SIZE
from ..wire.limits import MAX_KEY
from ..wire.messages import PlainResponse, Request, Response
from ..wire.names import Feature
from .access import Access
from .collections import Collections
from .source import Address, Source
from .topology import ClusterMap, Network

__all__ = ["AGENT", "Link"]

#: What servers write into their logs about us.
AGENT: Final = f"upriver/{__version__}"
#: Seconds to reach a node: long enough for a lost packet or two to be sent again.
CONNECT_SECONDS: Final = 10.0
#: Seconds for one answer; a failed authentication is slow on purpose.
ANSWER_SECONDS: Final = 30.0
#: Bytes asked of a socket at once.
RECEIVE_BYTES: Final = 256 * 1024

_FEATURES: Final = (Feature.SELECT_BUCKET, Feature.XERROR, Feature.JSON)
_OPAQUES: Final = 2**32

#: What every statistic is, but for its lengths and its opaque.
_STATISTIC: Final = Dcp().encode(kv.StatResponse())


class Link:
    """A connection, ready for the documents of its bucket."""

    def __init__(
        self,
        address: Address,
        source: Source,
        access: Access,
        *,
        features: Iterable[Feature] = _FEATURES,
        timeout: float = ANSWER_SECONDS,
    ) -> None:
        """Reaches one node, which need not be among the source's own."""
        self.address = address
        self.source = source
        self.dialect = Dcp()
        self.framer = Framer()
        self.features: frozenset[Feature | int] = frozenset()
        self._timeout = timeout
        self._opaque = FIRST_OPAQUE
        #: What came last, to show where the first of it makes no sense.
        self._chunk = b""
        self.socket = self._connect(access)
        try:
            self._introduce(access, tuple(features))
        except ConnectionFailed as error:
            self.close()
            error.where = self.where
            raise
        except BaseException:
            self.close()
            raise

    @classmethod
    def open(
        cls,
        source: Source,
        access: Access,
        *,
        features: Iterable[Feature] = _FEATURES,
        timeout: float = ANSWER_SECONDS,
    ) -> Self:
        """Reaches the first node of the source that has us; the last error tells of all."""
        features = tuple(features)
        failures: list[str] = []
        for address in source.hosts:
            try:
                return cls(address, source, access, features=features, timeout=timeout)
            except ConnectionFailed as error:
                if address == source.hosts[-1]:
                    if failures:
                        error.problem += f" (before it, {', '.join(failures)})"
                    raise
                failures.append(f"{error.where} {error.problem}")
        raise ValueError("a source without hosts")

    @property
    def where(self) -> str:
        return str(self.address)

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
        """Sends a request under an opaque of its own and waits for its answer, good or bad.

        Anything else that comes meanwhile is passed over.
        """
        try:
            return self._exchange(request)
        except OSError as problem:
            raise self.lost(_reason(problem)) from None

    def ask_all(self, requests: Iterable[Request]) -> list[Response]:
        """Sends requests together and waits for all their answers, which come in their order."""
        try:
            first = self._send(*requests)
            count = self._opaque - first
            answers = self._answers(first, first + count)
            return [next(answers) for _ in range(count)]
        except OSError as problem:
            raise self.lost(_reason(problem)) from None

    def statistics(self, *groups: str) -> dict[str, str]:
        """Groups of statistics by name. `StatusError` if the server does not tell one."""
        try:
            first = self._send(*(kv.Stat(group=group) for group in groups))
            answers = self._answers(first, self._opaque)
            found: dict[str, str] = {}
            left = len(groups)
            while left:
                answer = next(answers)
                if not isinstance(answer, kv.StatResponse) or answer.status is not Status.SUCCESS:
                    group = groups[answer.opaque - first]
                    raise StatusError(answer.status, request=f"the statistics {group!r}")
                if answer.key:
                    found[answer.key] = answer.value.decode(errors="replace")
                else:
                    left -= 1
            return found
        except OSError as problem:
            raise self.lost(_reason(problem)) from None

    def _exchange(self, request: Request) -> Response:
        return next(self._answers(self._send(request), self._opaque))

    def _send(self, *requests: Request) -> int:
        """Sends requests under opaques of their own; returns the first of these."""
        if self._opaque + len(requests) > _OPAQUES:
            self._opaque = 1
        first, self._opaque = self._opaque, self._opaque + len(requests)
        packets = [
            self.dialect.encode(replace(request, opaque=opaque))
            for opaque, request in enumerate(requests, first)
        ]
        self.socket.settimeout(self._timeout)
        self.socket.sendall(b"".join(packets))
        return first

    def _answers(self, first: int, stop: int) -> Iterator[Response]:
        """The answers to some opaques, as they come."""
        deadline = time.monotonic() + self._timeout
        while True:
            for packet in self.framer.feed(self._receive(deadline)):
                answer = _usual_statistic(packet) or self.dialect.decode(packet)
                if isinstance(answer, Response) and first <= answer.opaque < stop:
                    yield answer

    def _receive(self, deadline: float) -> bytes:
        left = deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError
        self.socket.settimeout(left)
        self._chunk = self.socket.recv(RECEIVE_BYTES)
        if not self._chunk:
            raise ConnectionAbortedError("it closed the connection")
        return self._chunk

    def cluster_config(self) -> str:
        """The map of the bucket as JSON."""
        answer = self.ask(kv.GetClusterConfig())
        if answer.status is not Status.SUCCESS or not isinstance(answer, PlainResponse):
            raise ConnectionFailed(
                f"refused to tell its cluster map with {answer.status.name}",
                refusal_context(answer) or "see what its log says",
                where=self.where,
            )
        return answer.value.decode(errors="replace")

    def cluster_map(self, network: Network = "auto") -> ClusterMap:
        """The map of the bucket; `RemoteProtocolError` says what is wrong with it."""
        return ClusterMap.parse(
            self.cluster_config(), reached=self.address, tls=self.source.tls, network=network
        )

    def collections(self) -> Collections | None:
        """What the collections are called now; None if the server does not tell."""
        answer = self.ask(kv.GetManifest())
        if answer.status is Status.SUCCESS and isinstance(answer, PlainResponse):
            return Collections.parse(answer.value)
        return None

    def lost(self, reason: str) -> ConnectionFailed:
        """The error for a connection that cannot go on."""
        return ConnectionFailed(
            f"was lost: {reason}", "see what its log says, then run again", where=self.where
        )

    # ---- beginning -----------------------------------------------------------------------

    def _connect(self, access: Access) -> socket.socket:
        context = access.tls_context() if self.source.tls else None
        try:
            plain = socket.create_connection(
                (self.address.host, self.address.port), timeout=min(CONNECT_SECONDS, self._timeout)
            )
        except (OSError, UnicodeError) as problem:
            raise ConnectionFailed(
                f"cannot be reached: {_reason(problem)}",
                "is a server running there? upriver serve starts one",
                where=self.where,
            ) from None
        try:
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            plain.settimeout(self._timeout)
            if context is None:
                return plain
            return context.wrap_socket(plain, server_hostname=self.address.host)
        except OSError as problem:
            plain.close()
            raise ConnectionFailed(
                f"makes no TLS connection: {_reason(problem)}",
                "is its authority known here, and is it the address that its certificate is for?"
                if isinstance(problem, ssl.SSLCertVerificationError)
                else "is it a TLS port? couchbase:// is for plain ones",
                where=self.where,
            ) from None
        except BaseException:
            plain.close()
            raise

    def _introduce(self, access: Access, features: tuple[Feature, ...]) -> None:
        introduction = Introduction(
            agent=AGENT,
            bucket=self.source.bucket,
            features=features,
            credentials=access.credentials(),
            secret=self.source.tls,
        )
        talk = introduce(introduction)
        try:
            answer = self._greet(next(talk))
            while True:
                answer = self.ask(talk.send(answer))
        except DecodeError:
            raise stranger(self._chunk) from None
        except StopIteration as done:
            self.features = done.value.features
            self.dialect = Dcp(collections=Feature.COLLECTIONS in self.features)

    def _greet(self, request: Request) -> Response:
        try:
            return self._exchange(request)
        except OSError as problem:
            raise hung_up(_reason(problem), secret=self.source.tls) from None


def _usual_statistic(packet: bytes) -> kv.StatResponse | None:
    """What the dialect makes of a statistic, unless it is odd: they come by the thousand."""
    if packet[:2] != _STATISTIC[:2] or packet[4:8] != _STATISTIC[4:8]:
        return None
    body, length = packet[HEADER_SIZE:], int.from_bytes(packet[2:4])
    if length > min(len(body), MAX_KEY) or not body.isascii():
        return None
    return kv.StatResponse(
        opaque=int.from_bytes(packet[12:16]), key=body[:length].decode(), value=body[length:]
    )


def _reason(problem: OSError | UnicodeError) -> str:
    if isinstance(problem, ssl.SSLCertVerificationError):
        return problem.verify_message
    if isinstance(problem, ssl.SSLError) and problem.reason:
        return problem.reason.replace("_", " ").lower()
    if isinstance(problem, TimeoutError) and not problem.strerror:
        return "nothing was heard of it for too long"
    return getattr(problem, "strerror", None) or str(problem)
