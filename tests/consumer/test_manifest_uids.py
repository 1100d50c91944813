"""Document 004: a stream request that resumes names the collections manifest that was seen."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from consumerkit import LOG, Conversation, Scripted, at, mutation
from draft_servers import opening
from old_servers import Release705
from talk import everything

from upriver.consumer import Consumer
from upriver.errors import Status, StatusError
from upriver.model import NO_END
from upriver.testing import TemporaryProducer
from upriver.wire import kv_messages as kv
from upriver.wire import messages as m
from upriver.wire.dialects import Dcp
from upriver.wire.protocol_enums import Feature

COLLECTIONS = (Feature.SELECT_BUCKET, Feature.COLLECTIONS)


@pytest.mark.parametrize(
    ("features", "seqno", "uid", "sent"),
    [
        (COLLECTIONS, 2091, 0xB4, b'{"uid": "b4"}'),  # the example of kv_engine's page on the value
        (COLLECTIONS, 2091, 0, b""),
        (COLLECTIONS, 0, 0xB4, b""),
        ((Feature.SELECT_BUCKET,), 2091, 0xB4, b""),
    ],
    ids=["resumed", "none seen", "from the beginning", "no collections"],
)
def test_the_value_names_the_manifest_of_the_position(
    features: tuple[Feature, ...], seqno: int, uid: int, sent: bytes
) -> None:
    requests: list[m.StreamRequest] = []
    dialect = Dcp(collections=features is COLLECTIONS)

    def script(talk: Conversation, request: Any) -> bool:
        if isinstance(request, kv.GetManifest):
            talk.answer(request, value=Release705.manifest)
            return True
        if not isinstance(request, m.StreamRequest):
            return False
        requests.append(request)
        talk.send(
            m.StreamAccepted(opaque=request.opaque, failover_log=LOG.entries),
            *opening(dialect, request, end=seqno + 1),
            mutation(
                seqno + 1,
                opaque=request.opaque,
                vbucket=0,
                collection=0 if dialect.collections else None,
            ),
            m.StreamEnd(vbucket=0, opaque=request.opaque),
        )
        return True

    start = {0: replace(at(seqno), manifest_uid=uid)}
    with (
        Scripted(script, vbuckets=1, dialect=dialect, features=features, seqno=seqno + 1) as server,
        Consumer(server.source, start=start, end={0: seqno + 1}) as consumer,
    ):
        assert [change.seqno for change in consumer] == [seqno + 1]
    assert [request.filter for request in requests] == [sent]


def test_a_reader_resumes_with_what_it_saw() -> None:
    with TemporaryProducer(vbuckets=1) as producer:
        collection = producer.bucket.create_collection(0, "c")
        producer.write(b"k", b"v", 0)
        uid = producer.bucket.manifest.uid
        with Consumer(producer.source, end="now") as consumer:
            assert len(list(consumer)) == 1
            position = consumer.position()
        assert position.position(0).manifest_uid == uid
        assert type(position).from_json(position.to_json()) == position
        producer.write(b"k2", b"v", 0)
        for chosen in ((), ("_default.c",)):
            with Consumer(
                producer.source, start=position, end="now", collections=chosen
            ) as consumer:
                assert len(list(consumer)) == (0 if chosen else 1)
        assert collection is not None


def test_a_manifest_from_the_future_is_refused_until_it_comes() -> None:
    with TemporaryProducer(vbuckets=1) as producer:
        producer.write(b"k", b"v", 0)
        uid = producer.bucket.manifest.uid
        vbuuid = producer.bucket.failover_log(0).newest.vbuuid
        request = m.StreamRequest(vbucket=0, start=1, end=NO_END, vbuuid=vbuuid)
        with everything(producer) as talk:
            newer = replace(request, filter=b'{"uid":"%x"}' % (uid + 1))
            refused = talk.ask_raw(0x53, b"", newer.filter, Dcp().encode(request)[24:], opaque=9)
            assert (refused.status, refused.opaque) == (0x8B, 9)
            assert b"newer" in refused.value
            accepted = talk.ask(replace(request, filter=b'{"uid":"%x"}' % uid))
            assert isinstance(accepted, m.StreamAccepted)
        with (
            Consumer(
                producer.source,
                start={0: replace(at(1, vbuuid=vbuuid), manifest_uid=uid + 1)},
                give_up_after=0.2,
                retry_first=0.01,
                retry_most=0.05,
            ) as consumer,
            pytest.raises(StatusError) as caught,
        ):
            list(consumer)
        assert caught.value.status is Status.MANIFEST_AHEAD
