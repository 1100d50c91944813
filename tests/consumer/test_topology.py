"""What is tried again and what is final, decided without a socket: conversations over a cluster."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, TypeVar

import pytest

from upriver.consumer.topology.cluster_view import (
    ClusterConversation,
    Pause,
    Topology,
    Visit,
    ask_owners,
    renew_map,
)
from upriver.consumer.transport.connection_string import Address, Source
from upriver.errors import (
    AuthenticationFailed,
    ConfigError,
    ConnectionFailed,
    RemoteProtocolError,
    Status,
    StatusError,
    UpriverError,
)
from upriver.session.conversation import Conversation

_T = TypeVar("_T")

A, B, C = (Address("127.0.0.1", port) for port in (1, 2, 3))
GONE = ConnectionFailed("cannot be reached", "is it there?", where="somewhere")


def cluster(
    *rows: int, rev: int = 1, nodes: tuple[Address, ...] = (A, B), name: str = "b"
) -> bytes:
    servers = {"serverList": [str(node) for node in nodes], "vBucketMap": [[row] for row in rows]}
    return json.dumps({"rev": rev, "name": name, "vBucketServerMap": servers}).encode()


class World:
    """Plays the nodes: what each visit comes to, and a clock that pauses move."""

    def __init__(self, *hosts: Address, answer: Callable[[Address], Any]) -> None:
        self.now = 0.0
        self.visited: list[Address] = []
        self.topology = Topology(Source(hosts, "b"), clock=lambda: self.now)
        self._answer = answer

    def run(self, conversation: ClusterConversation[_T]) -> _T:
        try:
            step = next(conversation)
            while True:
                if isinstance(step, Pause):
                    self.now += step.seconds
                    step = conversation.send([])
                else:
                    step = conversation.send([self._visit(visit) for visit in step])
        except StopIteration as done:
            result: _T = done.value
            return result

    def _visit(self, visit: Visit) -> list[Any] | UpriverError:
        self.visited.append(visit.address)
        for talk in visit.talks:
            talk.close()
        said = self._answer(visit.address)
        return said if isinstance(said, UpriverError) else [said]


def no_question(vbuckets: list[int]) -> tuple[Conversation[dict[int, int]], ...]:
    def never() -> Conversation[dict[int, int]]:
        raise AssertionError(vbuckets)
        yield  # type: ignore[unreachable]  # which makes it a generator

    return (never(),)


def test_the_connected_are_asked_first_then_the_map_s_then_the_named() -> None:
    answers: dict[Address, Any] = {A: cluster(0, 1)}
    world = World(A, answer=lambda address: answers.get(address, GONE))
    assert world.run(renew_map(world.topology)) == A
    answers.clear()
    with pytest.raises(ConnectionFailed, match="before it"):
        world.run(renew_map(world.topology, [C]))
    assert world.visited == [A, C, A, B]


def test_a_cluster_outlives_the_host_that_was_named() -> None:
    answers: dict[Address, Any] = {A: cluster(0, 1)}
    world = World(A, answer=lambda address: answers.get(address, GONE))
    world.run(renew_map(world.topology))
    answers.clear()
    answers[B] = cluster(1, 1, rev=2)
    assert world.run(renew_map(world.topology)) == B
    assert world.topology.owner(0) == B


def test_a_wrong_password_is_final_and_nobody_else_is_asked() -> None:
    wrong = AuthenticationFailed("authentication failed", "check it")
    world = World(A, B, answer=lambda address: wrong)
    with pytest.raises(AuthenticationFailed):
        world.run(renew_map(world.topology, patience=100))
    assert world.visited == [A]


def test_patience_is_for_nodes_that_may_come_back() -> None:
    world = World(A, answer=lambda address: GONE if world.now < 3 else cluster(0, nodes=(A,)))
    world.run(renew_map(world.topology, patience=10))
    assert world.now >= 3
    assert len(world.visited) > 2
    world = World(A, answer=lambda address: GONE)
    with pytest.raises(ConnectionFailed):
        world.run(renew_map(world.topology, patience=10))
    assert world.now == pytest.approx(10)


def test_a_refused_map_is_an_error_with_its_status() -> None:
    refused = StatusError(Status.NOT_FOUND, request="the map", context="no map yet")
    world = World(A, answer=lambda address: refused)
    with pytest.raises(ConnectionFailed, match="refused to send the map, with NOT_FOUND"):
        world.run(renew_map(world.topology))


def test_maps_of_others_and_older_ones_are_not_believed() -> None:
    world = World(A, answer=lambda address: None)
    world.topology.learn_map(cluster(0, 1, rev=5), A)
    world.topology.learn_map(cluster(1, 1, rev=4), A)
    assert world.topology.owner(0) == A
    with pytest.raises(RemoteProtocolError, match="map of the bucket 'other'"):
        world.topology.learn_map(cluster(0, 1, rev=6, name="other"), A)
    with pytest.raises(ConfigError, match="had 2 vbuckets and now has 3"):
        world.topology.learn_map(cluster(0, 1, 1, rev=6), A)


def owners_world(answers: dict[Address, Any]) -> World:
    world = World(A, answer=lambda address: answers.get(address, GONE))
    world.topology.learn_map(cluster(0, 1), A)
    world.topology.map_is_old = False
    return world


def test_every_owner_is_asked_for_its_vbuckets() -> None:
    world = owners_world({A: {0: 10}, B: {1: 20}})
    assert world.run(ask_owners(world.topology, None, no_question)) == {0: 10, 1: 20}
    assert world.visited == [A, B]


def test_a_part_is_enough_only_for_those_who_say_so() -> None:
    world = owners_world({A: {0: 10}})
    assert world.run(ask_owners(world.topology, None, no_question, partial=True)) == {0: 10}
    world = owners_world({A: {0: 10}})
    with pytest.raises(ConnectionFailed):
        world.run(ask_owners(world.topology, None, no_question))


def test_a_refusal_is_never_taken_for_nothing_there() -> None:
    refused = StatusError(Status.NO_ACCESS, request="the high seqnos")
    world = owners_world({A: {0: 10}, B: refused})
    with pytest.raises(StatusError, match="the high seqnos was refused with NO_ACCESS"):
        world.run(ask_owners(world.topology, None, no_question, partial=True, patience=100))
    assert world.now == 0


def test_a_whole_answer_has_every_vbucket_or_is_an_error() -> None:
    answers: dict[Address, Any] = {A: {0: 10}, B: {}}
    world = owners_world(answers)
    assert world.run(ask_owners(world.topology, None, no_question)) == {0: 10}
    world = owners_world(answers)
    with pytest.raises(ConnectionFailed, match="vbucket 1 of b on no node"):
        world.run(ask_owners(world.topology, None, no_question, whole=True))
