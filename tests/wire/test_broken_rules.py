"""A packet that breaks a rule says which field, where, which rule, and whether to go on."""

from __future__ import annotations

import pytest

from upriver.errors import DecodeError, EncodeError, Status
from upriver.model import Datatype, StreamEndReason, VBucketState
from upriver.wire import kv_messages as kv
from upriver.wire import limits
from upriver.wire import messages as m
from upriver.wire.dialects import Dcp, Dialect, Draft000, Draft001, Draft002
from upriver.wire.frameinfo import StreamId, UnknownFrameInfo
from upriver.wire.protocol_enums import Command, DurabilityLevel, OpenFlag

MUTATION = Dcp().encode(m.Mutation(vbucket=1, seqno=5, key=b"key", value=b"value", cas=9))
PREFIXED = Dcp(collections=True).encode(
    m.Mutation(vbucket=1, seqno=5, key=b"key", value=b"value", collection=0)
)


def changed(packet: bytes, offset: int, content: bytes) -> bytes:
    return packet[:offset] + content + packet[offset + len(content) :]


def refusal(dialect: Dialect, packet: bytes) -> DecodeError:
    with pytest.raises(DecodeError) as caught:
        dialect.decode(packet)
    assert str(caught.value.offset) in str(caught.value)
    assert caught.value.rule in str(caught.value)
    return caught.value


@pytest.mark.parametrize(
    ("packet", "field", "offset", "rule"),
    [
        (changed(MUTATION, 4, b"\x1e"), "extras length", 4, "must be 31, not 30"),
        (changed(MUTATION, 2, b"\0\0"), "key length", 2, "must not be 0"),
        (changed(MUTATION, 2, b"\0\xff"), "total body length", 8, "together"),
        (changed(MUTATION, 5, b"\x08"), "datatype", 5, "has unknown bits"),
        (changed(MUTATION, 24, bytes(8)), "by seqno", 24, "must not be 0"),
        (changed(MUTATION, 52, b"\0\1"), "extended metadata length", 52, "must be 0, not 1"),
    ],
)
def test_a_broken_mutation(packet: bytes, field: str, offset: int, rule: str) -> None:
    error = refusal(Dcp(), packet)
    assert (error.field, error.offset, error.usable) == (field, offset, True)
    assert rule in error.rule
    assert error.status is Status.INVALID


@pytest.mark.parametrize(
    ("prefix", "rule"),
    [
        (b"\x81\x00", "shortest form"),
        (b"\xff\xff\xff\xff\x1f", "32 bits"),
        (b"\xff\xff\xff\xff\xff", "within 5 bytes"),
        (b"\x01k", "reserved"),
        (b"\x07k", "reserved"),
        (b"\x00", "at least 2 bytes"),
        (b"\xd5\x0a", "no key after"),
        (b"\x80", "at least 2 bytes"),
        (b"\x08" + b"k" * 247, "246"),
    ],
)
def test_a_broken_collection_id(prefix: bytes, rule: str) -> None:
    body = MUTATION[24:55] + prefix
    header = changed(MUTATION[:24], 2, len(prefix).to_bytes(2, "big"))
    packet = changed(header, 8, len(body).to_bytes(4, "big")) + body
    error = refusal(Dcp(collections=True), packet)
    assert error.field == "key"
    assert rule in error.rule


def test_key_lengths_end_where_servers_end_them() -> None:
    longest = m.Mutation(vbucket=0, seqno=1, key=b"k" * limits.MAX_KEY)
    assert Dcp().decode(Dcp().encode(longest)) == longest
    with pytest.raises(EncodeError, match="250"):
        Dcp().encode(m.Mutation(vbucket=0, seqno=1, key=b"k" * 251))
    packet = kv.Get(key=b"k" * 250)
    too_long = bytearray(Dcp().encode(packet) + b"k")
    too_long[2:4], too_long[8:12] = (251).to_bytes(2, "big"), (251).to_bytes(4, "big")
    assert "limit of 250" in refusal(Dcp(), bytes(too_long)).rule
    with_prefix = m.Mutation(vbucket=0, seqno=1, key=b"k" * 250, collection=0)
    assert Dcp(collections=True).decode(Dcp(collections=True).encode(with_prefix)) == with_prefix


def test_a_value_above_the_limit_is_too_big_not_malformed() -> None:
    limit = limits.MAX_STORED_VALUE
    request = kv.Set(key=b"k", value=bytes(limit))
    packet = bytearray(Dcp().encode(request) + b"!")
    packet[8:12] = (len(packet) - 24).to_bytes(4, "big")
    assert refusal(Dcp(), bytes(packet)).status is Status.TOO_BIG


