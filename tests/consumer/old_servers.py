"""Servers of the vendor's releases, played by scripts: what each answers, and in which way.

The answers are those that were recorded of the real servers: a build of April 2014 from the time
of draft 001, releases 3.0.2 and 4.1.2, and 7.0.5. A server has some changes per vbucket and serves
streams of them; a test changes its map, its states and its failover logs as it needs.
"""

from __future__ import annotations

import hmac
import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar

from consumerkit import LOG, Conversation, Scripted, mutation

from upriver.errors import Status
from upriver.model import FailoverLog, StreamEndReason
from upriver.wire import kv_messages as kv
from upriver.wire import messages as m
from upriver.wire.dialects import Dcp, Dialect, Draft001
from upriver.wire.protocol_enums import Feature, MarkerFlag, OpenFlag

__all__ = ["April2014", "RealServer", "Release302", "Release412", "Release705"]

_CHALLENGE = b"<1896.697170952@a.server>"


class RealServer(Scripted):
    """What the releases have in common; subclasses say what each of them knows."""

    version: ClassVar[bytes]
    knows_hello: ClassVar[bool] = True
    grants: ClassVar[tuple[Feature, ...]] = ()
    knows_control: ClassVar[bool] = True
    knows_all_seqnos: ClassVar[bool] = True
    knows_failover_log: ClassVar[bool] = True
    mechanisms: ClassVar[bytes] = b"CRAM-MD5 PLAIN"
    #: Whether statistics can be asked of one vbucket.
    tells_of_one_vbucket: ClassVar[bool] = True
    #: Whether a map exists without a cluster manager.
    has_map: ClassVar[bool] = False
    wire: ClassVar[type[Dialect]] = Dcp

    def __init__(self, rows: dict[int, int] | None = None, *, user: str = "", password: str = ""):
        """``rows`` are so many changes per vbucket."""
        rows = rows or {0: 3, 1: 0}
        self.rows = {vb: list(range(1, count + 1)) for vb, count in rows.items()}
        self.states = dict.fromkeys(rows, "active")
        self.logs = dict.fromkeys(rows, LOG)
        #: The map that a cluster manager pushed; None without one.
        self.pushed: dict[str, Any] | None = None
        self.user, self.password = user, password
        self.signed_in: set[Conversation] = set()
        self.opened: dict[Conversation, OpenFlag] = {}
        self.asked: list[Any] = []
        #: Streams that were accepted, by vbucket: the newest conversation and its opaque.
        self.streams: dict[int, tuple[Conversation, int]] = {}
        super().__init__(self.answered, vbuckets=len(rows), dialect=self.wire())

    def asked_for(self, kind: type[Any]) -> list[Any]:
        return [request for request in self.asked if isinstance(request, kind)]

    # ---- answering -----------------------------------------------------------------------

    def answered(self, talk: Conversation, request: Any) -> bool:
        self.asked.append(request)
        if self.user and talk not in self.signed_in and self._needs_user(request):
            talk.answer(request, Status.AUTH_ERROR)
            return True
        match request:
            case kv.Hello() if self.knows_hello:
                granted = tuple(f for f in self.grants if f in request.features)
                talk.send(kv.HelloResponse(opaque=request.opaque, features=granted))
            case kv.Hello():
                talk.answer(request, Status.UNKNOWN_COMMAND)
            case kv.SaslListMechanisms():
                talk.answer(request, value=self.mechanisms)
            case kv.SaslAuth() | kv.SaslStep():
                self._sign_in(talk, request)
            case kv.SelectBucket() if Feature.SELECT_BUCKET not in self.grants:
                talk.answer(request, Status.NO_ACCESS)
            case kv.Version():
                talk.answer(request, value=self.version)
            case kv.GetClusterConfig():
                talk.answer(request, value=self.config)
            case kv.GetAllSeqnos():
                self._all_seqnos(talk, request)
            case kv.GetFailoverLog() if not self.knows_failover_log:
                talk.answer(request, Status.UNKNOWN_COMMAND)
            case kv.GetFailoverLog():
                log = self.logs[request.vbucket].entries
                talk.send(kv.GetFailoverLogResponse(opaque=request.opaque, failover_log=log))
            case kv.Stat():
                self._statistics(talk, request)
            case m.Open():
                self._open(talk, request)
            case m.Control() if not self.knows_control:
                talk.answer(request, Status.NOT_SUPPORTED)
            case m.FailoverLogRequest():
                if talk not in self.opened:
                    talk.hang_up()
                    return True
                log = self.logs[request.vbucket].entries
                talk.send(m.FailoverLogResponse(opaque=request.opaque, failover_log=log))
            case m.StreamRequest():
                self.stream(talk, request)
            case _:
                return False
        return True

    @staticmethod
    def _needs_user(request: Any) -> bool:
        public = kv.Hello | kv.SaslListMechanisms | kv.SaslAuth | kv.SaslStep | kv.Version
        return isinstance(request, m.Request) and not isinstance(request, public)

    def _sign_in(self, talk: Conversation, request: kv.SaslAuth | kv.SaslStep) -> None:
        if isinstance(request, kv.SaslAuth) and request.mechanism == "CRAM-MD5":
            talk.answer(request, Status.AUTH_CONTINUE, _CHALLENGE)
            return
        if isinstance(request, kv.SaslStep):
            proof = hmac.new(self.password.encode(), _CHALLENGE, "md5").hexdigest()
            right = request.payload == f"{self.user} {proof}".encode()
        else:
            right = request.payload == f"\0{self.user}\0{self.password}".encode()
        if right:
            self.signed_in.add(talk)
        talk.answer(request, Status.SUCCESS if right else Status.AUTH_ERROR)

    @property
    def config(self) -> bytes:
        if self.pushed is not None:
            return json.dumps(self.pushed).encode()
        return self.map if self.has_map else b""

    def _open(self, talk: Conversation, request: m.Open) -> None:
        if talk in self.opened:
            talk.hang_up()  # opening twice closes the connection
            return
        self.opened[talk] = request.flags
        talk.answer(request)

    def _all_seqnos(self, talk: Conversation, request: kv.GetAllSeqnos) -> None:
        if not self.knows_all_seqnos:
            talk.answer(request, Status.UNKNOWN_COMMAND)
            return
        seqnos = tuple((vb, self.high(vb)) for vb in self.rows if self.states[vb] == "active")
        talk.send(kv.AllSeqnosResponse(opaque=request.opaque, seqnos=seqnos))

    def high(self, vbucket: int) -> int:
        return max(self.rows[vbucket], default=0)

    def _statistics(self, talk: Conversation, request: kv.Stat) -> None:
        group, _, which = request.group.partition(" ")
        if which and not self.tells_of_one_vbucket:
            talk.answer(request, Status.NOT_FOUND)
            return
        vbuckets = [int(which)] if which else list(self.rows)
        told: dict[str, Any]
        if group == "vbucket":
            told = {f"vb_{vb}": self.states[vb] for vb in vbuckets}
        elif group == "vbucket-seqno":
            told = {}
            for vb in vbuckets:
                told[f"vb_{vb}:high_seqno"] = self.high(vb)
                told[f"vb_{vb}:uuid"] = next((e.vbuuid for e in self.logs[vb]), 7)
                told[f"vb_{vb}:purge_seqno"] = 0
        elif group == "failovers":
            told = {}
            for vb in vbuckets:
                for index, entry in enumerate(self.logs[vb]):
                    told[f"vb_{vb}:{index}:id"] = entry.vbuuid
                    told[f"vb_{vb}:{index}:seq"] = entry.seqno
        else:
            talk.answer(request, Status.NOT_FOUND)
            return
        opaque = request.opaque
        for name, value in told.items():
            talk.send(kv.StatResponse(opaque=opaque, key=name, value=str(value).encode()))
        talk.send(kv.StatResponse(opaque=opaque))

    # ---- streams -------------------------------------------------------------------------

    def stream(self, talk: Conversation, request: m.StreamRequest) -> None:
        """Old servers accept a stream on a copy in any state, and leave a dead one silent."""
        if talk not in self.opened:
            talk.hang_up()
            return
        vbucket, opaque = request.vbucket, request.opaque
        entries = self.logs[vbucket].entries
        talk.send(m.StreamAccepted(opaque=opaque, failover_log=entries))
        self.streams[vbucket] = talk, opaque
        if self.states[vbucket] == "active":
            self.send_rows(
                vbucket, [seqno for seqno in self.rows[vbucket] if seqno > request.start]
            )
            if request.end <= self.high(vbucket):
                self.end(vbucket, StreamEndReason.OK)

    def send_rows(self, vbucket: int, seqnos: Sequence[int]) -> None:
        talk, opaque = self.streams[vbucket]
        if seqnos:
            talk.send(*self.snapshot(vbucket, opaque, seqnos))

    def snapshot(self, vbucket: int, opaque: int, seqnos: Sequence[int]) -> list[m.Message]:
        flags = MarkerFlag.MEMORY | MarkerFlag.CHECKPOINT
        start = 0 if seqnos[0] == 1 else seqnos[0]
        marker = m.SnapshotMarker(
            vbucket=vbucket, opaque=opaque, start=start, end=seqnos[-1], flags=flags
        )
        return [marker, *(mutation(s, opaque=opaque, vbucket=vbucket, nru=2) for s in seqnos)]

    def write(self, vbucket: int, count: int = 1) -> None:
        """More changes, which a stream that is open gets."""
        high = self.high(vbucket)
        new = list(range(high + 1, high + 1 + count))
        self.rows[vbucket] += new
        if vbucket in self.streams:
            self.send_rows(vbucket, new)

    def end(self, vbucket: int, reason: StreamEndReason) -> None:
        talk, opaque = self.streams.pop(vbucket)
        talk.send(m.StreamEnd(vbucket=vbucket, opaque=opaque, reason=reason))

    def fail_over(self, vbucket: int, vbuuid: int, seqno: int) -> None:
        """A new branch, which lost what was above a seqno."""
        self.rows[vbucket] = [s for s in self.rows[vbucket] if s <= seqno]
        kept = [(e.vbuuid, e.seqno) for e in self.logs[vbucket] if e.seqno <= seqno]
        self.logs[vbucket] = FailoverLog.of((vbuuid, seqno), *kept)


