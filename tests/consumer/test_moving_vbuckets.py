"""Vbuckets that go to other nodes while they are read, told by maps that nobody pushes."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest
from consumerkit import Conversation
from old_servers import RealServer, Release302, Release412, Release705, cluster_of
from waiting import until

from upriver.consumer import Consumer
from upriver.consumer.topology.seqno_survey import Survey
from upriver.consumer.transport.access import Access
from upriver.consumer.transport.connection_string import Source
from upriver.errors import Status
from upriver.model import StreamEndReason
from upriver.wire import kv_messages as kv
from upriver.wire import messages as m

SOON: dict[str, Any] = {"map_interval": 0.05, "retry_first": 0.01, "retry_most": 0.1}


@contextmanager
def nodes(release: type[RealServer], count: int = 2) -> Iterator[list[RealServer]]:
    """A cluster of some nodes, all of them with the vbuckets 0 and 1, active on the first."""
    with ExitStack() as stack:
        servers = [stack.enter_context(release({0: 3, 1: 1})) for _ in range(count)]
        for other in servers[1:]:
            other.states = dict.fromkeys(other.states, "replica")
        cluster_of(servers, [0, 0], rev=1)
        yield servers


def take_over(servers: list[RealServer], vbucket: int, *, rev: int = 2) -> None:
    """The second node has it from now on; the first one's copy is dead."""
    first, second = servers
    first.states[vbucket], second.states[vbucket] = "dead", "active"
    owners = [0, 0]
    owners[vbucket] = 1
    cluster_of(servers, owners, rev=rev)


@pytest.mark.parametrize("release", [Release302, Release412])
def test_a_stream_that_ended_is_not_reopened_on_a_dead_copy(release: type[RealServer]) -> None:
    with nodes(release) as servers, Consumer(servers[0].source, **SOON) as consumer:
        changes = iter(consumer)
        assert {next(changes).vbucket for _ in range(4)} == {0, 1}
        asked = len(servers[0].asked_for(m.StreamRequest))
        servers[0].states[0] = "dead"
        servers[0].end(0, StreamEndReason.STATE_CHANGED)
        # the map still names the old node, which would accept a stream and say nothing
        until(lambda: len(servers[0].asked_for(kv.Stat)) > 3 or _asks_seqnos(servers[0]) > 3)
        assert len(servers[0].asked_for(m.StreamRequest)) == asked
        take_over(servers, 0)
        until(lambda: 0 in servers[1].streams)
        servers[1].write(0)
        assert next(changes).seqno == 4


def _asks_seqnos(server: RealServer) -> int:
    return len(server.asked_for(kv.GetAllSeqnos))


@pytest.mark.parametrize("release", [Release302, Release412, Release705])
def test_a_reader_leaves_a_former_owner_that_is_silent(release: type[RealServer]) -> None:
    """After a takeover the old node does not end the streams that others have of its copy."""
    with nodes(release) as servers, Consumer(servers[0].source, **SOON) as consumer:
        changes = iter(consumer)
        for _ in range(4):
            next(changes)
        if release is Release705:
            talk, _ = servers[0].streams[0]
            take_over(servers, 0)
            talk.send(kv.ClustermapChanged(bucket="default", epoch=0, revision=2, config=b""))
        else:
            take_over(servers, 0)
        until(lambda: 0 in servers[1].streams)
        servers[1].write(0)
        assert next(changes).seqno == 4
        assert consumer.status().counts["moved to another node"] == 1
        (request,) = servers[1].asked_for(m.StreamRequest)
        assert (request.vbucket, request.start, request.vbuuid) == (0, 3, 7)


def test_a_reader_stays_at_a_former_owner_while_something_comes() -> None:
    with nodes(Release412) as servers, Consumer(servers[0].source, **SOON) as consumer:
        changes = iter(consumer)
        for _ in range(4):
            next(changes)
        take_over(servers, 0)
        asked = len(servers[0].asked_for(kv.GetClusterConfig))
        until(lambda: len(servers[0].asked_for(kv.GetClusterConfig)) > asked + 1)
        servers[0].write(0)
        assert next(changes).seqno == 4
        assert 0 not in servers[1].streams


# ---- hosts that are gone -----------------------------------------------------------------


def gone(server: RealServer) -> None:
    server.__exit__(None, None, None)


def test_a_cluster_outlives_the_host_that_was_named(caplog: pytest.LogCaptureFixture) -> None:
    """A later reader, as a task of Spark is one, knows the nodes of the last map."""
    with ExitStack() as stack:
        first = Release412({0: 3, 1: 1})
        second = stack.enter_context(Release412({0: 3, 1: 1}))
        cluster_of([first, second], [0, 0], rev=1)
        source = Source.parse(first.source)
        with Survey(source, Access(), timeout=5, patience=30) as survey:
            assert survey.high_seqnos() == {0: 3, 1: 1}
            known = source.knowing(survey.nodes)
            gone(first)
            cluster_of([first, second], [1, 1], rev=2)
            assert survey.high_seqnos() == {0: 3, 1: 1}
        with caplog.at_level(logging.WARNING):
            for _ in range(2):
                with Consumer(known, end="now") as consumer:
                    assert len(list(consumer)) == 4
        told = [r.message for r in caplog.records if "no host that was named answers" in r.message]
        assert len(told) == 1
        assert str(first.port) in told[0]
        assert str(second.port) in told[0]


def test_a_node_that_does_not_tell_its_states_is_believed_by_its_map() -> None:
    class Secretive(Release412):
        def answered(self, talk: Conversation, request: Any) -> bool:
            if isinstance(request, kv.GetAllSeqnos):
                talk.answer(request, Status.NO_ACCESS)
                return True
            return super().answered(talk, request)

    with Secretive({0: 2}) as server, Consumer(server.source, **SOON) as consumer:
        changes = iter(consumer)
        assert [next(changes).seqno for _ in range(2)] == [1, 2]
        server.end(0, StreamEndReason.STATE_CHANGED)
        until(lambda: 0 in server.streams)
        server.write(0)
        assert next(changes).seqno == 3
