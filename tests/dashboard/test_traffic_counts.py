"""What a server counts, as its dashboard shows it: reads, streamed changes, readers sent back."""

from __future__ import annotations

from dashboardkit import ask, seen, server_of, watched
from talk import Talk

from upriver.consumer import Consumer
from upriver.consumer.transport.connection_string import Source
from upriver.errors import Status
from upriver.testing import TemporaryProducer
from upriver.wire import kv_messages as kv
from upriver.wire import messages as m


def test_reads_are_counted_and_writes_are_not_among_them() -> None:
    with TemporaryProducer(vbuckets=4) as producer, watched(producer) as url:
        with Talk(Source.parse(producer.source)) as talk:
            talk.ask(kv.Set(key=b"k", value=b"v", vbucket=1))
            for _ in range(3):
                assert talk.ask(kv.Get(key=b"k", vbucket=1)).status is Status.SUCCESS
            assert talk.ask(kv.Get(key=b"none", vbucket=1)).status is Status.NOT_FOUND
        assert producer.producer.traffic.reads == 4
        document = seen(url, lambda document: server_of(document)["reads"] == 4)
        assert document["changes"] == {"default": 1}
        assert b"upriver_reads_total 4.0\n" in ask(url, "/metrics").body


def test_changes_that_were_streamed_are_counted_when_their_streams_have_gone() -> None:
    with TemporaryProducer(vbuckets=4) as producer:
        for number in range(50):
            producer.write(b"%d" % number, b"v")
        for round_ in (1, 2):
            with Consumer(producer.source, end="now") as consumer:
                assert len(list(consumer)) == 50
            assert producer.producer.traffic.messages == 50 * round_
        assert producer.producer.traffic.streamed_bytes > 100 * 55


def test_a_reader_that_is_sent_back_is_counted_and_an_event() -> None:
    with TemporaryProducer(vbuckets=4) as producer, watched(producer) as url:
        for number in range(6):
            producer.write(b"%d" % number, b"v", vbucket=2)
        (branch,) = producer.bucket.failover_log(2)
        producer.fail_over(2, 4)
        with Talk(Source.parse(producer.source)) as talk:
            talk.open()
            asked = m.StreamRequest(
                vbucket=2,
                start=6,
                end=2**64 - 1,
                vbuuid=branch.vbuuid,
                snapshot_start=6,
                snapshot_end=6,
            )
            assert talk.ask(asked).status is Status.ROLLBACK
        document = seen(
            url, lambda document: any(one["kind"] == "rollback" for one in document["events"])
        )
        (event,) = (one for one in document["events"] if one["kind"] == "rollback")
        assert "was rolled back to seqno 4" in event["text"]
        assert event["vbucket"] == 2
        assert document["server"] is not None
        assert document["server"]["rollbacks"] == 1