class April2014(RealServer):
    """The time of draft 001: 40-byte stream requests, bare markers before and after the items."""

    version = b"2.5.0-1043-rel"
    knows_hello = False
    knows_control = False
    knows_all_seqnos = False
    knows_failover_log = False
    wire = Draft001

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._dialect = Draft001(nru=True)

    #: A backfill has no marker before its items.
    backfills: ClassVar[bool] = False

    def snapshot(self, vbucket: int, opaque: int, seqnos: Sequence[int]) -> list[m.Message]:
        marker = m.SnapshotMarker(vbucket=vbucket, opaque=opaque)
        items = [mutation(s, opaque=opaque, vbucket=vbucket, nru=2) for s in seqnos]
        return [*items, marker] if self.backfills else [marker, *items, replace(marker)]


class Release302(RealServer):
    """No Hello, one bucket per port, no 0x48 and no 0x96; 48-byte stream requests."""

    version = b"3.0.2-1603-rel"
    knows_hello = False
    knows_all_seqnos = False
    knows_failover_log = False


class Release412(RealServer):
    """Hello without Select Bucket, 0x48 but no 0x96, values whatever was asked for."""

    version = b"4.1.2-6088"
    grants = (Feature.DATATYPE, Feature.TCP_NODELAY, Feature.MUTATION_SEQNO)
    knows_failover_log = False


