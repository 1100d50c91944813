"""Servers that know the commands of one document and nothing else, each as its text says.

They have no Hello, no users, no cluster map, no statistics and no other way to be asked how far
they are. What they do not know ends the connection, is refused, or is passed over in silence. They
take their document literally: a stream ends when the seqno that was asked for has been sent.
"""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Final, Literal

from consumerkit import Conversation, Scripted
from packets import Packets

from upriver.errors import DecodeError, Status
from upriver.model import NO_END, FailoverLog, StreamEndReason, StreamOffset, rollback_point
from upriver.wire import messages as m
from upriver.wire.dialects import Dcp, Dialect, Draft000, Draft001, Draft002
from upriver.wire.header import parse_header

__all__ = ["DOCUMENTS", "Document000", "Document001", "Document002", "Document004", "OneDocument"]

#: What a server does with a packet that its document does not have.
Unknown = Literal["hangs up", "refuses", "keeps silent"]
_UNKNOWN_COMMAND: Final = 0x81


@dataclass(slots=True)
class _Open:
    """A stream that is open: where, and what it asked for."""

    talk: Conversation
    request: m.StreamRequest


class OneDocument(Scripted):
    """What they have in common; changes by vbucket, of each key the newest."""

    document: ClassVar[str]
    draft: ClassVar[Dialect]
    known: ClassVar[tuple[type[Any], ...]] = (m.StreamRequest, m.FailoverLogRequest)
    #: What is done with all other packets, unless a test says otherwise.
    usually: ClassVar[Unknown] = "hangs up"

    def __init__(
        self, rows: dict[int, int] | None = None, *, unknown: Unknown | None = None
    ) -> None:
        """``rows`` are so many changes per vbucket, of the keys 0:k1, 0:k2 and so on."""
        self.changes: dict[int, dict[bytes, m.Mutation | m.Deletion]] = {}
        self.highs: dict[int, int] = {}
        self.logs: dict[int, FailoverLog] = {}
        self.unknown = unknown or self.usually
        #: Requests of the document, and the first bytes of all others.
        self.asked: list[Any] = []
        self.not_understood: list[bytes] = []
        self._streams: list[_Open] = []
        self._lock = threading.RLock()
        self._has_asked: set[Conversation] = set()
        for vbucket, count in (rows or {0: 3}).items():
            self.changes[vbucket], self.highs[vbucket] = {}, 0
            self.logs[vbucket] = FailoverLog.of((7, 0))
            for number in range(1, count + 1):
                self.write(vbucket, b"%d:k%d" % (vbucket, number))
        super().__init__(self._answered, dialect=self.draft)

    # ---- what tests do -------------------------------------------------------------------

    def write(self, vbucket: int, key: bytes, value: bytes | None = b"v") -> int:
        """Writes a document, or deletes it; every open stream gets it as a snapshot."""
        with self._lock:
            seqno = self.highs[vbucket] = self.highs[vbucket] + 1
            common: dict[str, Any] = {"vbucket": vbucket, "seqno": seqno, "key": key, "cas": seqno}
            change: m.Mutation | m.Deletion = (
                m.Deletion(**common) if value is None else m.Mutation(value=value, **common)
            )
            self.changes[vbucket].pop(key, None)
            self.changes[vbucket][key] = change
            for stream in self._of(vbucket):
                with suppress(OSError):
                    self._send(stream, [change])
            return seqno

    def documents(self) -> dict[bytes, bytes]:
        return {
            key: bytes(change.value)
            for changes in self.changes.values()
            for key, change in changes.items()
            if isinstance(change, m.Mutation)
        }

    def fail_over(self, vbucket: int, seqno: int, vbuuid: int) -> None:
        """A new branch, which lost what was above a seqno; streams end."""
        with self._lock:
            self.logs[vbucket] = self.logs[vbucket].branch(vbuuid, seqno)
            self.changes[vbucket] = {
                key: change
                for key, change in self.changes[vbucket].items()
                if change.seqno <= seqno
            }
            self.highs[vbucket] = seqno
            for stream in self._of(vbucket):
                with suppress(OSError):  # its reader has gone meanwhile
                    self._end(stream, StreamEndReason.STATE_CHANGED)

    def flush(self, vbucket: int) -> None:
        """Deletes every document; streams are told."""
        with self._lock:
            self.changes[vbucket] = {}
            for stream in self._of(vbucket):
                opaque = stream.request.opaque
                with suppress(OSError):
                    stream.talk.send(m.FlushStream(vbucket=vbucket, opaque=opaque))

    def asked_for(self, kind: type[Any]) -> list[Any]:
        return [request for request in self.asked if isinstance(request, kind)]

    def _of(self, vbucket: int) -> list[_Open]:
        return [stream for stream in self._streams if stream.request.vbucket == vbucket]

    # ---- one connection ------------------------------------------------------------------

    def _serve(self, connection: socket.socket) -> None:
        talk = Conversation(connection, self.draft)
        with connection, suppress(OSError, DecodeError):
            for packet in Packets(connection):
                if not self._is_known(talk, packet) and self.unknown == "hangs up":
                    break
        with self._lock:
            self._streams = [stream for stream in self._streams if stream.talk is not talk]

    def _is_known(self, talk: Conversation, packet: bytes) -> bool:
        try:
            request = self.draft.decode(packet)
        except DecodeError:
            request = None
        if isinstance(request, m.Response):
            return True
        if isinstance(request, self.known):
            self.asked.append(request)
            with self._lock:
                self._answered(talk, request)
            return True
        self.not_understood.append(packet[:24])
        if self.unknown == "refuses":
            self._refuse(talk, packet)
        return False

    def _refuse(self, talk: Conversation, packet: bytes) -> None:
        header = parse_header(packet)
        answer = bytearray(24)
        answer[0], answer[1], answer[7] = 0x81, header.opcode, _UNKNOWN_COMMAND
        answer[12:16] = header.opaque.to_bytes(4, "big")
        talk.socket.sendall(answer)

    # ---- what the documents have in common -----------------------------------------------

    def _answered(self, talk: Conversation, request: Any) -> bool:
        match request:
            case m.FailoverLogRequest():
                self._tell_log(talk, request)
            case m.StreamRequest():
                self._stream(talk, request)
        return True

    def _tell_log(self, talk: Conversation, request: m.FailoverLogRequest) -> None:
        if request.vbucket not in self.logs:
            talk.answer(request, Status.NOT_MY_VBUCKET)
            return
        log = self.logs[request.vbucket].entries
        talk.send(m.FailoverLogResponse(opaque=request.opaque, failover_log=log))

    def _stream(self, talk: Conversation, request: m.StreamRequest) -> None:
        vbucket = request.vbucket
        if vbucket not in self.logs:
            talk.answer(request, Status.NOT_MY_VBUCKET)
            return
        known = any(entry.vbuuid == request.vbuuid for entry in self.logs[vbucket])
        if request.start and not known:
            self._refuse_branch(talk, request)
            return
        point = rollback_point(
            self.logs[vbucket],
            StreamOffset.at(request.vbuuid, request.start),
            high_seqno=self.highs[vbucket],
        )
        if point is not None:
            talk.send(m.StreamRollback(opaque=request.opaque, seqno=point))
            return
        if not self._has_range(talk, request):
            return
        self._grant(talk, request)
        stream = _Open(talk, request)
        self._streams.append(stream)
        wanted = [c for c in self.changes[vbucket].values() if c.seqno > request.start]
        if wanted:
            self._send(stream, wanted)
        elif self.highs[vbucket] >= request.end:
            self._end(stream, StreamEndReason.OK)

    def _has_range(self, talk: Conversation, request: m.StreamRequest) -> bool:
        return True

    def _refuse_branch(self, talk: Conversation, request: m.StreamRequest) -> None:
        talk.send(m.StreamRollback(opaque=request.opaque, seqno=0))

    def _grant(self, talk: Conversation, request: m.StreamRequest) -> None:
        raise NotImplementedError

    def _send(self, stream: _Open, changes: list[m.Mutation | m.Deletion]) -> None:
        """Sends changes as one snapshot, up to the end that was asked for."""
        request = stream.request
        until = [change for change in changes if change.seqno <= request.end]
        is_cut = len(until) < len(changes)
        if until:
            own = [replace(change, opaque=request.opaque) for change in until]
            self._send_snapshot(stream, own, whole=not is_cut)
        if is_cut or (request.end != NO_END and self.highs[request.vbucket] >= request.end):
            self._end(stream, StreamEndReason.OK)

    def _send_snapshot(
        self, stream: _Open, changes: list[m.Mutation | m.Deletion], *, whole: bool
    ) -> None:
        raise NotImplementedError

    def _end(self, stream: _Open, reason: StreamEndReason) -> None:
        self._streams.remove(stream)
        request = stream.request
        stream.talk.send(m.StreamEnd(vbucket=request.vbucket, opaque=request.opaque, reason=reason))


