"""Every packet that the drafts print: the corrected bytes strictly, the printed ones leniently."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from upriver.errors import DecodeError, Status
from upriver.model import NO_END, FailoverEntry, StreamEndReason, VBucketState
from upriver.wire import messages as m
from upriver.wire.dialects import Dcp, Dialect, Draft000, Draft001, Draft002
from upriver.wire.misprint_repairs import read_as
from upriver.wire.protocol_enums import Command, StreamFlag

VECTORS = json.loads((Path(__file__).parent.parent / "data" / "vectors.json").read_text())["seed"]
DIALECTS: dict[str, Dialect] = {
    "002": Draft002(),
    "000": Draft000(),
    "001": Draft001(),
    "004": Dcp(),
}

#: Failover logs of the examples; their seqnos follow from no rule and test bytes alone.
LOG = (
    FailoverEntry(0xFEEDDECA, 0x5432),
    FailoverEntry(0xDECAFE, 0x1343214),
    FailoverEntry(0xFEEDFACE, 0x4),
    FailoverEntry(0xDEADBEEF, 0x6524),
)
SHORT_LOG = (FailoverEntry(0xDF2, 0xF294), FailoverEntry(0x7B43, 0x9321))

#: What each packet says, by draft and number; None for what no reader can decode.
SEEDS: dict[tuple[str, int], Any] = {
    ("002", 1): m.BareHeader(opaque=10, command=Command.STREAM_REQUEST),  # header only
    ("002", 2): m.StreamRequest(
        opaque=45,
        vbucket=12,
        start=0,
        end=NO_END,
        vbuuid=0x3C58A,
        high_seqno=0xA78,
        group="replication_12",
    ),  # stream request
    ("002", 3): m.StreamAccepted(opaque=45),  # stream OK response
    ("002", 4): m.PlainResponse(
        opaque=45, command=Command.STREAM_REQUEST, status=Status.NOT_MY_VBUCKET
    ),  # stream not-my-vbucket response
    ("002", 5): m.StreamRollback(opaque=45, seqno=0x45A8),  # stream rollback response
    ("002", 6): m.FailoverLogRequest(opaque=45, vbucket=0),  # failover log request
    ("002", 7): m.FailoverLogResponse(opaque=45, failover_log=SHORT_LOG),  # failover log response
    ("002", 8): None,  # mutation (in progress section)
    ("002", 9): None,  # deletion (in progress section)
    ("000", 1): m.BareHeader(opaque=10, command=Command.STREAM_REQUEST),  # request header
    ("000", 2): m.StreamAccepted(opaque=10),  # response header
    ("000", 3): m.StreamRequest(
        opaque=45,
        vbucket=12,
        start=0,
        end=NO_END,
        vbuuid=0x3C58A,
        high_seqno=0xA78,
        group="replication_12",
    ),  # stream request
    ("000", 4): m.StreamAccepted(opaque=45),  # stream OK response
    ("000", 5): m.PlainResponse(
        opaque=45, command=Command.STREAM_REQUEST, status=Status.NOT_MY_VBUCKET
    ),  # stream not-my-vbucket response
    ("000", 6): m.StreamRollback(opaque=45, seqno=0x45A8),  # stream rollback response
    ("000", 7): m.FailoverLogRequest(opaque=45, vbucket=12),  # failover log request
    ("000", 8): m.FailoverLogResponse(opaque=45, failover_log=SHORT_LOG),  # failover log response
    ("000", 9): m.StreamStart(opaque=45, vbucket=12),  # stream start
    ("000", 10): m.SnapshotStart(opaque=45, vbucket=12),  # snapshot start
    ("000", 11): m.SnapshotEnd(opaque=45, vbucket=12),  # snapshot end
    ("000", 12): m.Mutation(
        opaque=45, vbucket=12, seqno=0x8CB, key=b"mykey", value=b"myvalue", rev=3, cas=165
    ),  # mutation
    ("000", 13): m.Deletion(
        opaque=45, vbucket=12, seqno=0x8CB, key=b"mykey", rev=3, cas=165
    ),  # deletion
    ("000", 14): m.Expiration(
        opaque=45, vbucket=12, seqno=0x8CB, key=b"mykey", rev=3, cas=165
    ),  # expiration
    ("000", 15): m.FlushStream(opaque=45, vbucket=12),  # flush
    ("000", 16): m.StreamEnd(opaque=45, vbucket=12),  # stream end OK
    ("000", 17): m.StreamEnd(
        opaque=45, vbucket=12, reason=StreamEndReason.STATE_CHANGED
    ),  # stream end state changed
    ("000", 18): m.SetStreamState(
        opaque=45, vbucket=12, state=VBucketState.ACTIVE
    ),  # set vbucket active
    ("001", 1): m.Open(opaque=1, name="bucketstream vb[100-105]"),  # open request (consumer)
    ("001", 2): m.PlainResponse(opaque=1, command=Command.OPEN),  # open response
    ("001", 3): m.AddStream(
        opaque=1, vbucket=5, flags=StreamFlag.TAKEOVER
    ),  # add stream request (takeover)
    ("001", 4): m.AddStreamResponse(opaque=1, stream_opaque=0x1000),  # add stream response
    ("001", 5): m.CloseStream(opaque=0xDEADBEEF, vbucket=5),  # close stream request
    ("001", 6): m.FailoverLogRequest(opaque=0xDEADBEEF, vbucket=0),  # get failover log request
    ("001", 7): m.FailoverLogResponse(
        opaque=0xDEADBEEF, failover_log=LOG
    ),  # get failover log response
    ("001", 8): m.StreamRequest(
        opaque=0x1000, vbucket=0, start=0xFFEEDD, end=NO_END, vbuuid=0xFEEDDECA, high_seqno=0
    ),  # stream request (rejected)
    ("001", 9): m.StreamRollback(opaque=0x1000, seqno=0),  # stream rollback response
    ("001", 10): m.StreamRequest(
        opaque=0x1000, vbucket=0, start=0, end=NO_END, vbuuid=0xFEEDDECA, high_seqno=0
    ),  # stream request (retry)
    ("001", 11): m.StreamAccepted(opaque=0x1000, failover_log=LOG),  # stream OK response
    ("001", 12): m.StreamEnd(opaque=0xDEADBEEF, vbucket=0),  # stream end OK
    ("001", 13): m.SnapshotMarker(opaque=0xDEADBEEF, vbucket=0),  # snapshot marker
    ("001", 14): m.Mutation(
        opaque=0x1210, vbucket=528, seqno=4, key=b"hello", value=b"world", rev=1, cas=0x64A5ACEC8A56
    ),  # mutation
    ("001", 15): m.Deletion(opaque=0x1210, vbucket=528, seqno=5, key=b"hello", rev=1),  # deletion
    ("001", 16): m.Expiration(
        opaque=0x1210, vbucket=528, seqno=5, key=b"hello", rev=1
    ),  # expiration
    ("001", 17): m.FlushStream(opaque=0xDEADBEEF, vbucket=0),  # flush
    ("001", 18): m.SetStreamState(
        opaque=0xDEADBEEF, vbucket=0, state=VBucketState.DEAD
    ),  # set vbucket state dead
    ("004", 1): m.StreamRequest(
        opaque=0x1000,
        vbucket=0,
        start=0xFFEEDD,
        end=NO_END,
        vbuuid=0xFEEDDECA,
        snapshot_start=0xFFEEDD,
        snapshot_end=0xFFEEFF,
    ),  # stream request (rejected)
    ("004", 2): m.StreamRollback(opaque=0x1000, seqno=0),  # stream rollback response
    ("004", 3): m.StreamRequest(
        opaque=0x1000,
        vbucket=0,
        start=0,
        end=NO_END,
        vbuuid=0xFEEDDECA,
        snapshot_start=0,
        snapshot_end=0,
    ),  # stream request (retry)
    ("004", 4): m.StreamAccepted(opaque=0x1000, failover_log=LOG),  # stream OK response
}

UNDECODABLE = [key for key, message in SEEDS.items() if message is None]
#: Headers printed alone to introduce their fields: no messages of a conversation.
HEADERS_ALONE = [("002", 1), ("000", 1)]
#: Packets whose request id is misprinted; it is opaque, so it is read as it stands.
WRONG_REQUEST_ID = [("002", 2), ("002", 6)]


def key_of(vector: dict[str, Any]) -> tuple[str, int]:
    return vector["draft"], vector["n"]


def decodable() -> list[object]:
    return [
        pytest.param(vector, id=f"{vector['draft']}-{vector['n']} {vector['name']}")
        for vector in VECTORS
        if key_of(vector) not in UNDECODABLE
    ]


def test_every_printed_packet_has_its_meaning_here() -> None:
    assert len(VECTORS) == 49
    assert {key_of(vector) for vector in VECTORS} == set(SEEDS)


@pytest.mark.parametrize("vector", decodable())
def test_encoding_gives_the_corrected_bytes(vector: dict[str, Any]) -> None:
    message = SEEDS[key_of(vector)]
    if key_of(vector) == ("002", 6):  # the printed form forgets the vbucket
        message = replace(message, vbucket=m.VBUCKET_NOT_CARRIED)
    assert DIALECTS[vector["draft"]].encode(message).hex() == vector["corrected"]


@pytest.mark.parametrize("vector", decodable())
def test_corrected_bytes_decode_strictly(vector: dict[str, Any]) -> None:
    packet, dialect = bytes.fromhex(vector["corrected"]), DIALECTS[vector["draft"]]
    if key_of(vector) in HEADERS_ALONE:
        with pytest.raises(DecodeError) as caught:
            dialect.decode(packet)
        assert caught.value.usable
    else:
        assert dialect.decode(packet) == SEEDS[key_of(vector)]


@pytest.mark.parametrize("vector", decodable())
def test_printed_bytes_read_leniently(vector: dict[str, Any]) -> None:
    packet, dialect = bytes.fromhex(vector["literal"]), DIALECTS[vector["draft"]]
    reading = read_as(packet, dialect)
    expected = SEEDS[key_of(vector)]
    if key_of(vector) in WRONG_REQUEST_ID:
        assert reading.message == replace(expected, opaque=0x0400002D)
        assert reading.repaired[8:12] != packet[8:12]
    else:
        assert reading.message == expected
        assert reading.repaired.hex() == vector["corrected"]
    clean = vector["consistent"] and key_of(vector) not in HEADERS_ALONE
    assert reading.exact is clean, reading.problems


@pytest.mark.parametrize("vector", [v for v in VECTORS if not v["consistent"] and v["corrected"]])
def test_printed_mistakes_are_refused_on_a_connection_or_harmless(
    vector: dict[str, Any],
) -> None:
    """A wrong length breaks the framing; a wrong byte alone is read as the drafts meant it."""
    packet, dialect = bytes.fromhex(vector["literal"]), DIALECTS[vector["draft"]]
    try:
        message = dialect.decode(packet)
    except DecodeError as error:
        assert not error.usable
    else:
        assert replace(message, opaque=0) == replace(SEEDS[key_of(vector)], opaque=0)


@pytest.mark.parametrize("key", UNDECODABLE)
def test_what_was_never_a_packet_of_its_draft_is_refused(key: tuple[str, int]) -> None:
    packet = bytes.fromhex(next(v["literal"] for v in VECTORS if key_of(v) == key))
    for read in (Draft002().decode, lambda data: read_as(data, Draft002())):
        with pytest.raises(DecodeError, match="0x80 is not an opcode"):
            read(packet)


def test_a_failover_log_request_of_draft_002_says_its_vbucket() -> None:
    """The draft forgot it; this is the form with the same prefix as a stream request."""
    request = m.FailoverLogRequest(opaque=0x2D, vbucket=12)
    packet = bytes.fromhex("010000000000002d000000040200000c")
    assert Draft002().encode(request) == packet
    assert Draft002().decode(packet) == request