class Release705(RealServer):
    """Collections, pushed maps, and users whose rights are on single collections.

    With ``only`` a user has rights on this collection alone: what is about the whole bucket is
    refused.
    """

    version = b"7.0.5-7659-enterprise"
    grants = (
        Feature.SELECT_BUCKET,
        Feature.XERROR,
        Feature.JSON,
        Feature.XATTR,
        Feature.COLLECTIONS,
        Feature.DUPLEX,
        Feature.CLUSTERMAP_NOTIFICATION,
    )
    mechanisms = b"SCRAM-SHA512 SCRAM-SHA256 SCRAM-SHA1 PLAIN"
    has_map = True
    manifest = b"""{"uid": "5", "scopes": [{"name": "_default", "uid": "0", "collections": [
        {"name": "_default", "uid": "0"}, {"name": "c", "uid": "8"}]}]}"""

    def __init__(self, *args: Any, only: int | None = None, **options: Any) -> None:
        self._only = only
        super().__init__(*args, **options)
        self._dialect = Dcp(collections=True)

    def answered(self, talk: Conversation, request: Any) -> bool:
        if isinstance(request, kv.GetManifest):
            talk.answer(request, value=self.manifest)
            return True
        if self._only is not None and self._denied(request):
            self.asked.append(request)
            talk.answer(request, Status.NO_ACCESS)
            return True
        return super().answered(talk, request)

    def _denied(self, request: Any) -> bool:
        match request:
            case kv.GetAllSeqnos():
                return request.collection != self._only
            case kv.GetFailoverLog() | kv.Stat():
                return True
            case m.StreamRequest():
                wanted = json.loads(request.filter or b"{}").get("collections")
                return bool(wanted != [f"{self._only:x}"])
        return False

    def stream(self, talk: Conversation, request: m.StreamRequest) -> None:
        """A stream request for a copy that is not active is refused, with the map."""
        if self.states[request.vbucket] != "active":
            talk.answer(request, Status.NOT_MY_VBUCKET, self.config)
            return
        super().stream(talk, request)

    def snapshot(self, vbucket: int, opaque: int, seqnos: Sequence[int]) -> list[m.Message]:
        rows = super().snapshot(vbucket, opaque, seqnos)
        id_ = self._only or 0
        return [replace(r, collection=id_) if isinstance(r, m.Mutation) else r for r in rows]


def cluster_of(servers: Sequence[RealServer], owners: Sequence[int], *, rev: int) -> None:
    """Pushes a map to some servers, as a cluster manager does: vbuckets' owners by index."""
    for this in servers:
        this.pushed = {
            "rev": rev,
            "name": "default",
            "uuid": "u",
            "nodesExt": [
                {"hostname": "127.0.0.1", "services": {"kv": s.port}, "thisNode": s is this}
                for s in servers
            ],
            "vBucketServerMap": {
                "serverList": [f"127.0.0.1:{s.port}" for s in servers],
                "vBucketMap": [[owner] for owner in owners],
            },
        }
