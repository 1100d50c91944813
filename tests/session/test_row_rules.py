"""The rules of a producer's rows: what keeps them arrives, what breaks one never does."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace
from typing import Any

import pytest
from consumerkit import DIALECTS, Wire, at, marker, mutation, only, packets, rows_of
from hypothesis import given, settings
from hypothesis import strategies as st

from examples import examples
from upriver.errors import DecodeError, Status, StreamRuleBroken
from upriver.model import Snapshot
from upriver.session.consumer_events import Rows, SystemHappened
from upriver.session.stray_messages import MOST_STRAYS
from upriver.session.stream_position import Position
from upriver.wire import messages as m
from upriver.wire.dialects import Dcp, Draft000, Draft001
from upriver.wire.protocol_enums import Command, OsoFlag


def flowing(*before: m.Message, position: Position | None = None) -> Wire:
    wire = Wire()
    wire.opened(position=position)
    wire.say(*before)
    assert wire.session.broken is None
    wire.events.clear()
    return wire


@pytest.mark.parametrize(
    ("bad", "rule"),
    [
        ([mutation(2)], "seqno order"),
        ([mutation(3), mutation(3)], "seqno order"),
        ([mutation(4), mutation(3)], "seqno order"),
        ([mutation(11)], "snapshot"),
        ([marker(20, 30), mutation(15)], "snapshot"),
        ([marker(9, 8)], "marker range"),
        ([marker(0, 2)], "marker order"),
        ([mutation(3, vbucket=4)], "vbucket"),
        ([m.SeqnoAdvanced(vbucket=4, opaque=1, seqno=3)], "vbucket"),
        ([m.SeqnoAdvanced(vbucket=3, opaque=1, seqno=2)], "seqno order"),
        ([m.SeqnoAdvanced(vbucket=3, opaque=1, seqno=12)], "snapshot"),
        ([m.OsoSnapshot(vbucket=3, opaque=1, flags=OsoFlag.START)], "message"),
        ([m.Commit(vbucket=3, opaque=1, prepared_seqno=3, commit_seqno=4, key=b"k")], "message"),
        ([m.SnapshotMarker(vbucket=3, opaque=1, start=5, end=4)], "marker range"),
        ([m.StreamAccepted(opaque=1)], "answer"),
        ([m.FailoverLogResponse(opaque=1, failover_log=())], "answer"),
        ([m.StreamRollback(opaque=1, seqno=1)], "answer"),
    ],
)
def test_a_broken_rule_has_a_name_and_nothing_after_it_arrives(
    bad: list[m.Message], rule: str
) -> None:
    wire = flowing(marker(0, 10), mutation(1), mutation(2))
    good = [message for message in bad[:-1] if isinstance(message, m.Mutation)]
    wire.say(*bad, mutation(9), mutation(10))
    assert wire.rule == rule
    assert isinstance(wire.session.broken, StreamRuleBroken)
    assert wire.rows() == [(3, message.seqno) for message in good]
    assert wire.say(mutation(9)) == []  # and never again
    assert wire.session.position(3).seqno == (good[-1].seqno if good else 2)


def test_before_any_marker_there_is_no_snapshot() -> None:
    wire = flowing()
    wire.say(mutation(1))
    assert wire.rule == "snapshot"
    assert wire.rows() == []


def test_the_snapshot_of_an_earlier_connection_is_not_the_one_of_this() -> None:
    wire = flowing(position=at(5, (0, 10)))
    wire.say(mutation(6))
    assert wire.rule == "snapshot"
    again = flowing(position=at(5, (0, 10)))
    again.say(marker(0, 10), mutation(6))
    assert again.rows() == [(3, 6)]


@pytest.mark.parametrize(
    "early",
    [
        [marker(0, 5), mutation(1)],
        [m.StreamEnd(vbucket=3, opaque=1)],
        [m.FlushStream(vbucket=3, opaque=1)],
    ],
)
def test_nothing_comes_before_a_stream_is_accepted(early: list[m.Message]) -> None:
    wire = Wire()
    wire.session.open(3, Position())
    assert wire.say(*early) == []
    assert wire.session.broken is not None


def test_a_snapshot_that_ends_before_its_stream_is_accepted_is_no_boundary() -> None:
    wire = Wire(Draft000())
    wire.session.open(3, at(5, (2, 2**64 - 1), boundaries=(2,)))
    wire.say(m.SnapshotEnd(vbucket=3, opaque=1))
    assert wire.session.broken is not None
    assert wire.session.position(3).last_boundary == 2


@pytest.mark.parametrize("draft", ["001", "000", "002"])
def test_the_old_drafts_have_the_same_rules(draft: str) -> None:
    if draft != "001":  # whose servers send a backfill before its marker
        wire = Wire(DIALECTS[draft])
        wire.opened()
        wire.say(mutation(1))
        assert wire.rule == "snapshot"
    wire = Wire(DIALECTS[draft])
    wire.opened()
    opens: m.Message = m.SnapshotStart(vbucket=3, opaque=1)
    if draft == "001":
        opens = m.SnapshotMarker(vbucket=3, opaque=1)
    wire.say(opens, mutation(1), mutation(4), mutation(4), mutation(5))
    assert wire.rule == "seqno order"
    assert wire.rows() == [(3, 1), (3, 4)]


@pytest.mark.parametrize("draft", DIALECTS)
def test_a_message_of_no_stream_is_refused_and_the_others_arrive(draft: str) -> None:
    dialect = DIALECTS[draft]
    wire = Wire(dialect)
    wire.opened()
    wire.asked()
    opens: m.Message = m.SnapshotStart(vbucket=3, opaque=1)
    if draft in ("001", "dcp"):
        opens = marker(0, 9) if draft == "dcp" else m.SnapshotMarker(vbucket=3, opaque=1)
    strange = [mutation(1, opaque=9), mutation(2, opaque=9), replace(opens, opaque=0)]
    wire.say(opens, mutation(1), *strange, mutation(2))
    assert wire.session.broken is None
    assert wire.rows() == [(3, 1), (3, 2)]
    refusals = wire.asked()
    assert [answer.opaque for answer in refusals] == [9, 9, 0]
    assert {answer.status for answer in refusals} == {Status.NOT_MY_VBUCKET}
    if draft != "002":  # whose responses name no command
        edge = dialect.command_of(opens)
        assert [answer.command for answer in refusals] == [Command.MUTATION, Command.MUTATION, edge]


@pytest.mark.parametrize("ended", [False, True], ids=["never asked", "ended"])
def test_too_many_messages_of_no_stream_break_a_rule(ended: bool) -> None:
    wire = flowing(marker(0, 10), mutation(1))
    opaque = wire.opened(4)
    if ended:
        wire.say(m.StreamEnd(vbucket=4, opaque=opaque))
    stray = mutation(1, vbucket=4, opaque=opaque if ended else 77)
    wire.say(
        *[stray] * (MOST_STRAYS - 1), mutation(2), m.SeqnoAdvanced(vbucket=4, opaque=0, seqno=3)
    )
    assert wire.session.broken is None
    wire.say(mutation(3), stray, mutation(4))
    assert wire.rule == "opaque"
    assert str(MOST_STRAYS) in str(wire.session.broken)
    assert wire.rows() == [(3, 2), (3, 3)]


def test_a_system_event_out_of_order_is_not_told() -> None:
    wire = Wire(Dcp(collections=True))
    wire.opened()
    wire.say(marker(0, 9), mutation(4, collection=0))
    late = m.ScopeDropped(vbucket=3, opaque=1, seqno=4, manifest_uid=1, scope=8)
    wire.say(late)
    assert wire.rule == "seqno order"
    assert only(wire.events, SystemHappened) == []


# ---- bytes that are none -----------------------------------------------------------------


GOOD = packets(Dcp(), mutation(1), mutation(2))
#: A mutation whose datatype does not exist: it can be cut, but not read.
UNREADABLE = bytearray(Dcp().encode(mutation(3)))
UNREADABLE[5] = 0x80
OVERSIZED = b"\x80\x57" + bytes(6) + b"\xff\xff\xff\xff" + bytes(12)


@pytest.mark.parametrize(
    "bad",
    [bytes(UNREADABLE), OVERSIZED, b"\x42" * 24, b"\x42", b"GET / HTTP/1.1\r\n\r\n", b"\x01" * 30],
    ids=["unreadable", "oversized", "garbage", "one byte", "another protocol", "another draft"],
)
def test_what_comes_before_bytes_that_make_no_sense_arrives(bad: bytes) -> None:
    wire = flowing(marker(0, 10))
    wire.raw(GOOD + bad)
    assert isinstance(wire.session.broken, DecodeError)
    assert wire.rows() == [(3, 1), (3, 2)]
    assert wire.raw(packets(Dcp(), mutation(4))) == []
    assert wire.rows() == [(3, 1), (3, 2)]


@pytest.mark.parametrize("draft", ["001", "000", "002"])
def test_so_it_does_in_the_old_drafts(draft: str) -> None:
    wire = Wire(DIALECTS[draft])
    wire.opened()
    opens: m.Message = m.SnapshotStart(vbucket=3, opaque=1)
    if draft == "001":
        opens = m.SnapshotMarker(vbucket=3, opaque=1)
    good = packets(DIALECTS[draft], opens, mutation(1), mutation(2))
    wire.raw(good + b"\x42" * 24)
    assert isinstance(wire.session.broken, DecodeError)
    assert wire.rows() == [(3, 1), (3, 2)]


@settings(deadline=None, max_examples=examples(200))
@given(st.binary(max_size=200), st.integers(0, 100))
def test_any_bytes_either_mean_nothing_or_break_a_rule(noise: bytes, cut: int) -> None:
    wire = flowing(marker(0, 10))
    wire.raw(noise[:cut])
    wire.raw(noise[cut:])
    for _, seqno in wire.rows():
        assert 0 < seqno <= 10


# ---- several streams at once -------------------------------------------------------------


@dataclass(frozen=True)
class Item:
    """A message of a generated stream, and whether it is a row."""

    message: Any

    @property
    def is_row(self) -> bool:
        return isinstance(self.message, m.Mutation | m.Deletion)


@st.composite
def streams(draw: st.DrawFn) -> list[list[Item]]:
    """What each of some streams says, in its own order, all of it allowed."""
    made = []
    for number in range(draw(st.integers(1, 4))):
        opaque, vbucket, seqno = number + 1, number + 10, 0
        items: list[Item] = []
        for gaps in draw(st.lists(st.lists(st.integers(1, 3), min_size=1, max_size=6), max_size=4)):
            seqnos = []
            for gap in gaps:
                seqno += gap
                seqnos.append(seqno)
            # the first marker may begin at what the reader has, others anywhere up to the first
            start = draw(st.integers(max(0, seqnos[0] - 2), seqnos[0]))
            end = seqnos[-1] + draw(st.sampled_from([0, 0, 2]))
            items.append(Item(marker(start, end, opaque=opaque, vbucket=vbucket)))
            for each in seqnos:
                kind = draw(st.sampled_from(["mutation", "mutation", "deletion", "advanced"]))
                if kind == "mutation":
                    items.append(Item(mutation(each, opaque=opaque, vbucket=vbucket)))
                elif kind == "deletion":
                    gone = m.Deletion(vbucket=vbucket, opaque=opaque, seqno=each, key=b"k")
                    items.append(Item(gone))
                else:
                    passed = m.SeqnoAdvanced(vbucket=vbucket, opaque=opaque, seqno=each)
                    items.append(Item(passed))
            seqno = end
        made.append(items)
    return made


@st.composite
def interleaved(draw: st.DrawFn) -> list[Item]:
    """Such streams on one connection: in any order that keeps each one's own."""
    queues = [list(reversed(items)) for items in draw(streams())]
    mixed = []
    while queues := [queue for queue in queues if queue]:
        mixed.append(draw(st.sampled_from(queues)).pop())
    return mixed