@pytest.mark.parametrize(("version", "rule"), [(1, "must be 0 or 2"), (9, "must be 0 or 2")])
def test_a_marker_of_a_version_that_never_shipped(version: int, rule: str) -> None:
    marker = m.SnapshotMarker(vbucket=0, start=1, end=2, max_visible_seqno=2)
    packet = changed(Dcp().encode(marker), 24, bytes([version]))
    error = refusal(Dcp(), packet)
    assert (error.field, error.offset) == ("marker version", 24)
    assert rule in error.rule


def test_a_known_system_event_of_the_wrong_size_is_not_an_unknown_one() -> None:
    event = m.ScopeDropped(vbucket=0, seqno=1, manifest_uid=2, scope=9)
    packet = bytearray(Dcp().encode(event)[:-1])
    packet[11] -= 1
    error = refusal(Dcp(), bytes(packet))
    assert (error.field, error.rule) == ("value", "must be 12 bytes, not 11")


def test_a_prepare_needs_a_cas_and_a_commit_has_none() -> None:
    with pytest.raises(EncodeError, match="cas: must not be 0"):
        Dcp().encode(m.Prepare(vbucket=0, seqno=1, key=b"k", cas=0, level=DurabilityLevel.MAJORITY))
    commit = Dcp().encode(m.Commit(vbucket=0, prepared_seqno=1, commit_seqno=2, key=b"k"))
    assert refusal(Dcp(), changed(commit, 16, b"\1")).field == "cas"


def test_deletions_carry_only_what_a_deletion_can_have() -> None:
    deletion = m.Deletion(vbucket=0, seqno=1, key=b"k", datatype=Datatype.JSON)
    with pytest.raises(EncodeError, match="JSON is not allowed"):
        Dcp().encode(deletion)
    packet = Dcp().encode(m.Deletion(vbucket=0, seqno=1, key=b"k"))
    assert refusal(Dcp(), changed(packet, 5, b"\1")).field == "datatype"


def test_requests_without_a_value_have_no_datatype() -> None:
    packet = Dcp().encode(m.CloseStream(vbucket=1))
    assert refusal(Dcp(), changed(packet, 5, b"\1")).field == "datatype"
    assert Draft001().decode(changed(packet, 5, b"\1")) == m.CloseStream(vbucket=1)


def test_byte_five_means_nothing_in_draft_000() -> None:
    packet = Draft000().encode(m.StreamStart(vbucket=1))
    assert Draft000().decode(changed(packet, 5, b"\xff")) == m.StreamStart(vbucket=1)


def test_states_and_reasons_have_each_drafts_own_numbers() -> None:
    def byte_of(dialect: Dialect, state: VBucketState) -> int:
        return dialect.encode(m.SetStreamState(vbucket=0, state=state))[-1]

    pending, replica = VBucketState.PENDING, VBucketState.REPLICA
    for dialect, numbers in (
        (Draft000(), (2, 3)),
        (Draft001(), (2, 3)),
        (Dcp(), (3, 2)),
        (Dcp(draft_states=True), (2, 3)),
    ):
        assert (byte_of(dialect, pending), byte_of(dialect, replica)) == numbers
        for state in VBucketState:
            message = m.SetStreamState(vbucket=0, state=state)
            assert dialect.decode(dialect.encode(message)) == message
    changed_state = m.StreamEnd(vbucket=0, reason=StreamEndReason.STATE_CHANGED)
    assert Draft001().encode(changed_state)[-1] == 1
    assert Dcp().encode(changed_state)[-1] == 2
    with pytest.raises(EncodeError, match="CLOSED is not a stream end reason"):
        Draft001().encode(m.StreamEnd(vbucket=0, reason=StreamEndReason.CLOSED))


def test_a_dialect_refuses_what_it_has_no_place_for() -> None:
    request = m.StreamRequest(vbucket=0, start=1, end=2, group="g")
    with pytest.raises(EncodeError, match="group: this draft cannot carry it"):
        Dcp().encode(request)
    with pytest.raises(EncodeError, match="snapshot_start"):
        Draft001().encode(m.StreamRequest(vbucket=0, start=1, end=2, snapshot_start=1))
    with pytest.raises(EncodeError, match="no such message"):
        Draft000().encode(m.Open(name="n"))
    with pytest.raises(EncodeError, match="framing extras"):
        Draft001().encode(m.CloseStream(vbucket=0, frames=(StreamId(1),)))
    with pytest.raises(EncodeError, match="collections were not negotiated"):
        Dcp().encode(kv.Get(key=b"k", collection=8))
    with pytest.raises(EncodeError, match="collections were negotiated"):
        Dcp(collections=True).encode(kv.Get(key=b"k"))
    with pytest.raises(EncodeError, match="vbucket"):
        Dcp().encode(m.CloseStream(vbucket=m.VBUCKET_NOT_CARRIED))


