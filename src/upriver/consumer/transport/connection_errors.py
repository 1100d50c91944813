"""Converts failures of connections (DNS, TCP, TLS, silence) into `ConnectionFailed` with a hint."""

from __future__ import annotations

import ssl
from typing import TypeVar

from ...errors import ConnectionFailed
from ...session.client_handshake import hung_up

_E = TypeVar("_E", bound=BaseException)


def named(problem: _E, where: str) -> _E:
    """The error with the address of its node, if it is one of a connection and names none yet."""
    if isinstance(problem, ConnectionFailed) and not problem.where:
        problem.where = where
    return problem


def lost_connection(
    reason: str, *, heard_any: bool, silent: bool, tls: bool, where: str
) -> ConnectionFailed:
    """The error for a connection that ended, or with ``silent`` one without an answer.

    ``heard_any`` says whether the node ever sent any bytes. If not, it may be no node at all, and
    the hint asks for the right port.
    """
    if not heard_any:
        return named(hung_up(reason, secret=tls), where)
    if silent:
        return ConnectionFailed(f"was lost: {reason}", "is it overloaded?", where=where)
    return ConnectionFailed(f"was lost: {reason}", "see what its log says", where=where)


def reason_of(problem: OSError | UnicodeError) -> str:
    """The reason that the operating system or TLS gives for a failure; never empty."""
    if isinstance(problem, ssl.SSLCertVerificationError):
        return problem.verify_message
    if isinstance(problem, ssl.SSLError) and problem.reason:
        return problem.reason.replace("_", " ").lower()
    text = getattr(problem, "strerror", None) or str(problem)
    return text or type(problem).__name__


def unreachable(problem: OSError | UnicodeError, seconds: float) -> ConnectionFailed:
    """The error for an address to which no TCP connection can be made."""
    if isinstance(problem, TimeoutError) and not problem.strerror:
        return ConnectionFailed(
            f"cannot be reached: no connection within {seconds:g} s",
            "is the address right, and does a firewall drop what is sent there?",
        )
    return ConnectionFailed(
        f"cannot be reached: {reason_of(problem)}",
        "is a server running there? upriver serve starts one",
    )


def no_tls(problem: OSError, seconds: float) -> ConnectionFailed:
    """The error for a TLS handshake that failed."""
    if isinstance(problem, ssl.SSLCertVerificationError):
        return ConnectionFailed(
            f"makes no TLS connection: {problem.verify_message}",
            "is its authority known here, and is it the address that its certificate is for?",
        )
    if isinstance(problem, TimeoutError) and not problem.strerror:
        return ConnectionFailed(
            f"did not answer the TLS handshake for {seconds:g} s",
            "is it the TLS port for data (11207)? couchbase:// is for plain ports",
        )
    if isinstance(problem, ssl.SSLError) and problem.reason not in _PLAIN_PEER:
        return ConnectionFailed(
            f"makes no TLS connection: {reason_of(problem)}",
            "do both sides have a version of TLS in common?",
        )
    return ConnectionFailed("does not speak TLS", "use couchbase:// for plain ports")


#: Reasons that OpenSSL reports if the peer answers without TLS or closes the connection.
_PLAIN_PEER = frozenset(
    {
        "WRONG_VERSION_NUMBER",
        "UNEXPECTED_EOF_WHILE_READING",
        "RECORD_LAYER_FAILURE",
        "PACKET_LENGTH_TOO_LONG",
        "UNKNOWN_PROTOCOL",
        "HTTP_REQUEST",
        None,
    }
)
