"""Servers that know the commands of one document, and hang up on every other."""

from __future__ import annotations

import socket
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

from consumerkit import LOG, Conversation, Scripted, marker, mutation
from packets import Packets

from upriver.errors import DecodeError
from upriver.model import FailoverLog
from upriver.wire import messages as m
from upriver.wire.dialects import Dialect, SnapshotStyle

#: The numbers of the change, a mutation, that they print. Its opaque is not one of our clients'.
PRINTED_MUTATION: Final = {"000": 12, "001": 14}

#: What a test does with an accepted stream.
Play = Callable[[Conversation, m.StreamRequest], None]


class DraftServer(Scripted):
    """Accepts every stream and lets ``play`` send on it. It keeps what it is sent."""

    def __init__(self, dialect: Dialect, play: Play, *, log: FailoverLog = LOG) -> None:
        self._play = play
        self._log = log
        #: All packets of clients that are neither an Open nor a request for a log, in order.
        self.heard: list[bytes] = []
        super().__init__(dialect=dialect, vbuckets=1)

    def _serve(self, connection: socket.socket) -> None:
        talk = Conversation(connection, self._dialect)
        with connection, suppress(OSError, DecodeError):
            for packet in Packets(connection):
                if not self._obey(talk, packet):
                    return

    def _obey(self, talk: Conversation, packet: bytes) -> bool:
        request: Any = self._dialect.decode(packet)
        if isinstance(request, m.FailoverLogRequest):
            entries = self._log.entries
            talk.send(m.FailoverLogResponse(opaque=request.opaque, failover_log=entries))
        elif isinstance(request, m.Open):
            talk.answer(request)
        else:
            self.heard.append(packet)
            if isinstance(request, m.CloseStream):
                talk.answer(request)
            elif isinstance(request, m.StreamRequest):
                carried = self._dialect.accepts_with_failover_log
                entries = self._log.entries if carried else ()
                talk.send(m.StreamAccepted(opaque=request.opaque, failover_log=entries))
                self._play(talk, request)
            elif not isinstance(request, m.Response | m.RequestError | m.ResponseError):
                return False
        return True

    def requests(self) -> list[m.StreamRequest]:
        """The stream requests so far."""
        decoded = map(self._dialect.decode, list(self.heard))
        return [request for request in decoded if isinstance(request, m.StreamRequest)]


def opening(dialect: Dialect, request: m.StreamRequest, end: int = 9) -> list[m.Message]:
    """The messages that come before the first change of a stream."""
    about: dict[str, Any] = {"vbucket": request.vbucket, "opaque": request.opaque}
    if dialect.snapshot_style is SnapshotStyle.RANGE_MARKER:
        return [marker(0, end, **about)]
    if dialect.snapshot_style is SnapshotStyle.BARE_MARKER:
        return [m.SnapshotMarker(**about)]
    return [m.StreamStart(**about), m.SnapshotStart(**about)]


def closing(dialect: Dialect, request: m.StreamRequest) -> list[m.Message]:
    """The messages that end a snapshot and its stream."""
    about: dict[str, Any] = {"vbucket": request.vbucket, "opaque": request.opaque}
    ends = [m.SnapshotEnd(**about)] if dialect.snapshot_style is SnapshotStyle.EDGES else []
    return [*ends, m.StreamEnd(**about)]


def change(request: m.StreamRequest, seqno: int) -> m.Mutation:
    return mutation(seqno, opaque=request.opaque, vbucket=request.vbucket)