def with_all_open() -> Wire:
    wire = Wire()
    for number in range(4):
        wire.opened(number + 10)
    wire.asked()
    wire.events.clear()
    wire.session.take_freed()
    return wire


def feed_in_pieces(wire: Wire, items: list[Item], data: st.DataObject) -> None:
    whole = packets(Dcp(), *(item.message for item in items))
    at_byte = 0
    while at_byte < len(whole):
        size = data.draw(st.integers(1, max(1, len(whole))))
        wire.raw(whole[at_byte : at_byte + size])
        at_byte += size


def rows_among(items: list[Item]) -> list[tuple[int, int]]:
    return [(item.message.vbucket, item.message.seqno) for item in items if item.is_row]


@settings(deadline=None, max_examples=examples(150))
@given(interleaved(), st.data())
def test_every_allowed_order_of_several_streams_arrives_exactly(
    items: list[Item], data: st.DataObject
) -> None:
    wire = with_all_open()
    feed_in_pieces(wire, items, data)
    assert wire.session.broken is None
    assert wire.rows() == rows_among(items)
    counted = len(packets(Dcp(), *(item.message for item in items)))
    given_out = sum(event.counted for event in only(wire.events, Rows))
    assert given_out + wire.session.take_freed() == counted
    ends: dict[int, tuple[int, Snapshot]] = {}
    snapshots: dict[int, Snapshot] = {}
    for item in items:
        message = item.message
        if isinstance(message, m.SnapshotMarker):
            assert message.start is not None
            assert message.end is not None
            snapshots[message.vbucket] = Snapshot(message.start, message.end)
        else:
            ends[message.vbucket] = (message.seqno, snapshots[message.vbucket])
    for vbucket, (seqno, snapshot) in ends.items():
        offset = wire.session.position(vbucket).offset
        assert (offset.seqno, offset.snapshot) == (seqno, snapshot)
    check_steps(wire)


