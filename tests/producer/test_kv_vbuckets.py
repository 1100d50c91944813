"""Vbuckets as tools and clusters see them: states, seqnos, branches, what is on disk."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kvkit import Desk, open_desk

from upriver.errors import Status
from upriver.model import VBucketState
from upriver.producer.keyvalue import Later
from upriver.store import SyncMode
from upriver.wire import kv_messages as kv
from upriver.wire.protocol_enums import Feature, RequestedState

ACTIVE, REPLICA, DEAD = VBucketState.ACTIVE, VBucketState.REPLICA, VBucketState.DEAD


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    with open_desk(tmp_path) as desk:
        yield desk


# ---- states ------------------------------------------------------------------------------


@pytest.mark.parametrize("state", VBucketState)
def test_a_state_can_be_set_and_read(desk: Desk, state: VBucketState) -> None:
    assert desk.ask(kv.SetVBucket(vbucket=1, state=state)).status is Status.SUCCESS
    assert desk.ask(kv.GetVBucket(vbucket=1)).state is state
    written = desk.set(vbucket=1).status
    assert written is (Status.SUCCESS if state is ACTIVE else Status.NOT_MY_VBUCKET)


def test_a_topology_is_for_active_vbuckets(desk: Desk) -> None:
    topology = b'{"topology":[["n1"]]}'
    given = kv.SetVBucket(vbucket=1, state=ACTIVE, value=topology)
    assert desk.ask(given).status is Status.SUCCESS
    given = kv.SetVBucket(vbucket=1, state=REPLICA, value=topology)
    assert desk.ask(given).status is Status.INVALID


@pytest.mark.parametrize(
    "value",
    [
        b"{",
        b"[]",
        b"{}",
        b'{"topology":[]}',
        b'{"topology":[[]]}',
        b'{"topology":[[null,"n2"]]}',
        b'{"topology":[["n1",2]]}',
        b'{"topology":["n1"]}',
        b'{"topology":[["n1","n2","n3","n4","n5"]]}',
        b'{"topology":[["n1"],["n1"],["n1"]]}',
    ],
)
def test_a_topology_that_cannot_be_read_is_refused(desk: Desk, value: bytes) -> None:
    given = kv.SetVBucket(vbucket=1, state=ACTIVE, value=value)
    assert desk.ask(given).status is Status.INVALID


def test_a_topology_says_how_many_copies_a_durable_write_needs(desk: Desk) -> None:
    value = b'{"topology":[["n1","n2",null],["n3","n4"]]}'
    assert desk.ask(kv.SetVBucket(vbucket=1, state=ACTIVE, value=value)).status is Status.SUCCESS
    copies = desk.node.topology
    assert copies is not None
    assert copies.are_enough
    assert not copies.have({"n2": 5}, 5)
    assert not copies.have({"n2": 5, "n4": 9}, 5)
    assert not copies.have({"n3": 5, "n4": 9}, 5)
    assert copies.have({"n2": 5, "n3": 6, "n4": 9}, 5)
    desk.ask(kv.SetVBucket(vbucket=1, state=REPLICA))
    assert desk.node.topology is None


def test_a_node_counts_for_the_chain_to_which_its_vbucket_moves_if_that_names_it(
    desk: Desk,
) -> None:
    value = b'{"topology":[["n1","n2"],["n3","n1"]]}'
    assert desk.ask(kv.SetVBucket(vbucket=1, state=ACTIVE, value=value)).status is Status.SUCCESS
    copies = desk.node.topology
    assert copies is not None
    assert not copies.have({"n2": 5}, 5)
    assert not copies.have({"n3": 5}, 5)
    assert copies.have({"n2": 5, "n3": 5}, 5)


@pytest.mark.parametrize(
    "request_",
    [
        kv.SetVBucket(vbucket=4, state=ACTIVE),
        kv.GetVBucket(vbucket=4),
        kv.DeleteVBucket(vbucket=4),
        kv.GetFailoverLog(vbucket=4),
        kv.ObserveSeqno(vbucket=4, vbuuid=1),
        kv.SeqnoPersistence(vbucket=4, seqno=1),
        kv.Compact(vbucket=4),
        kv.Observe(keys=((4, b"\0k"),)),
        kv.Stat(group="vbucket-details 4"),
    ],
    ids=lambda request: type(request).__name__,
)
def test_a_vbucket_that_is_not_there_is_nobodys(desk: Desk, request_: kv.GetVBucket) -> None:
    assert desk.ask(request_).status is Status.NOT_MY_VBUCKET


def test_a_deleted_vbucket_is_dead_and_empty(desk: Desk) -> None:
    desk.set(vbucket=2)
    assert desk.ask(kv.DeleteVBucket(vbucket=2, value=b"async=0")).status is Status.SUCCESS
    assert desk.ask(kv.GetVBucket(vbucket=2)).state is DEAD
    desk.ask(kv.SetVBucket(vbucket=2, state=ACTIVE))
    assert desk.get(vbucket=2).status is Status.NOT_FOUND
    assert desk.bucket.vbucket_stats(2).high_seqno == 0


# ---- seqnos and branches -----------------------------------------------------------------


def test_seqnos_are_listed_by_state(desk: Desk) -> None:
    desk.set(vbucket=1)
    desk.set(vbucket=3)
    desk.set(b"2", vbucket=3)
    desk.bucket.set_state(2, REPLICA)
    desk.bucket.set_state(0, DEAD)

    def listed(**fields: Any) -> tuple[tuple[int, int], ...]:
        seqnos: tuple[tuple[int, int], ...] = desk.ask(kv.GetAllSeqnos(**fields)).seqnos
        return seqnos

    assert listed() == ((1, 1), (2, 0), (3, 2))
    assert listed(state=RequestedState.ALIVE) == listed()
    assert listed(state=RequestedState.ACTIVE) == ((1, 1), (3, 2))
    assert listed(state=RequestedState.REPLICA) == ((2, 0),)
    assert listed(state=RequestedState.DEAD) == ((0, 0),)
    assert listed(state=RequestedState.PENDING) == ()
    assert listed(state=RequestedState.ACTIVE, collection=0) == ((1, 1), (3, 2))
    unknown = kv.GetAllSeqnos(state=RequestedState.ACTIVE, collection=77)
    assert desk.ask(unknown).status is Status.UNKNOWN_COLLECTION
    desk.without(Feature.COLLECTIONS)
    assert listed() == ((1, 1), (2, 0), (3, 2))
    assert desk.ask(unknown).status is Status.INVALID


def fail_over(desk: Desk) -> None:
    desk.bucket.set_state(0, REPLICA)
    desk.bucket.set_state(0, ACTIVE)


def test_the_failover_log_tells_every_branch(desk: Desk) -> None:
    desk.set()
    fail_over(desk)
    log = desk.ask(kv.GetFailoverLog(vbucket=0)).failover_log
    assert log == desk.bucket.failover_log(0).entries
    assert [entry.seqno for entry in log] == [1, 0]


def test_a_branch_is_observed_until_where_it_ended(desk: Desk) -> None:
    desk.set()
    old = desk.bucket.failover_log(0).newest.vbuuid
    seen = desk.ask(kv.ObserveSeqno(vbucket=0, vbuuid=old))
    assert (seen.vbuuid, seen.persisted_seqno, seen.current_seqno) == (old, 1, 1)
    assert seen.old_vbuuid is None
    fail_over(desk)
    desk.set(b"2")
    seen = desk.ask(kv.ObserveSeqno(vbucket=0, vbuuid=old))
    new = desk.bucket.failover_log(0).newest.vbuuid
    assert (seen.vbuuid, seen.current_seqno) == (new, 2)
    assert (seen.old_vbuuid, seen.old_seqno) == (old, 1)
    assert desk.ask(kv.ObserveSeqno(vbucket=0, vbuuid=12345)).status is Status.NOT_FOUND
    desk.bucket.set_state(0, DEAD)
    assert desk.ask(kv.ObserveSeqno(vbucket=0, vbuuid=new)).status is Status.NOT_MY_VBUCKET


# ---- on disk -----------------------------------------------------------------------------


@pytest.mark.parametrize("collections", [True, False])
def test_documents_are_observed(desk: Desk, collections: bool) -> None:
    if not collections:
        desk.without(Feature.COLLECTIONS)
    prefix = b"\0" if collections else b""
    there = desk.set(key=b"there").cas
    desk.set(key=b"gone")
    desk.document(kv.Delete, b"gone")
    gone = desk.bucket.meta(0, b"\0gone").cas
    keys = tuple((0, prefix + key) for key in (b"there", b"gone", b"never"))
    seen = desk.ask(kv.Observe(keys=keys)).value
    expected = b""
    for (vbucket, key), state, cas in zip(keys, (1, 0x81, 0x80), (there, gone, 0), strict=True):
        expected += struct.pack(">HH", vbucket, len(key)) + key + struct.pack(">BQ", state, cas)
    assert seen == expected
    many = kv.Observe(keys=((0, b"\0k"),) * 10_001)
    assert desk.ask(many).status is Status.INVALID


def test_a_seqno_is_awaited_on_disk(desk: Desk) -> None:
    desk.set()
    assert desk.ask(kv.SeqnoPersistence(vbucket=0, seqno=1)).status is Status.SUCCESS
    answer = desk.answer(kv.SeqnoPersistence(vbucket=0, seqno=2))
    assert isinstance(answer, Later)
    assert answer.poll() is None
    desk.set(b"2")
    (response,) = answer.poll() or ()
    assert response.status is Status.SUCCESS


def test_waiting_for_the_disk_ends(desk: Desk) -> None:
    answer = desk.answer(kv.SeqnoPersistence(vbucket=0, seqno=9))
    assert isinstance(answer, Later)
    desk.node.seconds += 29
    assert answer.poll() is None
    desk.node.seconds += 1
    (response,) = answer.poll() or ()
    assert response.status is Status.TEMPORARY_FAILURE


def test_what_is_not_synced_yet_is_not_on_disk(tmp_path: Path) -> None:
    with open_desk(tmp_path, durability=SyncMode.RELAXED, sync_interval=3600) as desk:
        desk.set()
        assert desk.ask(kv.Observe(keys=((0, b"\0k"),))).value[6] == 0
        answer = desk.answer(kv.SeqnoPersistence(vbucket=0, seqno=1))
        assert isinstance(answer, Later)
        assert answer.poll() is None


def test_persistence_is_switched_by_the_node(desk: Desk) -> None:
    assert desk.ask(kv.StopPersistence()).status is Status.SUCCESS
    assert desk.ask(kv.StopPersistence()).status is Status.NOT_SUPPORTED
    assert desk.ask(kv.StartPersistence()).status is Status.SUCCESS
    assert desk.node.persistence == [False, True]


def test_a_bucket_can_be_compacted(desk: Desk) -> None:
    desk.set()
    assert desk.ask(kv.Compact(vbucket=0)).status is Status.SUCCESS
    assert desk.get().value == b"v"


# ---- statistics --------------------------------------------------------------------------


def told(desk: Desk, group: str) -> dict[str, str]:
    *stats, last = desk.ask_all(kv.Stat(group=group))
    assert (last.key, last.value) == ("", b"")
    return {stat.key: stat.value.decode() for stat in stats}


def test_general_statistics_are_the_stores_and_the_servers(desk: Desk) -> None:
    desk.set()
    desk.bucket.set_state(3, REPLICA)
    stats = told(desk, "")
    assert stats["curr_items"] == "1"
    assert stats["vb_active_num"] == "3"
    assert stats["vb_replica_num"] == "1"
    assert stats["uptime"] == "5"
    assert stats["version"] == desk.node.version
    assert stats["ep_queue_size"] == "0"
    desk.bucket.hold_persisted_seqnos(held=True)
    desk.set()
    later = told(desk, "")
    assert later["ep_queue_size"] == "1"
    assert int(later["ep_commit_num"]) > int(stats["ep_commit_num"])
    desk.bucket.hold_persisted_seqnos(held=False)


def test_statistics_of_vbuckets(desk: Desk) -> None:
    desk.set(vbucket=1)
    desk.bucket.set_state(2, REPLICA)
    assert told(desk, "vbucket") == {
        "vb_0": "active",
        "vb_1": "active",
        "vb_2": "replica",
        "vb_3": "active",
    }
    details = told(desk, "vbucket-details")
    assert details["vb_1:num_items"] == "1"
    assert details["vb_2"] == "replica"
    assert set(told(desk, "vbucket-details 1")) < set(details)
    stats = desk.bucket.vbucket_stats(1)
    assert told(desk, "vbucket-seqno 1") == {
        "vb_1:high_seqno": "1",
        "vb_1:abs_high_seqno": "1",
        "vb_1:last_persisted_seqno": "1",
        "vb_1:uuid": str(stats.vbuuid),
        "vb_1:purge_seqno": "0",
        "vb_1:last_persisted_snap_start": "1",
        "vb_1:last_persisted_snap_end": "1",
        "vb_1:high_prepared_seqno": "0",
        "vb_1:high_completed_seqno": "0",
        "vb_1:max_visible_seqno": "1",
    }
    assert len(told(desk, "vbucket-seqno")) == 40


def test_statistics_of_branches(desk: Desk) -> None:
    desk.set()
    fail_over(desk)
    first, second = desk.bucket.failover_log(0)
    log = {
        "vb_0:num_entries": "2",
        "vb_0:0:id": str(first.vbuuid),
        "vb_0:0:seq": "1",
        "vb_0:1:id": str(second.vbuuid),
        "vb_0:1:seq": "0",
    }
    older = {f"failovers:{name}": value for name, value in log.items()}  # up to release 3
    assert told(desk, "failovers 0") == log | older
    assert len(told(desk, "failovers")) == 2 * (5 + 3 * 3)


def test_statistics_of_takeovers_and_streams(desk: Desk) -> None:
    desk.set()
    takeover = told(desk, "dcp-vbtakeover 0")
    assert (takeover["status"], takeover["estimate"]) == ("does_not_exist", "1")
    assert told(desk, "dcp-vbtakeover 0 conn")["status"] == "backfilling"
    assert told(desk, "dcp") == {"ep_dcp_count": "1"}


def test_statistics_of_collections(desk: Desk) -> None:
    scope = desk.bucket.create_scope("shop").id
    desk.bucket.create_collection(scope, "c", max_ttl=5)
    stats = told(desk, "collections")
    assert stats["manifest_uid"] == "2"
    assert stats["0x0:0x0:name"] == "_default"
    assert (stats["0x8:0x9:name"], stats["0x8:0x9:scope_name"]) == ("c", "shop")
    assert stats["0x8:0x9:maxTTL"] == "5"


def test_statistics_can_be_reset(desk: Desk) -> None:
    assert told(desk, "reset") == {}
    assert desk.node.resets == 1


@pytest.mark.parametrize(
    ("group", "status"),
    [
        ("nothing", Status.NOT_FOUND),
        ("failovers x", Status.INVALID),
        ("failovers -1", Status.INVALID),
        ("vbucket-seqno 99999999", Status.NOT_MY_VBUCKET),
        ("dcp-vbtakeover", Status.INVALID),
        ("dcp-vbtakeover ²", Status.INVALID),
    ],
)
def test_groups_that_are_not_there(desk: Desk, group: str, status: Status) -> None:
    assert desk.ask(kv.Stat(group=group)).status is status
