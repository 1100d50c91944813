"""What go-dcp asks beside its streams: members and checkpoints in documents, observed copies, logs.

Its requests are written down from its source, which sends them by gocbcore.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator

import pytest
from talk import Talk

from upriver.model import NO_END
from upriver.testing import TemporaryProducer
from upriver.wire.protocol_enums import Feature

SET, GET, LOOKUP, MUTATE = 0x01, 0x00, 0xD0, 0xD1
OPEN, CONTROL, STREAM, LOG = 0x50, 0x5E, 0x53, 0x54
SET_VBUCKET, OBSERVE, SEQNOS = 0x3D, 0x91, 0x48
SUCCESS, NOT_FOUND, EXISTS = 0, 1, 2
DICT_SET, SET_DOC, SUBDOC_GET = 0xC8, 0x01, 0xC5
XATTR_PATH, MAKE_DOCUMENT = 0x04, 0x01
#: Common flags of JSON, and an expiry of a minute.
JSON_FLAGS = 50333696
MEMBER, MEMBERS = b"\0_connector:cbgo:g:instance:0000-1111", b"\0_connector:cbgo:g:instance:all"
CHECKPOINT = b"\0_connector:cbgo:g:checkpoint:7"


@pytest.fixture
def talk() -> Iterator[Talk]:
    with TemporaryProducer(vbuckets=1) as producer, Talk(producer) as talk:
        talk.hello(Feature.XATTR, Feature.JSON, Feature.SNAPPY, Feature.COLLECTIONS)
        yield talk


def edit(command: int, flags: int, path: bytes, value: bytes) -> bytes:
    return struct.pack(">BBHI", command, flags, len(path), len(value)) + path + value


def test_members_write_themselves_into_documents(talk: Talk) -> None:
    index = edit(DICT_SET, 0, b"`" + MEMBER[1:] + b"`", b"1731849500123456789")
    made = talk.ask_raw(MUTATE, MEMBERS, index, bytes((MAKE_DOCUMENT,)))
    assert made.status == SUCCESS
    document = b'{"type":"instance","heartbeatTime":1,"clusterJoinTime":1}'
    heartbeat = edit(SET_DOC, 0, b"", document)
    minute = struct.pack(">I", 60)
    assert talk.ask_raw(MUTATE, MEMBER, heartbeat, minute).status == NOT_FOUND
    store = struct.pack(">II", JSON_FLAGS, 60)
    assert talk.ask_raw(SET, MEMBER, document, store, datatype=1).status == SUCCESS
    assert talk.ask_raw(MUTATE, MEMBER, heartbeat, minute).status == SUCCESS
    found = talk.ask_raw(GET, MEMBERS)
    assert json.loads(found.value) == {MEMBER[1:].decode(): 1731849500123456789}
    renewed = edit(SET_DOC, 0, b"", b"{}")
    assert talk.ask_raw(MUTATE, MEMBERS, renewed, cas=found.cas).status == SUCCESS
    assert talk.ask_raw(MUTATE, MEMBERS, renewed, cas=found.cas).status == EXISTS


def test_checkpoints_are_attributes_of_empty_documents(talk: Talk) -> None:
    offsets = b'{"checkpoint":{"vbuuid":1,"seqno":2},"bucketUuid":"abc"}'
    load = struct.pack(">BBH", SUBDOC_GET, XATTR_PATH, 4) + b"cbgo"
    save = edit(DICT_SET, XATTR_PATH, b"cbgo", offsets)
    assert talk.ask_raw(LOOKUP, CHECKPOINT, load).status == NOT_FOUND
    assert talk.ask_raw(MUTATE, CHECKPOINT, save).status == NOT_FOUND
    store = struct.pack(">II", JSON_FLAGS, 0)
    assert talk.ask_raw(SET, CHECKPOINT, b"", store).status == SUCCESS
    assert talk.ask_raw(MUTATE, CHECKPOINT, save).status == SUCCESS
    found = talk.ask_raw(LOOKUP, CHECKPOINT, load)
    assert found.status == SUCCESS
    assert found.value == struct.pack(">HI", SUCCESS, len(offsets)) + offsets
    body = talk.ask_raw(GET, CHECKPOINT)
    assert (body.value, body.extras) == (b"", struct.pack(">I", JSON_FLAGS))


def test_a_vbucket_that_was_empty_when_it_became_active_has_one_branch(talk: Talk) -> None:
    """A new cluster makes its vbuckets active so; some clients take the oldest entry of a log."""
    for state in (4, 1):  # dead, active
        assert talk.ask_raw(SET_VBUCKET, extras=bytes((state,))).status == SUCCESS
    opening = struct.pack(">II", 0, 1)
    assert talk.ask_raw(OPEN, b"group_1234", extras=opening).status == SUCCESS
    assert talk.ask_raw(CONTROL, b"enable_noop", b"true").status == SUCCESS
    log = talk.ask_raw(LOG).value
    assert len(log) == 16
    vbuuid, since = struct.unpack(">QQ", log)
    assert since == 0
    assert talk.ask_raw(SET, CHECKPOINT, b"{}", bytes(8)).status == SUCCESS
    observed = talk.ask_raw(OBSERVE, b"", struct.pack(">Q", vbuuid))
    assert observed.value == struct.pack(">BHQQQ", 0, 0, vbuuid, 1, 1)
    active = struct.pack(">I", 1)
    assert talk.ask_raw(SEQNOS, extras=active).value == struct.pack(">HQ", 0, 1)
    # Flag 0x80: purged tombstones do not matter to it.
    request = struct.pack(">IIQQQQQ", 0x80, 0, 1, NO_END, vbuuid, 1, 1)
    assert talk.ask_raw(STREAM, b"", b'{"uid":"0"}', request).status == SUCCESS