def check_steps(wire: Wire) -> None:
    """The steps say for every row how far its vbucket is once it was read."""
    for event in only(wire.events, Rows):
        rows = rows_of([event])
        reached: dict[int, int] = {}
        stops = [step.stop for step in event.steps]
        assert stops == sorted(stops)
        assert not rows or max(stops) == len(rows)
        position = 0
        for step in event.steps:
            of_step = rows[position : step.stop]
            assert all(vbucket == step.vbucket for vbucket, _ in of_step)
            assert all(seqno <= step.seqno for _, seqno in of_step)
            assert step.seqno > reached.get(step.vbucket, 0)
            reached[step.vbucket] = step.seqno
            position = step.stop


def broken_versions(item: Item, reached: dict[int, int]) -> list[tuple[str, m.Message]]:
    """The same message, each breaking one rule where it stands."""
    message = item.message
    last = reached[message.vbucket]
    versions: list[tuple[str, m.Message]] = [("vbucket", replace(message, vbucket=9))]
    if isinstance(message, m.SnapshotMarker):
        assert message.end is not None
        versions.append(("marker range", replace(message, start=message.end + 1)))
        if last:
            versions.append(("marker order", replace(message, start=last - 1, end=last)))
        return versions
    versions.append(("snapshot", replace(message, seqno=message.seqno + 1000)))
    if last:
        versions.append(("seqno order", replace(message, seqno=last)))
    if last > 1:
        versions.append(("seqno order", replace(message, seqno=last - 1)))
    return versions


