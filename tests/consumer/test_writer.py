"""Writing documents: where they go, what is tried again, what is refused, what stays untouched."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from peer import Peer, Said, cluster

from upriver.consumer.topology.cluster_map import vbucket_of
from upriver.consumer.transport.connection_string import Source
from upriver.consumer.writing import version_copies, write_operations
from upriver.consumer.writing.edit_pipeline import ROUND_BYTES, EditPipeline
from upriver.consumer.writing.fast_get_responses import quick_answer
from upriver.consumer.writing.write_operations import Edit, Overwrite, removal, upsert
from upriver.consumer.writing.writer import Writer, WriterSettings
from upriver.errors import (
    ConfigError,
    ConnectionFailed,
    RemoteProtocolError,
    Status,
    StatusError,
    StoreRefusal,
)
from upriver.model import Datatype, VBucketState
from upriver.store import document_key
from upriver.testing import TemporaryProducer
from upriver.wire import kv_messages as kv
from upriver.wire.dialects import Dcp
from upriver.wire.messages import PlainResponse, Request
from upriver.wire.protocol_enums import Command, Feature

VBUCKETS = 8
#: Long enough for anything that comes at all.
PATIENT = WriterSettings(retry_timeout=60)


@pytest.fixture
def producer() -> Iterator[TemporaryProducer]:
    with TemporaryProducer(vbuckets=VBUCKETS) as running:
        yield running


@pytest.fixture
def writer(producer: TemporaryProducer) -> Iterator[Writer]:
    with Writer(Source.parse(producer.source), settings=PATIENT) as opened:
        yield opened


def documents(count: int, size: int = 100) -> Iterator[tuple[bytes, bytes]]:
    return ((b"k%d" % number, b"x" * size) for number in range(count))


def overwrite(pairs: Iterable[tuple[bytes, bytes]], writer: Writer) -> None:
    for key, value in pairs:
        writer.put(Overwrite(key, value))
    writer.flush()


def stored(producer: TemporaryProducer, key: bytes, collection: int = 0) -> Any:
    return producer.bucket.get(vbucket_of(key, VBUCKETS), document_key(key, collection))


def fingerprint(producer: TemporaryProducer) -> list[tuple[int, int]]:
    """The high seqno and number of documents of every vbucket: what any write changes."""
    stats = [producer.bucket.vbucket_stats(vbucket) for vbucket in range(VBUCKETS)]
    return [(each.high_seqno, each.items) for each in stats]


def write(writer: Writer, *changes: Edit) -> None:
    for change in changes:
        writer.put(change)
    writer.flush()


def counted(writer: Writer) -> tuple[int, int, int]:
    counts = writer.counts
    return counts.written, counts.unchanged, counts.superseded


# ---- what is written, and what is not ----------------------------------------------------


def test_a_document_is_written_once(producer: TemporaryProducer, writer: Writer) -> None:
    later = int(time.time()) + 1000
    make: list[Callable[[], Edit]] = [
        lambda: upsert(b"plain", b"text"),
        lambda: upsert(b"json", b'{"a": 1}', flags=7),
        lambda: upsert(b"mortal", b"text", expiry=later),
        lambda: upsert(b"empty", b""),
    ]
    write(writer, *(each() for each in make))
    assert counted(writer) == (4, 0, 0)
    assert stored(producer, b"plain").value == b"text"
    assert (stored(producer, b"json").flags, stored(producer, b"json").datatype) == (7, 1)
    assert stored(producer, b"mortal").time == later
    before = fingerprint(producer)
    write(writer, *(each() for each in make))
    assert counted(writer) == (4, 4, 0)
    assert fingerprint(producer) == before


@pytest.mark.parametrize(
    "other",
    [
        {"value": b"other"},
        {"value": b"value", "flags": 1},
        {"value": b"value", "expiry": 4_000_000_000},
    ],
)
def test_any_difference_is_written(
    producer: TemporaryProducer, writer: Writer, other: dict[str, Any]
) -> None:
    write(writer, upsert(b"k", b"value"))
    write(writer, upsert(b"k", **other))
    assert writer.counts.written == 2
    found = stored(producer, b"k")
    assert found.value == other["value"]
    assert (found.flags, found.time) == (other.get("flags", 0), other.get("expiry", 0))


def test_a_removal_of_what_is_not_there_is_fine(
    producer: TemporaryProducer, writer: Writer
) -> None:
    producer.write(b"k", b"v")
    write(writer, removal(b"k"))
    before = fingerprint(producer)
    write(writer, removal(b"k"), removal(b"never"))
    assert counted(writer) == (1, 2, 0)
    assert fingerprint(producer) == before
    with pytest.raises(StoreRefusal):
        stored(producer, b"k")


def test_the_last_edit_of_a_document_wins(producer: TemporaryProducer) -> None:
    settings = replace(PATIENT, batch_size=6)
    with Writer(Source.parse(producer.source), settings=settings) as writer:
        for number in range(300):
            key = b"k%d" % (number % 4)
            writer.put(removal(key) if number % 5 == 2 else upsert(key, b"%d" % number))
        writer.flush()
        counts = writer.counts
        assert counts.written + counts.unchanged + counts.superseded == 300
    for last in (296, 298, 299):
        assert stored(producer, b"k%d" % (last % 4)).value == b"%d" % last
    with pytest.raises(StoreRefusal):  # 297 is a removal
        stored(producer, b"k1")


def test_documents_of_collections(producer: TemporaryProducer, writer: Writer) -> None:
    producer.bucket.create_collection(0, "fruit")
    assert writer.collections.collections.keys() == {0}
    writer.renew()
    fruit = writer.collections.id_of("_default.fruit")
    write(writer, upsert(b"k", b"apple", collection=fruit), upsert(b"k", b"none"))
    assert stored(producer, b"k", fruit).value == b"apple"
    assert stored(producer, b"k").value == b"none"
    with pytest.raises(StatusError, match="'k' was refused with UNKNOWN_COLLECTION"):
        write(writer, upsert(b"k", b"v", collection=0x999))


# ---- CAS ---------------------------------------------------------------------------------


def test_a_cas_is_checked_and_a_repetition_is_not_a_conflict(
    producer: TemporaryProducer, writer: Writer
) -> None:
    old = producer.write(b"k", b"old").cas
    again = [write_operations.checked_upsert(b"k", b"new", cas=old) for _ in range(2)]
    write(writer, *again)
    assert counted(writer) == (1, 1, 0)
    now = stored(producer, b"k").cas
    with pytest.raises(StatusError) as failure:
        write(writer, write_operations.checked_upsert(b"k", b"newer", cas=old))
    assert f"'k' was refused with EXISTS: it has CAS {now}, expected was CAS {old}" in str(
        failure.value
    )
    assert stored(producer, b"k").value == b"new"


@pytest.mark.parametrize(
    ("edit", "said"),
    [
        (write_operations.checked_upsert(b"k", b"v", cas=0), "expected was that it is not there"),
        (
            write_operations.checked_upsert(b"missing", b"v", cas=5),
            "it is not there, expected was CAS 5",
        ),
        (write_operations.checked_removal(b"k", cas=5), "expected was CAS 5"),
    ],
)
def test_a_cas_that_is_not_the_documents(
    producer: TemporaryProducer, writer: Writer, edit: Edit, said: str
) -> None:
    producer.write(b"k", b"other")
    with pytest.raises(StatusError, match=said):
        write(writer, edit)
    assert stored(producer, b"k").value == b"other"


def test_new_documents_and_removals_with_a_cas(producer: TemporaryProducer, writer: Writer) -> None:
    write(writer, *(write_operations.checked_upsert(b"new", b"v", cas=0) for _ in range(2)))
    assert counted(writer) == (1, 1, 0)
    cas = stored(producer, b"new").cas
    write(writer, *(write_operations.checked_removal(b"new", cas=cas) for _ in range(2)))
    assert counted(writer) == (2, 2, 0)


# ---- versions of other clusters ----------------------------------------------------------


def test_copies_keep_their_cas_and_revision(producer: TemporaryProducer, writer: Writer) -> None:
    cas = time.time_ns() & ~0xFFFF

    def copies() -> list[Edit]:
        return [
            version_copies.copied(b"k", b"v", cas=cas, rev=9, flags=3),
            version_copies.copied_removal(b"gone", cas=cas, rev=4),
            version_copies.copied_removal(b"late", cas=cas, rev=4, expired=True),
        ]

    write(writer, *copies())
    assert counted(writer) == (3, 0, 0)
    found = stored(producer, b"k")
    assert (found.cas, found.rev, found.flags, found.value) == (cas, 9, 3, b"v")
    before = fingerprint(producer)
    write(writer, *copies(), version_copies.copied(b"k", b"older", cas=cas, rev=8))
    assert counted(writer) == (3, 4, 0)
    assert fingerprint(producer) == before
    write(writer, version_copies.copied(b"k", b"newer", cas=cas, rev=10))
    assert stored(producer, b"k").value == b"newer"


def test_a_copy_that_is_not_what_has_its_cas_is_refused(
    producer: TemporaryProducer, writer: Writer
) -> None:
    """As when documents are read, changed and written back with all their columns."""
    producer.write(b"k", b"old")
    found = stored(producer, b"k")
    with pytest.raises(StatusError, match="another document with the same CAS and revision"):
        write(writer, version_copies.copied(b"k", b"changed", cas=found.cas, rev=found.rev))


# ---- nodes -------------------------------------------------------------------------------


def test_every_node_gets_the_documents_of_its_vbuckets() -> None:
    rows = [0, 1, 1, 0, 1]
    with Peer() as one, Peer() as two:
        one.map = two.map = cluster([one, two], one, rows)
        with Writer(one.source, settings=WriterSettings(connections=2)) as writer:
            assert writer.vbuckets == 5
            overwrite(documents(10_000), writer)
            assert writer.counts.written == 10_000
        for node, peer in enumerate((one, two)):
            assert {rows[request.vbucket] for request in peer.sets} == {node}
            assert all(vbucket_of(r.key, 5) == r.vbucket and r.quiet for r in peer.sets)
            # the server does not say that it knows datatypes
            assert {request.datatype for request in peer.sets} == {Datatype.RAW}
        assert len({request.key for request in one.sets + two.sets}) == 10_000


def test_the_node_that_is_asked_may_have_no_documents() -> None:
    with Peer() as asked, Peer() as other:
        asked.map = cluster([asked, other], asked, [1, 1])
        with Writer(asked.source) as writer:
            overwrite(documents(10), writer)
        assert len(other.sets) == 10
        assert asked.sets == []


def test_the_only_node_is_the_one_that_was_asked_whatever_it_calls_itself() -> None:
    with Peer() as peer:
        peer.map = cluster([peer], peer, [0])
        peer.map["vBucketServerMap"]["serverList"] = ["db.invalid:11210"]
        with Writer(peer.source) as writer:
            overwrite(documents(10), writer)
        assert len(peer.sets) == 10


def test_documents_follow_their_vbucket_to_another_node() -> None:
    def moved_away(request: Request) -> Said:
        return Status.NOT_MY_VBUCKET if isinstance(request, kv.Set) else None

    with Peer(moved_away) as old, Peer() as new:
        old.map = cluster([old, new], old, [0, 0])
        with Writer(old.source, settings=PATIENT) as writer:
            old.map = {**cluster([old, new], old, [1, 1]), "rev": 2}
            overwrite(documents(5_000), writer)
            assert writer.counts.written == 5_000
        assert len({request.key for request in new.sets}) == 5_000


@pytest.mark.parametrize(
    ("map_text", "error"),
    [
        (b"", RemoteProtocolError),
        (b"[]", RemoteProtocolError),
        (b"{}", RemoteProtocolError),
        (b'{"vBucketServerMap":{"serverList":["h:1"],"vBucketMap":[]}}', RemoteProtocolError),
        (b'{"vBucketServerMap":{"serverList":["h:1"],"vBucketMap":[[1]]}}', RemoteProtocolError),
        (b'{"vBucketServerMap":{"serverList":["h:1"],"vBucketMap":[[-1]]}}', ConnectionFailed),
    ],
)
def test_a_map_that_makes_no_sense(map_text: bytes, error: type[Exception]) -> None:
    def answer(request: Request) -> Said:
        return map_text if isinstance(request, kv.GetClusterConfig) else None

    with Peer(answer) as peer, pytest.raises(error):
        Writer(peer.source)


# ---- trouble -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "hint"),
    [
        (Status.TOO_BIG, "larger than the bucket allows"),
        (Status.TEMPORARY_FAILURE, "cannot keep up"),
        (Status.INTERNAL, "log says"),
    ],
)
def test_one_refused_write_among_many_is_found(status: Status, hint: str) -> None:
    def answer(request: Request) -> Said:
        refused = isinstance(request, kv.Set) and request.key == b"k6000"
        return status if refused else None

    with Peer(answer) as peer:
        peer.map = cluster([peer], peer, [0])
        with Writer(peer.source) as writer, pytest.raises(StatusError) as failure:
            overwrite(documents(20_000), writer)
        assert failure.value.status is status
        assert failure.value.request == "writing the document 'k6000'"
        assert hint in failure.value.context
        # of what went out before, the first rounds at least are known to be there
        assert 5_000 <= writer.counts.written <= 6_000


def test_what_cannot_be_now_is_tried_again() -> None:
    left = {b"k3": 3, b"k77": 2}

    def answer(request: Request) -> Said:
        if isinstance(request, kv.Set) and left.get(request.key):
            left[request.key] -= 1
            return Status.TEMPORARY_FAILURE
        return None

    with Peer(answer) as peer:
        peer.map = cluster([peer], peer, [0])
        with Writer(peer.source, settings=PATIENT) as writer:
            overwrite(documents(100), writer)
            assert writer.counts.written == 100
        assert left == {b"k3": 0, b"k77": 0}
        assert len(peer.sets) == 100


def test_a_vbucket_that_goes_and_comes_back(producer: TemporaryProducer, writer: Writer) -> None:
    overwrite(documents(100), writer)
    for vbucket in range(0, VBUCKETS, 2):
        producer.set_state(vbucket, VBucketState.DEAD)
    went = threading.Event()

    def bring_back() -> None:
        went.wait()
        for vbucket in range(0, VBUCKETS, 2):
            producer.set_state(vbucket, VBucketState.ACTIVE)

    back = threading.Thread(target=bring_back)
    back.start()
    try:
        for number in range(400):
            writer.put(upsert(b"k%d" % number, b"%d" % number))
            if number == 200:
                went.set()
        writer.flush()
    finally:
        went.set()
        back.join()
    assert all(stored(producer, b"k%d" % n).value == b"%d" % n for n in range(400))


def test_lost_connections_are_made_anew(producer: TemporaryProducer, writer: Writer) -> None:
    for number in range(3_000):
        writer.put(upsert(b"k%d" % number, b"%d" % number))
        if number % 700 == 600:
            producer.kill_connections()
    writer.flush()
    assert writer.counts.written + writer.counts.unchanged == 3_000
    assert all(stored(producer, b"k%d" % n).value == b"%d" % n for n in range(3_000))


def test_what_was_done_when_the_connection_was_lost_is_seen_to_be() -> None:
    """The server does what it is asked, and hangs up instead of answering."""
    documents: dict[bytes, kv.Set] = {}
    sets: list[bytes] = []

    def answer(request: Request) -> Said:
        if isinstance(request, kv.Set):
            documents[request.key] = request
            sets.append(request.key)
            raise ConnectionAbortedError
        return None

    class Forgetful(Peer):
        def _packet(self, dialect: Dcp, request: Request) -> bytes:
            if isinstance(request, kv.Get):
                found = documents.get(request.key)
                if found is None:
                    return b""
                return dialect.encode(
                    kv.DocumentResponse(
                        command=Command.GETQ, opaque=request.opaque, value=found.value, cas=7
                    )
                )
            if isinstance(request, kv.GetMeta):
                return dialect.encode(
                    kv.MetaResponse(
                        command=Command.GETQ_META,
                        opaque=request.opaque,
                        deleted=False,
                        flags=0,
                        expiry=0,
                        rev=1,
                        cas=7,
                    )
                )
            return super()._packet(dialect, request)

    with Forgetful(answer) as peer:
        peer.map = cluster([peer], peer, [0])
        with Writer(peer.source, settings=PATIENT) as writer:
            write(writer, upsert(b"k", b"v"))
            assert counted(writer) == (0, 1, 0)
    assert sets == [b"k"]


def test_a_server_that_stops_reading_is_given_up_with_bounded_memory() -> None:
    resume = threading.Event()

    def answer(request: Request) -> None:
        if isinstance(request, kv.Set):
            resume.wait()

    taken = 0

    def endless() -> Iterator[tuple[bytes, bytes]]:
        nonlocal taken
        for key, value in documents(10**9, 1000):
            taken += len(value)
            yield key, value

    settings = WriterSettings(request_timeout=0.2, batch_size=10**6)
    with Peer(answer) as peer:
        peer.map = cluster([peer], peer, [0])
        try:
            with (
                Writer(peer.source, settings=settings) as writer,
                pytest.raises(ConnectionFailed) as failure,
            ):
                overwrite(endless(), writer)
            assert "nothing was heard of it for 0.2 s" in failure.value.problem
            assert taken <= (settings.rounds + 1) * ROUND_BYTES
        finally:
            resume.set()


def test_a_server_that_answers_more_than_it_is_asked_while_it_is_written_to() -> None:
    """Every quiet write is answered with 64 KiB: who only writes would be stuck."""
    loud = PlainResponse(command=0xEE, value=b"x" * 65_536)

    def answer(request: Request) -> Said:
        return replace(loud, opaque=request.opaque) if isinstance(request, kv.Set) else None

    with Peer(answer) as peer:
        peer.map = cluster([peer], peer, [0])
        with Writer(peer.source) as writer:
            overwrite(documents(2_000, 3_000), writer)
            assert writer.counts.written == 2_000


def test_a_server_that_goes_away() -> None:
    with TemporaryProducer(vbuckets=VBUCKETS) as producer:
        writer = Writer(Source.parse(producer.source))
    with writer, pytest.raises(ConnectionFailed, match=r"lost|cannot be reached"):
        overwrite(documents(100), writer)


def test_the_first_node_is_waited_for() -> None:
    with TemporaryProducer(vbuckets=VBUCKETS) as producer:
        source = Source.parse(producer.source)
    with pytest.raises(ConnectionFailed, match="cannot be reached"):
        Writer(source, settings=WriterSettings(wait_at_start=0.2))


@pytest.mark.parametrize("key", [b"", b"x" * 251])
def test_keys_that_are_none(key: bytes) -> None:
    with pytest.raises(ConfigError, match="a key has 1 to 250"):
        upsert(key, b"v")


def test_a_value_that_no_server_takes() -> None:
    with pytest.raises(ConfigError, match="the document 'k' has 20971521 bytes"):
        upsert(b"k", bytes(20 * 1024 * 1024 + 1))


# ---- packets -----------------------------------------------------------------------------

_names = st.fixed_dictionaries(
    {"key": st.binary(min_size=1, max_size=246), "collection": st.sampled_from([0, 8, 0x1F0])}
)
_u32 = st.integers(1, 2**32 - 1)
_u64 = st.integers(1, 2**64 - 1)


@settings(deadline=None)
@given(
    name=_names,
    value=st.binary(max_size=300),
    flags=_u32,
    expiry=_u32,
    cas=_u64,
    rev=_u64,
    json=st.booleans(),
)
def test_a_packet_is_what_the_dialect_would_make_of_it(
    name: dict[str, Any], value: bytes, flags: int, expiry: int, cas: int, rev: int, json: bool
) -> None:
    datatype = Datatype.JSON if json else Datatype.RAW
    details: dict[str, Any] = {"flags": flags, "expiry": expiry, "json": json}
    stored: dict[str, Any] = {
        "value": value,
        "flags": flags,
        "expiry": expiry,
        "datatype": datatype,
    }
    version: dict[str, Any] = {"rev": rev, "new_cas": cas}
    gone = {**version, "delete_time": min(cas // 10**9, 2**32 - 1)}
    expected: list[tuple[Edit, kv.DocumentRequest]] = [
        (upsert(**name, value=value, **details), kv.Get(**name, quiet=True)),
        (removal(**name), kv.Delete(**name, quiet=True)),
        (
            write_operations.checked_upsert(**name, value=value, cas=cas, **details),
            kv.Set(**name, **stored, cas=cas, quiet=True),
        ),
        (
            write_operations.checked_upsert(**name, value=value, cas=0, **details),
            kv.Add(**name, **stored, quiet=True),
        ),
        (write_operations.checked_removal(**name, cas=cas), kv.Delete(**name, cas=cas, quiet=True)),
        (
            version_copies.copied(**name, value=value, cas=cas, rev=rev, **details),
            kv.SetWithMeta(**name, **stored, **version, quiet=True),
        ),
        (
            version_copies.copied_removal(**name, cas=cas, rev=rev),
            kv.DeleteWithMeta(**name, **gone, quiet=True),
        ),
        (
            version_copies.copied_removal(**name, cas=cas, rev=rev, expired=True),
            kv.DeleteWithMeta(**name, **gone, options=0x10, quiet=True),
        ),
    ]
    ours, theirs = socket.socketpair()
    dialect = Dcp(collections=True)

    link = SimpleNamespace(
        features={Feature.JSON, Feature.COLLECTIONS},
        socket=ours,
        dialect=dialect,
        send_now=ours.send,
    )
    with ours, theirs:
        lane = EditPipeline(link, None, size=10, rounds=1)  # type: ignore[arg-type]
        for number, (edit, _) in enumerate(expected):
            edit.vbucket = number
        lane.launch([edit for edit, _ in expected])
        lane.send()
        requests: list[Request] = [
            replace(request, opaque=number, vbucket=number)
            for number, (_, request) in enumerate(expected)
        ]
        requests.append(kv.Noop(opaque=len(expected)))
        packets = b"".join(map(dialect.encode, requests))
        assert theirs.recv(len(packets) + 1, socket.MSG_WAITALL | socket.MSG_DONTWAIT) == packets


@settings(deadline=None)
@given(
    opaque=_u32,
    cas=_u64,
    numbers=st.tuples(_u32, _u32, _u64),
    value=st.binary(max_size=50),
    datatype=st.sampled_from(Datatype),
    deleted=st.booleans(),
    damage=st.none() | st.tuples(st.integers(0, 200), st.integers(0, 255)),
)
def test_a_quick_answer_is_what_the_dialect_would_make_of_it(
    opaque: int,
    cas: int,
    numbers: tuple[int, int, int],
    value: bytes,
    datatype: Datatype,
    deleted: bool,
    damage: tuple[int, int] | None,
) -> None:
    flags, expiry, rev = numbers
    common: dict[str, Any] = {"opaque": opaque, "cas": cas, "flags": flags}
    answers = [
        kv.DocumentResponse(command=Command.GETQ, value=value, datatype=datatype, **common),
        kv.MetaResponse(
            command=Command.GETQ_META, deleted=deleted, expiry=expiry, rev=rev, **common
        ),
        kv.MutationResponse(command=Command.SETQ, opaque=opaque, cas=cas),
    ]
    dialect = Dcp(collections=True)
    for answer in answers:
        packet = bytearray(dialect.encode(answer))
        if damage is None:
            usual = isinstance(answer, kv.MetaResponse) or datatype in (0, 1)
            assert quick_answer(bytes(packet)) == (
                answer if usual and answer is not answers[2] else None
            )
            continue
        at, byte = damage
        at %= len(packet)
        if 8 <= at < 12:
            continue  # a length that is not the packet's own never leaves the framer
        packet[at] = byte
        quick = quick_answer(bytes(packet))
        assert quick is None or quick == dialect.decode(bytes(packet))
