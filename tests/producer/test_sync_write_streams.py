"""Durable writes on streams: hidden from readers, prepared and completed on replicas."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from upriver.model import NO_END, Snapshot
from upriver.producer.dcp.active_stream import ActiveStream
from upriver.session.change_writer import Shape
from upriver.session.collection_filter import FilterKind, StreamFilter
from upriver.session.flow_control import SendWindow
from upriver.session.stream_output import StreamOutput
from upriver.session.stream_request_checks import Acceptance
from upriver.store import (
    AbortPrepared,
    Bucket,
    BucketSettings,
    CommitPrepared,
    DeleteDocument,
    PrepareWrite,
    SetDocument,
    Store,
)
from upriver.wire import messages as m
from upriver.wire.dialects import Dcp, Dialect, Draft001
from upriver.wire.framing import Framer
from upriver.wire.protocol_enums import DurabilityLevel, MarkerFlag

VB = 1
EVERYTHING = StreamFilter(kind=FilterKind.EVERYTHING)
LEGACY = StreamFilter(kind=FilterKind.LEGACY, collections=frozenset({0}))
WHOLE = Shape(xattrs=True, delete_times=True, expirations=True, snappy=True)
DISK = MarkerFlag.DISK | MarkerFlag.CHECKPOINT


@pytest.fixture
def bucket(tmp_path: Path) -> Iterator[Bucket]:
    with Store(tmp_path) as store:
        yield store.create_bucket("b", BucketSettings(vbuckets=2, maintenance_interval=0))


def prepare(bucket: Bucket, name: str, value: str = "new", level: int = 1) -> int:
    write = SetDocument(VB, b"\0" + name.encode(), value.encode())
    return bucket.write(PrepareWrite(VB, write, level)).seqno


def commit(bucket: Bucket, name: str, seqno: int) -> int:
    return bucket.write(CommitPrepared(VB, b"\0" + name.encode(), seqno)).seqno


def abort(bucket: Bucket, name: str, seqno: int) -> int:
    return bucket.write(AbortPrepared(VB, b"\0" + name.encode(), seqno)).seqno


def put(bucket: Bucket, name: str, value: str = "plain") -> int:
    return bucket.write(SetDocument(VB, b"\0" + name.encode(), value.encode())).seqno


class Reader:
    """A stream, and what its consumer gets of it."""

    def __init__(
        self,
        bucket: Bucket,
        *,
        dialect: Dialect | None = None,
        sync_writes: bool = False,
        start: int = 0,
        marker_2_2: bool = False,
    ) -> None:
        self.dialect = dialect or Dcp(collections=True)
        wanted = EVERYTHING if self.dialect.collections else LEGACY
        accepted = Acceptance(
            start=start,
            end=NO_END,
            snapshot=Snapshot(start, start),
            vbuuid=0,
            filter=wanted,
            takeover=False,
        )
        output = StreamOutput(
            self.dialect, vbucket=VB, opaque=7, shape=WHOLE, filter=wanted, sync_writes=sync_writes
        )
        self.stream = ActiveStream(
            bucket,
            accepted,
            output,
            vbucket=VB,
            opaque=7,
            marker_2_2=marker_2_2,
            hand_over=lambda stream: None,
        )

    def packets(self) -> list[bytes]:
        """All packets up to where the vbucket is now."""
        data, window = b"", SendWindow()
        while (taken := bytes(self.stream.take(window))) or self.stream.unfinished:
            data += taken
        return list(Framer().feed(data))

    def read(self) -> list[Any]:
        return [self.dialect.decode(packet) for packet in self.packets()]

    def told(self) -> list[tuple[Any, ...]]:
        """What came, in short; where a snapshot comes from matters only to replicas."""
        told = [short(message) for message in self.read()]
        if self.stream._output.sync_writes is not None:
            return told
        return [
            ("snapshot", *rest) if kind in ("disk", "memory") else (kind, *rest)
            for kind, *rest in told
        ]


def short(message: Any) -> tuple[Any, ...]:
    match message:
        case m.SnapshotMarker():
            return "disk" if message.flags & MarkerFlag.DISK else "memory", message.end
        case m.Prepare():
            return "prepare", message.key, message.seqno
        case m.Commit():
            return "commit", message.key, message.prepared_seqno, message.commit_seqno
        case m.Abort():
            return "abort", message.key, message.prepared_seqno, message.abort_seqno
        case m.SeqnoAdvanced():
            return "advanced", message.seqno
        case _:
            return type(message).__name__.lower(), message.key, message.seqno


def test_a_reader_sees_a_durable_write_at_its_commit_only(bucket: Bucket) -> None:
    put(bucket, "k")
    reader = Reader(bucket)
    assert reader.told() == [("snapshot", 1), ("mutation", b"k", 1)]
    prepared = prepare(bucket, "k")
    assert reader.told() == [("snapshot", 2), ("advanced", 2)]
    commit(bucket, "k", prepared)
    assert reader.told() == [("snapshot", 3), ("mutation", b"k", 3)]


def test_a_reader_never_hears_of_an_aborted_write(bucket: Bucket) -> None:
    put(bucket, "k")
    abort(bucket, "k", prepare(bucket, "k"))
    assert Reader(bucket).told() == [("snapshot", 3), ("mutation", b"k", 1), ("advanced", 3)]


def test_a_snapshot_of_a_reader_without_collections_ends_where_it_sees_a_change(
    bucket: Bucket,
) -> None:
    put(bucket, "k")
    reader = Reader(bucket, dialect=Dcp())
    prepared = prepare(bucket, "other")
    assert reader.told() == [("snapshot", 1), ("mutation", b"k", 1)]
    commit(bucket, "other", prepared)
    assert reader.told() == [("snapshot", 3), ("mutation", b"other", 3)]


def test_the_drafts_see_commits_only(bucket: Bucket) -> None:
    put(bucket, "k")
    abort(bucket, "k", prepare(bucket, "k"))
    commit(bucket, "z", prepare(bucket, "z"))
    prepare(bucket, "pending")
    seen = [x for x in Reader(bucket, dialect=Draft001()).read() if isinstance(x, m.Mutation)]
    assert [(x.key, x.seqno) for x in seen] == [(b"k", 1), (b"z", 5)]


def test_a_replica_is_told_of_prepares_commits_and_aborts(bucket: Bucket) -> None:
    replica = Reader(bucket, sync_writes=True)
    put(bucket, "k")
    first = prepare(bucket, "k")
    second = prepare(bucket, "other")
    assert replica.told() == [
        ("disk", 3),
        ("mutation", b"k", 1),
        ("prepare", b"k", 2),
        ("prepare", b"other", 3),
    ]
    commit(bucket, "k", first)
    abort(bucket, "other", second)
    put(bucket, "plain")
    assert replica.told() == [
        ("memory", 6),
        ("commit", b"k", 2, 4),
        ("abort", b"other", 3, 5),
        ("mutation", b"plain", 6),
    ]


def test_a_prepared_deletion_says_so(bucket: Bucket) -> None:
    put(bucket, "k")
    deleted = bucket.write(PrepareWrite(VB, DeleteDocument(VB, b"\0k"), 3)).seqno
    replica = Reader(bucket, sync_writes=True)
    prepared = replica.read()[-1]
    assert isinstance(prepared, m.Prepare)
    assert prepared.deleted
    assert prepared.level is DurabilityLevel.PERSIST_TO_MAJORITY
    commit(bucket, "k", deleted)
    assert replica.told() == [("memory", 3), ("commit", b"k", 2, 3)]
    assert Reader(bucket).told() == [("snapshot", 3), ("deletion", b"k", 3)]


def test_a_replica_that_begins_later_gets_what_is_pending(bucket: Bucket) -> None:
    commit(bucket, "done", prepare(bucket, "done"))
    prepare(bucket, "pending")
    assert Reader(bucket, sync_writes=True).told() == [
        ("disk", 3),
        ("mutation", b"done", 2),
        ("prepare", b"pending", 3),
    ]


def test_a_replica_that_goes_on_after_a_prepare_gets_its_commit(bucket: Bucket) -> None:
    prepared = prepare(bucket, "k")
    replica = Reader(bucket, sync_writes=True, start=prepared)
    assert replica.told() == []
    commit(bucket, "k", prepared)
    assert replica.told() == [("memory", 2), ("commit", b"k", 1, 2)]


def test_what_was_written_over_a_commit_comes_as_a_disk_snapshot(bucket: Bucket) -> None:
    prepared = prepare(bucket, "k")
    replica = Reader(bucket, sync_writes=True, start=prepared)
    assert replica.told() == []
    commit(bucket, "k", prepared)
    put(bucket, "k")
    assert replica.told() == [("disk", 3), ("mutation", b"k", 3)]


def test_completions_out_of_order_come_as_a_disk_snapshot(bucket: Bucket) -> None:
    first, second = prepare(bucket, "first"), prepare(bucket, "second")
    replica = Reader(bucket, sync_writes=True, start=second)
    assert replica.told() == []
    abort(bucket, "second", second)
    assert replica.told() == [("disk", 3), ("abort", b"second", 2, 3)]
    commit(bucket, "first", first)
    assert replica.told() == [("memory", 4), ("commit", b"first", 1, 4)]


def test_markers_tell_a_replica_what_is_visible_and_completed(bucket: Bucket) -> None:
    commit(bucket, "a", prepare(bucket, "a"))
    prepared = prepare(bucket, "b")
    replica = Reader(bucket, sync_writes=True)
    disk = replica.read()[0]
    assert (disk.flags, disk.max_visible_seqno, disk.high_completed_seqno) == (DISK, 2, 1)
    commit(bucket, "b", prepared)
    memory = replica.read()[0]
    assert (memory.max_visible_seqno, memory.purge_seqno) == (4, None)


def test_the_bytes_of_a_disk_marker_and_a_prepare(bucket: Bucket) -> None:
    bucket.write(PrepareWrite(VB, SetDocument(VB, b"\0k", b"v", 0x01020304, 0), 2))
    marker, prepared = Reader(bucket, sync_writes=True).packets()
    cas = prepared[16:24]
    assert marker == bytes.fromhex(
        "80560000 01 00 0001 00000025 00000007 0000000000000000"  # 1 byte of extras
        "00"  # marker version 2.0
        "0000000000000000 0000000000000001 00000006"  # start, end, disk and checkpoint
        "0000000000000000 0000000000000000"  # max visible seqno, high completed seqno
    )
    assert (
        prepared
        == bytes.fromhex(
            "80600002 1f 00 0001 00000022 00000007"
            + cas.hex()
            + "0000000000000001 0000000000000001"
            "01020304 00000000 00000000"  # flags, expiration, lock time
            "00 00 02"  # nru, deleted, durability level
            "006b 76"  # key with its collection, value
        )
    )


def test_the_bytes_of_a_commit_and_an_abort(bucket: Bucket) -> None:
    first, second = prepare(bucket, "k"), prepare(bucket, "l")
    replica = Reader(bucket, sync_writes=True, start=second)
    assert replica.packets() == []
    commit(bucket, "k", first)
    abort(bucket, "l", second)
    marker, committed, aborted = replica.packets()
    assert marker[24:25] == b"\0"
    assert committed == bytes.fromhex(
        "80620002 10 00 0001 00000012 00000007 0000000000000000"
        "0000000000000001 0000000000000003 006b"  # prepared seqno, commit seqno, key
    )
    assert aborted == bytes.fromhex(
        "80630002 10 00 0001 00000012 00000007 0000000000000000"
        "0000000000000002 0000000000000004 006c"  # prepared seqno, abort seqno, key
    )


def test_marker_2_2_has_the_purge_and_the_prepared_seqno(bucket: Bucket) -> None:
    prepare(bucket, "k")
    marker = Reader(bucket, sync_writes=True, marker_2_2=True).packets()[0]
    assert marker[24:25] == b"\x02"
    assert len(marker) == 77
    told = Dcp(collections=True).decode(marker)
    assert isinstance(told, m.SnapshotMarker)
    assert (told.purge_seqno, told.high_prepared_seqno) == (0, 1)


def test_a_prepare_takes_two_bytes_more_of_the_window_than_it_has(bucket: Bucket) -> None:
    """Real consumers give back so many."""
    prepare(bucket, "k")
    reader, window = Reader(bucket, sync_writes=True), SendWindow()
    window.size = 1_000_000
    sent = len(reader.stream.take(window))
    assert window.outstanding == sent + 2
