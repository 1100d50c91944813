"""What a test can do with a producer of its own: place documents, break things, start again."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from serverkit import Certificates
from talk import Talk

from upriver.consumer import Consumer
from upriver.consumer.topology.cluster_map import vbucket_of
from upriver.consumer.transport.connection_string import Source
from upriver.errors import ConfigError, Status, StoreRefusal
from upriver.model import NO_END, StreamEndReason
from upriver.producer.server_settings import ServerSettings
from upriver.testing import TemporaryProducer
from upriver.wire import kv_messages as kv
from upriver.wire import messages as m
from upriver.wire.protocol_enums import Feature


@pytest.fixture
def producer() -> Iterator[TemporaryProducer]:
    with TemporaryProducer(vbuckets=4) as producer:
        yield producer


def stream(talk: Talk, vbucket: int, start: int = 0, vbuuid: int = 0) -> m.Message:
    request = m.StreamRequest(
        vbucket=vbucket,
        start=start,
        end=NO_END,
        vbuuid=vbuuid,
        snapshot_start=start,
        snapshot_end=start,
    )
    answer: m.Message = talk.ask(request)
    return answer


def test_documents_are_where_clients_look_for_them(producer: TemporaryProducer) -> None:
    written = producer.write(b"hello", b"world")
    assert written.vbucket == vbucket_of(b"hello", 4)
    with Talk(producer) as talk:
        found = talk.ask(kv.Get(key=b"hello", vbucket=written.vbucket))
        assert (found.value, found.cas) == (b"world", written.cas)
        producer.delete(b"hello")
        gone = talk.ask(kv.Get(key=b"hello", vbucket=written.vbucket))
        assert gone.status is Status.NOT_FOUND


def test_documents_go_to_other_vbuckets_and_collections(producer: TemporaryProducer) -> None:
    collection = producer.bucket.create_collection(0, "things").id
    elsewhere = (vbucket_of(b"k", 4) + 1) % 4
    assert producer.write(b"k", b"1", vbucket=elsewhere).vbucket == elsewhere
    place = producer.write(b"k", b"2", collection=collection).vbucket
    assert place == vbucket_of(b"k", 4)  # the collection plays no part in it
    with Talk(producer) as talk:
        talk.hello(Feature.COLLECTIONS)
        found = talk.ask(kv.Get(key=b"k", collection=collection, vbucket=place))
        assert found.value == b"2"
        producer.delete(b"k", collection=collection)
        found = talk.ask(kv.Get(key=b"k", collection=collection, vbucket=place))
        assert found.status is Status.NOT_FOUND
        found = talk.ask(kv.Get(key=b"k", collection=0, vbucket=elsewhere))
        assert found.value == b"1"


def test_deleting_what_is_not_there_is_refused(producer: TemporaryProducer) -> None:
    with pytest.raises(StoreRefusal, match="there is no document"):
        producer.delete(b"nothing")


def test_a_purge_sends_old_readers_back(producer: TemporaryProducer) -> None:
    for change in (producer.write(b"a", b"1", 0), producer.write(b"b", b"1", 0)):
        seen = change.seqno
    producer.delete(b"a", 0)
    producer.write(b"b", b"2", 0)
    vbuuid = producer.bucket.failover_log(0).newest.vbuuid
    with Talk(producer) as talk:
        talk.open()
        assert isinstance(stream(talk, 0, seen, vbuuid), m.StreamAccepted)
        assert isinstance(talk.read_until(m.Deletion)[-1], m.Deletion)
    producer.purge()
    with Talk(producer) as talk:
        talk.open()
        answer = stream(talk, 0, seen, vbuuid)
        assert isinstance(answer, m.StreamRollback)
        assert answer.seqno == 0


def test_a_failover_ends_streams(producer: TemporaryProducer) -> None:
    producer.write(b"a", b"1", 0)
    producer.write(b"b", b"1", 0)
    with Talk(producer) as talk:
        talk.open()
        stream(talk, 0)
        talk.read_until(lambda message: getattr(message, "seqno", 0) == 2)
        assert producer.fail_over(0, 1) == 1
        end = talk.read_until(m.StreamEnd)[-1]
        assert end.reason is StreamEndReason.STATE_CHANGED


def test_killed_connections_are_gone_and_others_can_come(producer: TemporaryProducer) -> None:
    with Talk(producer) as first, Talk(producer) as second:
        for talk in (first, second):
            assert talk.ask(kv.Noop()).status is Status.SUCCESS
        assert producer.kill_connections() == 2
        assert first.is_closed()
        assert second.is_closed()
    with Talk(producer) as talk:
        assert talk.ask(kv.Noop()).status is Status.SUCCESS


def test_a_restarted_server_has_its_port_data_and_branches(producer: TemporaryProducer) -> None:
    producer.write(b"k", b"v", 2)
    port, vbuuid = producer.port, producer.bucket.failover_log(2).newest.vbuuid
    with Talk(producer) as talk:
        assert talk.ask(kv.Noop()).status is Status.SUCCESS
        producer.restart()
        assert talk.is_closed()
    assert producer.port == port
    with Talk(producer) as talk:
        assert talk.ask(kv.Get(key=b"k", vbucket=2)).value == b"v"
        talk.open()
        assert isinstance(stream(talk, 2, 1, vbuuid), m.StreamAccepted)
    producer.restart()
    assert producer.write(b"k", b"w", 2).seqno == 2


def test_its_source_names_host_port_and_bucket() -> None:
    with TemporaryProducer(vbuckets=1, bucket="shop") as producer:
        assert producer.source == f"couchbase://127.0.0.1:{producer.port}/shop"
        assert Source.parse(producer.source).bucket == "shop"


def test_its_source_says_where_tls_is_served(tmp_path: Path) -> None:
    settings = Certificates.made_in(tmp_path).settings()
    with TemporaryProducer(vbuckets=1, settings=settings) as producer:
        assert producer.source == f"couchbases://127.0.0.1:{producer.port}/default"


def test_its_source_leads_to_the_advertised_address() -> None:
    with TemporaryProducer(vbuckets=1, advertise=("::1", 1234)) as producer:
        assert producer.source == "couchbase://[::1]:1234/default"
    with TemporaryProducer(vbuckets=1, settings=ServerSettings(advertise="db")) as producer:
        assert producer.source == f"couchbase://db:{producer.port}/default"


def test_a_producer_that_does_not_run_says_so() -> None:
    producer = TemporaryProducer(vbuckets=1)
    with pytest.raises(RuntimeError, match="not running"):
        producer.restart()
    producer.stop()


def test_collections_are_made_by_name(producer: TemporaryProducer) -> None:
    orders = producer.create_collection("shop.orders")
    producer.create_collection("shop.people", max_ttl=60)
    producer.write(b"1", b"{}", collection="shop.orders")
    producer.write(b"2", b"{}", collection=orders)
    producer.write(b"3", b"{}", collection="shop.people")
    producer.write(b"4", b"{}", collection="_default._default")
    with Consumer(producer.source, collections=("shop.orders",), end="now") as consumer:
        assert {change.key for change in consumer} == {b"1", b"2"}
        assert consumer.collections.names(orders) == ("shop", "orders")
    producer.delete(b"2", collection="shop.orders")
    producer.drop_collection("shop.people")
    for name in ("shop.people", "shop.orders.more", "shop"):
        with pytest.raises(ConfigError):
            producer.write(b"3", b"{}", collection=name)
