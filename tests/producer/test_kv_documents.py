"""Whole documents, as ordinary clients read and write them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kvkit import Desk, context, open_desk

from upriver.errors import Status, StoreClosed, StoreDamaged, StoreRefusal
from upriver.model import Datatype
from upriver.producer.keyvalue import Write
from upriver.producer.keyvalue.document_locks import Locks
from upriver.store import RecordKind
from upriver.wire import frameinfo as f
from upriver.wire import kv_messages as kv
from upriver.wire import values
from upriver.wire.messages import UnknownCommand
from upriver.wire.protocol_enums import DurabilityLevel, Feature

YEAR = 365 * 24 * 60 * 60


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    with open_desk(tmp_path) as desk:
        yield desk


def test_what_was_set_can_be_read(desk: Desk) -> None:
    written = desk.set(b"value", flags=0xBEEF, expiry=0)
    assert written.status is Status.SUCCESS
    read = desk.get()
    assert (read.value, read.flags, read.cas) == (b"value", 0xBEEF, written.cas)
    assert read.datatype is Datatype.RAW


def test_a_missing_document_is_not_found(desk: Desk) -> None:
    missing = desk.get()
    assert missing.status is Status.NOT_FOUND
    assert "k" in context(missing)
    assert missing.datatype is Datatype.JSON


@pytest.mark.parametrize("with_key", [False, True])
def test_quiet_reads_tell_of_hits_only(desk: Desk, with_key: bool) -> None:
    request = kv.Get(key=b"k", collection=0, quiet=True, with_key=with_key)
    assert desk.ask_all(request) == []
    desk.set()
    hit = desk.ask(request)
    assert hit.value == b"v"
    assert hit.key == (b"\0k" if with_key else b"")


def test_the_key_comes_back_as_it_was_sent(desk: Desk) -> None:
    desk.without(Feature.COLLECTIONS)
    desk.set()
    assert desk.get(with_key=True).key == b"k"


def test_quiet_writes_tell_of_refusals_only(desk: Desk) -> None:
    def quiet(kind: type, **fields: object) -> list[Status]:
        request = kind(key=b"k", collection=0, quiet=True, **fields)
        return [response.status for response in desk.ask_all(request)]

    assert quiet(kv.Replace, value=b"v") == [Status.NOT_FOUND]
    assert quiet(kv.Append, value=b"v") == [Status.NOT_STORED]
    assert quiet(kv.Set, value=b"1") == []
    assert quiet(kv.Add, value=b"v") == [Status.EXISTS]
    assert quiet(kv.Increment) == []
    assert quiet(kv.Append, value=b"0") == []
    assert desk.get().value == b"20"
    assert quiet(kv.Delete) == []
    assert quiet(kv.Delete) == [Status.NOT_FOUND]


def test_a_token_names_the_branch_and_seqno_of_a_write(desk: Desk) -> None:
    token = desk.set()
    assert token.vbuuid == desk.bucket.failover_log(0).newest.vbuuid
    assert token.seqno == 1
    assert desk.document(kv.Increment, b"n").seqno == 2
    desk.without(Feature.MUTATION_SEQNO)
    assert (desk.set().vbuuid, desk.set().seqno) == (None, None)


def test_a_cas_lets_only_its_version_be_replaced(desk: Desk) -> None:
    first = desk.set(b"1")
    second = desk.set(b"2", cas=first.cas)
    assert desk.set(b"3", cas=first.cas).status is Status.EXISTS
    assert desk.document(kv.Delete, cas=first.cas).status is Status.EXISTS
    assert desk.document(kv.Append, value=b"!", cas=second.cas).status is Status.SUCCESS
    assert desk.get().value == b"2!"


def test_add_and_replace_want_the_opposite(desk: Desk) -> None:
    assert desk.document(kv.Replace, value=b"1").status is Status.NOT_FOUND
    assert desk.document(kv.Add, value=b"1").status is Status.SUCCESS
    assert desk.document(kv.Add, value=b"2").status is Status.EXISTS
    assert desk.document(kv.Replace, value=b"3").status is Status.SUCCESS
    assert desk.get().value == b"3"


def test_bytes_go_to_either_end(desk: Desk) -> None:
    assert desk.document(kv.Append, value=b"x").status is Status.NOT_STORED
    desk.set(b"b")
    desk.document(kv.Append, value=b"c")
    desk.document(kv.Prepend, value=values.deflate(b"a"), datatype=Datatype.SNAPPY)
    assert desk.get().value == b"abc"


def test_counters_count(desk: Desk) -> None:
    assert desk.document(kv.Increment, delta=5, initial=10).value == 10
    assert desk.document(kv.Increment, delta=5).value == 15
    assert desk.document(kv.Decrement, delta=20).value == 0
    assert desk.get().value == b"0"
    assert desk.document(kv.Increment, delta=2**64 - 1).value == 2**64 - 1
    assert desk.document(kv.Increment, delta=2).value == 1


def test_a_counter_may_have_to_exist(desk: Desk) -> None:
    assert desk.document(kv.Increment, expiry=0xFFFFFFFF).status is Status.NOT_FOUND
    desk.set(b"not a number")
    assert desk.document(kv.Decrement).status is Status.BAD_DELTA


def test_a_touch_moves_the_expiry(desk: Desk) -> None:
    written = desk.set(expiry=10)
    touched = desk.document(kv.Touch, expiry=100)
    assert touched.cas > written.cas
    assert touched.seqno is None
    desk.node.seconds += 50
    assert desk.get().status is Status.SUCCESS
    desk.node.seconds += 60
    assert desk.get().status is Status.NOT_FOUND
    assert desk.document(kv.Touch, expiry=0).status is Status.NOT_FOUND


def test_get_and_touch_reads_and_moves_the_expiry(desk: Desk) -> None:
    assert desk.ask_all(kv.GetAndTouch(key=b"k", collection=0, expiry=9, quiet=True)) == []
    assert desk.document(kv.GetAndTouch, expiry=9).status is Status.NOT_FOUND
    desk.set(b"v", flags=3)
    read = desk.document(kv.GetAndTouch, expiry=9)
    assert (read.value, read.flags, read.cas) == (b"v", 3, desk.get().cas)
    assert desk.document(kv.GetMeta).expiry == int(desk.node.seconds) + 9


def test_replicas_are_read_by_their_own_command(desk: Desk) -> None:
    desk.set()
    assert desk.document(kv.GetReplica).status is Status.NOT_MY_VBUCKET
    desk.bucket.set_state(0, desk.bucket.state(0).REPLICA)
    assert desk.document(kv.GetReplica).value == b"v"
    refused = desk.get()
    assert (refused.status, refused.value) == (Status.NOT_MY_VBUCKET, b'{"rev":7}')


def test_metadata_tells_of_tombstones_too(desk: Desk) -> None:
    assert desk.document(kv.GetMeta).status is Status.NOT_FOUND
    assert desk.ask_all(kv.GetMeta(key=b"k", collection=0, quiet=True)) == []
    written = desk.set(b"1", flags=5, expiry=60)
    meta = desk.document(kv.GetMeta, version=2)
    assert (meta.deleted, meta.flags, meta.rev, meta.cas) == (False, 5, 1, written.cas)
    assert meta.expiry == int(desk.node.seconds) + 60
    assert meta.document_datatype is Datatype.JSON
    assert desk.document(kv.GetMeta, version=1).document_datatype is None
    desk.node.seconds += 61
    assert desk.document(kv.GetMeta).deleted
    desk.get()
    desk.set(b"2")
    desk.document(kv.Delete)
    assert desk.document(kv.GetMeta).deleted


def test_a_random_document_is_any_that_is_there(desk: Desk) -> None:
    assert desk.ask(kv.GetRandomKey(collection=0)).status is Status.NOT_FOUND
    desk.set(b"gone", b"deleted")
    desk.document(kv.Delete, b"deleted")
    desk.set(b"old", b"expired", expiry=1)
    desk.node.seconds += 2
    desk.bucket.create_collection(0, "c")
    desk.set(b"there", b"alive", vbucket=2, flags=9)
    found = desk.ask(kv.GetRandomKey(collection=0))
    assert (found.key, found.value, found.flags) == (b"\0alive", b"there", 9)
    assert desk.ask(kv.GetRandomKey(collection=8)).status is Status.NOT_FOUND
    assert desk.ask(kv.GetRandomKey(collection=99)).status is Status.UNKNOWN_COLLECTION
    assert desk.ask(kv.GetRandomKey()).status is Status.INVALID
    desk.without(Feature.COLLECTIONS)
    assert desk.ask(kv.GetRandomKey(collection=0)).status is Status.INVALID
    assert desk.ask(kv.GetRandomKey()).key == b"alive"


# ---- locks -------------------------------------------------------------------------------


def test_a_locked_document_is_written_only_with_its_token(desk: Desk) -> None:
    written = desk.set(b"1")
    locked = desk.document(kv.GetLocked)
    assert locked.value == b"1"
    assert locked.cas not in (written.cas, 2**64 - 1)
    assert desk.get().cas == desk.document(kv.GetMeta).cas == 2**64 - 1
    for refused in (
        desk.set(b"2"),
        desk.set(b"2", cas=written.cas),
        desk.document(kv.Delete),
        desk.document(kv.Append, value=b"2"),
        desk.document(kv.Increment),
        desk.document(kv.Touch, expiry=1),
        desk.document(kv.GetAndTouch, expiry=1),
        desk.document(kv.GetLocked),
        desk.document(kv.Unlock, cas=written.cas),
    ):
        assert refused.status is Status.LOCKED
    again = desk.set(b"2", cas=locked.cas)
    assert again.status is Status.SUCCESS
    assert desk.get().cas == again.cas
    assert desk.set(b"3").status is Status.SUCCESS


def test_a_refused_write_does_not_unlock(desk: Desk) -> None:
    desk.set(b"word")
    locked = desk.document(kv.GetLocked)
    huge = b"x" * (desk.bucket.settings.max_value + 1)
    assert desk.set(huge, cas=locked.cas).status is Status.TOO_BIG
    assert desk.set(b"2").status is Status.LOCKED


def test_locks_end_by_command_or_by_time(desk: Desk) -> None:
    written = desk.set()
    assert desk.document(kv.Unlock, cas=written.cas).status is Status.NOT_LOCKED
    locked = desk.document(kv.GetLocked)
    assert desk.document(kv.Unlock, cas=locked.cas).status is Status.SUCCESS
    assert desk.get().cas == written.cas
    for asked, seconds in ((None, 15), (0, 15), (5, 5), (31, 15), (1000, 15), (30, 30)):
        desk.document(kv.GetLocked, lock_time=asked)
        desk.node.seconds += seconds - 1
        assert desk.set().status is Status.LOCKED
        desk.node.seconds += 1
        assert desk.set().status is Status.SUCCESS
    assert desk.document(kv.GetLocked, b"none").status is Status.NOT_FOUND
    assert desk.document(kv.Unlock, b"none", cas=1).status is Status.NOT_FOUND


def test_locks_of_which_the_time_is_over_are_forgotten(desk: Desk) -> None:
    assert not desk.keyvalue.has_locks(desk.bucket)
    desk.set()
    desk.document(kv.GetLocked, lock_time=5)
    assert desk.keyvalue.has_locks(desk.bucket)
    desk.node.seconds += 5
    assert not desk.keyvalue.has_locks(desk.bucket)


def test_there_are_only_so_many_locks() -> None:
    now = [0.0]
    locks = Locks(lambda: now[0])
    for number in range(100_000):
        locks.take(0, number.to_bytes(4), 1, None)
    with pytest.raises(StoreRefusal) as refused:
        locks.take(1, b"key", 1, None)
    assert refused.value.status is Status.TEMPORARY_FAILURE
    now[0] = 15
    assert locks.take(1, b"key", 1, None)


def test_clients_without_extended_errors_are_told_to_try_again(desk: Desk) -> None:
    desk.without(Feature.XERROR)
    desk.set()
    desk.document(kv.GetLocked)
    assert desk.set().status is Status.TEMPORARY_FAILURE


# ---- frame infos -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("info", "status"),
    [
        (f.UnknownFrameInfo(9, b"x"), Status.UNKNOWN_FRAME_INFO),
        (f.Impersonate(b"root"), Status.NO_ACCESS),
        (f.ExtraPrivilege(b"all"), Status.NO_ACCESS),
        (f.TokenId(1), Status.NO_ACCESS),
        (f.StreamId(1), Status.INVALID),
        (f.Durability(DurabilityLevel.MAJORITY), Status.DURABILITY_IMPOSSIBLE),
        (f.Barrier(), Status.SUCCESS),
    ],
)
def test_frame_infos_are_obeyed_or_refused(desk: Desk, info: f.FrameInfo, status: Status) -> None:
    assert desk.set(frames=(info,)).status is status


def test_a_node_with_copies_takes_durable_writes(desk: Desk) -> None:
    desk.node.durable_writes = True
    durable = f.Durability(DurabilityLevel.PERSIST_TO_MAJORITY)
    assert desk.set(frames=(durable,)).status is Status.SUCCESS


def test_an_expiry_can_be_preserved(desk: Desk) -> None:
    keep = (f.PreserveTtl(),)
    time = int(desk.node.seconds) + YEAR
    assert desk.document(kv.Replace, value=b"0", frames=keep).status is Status.NOT_FOUND
    desk.set(b"1", expiry=time, frames=keep)
    written = desk.set(b"2", expiry=5, frames=keep)
    assert desk.document(kv.GetMeta).expiry == time
    assert desk.set(b"3", cas=1, frames=keep).status is Status.EXISTS
    desk.document(kv.Replace, value=b"3", cas=written.cas, frames=keep)
    assert desk.document(kv.GetMeta).expiry == time
    assert desk.get().value == b"3"
    desk.set(b"4")
    desk.set(b"5", expiry=5, frames=keep)
    assert desk.document(kv.GetMeta).expiry == 0
    assert desk.set(b"6", b"other", cas=5, frames=keep).status is Status.NOT_FOUND


# ---- documents made elsewhere ------------------------------------------------------------


def test_a_document_keeps_the_revision_and_cas_it_has_elsewhere(desk: Desk) -> None:
    now = int(desk.node.seconds) * 1_000_000_000
    fields: dict[str, Any] = {"value": b"[1]", "flags": 2, "expiry": 0, "rev": 40, "new_cas": now}
    assert desk.document(kv.SetWithMeta, **fields).cas == now
    meta = desk.document(kv.GetMeta, version=2)
    assert (meta.rev, meta.cas, meta.document_datatype) == (40, now, Datatype.JSON)
    older = {**fields, "rev": 39}
    assert desk.document(kv.SetWithMeta, **older).status is Status.EXISTS
    assert desk.document(kv.SetWithMeta, **older, options=1).status is Status.SUCCESS
    assert desk.document(kv.SetWithMeta, **fields, add_only=True).status is Status.EXISTS
    added = desk.document(kv.SetWithMeta, b"new", **fields, add_only=True)
    assert added.status is Status.SUCCESS


def test_a_deletion_can_be_made_elsewhere_too(desk: Desk) -> None:
    now = int(desk.node.seconds)
    cas = now * 1_000_000_000
    fields: dict[str, Any] = {"rev": 3, "new_cas": cas, "delete_time": now}
    system = values.join_xattrs({"_s": b"1"}, b"")
    deleted = desk.document(kv.DeleteWithMeta, **fields, value=system, datatype=Datatype.XATTR)
    assert deleted.cas == cas
    assert desk.document(kv.GetMeta).deleted
    expired = desk.document(kv.DeleteWithMeta, **{**fields, "rev": 4}, options=0x10)
    assert expired.status is Status.SUCCESS
    assert desk.bucket.meta(0, b"\0k").kind == RecordKind.EXPIRATION


@pytest.mark.parametrize(
    ("changes", "status"),
    [
        ({"options": 0x10}, Status.INVALID),
        ({"options": 0x100}, Status.INVALID),
        ({"options": 0x05}, Status.NOT_SUPPORTED),
        ({"new_cas": 0}, Status.CAS_VALUE_INVALID),
        ({"new_cas": 2**64 - 1}, Status.CAS_VALUE_INVALID),
    ],
)
def test_metadata_that_cannot_be_kept_is_refused(
    desk: Desk, changes: dict[str, int], status: Status
) -> None:
    fields: dict[str, Any] = {"rev": 1, "new_cas": 5, **changes}
    assert desk.document(kv.SetWithMeta, value=b"v", **fields).status is status
    assert desk.set().status is Status.SUCCESS


# ---- the bucket and the server -----------------------------------------------------------


@pytest.mark.parametrize("quiet", [False, True])
def test_a_flush_empties_the_bucket_if_that_is_allowed(desk: Desk, quiet: bool) -> None:
    desk.set()
    desk.document(kv.GetLocked)
    desk.node.flush_allowed = False
    assert desk.ask(kv.FlushAll(quiet=quiet)).status is Status.NOT_SUPPORTED
    desk.node.flush_allowed = True
    assert desk.ask(kv.FlushAll(quiet=quiet, delay=5)).status is Status.NOT_SUPPORTED
    answers = desk.ask_all(kv.FlushAll(quiet=quiet, delay=0))
    assert [answer.status for answer in answers] == ([] if quiet else [Status.SUCCESS])
    assert desk.get().status is Status.NOT_FOUND
    assert desk.document(kv.Add, value=b"new").status is Status.SUCCESS
    assert desk.get().cas != 2**64 - 1


def test_an_unknown_command_says_so(desk: Desk) -> None:
    assert desk.ask(UnknownCommand(opcode=0xEE)).status is Status.UNKNOWN_COMMAND
    assert desk.ask(kv.Hello()).status is Status.UNKNOWN_COMMAND


def test_what_is_wrong_with_the_disk_stays_here(
    desk: Desk, caplog: pytest.LogCaptureFixture
) -> None:
    answer = desk.answer(kv.Set(key=b"k", collection=0, quiet=True))
    assert isinstance(answer, Write)
    for error, status in (
        (StoreDamaged(path="/secret", problem="broken"), Status.INTERNAL),
        (StoreClosed(path="/secret", problem="closed"), Status.TEMPORARY_FAILURE),
    ):
        (response,) = answer.respond(error)
        assert response.status is status
        assert "secret" not in str(response)
    assert "secret" in caplog.text
