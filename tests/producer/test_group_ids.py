"""The group id of drafts 002 and 000 is the name of their connections in statistics and counts."""

from __future__ import annotations

from typing import Any

import pytest
from printed_packets import RIGHT
from talk import Talk
from waiting import until

from upriver.consumer import Consumer
from upriver.model import NO_END
from upriver.testing import TemporaryProducer
from upriver.wire import messages as m
from upriver.wire.dialects import Dialect, Draft000, Draft002

DRAFTS: dict[str, tuple[Dialect, bytes]] = {
    "002": (Draft002(), RIGHT["002", 2]),
    "000": (Draft000(), RIGHT["000", 3]),
}


def told(producer: TemporaryProducer) -> dict[str, str]:
    with Talk(producer) as talk:
        return talk.statistics("dcp")


@pytest.mark.parametrize("draft", DRAFTS)
def test_the_printed_group_id_is_in_the_statistics(draft: str) -> None:
    dialect, request = DRAFTS[draft]
    with TemporaryProducer(vbuckets=16) as producer, Talk(producer, dialect) as talk:
        assert told(producer)["ep_dcp_count"] == "0"
        talk.socket.sendall(request)
        talk.packet()
        statistics = told(producer)
        assert statistics["eq_dcpq:replication_12:type"] == "producer"
        assert "eq_dcpq:replication_12:stream_12_state" in statistics
        assert (statistics["ep_dcp_count"], statistics["ep_dcp_producer_count"]) == ("1", "1")
        with Talk(producer, dialect) as another:  # a name of streams, which both may have
            another.socket.sendall(request)
            another.packet()
            assert told(producer)["ep_dcp_count"] == "2"
            talk.send(m.FailoverLogRequest(vbucket=1, opaque=3))
            talk.read_until(m.FailoverLogResponse)
        with Talk(producer, dialect) as nameless:
            nameless.send(m.StreamRequest(vbucket=1, start=0, end=NO_END, opaque=1))
            nameless.packet()
            host, port = nameless.socket.getsockname()
            assert told(producer)[f"eq_dcpq:{host}:{port}:connected"] == "true"


@pytest.mark.parametrize("draft", DRAFTS)
def test_a_consumers_group_id_is_its_name(draft: Any) -> None:
    with (
        TemporaryProducer(vbuckets=2) as producer,
        Consumer(producer.source, dialect=draft, name="my reader"),
    ):
        until(lambda: "eq_dcpq:my reader:stream_0_state" in told(producer))