@settings(deadline=None, max_examples=examples(200))
@given(interleaved().filter(bool), st.data())
def test_one_broken_rule_anywhere_is_found_and_nothing_of_it_arrives(
    items: list[Item], data: st.DataObject
) -> None:
    place = data.draw(st.integers(0, len(items) - 1))
    reached: dict[int, int] = defaultdict(int)
    for item in items[:place]:
        if not isinstance(item.message, m.SnapshotMarker):
            reached[item.message.vbucket] = item.message.seqno
    rule, bad = data.draw(st.sampled_from(broken_versions(items[place], reached)))
    wire = with_all_open()
    feed_in_pieces(wire, [*items[:place], Item(bad), *items[place + 1 :]], data)
    assert wire.rule == rule
    assert wire.rows() == rows_among(items[:place])
    for vbucket, seqno in reached.items():
        assert wire.session.position(vbucket).seqno == seqno
    check_steps(wire)


def test_draft_001_marks_are_no_rule_of_their_own() -> None:
    wire = Wire(Draft001())
    wire.opened()
    mark = m.SnapshotMarker(vbucket=3, opaque=1)
    wire.say(mark, mark, mark, mutation(1), mark, mark)
    assert wire.session.broken is None
    assert wire.session.position(3).boundaries == (1,)
