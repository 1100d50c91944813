"""Statistics that memcached's and the vendor's suites and tools read."""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Iterator

import pytest
from talk import Talk, request_bytes

from upriver.testing import TemporaryProducer

SETQ, ADD, SUBDOC_GET = 0x11, 2, 0xC5
GET, GETQ, SET, DELETE, INCREMENT, FLUSH, GAT, TOUCH = 0, 9, 1, 4, 5, 8, 0x1D, 0x1C
STORE, EXPIRY = bytes(8), struct.pack(">I", 1000)
COUNT = struct.pack(">QQI", 1, 0, 0xFFFFFFFF)


@pytest.fixture
def producer() -> Iterator[TemporaryProducer]:
    with TemporaryProducer(vbuckets=1) as producer:
        yield producer


@pytest.fixture
def talk(producer: TemporaryProducer) -> Iterator[Talk]:
    with Talk(producer) as talk:
        yield talk


def test_commands_are_counted_by_whether_they_found_anything(talk: Talk) -> None:
    cas = talk.ask_raw(SET, b"there", b"1", STORE).cas
    talk.ask_raw(GET, b"there")
    talk.ask_raw(GET, b"absent")
    talk.ask_raw(GETQ, b"there")
    talk.ask_raw(GAT, b"there", b"", EXPIRY)
    talk.ask_raw(GAT, b"absent", b"", EXPIRY)
    talk.ask_raw(TOUCH, b"absent", b"", EXPIRY)
    talk.ask_raw(INCREMENT, b"absent", b"", COUNT)
    talk.ask_raw(INCREMENT, b"there", b"", COUNT)
    talk.ask_raw(SET, b"there", b"2", STORE, cas=cas)
    talk.ask_raw(DELETE, b"there")
    talk.ask_raw(FLUSH)
    told = talk.statistics()
    assert told["pid"] == str(os.getpid())
    counted = {
        "cmd_get": "5",
        "get_hits": "3",
        "get_misses": "2",
        "cmd_touch": "1",
        "touch_hits": "0",
        "touch_misses": "1",
        "incr_hits": "1",
        "incr_misses": "1",
        "delete_hits": "1",
        "delete_misses": "0",
        "cas_badval": "1",
        "cmd_set": "2",
        "cmd_flush": "1",
    }
    assert {name: told[name] for name in counted} == counted
    talk.statistics("reset")
    assert talk.statistics()["cmd_get"] == "0"


def test_responses_are_counted_by_status(talk: Talk) -> None:
    """One statistic: a JSON object of hexadecimal statuses, those of plain and other writes."""
    talk.statistics("reset")
    before = json.loads(talk.statistics("responses")["responses"])
    for number in range(3):  # plain ones, which take the fast path
        assert talk.ask_raw(SET, b"k%d" % number, b"1", STORE).status == 0
    talk.socket.sendall(request_bytes(SETQ, b"quiet", b"1", STORE))  # stored, not answered
    assert talk.ask_raw(ADD, b"k0", b"1", STORE).status == 2
    assert talk.ask_raw(GET, b"absent").status == 1
    assert talk.ask_raw(TOUCH, b"absent", b"", EXPIRY).status == 1
    assert talk.ask_raw(SUBDOC_GET, b"absent", b"p", bytes((0, 1, 0))).status == 1
    assert talk.ask_raw(ADD, b"text", b"x", STORE).status == 0
    assert talk.ask_raw(INCREMENT, b"text", b"", COUNT).status == 6
    after = json.loads(talk.statistics("responses")["responses"])
    # Of the statistics themselves: the reset's end, and the first answer with its end.
    assert after["0"] - before.get("0", 0) == 3 + 1 + 2
    assert {status: count for status, count in after.items() if status != "0"} == {
        "1": 3,
        "2": 1,
        "6": 1,
    }
    assert talk.statistics()["cmd_set"] == "6"


def test_a_connection_tells_of_itself(producer: TemporaryProducer, talk: Talk) -> None:
    with Talk(producer) as other:
        other.ask_raw(0x1F, b"another agent")
        agent = json.dumps({"a": "agent " + "x" * 60, "i": "1234/5678"}).encode()
        talk.ask_raw(0x1F, agent)
        own = talk.statistics("connections self")
        assert list(own) == ["0"]
        told = json.loads(own["0"])
        assert told["agent_name"] == "agent " + "x" * 26
        assert told["connection_id"] == "1234/5678"
        other.ask_raw(GET, b"k")  # so that it has a bucket
        everybody = [json.loads(text) for text in talk.statistics("connections").values()]
        assert {about["agent_name"] for about in everybody} == {
            told["agent_name"],
            "another agent",
        }


def test_connections_for_change_streams_are_counted_by_kind(
    producer: TemporaryProducer, talk: Talk
) -> None:
    with Talk(producer) as reader, Talk(producer) as consumer:
        reader.ask_raw(0x50, b"reader", b"", struct.pack(">II", 0, 1))
        consumer.ask_raw(0x50, b"consumer", b"", struct.pack(">II", 0, 0))
        told = talk.statistics("dcp")
        counted = {
            "ep_dcp_count": "2",
            "ep_dcp_producer_count": "1",
            "ep_dcp_consumer_count": "1",
            "ep_dcp_dead_conn_count": "0",
        }
        assert {name: told[name] for name in counted} == counted


@pytest.mark.parametrize(("value", "datatype"), [(b'{"a":1}', 0), (b"no JSON", 1)])
def test_the_value_of_a_question_is_json(talk: Talk, value: bytes, datatype: int) -> None:
    assert talk.ask_raw(0x10, b"", value, datatype=datatype).status == 0x04
    assert talk.ask_raw(0x0A).status == 0


@pytest.mark.parametrize("group", ["detail on", "detail dump", "detail off"])
def test_counts_by_prefix_are_none(talk: Talk, group: str) -> None:
    assert talk.statistics(group) == {}


def test_whether_changes_are_written_to_disk_is_told(talk: Talk) -> None:
    stop, start = 0x80, 0x81
    assert talk.statistics()["ep_flusher_state"] == "running"
    assert talk.ask_raw(stop).status == 0
    assert talk.statistics()["ep_flusher_state"] == "paused"
    assert talk.ask_raw(start).status == 0
    assert talk.statistics()["ep_flusher_state"] == "running"
    assert int(talk.statistics()["mem_used"]) > 1024 * 1024


def test_settings_and_scopes(producer: TemporaryProducer, talk: Talk) -> None:
    settings = talk.statistics("settings")
    assert settings["cas_enabled"] == settings["flush_enabled"] == "yes"
    assert int(settings["maxconns"]) > 0
    scope = producer.bucket.create_scope("s")
    producer.bucket.create_collection(scope.id, "c")
    scopes = talk.statistics("scopes")
    assert scopes[f"{scope.id:#x}:name"] == "s"
    assert scopes[f"{scope.id:#x}:collections"] == "1"


@pytest.mark.parametrize(
    ("group", "status"),
    [
        (b"no such group", 0x01),
        (b"detail", 0x04),
        (b"reset bogus", 0x04),
        (b"connections xxx", 0x04),
        (b"vbucket-details 9", 0x07),
        (b"vbucket-details x", 0x04),
        (b"vbucket-seqno 100000", 0x07),
        (b"failovers 9", 0x07),
    ],
)
def test_what_cannot_be_told_is_refused(talk: Talk, group: bytes, status: int) -> None:
    assert talk.ask_raw(0x10, group).status == status
    assert talk.ask_raw(0x0A).status == 0
