"""A consumer's session in every draft, without a socket: how streams begin, flow and end."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from consumerkit import DIALECTS, LOG, Wire, at, marker, mutation, only, packets, steps_of
from hypothesis import given, settings
from hypothesis import strategies as st

from upriver.consumer.changes import changes_of
from upriver.errors import Status
from upriver.model import NO_END, FailoverLog, Op, Snapshot, StreamEndReason, VBucketState
from upriver.session.consumer_events import (
    Event,
    Flushed,
    RollbackReason,
    RolledBack,
    Rows,
    StateAsked,
    StreamFinished,
    StreamOpened,
    StreamRefused,
    SystemHappened,
)
from upriver.session.flow_control import counted_size
from upriver.session.requested_stream import StreamOptions
from upriver.session.stream_output import StreamOutput
from upriver.session.stream_position import Position
from upriver.wire import canonical
from upriver.wire import kv_messages as kv
from upriver.wire import messages as m
from upriver.wire.dialects import Dcp, Draft000, Draft001, Draft002
from upriver.wire.protocol_enums import Command, DurabilityLevel, MarkerFlag

ALL = pytest.mark.parametrize("name", DIALECTS)
#: Drafts that accept a stream without saying of which history it is.
APART = pytest.mark.parametrize("name", ["000", "002"])
#: Drafts whose markers do not say where a snapshot ends.
OPEN_ENDED = pytest.mark.parametrize("name", ["001", "000", "002"])


def snapshot(name: str, start: int, end: int, *seqnos: int) -> list[m.Message]:
    """A whole snapshot as its draft sends it, with the marker that closes it where there is one."""
    items: list[m.Message] = [mutation(seqno) for seqno in seqnos]
    if name == "dcp":
        return [marker(start, end), *items]
    if name == "001":
        opens: m.Message = m.SnapshotMarker(vbucket=3, opaque=1)
        return [opens, *items]
    return [m.SnapshotStart(vbucket=3, opaque=1), *items, m.SnapshotEnd(vbucket=3, opaque=1)]


def end(reason: StreamEndReason = StreamEndReason.OK) -> m.StreamEnd:
    return m.StreamEnd(vbucket=3, opaque=1, reason=reason)


def position_of(wire: Wire) -> Position:
    return wire.session.position(3)


# ---- opening -----------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["dcp", "001"])
def test_from_the_beginning_a_stream_is_asked_for_at_once(name: str) -> None:
    wire = Wire(DIALECTS[name])
    wire.session.open(3, Position(), StreamOptions(end=9))
    (request,) = wire.asked()
    assert isinstance(request, m.StreamRequest)
    assert (request.vbucket, request.start, request.end, request.vbuuid) == (3, 0, 9, 0)
    assert not wire.session.is_open(3)
    (opened,) = wire.say(m.StreamAccepted(opaque=request.opaque, failover_log=LOG.entries))
    assert opened == StreamOpened(3, LOG)
    assert wire.session.is_open(3)
    assert position_of(wire).log == LOG


@APART
def test_drafts_that_do_not_tell_the_history_are_asked_before_and_once_more(name: str) -> None:
    wire = Wire(DIALECTS[name])
    wire.session.open(3, Position())
    (question,) = wire.asked()
    assert isinstance(question, m.FailoverLogRequest)
    assert wire.say(m.FailoverLogResponse(opaque=1, failover_log=LOG.entries)) == []
    (request,) = wire.asked()
    assert isinstance(request, m.StreamRequest)
    assert (request.start, request.group) == (0, "upriver")
    assert wire.say(m.StreamAccepted(opaque=1)) == [StreamOpened(3, LOG)]
    (again,) = wire.asked()
    assert isinstance(again, m.FailoverLogRequest)
    wire.say(m.StreamStart(vbucket=3, opaque=1), *snapshot(name, 0, 2, 1, 2))
    assert wire.say(m.FailoverLogResponse(opaque=1, failover_log=LOG.entries)) == []
    wire.say(*snapshot(name, 3, 3, 3))
    assert wire.rows() == [(3, 1), (3, 2), (3, 3)]


@APART
def test_a_failover_while_a_stream_was_accepted_ends_the_conversation(name: str) -> None:
    wire = Wire(DIALECTS[name])
    wire.session.open(3, Position())
    wire.say(m.FailoverLogResponse(opaque=1, failover_log=LOG.entries))
    wire.say(m.StreamAccepted(opaque=1), *snapshot(name, 0, 2, 1, 2))
    other = FailoverLog.of((8, 1), (7, 0))
    wire.say(m.FailoverLogResponse(opaque=1, failover_log=other.entries))
    assert wire.rule == "branch"
    # what was received counts as the old branch's, so the reader will be sent back behind the fork
    assert position_of(wire).offset.vbuuid == 7
    assert wire.rows() == [(3, 1), (3, 2)]


@ALL
def test_whoever_goes_on_asks_for_the_history_first(name: str) -> None:
    wire = Wire(DIALECTS[name])
    wire.session.open(3, at(5, log=FailoverLog.of((7, 4), (6, 0)), boundaries=(5,)))
    (question,) = wire.asked()
    assert isinstance(question, m.FailoverLogRequest)
    log = FailoverLog.of((7, 4), (6, 0))
    assert wire.say(m.FailoverLogResponse(opaque=1, failover_log=log.entries)) == []
    (request,) = wire.asked()
    assert (request.start, request.end, request.vbuuid) == (5, NO_END, 7)
    if name == "dcp":
        assert (request.snapshot_start, request.snapshot_end) == (5, 5)
    else:
        assert request.high_seqno == 4


@ALL
def test_where_logs_part_one_round_finds_the_place_to_go_back_to(name: str) -> None:
    # The reader followed branch 8, which this producer never had; both have 7 up to seqno 4.
    position = at(9, vbuuid=8, log=FailoverLog.of((8, 6), (7, 0)), boundaries=(2, 3, 5, 8, 9))
    served = FailoverLog.of((9, 4), (7, 0))
    wire = Wire(DIALECTS[name])
    wire.session.open(3, position)
    wire.asked()
    (told,) = wire.say(m.FailoverLogResponse(opaque=1, failover_log=served.entries))
    assert isinstance(told, RolledBack)
    assert (told.vbucket, told.from_seqno, told.to.seqno) == (3, 9, 3)
    assert told.reason is RollbackReason.DIVERGED
    assert not told.refused
    (request,) = wire.asked()
    assert isinstance(request, m.StreamRequest)
    assert (request.start, request.vbuuid) == (3, 7)


def test_nothing_in_common_means_from_the_beginning() -> None:
    wire = Wire()
    wire.session.open(3, at(9, boundaries=(9,)))
    (told,) = wire.say(
        m.FailoverLogResponse(opaque=1, failover_log=(FailoverLog.of((1, 0))).entries)
    )
    assert isinstance(told, RolledBack)
    assert (told.to.seqno, told.reason) == (0, RollbackReason.UNKNOWN_BRANCH)
    assert [type(asked) for asked in wire.asked()] == [m.FailoverLogRequest, m.StreamRequest]


def test_a_branch_that_was_only_joined_and_never_read_is_no_reason_to_go_back() -> None:
    # At 5, the reader was told that its history goes on as branch 8 from 6 on; it read nothing
    # of that. A producer that never had 8 has everything that the reader has.
    position = at(5, vbuuid=8, log=FailoverLog.of((8, 6), (7, 0)), boundaries=(5,))
    wire = Wire(refuse_rollback=True)
    wire.session.open(3, position)
    served = FailoverLog.of((9, 7), (7, 0))
    assert wire.say(m.FailoverLogResponse(opaque=1, failover_log=served.entries)) == []
    *_, request = wire.asked()
    assert (request.start, request.vbuuid) == (5, 7)


@pytest.mark.parametrize("name", ["dcp", "001", "000"])
def test_a_rollback_leads_to_the_newest_boundary_and_asks_again(name: str) -> None:
    wire = Wire(DIALECTS[name])
    wire.session.open(3, at(9, boundaries=(2, 5, 9)))
    wire.say(m.FailoverLogResponse(opaque=1, failover_log=LOG.entries))
    wire.asked()
    (told,) = wire.say(m.StreamRollback(opaque=1, seqno=6))
    assert isinstance(told, RolledBack)
    assert (told.from_seqno, told.to.seqno, told.reason) == (9, 5, RollbackReason.AHEAD)
    (question,) = wire.asked()
    assert isinstance(question, m.FailoverLogRequest)
    # a second failover during the first: now the branch is not even the newest
    served = FailoverLog.of((8, 3), (7, 0))
    (again,) = wire.say(m.FailoverLogResponse(opaque=1, failover_log=served.entries))
    assert isinstance(again, RolledBack)
    assert (again.from_seqno, again.to.seqno, again.reason) == (5, 2, RollbackReason.DIVERGED)
    (request,) = wire.asked()
    assert (request.start, request.vbuuid) == (2, 7)


def test_draft_002_says_rollback_in_its_own_way() -> None:
    wire = Wire(Draft002())
    wire.session.open(3, at(9, boundaries=(2, 9)))
    wire.say(m.FailoverLogResponse(opaque=1, failover_log=LOG.entries))
    (told,) = wire.say(m.StreamRollback(opaque=1, seqno=4))
    assert isinstance(told, RolledBack)
    assert told.to.seqno == 2


def test_draft_001_says_not_found_for_a_branch_it_does_not_know() -> None:
    wire = Wire(Draft001())
    wire.session.open(3, at(9, boundaries=(9,)))
    wire.say(m.FailoverLogResponse(opaque=1, failover_log=LOG.entries))
    wire.asked()
    refusal = m.PlainResponse(command=Command.STREAM_REQUEST, opaque=1, status=Status.NOT_FOUND)
    (told,) = wire.say(refusal)
    assert isinstance(told, RolledBack)
    assert told.to.seqno == 0
    (request,) = wire.asked()
    assert (request.start, request.vbuuid) == (0, 0)


def test_a_purge_leads_to_the_beginning() -> None:
    wire = Wire()
    wire.session.open(3, at(9, boundaries=(2, 9)))
    wire.say(m.FailoverLogResponse(opaque=1, failover_log=LOG.entries))
    (told,) = wire.say(m.StreamRollback(opaque=1, seqno=0))
    assert isinstance(told, RolledBack)
    assert (told.to.seqno, told.reason) == (0, RollbackReason.PURGED)


def test_a_producer_cannot_send_a_reader_back_for_ever() -> None:
    wire = Wire()
    wire.session.open(3, at(9, boundaries=(9,)))
    wire.say(m.FailoverLogResponse(opaque=1, failover_log=LOG.entries))
    wire.say(m.StreamRollback(opaque=1, seqno=9))  # where it is already: so to the beginning
    assert wire.session.broken is None
    wire.say(m.StreamRollback(opaque=1, seqno=0))
    assert wire.rule == "rollback"
    assert [told.to.seqno for told in only(wire.events, RolledBack)] == [0]


@ALL
def test_a_reader_that_does_not_go_back_closes_its_stream(name: str) -> None:
    wire = Wire(DIALECTS[name], refuse_rollback=True)
    wire.session.open(3, at(9, boundaries=(9,)))
    wire.asked()
    served = FailoverLog.of((8, 3), (7, 0))
    (told,) = wire.say(m.FailoverLogResponse(opaque=1, failover_log=served.entries))
    assert isinstance(told, RolledBack)
    assert told.refused
    assert wire.session.vbuckets == frozenset()
    closes = [m.CloseStream(vbucket=3, opaque=1)] if name in ("dcp", "001") else []
    assert wire.asked() == closes


@pytest.mark.parametrize("status", [Status.NOT_MY_VBUCKET, Status.TEMPORARY_FAILURE, Status.RANGE])
def test_a_refusal_is_told_with_what_came_with_it(status: Status) -> None:
    wire = Wire()
    wire.session.open(3, Position())
    answer = m.PlainResponse(command=Command.STREAM_REQUEST, opaque=1, status=status, value=b"{}")
    assert wire.say(answer) == [StreamRefused(3, status, Position(), b"{}")]
    assert wire.session.vbuckets == frozenset()


@ALL
def test_not_my_vbucket_is_told_whichever_question_it_answers(name: str) -> None:
    wire = Wire(DIALECTS[name])
    wire.session.open(3, at(5, boundaries=(5,)))
    command = Command.STREAM_REQUEST if name == "002" else Command.FAILOVER_LOG
    refusal = m.PlainResponse(command=command, opaque=1, status=Status.NOT_MY_VBUCKET)
    (told,) = wire.say(refusal)
    assert isinstance(told, StreamRefused)
    assert told.status is Status.NOT_MY_VBUCKET
    assert wire.session.broken is None


def test_draft_002_refuses_a_request_in_words() -> None:
    wire = Wire(Draft002())
    wire.session.open(3, Position())
    (told,) = wire.say(m.RequestError(opaque=1, reason=1, text="no"))
    assert isinstance(told, StreamRefused)


def test_one_stream_a_vbucket() -> None:
    wire = Wire()
    wire.session.open(3, Position())
    with pytest.raises(ValueError, match="there is a stream of vbucket 3"):
        wire.session.open(3, Position())


# ---- flowing -----------------------------------------------------------------------------


@ALL
def test_whole_snapshots_are_handed_out_and_counted(name: str) -> None:
    wire = Wire(DIALECTS[name])
    wire.opened()
    wire.asked()
    wire.say(*snapshot(name, 0, 2, 1, 2), *snapshot(name, 3, 5, 3, 5), end())
    assert wire.rows() == [(3, 1), (3, 2), (3, 3), (3, 5)]
    (finished,) = only(wire.events, StreamFinished)
    assert finished.position.seqno == 5
    assert finished.position.is_consistent
    assert finished.position.boundaries == (2, 5)
    assert wire.session.broken is None


@ALL
def test_every_field_of_a_change_arrives(name: str) -> None:
    wire = Wire(DIALECTS[name])
    wire.opened()
    written = mutation(4, key=b"k", value=b"v", rev=5, cas=6, flags=7, expiry=8)
    timed: dict[str, Any] = {"delete_time": 9} if name == "dcp" else {}
    deleted = m.Deletion(vbucket=3, opaque=1, seqno=5, key=b"k", rev=6, cas=7, **timed)
    expired = m.Expiration(vbucket=3, opaque=1, seqno=6, key=b"k", rev=7, cas=8, **timed)
    opens = snapshot(name, 0, 9)[0]
    wire.say(opens, written, deleted, expired)
    rows = [change for event in only(wire.events, Rows) for change in changes_of(event.batch)]
    assert [change.op for change in rows] == [Op.MUTATION, Op.DELETION, Op.EXPIRATION]
    first = rows[0]
    assert first[1:] == (3, 4, 5, 6, 7, 8, 0, 0, b"k", b"v")
    assert [change.rev for change in rows] == [5, 6, 7]
    assert [change.cas for change in rows] == [6, 7, 8]
    assert rows[1].expiry == (9 if name == "dcp" else 0)
    assert [change.value for change in rows] == [b"v", b"", b""]


@pytest.mark.parametrize("nru", [False, True])
def test_mutations_of_draft_001_come_with_30_bytes_or_31(nru: bool) -> None:
    wire = Wire(Draft001(nru=nru))
    wire.opened()
    packet = Draft001(nru=nru).encode(mutation(1))
    assert packet[4] == (31 if nru else 30)
    wire.say(m.SnapshotMarker(vbucket=3, opaque=1))
    wire.raw(packet)
    assert wire.rows() == [(3, 1)]


def test_servers_of_2014_close_a_snapshot_with_another_marker() -> None:
    wire = Wire(Draft001())
    wire.opened()
    mark = m.SnapshotMarker(vbucket=3, opaque=1)
    wire.say(mark, mutation(1), mutation(2))
    assert not position_of(wire).is_consistent
    assert position_of(wire).offset.snapshot == Snapshot(0, NO_END)
    wire.say(mark)
    assert position_of(wire).is_consistent
    assert position_of(wire).boundaries == (2,)
    wire.say(end())
    (finished,) = only(wire.events, StreamFinished)
    assert finished.position.offset.snapshot == Snapshot(2, 2)
    assert [step.closes for step in wire.steps()] == [False, True, True]


def test_a_stream_of_draft_001_that_ends_otherwise_leaves_its_snapshot_open() -> None:
    wire = Wire(Draft001())
    wire.opened()
    mark = m.SnapshotMarker(vbucket=3, opaque=1)
    wire.say(mark, mutation(1), mark, mutation(2), end(StreamEndReason.STATE_CHANGED))
    (finished,) = only(wire.events, StreamFinished)
    assert finished.reason is StreamEndReason.STATE_CHANGED
    assert finished.position.seqno == 2
    assert finished.position.last_boundary == 1


@OPEN_ENDED
def test_a_partial_snapshot_is_read_again_from_its_boundary_and_not_handed_out_twice(
    name: str,
) -> None:
    log = FailoverLog.of((7, 0))
    partial = at(5, (2, NO_END), boundaries=(2,))
    wire = Wire(DIALECTS[name])
    wire.session.open(3, partial)
    wire.say(m.FailoverLogResponse(opaque=1, failover_log=log.entries))
    *_, request = wire.asked()
    assert request.start == 2
    carried = () if name != "001" else log.entries
    wire.say(m.StreamAccepted(opaque=1, failover_log=carried))
    # 4 was overwritten meanwhile: its key comes with 7
    wire.say(*snapshot(name, 3, 7, 3, 5, 6, 7), end())
    assert wire.rows() == [(3, 6), (3, 7)]
    (finished,) = only(wire.events, StreamFinished)
    assert finished.position.boundaries == (2, 7)


@OPEN_ENDED
def test_a_reader_that_is_still_behind_stays_inconsistent(name: str) -> None:
    partial = at(5, (2, NO_END), boundaries=(2,))
    wire = Wire(DIALECTS[name])
    wire.opened(position=partial)
    wire.say(*snapshot(name, 3, 4, 3, 4), *snapshot(name, 5, 5)[:1])
    assert wire.rows() == []
    assert position_of(wire).last_boundary == 2  # the snapshot up to 4 is not the reader's
    assert position_of(wire).seqno == 5


def test_a_position_of_an_old_draft_goes_on_in_dcp() -> None:
    wire = Wire()
    wire.session.open(3, at(5, (2, NO_END), boundaries=(2,)))
    wire.say(m.FailoverLogResponse(opaque=1, failover_log=LOG.entries))
    *_, request = wire.asked()
    assert (request.start, request.snapshot_start, request.snapshot_end) == (2, 2, 2)
    wire.say(m.StreamAccepted(opaque=1, failover_log=LOG.entries))
    created = m.CollectionCreated(
        vbucket=3, opaque=1, seqno=4, name="c", manifest_uid=1, scope=0, collection=8
    )
    wire.say(marker(2, 6), mutation(3), created, m.SeqnoAdvanced(vbucket=3, opaque=1, seqno=5))
    assert wire.session.broken is None
    wire.say(mutation(6))
    assert wire.rows() == [(3, 6)]
    assert position_of(wire).is_consistent


def test_what_was_read_beyond_a_boundary_may_be_of_a_lost_branch() -> None:
    # Asked at the boundary 2, the producer accepts; but the branch ended at 3, and 5 was read.
    wire = Wire(Draft001())
    wire.session.open(3, at(5, (2, NO_END), boundaries=(2,)))
    wire.say(m.FailoverLogResponse(opaque=1, failover_log=LOG.entries))
    served = FailoverLog.of((8, 3), (7, 0))
    events = wire.say(m.StreamAccepted(opaque=1, failover_log=served.entries))
    told, opened = events
    assert isinstance(told, RolledBack)
    assert (told.from_seqno, told.to.seqno) == (5, 2)
    assert opened == StreamOpened(3, served)
    wire.say(m.SnapshotMarker(vbucket=3, opaque=1), mutation(3), mutation(4))
    assert wire.rows() == [(3, 3), (3, 4)]


@pytest.mark.parametrize(
    "reason",
    [
        StreamEndReason.OK,
        StreamEndReason.CLOSED,
        StreamEndReason.STATE_CHANGED,
        StreamEndReason.TOO_SLOW,
        StreamEndReason.BACKFILL_FAILED,
        StreamEndReason.FILTER_EMPTY,
        StreamEndReason.LOST_PRIVILEGES,
    ],
)
def test_a_stream_ends_for_a_reason_and_its_vbucket_can_be_asked_for_again(
    reason: StreamEndReason,
) -> None:
    wire = Wire()
    wire.opened()
    wire.say(marker(0, 4), mutation(1), mutation(3), end(reason))
    (finished,) = only(wire.events, StreamFinished)
    assert (finished.vbucket, finished.reason) == (3, reason)
    assert finished.position.offset.snapshot == Snapshot(0, 4)
    assert finished.position.seqno == 3
    wire.asked()
    wire.session.open(3, finished.position)
    assert [type(question) for question in wire.asked()] == [m.FailoverLogRequest]


def test_seqno_advanced_moves_the_position_and_completes_a_snapshot() -> None:
    wire = Wire(Dcp(collections=True))
    wire.opened()
    wire.say(marker(0, 9), mutation(2, collection=0))
    wire.say(m.SeqnoAdvanced(vbucket=3, opaque=1, seqno=9))
    assert (position_of(wire).seqno, position_of(wire).is_consistent) == (9, True)
    assert [(step.stop, step.seqno) for step in wire.steps()] == [(1, 2), (0, 9)]


def test_system_events_are_steps_and_events_in_their_place() -> None:
    wire = Wire(Dcp(collections=True))
    wire.opened()
    created = m.CollectionCreated(
        vbucket=3, opaque=1, seqno=2, name="c", manifest_uid=4, scope=0, collection=8
    )
    unknown = m.SystemEvent(vbucket=3, opaque=1, seqno=4, event=5, version=3)
    wire.say(marker(0, 4), mutation(1, collection=0), created, mutation(3, collection=8), unknown)
    kinds = [type(event) for event in wire.events[1:]]
    assert kinds == [Rows, SystemHappened, Rows, SystemHappened, Rows]
    assert [event.event for event in only(wire.events, SystemHappened)] == [created, unknown]
    assert [step.seqno for step in wire.steps()] == [1, 2, 3, 4]
    assert position_of(wire).manifest_uid == 4
    assert position_of(wire).is_consistent


def test_a_flush_and_a_state_come_after_the_rows_before_them() -> None:
    wire = Wire()
    wire.opened()
    state = m.SetStreamState(vbucket=3, opaque=1, state=VBucketState.PENDING)
    wire.say(marker(0, 3), mutation(1), m.FlushStream(vbucket=3, opaque=1), mutation(2), state)
    assert [type(event) for event in wire.events[1:]] == [Rows, Flushed, Rows, StateAsked]
    assert wire.events[-1] == StateAsked(3, VBucketState.PENDING)
    wire.asked()
    wire.session.confirm_state(3)
    (answer,) = wire.asked()
    assert (answer.command, answer.status) == (Command.SET_STREAM_STATE, Status.SUCCESS)


def test_draft_001_wants_no_answer_to_a_state() -> None:
    wire = Wire(Draft001())
    wire.opened()
    wire.say(m.SetStreamState(vbucket=3, opaque=1, state=VBucketState.ACTIVE))
    wire.session.confirm_state(3)
    assert wire.asked() == []


def test_a_marker_that_wants_an_answer_gets_it_after_the_last_item() -> None:
    wire = Wire()
    wire.opened()
    wire.say(marker(0, 2, flags=MarkerFlag.MEMORY | MarkerFlag.ACK), mutation(1))
    assert wire.asked() == []
    wire.say(mutation(2))
    (answer,) = wire.asked()
    assert (answer.command, answer.opaque) == (Command.SNAPSHOT_MARKER, 1)
    wire.say(marker(3, 3), mutation(3))
    assert wire.asked() == []


def test_a_noop_is_answered_with_its_opaque() -> None:
    wire = Wire()
    wire.opened()
    wire.say(m.StreamNoop(opaque=10_000_001))
    (answer,) = wire.asked()
    assert (answer.command, answer.opaque) == (Command.STREAM_NOOP, 10_000_001)


# ---- the window --------------------------------------------------------------------------


def test_every_counted_byte_is_given_back_once() -> None:
    wire = Wire()
    first, second = wire.opened(3), wire.opened(4)
    wire.asked()
    dialect = Dcp()
    traffic: list[m.Message] = [
        marker(0, 9, opaque=first),
        mutation(1, opaque=first),
        m.StreamNoop(opaque=10_000_001),
        marker(0, 9, opaque=second, vbucket=4),
        mutation(1, opaque=second, vbucket=4),
        mutation(2, opaque=first),
        m.SeqnoAdvanced(vbucket=3, opaque=first, seqno=9),
        m.PlainResponse(command=Command.CONTROL, opaque=0x40000000),
        m.FlushStream(vbucket=4, opaque=second),
        end(),
    ]
    counted = sum(counted_size(dialect.encode(message)) for message in traffic)
    wire.say(*traffic)
    given = sum(event.counted for event in only(wire.events, Rows))
    assert given + wire.session.take_freed() == counted
    assert wire.session.take_freed() == 0
    wire.session.acknowledge(counted)
    (noop, ack) = wire.asked()
    assert ack.size == counted
    assert noop.command is Command.STREAM_NOOP


def test_rows_of_a_closed_stream_are_dropped_and_given_back() -> None:
    wire = Wire()
    first, second = wire.opened(3), wire.opened(4)
    wire.asked()
    wire.say(marker(0, 9, opaque=first), marker(0, 9, opaque=second, vbucket=4))
    wire.session.take_freed()
    wire.session.close(3)
    assert wire.asked() == [m.CloseStream(vbucket=3, opaque=first)]
    late: list[m.Message] = [
        mutation(1, opaque=first),
        mutation(1, opaque=second, vbucket=4),
        mutation(2, opaque=first),
        marker(3, 4, opaque=first),
        m.StreamEnd(vbucket=3, opaque=first, reason=StreamEndReason.CLOSED),
    ]
    wire.say(*late)
    assert wire.rows() == [(4, 1)]
    assert wire.session.broken is None
    assert wire.asked() == []  # the producer knows
    counted = len(packets(Dcp(), *late))
    assert sum(e.counted for e in only(wire.events, Rows)) + wire.session.take_freed() == counted


def test_a_prepare_counts_two_bytes_more_than_it_has() -> None:
    wire = Wire()
    wire.opened()
    prepare = m.Prepare(
        vbucket=3, opaque=1, seqno=1, key=b"k", cas=1, level=DurabilityLevel.MAJORITY
    )
    assert counted_size(Dcp().encode(prepare)) == len(Dcp().encode(prepare)) + 2
    wire.say(prepare)
    assert wire.session.take_freed() == len(Dcp().encode(prepare)) + 2
    assert wire.rule == "message"  # and nobody asked for one


def test_a_pushed_map_is_told() -> None:
    wire = Wire()
    wire.opened()
    (told,) = wire.say(kv.ClustermapChanged(opaque=9, bucket="b", revision=4, config=b"{}"))
    assert told.value == b"{}"  # type: ignore[union-attr]


# ---- chunks ------------------------------------------------------------------------------


def stream_bytes(name: str) -> bytes:
    """Two streams side by side, as a producer of this draft sends them."""
    dialect = DIALECTS[name]
    one = StreamOutput(dialect, vbucket=3, opaque=1)
    two = StreamOutput(dialect, vbucket=4, opaque=2)

    def frame(vbucket: int, seqno: int) -> bytes:
        return canonical.mutation(vbucket, seqno, 1, 9, 0, 0, 0, b"\0k%d" % seqno, b"v" * seqno)

    def gone(vbucket: int, seqno: int) -> bytes:
        return canonical.deletion(vbucket, seqno, 2, 9, 77, 0, b"\0k%d" % seqno)

    memory = MarkerFlag.MEMORY
    parts = [
        one.opening() + two.opening(),
        one.snapshot_start(0, 3, memory),
        one.changes(frame(3, 1) + frame(3, 2), 2).packets,
        two.snapshot_start(0, 9, memory),
        two.changes(frame(4, 4) + gone(4, 9), 9).packets,
        one.changes(gone(3, 3), 3).packets,
        one.snapshot_end(3, 3),
        two.snapshot_end(9, 9),
        two.ending(StreamEndReason.OK),
        one.snapshot_start(4, 30, memory),
        one.changes(frame(3, 4) + frame(3, 30), 30).packets,
        one.snapshot_end(30, 30),
        one.ending(StreamEndReason.STATE_CHANGED),
    ]
    return b"".join(parts)


def outcome(name: str, chunks: list[bytes]) -> tuple[Any, ...]:
    wire = Wire(DIALECTS[name])
    wire.opened(3)
    wire.opened(4)
    wire.asked()
    wire.session.take_freed()
    wire.events.clear()
    for chunk in chunks:
        wire.raw(chunk)
    counted = sum(event.counted for event in only(wire.events, Rows))
    rest = [event for event in wire.events if not isinstance(event, Rows)]
    return (
        [change for event in only(wire.events, Rows) for change in changes_of(event.batch)],
        final_steps(wire.events),
        rest,
        counted + wire.session.take_freed(),
        wire.session.broken,
        wire.asked(),
    )


def final_steps(events: list[Event]) -> dict[int, list[tuple[Snapshot, int, bool]]]:
    """The last step of each snapshot of each vbucket: how many there are depends on the cuts."""
    found: dict[int, dict[Any, tuple[Snapshot, int, bool]]] = {}
    for step in steps_of(events):
        key = (step.snapshot, step.closes)
        found.setdefault(step.vbucket, {})[key] = (step.snapshot, step.seqno, step.closes)
    return {vbucket: list(steps.values()) for vbucket, steps in found.items()}


@ALL
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_where_the_bytes_are_cut_makes_no_difference(name: str, data: st.DataObject) -> None:
    whole = stream_bytes(name)
    cuts = data.draw(st.lists(st.integers(0, len(whole)), max_size=12).map(sorted))
    edges = [0, *cuts, len(whole)]
    chunks = [whole[a:b] for a, b in pairwise(edges)]
    assert outcome(name, chunks) == outcome(name, [whole])


@ALL
def test_byte_by_byte(name: str) -> None:
    whole = stream_bytes(name)
    chunks = [whole[i : i + 1] for i in range(len(whole))]
    expected = outcome(name, [whole])
    assert outcome(name, chunks) == expected
    assert [(row.vbucket, row.seqno) for row in expected[0]] == [
        (3, 1),
        (3, 2),
        (4, 4),
        (4, 9),
        (3, 3),
        (3, 4),
        (3, 30),
    ]
    assert expected[4] is None


def test_a_packet_larger_than_any_read_is_taken_in_pieces() -> None:
    wire = Wire()
    wire.opened()
    large = mutation(1, value=b"x" * (5 << 20))
    data = packets(Dcp(), marker(0, 2), large, mutation(2))
    for at_byte in range(0, len(data), 700_001):
        wire.raw(data[at_byte : at_byte + 700_001])
    assert wire.rows() == [(3, 1), (3, 2)]
    assert len(wire.session.inbound.space()) >= 1 << 19  # and the buffer is small again
    assert len(wire.session.inbound.space()) <= 4 << 20


def test_draft_000_is_not_told_of_closed_streams() -> None:
    wire = Wire(Draft000())
    wire.opened()
    wire.asked()
    wire.session.close(3)
    assert wire.asked() == []
