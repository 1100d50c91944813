"""What newer servers offer beside changes: how it is asked for, and what becomes of it."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import flatbuffers
import pytest
from consumerkit import Conversation, Scripted, at, everything, marker, mutation, streaming
from test_real_servers import END, MANIFEST, TODAY, mark
from waiting import until as until_it_happens

from upriver.consumer import Consumer
from upriver.consumer.checkpoints.position_json import dump_position, load_position
from upriver.errors import ConfigError, Status, StatusError
from upriver.model import Datatype, Op
from upriver.session.consumer_events import SyncWrite, SystemHappened
from upriver.wire import kv_messages as kv
from upriver.wire import messages as m
from upriver.wire.dialects import Dcp
from upriver.wire.protocol_enums import DurabilityLevel, OpenFlag, OsoFlag

Script = Callable[[Conversation, Any], bool]
SOON: dict[str, Any] = {"retry_first": 0.01, "retry_most": 0.1}


def row(seqno: int, **more: Any) -> m.Mutation:
    return mutation(seqno, opaque=0, vbucket=0, **{"collection": 0, **more})


class Newer(Scripted):
    """A server of today that notes what it is asked, and refuses what a test wants refused."""

    def __init__(
        self, *said: m.Message, refuses: Callable[[Any], bool] = lambda request: False, seqno: int
    ) -> None:
        self.opened: list[OpenFlag] = []
        self.controls: dict[str, str] = {}
        self.requests: list[m.StreamRequest] = []
        self._stream: Script = streaming(*said)
        self._refuses = refuses
        dialect = Dcp(collections=True)
        super().__init__(self._said, vbuckets=1, dialect=dialect, features=TODAY, seqno=seqno)

    def _said(self, talk: Conversation, request: Any) -> bool:
        match request:
            case m.Open():
                self.opened.append(request.flags)
            case m.Control():
                self.controls[request.key] = request.value
            case m.StreamRequest():
                self.requests.append(request)
                return self._stream(talk, request)
            case kv.GetManifest():
                talk.answer(request, value=MANIFEST)
                return True
        if self._refuses(request):
            talk.answer(request, Status.INVALID)
            return True
        return False


# ---- opening -----------------------------------------------------------------------------


def test_xattrs_come_with_those_of_deleted_users_documents() -> None:
    with Newer(END, seqno=1) as server:
        everything(server.source, xattrs=True)
    assert [f"{flags:#x}" for flags in server.opened] == ["0x125"]
    assert server.controls["include_deleted_user_xattrs"] == "true"


def test_what_an_older_server_does_not_know_is_left_out() -> None:
    def refuses(request: Any) -> bool:
        return isinstance(request, m.Open) and request.flags > 0xFF

    with Newer(END, refuses=refuses, seqno=1) as server:
        everything(server.source, xattrs=True, skip_deletes=True)
    assert [f"{flags:#x}" for flags in server.opened] == ["0x325", "0x125", "0x25"]
    assert "include_deleted_user_xattrs" not in server.controls


NO_VALUE, XATTRS = OpenFlag.NO_VALUE, OpenFlag.INCLUDE_XATTRS
WITH_DATATYPE = OpenFlag.NO_VALUE_WITH_DATATYPE


class KeysFromDisk(Newer):
    """As 7.6 and later: without values and xattrs, a backfill has keys, and knows no deletions."""

    def _said(self, talk: Conversation, request: Any) -> bool:
        if isinstance(request, m.StreamRequest):
            flags = self.opened[-1]
            deleted: m.Message = m.Deletion(
                vbucket=0, seqno=2, key=b"gone", cas=7 << 16, rev=3, collection=0, delete_time=1
            )
            if flags & NO_VALUE and not flags & XATTRS:
                deleted = row(2, key=b"gone", cas=0, rev=1)
            value = b"" if flags & (NO_VALUE | WITH_DATATYPE) else b'{"a": 1}'
            datatype = Datatype.RAW if flags & NO_VALUE else Datatype.JSON
            there = row(1, key=b"here", value=value, datatype=datatype)
            self._stream = streaming(mark(0, 2), there, deleted, END)
        return super()._said(talk, request)


@pytest.mark.parametrize(
    ("refused", "opened"),
    [
        (OpenFlag(0), ["0x61"]),
        (WITH_DATATYPE, ["0x61", "0x2d"]),
        (WITH_DATATYPE | NO_VALUE, ["0x61", "0x2d", "0xd", "0x1"]),
    ],
)
def test_deletions_are_deletions_without_values_too(refused: OpenFlag, opened: list[str]) -> None:
    def refuses(request: Any) -> bool:
        return isinstance(request, m.Open) and bool(request.flags & refused)

    with KeysFromDisk(refuses=refuses, seqno=2) as server:
        here, gone = everything(server.source, values=False)
    assert [f"{flags:#x}" for flags in server.opened] == opened
    assert (here.key, here.op, here.value, here.datatype) == (b"here", Op.MUTATION, b"", 0)
    assert (gone.key, gone.op, gone.cas, gone.rev) == (b"gone", Op.DELETION, 7 << 16, 3)


def test_priority_and_the_order_of_backfills_are_asked_for() -> None:
    with Newer(END, seqno=1) as server:
        everything(server.source, priority="high", backfill_order="sequential")
    assert server.controls["set_priority"] == "high"
    assert server.controls["backfill_order"] == "sequential"


@pytest.mark.parametrize("option", [{"priority": "top"}, {"backfill_order": "any"}])
def test_other_words_are_refused_before_anything_is_asked(option: Any) -> None:
    with pytest.raises(ConfigError):
        Consumer("couchbase://127.0.0.1/b", **option)


# ---- purge seqnos ------------------------------------------------------------------------


def test_a_purge_seqno_is_kept_and_named_when_a_reader_goes_on() -> None:
    seqnos = {"max_visible_seqno": 9, "high_completed_seqno": 0, "high_prepared_seqno": 0}
    first = marker(0, 9, opaque=0, vbucket=0, purge_seqno=8, **seqnos)
    with Newer(first, row(3), seqno=9) as server, Consumer(server.source) as consumer:
        assert next(iter(consumer)).seqno == 3
        position = consumer.position().position(0)
    assert server.controls["max_marker_version"] == "2.2"
    assert position.purge_seqno == 8
    saved = load_position(json.loads(json.dumps(dump_position(position))), "here")
    with Newer(mark(0, 9), row(9), END, seqno=9) as server:
        assert [c.seqno for c in everything(server.source, start={0: saved})] == [9]
        (request,) = server.requests
        assert json.loads(request.filter) == {"purge_seqno": "8"}
        everything(server.source, start={0: saved}, collections=("c",))
        assert json.loads(server.requests[-1].filter) == {"collections": ["8"], "purge_seqno": "8"}


def test_a_purge_seqno_is_not_named_where_it_means_nothing() -> None:
    def refuses(request: Any) -> bool:
        return isinstance(request, m.Control) and request.key == "max_marker_version"

    behind = {0: at(3, (0, 9))}
    with Newer(mark(0, 9), row(9), END, seqno=9) as server:
        everything(server.source, start=behind)
    assert server.requests[0].filter == b""
    saved = load_position({**dump_position(behind[0]), "purge_seqno": 8}, "here")
    with Newer(mark(0, 9), row(9), END, refuses=refuses, seqno=9) as server:
        everything(server.source, start={0: saved})
    assert server.requests[0].filter == b""


# ---- snapshots out of order --------------------------------------------------------------


def edge(flag: OsoFlag) -> m.OsoSnapshot:
    return m.OsoSnapshot(vbucket=0, flags=flag)


def test_a_snapshot_out_of_order_is_read_whole_and_then_counts() -> None:
    said = [edge(OsoFlag.START), row(7), row(2), row(5), edge(OsoFlag.END)]
    more = [mark(8, 9), row(9), END]
    with (
        Newer(*said, *more, seqno=9) as server,
        Consumer(server.source, end="now", out_of_order=True) as consumer,
    ):
        seqnos = []
        for change in consumer:
            seqnos.append(change.seqno)
            if len(seqnos) < 3:
                assert consumer.position().position(0).seqno == 0
        assert seqnos == [7, 2, 5, 9]
        position = consumer.position().position(0)
        assert (position.seqno, position.boundaries) == (9, (7, 9))
    assert server.controls["enable_out_of_order_snapshots"] == "true_with_seqno_advanced"


def test_the_end_of_one_may_be_told_beyond_its_rows() -> None:
    advanced = m.SeqnoAdvanced(vbucket=0, seqno=9)
    said = [edge(OsoFlag.START), row(7), row(2), advanced, edge(OsoFlag.END), END]
    with (
        Newer(*said, seqno=9) as server,
        Consumer(server.source, end="now", out_of_order=True) as consumer,
    ):
        assert [change.seqno for change in consumer] == [7, 2]
        assert consumer.position().position(0).seqno == 9


def test_a_reader_that_loses_its_connection_within_one_begins_anew() -> None:
    with Newer(seqno=9) as server:
        tries: list[int] = []

        def stream(talk: Conversation, request: m.StreamRequest) -> bool:
            tries.append(request.start)
            if len(tries) == 1:
                streaming(edge(OsoFlag.START), row(7), row(2))(talk, request)
                talk.hang_up()
                return True
            said = [edge(OsoFlag.START), row(7), row(2), row(5), edge(OsoFlag.END), END]
            return streaming(*said)(talk, request)

        server._stream = stream
        changes = everything(server.source, out_of_order=True, end={0: 7}, **SOON)
        assert [change.seqno for change in changes] == [7, 2, 7, 2, 5]
        assert tries == [0, 0]


@pytest.mark.parametrize(
    "said",
    [
        [edge(OsoFlag.END)],
        [edge(OsoFlag.START), edge(OsoFlag.START)],
        [edge(OsoFlag.START), mark(0, 5)],
        [mark(0, 5), row(1), edge(OsoFlag.START)],
    ],
)
def test_edges_where_none_can_be_break_a_rule(said: list[m.Message]) -> None:
    with (
        Newer(*said, seqno=9) as server,
        Consumer(server.source, out_of_order=True, **SOON) as consumer,
    ):
        until_it_happens(lambda: consumer.status().counts.get("broken rule: out of order", 0) > 0)


# ---- durable writes ----------------------------------------------------------------------

PREPARE = m.Prepare(
    vbucket=0, seqno=2, key=b"k", cas=1, level=DurabilityLevel.MAJORITY, value=b"v", collection=0
)
COMMIT = m.Commit(vbucket=0, prepared_seqno=2, commit_seqno=3, key=b"k", collection=0)
ABORT = m.Abort(vbucket=0, prepared_seqno=4, abort_seqno=5, key=b"k", collection=0)


def test_durable_writes_are_shown_where_they_are_asked_for() -> None:
    said = [mark(0, 6), row(1), PREPARE, COMMIT, ABORT, row(6), END]
    with (
        Newer(*said, seqno=6) as server,
        Consumer(server.source, end="now", sync_writes=True) as consumer,
    ):
        shown = [e.write for e in consumer.events() if isinstance(e, SyncWrite)]
        assert [type(write) for write in shown] == [m.Prepare, m.Commit, m.Abort]
        assert consumer.position().position(0).seqno == 6
    assert server.controls["enable_sync_writes"] == "true"


def test_a_server_that_does_not_show_them_says_so() -> None:
    def refuses(request: Any) -> bool:
        return isinstance(request, m.Control) and request.key == "enable_sync_writes"

    with (
        Newer(END, refuses=refuses, seqno=1) as server,
        pytest.raises(StatusError, match="enable_sync_writes"),
    ):
        everything(server.source, sync_writes=True)


def test_they_are_not_asked_for_otherwise() -> None:
    with Newer(END, seqno=1) as server:
        everything(server.source)
    assert "enable_sync_writes" not in server.controls
    assert "enable_out_of_order_snapshots" not in server.controls


# ---- internal documents ------------------------------------------------------------------


def test_documents_of_transactions_and_of_the_system_are_left_out_where_that_is_wanted() -> None:
    manifest = b"""{"uid": "5", "scopes": [
        {"name": "_default", "uid": "0", "collections": [{"name": "_default", "uid": "0"}]},
        {"name": "_system", "uid": "8", "collections": [{"name": "_mobile", "uid": "9"}]}]}"""
    said = [
        mark(0, 5),
        row(1, key=b"_txn:atr-1", collection=0),
        row(2, key=b"mine", collection=0),
        row(3, key=b"theirs", collection=9),
        row(4, key=b"_txnot", collection=0),
        row(5, key=b"_txn:client-record", collection=0),
        END,
    ]

    class WithSystem(Newer):
        def _said(self, talk: Conversation, request: Any) -> bool:
            if isinstance(request, kv.GetManifest):
                talk.answer(request, value=manifest)
                return True
            return super()._said(talk, request)

    with WithSystem(*said, seqno=5) as server:
        assert len(everything(server.source)) == 5
        with Consumer(server.source, end="now", internal_documents=False) as consumer:
            assert [change.key for change in consumer] == [b"mine", b"_txnot"]
            assert consumer.position().position(0).seqno == 5


# ---- system events in FlatBuffers --------------------------------------------------------


def flat(name: str, ttl: int) -> bytes:
    builder = flatbuffers.Builder(64)
    text = builder.CreateString(name)
    builder.StartObject(10)
    builder.PrependUint64Slot(0, 6, 0)
    builder.PrependUint32Slot(2, 10, 0)
    builder.PrependBoolSlot(3, True, False)
    builder.PrependUint32Slot(4, ttl, 0)
    builder.PrependUOffsetTRelativeSlot(5, text, 0)
    builder.Finish(builder.EndObject())
    return bytes(builder.Output())


def test_collections_are_known_by_events_in_flatbuffers() -> None:
    created = m.SystemEvent(vbucket=0, seqno=1, event=0, version=2, key=b"n", value=flat("n", 60))
    modified = m.SystemEvent(vbucket=0, seqno=3, event=5, version=2, key=b"n", value=flat("n", 90))
    said = [mark(0, 3), created, row(2, collection=10), modified, END]
    with (
        Newer(*said, seqno=3) as server,
        Consumer(server.source, end="now") as consumer,
    ):
        told = [e.event for e in consumer.events() if isinstance(e, SystemHappened)]
        assert [(type(e), e.max_ttl) for e in told] == [  # type: ignore[union-attr]
            (m.CollectionCreated, 60),
            (m.CollectionModified, 90),
        ]
        assert consumer.collections.names(10) == ("_default", "n")
        assert consumer.position().position(0).manifest_uid == 6
    assert server.controls["flatbuffers_system_events"] == "true"


def test_an_event_that_is_no_flatbuffer_breaks_a_rule() -> None:
    broken = m.SystemEvent(vbucket=0, seqno=1, event=0, version=2, value=b"\xff" * 20)
    with (
        Newer(mark(0, 3), broken, seqno=3) as server,
        Consumer(server.source, **SOON) as consumer,
    ):
        until_it_happens(lambda: consumer.status().counts.get("broken rule: system event", 0) > 0)


def test_xattrs_alone_come_without_the_body_where_the_server_sends_it() -> None:
    blob = b"\x00\x00\x00\x09\x00\x00\x00\x05_x\x001\x00" + b'{"a": 1}'
    said = [mark(0, 1), row(1, value=blob, datatype=Datatype.XATTR | Datatype.JSON), END]
    with Newer(*said, seqno=1) as server:
        (change,) = everything(server.source, values=False, xattrs=True)
    assert change.value == blob[: -len(b'{"a": 1}')]
    assert change.datatype == Datatype.XATTR
