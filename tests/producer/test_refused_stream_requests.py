"""Document 004: "check the server logs for more information on which case occurred"."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import replace

import pytest
from printed_packets import RIGHT
from talk import Talk, everything

from upriver.errors import Status
from upriver.model import NO_END
from upriver.store import SetDocument
from upriver.testing import TemporaryProducer
from upriver.wire import messages as m
from upriver.wire.dialects import Dcp, Dialect, Draft000, Draft001, Draft002
from upriver.wire.protocol_enums import Feature

DRAFTS: list[Dialect] = [Draft002(), Draft000(), Draft001(), Dcp()]
REQUEST = m.StreamRequest(vbucket=12, start=0, end=NO_END, opaque=0x2D)


@pytest.fixture(scope="module")
def producer() -> Iterator[TemporaryProducer]:
    with TemporaryProducer(vbuckets=16) as producer:
        producer.bucket.write_many([SetDocument(12, b"\0k%d" % n, b"v") for n in range(3)])
        yield producer


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.INFO, "upriver.producer")
    return caplog


def opened(producer: TemporaryProducer, dialect: Dialect) -> Talk:
    talk = Talk(producer, dialect)
    if dialect.opens_connections:
        assert talk.open("reader").status is Status.SUCCESS
    return talk


@pytest.mark.parametrize("dialect", DRAFTS, ids=lambda dialect: dialect.name)
def test_the_case_of_a_refusal_is_in_the_log(
    producer: TemporaryProducer, dialect: Dialect, log: pytest.LogCaptureFixture
) -> None:
    vbuuid = producer.bucket.failover_log(12).newest.vbuuid
    cases = {
        "RANGE: start 2 is above end 1": replace(REQUEST, start=2, end=1, vbuuid=vbuuid),
        "NOT_MY_VBUCKET: there is no vbucket 99": replace(REQUEST, vbucket=99),
    }
    if dialect.opens_connections:
        cases["RANGE: start 1 is above end 0"] = replace(REQUEST, start=1, end=0, vbuuid=vbuuid)
    if dialect.name == "dcp":
        beside = replace(REQUEST, start=1, vbuuid=vbuuid, snapshot_start=2, snapshot_end=3)
        cases["RANGE: start 1 is not within its snapshot 2..3"] = beside
    with opened(producer, dialect) as talk:
        for case, request in cases.items():
            log.clear()
            talk.send(request)
            assert talk.read().opaque == 0x2D
            (line,) = [x for x in log.records if "is refused with" in x.getMessage()]
            assert line.getMessage().endswith(case)
            assert f"vbucket {request.vbucket} (draft {dialect.name})" in line.getMessage()
            usual = case.startswith("NOT_MY_VBUCKET")
            assert line.levelno == (logging.INFO if usual else logging.WARNING)
        log.clear()
        for _ in range(20):  # a client cannot fill the log of a server that is not verbose
            talk.send(replace(REQUEST, start=2, end=1, vbuuid=vbuuid))
            talk.read()
        assert sum(record.levelno == logging.WARNING for record in log.records) < 8


@pytest.mark.parametrize(
    ("draft", "number"), [("002", 2), ("000", 3), ("001", 8), ("004", 1)], ids=lambda x: str(x)
)
def test_a_malformed_request_is_in_the_log_too(
    producer: TemporaryProducer, draft: str, number: int, log: pytest.LogCaptureFixture
) -> None:
    """What the documents print, with a length that leaves no room for its fields."""
    dialects: dict[str, Dialect] = {"002": Draft002(), "000": Draft000(), "001": Draft001()}
    dialect = dialects.get(draft, Dcp())
    packet = bytearray(RIGHT[draft, number])
    with opened(producer, dialect) as talk:
        if draft == "002":
            packet = packet[:30]
            packet[8:12] = (18).to_bytes(4, "big")
        else:
            packet += b"?"  # a byte of a value that is no JSON and has no business here
            packet[8:12] = (len(packet) - 24).to_bytes(4, "big")
        talk.socket.sendall(packet)
        talk.packet()
    lines = [record.getMessage() for record in log.records]
    assert any("a stream request is refused with INVALID" in line for line in lines) or (
        draft == "004" and any("a value needs a connection with" in line for line in lines)
    )


@pytest.mark.parametrize("collections", [False, True])
def test_a_stream_id_without_the_feature_is_0x8d(
    producer: TemporaryProducer, collections: bool
) -> None:
    with Talk(producer) as talk:
        if collections:
            talk.hello(Feature.COLLECTIONS)
        talk.open("reader")
        talk.control("enable_noop", "true")
        refused = talk.ask(replace(REQUEST, filter=b'{"sid":7}'))
        assert refused.status is Status.STREAM_ID_INVALID
        if not collections:
            assert talk.ask(replace(REQUEST, filter=b'{"uid":"0"}')).status is Status.INVALID
            assert talk.ask(replace(REQUEST, filter=b"{")).status is Status.INVALID


def test_stream_ids_are_not_enabled_where_no_request_could_have_one(
    producer: TemporaryProducer,
) -> None:
    with Talk(producer) as talk:
        talk.open("reader")
        assert talk.control("enable_stream_id", "true").status is Status.NOT_SUPPORTED
        assert isinstance(talk.ask(REQUEST), m.StreamAccepted)  # and nothing has changed
    with everything(producer) as talk:
        assert talk.control("enable_stream_id", "true").status is Status.SUCCESS
        assert talk.ask(REQUEST).status is Status.STREAM_ID_INVALID
