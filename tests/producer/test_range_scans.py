"""Range scans on a real socket: what is asked, what comes, and when a scan ends."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from talk import Talk

from upriver.errors import Status
from upriver.model import Datatype, VBucketState
from upriver.store import DeleteDocument, SetDocument
from upriver.testing import TemporaryProducer
from upriver.wire import kv_messages as kv
from upriver.wire import leb128, values
from upriver.wire.protocol_enums import Feature

VB = 1
NAMES = [b"k%02d" % number for number in range(20)]


class Clock:
    def __init__(self) -> None:
        self.seconds = 1_700_000_000

    def __call__(self) -> int:
        return self.seconds * 1_000_000_000


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def producer(clock: Clock) -> Iterator[TemporaryProducer]:
    with TemporaryProducer(vbuckets=4, wall=clock) as producer:
        producer.bucket.write_many([SetDocument(VB, b"\0" + name, b"v") for name in NAMES])
        yield producer


@pytest.fixture
def talk(producer: TemporaryProducer) -> Iterator[Talk]:
    with Talk(producer) as talk:
        talk.hello(Feature.JSON, Feature.XATTR, Feature.SNAPPY, Feature.COLLECTIONS)
        yield talk


def text(key: bytes) -> str:
    return b64encode(key).decode()


def between(start: bytes = b"", end: bytes = b"\xff", **more: Any) -> dict[str, Any]:
    return {"range": {"start": text(start), "end": text(end)}, **more}


def create(talk: Talk, wanted: Any, vbucket: int = VB) -> Any:
    value = wanted if isinstance(wanted, bytes) else json.dumps(wanted).encode()
    return talk.ask(kv.RangeScanCreate(vbucket=vbucket, value=value))


def opened(talk: Talk, wanted: dict[str, Any]) -> tuple[int, int]:
    answer = create(talk, wanted)
    assert answer.status is Status.SUCCESS, answer
    return int.from_bytes(answer.value[:8]), int.from_bytes(answer.value[8:])


def go_on(talk: Talk, scan: tuple[int, int], **limits: int) -> tuple[Status, list[Any]]:
    """Continues a scan; returns the last status and the responses."""
    request = kv.RangeScanContinue(vbucket=VB, scan_high=scan[0], scan_low=scan[1], opaque=9)
    talk.send(replace(request, **limits))  # type: ignore[arg-type]
    responses = talk.read_until(lambda answer: answer.status is not Status.SUCCESS)
    return responses[-1].status, responses


def keys(responses: list[Any]) -> list[bytes]:
    found = []
    for response in responses:
        assert response.extras == bytes(4)
        value = response.value
        while value:
            length, size = leb128.decode(value)
            found.append(value[size : size + length])
            value = value[size + length :]
    return found


def test_the_bytes_of_a_scan(talk: Talk, producer: TemporaryProducer) -> None:
    written = producer.bucket.write(SetDocument(VB, b"\0doc", b"[1]", 0x02000000, 0, 1))
    scan = opened(talk, between(b"doc", b"doc"))
    talk.send(kv.RangeScanContinue(vbucket=VB, scan_high=scan[0], scan_low=scan[1], opaque=9))
    assert talk.packet() == bytes.fromhex(
        "81db0000 04 00 00a7 00000025 00000009 0000000000000000"
        "00000001"  # documents, and not only keys
        "02000000 00000000"  # flags, expiry
        + written.seqno.to_bytes(8).hex()
        + written.cas.to_bytes(8).hex()
        + "01 03 646f63 03 5b315d"  # datatype, length and key, length and value
    )


def test_a_range_is_read_in_order_and_ends(talk: Talk) -> None:
    scan = opened(talk, between(b"k05", b"k09", key_only=True))
    status, responses = go_on(talk, scan)
    assert (status, keys(responses)) == (Status.RANGE_SCAN_COMPLETE, NAMES[5:10])
    assert go_on(talk, scan)[0] is Status.NOT_FOUND


def test_bounds_can_be_excluded(talk: Talk) -> None:
    bounds = {"excl_start": text(b"k05"), "excl_end": text(b"k09")}
    scan = opened(talk, {"range": bounds, "key_only": True})
    assert keys(go_on(talk, scan)[1]) == NAMES[6:9]


@pytest.mark.parametrize(
    ("limits", "each"), [({"item_limit": 7}, 7), ({"byte_limit": 1}, 1), ({"byte_limit": 8}, 2)]
)
def test_a_limit_ends_a_continue_and_not_the_scan(
    talk: Talk, limits: dict[str, int], each: int
) -> None:
    scan = opened(talk, between(key_only=True))
    found = []
    status, responses = go_on(talk, scan, **limits)
    while status is Status.RANGE_SCAN_MORE:
        assert len(keys(responses)) <= each
        found += keys(responses)
        status, responses = go_on(talk, scan, **limits)
    assert [*found, *keys(responses)] == NAMES


def test_a_scan_shows_one_moment(talk: Talk, producer: TemporaryProducer) -> None:
    scan = opened(talk, between())
    bucket = producer.bucket
    for name in NAMES:
        bucket.write(SetDocument(VB, b"\0" + name, b"later"))
    bucket.write(DeleteDocument(VB, b"\0" + NAMES[0]))
    bucket.write(SetDocument(VB, b"\0k00a", b"later"))
    bucket.compact()
    content = b"".join(response.value for response in go_on(talk, scan)[1])
    assert content.count(b"\x01v") == len(NAMES)
    assert b"later" not in content


def test_neither_deleted_nor_expired_documents_come(
    talk: Talk, producer: TemporaryProducer, clock: Clock
) -> None:
    bucket = producer.bucket
    bucket.write(DeleteDocument(VB, b"\0k00"))
    bucket.write(SetDocument(VB, b"\0k01", b"v", expiry=5))
    clock.seconds += 10
    scan = opened(talk, between(b"k", b"k\xff", key_only=True))
    assert keys(go_on(talk, scan)[1]) == NAMES[2:]


def test_xattrs_come_for_those_who_ask(talk: Talk, producer: TemporaryProducer) -> None:
    value = values.join_xattrs({"_sys": b"1"}, b"body")
    producer.bucket.write(SetDocument(VB, b"\0x", value, datatype=int(Datatype.XATTR)))
    whole = between(b"x", b"x", include_xattrs=True)
    assert go_on(talk, opened(talk, whole))[1][-1].value.endswith(value)
    plain = go_on(talk, opened(talk, between(b"x", b"x")))[1][-1].value
    assert plain.endswith(b"\x00\x01x\x04body")


def test_a_collection_is_scanned_alone(talk: Talk, producer: TemporaryProducer) -> None:
    collection = producer.bucket.create_collection(0, "c").id
    producer.bucket.write(SetDocument(VB, bytes([collection]) + b"mine", b"v"))
    scan = opened(talk, between(key_only=True, collection=f"{collection:x}"))
    assert keys(go_on(talk, scan)[1]) == [b"mine"]
    scan = opened(talk, between(key_only=True, collection=f"{collection:x}"))
    producer.bucket.drop_collection(collection)
    assert go_on(talk, scan)[0] is Status.UNKNOWN_COLLECTION


def test_samples(talk: Talk) -> None:
    def sample(samples: int, seed: int) -> list[bytes]:
        wanted = {"sampling": {"samples": samples, "seed": seed}, "key_only": True}
        return keys(go_on(talk, opened(talk, wanted))[1])

    assert sample(100, 1) == NAMES
    assert sample(5, 7) == sample(5, 7)
    assert set(sample(5, 7)) < set(NAMES)


@pytest.mark.parametrize(
    "wanted",
    [
        b"",
        b"{",
        b"[]",
        {},
        {"range": {}},
        {"range": []},
        {"range": {"start": "!", "end": ""}},
        {"range": {"start": "", "excl_start": "", "end": ""}},
        {"range": {"start": text(b"b"), "end": text(b"a")}},
        {"range": {"start": text(b"b" * 251), "end": text(b"c")}},
        {"sampling": {"samples": 0}},
        {"sampling": {"samples": True}},
        {"sampling": {"samples": 1}, **between()},
        between(name="x" * 51),
        between(collection=8),
        between(collection="xyz"),
        between(collection="fffffffff"),
        between(key_only="yes"),
        between(key_only=True, include_xattrs=True),
        between(snapshot_requirements={}),
        between(snapshot_requirements={"vb_uuid": "1"}),
        between(snapshot_requirements={"vb_uuid": "x", "seqno": 1}),
        between(snapshot_requirements={"vb_uuid": "1", "seqno": -1}),
        between(snapshot_requirements={"vb_uuid": "1", "seqno": 1, "timeout_ms": -1}),
    ],
)
def test_what_makes_no_sense_is_refused(talk: Talk, wanted: Any) -> None:
    answer = create(talk, wanted)
    assert answer.status is Status.INVALID
    assert b"range" in answer.value


def test_a_scan_of_nothing_is_refused(talk: Talk, producer: TemporaryProducer) -> None:
    assert create(talk, between(b"x", b"y")).status is Status.NOT_FOUND
    assert create(talk, between(), vbucket=2).status is Status.NOT_FOUND
    assert create(talk, between(), vbucket=9).status is Status.NOT_MY_VBUCKET
    assert create(talk, between(collection="99")).status is Status.UNKNOWN_COLLECTION
    producer.bucket.set_state(VB, VBucketState.REPLICA)
    assert create(talk, between()).status is Status.NOT_MY_VBUCKET


def test_requirements_of_the_snapshot(talk: Talk, producer: TemporaryProducer) -> None:
    bucket = producer.bucket
    vbuuid = str(bucket.failover_log(VB).newest.vbuuid)

    def require(**more: Any) -> Status:
        needed = {"vb_uuid": vbuuid, "seqno": 20, **more}
        status: Status = create(talk, between(snapshot_requirements=needed)).status
        return status

    assert require() is Status.SUCCESS
    assert require(vb_uuid="1") is Status.VBUUID_NOT_EQUAL
    assert require(seqno=21) is Status.TEMPORARY_FAILURE
    assert require(seqno_exists=True) is Status.SUCCESS
    bucket.write(SetDocument(VB, b"\0" + NAMES[-1], b"again"))
    assert require(seqno_exists=True) is Status.NOT_STORED
    bucket.hold_persisted_seqnos(held=True)
    bucket.write(SetDocument(VB, b"\0k", b"v"))
    needed = {"vb_uuid": vbuuid, "seqno": 22, "timeout_ms": 30_000}
    value = json.dumps(between(snapshot_requirements=needed)).encode()
    talk.send(kv.RangeScanCreate(vbucket=VB, value=value, opaque=5))
    bucket.hold_persisted_seqnos(held=False)
    assert talk.read().status is Status.SUCCESS


def test_a_cancelled_scan_is_gone(talk: Talk, producer: TemporaryProducer) -> None:
    high, low = opened(talk, between())
    assert producer.bucket.stats().readers == 1
    cancel = kv.RangeScanCancel(vbucket=VB, scan_high=high, scan_low=low)
    assert talk.ask(cancel).status is Status.SUCCESS
    assert talk.ask(cancel).status is Status.NOT_FOUND
    assert go_on(talk, (high, low))[0] is Status.NOT_FOUND
    assert producer.bucket.stats().readers == 0


def test_a_scan_that_is_too_old_is_gone(
    talk: Talk, producer: TemporaryProducer, clock: Clock
) -> None:
    scan = opened(talk, between())
    clock.seconds += 200
    assert go_on(talk, scan)[0] is Status.NOT_FOUND
    assert producer.bucket.stats().readers == 0


def test_no_more_scans_are_open_than_allowed(talk: Talk) -> None:
    statuses = [create(talk, between()).status for _ in range(257)]
    assert statuses == [Status.SUCCESS] * 256 + [Status.BUSY]


def test_a_scan_of_a_vbucket_that_went_away_ends(talk: Talk, producer: TemporaryProducer) -> None:
    scan = opened(talk, between())
    producer.bucket.set_state(VB, VBucketState.DEAD)
    assert go_on(talk, scan)[0] is Status.NOT_MY_VBUCKET
    producer.bucket.set_state(VB, VBucketState.ACTIVE)
    assert go_on(talk, scan)[0] is Status.NOT_FOUND


def test_one_who_hangs_up_while_it_is_continued_ends_a_scan(
    talk: Talk, producer: TemporaryProducer
) -> None:
    large = [SetDocument(VB, b"\0l%04d" % n, bytes(10_000)) for n in range(2000)]
    producer.bucket.write_many(large)
    scan = opened(talk, between())
    request = kv.RangeScanContinue(vbucket=VB, scan_high=scan[0], scan_low=scan[1])
    talk.send(request)
    talk.packet()
    talk.socket.close()
    while producer.bucket.stats().readers:
        pass
