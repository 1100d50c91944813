"""Every golden packet of today's DCP and of the key-value commands, both ways."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from upriver.model import NO_END, Datatype, FailoverEntry, VBucketState
from upriver.wire import kv_messages as kv
from upriver.wire import messages as m
from upriver.wire.dialects import Dcp
from upriver.wire.frameinfo import Durability, PreserveTtl, StreamId
from upriver.wire.protocol_enums import (
    Command,
    DurabilityLevel,
    Feature,
    MarkerFlag,
    OpenFlag,
    OsoFlag,
    RequestedState,
    StreamFlag,
)

VECTORS = json.loads((Path(__file__).parent.parent / "data" / "vectors.json").read_text())["modern"]

LOG = (
    FailoverEntry(0xFEEDDECA, 0x5432),
    FailoverEntry(0xDECAFE, 0x1343214),
    FailoverEntry(0xFEEDFACE, 0x4),
    FailoverEntry(0xDEADBEEF, 0x6524),
)

_CREATED = "system event begin collection v1: mycollection manifest 2 scope 0 cid 8 ttl 72000"
_CAPTURED = "set d1 durable majority 9000ms (flex, captured from couchbase python 4.6.3)"

#: What each packet says, by its name.
MODERN = {
    'open producer flags=0x1 name="svc:u1"': m.Open(
        opaque=1, name="svc:u1", flags=OpenFlag.PRODUCER
    ),
    "open response": m.PlainResponse(opaque=1, command=Command.OPEN),
    "add stream takeover vb5": m.AddStream(opaque=1, vbucket=5, flags=StreamFlag.TAKEOVER),
    "add stream response stream-opaque 0x1000": m.AddStreamResponse(opaque=1, stream_opaque=0x1000),
    "close stream vb5": m.CloseStream(opaque=0xDEADBEEF, vbucket=5),
    "close stream vb5 sid=71 (flex)": m.CloseStream(
        opaque=0xDEADBEEF, frames=(StreamId(id=71),), vbucket=5
    ),
    "stream req from 0 to inf, vb 0x0210, no value": m.StreamRequest(
        opaque=0x1210, vbucket=528, start=0, end=NO_END, snapshot_start=0, snapshot_end=0
    ),
    'stream req value {"collections":["0","8a"],"uid":"b4"}': m.StreamRequest(
        opaque=0x1210,
        vbucket=528,
        start=0,
        end=NO_END,
        snapshot_start=0,
        snapshot_end=0,
        filter=b'{"collections":["0","8a"],"uid":"b4"}',
    ),
    "stream req response rollback to 5": m.StreamRollback(opaque=0x1210, seqno=5),
    "get failover log vb0": m.FailoverLogRequest(opaque=0xDEADBEEF, vbucket=0),
    "failover log response 4 entries": m.FailoverLogResponse(opaque=0xDEADBEEF, failover_log=LOG),
    "stream end OK": m.StreamEnd(opaque=0xDEADBEEF, vbucket=0),
    "stream end OK sid=71 (flex)": m.StreamEnd(
        opaque=0xDEADBEEF, frames=(StreamId(id=71),), vbucket=0
    ),
    "snapshot marker v1 0..8 memory": m.SnapshotMarker(
        opaque=0xDEADBEEF, vbucket=0, start=0, end=8, flags=MarkerFlag.MEMORY
    ),
    "snapshot marker v2.0 1..8 disk mvs=8 hcs=7": m.SnapshotMarker(
        opaque=0xDEADBEEF,
        vbucket=0,
        start=1,
        end=8,
        flags=MarkerFlag.DISK,
        max_visible_seqno=8,
        high_completed_seqno=7,
    ),
    "snapshot marker v2.2 1..8 disk mvs=8 hcs=7 purge=3 hps=6": m.SnapshotMarker(
        opaque=0xDEADBEEF,
        vbucket=0,
        start=1,
        end=8,
        flags=MarkerFlag.DISK,
        max_visible_seqno=8,
        high_completed_seqno=7,
        purge_seqno=3,
        high_prepared_seqno=6,
    ),
    "mutation hello=world vb0x210 seqno4 rev1": m.Mutation(
        opaque=0x1210, vbucket=528, seqno=4, key=b"hello", value=b"world", rev=1
    ),
    "mutation, collection 0x555, key hello": m.Mutation(
        opaque=0x1210, vbucket=528, seqno=4, key=b"hello", value=b"world", rev=1, collection=0x555
    ),
    "mutation sid=71 (flex)": m.Mutation(
        opaque=0x1210,
        frames=(StreamId(id=71),),
        vbucket=528,
        seqno=4,
        key=b"hello",
        value=b"world",
        rev=1,
    ),
    "deletion v1 hello seqno5 rev1": m.Deletion(
        opaque=0x1210, vbucket=528, seqno=5, key=b"hello", rev=1
    ),
    "deletion v2 hello seqno5 rev1 delete_time=0x5f000000": m.Deletion(
        opaque=0x1210, vbucket=528, seqno=5, key=b"hello", rev=1, delete_time=0x5F000000
    ),
    "expiration hello seqno5 rev1 delete_time=0": m.Expiration(
        opaque=0x1210, vbucket=528, seqno=5, key=b"hello", rev=1, delete_time=0
    ),
    "flush vb0": m.FlushStream(opaque=0xDEADBEEF, vbucket=0),
    "set vbucket state dead": m.SetStreamState(
        opaque=0xDEADBEEF, vbucket=0, state=VBucketState.DEAD
    ),
    "set vbucket state response": m.PlainResponse(
        opaque=0xDEADBEEF, command=Command.SET_STREAM_STATE
    ),
    "noop opaque 5": m.StreamNoop(opaque=5),
    "noop response opaque 5": m.PlainResponse(opaque=5, command=Command.STREAM_NOOP),
    "buffer ack 4096 opaque 5": m.BufferAck(opaque=5, size=0x1000),
    "control enable_noop=true opaque 1": m.Control(opaque=1, key="enable_noop", value="true"),
    "control response opaque 1": m.PlainResponse(opaque=1, command=Command.CONTROL),
    _CREATED: m.CollectionCreated(
        opaque=0x1210,
        vbucket=528,
        seqno=4,
        name="mycollection",
        manifest_uid=2,
        scope=0,
        collection=8,
        max_ttl=0x11940,
    ),
    "system event end collection v0: manifest 3 scope 0 cid 8": m.CollectionDropped(
        opaque=0x1210, vbucket=528, seqno=5, manifest_uid=3, scope=0, collection=8
    ),
    "system event create scope v0: s1 manifest 4 scope 9": m.ScopeCreated(
        opaque=0x1210, vbucket=528, seqno=6, name="s1", manifest_uid=4, scope=9
    ),
    "system event drop scope v0: manifest 5 scope 9": m.ScopeDropped(
        opaque=0x1210, vbucket=528, seqno=7, manifest_uid=5, scope=9
    ),
    "prepare hello=world seqno4 rev1 majority, cas 1": m.Prepare(
        opaque=0x1210,
        vbucket=528,
        seqno=4,
        key=b"hello",
        cas=1,
        level=DurabilityLevel.MAJORITY,
        value=b"world",
        rev=1,
    ),
    "seqno acknowledged 4": m.SeqnoAcknowledged(opaque=0x1210, vbucket=528, prepared_seqno=4),
    "commit hello 4->5": m.Commit(
        opaque=0x1210, vbucket=528, prepared_seqno=4, commit_seqno=5, key=b"hello"
    ),
    "abort hello 4->5": m.Abort(
        opaque=0x1210, vbucket=528, prepared_seqno=4, abort_seqno=5, key=b"hello"
    ),
    "seqno advanced 4": m.SeqnoAdvanced(opaque=0xDEADBEEF, vbucket=0, seqno=4),
    "oso snapshot start": m.OsoSnapshot(opaque=0xDEADBEEF, vbucket=0, flags=OsoFlag.START),
    "oso snapshot end": m.OsoSnapshot(opaque=0xDEADBEEF, vbucket=0, flags=OsoFlag.END),
    "cache transfer 1 item hello=world cas4 seqno1 rev5 hint 0x0a": m.CacheTransfer(
        opaque=0x1210,
        vbucket=528,
        items=(m.CachedItem(seqno=1, key=b"hello", value=b"world", rev=5, cas=4, cache_hint=10),),
    ),
    "cache transfer end": m.CacheTransferEnd(opaque=0x1210, vbucket=528),
    "get all vb seqnos (alive)": kv.GetAllSeqnos(opaque=0xDEADBEEF),
    "get all vb seqnos state=replica": kv.GetAllSeqnos(
        opaque=0xDEADBEEF, state=RequestedState.REPLICA
    ),
    "get all vb seqnos state=alive collection 0xcafef00d": kv.GetAllSeqnos(
        opaque=0xDEADBEEF, state=RequestedState.ALIVE, collection=0xCAFEF00D
    ),
    "get all vb seqnos response 4 vbs": kv.AllSeqnosResponse(
        opaque=0xDEADBEEF, seqnos=((10, 0x5432), (13, 0x1343214), (127, 4), (720, 0x6524))
    ),
    "observe seqno request vb0 uuid 0xfeeddeca": kv.ObserveSeqno(
        opaque=1, vbucket=0, vbuuid=0xFEEDDECA
    ),
    "observe seqno response fmt0": kv.ObserveSeqnoResponse(
        opaque=1, vbucket=0, vbuuid=0xFEEDDECA, persisted_seqno=5, current_seqno=9
    ),
    'hello "mchello v1.0" feats 1..5': kv.Hello(
        agent="mchello v1.0",
        features=(
            Feature.DATATYPE,
            Feature.TLS,
            Feature.TCP_NODELAY,
            Feature.MUTATION_SEQNO,
            Feature.TCP_DELAY,
        ),
    ),
    "hello response feats 3,4": kv.HelloResponse(
        features=(Feature.TCP_NODELAY, Feature.MUTATION_SEQNO)
    ),
    "sasl list mechs": kv.SaslListMechanisms(),
    "sasl auth PLAIN user/pencil": kv.SaslAuth(mechanism="PLAIN", payload=b"\x00user\x00pencil"),
    "select bucket engineering opaque 0xefbeadde": kv.SelectBucket(
        opaque=0xEFBEADDE, bucket="engineering"
    ),
    _CAPTURED: kv.Set(
        opaque=19,
        frames=(Durability(level=DurabilityLevel.MAJORITY, timeout_ms=0x2328),),
        key=b"d1",
        vbucket=22,
        collection=0,
        value=b'{"x": 1}',
        flags=0x2000000,
        datatype=Datatype.JSON,
    ),
    "set d1 preserve ttl (flex, captured)": kv.Set(
        opaque=20,
        frames=(PreserveTtl(),),
        key=b"d1",
        vbucket=22,
        collection=0,
        value=b'{"x": 1}',
        flags=0x2000000,
        datatype=Datatype.JSON,
    ),
}

#: Packets whose keys begin with a collection id.
WITH_COLLECTIONS = {name for name in MODERN if "collection 0x555" in name or "captured" in name}


def test_every_packet_has_its_meaning_here() -> None:
    assert len(VECTORS) == 56
    assert {vector["name"] for vector in VECTORS} == set(MODERN)


@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: vector["name"])
def test_both_ways(vector: dict[str, str]) -> None:
    dialect = Dcp(collections=vector["name"] in WITH_COLLECTIONS)
    packet, message = bytes.fromhex(vector["hex"]), MODERN[vector["name"]]
    assert dialect.decode(packet) == message
    assert dialect.encode(message) == packet