def test_a_stream_request_without_a_snapshot_claims_its_start() -> None:
    request = m.StreamRequest(vbucket=0, start=7, end=9)
    decoded = Dcp().decode(Dcp().encode(request))
    assert isinstance(decoded, m.StreamRequest)
    assert (decoded.snapshot_start, decoded.snapshot_end) == (7, 7)


def test_mutations_of_draft_001_come_with_30_or_31_bytes() -> None:
    mutation = m.Mutation(vbucket=0, seqno=1, key=b"k", value=b"v")
    short, long = Draft001().encode(mutation), Draft001(nru=True).encode(mutation)
    assert (short[4], long[4]) == (30, 31)
    assert Draft001().decode(short) == Draft001().decode(long) == mutation
    assert Draft001().encode(m.Mutation(vbucket=0, seqno=1, key=b"k", nru=2))[4] == 31


def test_extended_metadata_of_draft_001_follows_the_value() -> None:
    mutation = m.Mutation(vbucket=0, seqno=1, key=b"k", value=b"v", extended_meta=b"meta")
    packet = Draft001().encode(mutation)
    assert packet.endswith(b"kvmeta")
    assert Draft001().decode(packet) == mutation
    error = refusal(Draft001(), changed(packet, 52, b"\0\xff"))
    assert error.rule == "is 255, but 5 bytes are left of the value"


def test_a_rollback_is_found_in_extras_and_in_the_value() -> None:
    in_value = Draft001().encode(m.StreamRollback(seqno=5, opaque=1))
    in_extras = changed(in_value, 4, b"\x08")
    for dialect in (Draft001(), Dcp()):
        assert dialect.decode(in_value) == dialect.decode(in_extras)
    refused = changed(in_value, 8, b"\0\0\0\x04")[:-4]
    assert refusal(Dcp(), refused).rule == "must be 8 bytes, not 4"


def test_an_open_response_with_a_body_is_still_an_open_response() -> None:
    response = m.PlainResponse(command=Command.OPEN, value=b"0123456789abcdef", opaque=1)
    assert Draft001().decode(Draft001().encode(response)) == response


def test_unknown_frame_infos_are_values_so_that_they_can_be_answered() -> None:
    request = kv.Noop(frames=(UnknownFrameInfo(9, b"x"),))
    assert Dcp().decode(Dcp().encode(request)) == request


@pytest.mark.parametrize(
    ("frames", "rule", "status"),
    [
        ("1100", "not a known durability level", Status.DURABILITY_INVALID_LEVEL),
        ("120100", "1 or 3 bytes", Status.INVALID),
        ("13010000", "reserved", Status.INVALID),
        ("1301ffff", "reserved", Status.INVALID),
        ("2147", "2 bytes", Status.INVALID),
        ("5101", "no data", Status.INVALID),
        ("40", "must not be empty", Status.INVALID),
        ("f0", "escaped id is cut off", Status.INVALID),
        ("0f", "escaped length is cut off", Status.INVALID),
        ("22ff", "1 are left", Status.INVALID),
    ],
)
def test_broken_framing_extras(frames: str, rule: str, status: Status) -> None:
    raw = bytes.fromhex(frames)
    header = bytearray(Dcp().encode(kv.Noop()))
    header[0], header[2], header[11] = 0x08, len(raw), len(raw)
    error = refusal(Dcp(), bytes(header) + raw)
    assert error.field == "framing extras"
    assert rule in error.rule
    assert error.status is status


def test_unknown_flag_bits_are_kept_for_whoever_refuses_them() -> None:
    message = m.Open(name="n", flags=OpenFlag(0x80000001))
    decoded = Dcp().decode(Dcp().encode(message))
    assert isinstance(decoded, m.Open)
    assert decoded.flags == 0x80000001


def test_draft_002_refuses_what_its_types_do_not_name() -> None:
    for packet, field in (
        ("0100000000000001000000010a", "type"),
        ("0400000000000001000000040300ffff", "length"),
        ("02000000000000010000000903", "length"),
        ("05000000000000010000000400000009", "reason"),
        ("020000000000000100000002010a", "failover log"),
    ):
        assert refusal(Draft002(), bytes.fromhex(packet)).field == field


def test_draft_002_streams_know_no_vbucket() -> None:
    mutation = m.Mutation(vbucket=12, seqno=1, key=b"k", value=b"v", opaque=45)
    decoded = Draft002().decode(Draft002().encode(mutation))
    assert isinstance(decoded, m.Mutation)
    assert (decoded.vbucket, decoded.opaque) == (m.VBUCKET_NOT_CARRIED, 45)
    with pytest.raises(EncodeError, match="reads as an accepted stream"):
        Draft002().encode(m.FailoverLogResponse(failover_log=()))