class _WithEdges(OneDocument):
    """Snapshots have a start and an end message; streams begin without a failover log."""

    def _grant(self, talk: Conversation, request: m.StreamRequest) -> None:
        vbucket, opaque = request.vbucket, request.opaque
        talk.send(m.StreamAccepted(opaque=opaque), m.StreamStart(vbucket=vbucket, opaque=opaque))

    def _send_snapshot(
        self, stream: _Open, changes: list[m.Mutation | m.Deletion], *, whole: bool
    ) -> None:
        edge: dict[str, Any] = {
            "vbucket": stream.request.vbucket,
            "opaque": stream.request.opaque,
        }
        stream.talk.send(m.SnapshotStart(**edge), *changes)
        if whole:
            stream.talk.send(m.SnapshotEnd(**edge))


class Document002(_WithEdges):
    """12-byte headers; a stream request and a failover log request, and nothing else."""

    document = "002"
    draft: ClassVar[Dialect] = Draft002()

    def _refuse(self, talk: Conversation, packet: bytes) -> None:
        talk.send(m.RequestError(text="it is not known"))


class Document000(_WithEdges):
    """The same conversation in packets of memcached."""

    document = "000"
    draft: ClassVar[Dialect] = Draft000()


class Document001(OneDocument):
    """Open first; one marker before a snapshot; the failover log comes with the answer."""

    document = "001"
    draft: ClassVar[Dialect] = Draft001()
    known = (*OneDocument.known, m.Open, m.CloseStream)

    def _answered(self, talk: Conversation, request: Any) -> bool:
        if isinstance(request, m.Open):
            self._has_asked.add(talk)
            talk.answer(request)
        elif talk not in self._has_asked:
            talk.hang_up()
        elif isinstance(request, m.CloseStream):
            self._streams = [
                stream
                for stream in self._streams
                if (stream.talk, stream.request.vbucket) != (talk, request.vbucket)
            ]
            talk.answer(request)
        else:
            super()._answered(talk, request)
        return True

    def _has_range(self, talk: Conversation, request: m.StreamRequest) -> bool:
        if request.start >= request.end:
            talk.answer(request, Status.RANGE)
            return False
        return True

    def _refuse_branch(self, talk: Conversation, request: m.StreamRequest) -> None:
        talk.answer(request, Status.NOT_FOUND)

    def _grant(self, talk: Conversation, request: m.StreamRequest) -> None:
        log = self.logs[request.vbucket].entries
        talk.send(m.StreamAccepted(opaque=request.opaque, failover_log=log))

    def _send_snapshot(
        self, stream: _Open, changes: list[m.Mutation | m.Deletion], *, whole: bool
    ) -> None:
        request = stream.request
        marker = m.SnapshotMarker(vbucket=request.vbucket, opaque=request.opaque)
        stream.talk.send(marker, *changes)


class Document004(Document001):
    """The stream request of today: with the snapshot, and to the end of a whole one."""

    document = "004"
    draft: ClassVar[Dialect] = Dcp()
    usually = "refuses"  # its clients of today begin with Hello

    def _has_range(self, talk: Conversation, request: m.StreamRequest) -> bool:
        return True

    def _send(self, stream: _Open, changes: list[m.Mutation | m.Deletion]) -> None:
        request = stream.request
        own = [replace(change, opaque=request.opaque) for change in changes]
        self._send_snapshot(stream, own, whole=True)
        if changes[-1].seqno >= request.end:
            self._end(stream, StreamEndReason.OK)

    def _send_snapshot(
        self, stream: _Open, changes: list[m.Mutation | m.Deletion], *, whole: bool
    ) -> None:
        request = stream.request
        marker = m.SnapshotMarker(
            vbucket=request.vbucket,
            opaque=request.opaque,
            start=changes[0].seqno,
            end=changes[-1].seqno,
        )
        shaped = [
            replace(change, nru=0) if isinstance(change, m.Mutation) else change
            for change in changes
        ]
        stream.talk.send(marker, *shaped)


DOCUMENTS: Final[list[type[OneDocument]]] = [Document002, Document000, Document001, Document004]
