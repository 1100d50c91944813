"""What documents become and what is answered, where the vendor's suites look closely."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from itertools import count

import pytest
from talk import RawAnswer, Talk

from upriver.testing import TemporaryProducer
from upriver.wire import canonical, values
from upriver.wire.protocol_enums import Feature

SET, ADD, DELETE, INCREMENT, DECREMENT, APPEND, PREPEND = 0x01, 0x02, 0x04, 0x05, 0x06, 0x0E, 0x0F
GET, GET_META, TOUCH, GAT, GET_LOCKED, UNLOCK = 0x00, 0xA0, 0x1C, 0x1D, 0x94, 0x95
SET_WITH_META, DELETE_WITH_META, UPSERT_PATH = 0xA2, 0xA8, 0xC8
STORE = struct.pack(">II", 0, 0)
IN_XATTRS = 0x04
MIB = 1024 * 1024
_keys = count()


@pytest.fixture(scope="module")
def producer() -> Iterator[TemporaryProducer]:
    with TemporaryProducer(vbuckets=1) as producer:
        yield producer


@pytest.fixture
def talk(producer: TemporaryProducer) -> Iterator[Talk]:
    with Talk(producer) as talk:
        talk.hello(
            Feature.XATTR, Feature.XERROR, Feature.JSON, Feature.ALT_REQUEST, Feature.PRESERVE_TTL
        )
        yield talk


@pytest.fixture
def key() -> bytes:
    return b"key %d" % next(_keys)


def counted(talk: Talk, key: bytes, delta: int = 1, opcode: int = INCREMENT) -> RawAnswer:
    return talk.ask_raw(opcode, key, b"", struct.pack(">QQI", delta, 0, 0))


def upsert_attribute(talk: Talk, key: bytes, name: bytes, value: bytes) -> None:
    extras = struct.pack(">HB", len(name), IN_XATTRS)
    assert talk.ask_raw(UPSERT_PATH, key, name + value, extras).status == 0


@pytest.mark.parametrize("blank", [b" ", b"\t", b"\n", b"\v", b"\f", b"\r"])
def test_a_number_may_be_padded(talk: Talk, key: bytes, blank: bytes) -> None:
    for value in (b"41" + blank, blank + b"41"):
        talk.ask_raw(SET, key, value, STORE)
        assert counted(talk, key).value == struct.pack(">Q", 42)
        assert talk.ask_raw(GET, key).value == b"42"


@pytest.mark.parametrize("value", [b"", b" ", b"4 1", b"41x", b"0x41", b"-1", b"4.1", b"\xb2"])
def test_what_is_no_number_is_not_counted(talk: Talk, key: bytes, value: bytes) -> None:
    talk.ask_raw(SET, key, value, STORE)
    assert counted(talk, key).status == 0x06
    assert counted(talk, key, opcode=DECREMENT).status == 0x06
    assert talk.ask_raw(GET, key).value == value


@pytest.mark.parametrize(("opcode", "extras"), [(TOUCH, bytes(4)), (GAT, bytes(4))])
def test_touching_with_the_same_expiry_changes_nothing(
    producer: TemporaryProducer, talk: Talk, key: bytes, opcode: int, extras: bytes
) -> None:
    cas = talk.ask_raw(SET, key, b"v", STORE).cas
    high = producer.bucket.vbucket_stats(0).high_seqno
    assert talk.ask_raw(opcode, key, b"", extras).cas == cas
    assert producer.bucket.vbucket_stats(0).high_seqno == high
    assert talk.ask_raw(opcode, key, b"", struct.pack(">I", 1000)).cas != cas
    assert producer.bucket.vbucket_stats(0).high_seqno == high + 1


@pytest.mark.parametrize(
    ("before", "opcode", "added", "after", "datatype"),
    [
        (b"10", APPEND, b"1", b"101", 1),
        (b"[1", APPEND, b"]", b"[1]", 1),
        (b"1]", PREPEND, b"[", b"[1]", 1),
        (b'{"a":1}', APPEND, b"x", b'{"a":1}x', 0),
        (b"text", PREPEND, b"more ", b"more text", 0),
    ],
)
def test_whether_it_is_json_is_found_out_after_appending(
    talk: Talk, key: bytes, before: bytes, opcode: int, added: bytes, after: bytes, datatype: int
) -> None:
    talk.ask_raw(SET, key, before, STORE)
    assert talk.ask_raw(opcode, key, added).status == 0
    read = talk.ask_raw(GET, key)
    assert (read.value, read.datatype) == (after, datatype)


def test_attributes_of_users_count_for_the_size_and_those_of_systems_do_not(
    talk: Talk, key: bytes
) -> None:
    talk.ask_raw(SET, key, b"small", STORE)
    upsert_attribute(talk, key, b"_system", b'"x"')
    assert talk.ask_raw(SET, key, bytes(20 * MIB), STORE).status == 0
    talk.ask_raw(SET, key, b"small", STORE)
    upsert_attribute(talk, key, b"user", b'"x"')
    assert talk.ask_raw(SET, key, bytes(20 * MIB), STORE).status == 0x03
    assert talk.ask_raw(GET, key).value == b"small"
    assert talk.ask_raw(DELETE, key).status == 0


def test_clients_without_extended_errors_are_told_to_try_again(
    producer: TemporaryProducer, key: bytes
) -> None:
    with Talk(producer) as old:
        cas = old.ask_raw(SET, key, b"v", STORE).cas
        assert old.ask_raw(UNLOCK, key, cas=cas).status == 0x86
        token = old.ask_raw(GET_LOCKED, key).cas
        assert old.ask_raw(GET_LOCKED, key).status == 0x86
        assert old.ask_raw(UNLOCK, key, cas=token).status == 0


def test_a_deletion_has_a_cas_for_those_who_said_hello(
    producer: TemporaryProducer, talk: Talk, key: bytes
) -> None:
    with Talk(producer) as memcached:
        memcached.ask_raw(SET, key, b"v", STORE)
        assert memcached.ask_raw(DELETE, key) == RawAnswer(DELETE, 0, 0, 0, 0, b"", b"", b"")
    talk.ask_raw(SET, key, b"v", STORE)
    assert talk.ask_raw(DELETE, key).cas != 0


@pytest.mark.parametrize("attributes", [{}, {"user": b"1", "_system": b"2"}])
def test_a_deletion_from_elsewhere_loses_its_body_and_keeps_its_attributes(
    producer: TemporaryProducer, talk: Talk, key: bytes, attributes: dict[str, bytes]
) -> None:
    value = values.join_xattrs(attributes, b"body") if attributes else b"body"
    meta = struct.pack(">IIQQ", 0, 1000, 5, 5)
    datatype = 4 if attributes else 0
    assert talk.ask_raw(DELETE_WITH_META, key, value, meta, datatype=datatype).status == 0
    with producer.bucket.open_reader(0, producer.bucket.vbucket_stats(0).high_seqno - 1) as reader:
        chunk = reader.read(1)
    assert chunk is not None
    stored = canonical.parse(chunk.frames)
    assert stored.value == (values.join_xattrs(attributes, b"") if attributes else b"")


@pytest.mark.parametrize(("options", "status"), [(0x01, 0), (0x08, 0), (0x02, 2), (0, 2)])
def test_conflicts_are_resolved_unless_the_sender_did(
    talk: Talk, key: bytes, options: int, status: int
) -> None:
    newer, older = (struct.pack(">IIQQI", 0, 0, rev, rev, options) for rev in (9, 5))
    assert talk.ask_raw(SET_WITH_META, key, b"newer", newer).status == 0
    assert talk.ask_raw(SET_WITH_META, key, b"older", older).status == status


def test_frame_infos_belong_to_commands_that_can_do_what_they_ask(talk: Talk, key: bytes) -> None:
    keep, durable = b"\x50", b"\x11\x01"
    talk.ask_raw(SET, key, b"v", STORE)
    assert talk.ask_raw(GET, key, frames=keep).status == 0x83
    assert talk.ask_raw(ADD, key, b"v", STORE, frames=keep).status == 0x83
    assert talk.ask_raw(GET, key, frames=durable).status == 0x04
    assert talk.ask_raw(GET_META, key, frames=durable).status == 0x04
    assert talk.ask_raw(APPEND, key, b"w", frames=keep).status == 0


def test_error_contexts_name_the_document_and_not_its_collection(talk: Talk) -> None:
    for name, shown in ((b"absent", "'absent'"), (b"\xffx\n", "'\\\\xffx\\n'")):
        context = json.loads(talk.ask_raw(GET_META, name).value)["error"]["context"]
        assert context == f"there is no document {shown}"
