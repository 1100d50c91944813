"""Every published rollback case, asked of a real server over a real socket."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from talk import Talk

from upriver.model import NO_END, FailoverLog, VBucketState
from upriver.producer.server_settings import ServerSettings
from upriver.session.stream_request_checks import Policy
from upriver.store import BeginSnapshot, BucketSettings, Replicate
from upriver.testing import TemporaryProducer
from upriver.wire import canonical
from upriver.wire import messages as m
from upriver.wire.protocol_enums import Feature, StreamFlag

CASES = json.loads((Path(__file__).parent.parent / "data" / "vectors.json").read_text())["rollback"]
LONG_AGO = 1_500_000_000
VBUUIDS = {"A": 0xA, "B": 0xB, "Z": 0x2A}


def vbuuid(name: str | int) -> int:
    return VBUUIDS[name] if isinstance(name, str) else name


@pytest.fixture(scope="module")
def producer() -> Iterator[TemporaryProducer]:
    """A vbucket for each case, brought to where the case begins as a replica would be."""
    settings = BucketSettings(
        vbuckets=len(CASES),
        initial_state=VBucketState.REPLICA,
        maintenance_interval=0,
        purge_age=1,
    )
    server = ServerSettings(policy=Policy(noop_mandatory=False))
    with TemporaryProducer(settings=server, bucket_settings=settings) as producer:
        for vbucket, case in enumerate(CASES):
            prepare(producer, vbucket, case)
        producer.bucket.compact()
        yield producer


def prepare(producer: TemporaryProducer, vbucket: int, case: dict[str, Any]) -> None:
    bucket, high, purge = producer.bucket, case["high"], case["purge"]
    changes: list[Any] = [BeginSnapshot(vbucket, 1, high)]
    if purge:  # a tombstone old enough that compaction takes it
        frame = canonical.deletion(vbucket, purge, 1, LONG_AGO * 10**9, LONG_AGO, 0, b"\0gone")
        changes.append(Replicate(vbucket, frame))
    frame = canonical.mutation(vbucket, high, 1, 1, 0, 0, 0, b"\0last", b"v")
    bucket.write_many([*changes, Replicate(vbucket, frame)])
    table = [(vbuuid(name), seqno) for name, seqno in case["table"]]
    bucket.set_failover_log(vbucket, FailoverLog.of(*table))
    bucket.set_state(vbucket, VBucketState.ACTIVE, transfer=True)


@pytest.mark.parametrize("vbucket", range(len(CASES)), ids=[case["desc"] for case in CASES])
def test_the_server_decides_as_published(producer: TemporaryProducer, vbucket: int) -> None:
    case = CASES[vbucket]
    stats = producer.bucket.vbucket_stats(vbucket)
    assert (stats.high_seqno, stats.purge_seqno) == (case["high"], case["purge"])
    purge = case.get("remote_purge")
    with Talk(producer) as talk:
        talk.hello(Feature.COLLECTIONS)
        talk.open(f"case {vbucket}")
        talk.send(
            m.StreamRequest(
                vbucket=vbucket,
                start=case["start"],
                end=NO_END,
                vbuuid=vbuuid(case["uuid"]),
                snapshot_start=case["ss"],
                snapshot_end=case["se"],
                flags=StreamFlag.STRICT_VBUUID if case.get("strict") else StreamFlag.NONE,
                filter=b'{"purge_seqno":"%d"}' % purge if purge else b"",
                opaque=7,
            )
        )
        answer = talk.read()
    if case["result"] is None:
        assert isinstance(answer, m.StreamAccepted)
    else:
        assert answer == m.StreamRollback(opaque=7, seqno=case["result"])
